"""Gradients summed over ranks: dense ones in one buffer, of tables only the rows that were looked up."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gdod.ranks import Exchange
from gdod.rows.cotangent import working
from gdod.rows.distributed.column_exchange import Table, key_bits, keys_of
from gdod.rows.parts import sum_by_id
from gdod.rows.rows import Gradients
from gdod.rows.workspace import zeros_for


def sum_dense(exchange: Exchange, leaves: Sequence[Tensor], grads: Sequence[tuple[int, Tensor | None]]) -> Gradients:
    """Return the sums over ranks of gradients: each is a number of a parameter and what this rank has of it."""
    kinds: dict[tuple[torch.device, torch.dtype], list[tuple[int, Tensor | None]]] = {}
    for number, grad in grads:
        leaf = leaves[number]
        dtype = torch.float32 if leaf.dtype in (torch.bfloat16, torch.float16) else leaf.dtype
        kinds.setdefault((leaf.device, dtype), []).append((number, grad))
    sums: Gradients = []
    for (device, dtype), some in kinds.items():
        flat = torch.cat([_flat(grad, leaves[number]).to(device, dtype) for number, grad in some])
        parts = exchange.all_reduce(flat, "dense gradients").split([leaves[number].numel() for number, _ in some])
        sums += [(leaves[n], part.view(leaves[n].shape)) for (n, _), part in zip(some, parts, strict=True)]
    return sums


def _flat(grad: Tensor | None, like: Tensor) -> Tensor:
    if grad is None:
        return torch.zeros(like.numel(), dtype=like.dtype, device=like.device)
    return (grad.to_dense() if grad.is_sparse else grad).reshape(-1)


def from_owners(
    exchange: Exchange,
    owned: Sequence[tuple[Tensor, Tensor]],
    by_width: Sequence[Sequence[Table]],
    leaves: Sequence[Tensor],
    sparse: Mapping[int, bool],
) -> Gradients:
    """Return tables' gradients from the ids and sums that each owner has, width by width."""
    if not owned:
        return []
    dtype = torch.float64 if any(values.dtype == torch.float64 for _, values in owned) else torch.float32
    like = torch.empty(0, dtype=dtype, device=exchange.device)
    key = 8 // like.element_size()
    sizes = exchange.numbers([len(ids) for ids, _ in owned])
    widths = [values.shape[1] for _, values in owned]
    flat = torch.cat([torch.cat([key_bits(i, like), v.to(like)], 1).flatten() for i, v in owned])
    lengths = [[n * (key + w) for n, w in zip(some, widths, strict=True)] for some in sizes]
    parts = exchange.gather(flat, [sum(some) for some in lengths], "table gradients")
    pieces = [part.split(some) for part, some in zip(parts, lengths, strict=True)]
    grads: Gradients = []
    for place, width in enumerate(widths):
        entries = torch.cat([some[place].view(-1, key + width) for some in pieces])
        ids, order = keys_of(entries[:, :key]).sort()
        values = entries[order, key:]
        for table in by_width[place]:
            bounds = torch.tensor([table.first, table.first + table.length]).to(ids)
            low, high = torch.searchsorted(ids, bounds).tolist()
            leaf = leaves[table.number]
            own = (ids[low:high] - table.first).to(leaf.device)
            grads.append((leaf, _gradient(leaf, own, values[low:high].to(leaf), sparse[table.number])))
    return grads


def _gradient(table: Tensor, ids: Tensor, values: Tensor, sparse: bool) -> Tensor:
    if sparse:
        return torch.sparse_coo_tensor(ids.unsqueeze(0), values, table.shape, check_invariants=False)
    return zeros_for(table).index_add_(0, ids, values)


# Tables up to this many numbers are summed like any other parameter (unless their gradients are sparse).
_SMALL_TABLE = 4096


