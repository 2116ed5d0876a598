"""Matrix products with a parameter: linear layers, `x @ W`, stacked experts in `bmm` or `einsum`.

The row of such a parameter is a product of activations X and cotangents D, summed over the examples
of a group. Either the rows are materialised, or their inner products are taken from those of the
factors, (X Xᵀ) ∘ (D Dᵀ) summed over blocks (the "ghost" product), whichever costs less.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.graph import Node

from gdod.rows.blocks import Block, Chain, Only, symmetric_product
from gdod.rows.cotangent import Cotangent, working
from gdod.rows.groups import Owner
from gdod.rows.views import undo
from gdod.rows.workspace import take

# Elements of the largest intermediate of a ghost product.
_GHOST_CHUNK = 2**22
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
            return working(torch.stack(cotangent.passes, -1)).unsqueeze(0)
        deltas = [working(self._sum_second(delta)) for delta in cotangent.passes]
        first = deltas[0]
        return torch.cat(deltas, -1, out=take((*first.shape[:-1], len(deltas) * first.shape[-1]), first))

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

    def _rows_are_cheaper(self) -> bool:
        if self.experts > 1:
            return True
        places = sum(x.shape[0] * x.shape[1] for x in self.xs)
        outputs = self.ds[0].shape[-1] // self.tasks
        count, size = self.groups * self.tasks, self.inputs * outputs
        rows = places * self.tasks * size + count**2 * size // 2 + 3 * _TRAFFIC * count * size
        ghost = places**2 * self.inputs + (places * self.tasks) ** 2 * (outputs + 3 * _TRAFFIC)
        return rows <= ghost

    def gram(self, precise: bool, only: Only = None) -> Tensor:
        columns = self._columns(only)
        if self.rows is None:
            return self._ghost(torch.float64 if precise else self.xs[0].dtype, columns)
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

    def _ghost(self, dtype: torch.dtype, inputs: slice) -> Tensor:
        tasks, groups = self.tasks, self.groups
        gram = torch.zeros(groups, tasks, groups, tasks, dtype=dtype, device=self.xs[0].device)
        xs = [x[..., inputs].to(dtype) for x in self.xs]  # [g, places, in]
        ds = [d.to(dtype).unflatten(-1, (tasks, -1)) for d in self.ds]  # [g, places, K, out]
        columns = sum(x.shape[0] * x.shape[1] for x in xs) * tasks
        row = 0
        for x, d in zip(xs, ds, strict=True):
            step = max(1, _GHOST_CHUNK // (x.shape[1] * tasks * columns))
            for x1, d1 in zip(x.split(step), d.split(step), strict=True):
                column = 0
                for x2, d2 in zip(xs, ds, strict=True):
                    (g1, p1), (g2, p2) = x1.shape[:2], x2.shape[:2]
                    xx = x1.flatten(0, 1) @ x2.flatten(0, 1).T  # [g1 * p1, g2 * p2]
                    dd = d1.flatten(0, 2) @ d2.flatten(0, 2).T  # [g1 * p1 * K, g2 * p2 * K]
                    dd = dd.view(g1, p1, tasks, g2, p2, tasks).mul_(xx.view(g1, p1, 1, g2, p2, 1))
                    gram[row : row + g1, :, column : column + g2] = dd.sum((1, 4))
                    column += g2
                row += g1
        return gram.view(groups * tasks, groups * tasks)

    def combine(self, weights: Tensor) -> list[tuple[Tensor, Tensor]]:
        weights = weights.to(self.xs[0].dtype)
        flat = self._combine_factors(weights.view(-1, self.tasks)) if self.rows is None else weights @ self.rows
        grad = flat.view(self.experts, -1, self.inputs)  # [E, out, in]
        grads = []
        if self.bias is not None:
            parameter, shape, chain = self.bias
            grads.append((parameter, undo(chain, grad[0, :, -1].reshape(shape))))
            grad = grad[..., :-1]
        parameter, shape, chain = self.weight
        grad = grad if self.use.left else grad.transpose(-1, -2)
        grads.append((parameter, undo(chain, grad.reshape(shape))))
        return grads

    def _combine_factors(self, weights: Tensor) -> Tensor:
        """[out * in]"""
        grads, group = [], 0
        for x, d in zip(self.xs, self.ds, strict=True):
            w = weights[group : group + x.shape[0]]  # [g, K]
            v = (d.unflatten(-1, (self.tasks, -1)) * w[:, None, :, None]).sum(2)  # [g, places, out]
            grads.append(v.flatten(0, 1).T @ x.flatten(0, 1))
            group += x.shape[0]
        total: Tensor = sum(grads[1:], grads[0])
        return total.flatten()


def _with_ones(x: Tensor) -> Tensor:
    longer = take((*x.shape[:-1], x.shape[-1] + 1), x)
    if longer is None:
        return torch.cat([x, x.new_ones(*x.shape[:-1], 1)], -1)
    longer[..., :-1] = x
    longer[..., -1] = 1
    return longer


def _join(uses: list[list[Tensor]]) -> list[Tensor]:
    """Places of all uses after each other, run by run."""
    if len(uses) == 1:
        return uses[0]
    return [torch.cat(parts, 1) for parts in zip(*uses, strict=True)]
