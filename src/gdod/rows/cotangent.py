"""Cotangents: the gradients of the tasks' losses at the output of one node of the graph."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gdod.rows.groups import Groups, Owner

Deltas = Tensor | list[Tensor | None]
"""Stacked over backward passes, or one each; None where a task does not reach the node."""


@dataclass(frozen=True)
class Cotangent:
    """One tensor a backward pass, and how its elements are spread over rows.

    With ``tasks`` passes, an element of pass ``i`` that belongs to an example of group ``g`` goes to
    row ``g * tasks + i``. Where examples mix there is a pass for each row instead: then ``groups``
    is a single group of one example.
    """

    found: Tensor | list[Tensor]
    groups: Groups
    owner: Owner

    @staticmethod
    def of(deltas: Deltas, groups: Groups, owner: Owner) -> "Cotangent | None":
        """Fills in zeros for tasks that do not reach the node; None if no task does."""
        if isinstance(deltas, Tensor):
            return Cotangent(deltas, groups, owner)
        first = next((delta for delta in deltas if delta is not None), None)
        if first is None:
            return None
        return Cotangent([torch.zeros_like(first) if delta is None else delta for delta in deltas], groups, owner)

    @property
    def passes(self) -> Sequence[Tensor]:
        return self.found.unbind() if isinstance(self.found, Tensor) else self.found

    @property
    def stacked(self) -> Tensor:
        """[K, *shape]"""
        return self.found if isinstance(self.found, Tensor) else torch.stack(self.found)

    @property
    def tasks(self) -> int:
        return len(self.found)

    @property
    def rows(self) -> int:
        return self.groups.count * self.tasks

    @property
    def shape(self) -> torch.Size:
        return self.found.shape[1:] if isinstance(self.found, Tensor) else self.found[0].shape

    @property
    def is_in_order(self) -> bool:
        """Whether elements lie group by group, as many in each."""
        owner = self.owner
        return owner.dim == 0 and owner.inner * self.groups.examples == self.shape[0] and self.groups.even

    @property
    def dtype(self) -> torch.dtype:
        return self.found.dtype if isinstance(self.found, Tensor) else self.found[0].dtype


def working(x: Tensor) -> Tensor:
    """Products and sums of half-precision numbers are made in float32."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
