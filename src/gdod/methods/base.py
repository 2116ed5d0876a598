"""What every method is: a way from the rows' Gram matrix to a weight for each row."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from gdod.errors import InputError
from gdod.methods.gram import Gradients, Gram


@dataclass(frozen=True)
class OwnUpdate:
    """An update that a method makes itself, in place of the weighted sum of the rows.

    It need not lie in the rows' span. This one adds weight decay of the shared parameters to the plain sum:

        def weigh(self, gram):
            ones = gram.averages.sum(0)
            decayed = lambda weights: [(p, g + 0.01 * p) for p, g in gram.combine(weights)]
            return gdod.Weights(ones, update=gdod.OwnUpdate(ones, decayed))
    """

    coefficients: Tensor
    """What the update is made from [r], float64. Several processes all use the first one's."""
    gradients: Callable[[Tensor], Gradients]
    """From coefficients to the gradients of shared parameters; every process calls it, and must find the same."""


@dataclass(frozen=True)
class Weights:
    """What a method makes of rows: the update is their sum, each times its weight."""

    rows: Tensor  # [N]
    heads: Tensor | None = None  # a factor for the gradient of each task's own parameters; None: 1 [K]
    precise_enough: bool = True  # False: the Gram matrix was too inexact to tell
    update: OwnUpdate | None = None  # in place of the weighted sum of the rows
    projections: Tensor | None = None  # of the task gradients on the basis vectors, if there is a basis [r, K]
    factors: Tensor | None = None  # how much of each was kept [r, K]
    all_kept: bool = False

    @property
    def rank(self) -> int | None:
        """The number of basis vectors that were used; None without a basis."""
        return None if self.projections is None else self.projections.shape[0]

    @property
    def directions_kept(self) -> float:
        """The share of the basis vectors that anything was kept of; nan without a basis."""
        if self.factors is None or self.factors.shape[0] == 0:
            return 1.0 if self.all_kept or self.factors is not None else math.nan
        return float((self.factors > 0).any(1).double().mean())

    @property
    def energy_kept(self) -> float:
        """The share of the task gradients' squared lengths that was kept; nan where that has no meaning."""
        if self.projections is None or self.factors is None:
            return 1.0 if self.all_kept else math.nan
        total = float(self.projections.square().sum())
        return float((self.factors * self.projections).square().sum()) / total if total > 0 else 1.0

    def packed(self) -> Tensor:
        """Return all that decides the update as one vector, for other processes to use."""
        coefficients = None if self.update is None else self.update.coefficients
        parts = [self.rows.new_tensor([float(self.precise_enough)]), self.rows, self.heads, coefficients]
        return torch.cat([part.double() for part in parts if part is not None])

    def unpacked(self, values: Tensor) -> "Weights":
        """Return the same weights with what another process has `packed`."""
        heads = 0 if self.heads is None else len(self.heads)
        flag, rows, own, coefficients = values.tensor_split((1, 1 + len(self.rows), 1 + len(self.rows) + heads))
        return replace(
            self,
            rows=rows,
            heads=None if self.heads is None else own,
            update=None if self.update is None else replace(self.update, coefficients=coefficients),
            precise_enough=bool(flag),
        )


class Method(ABC):
    """A way to combine task gradients into one update of the shared parameters."""

    groups: int | None = 1
    """The number of groups into which a batch is cut; None: one for each example."""

    accepts_float32_gram: bool = False
    """Whether `weigh` may be given a rounded Gram matrix first, and say that it wants an exact one."""

    lengths_at: Literal["everywhere", "last-shared-layer"] | tuple[Tensor, ...] = "everywhere"
    """The shared parameters over which `Gram.norm_gram` is taken."""

    @abstractmethod
    def weigh(self, gram: Gram) -> Weights:
        """Return the weight of each row."""

    def state_dict(self) -> dict[str, Any]:
        """Return what the method remembers from step to step: tensors and numbers."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was taken."""
        if state:
            raise InputError(f"{self!r} remembers nothing, but the state holds {', '.join(map(repr, state))}")

    def from_gram(self, gram: Tensor, *, tasks: int, averages: Tensor | None = None) -> Weights:
        """Return row weights from a Gram matrix [N, N] of rows ordered group by group (row g * tasks + i).

        ``averages`` [tasks, N] says how rows average to task gradients; by default all groups count
        the same.
        """
        return self.weigh(_checked(gram, tasks, averages))

    def from_rows(self, rows: Tensor, *, averages: Tensor | None = None) -> Tensor:
        """Return the update [D] from rows [groups, tasks, D]."""
        gram, flat = gram_of_rows(rows, averages)
        weights = self.weigh(gram)
        if weights.update is not None:
            raise InputError(f"{self!r} makes an update of its own, of a model's parameters; use gdod.backward")
        return (weights.rows @ flat).to(rows.dtype)


