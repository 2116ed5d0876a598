"""STEM against its formula; what a task has to itself learns from that task alone."""

import pytest
import torch
from tests.models.cases import TASKS, batch_of, build, losses_of, of_type, shuffled
from tests.models.test_mixtures import gated, one_at_a_time

import gdod
from gdod.models import STEM
from gdod.models.features import Features
from gdod.models.layers import Experts, Gate


@pytest.mark.parametrize("form", ["stem", "stem, deep experts"])
def test_stem_by_hand(form: str) -> None:
    model, batch = shuffled(build(form)), batch_of(10)
    assert isinstance(model, STEM)
    x = model.features(batch)
    xs = [features(batch) for features in model.task_features]
    experts = [
        one
        for own, x_i in zip(of_type(Experts, model.task_experts), xs, strict=True)
        for one in one_at_a_time(own, x_i)
    ]
    experts += one_at_a_time(model.experts, x)
    logits = model(batch)
    for task, x_i, gate, tower in zip(TASKS, xs, of_type(Gate, model.gates), model.towers, strict=True):
        torch.testing.assert_close(logits[task.name], tower(gated(gate, x_i + x, experts)), rtol=1e-4, atol=1e-5)


def test_tables_of_a_task_get_the_gradient_of_its_own_loss() -> None:
    """The experts of a task are seen by all, but only its own loss moves them and the tables below."""
    model, twin = shuffled(build("stem", seed=1)), shuffled(build("stem", seed=1))
    twin.load_state_dict(model.state_dict())
    assert isinstance(model, STEM)
    assert isinstance(twin, STEM)
    gdod.backward(losses_of(model).losses, gdod.GDOD(groups=4))
    losses = losses_of(twin).losses
    for number, task in enumerate(TASKS):
        own = [twin.task_features[number], twin.task_experts[number]]
        parameters = [parameter for part in own for parameter in part.parameters()]
        slopes = torch.autograd.grad(losses[task.name].mean(), parameters, retain_graph=True)
        theirs = [
            parameter
            for part in (model.task_features[number], model.task_experts[number])
            for parameter in part.parameters()
        ]
        for slope, parameter in zip(slopes, theirs, strict=True):
            assert bool(slope.any())
            torch.testing.assert_close(parameter.grad, slope)


def test_every_task_has_tables_of_its_own_beside_the_shared_ones() -> None:
    model = build("stem")
    tables = [part.table for part in model.modules() if isinstance(part, Features)]
    assert len(tables) == 1 + len(TASKS)
    assert model.get_submodule("features.table") is tables[0]
    batch = batch_of(10)
    before = model.eval()(batch)
    with torch.no_grad():
        model.get_parameter("task_features.0.table.weight").add_(1)
    after = model(batch)
    assert all(bool((after[task.name] != before[task.name]).any()) for task in TASKS)  # all forward
