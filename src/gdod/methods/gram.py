"""What a method is given: inner products of the rows, and how they average to task gradients."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor


class RandomRows(Protocol):
    """Random vectors of the whole parameter space, which only the owner of the rows can draw."""

    def draw(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draws Z [r, D]; returns its products with the task gradients [r, K], and Z Zᵀ [r, r]."""

    def combine(self, weights: Tensor) -> list[tuple[Tensor, Tensor]]:
        """The weighted sum of the vectors drawn, as gradients of parameters."""


@dataclass(frozen=True)
class Gram:
    """Rows in Gram space. Row ``g * tasks + i`` belongs to group ``g`` and task ``i``."""

    matrix: Tensor  # G = M Mᵀ [N, N], float64
    averages: Tensor  # C [K, N]: the gradient of task i is C[i] @ M
    row_error: float = torch.finfo(torch.float64).eps  # relative rounding error of the rows
    error: float = torch.finfo(torch.float64).eps  # typical one of an inner product, relative to the lengths multiplied
    random_rows: Callable[[], RandomRows] | None = field(default=None, repr=False)

    @property
    def tasks(self) -> int:
        return len(self.averages)

    @property
    def tolerance(self) -> float:
        """Eigenvalues below this share of the largest are rounding errors, not directions."""
        return len(self.matrix) * max(self.row_error**2, self.error)

    @cached_property
    def of_tasks(self) -> Tensor:
        """Inner products of the task gradients. [K, K]"""
        return self.averages @ self.matrix @ self.averages.T

    @cached_property
    def norms(self) -> Tensor:
        """Lengths of the task gradients. [K]"""
        return self.of_tasks.diagonal().clamp(min=0).sqrt()
