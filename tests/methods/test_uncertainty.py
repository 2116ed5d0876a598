import pytest
import torch
from tests.methods.samples import assert_continues, gram_of, randn, training
from torch import Tensor

from gdod.errors import InputError
from gdod.methods.uncertainty import Uncertainty


def losses_of(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize(("likelihood", "factor"), [("classification", 1.0), ("regression", 0.5)])
def test_is_the_papers_objective_with_torchs_optimizer(optimizer: str, likelihood: str, factor: float) -> None:
    method = Uncertainty(likelihood, lr=0.05, optimizer=optimizer)
    log_variances = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    stepper = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}[optimizer]([log_variances], lr=0.05)
    for step in range(30):
        losses = randn(3, seed=step).abs().requires_grad_()
        objective = (factor * torch.exp(-log_variances) * losses + log_variances / 2).sum()
        stepper.zero_grad()
        objective.backward()
        assert losses.grad is not None
        torch.testing.assert_close(method.weigh_losses(losses.detach()), losses.grad, rtol=1e-12, atol=0)
        stepper.step()
    assert method.log_variances is not None
    torch.testing.assert_close(method.log_variances, log_variances.detach(), rtol=1e-12, atol=1e-15)


def test_starts_at_the_plain_sum() -> None:
    assert torch.equal(Uncertainty().weigh_losses(losses_of(3.0, 0.1)), torch.ones(2, dtype=torch.float64))


def test_frozen_values() -> None:
    method = Uncertainty(lr=0.1)
    for _ in range(3):
        weights = method.weigh_losses(losses_of(2.0, 0.25))
    torch.testing.assert_close(weights, losses_of(0.8187, 1.2214), rtol=0, atol=2e-3)


def test_settles_where_weighted_losses_are_alike() -> None:
    """At the minimum exp(-s) L = 1/2, whatever the loss."""
    method = Uncertainty(lr=0.05, optimizer="sgd")
    losses = losses_of(2.0, 0.3, 0.9)
    for _ in range(2000):
        weights = method.weigh_losses(losses)
    torch.testing.assert_close(weights * losses, torch.full((3,), 0.5, dtype=torch.float64), rtol=1e-6, atol=0)


def test_a_likelihood_for_each_task() -> None:
    weights = Uncertainty(["regression", "classification"]).weigh_losses(losses_of(1.0, 1.0))
    assert torch.equal(weights, losses_of(0.5, 1.0))


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_a_task_without_labels_is_left_alone(optimizer: str) -> None:
    with_gaps, without = (Uncertainty(lr=0.1, optimizer=optimizer) for _ in range(2))
    for step in range(9):
        losses = losses_of(1.0 + step, 0.2)
        without.weigh_losses(losses)
        weights = with_gaps.weigh_losses(losses)
        gap = with_gaps.weigh_losses(losses_of(torch.nan, torch.nan))
        assert torch.equal(gap, torch.zeros(2, dtype=torch.float64))
    assert bool(weights.isfinite().all())
    assert with_gaps.log_variances is not None
    assert without.log_variances is not None
    assert torch.equal(with_gaps.log_variances, without.log_variances)


@pytest.mark.parametrize("scale", [0.0, 1e-15, 1e15])
def test_extreme_losses(scale: float) -> None:
    method = Uncertainty(lr=0.1)
    for _ in range(20):
        assert bool(method.weigh_losses(losses_of(scale, 1.0)).isfinite().all())


def test_the_tasks_own_parameters_get_the_factor_too() -> None:
    method = Uncertainty(lr=0.1)
    for _ in range(2):
        weights = method.weigh(gram_of(randn(2, 5), losses_of(1.0, 2.0)))
    assert weights.heads is not None
    torch.testing.assert_close(weights.rows, weights.heads)


def test_continues_where_it_was_saved() -> None:
    for optimizer in ("adam", "sgd"):
        assert_continues(lambda optimizer=optimizer: Uncertainty(lr=0.1, optimizer=optimizer), training())  # type: ignore[misc]


def test_a_state_from_before_the_first_step() -> None:
    method = Uncertainty()
    method.weigh_losses(losses_of(1.0, 2.0))
    method.load_state_dict(Uncertainty().state_dict())
    assert torch.equal(method.weigh_losses(losses_of(1.0, 2.0)), torch.ones(2, dtype=torch.float64))


def test_refusals() -> None:
    with pytest.raises(InputError, match="did you mean 'regression'"):
        Uncertainty("regresion")
    with pytest.raises(InputError, match="lr="):
        Uncertainty(lr=-1.0)
    with pytest.raises(InputError, match="optimizer="):
        Uncertainty(optimizer="adamw")
    with pytest.raises(InputError, match="there are 3"):
        Uncertainty(["regression", "classification"]).weigh_losses(losses_of(1.0, 1.0, 1.0))
    with pytest.raises(InputError, match="losses"):
        Uncertainty().weigh(gram_of(randn(2, 5)))
    method = Uncertainty()
    method.weigh_losses(losses_of(1.0, 1.0))
    with pytest.raises(InputError, match="2 tasks"):
        method.weigh_losses(losses_of(1.0, 1.0, 1.0))
    with pytest.raises(InputError, match="log_variances"):
        method.load_state_dict({"generator": torch.zeros(1)})
