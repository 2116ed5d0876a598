"""A user's own method that adds to the update a vector outside the rows' span."""

import copy

import pytest
import torch
from tests._backward.test_routes import Model, assert_same, problem
from torch import Tensor

import gdod
from gdod.methods.torchjd.to_torchjd import GDODWeighting


class Decayed(gdod.Method):
    """The plain sum of the gradients, and weight decay of the shared parameters."""

    groups = 3

    def __init__(self, decay: float = 0.3) -> None:
        self.decay = decay

    def weigh(self, gram: gdod.Gram) -> gdod.Weights:
        ones, combine = gram.averages.sum(0), gram.combine

        def gradients(weights: Tensor) -> list[tuple[Tensor, Tensor]]:
            assert combine is not None
            return [(parameter, grad + self.decay * parameter) for parameter, grad in combine(weights)]

        return gdod.Weights(ones, update=gdod.OwnUpdate(ones, gradients), heads=torch.full((gram.tasks,), 2.0))

    def __repr__(self) -> str:
        return f"Decayed({self.decay})"


def expected(model: Model, ids: Tensor, targets: Tensor) -> Model:
    """The same by plain autograd: shared parameters decay, heads get twice their gradient."""
    twin = copy.deepcopy(model)
    torch.stack([loss.mean() for loss in twin(ids, targets)]).sum().backward()
    for parameter in twin.shared():
        assert parameter.grad is not None
        parameter.grad += 0.3 * parameter.detach()
    for parameter in twin.heads.parameters():
        assert parameter.grad is not None
        parameter.grad *= 2
    return twin


def test_the_update_is_the_method_s_own() -> None:
    model, ids, targets = problem()
    seen: list[Tensor] = []
    model.first.weight.register_hook(lambda grad: seen.append(grad))
    gdod.backward(model(ids, targets), Decayed())
    assert_same(model, expected(model, ids, targets))
    assert len(seen) == 1  # the whole gradient at once


def test_rows_are_put_together_for_it_over_micro_batches() -> None:
    model, ids, targets = problem()
    update = gdod.Accumulation(Decayed(), examples=12)
    for part in (slice(0, 5), slice(5, 12)):
        update.add(model(ids[part], targets[part]))
    update.backward()
    assert_same(model, expected(model, ids, targets))


def test_without_a_model_there_is_none() -> None:
    with pytest.raises(gdod.InputError, match=r"Decayed\(0.3\) makes an update of its own.*use gdod.backward"):
        Decayed().from_rows(torch.randn(3, 2, 5))
    with pytest.raises(gdod.InputError, match=r"Decayed\(0.3\) makes an update of its own.*use gdod.backward"):
        GDODWeighting(2, Decayed())(torch.eye(6))
