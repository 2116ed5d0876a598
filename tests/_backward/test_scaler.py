"""Gradient scalers: the result is that without one, and gradients that overflow lead to a step left out."""

import copy
from collections.abc import Callable

import pytest
import torch
from tests.rows.distributed.cases import VARIETY, Everything
from tests.rows.distributed.cases import everything_data as make_data
from tests.rows.distributed.cases import everything_losses as losses
from torch import Tensor, nn

import gdod

METHODS: dict[str, Callable[[], gdod.Method]] = {
    **VARIETY,
}


def gradient(model: nn.Module) -> Tensor:
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    return torch.cat([(grad.to_dense() if grad.is_sparse else grad).reshape(-1) for grad in grads])


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("name", METHODS)
def test_unscaled_gradients_are_those_without_a_scaler(name: str, sparse: bool) -> None:
    """Also for methods for which it matters how large gradients or losses are."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    model = Everything(sparse=sparse).double()
    other, inputs = copy.deepcopy(model), make_data(20).inputs
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    methods = METHODS[name](), METHODS[name]()
    for _ in range(2):
        model.zero_grad()
        other.zero_grad()
        want = gdod.backward(losses(other, inputs), methods[1])
        got = gdod.backward(losses(model, inputs), methods[0], scaler=scaler)
        torch.testing.assert_close(gradient(model), 2.0**12 * gradient(other), rtol=1e-9, atol=1e-9)
        scaler.unscale_(optimizer)
        torch.testing.assert_close(gradient(model), gradient(other), rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(got.losses, want.losses)
        assert got.gram is None or torch.allclose(got.norms, want.norms)
        scaler.step(optimizer)
        scaler.update()
        torch.optim.SGD(other.parameters(), lr=0.05).step()


def small() -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2))
    return model, torch.randn(32, 6), torch.randn(32, 2)


def in_half_precision(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.float16):
        out = model(x)
    squares: Tensor = (out.float() - y) ** 2
    return squares


HALF: dict[str, Callable[[], gdod.Method]] = {
    "gdod": lambda: gdod.GDOD(groups=4),
    "gradreg": lambda: gdod.GradReg(0.1),
    "sum": lambda: gdod.Sum(),
}


@pytest.mark.parametrize("accumulated", [False, True])
@pytest.mark.parametrize("name", HALF)
def test_a_step_whose_gradients_overflow_is_left_out(name: str, accumulated: bool) -> None:
    if accumulated and name == "gradreg":
        return
    model, x, y = small()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)  # float16 ends at 2^16
    optimizer, method = torch.optim.SGD(model.parameters(), lr=0.1), HALF[name]()
    left_out, values = 0, []
    for _ in range(60):
        before = [parameter.detach().clone() for parameter in model.parameters()]
        scale = scaler.get_scale()
        optimizer.zero_grad()
        if accumulated:
            update = gdod.Accumulation(method, examples=32, scaler=scaler)
            for part in (slice(0, 20), slice(20, 32)):
                update.add(in_half_precision(model, x[part], y[part]))
            info = update.backward()
        else:
            info = gdod.backward(in_half_precision(model, x, y), method, scaler=scaler)
        scaler.step(optimizer)
        scaler.update()
        same = all(torch.equal(one, other) for one, other in zip(before, model.parameters(), strict=True))
        assert same == (scaler.get_scale() < scale)  # left out: the scaler has seen it
        left_out += same
        values.append(float(info.losses.sum()))
    assert 5 < left_out < 50
    assert values[-1] < values[0]
    assert all(parameter.isfinite().all() for parameter in model.parameters())


def test_a_method_does_not_learn_from_gradients_that_overflowed() -> None:
    model, x, y = small()
    method = gdod.GradNorm()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)
    info = gdod.backward(in_half_precision(model, x, y), method, scaler=scaler)
    assert method.state_dict() == {}
    assert info.losses.isfinite().all()
    assert not info.norms.isfinite().all()


@pytest.mark.filterwarnings("ignore::gdod.MixingWarning")  # nan looks like anything
@pytest.mark.parametrize("scaler", [None, torch.amp.GradScaler("cpu", enabled=False)], ids=["none", "disabled"])
def test_without_a_scaler_gradients_that_overflow_are_refused(scaler: torch.amp.GradScaler | None) -> None:
    model, x, y = small()
    large = in_half_precision(model, x, y) * 2.0**40
    with pytest.raises(gdod.NonFiniteInputError, match="gradient"):
        gdod.backward(large, gdod.GDOD(groups=4), scaler=scaler)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_losses_that_are_not_finite_are_refused_all_the_same() -> None:
    model, x, y = small()
    scaler = torch.amp.GradScaler("cpu")
    with pytest.raises(gdod.NonFiniteInputError, match="losses of '0', '1' are not finite"):
        gdod.backward(in_half_precision(model, x / 0, y), scaler=scaler)


def test_something_else_is_refused() -> None:
    model, x, y = small()
    with pytest.raises(gdod.InputError, match=r"scaler is a float; expected a torch.amp.GradScaler"):
        gdod.backward(in_half_precision(model, x, y), scaler=65536.0)  # type: ignore[arg-type]


def test_the_scale_of_an_update_stays() -> None:
    model, x, y = small()
    scaler = torch.amp.GradScaler("cpu")
    update = gdod.Accumulation(examples=32, scaler=scaler)
    update.add(in_half_precision(model, x[:16], y[:16]))
    scaler.update(128.0)
    with pytest.raises(gdod.InputError, match=r"scaled by 128.0.*scaler.update\(\) comes after backward"):
        update.add(in_half_precision(model, x[16:], y[16:]))
