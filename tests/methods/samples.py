"""Matrices of task gradients, ordinary and degenerate, and dense ways to compute with them."""

import io
from collections.abc import Callable

import torch
from torch import Tensor

from gdod.methods import Gram, Method, Weights

SMALL = torch.tensor([[1.0, 2.0, -1.0], [-2.0, 1.0, 0.5], [0.5, -1.0, 2.0]], dtype=torch.float64)


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def _rank_one(seed: int) -> Tensor:
    return randn(4, 1, seed=seed) * randn(1, 9, seed=seed + 1)


def _zero_rows(seed: int) -> Tensor:
    rows = randn(5, 9, seed=seed)
    rows[1] = rows[4] = 0
    return rows


def _opposite(seed: int) -> Tensor:
    rows = randn(4, 9, seed=seed)
    rows[2] = -rows[0]
    return rows


def _equal(seed: int) -> Tensor:
    return randn(1, 9, seed=seed).repeat(4, 1)


def _balanced(seed: int) -> Tensor:
    """Adds up to zero: the tasks are at a point where no step helps all."""
    rows = randn(3, 9, seed=seed)
    return torch.cat([rows, -rows.sum(0, keepdim=True)])


def _spread(seed: int) -> Tensor:
    return randn(4, 9, seed=seed) * torch.tensor([[1e-15], [1.0], [1e-6], [1e15]], dtype=torch.float64)


ROWS: dict[str, Tensor] = {
    **{f"random {tasks}x{width}": randn(tasks, width, seed=tasks) for tasks in (2, 3, 6, 12) for width in (2, 5, 40)},
    **{f"conflict {tasks}": randn(tasks, 40, seed=tasks) - randn(1, 40, seed=99) for tasks in (2, 6)},
    **{
        f"{name} {seed}": make(seed)
        for name, make in {
            "rank one": _rank_one,
            "zero rows": _zero_rows,
            "opposite": _opposite,
            "equal": _equal,
            "balanced": _balanced,
            "spread": _spread,
        }.items()
        for seed in (0, 1)
    },
    "only opposite": torch.tensor([[1.0, 2.0], [-1.0, -2.0]], dtype=torch.float64),
    "opposite of other length": torch.tensor([[1.0, 2.0], [-3.0, -6.0]], dtype=torch.float64),
    "one task": randn(1, 9),
    "one task, zero": torch.zeros(1, 9, dtype=torch.float64),
    "all zero": torch.zeros(3, 9, dtype=torch.float64),
    **{f"scale {scale:g}": randn(4, 9, seed=3) * scale for scale in (1e-15, 1e15)},
}


def gram_of(rows: Tensor, losses: Tensor | None = None, groups: int = 1) -> Gram:
    """Return the Gram matrix of rows [groups * tasks, D], for groups of equal size."""
    tasks = len(rows) // groups
    averages = torch.eye(tasks, dtype=torch.float64).repeat(1, groups) / groups
    return Gram(rows @ rows.T, averages, mean_losses=None if losses is None else lambda: losses)


def update(method: Method, rows: Tensor, losses: Tensor | None = None) -> Tensor:
    weights = method.weigh(gram_of(rows, losses))
    assert weights.rows.dtype == torch.float64
    assert bool(weights.rows.isfinite().all())
    return weights.rows @ rows


def assert_near(actual: Tensor, expected: Tensor, rows: Tensor, tolerance: float = 1e-9) -> None:
    """Compare relative to the longest gradient, because that is what rounding is relative to."""
    assert float((actual - expected).norm()) <= tolerance * float(rows.norm(dim=1).max())


def saved_and_loaded(state: dict[str, object]) -> dict[str, object]:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded: dict[str, object] = torch.load(file, weights_only=True)
    return loaded


def assert_continues(make: Callable[[], Method], steps: list[Gram]) -> None:
    """Saved in the middle and loaded into a new one, a method gives the same bits as the one that went on."""
    middle = len(steps) // 2
    first = make()
    for gram in steps[:middle]:
        first.weigh(gram)
    second = make()
    second.load_state_dict(saved_and_loaded(first.state_dict()))
    for gram in steps[middle:]:
        one, other = first.weigh(gram), second.weigh(gram)
        assert_same(one, other)


def assert_same(one: Weights, other: Weights) -> None:
    assert torch.equal(one.rows, other.rows)
    assert (one.heads is None) == (other.heads is None)
    if one.heads is not None and other.heads is not None:
        assert torch.equal(one.heads, other.heads)


def training(tasks: int = 3, steps: int = 12, groups: int = 1, missing: bool = True) -> list[Gram]:
    """Steps of a made-up training run: gradients and losses, which now and then miss a task's labels."""
    grams = []
    for step in range(steps):
        rows = randn(groups * tasks, 8, seed=step)
        losses = randn(tasks, seed=1000 + step).abs() + 0.1
        if missing and step % 4 == 3:
            rows[1::tasks] = 0
            losses[1] = torch.nan
        grams.append(gram_of(rows, losses, groups))
    return grams
