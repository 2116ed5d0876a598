"""What `gdod.backward` returns."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from gdod.errors import InputError
from gdod.methods.base import Weights
from gdod.methods.gram import Gram
from gdod.rows import SlowPath


@dataclass(frozen=True)
class Info:
    """What one call of `gdod.backward` did, worked out when it is asked for."""

    tasks: tuple[str, ...]
    mean_losses: Callable[[], Tensor] = field(repr=False)
    shared: tuple[Tensor, ...] | None = field(repr=False)
    """The parameters that were treated as shared; None where the method makes no difference."""
    slow: tuple[SlowPath, ...]
    """Shared parameters whose rows took a backward pass each, and why. Empty: all were fast."""
    passes: int
    """The number of backward passes: one for all tasks or one for each, and one for each row if anything is slow."""
    gram: Gram | None = field(repr=False)
    """The inner products of the rows; None where the method did not need them."""
    weights: Weights = field(repr=False)

    @cached_property
    def losses(self) -> Tensor:
        """The mean loss of each task over its labelled examples, before task weights; nan without labels. [K]"""
        return self.mean_losses()

    @property
    def _gram(self) -> Gram:
        if self.gram is None:
            raise InputError(
                "this method weighs losses and needs no task gradients, so they were not worked out; "
                "pass diagnose=True to gdod.backward to have them"
            )
        return self.gram

    @cached_property
    def norms(self) -> Tensor:
        """The lengths of the (weighted) task gradients over the shared parameters. [K]"""
        return self._gram.norms

    @cached_property
    def cosines(self) -> Tensor:
        """The cosines between task gradients; zero for a task without a gradient. [K, K]"""
        lengths = self.norms.unsqueeze(1) * self.norms
        cosines = torch.where(lengths > 0, self._gram.of_tasks / lengths, 0.0)
        return cosines.clamp(-1, 1)

    @cached_property
    def rank(self) -> int:
        """The dimension of the span of the rows, or the number of basis vectors used, if fewer."""
        if self.weights.rank is not None:
            return self.weights.rank
        values = torch.linalg.eigvalsh(self._gram.matrix)
        return int((values > self._gram.tolerance * values[-1].clamp(min=0)).sum())

    @property
    def directions_kept(self) -> float:
        """The share of the basis vectors that the tasks agree on; nan for methods without a basis."""
        return self.weights.directions_kept

    @property
    def energy_kept(self) -> float:
        """The share of the task gradients' squared lengths that was kept; nan where that has no meaning."""
        return self.weights.energy_kept

    @cached_property
    def row_weights(self) -> Tensor:
        """The weight of each group's and task's row in the update. [groups, K]"""
        return self.weights.rows.view(-1, len(self.tasks))

    def __repr__(self) -> str:
        norms = "" if self.gram is None else f" norms={[round(float(n), 6) for n in self.norms]}, rank={self.rank},"
        return (
            f"Info(tasks={self.tasks},{norms} directions_kept={self.directions_kept}, "
            f"energy_kept={self.energy_kept}, slow={len(self.slow)})"
        )
