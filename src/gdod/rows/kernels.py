"""Compiled inner products and weighted sums of float32 rows on a CPU, for what `gdod._kernels` can do.

Only shapes and the number of threads decide what is done, so that a run that is resumed computes in the same way.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from gdod._kernels import compiled
from gdod.rows.cotangent import Cotangent
from gdod.rows.groups import Groups

if compiled is not None:
    compiled.find_threads()  # those of the OpenMP runtime that came with torch

KERNEL_ERROR = 1.0
"""How many times their last digit the inner products of kernels are rounded to."""
# The number of groups up to which inner products are made here.
_MOST_GROUPS = 64
# Groups from which on the vectors of an id are multiplied with those of other ids, in float32 (FEW_GROUPS in C).
_SEVERAL_GROUPS = 4
# Vectors that are multiplied at least where a second thread is to help.
_SHARED_WORK = 2**17


@dataclass(frozen=True)
class ProductKernel:
    """The rows of a weight that is used once, and of the bias added there, by what they are made of."""

    x: Tensor  # activations [E, places, in]
    deltas: Tensor  # cotangents [K, E, places, out] or [K, places, out]
    bias: bool
    cut: "_Cut"

    @staticmethod
    def of(x: Tensor, cotangent: Cotangent, bias: bool) -> "ProductKernel | None":
        """Return the kernel for a use whose activations are multiplied from the left, or None where torch has to do."""
        owner, groups, shape = cotangent.owner, cotangent.groups, cotangent.shape
        in_order = owner.dim == len(shape) - 2 and owner.inner * groups.examples == shape[-2]
        if compiled is None or not in_order or groups.count > _MOST_GROUPS or not shape.numel():
            return None
        if not _plain(x) or cotangent.dtype != torch.float32 or x.device != cotangent.device:
            return None
        return ProductKernel(x.contiguous(), cotangent.stacked.contiguous(), bias, _cut(groups, owner.inner))

    @property
    def is_precise(self) -> bool:
        """Whether inner products of the float32 rows are taken in float64."""
        return self.cut.groups == 1

    def gram(self) -> Tensor:
        """Return the inner products of the rows. [N, N]"""
        assert compiled is not None
        (experts, places, inputs), cut = self.x.shape, self.cut
        tasks, outputs = self.deltas.shape[0], self.deltas.shape[-1]
        if self.is_precise:
            return self._gram_of_tasks()
        rows, work = _cost(experts, places, inputs + self.bias, outputs, tasks, cut.groups, cut.largest)
        gram = torch.empty(cut.groups * tasks, cut.groups * tasks, dtype=torch.float64)
        compiled.product_gram(
            self.x.data_ptr(), self.deltas.data_ptr(), cut.bounds.data_ptr(), cut.groups, cut.largest, experts, places,
            inputs, outputs, self.bias, tasks, rows, gram.data_ptr(), _threads(work),
        )  # fmt: skip
        return gram

    def _gram_of_tasks(self) -> Tensor:
        """Return the same for a single group, whose rows are the task gradients. [K, K]"""
        assert compiled is not None
        experts, places, inputs = self.x.shape
        tasks, outputs = self.deltas.shape[0], self.deltas.shape[-1]
        gram = torch.empty(tasks, tasks, dtype=torch.float64)
        compiled.task_gram(
            self.x.data_ptr(), self.deltas.data_ptr(), experts, places, inputs, outputs, self.bias, tasks,
            gram.data_ptr(), _threads(experts * places * inputs * outputs * tasks // 16),
        )  # fmt: skip
        return gram

    def sum(self, weights: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the weighted sum of the rows: of the weight [E, out, in], and of the bias [out]."""
        assert compiled is not None
        experts, places, inputs = self.x.shape
        tasks, outputs = self.deltas.shape[0], self.deltas.shape[-1]
        weights = weights.contiguous()  # a name keeps it alive during the call
        weight = self.x.new_empty(experts, outputs, inputs)
        bias = self.x.new_empty(outputs) if self.bias else None
        compiled.product_sum(
            self.x.data_ptr(), self.deltas.data_ptr(), weights.data_ptr(), self.cut.group.data_ptr(),
            experts, places, inputs, outputs, tasks, weight.data_ptr(), 0 if bias is None else bias.data_ptr(),
            _threads(experts * places * inputs * outputs // 16),
        )  # fmt: skip
        return weight, bias

    def products_with(self, weights: Tensor) -> Tensor:
        """Return the inner products of all rows with weighted sums of them, in float64. [s, N]"""
        assert compiled is not None
        experts, places, inputs = self.x.shape
        weights = weights.contiguous()
        products = torch.empty_like(weights)
        compiled.product_with(
            self.x.data_ptr(), self.deltas.data_ptr(), self.cut.group.data_ptr(), experts, places, inputs,
            self.deltas.shape[-1], self.bias, self.deltas.shape[0], self.cut.groups, len(weights), weights.data_ptr(),
            products.data_ptr(),
        )  # fmt: skip
        return products


@dataclass(frozen=True)
class TableKernel:
    """The rows of tables, by the entries that a batch looks up."""

    ids: Tensor  # [E]
    group: Tensor  # [E]
    values: Tensor  # [K, E, d]
    groups: int

    @staticmethod
    def of(ids: Tensor, group: Tensor, values: Tensor, groups: int) -> "TableKernel | None":
        """Return the kernel for entries of tables, or None where torch has to do."""
        if compiled is None or groups > _MOST_GROUPS or not _plain(values) or values.shape[2] % 8 or not values.numel():
            return None
        return TableKernel(ids.long().contiguous(), group.contiguous(), values.contiguous(), groups)

    @property
    def is_precise(self) -> bool:
        """Whether inner products of the float32 rows are taken in float64: so are those of vectors in few groups."""
        return self.groups < _SEVERAL_GROUPS

    def gram(self) -> Tensor:
        """Return the inner products of the rows. [N, N]"""
        assert compiled is not None
        tasks, entries, width = self.values.shape
        gram = torch.empty(self.groups * tasks, self.groups * tasks, dtype=torch.float64)
        compiled.table_gram(
            self.ids.data_ptr(), self.group.data_ptr(), self.values.data_ptr(), entries, tasks, width, self.groups,
            gram.data_ptr(), _threads(entries * tasks * tasks * width // 2),
        )  # fmt: skip
        return gram

    def add_sum(self, first: int, ids: Tensor, weights: Tensor, grad: Tensor) -> None:
        """Add the weighted sum of the rows to the gradient of a table, for its entries from ``first`` on."""
        assert compiled is not None
        tasks, entries, width = self.values.shape
        ids, weights = ids.long().contiguous(), weights.contiguous()  # names keep them alive during the call
        compiled.table_sum(
            ids.data_ptr(), self.group[first:].data_ptr(), self.values[:, first:].data_ptr(), entries * width, len(ids),
            tasks, width, weights.data_ptr(), grad.data_ptr(),
        )  # fmt: skip


@dataclass(frozen=True)
class _Cut:
    """The places of a batch, cut into groups."""

    groups: int
    largest: int  # places in the largest group
    bounds: Tensor  # the first place of each group, and the end [groups + 1]
    group: Tensor  # of each place


@lru_cache(maxsize=64)
def _cut(groups: Groups, inner: int) -> _Cut:
    of_place = groups.of_example.repeat_interleave(inner)
    sizes = torch.bincount(of_place, minlength=groups.count)
    bounds = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
    return _Cut(groups.count, int(sizes.max()), bounds, of_place)


@lru_cache(maxsize=256)
def _cost(
    experts: int, places: int, inputs: int, outputs: int, tasks: int, groups: int, largest: int
) -> tuple[bool, int]:
    """Return whether it is quicker to make the rows, some columns at a time, and how many vectors are multiplied then.

    Measured on an AMD EPYC with AVX-512, the time of either way follows this number.
    """
    units = -(-groups // 16) * tasks
    rows = inputs * outputs * (units * largest + 8 * units * (units + 1))
    pairs = places * (places + largest) // 2
    between = pairs * (inputs + outputs * tasks) // 16 + groups * places * tasks**2 * outputs // 32
    by_rows = rows <= between or outputs % 16 != 0
    return by_rows, experts * (rows if by_rows else between)


def _threads(work: int) -> int:
    return torch.get_num_threads() if work >= _SHARED_WORK else 1


def _plain(x: Tensor) -> bool:
    return x.dtype == torch.float32 and x.device.type == "cpu" and not torch.is_grad_enabled()
