"""How the examples of a batch are cut into groups, and where group and task stand in a row number.

Rows are ordered group by group: row ``g * tasks + i`` belongs to group ``g`` and task ``i``.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

import torch
from torch import Tensor


@dataclass(frozen=True)
class Groups:
    """A batch cut into ``count`` runs of consecutive examples, as even as possible (as `torch.tensor_split` cuts)."""

    examples: int
    count: int
    cut: tuple[tuple[int, int], ...] | None = None
    """Runs ``(groups, size)`` in place of even ones: what one process has of the groups of all."""

    def runs(self) -> Iterator[tuple[int, int, int]]:
        """Yield ``(start, groups, size)`` of each run of equally large groups, of which there are at most two
        (or four, of a process that has only a part of its first and of its last group)."""
        if self.cut is not None:
            start = 0
            for groups, size in self.cut:
                yield start, groups, size
                start += groups * size
            return
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
        """Whether all groups have the same size."""
        return self.examples % self.count == 0 if self.cut is None else len(self.cut) == 1

    def part(self, start: int, examples: int) -> "tuple[int, Groups]":
        """Return the first group that has some of ``examples`` examples from ``start`` on, and these examples' groups.

        A part of a group is a run of its own, even where it happens to be as large as the groups next to it.
        """
        groups = [(first + group * size, size) for first, count, size in self.runs() for group in range(count)]
        inside = [min(low + size, start + examples) - max(low, start) for low, size in groups]
        some = [(number, size == groups[number][1], size) for number, size in enumerate(inside) if size > 0]
        cut: list[tuple[int, int]] = []
        for (whole, size), run in groupby(some, lambda part: part[1:]):
            count = len(list(run))
            cut += [(count, size)] if whole else [(1, size)] * count
        return some[0][0] if some else 0, Groups(examples, len(some), tuple(cut))


@dataclass(frozen=True)
class Owner:
    """The example that each element of a cotangent belongs to.

    Dimension ``dim`` has size ``outer * examples * inner`` (all other dimensions lie inside an
    example): the first of a batch-first tensor, the second of a sequence-first one, or either of
    them after other dimensions were folded in.
    """

    dim: int
    inner: int

    def examples_of(self, shape: torch.Size, examples: int) -> Tensor:
        """Return the example of each index along ``dim``. [shape[dim]]"""
        return torch.arange(shape[self.dim]).div(self.inner, rounding_mode="floor") % examples


WHOLE = Owner(0, 1)  # of a cotangent all of whose elements belong to one example