class TaskMethod(Method):
    """A method that needs no more than the inner products of the task gradients."""

    groups = 1

    @abstractmethod
    def weigh_tasks(self, gram: Tensor) -> Tensor:
        """Return a weight for each task gradient [K], from their inner products [K, K], float64."""

    def weigh(self, gram: Gram) -> Weights:
        return Weights(self.weigh_tasks(gram.of_tasks) @ gram.averages)


class PenaltyMethod(Method):
    """A method that adds a function of the task gradients to the losses, and differentiates it, too."""

    groups = 1

    @abstractmethod
    def penalty(self, gram: Tensor) -> Tensor:
        """Return a number to add to the sum of the losses, from the task gradients' inner products [K, K].

        Both carry a graph: `gdod.backward` differentiates through the gradients (second order).
        """

    def weigh(self, gram: Gram) -> Weights:
        raise InputError(f"{self!r} differentiates task gradients, which a matrix cannot do; use gdod.backward")


class LossMethod(Method):
    """A method that weighs tasks by their losses alone, which takes no more than a plain backward pass."""

    groups = 1
    keeps_all = False  # whether the update is the plain sum of the gradients

    @abstractmethod
    def weigh_losses(self, losses: Tensor) -> Tensor:
        """Return a factor for each task's loss [K], from the mean losses [K], float64; nan without labels."""

    def weigh(self, gram: Gram) -> Weights:
        if gram.losses is None:
            raise InputError(f"{self!r} needs the losses of the tasks, which a matrix does not hold; use gdod.backward")
        factors = torch.where(gram.losses.isnan(), 0.0, self.weigh_losses(gram.losses))
        return Weights(factors @ gram.averages, heads=factors, all_kept=self.keeps_all)


def gram_of_rows(rows: Tensor, averages: Tensor | None = None) -> tuple[Gram, Tensor]:
    """Return the Gram matrix of rows [groups, tasks, D], and the rows as a float64 matrix."""
    if not isinstance(rows, Tensor):
        raise InputError(f"rows is a {type(rows).__name__}; expected a tensor [groups, tasks, parameters]")
    if rows.dim() != 3 or not rows.is_floating_point():
        raise InputError(
            f"rows has shape {tuple(rows.shape)} and type {rows.dtype}; "
            "expected floating-point [groups, tasks, parameters]"
        )
    if not bool(rows.isfinite().all()):
        raise InputError("rows holds numbers that are not finite; remove them first")
    flat = rows.detach().to("cpu", torch.float64).flatten(0, 1)
    if averages is None:
        averages = mean_over_groups(*rows.shape[:2])
    return _checked(flat @ flat.T, rows.shape[1], averages, torch.finfo(rows.dtype).eps), flat


def mean_over_groups(groups: int, tasks: int) -> Tensor:
    """Return C [K, N] for groups of equal size."""
    return torch.eye(tasks, dtype=torch.float64).repeat(1, groups) / max(groups, 1)


def _checked(gram: Tensor, tasks: int, averages: Tensor | None, row_error: float | None = None) -> Gram:
    if not isinstance(gram, Tensor):
        raise InputError(f"gram is a {type(gram).__name__}; expected a tensor [N, N]")
    if gram.dim() != 2 or gram.shape[0] != gram.shape[1] or not gram.is_floating_point():
        raise InputError(f"gram has shape {tuple(gram.shape)} and type {gram.dtype}; expected a floating-point [N, N]")
    if tasks < 1 or len(gram) == 0 or len(gram) % tasks:
        raise InputError(
            f"gram has {len(gram)} rows for tasks={tasks}; "
            "expected a positive multiple: one row for each group and task"
        )
    if not bool(gram.isfinite().all()):
        raise InputError("gram holds numbers that are not finite; remove them first")
    if averages is None:
        averages = mean_over_groups(len(gram) // tasks, tasks)
    elif tuple(averages.shape) != (tasks, len(gram)):
        raise InputError(f"averages has shape {tuple(averages.shape)}; expected [tasks, N] = ({tasks}, {len(gram)})")
    eps = torch.finfo(gram.dtype).eps
    matrix = gram.detach().to("cpu", torch.float64)
    return Gram(
        (matrix + matrix.T) / 2,
        averages.detach().to("cpu", torch.float64),
        row_error=eps if row_error is None else row_error,
        error=eps,
    )
