"""Tests that rows through computed weights are those of the slow path, whatever is done with them."""

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from tests._backward.test_architectures import lora, weight_norm_by_hand, weight_of_a_weight
from tests._backward.test_exact_models import BATCH, Make, build
from torch import Tensor, nn

import gdod
from gdod.rows import plan, recipe
from gdod.rows.computed import Computed
from gdod.rows.cotangent import Cotangent
from gdod.rows.groups import Groups, Owner
from gdod.rows.uses import Contraction, Reduction

MODELS: dict[str, Make] = {"lora": lora(), "weight norm": weight_norm_by_hand, "weight of a weight": weight_of_a_weight}
METHODS: dict[str, Callable[[], gdod.Method]] = {
    "gdod": lambda: gdod.GDOD(groups=4),
    "pcgrad": gdod.PCGrad,
    "gradreg, which differentiates rows": lambda: gdod.GradReg(weight=0.5),
    "gradnorm, which asks for the last layer": gdod.GradNorm,
}


def grads(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", MODELS)
def test_every_method_gets_what_it_gets_by_the_slow_path(
    name: str, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, inputs = build(MODELS[name], torch.float64)
    info = gdod.backward(model(*inputs), METHODS[method]())
    assert info.slow == ()
    fast = grads(model)
    model.zero_grad()

    def nothing(graph: Any, made: plan.Plan, *rest: Any) -> Any:
        return Computed(), made.way

    monkeypatch.setattr(recipe, "find_computed", nothing)
    monkeypatch.setattr(plan, "_PLANS", type(plan._PLANS)())  # nothing is known of the graph
    with quiet():
        info = gdod.backward(model(*inputs), METHODS[method]())
    assert info.slow
    assert fast.keys() == grads(model).keys()
    for key, grad in grads(model).items():
        torch.testing.assert_close(fast[key], grad, rtol=1e-9, atol=1e-12)


def quiet() -> AbstractContextManager[object]:
    return warnings.catch_warnings(action="ignore", category=gdod.SlowPathWarning)


def test_a_part_of_the_parameters_can_be_named() -> None:
    """Then the others are plain, and rows cannot go through what their gradient needs."""
    model, inputs = build(lora(frozen=False), torch.float64)
    chosen = [model.get_parameter("trunk.a")]
    with quiet():
        gdod.backward(model(*inputs), gdod.GDOD(groups=4), shared=chosen)
    found = grads(model)
    plain, _ = build(lora(frozen=False), torch.float64)
    plain.load_state_dict(model.state_dict())
    sum(loss.mean() for loss in plain(*inputs).values()).backward()
    for name, grad in grads(plain).items():
        if name != "trunk.a":
            torch.testing.assert_close(found[name], grad)


def test_the_graph_can_be_kept_and_used_again() -> None:
    model, inputs = build(lora(), torch.float64)
    losses = model(*inputs)
    gdod.backward(losses, gdod.GDOD(groups=4), retain_graph=True)
    first = {name: grad.clone() for name, grad in grads(model).items()}
    model.zero_grad()
    gdod.backward(losses, gdod.GDOD(groups=4))
    for name, grad in grads(model).items():
        torch.testing.assert_close(grad, first[name])


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("experts", [1, 3])
@pytest.mark.parametrize("count", [1, 4, BATCH])
def test_rows_of_one_group_after_the_other_are_the_rows(left: bool, experts: int, count: int) -> None:
    inputs, outputs, tasks = 4, 5, 2
    use = Contraction(left=left, saved="")
    x = torch.randn(experts, BATCH, inputs).double()
    delta = torch.randn(tasks, experts, BATCH, outputs).double()
    delta = delta.transpose(-1, -2) if left else delta
    cotangent = Cotangent(delta, Groups(BATCH, count), Owner(2 if left else 1, 1))
    shape = torch.Size((experts, outputs, inputs) if left else (experts, inputs, outputs))
    rows = use.rows(x, cotangent, shape)
    assert rows.shape == (count * tasks, *shape)
    torch.testing.assert_close(torch.cat(list(use.rows_by_group(x, cotangent, shape))), rows)


def test_rows_of_a_sum_by_group() -> None:
    cotangent = Cotangent(torch.randn(2, BATCH, 5).double(), Groups(BATCH, 4), Owner(0, 1))
    rows = Reduction().rows(1, cotangent, torch.Size((5,)))
    by_group = list(Reduction().rows_by_group(1, cotangent, torch.Size((5,))))
    assert len(by_group) == 4
    torch.testing.assert_close(torch.cat(by_group), rows)
