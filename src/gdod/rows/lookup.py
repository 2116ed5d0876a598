"""Embedding tables. Only the rows of a table that a batch touches are ever looked at."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate

import torch
from torch import Tensor
from torch.autograd.graph import Node

from gdod.rows.blocks import Block, Only, sum_of_products
from gdod.rows.cotangent import Cotangent, working
from gdod.rows.graph import signed
from gdod.rows.groups import Groups, Owner
from gdod.rows.kernels import KERNEL_ERROR, TableKernel
from gdod.rows.uses import Use
from gdod.rows.workspace import take, zeros_for

# Numbers in the largest matrix of table rows that several groups share.
_SHARED_CHUNK = 2**24
# Vectors of a table for each one looked up, up to which ids address memory of the table's length and are not sorted.
_ADDRESSED = 64


@dataclass(frozen=True)
class Entries:
    """What a use takes out of a table: one entry for each id looked up."""

    ids: Tensor  # [E]
    places: Tensor | None = None  # the vector of the output that each entry was added to; None: one each [E]
    factor: Tensor | None = None  # the factor with which it was added [E, 1]
    padding: int = -1  # the id whose vector takes no gradient, if it is not negative

    def values(self, cotangent: Cotangent) -> Tensor:
        """Return the gradient of each entry. [K, E, d]"""
        deltas = working(cotangent.stacked)
        values = deltas if deltas.dim() == 3 else deltas.reshape(deltas.shape[0], -1, deltas.shape[-1])
        if self.places is not None:
            values = values[:, self.places]
        return values if self.factor is None else values * self.factor.to(values.dtype)

    def groups(self, cotangent: Cotangent) -> Tensor:
        """Return the group of each entry. [E]"""
        groups = _groups_of(cotangent.shape[:-1], cotangent.owner, cotangent.groups, self.ids.device)
        return groups if self.places is None else groups[self.places]


@lru_cache(maxsize=256)
def _groups_of(shape: torch.Size, owner: Owner, groups: Groups, device: torch.device) -> Tensor:
    """Return the group of each vector of an output, whose last dimension is left out of ``shape``."""
    of_index = groups.of_example[owner.examples_of(shape, groups.examples)]
    after = [1] * (len(shape) - owner.dim - 1)
    return of_index.view(-1, *after).expand(shape).reshape(-1).to(device)


class TableUse(Use):
    """The use of a table whose vectors are looked up by id."""

    def obstacle(self, node: Node) -> str | None:
        if node._saved_scale_grad_by_freq:  # type: ignore[attr-defined]
            return "the table scales gradients by frequency in the batch"
        return "an EmbeddingBag of mode 'max'" if getattr(node, "_saved_mode", 0) == 2 else None

    def rows(self, entries: Entries, cotangent: Cotangent, shape: torch.Size) -> Tensor:
        """Return the rows of the whole table, for one that is also used otherwise. [N, *shape]"""
        groups, ids = cotangent.groups.count, shape[0]
        values = entries.values(cotangent).transpose(0, 1)  # [E, K, d]
        rows = values.new_zeros(groups * ids, *values.shape[1:])
        rows.index_add_(0, entries.groups(cotangent) * ids + entries.ids, values)
        return rows.view(groups, ids, cotangent.tasks, -1).transpose(1, 2).reshape(-1, *shape)


@dataclass(frozen=True)
class Lookup(TableUse):
    """The use of a table in `torch.nn.Embedding`."""

    def allows(self, owner: Owner, shape: torch.Size, weight: torch.Size, examples: int) -> bool:
        return owner.dim < len(shape) - 1

    def load(self, node: Node) -> Entries:
        ids: Tensor = node._saved_indices  # type: ignore[attr-defined]
        ids = ids if ids.dim() == 1 else ids.reshape(-1)
        padding = signed(node._saved_padding_idx)  # type: ignore[attr-defined]
        return Entries(ids, padding=padding, factor=_without(padding, ids))


@dataclass(frozen=True)
class Bag(TableUse):
    """The use of a table in `torch.nn.EmbeddingBag`, of mode sum or mean."""

    def allows(self, owner: Owner, shape: torch.Size, weight: torch.Size, examples: int) -> bool:
        return owner.dim == 0

    def load(self, node: Node) -> Entries:
        ids: Tensor = node._saved_indices  # type: ignore[attr-defined]
        offsets: Tensor = node._saved_offsets  # type: ignore[attr-defined]
        padding = signed(node._saved_padding_idx)  # type: ignore[attr-defined]
        # The node keeps the bag of each id only for some kernels.
        bag = torch.searchsorted(offsets, torch.arange(ids.shape[0], device=ids.device).to(offsets), right=True) - 1
        factor = _without(padding, ids)
        if node._saved_mode == 1:  # type: ignore[attr-defined]
            counts = torch.bincount(bag, None if factor is None else factor.squeeze(1).double())
            mean = 1 / counts.clamp(min=1).double()[bag].unsqueeze(1)
            factor = mean if factor is None else mean * factor
        weights: Tensor | None = node._saved_per_sample_weights  # type: ignore[attr-defined]
        if weights is not None:
            factor = weights.unsqueeze(1) if factor is None else weights.unsqueeze(1) * factor
        return Entries(ids, bag, factor, padding)


def _without(padding: int, ids: Tensor) -> Tensor | None:
    """Return the factor of each entry that leaves out a padding id, whose vector takes no gradient. [E, 1]"""
    return (ids != padding).unsqueeze(1) if padding >= 0 else None


class Tables(Block):
    """The rows of all tables of one width: their uses follow each other, ids made distinct between tables."""

    def __init__(self, tables: Sequence[tuple[Tensor, bool, list[tuple[Entries, Cotangent]]]]) -> None:
        self.tables = [(table, sparse) for table, sparse, _ in tables]
        uses = [
            (number, entries, cotangent) for number, (_, _, uses) in enumerate(tables) for entries, cotangent in uses
        ]
        cotangent = uses[0][2]
        self.groups, self.tasks = cotangent.groups.count, cotangent.tasks
        self.uses = [(number, entries) for number, entries, _ in uses]
        *first_ids, self.rows = accumulate((table.shape[0] for table, _, _ in tables), initial=0)
        self.ids = _joined([entries.ids + first_ids[number] if number else entries.ids for number, entries, _ in uses])
        self.group = _joined([entries.groups(cotangent) for _, entries, cotangent in uses])  # [E]
        self.values = _joined([entries.values(cotangent) for _, entries, cotangent in uses], 1)  # [K, E, d]
        # Whether the uses are equally long and each has its entries group by group, as many in each.
        self.in_order = len({entries.ids.shape for _, entries, _ in uses}) == 1 and all(
            entries.places is None and cotangent.is_in_order for _, entries, cotangent in uses
        )
        self.kernel = TableKernel.of(self.ids, self.group, self.values, self.groups)

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        return tuple(table for table, _ in self.tables)

    @property
    def like(self) -> Tensor:
        return self.values

    @property
    def gram_error(self) -> float:
        return super().gram_error if self.kernel is None else KERNEL_ERROR

    def gram(self, precise: bool, only: Only = None) -> Tensor:
        if self.kernel is not None and only is None and (self.kernel.is_precise or not precise):
            return self.kernel.gram()
        # Rows of small tables are made. In large ones an id that occurs once meets only itself; the others are merged.
        values = self.values.double() if precise else self.values
        if only is not None:
            values = values * self._belongs_to(only).unsqueeze(1)
        if not self._is_small and self._repeated is None:
            return self._with_themselves(values)
        # All tasks' vectors of an entry are added in one go: `index_add_` takes its time by the index.
        entries = _laid_out(values.transpose(0, 1)).view(-1, self.tasks * values.shape[2])  # [E, K * d]
        if self._is_small:
            return sum_of_products(self._merged(entries, self.ids, self.group, self.rows), steady=True)
        assert self._repeated is not None
        at, number, count = self._repeated
        others = self._with_themselves(values.index_fill(1, at, 0))
        return others + sum_of_products(self._merged(entries.index_select(0, at), number, self.group[at], count))

    def products_with(self, weights: Tensor) -> Tensor:
        values, count = self.values.double(), len(weights)
        weights = weights.view(count, self.groups, self.tasks)[:, self.group]  # [s, E, K]
        distinct, number = torch.unique(self.ids, return_inverse=True)
        sums = values.new_zeros(count, len(distinct), values.shape[2])
        sums.index_add_(1, number, torch.einsum("sek,ked->sed", weights, values))
        parts = torch.einsum("sed,ked->sek", sums[:, number], values)
        return values.new_zeros(count, self.groups, self.tasks).index_add_(1, self.group, parts).flatten(1)

    @property
    def _is_small(self) -> bool:
        """Whether the tables have no more vectors than the batch looks up."""
        return self.rows <= self.ids.shape[0]

    @cached_property
    def _repeated(self) -> tuple[Tensor, Tensor, int] | None:
        """The entries whose id occurs more than once, the number of the id of each, and the number of such ids."""
        number, counts = self._numbered()
        several = counts > 1
        numbers = several.cumsum(0)  # from 1 on
        count = int(numbers[-1]) if len(numbers) else 0
        if not count:
            return None
        at = several.index_select(0, number).nonzero().squeeze(1)
        return at, numbers.index_select(0, number.index_select(0, at)) - 1, count

    def _numbered(self) -> tuple[Tensor, Tensor]:
        """Return a number for the id of each entry [E], and how often the id with each number occurs."""
        entries = self.ids.shape[0]
        if self.rows > _ADDRESSED * entries or self.ids.device.type != "cpu":
            _, number, counts = torch.unique(self.ids, return_inverse=True, return_counts=True)
            return number, counts
        # Each entry writes its number at its id; the last one there, whose number all of them read, counts for the id.
        # Only what was written is read. It takes a third of the time of sorting ids.
        slots = take((self.rows,), self.ids)
        slots = self.ids.new_empty(self.rows) if slots is None else slots
        number = slots.scatter_(0, self.ids, _numbers(entries)).index_select(0, self.ids)
        return number, torch.bincount(number, minlength=entries)

    def _with_themselves(self, values: Tensor) -> Tensor:
        """Return the Gram matrix of entries that meet only themselves: nothing between groups. [N, N]"""
        groups, tasks = self.groups, self.tasks
        if self.in_order:
            by_group = values.reshape(tasks, len(self.uses), groups, -1).permute(2, 0, 1, 3).reshape(groups, tasks, -1)
            own = torch.bmm(by_group, by_group.mT)  # [groups, K, K]
        else:
            entries = values.transpose(0, 1)  # [E, K, d]
            own = values.new_zeros(groups, tasks, tasks).index_add_(0, self.group, torch.bmm(entries, entries.mT))
        gram = own.unsqueeze(2) * _same_group(groups, own.dtype, own.device)  # [groups, K, groups, K]
        return gram.view(groups * tasks, groups * tasks)

    def _belongs_to(self, only: frozenset[int]) -> Tensor:
        """Return which entries are of the tables asked for. [E]"""
        wanted = [entries.ids.new_tensor(id(self.tables[number][0]) in only) for number, entries in self.uses]
        return torch.cat([one.expand(entries.ids.shape) for one, (_, entries) in zip(wanted, self.uses, strict=True)])

    def _merged(self, entries: Tensor, number: Tensor, group: Tensor, ids: int) -> Iterator[Tensor]:
        """Yield the rows over numbered ids, some ids at a time, from the entries' vectors [E, K * d]. [N, ids * d]"""
        groups, tasks, width = self.groups, self.tasks, entries.shape[1] // self.tasks
        step = max(1, _SHARED_CHUNK // (groups * tasks * width))
        # Memory is kept for small tables alone: how many ids repeat in a large one changes from step to step.
        laid_out = _laid_out if ids == self.rows else Tensor.contiguous
        for first in range(0, ids, step):
            count = min(step, ids - first)
            some, its_number, its_group = entries, number, group
            if count < ids:
                inside = (number >= first) & (number < first + count)
                some, its_number, its_group = entries[inside], number[inside] - first, group[inside]
            merged = entries.new_zeros(groups * count, tasks * width)
            merged.index_add_(0, torch.add(its_number, its_group, alpha=count), some)
            by_task = merged.view(groups, count, tasks, width).transpose(1, 2)
            yield laid_out(by_task).view(groups * tasks, count * width)

    def combine(self, weights: Tensor) -> list[tuple[Tensor, Tensor]]:
        plain = all(t.dtype == torch.float32 and t.is_contiguous() and not sparse for t, sparse in self.tables)
        if self.kernel is not None and plain:
            return self._sum_by_kernel(self.kernel, weights)
        if self.in_order and len(self.uses) == 1:
            by_group = self.values.reshape(self.tasks, self.groups, -1).transpose(0, 1)  # [groups, K, entries * d]
            summed = torch.bmm(weights.view(self.groups, 1, self.tasks), by_group).view(-1, self.values.shape[2])
        else:
            each = weights.view(self.groups, self.tasks).T[:, self.group]  # [K, E]
            summed = (each.unsqueeze(2) * self.values).sum(0)  # [E, d]
        return self._spread(summed)

    def _sum_by_kernel(self, kernel: TableKernel, weights: Tensor) -> list[tuple[Tensor, Tensor]]:
        grads, first = [(table, zeros_for(table)) for table, _ in self.tables], 0
        for number, entries in self.uses:
            kernel.add_sum(first, entries.ids, weights, grads[number][1])
            first += len(entries.ids)
        return grads

    def _spread(self, summed: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return the tables with their gradients, from the gradient of each entry [E, d]."""
        parts: list[list[tuple[Entries, Tensor]]] = [[] for _ in self.tables]
        by_use = summed.split([entries.ids.shape[0] for _, entries in self.uses])
        for (number, entries), values in zip(self.uses, by_use, strict=True):
            parts[number].append((entries, values))
        tables = zip(self.tables, parts, strict=True)
        return [(table, (_sparse if sparse else _dense)(table, uses)) for (table, sparse), uses in tables]


@lru_cache(maxsize=64)
def _numbers(count: int) -> Tensor:
    return torch.arange(count)


@lru_cache(maxsize=4)  # with a group for each example they are large
def _same_group(groups: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.eye(groups, dtype=dtype, device=device).view(groups, 1, groups, 1)


def _laid_out(x: Tensor) -> Tensor:
    """Return the tensor with its numbers in order, in memory that is kept from step to step."""
    buffer = take(x.shape, x)
    return x.contiguous() if buffer is None else buffer.copy_(x)


def _joined(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(list(tensors), dim)


def _dense(table: Tensor, uses: list[tuple[Entries, Tensor]]) -> Tensor:
    ids, values = _joined([entries.ids for entries, _ in uses]), _joined([values for _, values in uses])
    return zeros_for(table).index_add_(0, ids, values.to(table.dtype))


def _sparse(table: Tensor, uses: list[tuple[Entries, Tensor]]) -> Tensor:
    kept = [(entries.ids != entries.padding) if entries.padding >= 0 else None for entries, _ in uses]
    ids = torch.cat([e.ids if k is None else e.ids[k] for (e, _), k in zip(uses, kept, strict=True)])
    values = torch.cat([v if k is None else v[k] for (_, v), k in zip(uses, kept, strict=True)])
    return torch.sparse_coo_tensor(ids.unsqueeze(0), values.to(table.dtype), table.shape, check_invariants=False)
