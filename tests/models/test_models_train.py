"""Every model trains with every method, exactly, and can learn by heart."""

import pytest
import torch
from tests import reference
from tests.models.cases import CHAINS, FORMS, SCHEMA, batch_of, build, labels_of, losses_of, losses_on, total
from torch import Tensor

import gdod
from gdod.methods import METHODS
from gdod.models import MODELS, Batch, Model, Task, per_example_losses
from gdod.models import build as build_model


def train(model: Model, method: gdod.Method, steps: int) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        losses, mask = losses_of(model.train())
        gdod.backward(losses, method, mask=mask)
        penalty = model.penalty()
        if penalty is not None:
            penalty.backward()
        optimizer.step()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", MODELS)
def test_every_model_trains_with_every_method(name: str, method: str) -> None:
    try:
        made = gdod.method(method)
    except ImportError as error:  # what torchjd keeps behind an extra of its own
        pytest.skip(str(error))
    model = build(name)
    before = float(total(losses_of(model.eval())).detach())
    train(model, made, steps=15)
    assert float(total(losses_of(model.eval())).detach()) < before - 0.01


def check_exact(form: str, dtype: torch.dtype, rule: str = "sign") -> None:
    """`.grad` after `gdod.backward` is what Algorithm 1 gives on dense float64 rows."""
    model, batch, labels = build(form).to(dtype), batch_of(22), labels_of(22)
    if dtype == torch.float32:
        model.eval()  # random numbers differ between precisions

    def losses(model: Model, ids: Tensor, numbers: Tensor, *lists: Tensor) -> dict[str, Tensor]:
        return losses_on(model, Batch(ids, numbers, lists), labels).losses

    inputs = [batch.categorical, batch.numeric, *batch.sequences]
    info = reference.check(model, inputs, losses=losses, groups=5, rule=rule)
    assert info.slow == ()


@pytest.mark.parametrize("form", [form for form in FORMS if form != "single-task"])
def test_gdod_is_exact(form: str, dtype: torch.dtype) -> None:
    check_exact(form, dtype)


@pytest.mark.parametrize("form", [name for name in MODELS if name != "single-task"])
def test_weighted_gdod_is_exact(form: str) -> None:
    check_exact(form, torch.float64, "weighted")


def test_without_anything_shared_the_gradient_is_the_plain_one() -> None:
    model, twin = build("single-task"), build("single-task")
    gdod.backward(losses_of(model).losses)
    total(losses_of(twin)).backward()
    for own, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(own.grad, other.grad)


@pytest.mark.parametrize("name", MODELS)
def test_a_model_can_learn_64_examples_by_heart(name: str) -> None:
    tasks = [Task("a"), Task("b")]
    model = build_model(name, SCHEMA, tasks)
    batch, size = batch_of(64), 64
    labels = {task: labels_of(size, seed)["click"] for seed, task in enumerate("ab")}
    if name in CHAINS:
        labels["b"] *= labels["a"]

    def losses() -> list[Tensor]:
        return list(per_example_losses(model(batch), labels, tasks).losses.values())

    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(200):
        optimizer.zero_grad()
        torch.stack(losses()).sum(0).mean().backward()
        optimizer.step()
    model.eval()
    for loss in losses():
        assert float(loss.detach().max()) < 0.2  # every single example, with probability above .8
