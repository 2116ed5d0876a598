"""The rows of weights of matrix products: as they are, or only their inner products.

Either the rows are materialised, or their inner products come from those of activations and of cotangents
between all places, so that nothing as large as a row appears; whichever costs less.
"""

from functools import lru_cache
from itertools import combinations_with_replacement

import torch
from torch import Tensor

from gdod.rows.blocks import Block, Chain, Only, symmetric_product
from gdod.rows.cotangent import Cotangent
from gdod.rows.node_kinds import kind_of
from gdod.rows.uses import Contraction, by_group, rows_of
from gdod.rows.views import undo
from gdod.rows.workspace import take

# Numbers in the largest matrix of pairs of places.
_CHUNK = 2**22
# What the calls for a pair of tasks cost, in multiplications.
_CALLS = 1_500_000
# What reading or writing a number costs, in multiplications.
_TRAFFIC = 8


class Products(Block):
    """The rows of a weight that is used in one or more contractions, and of the bias added there, if any.

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
        self.xs = _join([by_group(_with_ones(x) if bias else x, c) for _, x, c in uses])
        self.ds = _join([by_group(use.cotangent(c), c) for use, _, c in uses])
        self.inputs = self.xs[0].shape[-1]
        self.rows = rows_of(self.xs, self.ds, self.experts, self.tasks) if self._rows_are_cheaper() else None

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        return (self.weight[0],) if self.bias is None else (self.weight[0], self.bias[0])

    @property
    def like(self) -> Tensor:
        return self.xs[0] if self.rows is None else self.rows

    def as_rows(self) -> Tensor:
        """Return the rows, made now if they were not needed so far. [N, E * out * in]"""
        return rows_of(self.xs, self.ds, self.experts, self.tasks) if self.rows is None else self.rows

    def _rows_are_cheaper(self) -> bool:
        """Compare multiplications and numbers read or written, both of which were seen to tell the time well."""
        places = sum(x.shape[0] * x.shape[1] for x in self.xs) // self.experts
        outputs, pairs = self.ds[0].shape[-1] // self.tasks, self.tasks * (self.tasks + 1) // 2
        count, size = self.groups * self.tasks, self.inputs * outputs * self.experts
        rows = places * self.tasks * size + count**2 * size + 3 * _TRAFFIC * count * size
        between = places**2 * (self.inputs + pairs * (outputs + self.groups + 3 * _TRAFFIC))
        return rows <= self.experts * (between + pairs * _CALLS)

    def gram(self, precise: bool, only: Only = None) -> Tensor:
        columns = self._columns(only)
        if self.rows is None:
            return self._between_places(torch.float64 if precise else self.xs[0].dtype, columns)
        rows = self.rows.double() if precise else self.rows
        if columns != slice(None):
            rows = rows.unflatten(1, (-1, self.inputs))[..., columns].flatten(1)
        return symmetric_product(rows)

    def _columns(self, only: Only) -> slice:
        """Return which inputs belong to the parameters asked for; the last one is the bias's, if there is one."""
        if only is None or self.bias is None:
            return slice(None) if only is None or id(self.weight[0]) in only else slice(0)
        weight, bias = id(self.weight[0]) in only, id(self.bias[0]) in only
        return slice(None if weight else -1, None if bias else -1) if weight or bias else slice(0)

    def _between_places(self, dtype: torch.dtype, inputs: slice) -> Tensor:
        """Return the Gram matrix without rows. Those of tasks i and j have the inner products

            Σ_{p in g, q in h} (x_p · x_q) (d_pi · d_qj),

        so what is summed, by groups, is X Xᵀ times D_i D_jᵀ, number by number.
        """
        xs = [self._by_expert(x[..., inputs].to(dtype)).flatten(1, 2) for x in self.xs]
        ds = [self._by_expert(d.to(dtype)).flatten(1, 2) for d in self.ds]
        x = xs[0] if len(xs) == 1 else torch.cat(xs, 1)  # [E, P, in]
        d = (ds[0] if len(ds) == 1 else torch.cat(ds, 1)).unflatten(-1, (self.tasks, -1))  # [E, P, K, out]
        sizes = [x.shape[1] for x in self.xs for _ in range(x.shape[0] // self.experts)]
        members = _members(tuple(sizes), dtype, x.device)  # [G, P]
        tasks, totals = range(self.tasks), dict[tuple[int, int], Tensor]()
        step = max(1, _CHUNK // x.shape[1])
        for expert in range(self.experts):
            for first in range(0, x.shape[1], step):
                here = slice(first, first + step)
                products = x[expert, here] @ x[expert].T  # [p, P]
                for i, j in combinations_with_replacement(tasks, 2):
                    both = (d[expert, here, i] @ d[expert, :, j].T) * products
                    part = members[:, here] @ both @ members.T  # [G, G]
                    totals[i, j] = totals[i, j] + part if (i, j) in totals else part
        blocks = torch.stack([totals[i, j] if i <= j else totals[j, i].T for i in tasks for j in tasks])
        gram: Tensor = blocks.unflatten(0, (self.tasks, self.tasks)).permute(2, 0, 3, 1)  # [G, K, G, K]
        return gram.reshape(self.groups * self.tasks, -1)

    def _by_expert(self, x: Tensor) -> Tensor:
        """View [g * E, places, f] as [E, g, places, f]."""
        by_group: Tensor = x.unflatten(0, (-1, self.experts))
        return by_group.transpose(0, 1)

    def combine(self, weights: Tensor) -> list[tuple[Tensor, Tensor]]:
        flat = self._combine_factors(weights.view(-1, self.tasks)) if self.rows is None else weights @ self.rows
        grad = flat.view(-1, self.inputs) if self.experts == 1 else flat.view(self.experts, -1, self.inputs)
        grads = []  # from [out, in] or [E, out, in]
        if self.bias is not None:
            parameter, shape, chain = self.bias
            column = grad.select(-1, -1)  # with a bias there is one expert
            grads.append((parameter, undo(chain, column if column.shape == shape else column.reshape(shape))))
            grad = grad.narrow(-1, 0, self.inputs - 1)
        parameter, shape, chain = self.weight
        is_matrix = len(shape) == 2
        if not self.use.left and chain and is_matrix and kind_of(node := chain[-1][0]).transposes(node):
            chain, shape = chain[:-1], shape[::-1]  # `weight.t()`: two transpositions undo each other
        elif not self.use.left:
            grad = grad.transpose(-1, -2)
        grads.append((parameter, undo(chain, grad if grad.shape == shape else grad.reshape(shape))))
        return grads

    def _combine_factors(self, weights: Tensor) -> Tensor:
        """Return the weighted sum of rows that were not made. [E * out * in]"""
        grads, group = [], 0
        for x, d in zip(self.xs, self.ds, strict=True):
            x, d = self._by_expert(x), self._by_expert(d)  # [E, g, places, f]
            w = weights[group : group + x.shape[1]]  # [g, K]
            v = (d.unflatten(-1, (self.tasks, -1)) * w[:, None, :, None]).sum(3)  # [E, g, places, out]
            grads.append(torch.bmm(v.flatten(1, 2).mT, x.flatten(1, 2)))
            group += x.shape[1]
        total: Tensor = sum(grads[1:], grads[0])
        return total.flatten()


@lru_cache(maxsize=64)
def _members(sizes: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return which places belong to which group, as ones and zeros, from the groups' numbers of places. [G, P]"""
    members: Tensor = torch.block_diag(*(torch.ones(1, size) for size in sizes))
    return members.to(device, dtype)


def _with_ones(x: Tensor) -> Tensor:
    ones = _ones((*x.shape[:-1], 1), x.dtype, x.device)
    return torch.cat([x, ones], -1, out=take((*x.shape[:-1], x.shape[-1] + 1), x))


@lru_cache(maxsize=64)
def _ones(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.ones(shape, dtype=dtype, device=device)


def _join(uses: list[list[Tensor]]) -> list[Tensor]:
    """Put the places of all uses after each other, run by run."""
    if len(uses) == 1:
        return uses[0]
    return [torch.cat(parts, 1) for parts in zip(*uses, strict=True)]
