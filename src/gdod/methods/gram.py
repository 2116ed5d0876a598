"""What a method is given: inner products of the rows, and how they average to task gradients."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

_EPS = torch.finfo(torch.float64).eps
# A projection below this share of its task's gradient counts as zero.
ZERO = 1e-10
# Squared length of a task gradient, relative to its rows', above which rounding is far away.
_BALANCED = 1e-6


Gradients = Sequence[tuple[Tensor, Tensor]]
"""Parameters, each with its gradient."""


@dataclass(frozen=True)
class Gram:
    """The inner products of rows. Row ``g * tasks + i`` belongs to group ``g`` and task ``i``."""

    matrix: Tensor  # G = M Mᵀ [N, N], float64
    averages: Tensor  # C [K, N]: the gradient of task i is C[i] @ M
    row_error: float = _EPS  # relative rounding error of the rows
    error: float = _EPS  # typical one of an inner product, relative to the lengths multiplied
    mean_losses: Callable[[], Tensor] | None = field(default=None, repr=False)  # of the tasks, before task weights [K]
    shortest: float = field(init=False)  # squared length of the shortest row
    longest: float = field(init=False)  # and of the longest
    norm_gram: Tensor | None = None  # task gradients' inner products over the method's `lengths_at` [K, K]
    products_with: Callable[[Tensor], Tensor | None] | None = field(default=None, repr=False)
    """Returns the inner products of all rows with weighted sums of them, exactly, from weights [s, N], as [s, N]; None
    where that takes too long. Without it: where there is a matrix and no model."""
    combine: Callable[[Tensor], Gradients] | None = field(default=None, repr=False)
    """Returns the sum of the rows, each times its weight [N], as gradients of the shared parameters; None where there
    is a matrix and no model. For a method that makes its own update, such as one outside the rows' span (`Weights`)."""

    def __post_init__(self) -> None:
        # A row that is zero belongs to no direction. Without its share of the average a task whose
        # rows are all zero has projections that are exactly zero.
        lengths = self.matrix.diagonal()
        numbers: list[float] = lengths.tolist()
        unknown = math.isnan(sum(numbers))
        shortest, longest = (math.nan, math.nan) if unknown else (min(numbers), max(numbers))
        object.__setattr__(self, "shortest", shortest)
        object.__setattr__(self, "longest", longest)
        if not shortest > 0:
            object.__setattr__(self, "averages", torch.where(lengths > 0, self.averages, 0.0))

    @cached_property
    def losses(self) -> Tensor | None:
        """The mean loss of each task, before task weights; nan without labels. [K]"""
        return None if self.mean_losses is None else self.mean_losses()

    @cached_property
    def squares(self) -> Tensor:
        """The squares of the averages. [K, N]"""
        return self.averages.square()

    @property
    def tasks(self) -> int:
        """The number of tasks, K."""
        return len(self.averages)

    @property
    def tolerance(self) -> float:
        """The share of the largest eigenvalue below which one is a rounding error, not a direction."""
        return len(self.matrix) * max(self.row_error**2, self.error)

    @property
    def balanced(self) -> float:
        """The squared length above which a task gradient is not small beside rows, so that rounding spares it."""
        return _BALANCED * self.longest

    @cached_property
    def zero(self) -> Tensor:
        """The size up to which a projection of a task's gradient counts as zero, which agrees with everything. [K]

        That is a share of the gradient, and what rounding leaves of rows that cancel each other.
        """
        lengths = (self.squares @ self.matrix.diagonal()).sqrt()
        return torch.maximum(ZERO * self.norms, 16 * _EPS * lengths)

    def rounded(self, projections: Tensor) -> Tensor:
        """Return projections of the task gradients [r, K] with exact zeros where one counts as zero."""
        return torch.where(projections.abs() <= self.zero, 0.0, projections)

    @cached_property
    def with_tasks(self) -> Tensor:
        """The inner products of rows and task gradients. [N, K]"""
        return self.matrix @ self.averages.T

    @cached_property
    def of_tasks(self) -> Tensor:
        """The inner products of the task gradients. [K, K]"""
        return self.averages @ self.with_tasks

    @cached_property
    def norms(self) -> Tensor:
        """The lengths of the task gradients. [K]"""
        return self.of_tasks.diagonal().clamp(min=0).sqrt()
