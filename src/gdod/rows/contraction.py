"""Matrix products with a parameter: linear layers, `x @ W`, stacked experts in `bmm` or `einsum`.

The row of such a parameter is a product of activations X and cotangents D, summed over the examples
of a group, Dᵀ X. Either the rows are materialised, or their inner products are taken pair by pair of
groups as D_g (X_g X_hᵀ) D_hᵀ, from left or right so that nothing as large as a row appears,
whichever costs less.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from torch.autograd.graph import Node

from gdod.rows.blocks import Block, Chain, Only, symmetric_product
from gdod.rows.cotangent import Cotangent, working
from gdod.rows.groups import Owner
from gdod.rows.views import undo
from gdod.rows.workspace import take

# Numbers in the largest intermediate result of pairs of groups.
_CHUNK = 2**22
# What the calls of such a product cost, in multiplications.
_LOOP = 4_000_000
# What reading or writing a number costs, in multiplications.
_TRAFFIC = 8


@dataclass(frozen=True)
class Contraction:
    """A use of a parameter W in ``X W`` (or in ``W X``, if ``left``), batched or not."""

    left: bool
    saved: str  # where the node keeps X
    scale: str | None = None  # where it keeps a factor of the product
    vector: bool = False  # W is a vector in ``X @ W``

    def summed(self, dims: int) -> int:
        """The dimension of the cotangent that the gradient of W sums over."""
        return dims - 1 if self.left or self.vector else dims - 2

    def allows(self, owner: Owner, shape: torch.Size, weight: torch.Size, examples: int) -> bool:
        return owner.dim == self.summed(len(shape))

    def load(self, node: Node) -> Tensor:
        """X as [E, M, in]: experts (1 without a batch dimension), places to sum over, features."""
        x: Tensor = getattr(node, self.saved)
        if self.scale is not None and (scale := getattr(node, self.scale)) != 1:
            x = x * scale
        return working(self._sum_second(x))

    def cotangent(self, cotangent: Cotangent) -> Tensor:
        """All passes side by side. [E, M, K * out]"""
        if self.vector:
            return working(torch.stack(tuple(cotangent.passes), -1)).unsqueeze(0)
        if isinstance(cotangent.found, Tensor):
            return self._side_by_side(working(cotangent.found))
        deltas = [working(self._sum_second(delta)) for delta in cotangent.passes]
        first = deltas[0]
        return torch.cat(deltas, -1, out=take((*first.shape[:-1], len(deltas) * first.shape[-1]), first))

    def _side_by_side(self, stacked: Tensor) -> Tensor:
        stacked = stacked.transpose(-1, -2) if self.left else stacked
        stacked = stacked if stacked.dim() == 4 else stacked.unsqueeze(1)  # [K, E, M, out]
        tasks, experts, places, outputs = stacked.shape
        joined = stacked.permute(1, 2, 0, 3)
        buffer = take((experts, places, tasks, outputs), stacked)
        return (joined.contiguous() if buffer is None else buffer.copy_(joined)).view(experts, places, -1)

    def _sum_second(self, x: Tensor) -> Tensor:
        if self.left:
            x = x.transpose(-1, -2)
        return x if x.dim() == 3 else x.unsqueeze(0)

    def rows(self, x: Tensor, cotangent: Cotangent, shape: torch.Size) -> Tensor:
        """Rows of the viewed parameter, in its own shape. [N, *shape]"""
        xs, ds = _by_group(x, cotangent), _by_group(self.cotangent(cotangent), cotangent)
        rows = _rows(xs, ds, x.shape[0], cotangent.tasks).unflatten(-1, (x.shape[0], -1, x.shape[-1]))
        oriented: Tensor = rows if self.left else rows.transpose(-1, -2)
        return oriented.reshape(-1, *shape)


def _by_group(x: Tensor, cotangent: Cotangent) -> list[Tensor]:
    """From [E, M, f] to one [groups * E, places of a group, f] for each run of equal groups."""
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


def _rows(xs: list[Tensor], ds: list[Tensor], experts: int, tasks: int) -> Tensor:
    """[N, E * out * in]"""
    parts = []
    for x, d in zip(xs, ds, strict=True):
        shape = (d.shape[0], d.shape[2], x.shape[2])
        part = torch.bmm(d.transpose(1, 2), x, out=take(shape, x))  # [g * E, K * out, in]
        size = part.shape[1] // tasks * part.shape[2]
        if experts > 1:
            part = part.view(-1, experts, tasks, size).transpose(1, 2)  # [g, K, E, out * in]
        parts.append(part.reshape(-1, experts * size))  # [g * K, E * out * in]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


class Products(Block):
    """A weight used in one or more contractions, with the bias added there, if any.

    The bias is one more column of the weight, whose activation is always 1.
    """

    def __init__(
        self,
        uses: list[tuple[Contraction, Tensor, Cotangent]],
        weight: tuple[Tensor, torch.Size, Chain],
        bias: tuple[Tensor, torch.Size, Chain] | None,
    ) -> None:
        self.use, x, cotangent = uses[0]
        self.weight, self.bias = weight, bias
        self.tasks, self.groups = cotangent.tasks, cotangent.groups.count
        self.experts = x.shape[0]
        # For each run of equal groups: [groups * E, places, in] and [groups * E, places, K * out].
        self.xs = _join([_by_group(_with_ones(x) if bias else x, c) for _, x, c in uses])
        self.ds = _join([_by_group(use.cotangent(c), c) for use, _, c in uses])
        self.inputs = self.xs[0].shape[-1]
        self.rows = _rows(self.xs, self.ds, self.experts, self.tasks) if self._rows_are_cheaper() else None

    @property
    def like(self) -> Tensor:
        return self.xs[0]

    def _rows_are_cheaper(self) -> bool:
        places = sum(x.shape[0] * x.shape[1] for x in self.xs) // self.experts
        outputs = self.ds[0].shape[-1] // self.tasks
        count, size = self.groups * self.tasks, self.inputs * outputs
        rows = places * self.tasks * size + count**2 * size * 3 // 4 + 3 * _TRAFFIC * count * size
        # Products of activations, these times cotangents, and cotangents times that; most of it is
        # above the diagonal.
        passed = places * self.groups * self.tasks * outputs
        pairs = (places**2 * (self.inputs + self.tasks * outputs) + passed * (self.tasks + 3 * _TRAFFIC)) * 5 // 8
        return rows <= pairs + _LOOP

    def gram(self, precise: bool, only: Only = None) -> Tensor:
        columns = self._columns(only)
        if self.rows is None:
            return self._pairs(torch.float64 if precise else self.xs[0].dtype, columns)
        rows = self.rows.double() if precise else self.rows
        if columns != slice(None):
            rows = rows.unflatten(1, (-1, self.inputs))[..., columns].flatten(1)
        return symmetric_product(rows)

    def _columns(self, only: Only) -> slice:
        """Which inputs belong to the parameters asked for; the last one is the bias's, if there is one."""
        if only is None or self.bias is None:
            return slice(None) if only is None or id(self.weight[0]) in only else slice(0)
        weight, bias = id(self.weight[0]) in only, id(self.bias[0]) in only
        return slice(None if weight else -1, None if bias else -1) if weight or bias else slice(0)

    def _pairs(self, dtype: torch.dtype, inputs: slice) -> Tensor:
        """Blocks (g, h) of the Gram matrix without rows: D_g (X_g X_hᵀ) D_h, summed over experts."""
        gram = torch.zeros(self.groups, self.tasks, self.groups, self.tasks, dtype=dtype, device=self.xs[0].device)
        xs = [self._by_expert(x[..., inputs].to(dtype)) for x in self.xs]  # [E, g, places, in]
        ds = [self._by_expert(d.to(dtype)) for d in self.ds]  # [E, g, places, K * out]
        for expert in range(self.experts):
            column = 0
            for second in range(len(xs)):
                x2, d2 = xs[second][expert], ds[second][expert]
                step = self._groups_at_once(d2)
                for first in range(0, x2.shape[0], step):
                    here = slice(first, first + step)
                    for x1, d1, row in self._up_to(xs, ds, expert, second, first + step):
                        block = self._block(x1, d1, x2[here], d2[here])
                        gram[row : row + x1.shape[0], :, column + first : column + first + block.shape[2]] += block
                column += x2.shape[0]
        upper = gram.view(self.groups * self.tasks, -1).triu()
        return upper + upper.triu(1).T

    def _by_expert(self, x: Tensor) -> Tensor:
        """[g * E, places, f] -> [E, g, places, f]"""
        by_group: Tensor = x.unflatten(0, (-1, self.experts))
        return by_group.transpose(0, 1)

    def _groups_at_once(self, d: Tensor) -> int:
        """A quarter of the groups (then little below the diagonal is computed), or what memory allows."""
        groups, _, features = d.shape
        every = sum(x.shape[0] * x.shape[1] for x in self.xs) // self.experts
        return max(1, min(-(-groups // 4), _CHUNK // (every * features)))

    def _up_to(
        self, xs: list[Tensor], ds: list[Tensor], expert: int, run: int, group: int
    ) -> Iterator[tuple[Tensor, Tensor, int]]:
        """All earlier runs of groups, and this one up to ``group``, with the number of their first group."""
        row = 0
        for earlier in range(run + 1):
            end = group if earlier == run else xs[earlier].shape[1]
            yield xs[earlier][expert, :end], ds[earlier][expert, :end], row
            row += xs[earlier].shape[1]

    def _block(self, x1: Tensor, d1: Tensor, x2: Tensor, d2: Tensor) -> Tensor:
        """[g1, K, g2, K]"""
        (g1, p1, _), (g2, p2, _), tasks = x1.shape, d2.shape, self.tasks
        xx = (x1.reshape(g1 * p1, -1) @ x2.reshape(g2 * p2, -1).T).view(g1 * p1, g2, p2)
        passed = torch.bmm(xx.transpose(0, 1), d2)  # (X_g X_hᵀ) D_h [g2, g1 * p1, K * out]
        passed = passed.view(g2, g1, p1, tasks, -1).permute(1, 0, 3, 2, 4).reshape(g1, g2 * tasks, -1)
        own = d1.reshape(g1, p1, tasks, -1).transpose(1, 2).reshape(g1, tasks, -1)  # [g1, K, p1 * out]
        return torch.bmm(own, passed.mT).view(g1, tasks, g2, tasks)

    def combine(self, weights: Tensor) -> list[tuple[Tensor, Tensor]]:
        flat = self._combine_factors(weights.view(-1, self.tasks)) if self.rows is None else weights @ self.rows
        grad = flat.view(self.experts, -1, self.inputs)  # [E, out, in]
        grads = []
        if self.bias is not None:
            parameter, shape, chain = self.bias
            grads.append((parameter, undo(chain, grad[0, :, -1].reshape(shape))))
            grad = grad[..., :-1]
        parameter, shape, chain = self.weight
        if not self.use.left and chain and type(chain[-1][0]).__name__ == "TBackward0":
            chain, shape = chain[:-1], shape[::-1]  # `weight.t()`: two transpositions undo each other
        elif not self.use.left:
            grad = grad.transpose(-1, -2)
        grads.append((parameter, undo(chain, grad.reshape(shape))))
        return grads

    def _combine_factors(self, weights: Tensor) -> Tensor:
        """[E * out * in]"""
        grads, group = [], 0
        for x, d in zip(self.xs, self.ds, strict=True):
            x, d = self._by_expert(x), self._by_expert(d)  # [E, g, places, f]
            w = weights[group : group + x.shape[1]]  # [g, K]
            v = (d.unflatten(-1, (self.tasks, -1)) * w[:, None, :, None]).sum(3)  # [E, g, places, out]
            grads.append(torch.bmm(v.flatten(1, 2).mT, x.flatten(1, 2)))
            group += x.shape[1]
        total: Tensor = sum(grads[1:], grads[0])
        return total.flatten()


def _with_ones(x: Tensor) -> Tensor:
    ones = _ones((*x.shape[:-1], 1), x.dtype, x.device)
    return torch.cat([x, ones], -1, out=take((*x.shape[:-1], x.shape[-1] + 1), x))


@lru_cache(maxsize=64)
def _ones(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.ones(shape, dtype=dtype, device=device)


def _join(uses: list[list[Tensor]]) -> list[Tensor]:
    """Places of all uses after each other, run by run."""
    if len(uses) == 1:
        return uses[0]
    return [torch.cat(parts, 1) for parts in zip(*uses, strict=True)]
