"""How the examples of a batch are cut into groups, and where group and task stand in a row number.

Rows are ordered group by group: row ``g * tasks + i`` belongs to group ``g`` and task ``i``.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class Groups:
    """``count`` runs of consecutive examples, as even as possible (as `torch.tensor_split` cuts)."""

    examples: int
    count: int

    def runs(self) -> Iterator[tuple[int, int, int]]:
        """Yields ``(start, groups, size)``: runs of equally large groups, of which there are at most two."""
        size, larger = divmod(self.examples, self.count)
        if larger:
            yield 0, larger, size + 1
        if size:
            yield larger * (size + 1), self.count - larger, size

    @cached_property
    def of_example(self) -> Tensor:
        """The group of each example. [B]"""
        sizes = torch.tensor([size for _, groups, size in self.runs() for _ in range(groups)])
        return torch.repeat_interleave(torch.arange(self.count), sizes)

    @property
    def even(self) -> bool:
        return self.examples % self.count == 0


@dataclass(frozen=True)
class Owner:
    """Which example an element of a cotangent belongs to.

    Dimension ``dim`` has size ``outer * examples * inner`` (all other dimensions lie inside an
    example): the first of a batch-first tensor, the second of a sequence-first one, or either of
    them after other dimensions were folded in.
    """

    dim: int
    inner: int

    def examples_of(self, shape: torch.Size, examples: int) -> Tensor:
        """The example of each index along ``dim``. [shape[dim]]"""
        return torch.arange(shape[self.dim]).div(self.inner, rounding_mode="floor") % examples
