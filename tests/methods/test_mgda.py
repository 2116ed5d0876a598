import pytest
import torch
from tests.methods.samples import ROWS, SMALL, assert_near, gram_of, randn, update
from torch import Tensor
from torchjd.aggregation import MGDA as TorchJDMGDA

from gdod.errors import InputError
from gdod.methods.mgda import MGDA, NORMALISATIONS


@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
def test_optimality_conditions(rows: Tensor) -> None:
    """x is the shortest vector of the hull if and only if ⟨gᵢ, x⟩ ≥ ‖x‖² for all i, with equality where wᵢ > 0."""
    rows = rows[rows.norm(dim=1) > 0]
    if len(rows) == 0:
        return
    weights = MGDA().weigh_tasks(rows @ rows.T)
    assert float(weights.min()) >= 0
    assert float(weights.sum()) == pytest.approx(1, abs=1e-12)
    shortest = weights @ rows
    lengths = rows.norm(dim=1)
    excess = rows @ shortest - shortest @ shortest
    size = float(weights @ lengths)
    assert bool((excess >= -1e-10 * lengths * size).all())
    assert float((weights * excess.abs()).sum()) <= 1e-10 * size**2


@pytest.mark.parametrize("seed", range(8))
def test_two_tasks_in_closed_form(seed: int) -> None:
    one, two = rows = randn(2, 2, seed=seed)
    share = float(((two - one) @ two / ((one - two) @ (one - two))).clamp(0, 1))
    assert_near(update(MGDA(), rows), share * one + (1 - share) * two, rows, 1e-13)


@pytest.mark.parametrize("seed", range(4))
def test_is_what_torchjd_tends_to(seed: int) -> None:
    rows = randn(4, 12, seed=seed)
    expected = TorchJDMGDA(epsilon=1e-9, max_iters=3000)(rows)
    assert_near(update(MGDA(), rows), expected, rows, 2e-3)
    assert float(update(MGDA(), rows).norm()) <= float(expected.norm()) * (1 + 1e-12)


def test_frozen_values() -> None:
    expected = torch.tensor([0.3616834721613327, 0.23235423060061372, 0.4059622972380536], dtype=torch.float64)
    torch.testing.assert_close(MGDA().weigh_tasks(SMALL @ SMALL.T), expected, rtol=0, atol=1e-12)


def test_no_task_is_against_the_update() -> None:
    for seed in range(10):
        rows = randn(6, 9, seed=seed)
        assert bool((rows @ update(MGDA(), rows) >= -1e-10).all())


def test_identical_tasks_give_their_gradient() -> None:
    rows = ROWS["equal 0"]
    assert_near(update(MGDA(), rows), rows[0], rows)


def test_a_zero_gradient_takes_no_part() -> None:
    rows = ROWS["zero rows 0"]
    assert_near(update(MGDA(), rows), update(MGDA(), rows[[0, 2, 3]]), rows, 1e-13)


def test_the_order_of_tasks_does_not_matter() -> None:
    rows, places = randn(6, 4, seed=2), [3, 5, 0, 1, 4, 2]
    assert_near(update(MGDA(), rows), update(MGDA(), rows[places]), rows)


@pytest.mark.parametrize("normalisation", NORMALISATIONS)
def test_normalisations_apply_to_the_search_alone(normalisation: str) -> None:
    rows, losses = randn(4, 9, seed=1), torch.tensor([0.5, 2.0, 1.0, 0.1], dtype=torch.float64)
    lengths = rows.norm(dim=1)
    divisor = {"none": torch.ones(4), "l2": lengths, "loss": losses, "loss+": losses * lengths}[normalisation]
    scaled = rows / divisor.unsqueeze(1)
    weights = MGDA().weigh_tasks(scaled @ scaled.T)
    assert_near(update(MGDA(normalisation), rows, losses), weights @ rows, rows)


@pytest.mark.parametrize("normalisation", NORMALISATIONS)
@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
def test_normalisations_never_divide_by_zero(normalisation: str, rows: Tensor) -> None:
    for losses in (torch.zeros(len(rows)), -torch.ones(len(rows)), torch.full((len(rows),), torch.nan)):
        update(MGDA(normalisation), rows, losses.double())


def test_needs_losses_for_loss_normalisation() -> None:
    with pytest.raises(InputError, match="losses"):
        MGDA("loss").weigh(gram_of(SMALL))


def test_refuses_unknown_normalisations() -> None:
    with pytest.raises(InputError, match="'l2'"):
        MGDA("l22")
