from importlib.util import find_spec

import pytest
import torch
from tests.methods.samples import ROWS, SMALL, assert_near, randn, update
from torch import Tensor

from gdod.errors import InputError
from gdod.methods.cagrad import CAGrad

RADII = (0.1, 0.5, 0.9, 2.0)


def worst_gain(rows: Tensor, direction: Tensor) -> float:
    return float((rows @ direction).min())


@pytest.mark.parametrize("c", RADII)
@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
def test_no_other_direction_does_more_for_the_worst_off(rows: Tensor, c: float) -> None:
    """The direction d = update / K is in the ball, and its worst gain is that of the dual problem.

    min_w g_w·g₀ + c‖g₀‖‖g_w‖ is above max_d minᵢ ⟨gᵢ, d⟩ for any w, so that any w where both are the
    same proves both. The w is read off the update.
    """
    rows = rows[rows.norm(dim=1) > 0]
    if len(rows) == 0:
        return
    tasks, lengths = len(rows), rows.norm(dim=1)
    weights = CAGrad(c).weigh_tasks(rows @ rows.T)
    mean, direction = rows.mean(0), weights @ rows / tasks
    scale = float(mean.norm())
    assert float((direction - mean).norm()) <= c * scale + 1e-9 * float(lengths.max())
    shares = (weights - 1).clamp(min=0)
    if scale <= 1e-7 * float(lengths.max()):
        return  # the mean gradient is zero but for rounding: the update is, too
    correction = shares @ rows
    if float(correction.norm()) <= 1e-6 * float(shares @ lengths):
        # g_w = 0: the dual problem's value is 0.
        assert worst_gain(rows / lengths.unsqueeze(1), direction) >= -1e-7 * scale
        return
    shares = shares / shares.sum()
    combined = shares @ rows
    gains = (rows @ direction) / lengths
    bound = float(combined @ mean + c * scale * combined.norm())
    # Each gradient by its own length: the condition is ⟨gᵢ, d⟩ ≥ bound, with equality where wᵢ > 0.
    noise = 1e-9 * (scale * (1 + c) + float(mean.norm()))
    if float((direction - mean).norm()) < c * scale * (1 - 1e-6):
        assert bool((gains >= -noise).all())  # inside the ball: the nearest point with no loss for anybody
    else:
        assert bool((gains >= bound / lengths - noise).all())


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("c", RADII)
def test_two_tasks_by_a_fine_search(seed: int, c: float) -> None:
    rows = randn(2, 3, seed=seed)
    shares = torch.linspace(0, 1, 200_001, dtype=torch.float64).unsqueeze(1)
    combined = shares * rows[0] + (1 - shares) * rows[1]
    mean = rows.mean(0)
    values = combined @ mean + c * mean.norm() * combined.norm(dim=1)
    lowest = combined[values.argmin()]
    expected = 2 * (mean + c * mean.norm() * lowest / lowest.norm())
    assert_near(update(CAGrad(c), rows), expected, rows, 1e-4)


@pytest.mark.skipif(
    any(find_spec(name) is None for name in ("cvxpy", "clarabel")),
    reason='needs pip install "torchjd[cagrad]" clarabel',
)
@pytest.mark.parametrize("c", RADII)
@pytest.mark.parametrize("seed", range(6))
def test_is_what_torchjd_finds_with_cvxpy(seed: int, c: float) -> None:
    from torchjd.aggregation import CAGrad as TorchJDCAGrad

    rows = randn(2 + seed, 20, seed=seed)
    assert_near(update(CAGrad(c), rows), len(rows) * TorchJDCAGrad(c)(rows), rows, 1e-3)


def test_frozen_values() -> None:
    expected = torch.tensor([0.3593888763601061, 2.324082297102285, 2.3839804431623026], dtype=torch.float64)
    torch.testing.assert_close(update(CAGrad(0.5), SMALL), expected, rtol=0, atol=1e-11)


def test_with_radius_zero_it_is_the_plain_sum() -> None:
    rows = randn(5, 9)
    assert_near(update(CAGrad(0.0), rows), rows.sum(0), rows, 1e-13)


def test_a_large_radius_gives_the_direction_of_mgda() -> None:
    from gdod.methods.mgda import MGDA

    rows = randn(4, 20, seed=3)
    one, other = update(CAGrad(1e7), rows), update(MGDA(), rows)
    torch.testing.assert_close(one / one.norm(), other / other.norm(), rtol=0, atol=1e-5)


def test_identical_tasks_give_the_direction_of_the_sum() -> None:
    rows = ROWS["equal 1"]
    assert_near(update(CAGrad(0.5), rows), 1.5 * rows.sum(0), rows)


def test_one_task() -> None:
    rows = ROWS["one task"]
    assert_near(update(CAGrad(0.3), rows), 1.3 * rows[0], rows)
    assert_near(update(CAGrad(0.3, rescale=2), rows), rows[0], rows)


@pytest.mark.parametrize(("rescale", "divisor"), [(0, 1.0), (1, 1.25), (2, 1.5)])
def test_rescaling(rescale: int, divisor: float) -> None:
    assert_near(update(CAGrad(0.5, rescale=rescale), SMALL), update(CAGrad(0.5), SMALL) / divisor, SMALL)


def test_a_zero_gradient_takes_no_part() -> None:
    rows = ROWS["zero rows 0"]
    assert_near(update(CAGrad(), rows), update(CAGrad(), rows[[0, 2, 3]]), rows, 1e-12)


def test_where_the_lowest_combination_is_zero() -> None:
    """Two tasks cancel and a third points elsewhere: nothing can be gained for both, so the mean stays."""
    rows = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    assert_near(update(CAGrad(0.5), rows), rows.sum(0), rows)
    tilted = torch.tensor([[1.0, 0.0], [-1.5, 0.0], [0.0, 1.0]], dtype=torch.float64)
    # With a ball that reaches it, the nearest direction to the mean in which neither loses.
    assert_near(update(CAGrad(0.9), tilted), torch.tensor([0.0, 1.0], dtype=torch.float64), tilted)


def test_the_order_of_tasks_does_not_matter() -> None:
    rows, places = randn(6, 9, seed=2), [3, 5, 0, 1, 4, 2]
    assert_near(update(CAGrad(), rows), update(CAGrad(), rows[places]), rows)


@pytest.mark.parametrize("c", [-0.1, float("nan"), float("inf"), "0.5", None, True])
def test_refuses_radii(c: object) -> None:
    with pytest.raises(InputError, match="c="):
        CAGrad(c)  # type: ignore[arg-type]


@pytest.mark.parametrize("rescale", [3, -1, True, "1"])
def test_refuses_rescalings(rescale: object) -> None:
    with pytest.raises(InputError, match="rescale="):
        CAGrad(0.5, rescale)  # type: ignore[arg-type]


def test_declares_the_papers_grid() -> None:
    assert CAGrad.GRID == {"c": (0.1, 0.3, 0.5, 0.7, 0.9)}
