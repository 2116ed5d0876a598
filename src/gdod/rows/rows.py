"""The rows of all shared parameters, in blocks of one layer each."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from gdod.rows.blocks import Block, Only
from gdod.rows.groups import Groups
from gdod.rows.random_rows import RandomRows
from gdod.rows.workspace import release


@dataclass(frozen=True)
class SlowPath:
    """A parameter whose rows took a backward pass each, and why."""

    parameter: Tensor
    reason: str


@dataclass
class Rows:
    """Rows of all shared parameters, ordered group by group: row ``g * tasks + i``.

    A row here is the gradient of the *part* of task i's weighted mean loss that group g contributes,
    so that the rows of a task add up to its gradient.
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
        """Inner products of the rows, over all shared parameters or some, as float64 on the CPU. [N, N]"""
        count = self.groups.count * self.tasks
        totals: dict[tuple[torch.device, torch.dtype], Tensor] = {}
        for block in self.blocks:
            gram = block.gram(precise, only)
            kind = gram.device, gram.dtype
            totals[kind] = totals[kind] + gram if kind in totals else gram
        found = [total.to("cpu", torch.float64) for total in totals.values()]
        return sum(found[1:], found[0]) if found else torch.zeros(count, count, dtype=torch.float64)

    def release(self) -> None:
        """Gives back the memory of the rows, which must not be used any more."""
        release()

    def combine(self, weights: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Shared parameters with the weighted sum of their rows."""
        cast: dict[tuple[torch.device, torch.dtype], Tensor] = {}
        grads = []
        for block in self.blocks:
            kind = block.like.device, block.like.dtype
            if kind not in cast:
                cast[kind] = weights.to(*kind)
            grads += block.combine(cast[kind])
        return grads

    def private(self, factors: Tensor | None) -> list[tuple[Tensor, Tensor]]:
        """The other parameters with their gradients, each task's times its factor."""
        grads = []
        for parameter, parts in self.own:
            scaled = [grad if factors is None else float(factors[task]) * grad for task, grad in parts]
            grads.append((parameter, sum(scaled[1:], scaled[0])))
        return grads

    def random_rows(self, averages: Tensor) -> RandomRows:
        """A source of random vectors beside the task gradients, which average rows by ``averages`` [K, N]."""
        return RandomRows([self.combine((share > 0).double()) for share in averages])

    @cached_property
    def precision(self) -> float:
        """Relative rounding error of the rows."""
        return precision(self.shared)


def precision(shared: Sequence[Tensor]) -> float:
    """Relative rounding error of the rows of these parameters."""
    half = (torch.bfloat16, torch.float16)
    dtypes = {torch.float32 if p.dtype in half else p.dtype for p in shared}
    return max((torch.finfo(dtype).eps for dtype in dtypes), default=torch.finfo(torch.float64).eps)
