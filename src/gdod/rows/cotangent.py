"""Cotangents: the gradients of the tasks' losses at the output of one node of the graph."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gdod.rows.groups import Groups, Owner

Deltas = Tensor | list[Tensor | None]
"""A node's cotangents, stacked over backward passes or one a pass; None where a task does not reach the node."""


@dataclass(frozen=True)
class Cotangent:
    """The cotangents of all backward passes at one node, and how their elements are spread over rows.

    With ``tasks`` passes, an element of pass ``i`` that belongs to an example of group ``g`` goes to
    row ``g * tasks + i``. Where examples mix there is a pass for each row instead: then ``groups``
    is a single group of one example.
    """

    deltas: Tensor | list[Tensor]
    groups: Groups
    owner: Owner

    @staticmethod
    def of(deltas: Deltas, groups: Groups, owner: Owner) -> "Cotangent | None":
        """Return a cotangent with zeros for tasks that do not reach the node, or None if no task does."""
        if isinstance(deltas, Tensor):
            return Cotangent(deltas, groups, owner)
        first = next((delta for delta in deltas if delta is not None), None)
        if first is None:
            return None
        return Cotangent([torch.zeros_like(first) if delta is None else delta for delta in deltas], groups, owner)

    @property
    def passes(self) -> Sequence[Tensor]:
        """The cotangent of each backward pass. [*shape]"""
        return self.deltas.unbind() if isinstance(self.deltas, Tensor) else self.deltas

    @property
    def stacked(self) -> Tensor:
        """The cotangents of all backward passes in one tensor. [K, *shape]"""
        return self.deltas if isinstance(self.deltas, Tensor) else torch.stack(self.deltas)

    @property
    def tasks(self) -> int:
        return len(self.deltas)

    @property
    def rows(self) -> int:
        return self.groups.count * self.tasks

    @property
    def shape(self) -> torch.Size:
        return self.deltas.shape[1:] if isinstance(self.deltas, Tensor) else self.deltas[0].shape

    @property
    def is_in_order(self) -> bool:
        """Whether the elements lie group by group, as many in each."""
        owner = self.owner
        return owner.dim == 0 and owner.inner * self.groups.examples == self.shape[0] and self.groups.even

    @property
    def device(self) -> torch.device:
        return self.deltas.device if isinstance(self.deltas, Tensor) else self.deltas[0].device

    @property
    def dtype(self) -> torch.dtype:
        return self.deltas.dtype if isinstance(self.deltas, Tensor) else self.deltas[0].dtype


def working(x: Tensor) -> Tensor:
    """Return the tensor in the precision of its products and sums, which is float32 for half-precision numbers."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
