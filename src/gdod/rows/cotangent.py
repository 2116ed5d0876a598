"""Cotangents: the gradients of the tasks' losses at the output of one node of the graph."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gdod.rows.groups import Groups, Owner


@dataclass(frozen=True)
class Cotangent:
    """One tensor a backward pass, and how its elements are spread over rows.

    With ``tasks`` passes, an element of pass ``i`` that belongs to an example of group ``g`` goes to
    row ``g * tasks + i``. Where examples mix there is a pass for each row instead: then ``groups``
    is a single group of one example.
    """

    passes: list[Tensor]
    groups: Groups
    owner: Owner

    @staticmethod
    def of(passes: list[Tensor | None], groups: Groups, owner: Owner) -> "Cotangent | None":
        """Fills in zeros for tasks that do not reach the node; None if no task does."""
        first = next((delta for delta in passes if delta is not None), None)
        if first is None:
            return None
        return Cotangent([torch.zeros_like(first) if delta is None else delta for delta in passes], groups, owner)

    @property
    def tasks(self) -> int:
        return len(self.passes)

    @property
    def rows(self) -> int:
        return self.groups.count * self.tasks

    @property
    def shape(self) -> torch.Size:
        return self.passes[0].shape


def working(x: Tensor) -> Tensor:
    """Products and sums of half-precision numbers are made in float32."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
