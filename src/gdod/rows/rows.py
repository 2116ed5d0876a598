"""The gradient rows of all shared parameters, and what a caller may ask of them wherever the batch lies."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from gdod.rows.blocks import Block, Only
from gdod.rows.groups import Groups
from gdod.rows.shares import Shares
from gdod.rows.workspace import release

Gradients = list[tuple[Tensor, Tensor]]
"""Parameters, each with its gradient."""


@dataclass(frozen=True)
class SlowPath:
    """A parameter whose rows took a backward pass each, and why."""

    parameter: Tensor
    reason: str


class Rows(Protocol):
    """The rows of a batch, in one process or over several: row ``g * tasks + i`` is the gradient of task i's mean loss
    over the labelled examples of group g, with respect to all shared parameters."""

    shares: Shares  # how rows average to task gradients
    shared: tuple[Tensor, ...]  # the parameters that rows are over
    slow: tuple[SlowPath, ...]  # parameters whose rows took a backward pass each
    passes: int  # backward passes of autograd in this process
    last_layer: frozenset[int]  # ids of the shared parameters that are used closest to the losses
    precision: float  # relative rounding error of the rows
    gram_error: float  # how many times their last digit inner products are rounded to that are not precise

    def gram(self, precise: bool, only: Only = None) -> Tensor:
        """Return the rows' inner products over all shared parameters or some, as float64 on the CPU. [N, N]

        ``precise``: products are taken in float64, not in the rows' own precision.
        """

    def products_with(self, weights: Tensor) -> Tensor | None:
        """Return the inner products of all rows with weighted sums of them, from weights [s, N], as float64 on the CPU.

        It takes a small part of the time of a precise `gram`. None where it would have to be sent to other processes.
        """

    def combine(self, weights: Tensor) -> Gradients:
        """Return the sum of the rows, each times its weight [N], as gradients of the shared parameters."""

    def gradients(self, weights: Tensor | None, factors: Tensor | None) -> Gradients:
        """Return `combine`, if there are weights, and the gradients of parameters that only one task reaches.

        ``factors`` [K]: by which each task's gradient of its own parameters is multiplied; None: 1.
        """

    def along(self, value: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return what to differentiate in this process so that a function of `gram` is differentiated in all.

        That is a tensor of this process's graph with its cotangent; None if ``value`` does not depend on rows.
        """

    def release(self) -> None:
        """Give back the memory of the rows, which must not be used any more."""


@dataclass
class Contributions:
    """What each group of examples contributes to each task's gradient, over all shared parameters.

    Contribution ``g * tasks + i`` is the row of group g and task i times the group's share of the task's labelled
    examples. Unlike rows, contributions add up: those of one task to its gradient, and those of parts of a group,
    in several micro-batches or processes, to that of the group.
    """

    groups: Groups
    tasks: int
    blocks: list[Block]
    shared: tuple[Tensor, ...]
    own: list[tuple[Tensor, list[tuple[int, Tensor]]]]  # other parameters with the gradients (task, gradient)
    slow: tuple[SlowPath, ...]
    passes: int
    last_layer: frozenset[int]  # ids of the shared parameters that are used closest to the losses

    def gram(self, precise: bool, only: Only = None) -> Tensor:
        """Return the inner products of the contributions, as `Rows.gram` does. [N, N]"""
        count = self.groups.count * self.tasks
        totals: dict[tuple[torch.device, torch.dtype], Tensor] = {}
        for block in self.blocks:
            gram = block.gram(precise, only)
            kind = gram.device, gram.dtype
            totals[kind] = totals[kind] + gram if kind in totals else gram
        grams = [total.to("cpu", torch.float64) for total in totals.values()]
        return sum(grams[1:], grams[0]) if grams else torch.zeros(count, count, dtype=torch.float64)

    def products_with(self, weights: Tensor) -> Tensor:
        """Return the inner products of all contributions with weighted sums of them, as `Rows.products_with` does."""
        parts = [block.products_with(weights.to(block.like.device)).cpu() for block in self.blocks]
        return sum(parts[1:], parts[0]) if parts else torch.zeros_like(weights)

    def combine(self, weights: Tensor) -> Gradients:
        """Return the weighted sum of the contributions, as gradients of the shared parameters."""
        cast: dict[tuple[torch.device, torch.dtype], Tensor] = {}
        grads = []
        for block in self.blocks:
            kind = block.like.device, block.like.dtype
            if kind not in cast:
                cast[kind] = weights.to(*kind)
            grads += block.combine(cast[kind])
        return grads

    def private(self, factors: Tensor | None) -> Gradients:
        """Return the gradients of the other parameters, each task's times its factor."""
        grads = []
        for parameter, parts in self.own:
            scaled = [grad if factors is None else float(factors[task]) * grad for task, grad in parts]
            grads.append((parameter, sum(scaled[1:], scaled[0])))
        return grads


@dataclass
class LocalRows:
    """`Rows` of a batch that lies in this process."""

    contributions: Contributions
    shares: Shares

    def __post_init__(self) -> None:
        self.shared, self.slow = self.contributions.shared, self.contributions.slow
        self.passes, self.last_layer = self.contributions.passes, self.contributions.last_layer
        self.precision = precision(self.shared)
        self.gram_error = max((block.gram_error for block in self.contributions.blocks), default=1.0)

    def gram(self, precise: bool, only: Only = None) -> Tensor:
        return self.contributions.gram(precise, only) * self.shares.inverses

    def products_with(self, weights: Tensor) -> Tensor | None:
        return self.contributions.products_with(weights * self.shares.inverse) * self.shares.inverse

    def combine(self, weights: Tensor) -> Gradients:
        return self.contributions.combine(weights * self.shares.inverse)

    def gradients(self, weights: Tensor | None, factors: Tensor | None) -> Gradients:
        shared = [] if weights is None else self.combine(weights)
        return [*shared, *unaliased(self.contributions.private(factors))]

    def along(self, value: Tensor) -> tuple[Tensor, Tensor] | None:
        return (value, torch.ones_like(value)) if value.requires_grad else None

    def release(self) -> None:
        release()


def precision(shared: Sequence[Tensor]) -> float:
    """Return the relative rounding error of the rows of these parameters."""
    half = (torch.bfloat16, torch.float16)
    dtypes = {torch.float32 if p.dtype in half else p.dtype for p in shared}
    return max((torch.finfo(dtype).eps for dtype in dtypes), default=torch.finfo(torch.float64).eps)


def unaliased(grads: Gradients) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield gradients with memory of their own: autograd may hand one tensor to several, such as the terms of a sum."""
    seen: set[int] = set()
    for parameter, grad in grads:
        if not grad.is_sparse:
            storage = grad.untyped_storage().data_ptr()
            grad = grad.clone() if storage in seen else grad
            seen.add(storage)
        yield parameter, grad
