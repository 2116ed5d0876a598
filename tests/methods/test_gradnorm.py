from dataclasses import dataclass

import pytest
import torch
from tests.methods.samples import ROWS, assert_continues, gram_of, randn, training
from torch import Tensor

from gdod.errors import InputError
from gdod.methods import Gram
from gdod.methods.gradnorm import GradNorm


def losses_of(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.5])
def test_is_algorithm_1_with_torchs_autograd(alpha: float, optimizer: str) -> None:
    method = GradNorm(alpha, lr=0.01, optimizer=optimizer)
    weights = torch.ones(3, dtype=torch.float64, requires_grad=True)
    stepper = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}[optimizer]([weights], lr=0.01)
    initial = None
    for gram in training(tasks=3, steps=25, missing=False):
        assert gram.losses is not None
        initial = gram.losses if initial is None else initial
        given = method.weigh(gram)
        assert given.heads is not None
        torch.testing.assert_close(given.heads, weights.detach(), rtol=1e-11, atol=0)
        torch.testing.assert_close(given.rows, weights.detach(), rtol=1e-11, atol=0)
        lengths = weights * gram.norms
        ratios = gram.losses / initial
        target = (lengths.mean() * (ratios / ratios.mean()) ** alpha).detach()
        stepper.zero_grad()
        (lengths - target).abs().sum().backward()
        stepper.step()
        with torch.no_grad():
            weights.mul_(3 / weights.sum())


def test_frozen_values() -> None:
    method = GradNorm(1.5, lr=0.025)
    for step in range(3):
        weights = method.weigh(gram_of(torch.diag(losses_of(1.0, 4.0)), losses_of(1.0, 1.0 - 0.2 * step)))
    torch.testing.assert_close(weights.rows, losses_of(1.05, 0.95), rtol=0, atol=1e-3)


def test_brings_gradients_to_a_common_length() -> None:
    method = GradNorm(0.0, lr=0.01)
    gram = gram_of(torch.diag(losses_of(1.0, 3.0, 0.5)), losses_of(1.0, 1.0, 1.0))
    for _ in range(3000):
        weights = method.weigh(gram).rows
    lengths = weights * gram.norms
    torch.testing.assert_close(lengths, lengths.mean().expand(3), rtol=0.05, atol=0)
    assert float(weights.sum()) == pytest.approx(3)


def test_a_slow_task_gets_the_larger_weight() -> None:
    method = GradNorm(1.5, lr=0.01)
    gram = torch.eye(2, dtype=torch.float64)
    for step in range(100):
        weights = method.weigh(gram_of(gram, losses_of(1.0, 0.98**step))).rows
    assert float(weights[0]) > 1.1
    assert float(weights.sum()) == pytest.approx(2)


@dataclass(frozen=True)
class GramWithNorms(Gram):
    norm_gram: Tensor | None = None


def test_lengths_are_taken_where_the_engine_says() -> None:
    rows, losses = randn(2, 6), losses_of(1.0, 2.0)
    elsewhere = torch.diag(losses_of(100.0, 1.0))
    whole = gram_of(rows, losses)
    method = GradNorm()
    method.weigh(GramWithNorms(whole.matrix, whole.averages, mean_losses=lambda: losses, norm_gram=elsewhere))
    assert method.task_weights is not None
    assert float(method.task_weights[0]) < 1 < float(method.task_weights[1])


def test_a_task_without_labels_keeps_its_weight() -> None:
    method = GradNorm(lr=0.05)
    for gram in training(tasks=3, steps=5, missing=False):
        method.weigh(gram)
    assert method.task_weights is not None
    before = method.task_weights.clone()
    rows = randn(3, 8)
    rows[1] = 0
    weights = method.weigh(gram_of(rows, losses_of(1.0, torch.nan, 2.0)))
    assert weights.heads is not None
    assert float(weights.heads[1]) == 0
    assert float(method.task_weights[1]) == float(before[1])
    assert float(method.task_weights.sum()) == pytest.approx(3)


def test_a_first_loss_counts_when_it_comes() -> None:
    method = GradNorm()
    rows = randn(2, 8)
    method.weigh(gram_of(rows, losses_of(1.0, torch.nan)))
    method.weigh(gram_of(rows, losses_of(0.5, 3.0)))
    assert method.initial_losses is not None
    assert method.initial_losses.tolist() == [1.0, 3.0]


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("value", [0.0, -1.0, torch.nan, 1e-15, 1e15])
@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
def test_weights_stay_positive_and_finite(rows: Tensor, value: float, optimizer: str) -> None:
    method = GradNorm(optimizer=optimizer, lr=0.3)
    losses = torch.ones(len(rows), dtype=torch.float64)
    losses[-1] = value
    for _ in range(6):
        weights = method.weigh(gram_of(rows, losses))
        assert bool(weights.rows.isfinite().all())
        assert method.task_weights is not None
        assert float(method.task_weights.min()) > 0
        assert float(method.task_weights.sum()) == pytest.approx(len(rows))


def test_one_task_has_the_plain_gradient() -> None:
    method = GradNorm()
    for step in range(5):
        assert method.weigh(gram_of(randn(1, 4, seed=step), losses_of(1.0 + step))).rows.tolist() == [1.0]


def test_continues_where_it_was_saved() -> None:
    for optimizer in ("adam", "sgd"):
        assert_continues(lambda optimizer=optimizer: GradNorm(optimizer=optimizer), training())  # type: ignore[misc]


def test_refusals() -> None:
    with pytest.raises(InputError, match="alpha="):
        GradNorm(-1.0)
    with pytest.raises(InputError, match="parameters"):
        GradNorm(parameters=torch.nn.Linear(2, 2).weight)
    with pytest.raises(InputError, match="losses"):
        GradNorm().weigh(gram_of(randn(2, 5)))
    with pytest.raises(InputError, match="task_weights"):
        GradNorm().load_state_dict({"x": 1})


def test_declares_the_papers_grid() -> None:
    assert GradNorm.GRID == {"alpha": (0.5, 1.5)}
