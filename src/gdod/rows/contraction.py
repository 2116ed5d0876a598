"""Matrix products with a parameter: linear layers, `x @ W`, stacked experts in `bmm` or `einsum`.

The row of such a parameter is a product of activations X and cotangents D, summed over the places
(examples, or examples times positions) of a group, Dᵀ X.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.graph import Node

from gdod.rows.cotangent import Cotangent, working
from gdod.rows.groups import Owner
from gdod.rows.use import Use
from gdod.rows.workspace import take


@dataclass(frozen=True)
class Contraction(Use):
    """A use of a parameter W in ``X W`` (or in ``W X``, if ``left``), batched or not."""

    left: bool
    saved: str
    """The attribute in which the node keeps X."""
    scale: str | None = None
    """The attribute in which it keeps a factor of the product."""
    vector: bool = False
    """Whether W is a vector in ``X @ W``."""

    def summed(self, dims: int) -> int:
        """Return the dimension of the cotangent that the gradient of W sums over."""
        return dims - 1 if self.left or self.vector else dims - 2

    def allows(self, owner: Owner, shape: torch.Size, weight: torch.Size, examples: int) -> bool:
        return owner.dim == self.summed(len(shape))

    def load(self, node: Node) -> Tensor:
        """Return X [E, M, in]: experts (1 without a batch dimension), places to sum over, features."""
        x: Tensor = getattr(node, self.saved)
        if self.scale is not None and (scale := getattr(node, self.scale)) != 1:
            x = x * scale
        return working(self._sum_second(x))

    def cotangent(self, cotangent: Cotangent) -> Tensor:
        """Return the cotangents of all tasks side by side. [E, M, K * out]"""
        if self.vector:
            return working(torch.stack(tuple(cotangent.passes), -1)).unsqueeze(0)
        if isinstance(cotangent.deltas, Tensor):
            return self._side_by_side(working(cotangent.deltas))
        deltas = [working(self._sum_second(delta)) for delta in cotangent.passes]
        first = deltas[0]
        return torch.cat(deltas, -1, out=take((*first.shape[:-1], len(deltas) * first.shape[-1]), first))

    def _side_by_side(self, stacked: Tensor) -> Tensor:
        stacked = stacked.transpose(-1, -2) if self.left else stacked
        if stacked.dim() == 3:  # [K, M, out]: the common case, in few operations
            tasks, places, outputs = stacked.shape
            joined, buffer = stacked.transpose(0, 1), take((places, tasks, outputs), stacked)
            return (joined.contiguous() if buffer is None else buffer.copy_(joined)).view(1, places, -1)
        tasks, experts, places, outputs = stacked.shape  # [K, E, M, out]
        joined = stacked.permute(1, 2, 0, 3)
        buffer = take((experts, places, tasks, outputs), stacked)
        return (joined.contiguous() if buffer is None else buffer.copy_(joined)).view(experts, places, -1)

    def _sum_second(self, x: Tensor) -> Tensor:
        if self.left:
            x = x.transpose(-1, -2)
        return x if x.dim() == 3 else x.unsqueeze(0)

    def rows(self, x: Tensor, cotangent: Cotangent, shape: torch.Size) -> Tensor:
        """Return the rows of the viewed parameter, in its shape. [N, *shape]"""
        xs, ds = by_group(x, cotangent), by_group(self.cotangent(cotangent), cotangent)
        rows = rows_of(xs, ds, x.shape[0], cotangent.tasks).unflatten(-1, (x.shape[0], -1, x.shape[-1]))
        oriented: Tensor = rows if self.left else rows.transpose(-1, -2)
        return oriented.reshape(-1, *shape)


def by_group(x: Tensor, cotangent: Cotangent) -> list[Tensor]:
    """Cut [E, M, f] into one [groups * E, places of a group, f] for each run of equal groups."""
    owner, groups = cotangent.owner, cotangent.groups
    if x.shape[0] == 1 and owner.inner * groups.examples == x.shape[1] and groups.even:
        return [x.reshape(groups.count, -1, x.shape[2])]  # the common case, in one operation
    x = x.unflatten(1, (-1, groups.examples, owner.inner))  # [E, outer, B, inner, f]
    return [
        x[:, :, start : start + count * size]
        .unflatten(2, (count, size))  # [E, outer, groups, size, inner, f]
        .permute(2, 0, 1, 3, 4, 5)
        .reshape(count * x.shape[0], -1, x.shape[-1])
        for start, count, size in groups.runs()
    ]


def rows_of(xs: list[Tensor], ds: list[Tensor], experts: int, tasks: int) -> Tensor:
    """Return the rows [N, E * out * in] from activations and cotangents that are cut by group."""
    parts = []
    for x, d in zip(xs, ds, strict=True):
        shape = (d.shape[0], d.shape[2], x.shape[2])
        part = torch.bmm(d.transpose(1, 2), x, out=take(shape, x))  # [g * E, K * out, in]
        size = part.shape[1] // tasks * part.shape[2]
        if experts > 1:
            part = part.view(-1, experts, tasks, size).transpose(1, 2)  # [g, K, E, out * in]
        parts.append(part.reshape(-1, experts * size))  # [g * K, E * out * in]
    return parts[0] if len(parts) == 1 else torch.cat(parts)
