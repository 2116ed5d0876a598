"""The rows of weights of matrix products: as they are, or only their inner products.

Either the rows are materialised, or their inner products come from those of activations and of cotangents
between groups, so that nothing as large as a row appears; whichever costs less.
"""

import copy
from bisect import bisect_right
from functools import cached_property, lru_cache, reduce
from itertools import accumulate, pairwise

import torch
from torch import Tensor
from torch.nn.functional import pad

from gdod.rows.blocks import Block, Chain, Only, symmetric_product
from gdod.rows.cotangent import Cotangent, working
from gdod.rows.kernels import KERNEL_ERROR, ProductKernel
from gdod.rows.multiply import product
from gdod.rows.node_kinds import kind_of
from gdod.rows.uses import Contraction, by_group, rows_of
from gdod.rows.views import undo
from gdod.rows.workspace import take

# Numbers in the largest matrix of pairs of places.
_CHUNK = 2**22
# What the calls for a group cost, in multiplications.
_CALLS = 2_000_000
# What a multiplication in the small matrices of pairs of groups costs, in those of large ones.
_SMALL = 2.5
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
        self.experts, self.inputs = x.shape[0], x.shape[-1] + (bias is not None)
        self.uses = uses
        self.kernel: ProductKernel | None = None
        if len(uses) == 1 and not self.use.left and not self.use.vector:
            self.kernel = ProductKernel.of(x, cotangent, bias is not None)
        self.rows: Tensor | None = None  # [N, E * out * in]
        self.by_task: Tensor | None = None  # rows in another order [K, groups, in, out]
        if self.kernel is None and self._rows_are_cheaper():
            if self._suits_by_task():
                self.by_task = self._rows_by_task()
            else:
                self.rows = rows_of(self.xs, self.ds, self.experts, self.tasks)

    def without_numbers(self) -> "Products":
        """Return a block that knows how rows are laid out, to be filled with others' ``rows`` or ``xs`` and ``ds``."""
        form = copy.copy(self)
        form.uses, form.xs, form.ds, form.rows, form.by_task, form.kernel = [], [], [], None, None, None
        return form

    @cached_property
    def xs(self) -> list[Tensor]:
        """The activations, with a 1 for the bias, for each run of equal groups. [groups * E, places, in]"""
        return _join([by_group(_with_ones(x) if self.bias else x, c) for _, x, c in self.uses])

    @cached_property
    def ds(self) -> list[Tensor]:
        """The cotangents of all tasks side by side, for each run of equal groups. [groups * E, places, K * out]"""
        return _join([by_group(use.cotangent(cotangent), cotangent) for use, _, cotangent in self.uses])

    def _suits_by_task(self) -> bool:
        """Return whether the cotangents of a task lie group after group, and are the wider factor of its rows."""
        (use, _, cotangent), *others = self.uses
        stacked = isinstance(cotangent.deltas, Tensor) and cotangent.deltas.dim() == 3
        plain = not use.left and not use.vector and self.experts == 1 and not others
        wide = self.inputs < use.outputs(cotangent)
        return stacked and plain and wide and cotangent.is_in_order and not torch.is_grad_enabled()

    def _rows_by_task(self) -> Tensor:
        """Return the rows of one task after those of another, by wide products, which are quicker. [K, groups, in, out]

        With 13 inputs and 256 outputs that takes half the time of `rows_of`, with 75 inputs four fifths.
        """
        deltas, x = working(self.uses[0][2].stacked), self.xs[0].mT  # [groups, in, places]
        shape = (self.tasks, self.groups, self.inputs, deltas.shape[-1])
        buffer = take(shape, deltas)
        rows = deltas.new_empty(shape) if buffer is None else buffer
        for task, delta in enumerate(deltas):
            torch.bmm(x, delta.reshape(self.groups, -1, delta.shape[-1]), out=rows[task])
        return rows

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        return (self.weight[0],) if self.bias is None else (self.weight[0], self.bias[0])

    @property
    def like(self) -> Tensor:
        return self.rows if self.rows is not None else self.uses[0][1] if self.uses else self.xs[0]

    @property
    def has_rows(self) -> bool:
        """Whether the rows were made, since that is cheaper than their inner products alone."""
        return self.rows is not None or self.by_task is not None

    def as_rows(self) -> Tensor:
        """Return the rows, made now if they were not needed so far. [N, E * out * in]"""
        if self.by_task is not None:
            return self.by_task.permute(1, 0, 3, 2).reshape(self.groups * self.tasks, -1)
        return rows_of(self.xs, self.ds, self.experts, self.tasks) if self.rows is None else self.rows

    def _rows_are_cheaper(self) -> bool:
        """Compare multiplications, numbers read or written, and calls, which were seen to tell the time well.

        Only shapes decide, so that a run that is resumed, or another process, computes in the same way.
        """
        places = sum(x.shape[0] * x.shape[1] for x in self.xs) // self.experts
        use, _, cotangent = self.uses[0]
        outputs, tasks = use.outputs(cotangent), self.tasks
        count, size = self.groups * tasks, self.inputs * outputs * self.experts
        rows = places * tasks * size + count**2 * size + 3 * _TRAFFIC * count * size
        mixed = places**2 * outputs * tasks // 2  # half of the pairs of groups
        multiplied = places * self.groups * outputs * tasks**2 // 2
        between = places**2 * self.inputs + _SMALL * (mixed + multiplied) + self.groups * _CALLS
        return rows <= self.experts * between

    @property
    def gram_error(self) -> float:
        return super().gram_error if self.kernel is None else KERNEL_ERROR

    def gram(self, precise: bool, only: Only = None) -> Tensor:
        if self.kernel is not None and only is None and (self.kernel.is_precise or not precise):
            return self.kernel.gram()
        columns = self._columns(only)
        if self.by_task is not None:
            rows = self.by_task[:, :, columns].reshape(self.groups * self.tasks, -1)
            gram = symmetric_product(rows.double() if precise else rows, steady=True)
            by_group = gram.view(self.tasks, self.groups, self.tasks, self.groups).permute(1, 0, 3, 2)
            return by_group.reshape(gram.shape)
        if self.rows is None:
            return self._between_groups(torch.float64 if precise else self.xs[0].dtype, columns)
        rows = self.rows.double() if precise else self.rows
        if columns != slice(None):
            rows = rows.unflatten(1, (-1, self.inputs))[..., columns].flatten(1)
        return symmetric_product(rows, steady=True)

    def _columns(self, only: Only) -> slice:
        """Return which inputs belong to the parameters asked for; the last one is the bias's, if there is one."""
        if only is None or self.bias is None:
            return slice(None) if only is None or id(self.weight[0]) in only else slice(0)
        weight, bias = id(self.weight[0]) in only, id(self.bias[0]) in only
        return slice(None if weight else -1, None if bias else -1) if weight or bias else slice(0)

    def _between_groups(self, dtype: torch.dtype, inputs: slice) -> Tensor:
        """Return the Gram matrix without rows. That of task i in group g and that of j in h have the inner product

            Σ_{p in g} d_pi · (Σ_{q in h} (x_p · x_q) d_qj),

        so the cotangents of a group are mixed as its activations agree with those of all places up to there, and then
        multiplied by the cotangents of these places, each with its own: parts [K, K] that are summed by groups.
        """
        xs = [self._by_expert(x[..., inputs].to(dtype)).flatten(1, 2) for x in self.xs]
        ds = [self._by_expert(d.to(dtype)).flatten(1, 2) for d in self.ds]
        x = xs[0] if len(xs) == 1 else torch.cat(xs, 1)  # [E, P, in]
        d = ds[0] if len(ds) == 1 else torch.cat(ds, 1)  # [E, P, K * out]
        total = reduce(torch.add, (self._later_groups(x[expert], d[expert]) for expert in range(self.experts)))
        # [g, i, h, j], known for g up to h; of one group (i, j) and (j, i) are rounded differently.
        upper = total.permute(1, 2, 0, 3).reshape(self.groups * self.tasks, -1).triu()
        return upper + upper.triu(1).T

    def _later_groups(self, x: Tensor, d: Tensor) -> Tensor:
        """Return the inner products of the rows of a group h and of all groups g up to h; what is beyond is any number.

        [h, g, i, j], with i the task of the row of g and j that of h, float64.
        """
        runs = [(x.shape[0] // self.experts, x.shape[1]) for x in self.xs]  # groups, places of each
        bounds = [0, *accumulate(size for count, size in runs for _ in range(count))]
        places, tasks = bounds[-1], self.tasks
        by_task, step = d.view(places, tasks, -1), max(1, _CHUNK // places)
        buffer, all_parts = take(d.shape, d), take((self.groups, places, tasks, tasks), d)
        parts, begin, end, products = list[Tensor](), 0, 0, x
        for group, (first, last) in enumerate(pairwise(bounds)):
            if last > end:
                # The products of some groups at once, since a matrix product has to be wide to be quick.
                begin, end = first, max(last, bounds[bisect_right(bounds, first + step) - 1])
                products = product(x[:end], x[begin:end].T)
            agree = products[:last, first - begin : last - begin]
            mixed = torch.mm(agree, d[first:last], out=None if buffer is None else buffer[:last]).view(last, tasks, -1)
            out = None if all_parts is None else all_parts[group, :last]
            parts.append(torch.bmm(by_task[:last], mixed.mT, out=out))  # [places, K, K]
        if all_parts is None:
            all_parts = torch.stack([pad(part, (0, 0, 0, 0, 0, places - len(part))) for part in parts])
        by_run = all_parts.split([count * size for count, size in runs], 1)
        sums = [
            part.unflatten(1, (count, size)).sum(2).double() for (count, size), part in zip(runs, by_run, strict=True)
        ]
        return sums[0] if len(sums) == 1 else torch.cat(sums, 1)

    def products_with(self, weights: Tensor) -> Tensor:
        if self.kernel is not None:
            return self.kernel.products_with(weights)
        if self.has_rows:
            rows = self.as_rows().double()
            return weights @ rows @ rows.T
        weights = weights.view(len(weights), self.groups, self.tasks)
        sums, parts, group = list[Tensor](), list[Tensor](), 0
        cut = [
            (self._by_expert(x.double()), self._by_expert(d.double())) for x, d in zip(self.xs, self.ds, strict=True)
        ]
        for x, d in cut:  # [E, g, places, f]
            w = weights[:, group : group + x.shape[1]]
            group += x.shape[1]
            mixed = torch.einsum("sgk,egpko->segpo", w, d.unflatten(-1, (self.tasks, -1)))
            sums.append(torch.einsum("segpo,egpi->seoi", mixed, x))
        total = reduce(torch.add, sums)
        for x, d in cut:
            along = torch.einsum("seoi,egpi->segpo", total, x)
            parts.append(torch.einsum("segpo,egpko->sgk", along, d.unflatten(-1, (self.tasks, -1))))
        return torch.cat(parts, 1).flatten(1)

    def _by_expert(self, x: Tensor) -> Tensor:
        """View [g * E, places, f] as [E, g, places, f]."""
        by_group: Tensor = x.unflatten(0, (-1, self.experts))
        return by_group.transpose(0, 1)

    def combine(self, weights: Tensor) -> list[tuple[Tensor, Tensor]]:
        grad, column = self._sum(weights)  # [out, in] or [E, out, in]; with a bias there is one expert
        grads = []
        if self.bias is not None and column is not None:
            parameter, shape, chain = self.bias
            grads.append((parameter, undo(chain, column if column.shape == shape else column.reshape(shape))))
        parameter, shape, chain = self.weight
        is_matrix = len(shape) == 2
        if not self.use.left and chain and is_matrix and kind_of(node := chain[-1][0]).transposes(node):
            chain, shape = chain[:-1], shape[::-1]  # `weight.t()`: two transpositions undo each other
        elif not self.use.left:
            grad = grad.transpose(-1, -2)
        grads.append((parameter, undo(chain, grad if grad.shape == shape else grad.reshape(shape))))
        return grads

    def _sum(self, weights: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the weighted sum of the rows of the weight [out, in] or [E, out, in], and of the bias [out]."""
        if self.kernel is not None:
            weight, bias = self.kernel.sum(weights)
            return (weight[0] if self.experts == 1 else weight), bias
        if self.by_task is not None:
            by_task = weights.view(-1, self.tasks).T.reshape(-1)
            grad = (by_task @ self.by_task.flatten(0, 1).flatten(1)).view(self.inputs, -1).T
        else:
            flat = self._combine_factors(weights.view(-1, self.tasks)) if self.rows is None else weights @ self.rows
            grad = flat.view(-1, self.inputs) if self.experts == 1 else flat.view(self.experts, -1, self.inputs)
        return (grad, None) if self.bias is None else (grad.narrow(-1, 0, self.inputs - 1), grad.select(-1, -1))

    def _combine_factors(self, weights: Tensor) -> Tensor:
        """Return the weighted sum of rows that were not made. [E * out * in]"""
        grads, group = [], 0
        for x, d in zip(self.xs, self.ds, strict=True):
            x, d = self._by_expert(x), self._by_expert(d)  # [E, g, places, f]
            w = weights[group : group + x.shape[1], None].expand(*d.shape[:3], -1)  # [E, g, places, K]
            v = torch.bmm(w.reshape(-1, 1, self.tasks), d.reshape(-1, self.tasks, d.shape[3] // self.tasks))
            v, x = v.view(self.experts, -1, v.shape[2]), x.flatten(1, 2)  # [E, P, out], [E, P, in]
            grads += [product(v[0].T.contiguous(), x[0]) if self.experts == 1 else torch.bmm(v.mT, x)]
            group += w.shape[1]
        total: Tensor = sum(grads[1:], grads[0])
        return total.flatten()


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