@dataclass(frozen=True)
class TableSums:
    """Sums over ranks the gradients of tables that each rank has from autograd, where they are not zero."""

    numbers: list[int]  # of the tables among the leaves
    ids: list[Tensor]  # looked up on this rank, each once, sorted by owner
    by_width: tuple[tuple[Table, ...], ...]
    counts: list[int]  # for each width how many ids go to each rank
    sparse: Mapping[int, bool]

    @staticmethod
    def of(
        looked_up: Mapping[int, Tensor], sparse: Mapping[int, bool], leaves: Sequence[Tensor], ranks: int
    ) -> "TableSums":
        """Take ids looked up in tables, by the table's number; ``sparse``: whether its gradient is to be."""
        tables = [n for n in sorted(looked_up) if sparse[n] or leaves[n].numel() > _SMALL_TABLE]
        by_width = tables_by_width([(n, leaves[n]) for n in tables])
        numbers = [table.number for some in by_width for table in some]
        ids, counts = [], []
        for some in by_width:
            here = [0] * ranks
            for table in some:
                distinct = looked_up[table.number]
                owner = (distinct + table.first) % ranks
                ids.append(distinct[owner.argsort(stable=True)])
                for rank, count in enumerate(torch.bincount(owner, minlength=ranks).tolist()):
                    here[rank] += count
            counts += here
        return TableSums(numbers, ids, by_width, counts, sparse)

    def run(
        self,
        exchange: Exchange,
        counts: Sequence[Sequence[int]],
        grads: Sequence[Tensor | None],
        leaves: Sequence[Tensor],
    ) -> Gradients:
        """Return the tables' gradients over all ranks, in order of ``numbers``. ``counts``: those of all ranks."""
        if not self.numbers:
            return []
        of_ids = dict(zip(self.numbers, zip(self.ids, grads, strict=True), strict=True))
        owned = []
        for place, tables in enumerate(self.by_width):
            ids, values = [], []
            for table in tables:
                own, grad = of_ids[table.number]
                ids.append(own.cpu() + table.first)
                values.append(working(_at(grad, own, leaves[table.number])))
            id_, value = torch.cat(ids), torch.cat(values).to(exchange.device)
            owner = id_ % exchange.ranks
            order = owner.argsort(stable=True)
            buffer = torch.cat([key_bits(id_[order], value), value[order]], 1)
            width = buffer.shape[1]
            at = slice(place * exchange.ranks, (place + 1) * exchange.ranks)
            sent = [count * width for count in counts[exchange.rank][at]]
            arriving = [some[at][exchange.rank] * width for some in counts]
            received = exchange.all_to_all(buffer.flatten(), sent, arriving, "rows of tables").view(-1, width)
            key = 8 // received.element_size()
            owned.append(sum_by_id(keys_of(received[:, :key]), received[:, key:]))
        return from_owners(exchange, owned, self.by_width, leaves, self.sparse)


def _at(grad: Tensor | None, ids: Tensor, table: Tensor) -> Tensor:
    """Return the gradient's rows of these ids. [U, d]"""
    if grad is None:
        return torch.zeros(len(ids), table.shape[1], dtype=table.dtype, device=table.device)
    if not grad.is_sparse:
        return grad[ids]
    ordered, order = ids.sort()
    values = torch.zeros(len(ids), table.shape[1], dtype=grad.dtype, device=grad.device)
    place = order[torch.searchsorted(ordered, grad._indices()[0])]
    return values.index_add_(0, place, grad._values())


def tables_by_width(tables: Sequence[tuple[int, Tensor]]) -> tuple[tuple[Table, ...], ...]:
    """Return tables sorted by width, the ids of those of one width made distinct."""
    by_width: dict[int, list[Table]] = {}
    for number, table in tables:
        others = by_width.setdefault(table.shape[1], [])
        first = others[-1].first + others[-1].length if others else 0
        others.append(Table(number, first, table.shape[0]))
    return tuple(tuple(by_width[width]) for width in sorted(by_width))
