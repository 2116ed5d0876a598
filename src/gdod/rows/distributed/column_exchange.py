"""How rows travel between processes, so that each ends up with some columns of all rows.

The columns of M are dealt out to ranks: then each rank works out a Gram matrix over its own columns, and
the sum over ranks is that of all rows. There are three kinds of columns:

- those of parameters whose rows are a matrix: rank s gets the s-th part of the columns;
- those of layers where activations and cotangents are smaller than the rows made of them: every rank
  gets all activations, and rank s the s-th part of the outputs' cotangents;
- those of tables: the owner of an id, rank id mod W, gets all entries with it.

Nothing is sent here: an `ExchangeLayout` says how much each rank sends to each, `pack` makes one buffer of what a
rank sends, and `Columns` reads what came from all ranks.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from gdod.rows.blocks import Block, Only, symmetric_product
from gdod.rows.cotangent import Cotangent
from gdod.rows.groups import Groups, Owner
from gdod.rows.lookup import Entries, Tables
from gdod.rows.parts import WITHOUT, InGroup, Layer, Merged, Slice, fill_groups, matrix_of, sum_by_id
from gdod.rows.products import Products
from gdod.rows.uses import Contraction


@dataclass(frozen=True)
class Table:
    """A table among those of its width, whose ids follow each other."""

    number: int  # among the parameters
    first: int  # id
    length: int


@dataclass(frozen=True)
class ExchangeLayout:
    """What all ranks have, as every one of them knows it: so it follows what each sends to each."""

    rank: int
    slices: tuple[Slice, ...]
    groups: int
    tasks: int
    layers: tuple[tuple[Layer, ...], ...]  # of each rank, alike but for places; () without examples
    entries: tuple[tuple[tuple[int, ...], ...], ...]  # of each rank, for each width, how many go to each rank
    widths: tuple[int, ...]
    dtype: torch.dtype

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return len(self.slices)

    @property
    def rows(self) -> int:
        """The number of rows of the whole batch, N."""
        return self.groups * self.tasks

    @cached_property
    def common(self) -> tuple[Layer, ...]:
        """The layers, as any rank with examples has them."""
        return next((layers for layers in self.layers if layers), ())

    @cached_property
    def as_factors(self) -> tuple[int, ...]:
        """The places among the layers of those that send activations and cotangents."""
        return tuple(number for number, layer in enumerate(self.common) if layer.outputs and self._cheaper(number))

    @cached_property
    def as_rows(self) -> tuple[int, ...]:
        """The places of the layers that send rows."""
        return tuple(number for number in range(len(self.common)) if number not in self.as_factors)

    def _cheaper(self, number: int) -> bool:
        layer, others = self.common[number], self.ranks - 1
        rows = sum(part.groups.count for part in self.slices) * self.tasks * layer.size * others / self.ranks
        vectors = sum(
            part.examples * layers[number].places
            for part, layers in zip(self.slices, self.layers, strict=True)
            if layers
        )
        each = layer.activations * others + self.tasks * layer.outputs * others / self.ranks
        return vectors * layer.experts * each < rows

    @cached_property
    def columns(self) -> int:
        """The number of columns of the rows that are sent as a matrix."""
        return sum(self.common[number].size for number in self.as_rows)

    def share(self, size: int, rank: int) -> slice:
        """Return the part of ``size`` columns that a rank gets."""
        return slice(size * rank // self.ranks, size * (rank + 1) // self.ranks)

    @property
    def key(self) -> int:
        """The length of an entry's id and group, in numbers of the buffer."""
        return 8 // self.dtype.itemsize

    def sizes(self, source: int, target: int) -> Iterator[list[int]]:
        """Yield the shapes of all that ``source`` sends to ``target``, in order."""
        part, layers = self.slices[source], self.layers[source]
        if layers:
            columns = self.share(self.columns, target)
            yield [part.groups.count * self.tasks, columns.stop - columns.start]
            for number in self.as_factors:
                layer = layers[number]
                outputs = self.share(layer.outputs, target)
                for _, groups, size in part.groups.runs():
                    places = size * layer.places
                    yield [groups, layer.experts, places, layer.activations]
                    yield [groups, layer.experts, places, self.tasks, outputs.stop - outputs.start]
        for width, counts in zip(self.widths, self.entries[source], strict=True):
            yield [counts[target], self.key + self.tasks * width]

    def total(self, source: int, target: int) -> int:
        """Return how many numbers ``source`` sends to ``target``."""
        return sum(torch.Size(size).numel() for size in self.sizes(source, target))


def key_bits(keys: Tensor, like: Tensor) -> Tensor:
    """Return whole numbers as floating-point ones of the same bits, to be sent in one buffer. [E, 1 or 2]"""
    return keys.to(like.device).contiguous().view(like.dtype).view(len(keys), 8 // like.element_size())


def keys_of(bits: Tensor) -> Tensor:
    """Return what `key_bits` was given. [E]"""
    return bits.detach().contiguous().view(torch.int64).view(-1)


def pack(
    layout: ExchangeLayout, blocks: Sequence[Block], merged: Sequence[Merged], like: Tensor
) -> tuple[Tensor, list[int]]:
    """Return all that this rank sends, and how much of it to each rank. ``blocks``: those of ``layout.common``."""
    rows = [matrix_of(blocks[number]).to(like) for number in layout.as_rows] if blocks else []
    matrix = torch.cat(rows, 1) if rows else like.new_zeros(0, layout.columns)
    parts: list[Tensor] = []
    sizes = []
    begins = [0] * len(merged)
    for target in range(layout.ranks):
        before = len(parts)
        parts.append(matrix[:, layout.share(layout.columns, target)])
        for number in layout.as_factors if blocks else ():
            parts += _factors(layout, blocks[number], target)
        for number, entries in enumerate(merged):
            some = slice(begins[number], begins[number] + entries.counts[target])
            begins[number] = some.stop
            parts.append(torch.cat([key_bits(entries.keys[some], like), entries.values[some].to(like)], 1))
        sizes.append(sum(part.numel() for part in parts[before:]))
    return torch.cat([part.reshape(-1).to(like) for part in parts]), sizes


def _factors(layout: ExchangeLayout, block: Block, target: int) -> Iterator[Tensor]:
    assert isinstance(block, Products)
    outputs = block.ds[0].shape[-1] // block.tasks
    for x, d in zip(block.xs, block.ds, strict=True):
        yield x if block.bias is None else x[..., :-1]
        yield d.unflatten(-1, (block.tasks, outputs))[..., layout.share(outputs, target)]


class Columns:
    """This rank's columns of the contributions of all groups."""

    def __init__(
        self, layout: ExchangeLayout, received: Tensor, parameters: Sequence[Tensor], tables: Sequence[Sequence[Table]]
    ):
        """Read what was received from all ranks. ``tables``: those of each width."""
        self.layout, self.parameters = layout, parameters
        read = [self._read(part, source) for source, part in enumerate(self._by_source(received))]
        self.rows = self._joined_rows(received, read)
        self.layers = [self._joined_factors(place, read) for place in range(len(layout.as_factors))]
        self.tables = [
            Owned(layout, torch.cat([parts[place - len(tables)] for parts in read]), width, tables[place])
            for place, width in enumerate(layout.widths)
        ]

    def gram(self, precise: bool, only: Only = None) -> Tensor:
        """Return the inner products over these columns, as float64. [N, N]"""
        numbers = None if only is None else {n for n, parameter in enumerate(self.parameters) if id(parameter) in only}
        rows = self.rows if numbers is None else self.rows * self._belong_to(numbers)
        grams = [symmetric_product(rows.double() if precise else rows)]
        grams += [layer.gram(precise, only) for layer in self.layers if layer is not None]
        grams += [table.gram(precise, numbers) for table in self.tables]
        return torch.stack([gram.double() for gram in grams]).sum(0)

    def _by_source(self, received: Tensor) -> list[Tensor]:
        layout = self.layout
        sizes = [layout.total(source, layout.rank) for source in range(layout.ranks)]
        return list(received.split(sizes))

    def _read(self, part: Tensor, source: int) -> list[Tensor]:
        shapes = list(self.layout.sizes(source, self.layout.rank))
        pieces = part.split([torch.Size(size).numel() for size in shapes])
        return [piece.view(size) for piece, size in zip(pieces, shapes, strict=True)]

    def _joined_rows(self, like: Tensor, read: list[list[Tensor]]) -> Tensor:
        """Return the contributions; that of a group in several ranks is the sum of what each has. [N, columns]"""
        layout, tasks = self.layout, self.layout.tasks
        mine = layout.share(layout.columns, layout.rank)
        rows = like.new_zeros(layout.rows, mine.stop - mine.start)
        for part, layers, pieces in zip(layout.slices, layout.layers, read, strict=True):
            if layers:
                first = part.first * tasks
                rows[first : first + len(pieces[0])] += pieces[0]
        return rows

    def _belong_to(self, numbers: set[int]) -> Tensor:
        """Return 1 for the columns of these parameters, 0 for others. [columns]"""
        layout, owners = self.layout, []
        for layer in (layout.common[number] for number in layout.as_rows):
            inside = self.rows.new_full((layer.size // layer.inputs, layer.inputs), float(layer.weight in numbers))
            if layer.bias != WITHOUT:
                inside[:, -1] = float(layer.bias in numbers)
            owners.append(inside.flatten())
        mine = layout.share(layout.columns, layout.rank)
        return torch.cat(owners)[mine] if owners else self.rows.new_zeros(0)

    def _joined_factors(self, place: int, read: list[list[Tensor]]) -> Products | None:
        """Return a layer with all examples and some of its outputs. Groups are made equal in size by zeros."""
        layout, number = self.layout, self.layout.as_factors[place]
        layer = layout.common[number]
        mine = layout.share(layer.outputs, layout.rank)
        outputs = mine.stop - mine.start
        if outputs == 0:
            return None
        runs = list(self._runs(place, read))
        used = [0] * layout.groups
        for group, x, _ in runs:
            for one in range(group, group + len(x)):
                used[one] += x.shape[2]
        xs, ds = fill_groups(runs, 0, layout.groups, max(used))
        cotangent = Cotangent(
            ds.permute(3, 1, 0, 2, 4).flatten(2, 3),  # [K, E, M, out]
            Groups(layout.groups * max(used), layout.groups),
            Owner(1, 1),
        )
        x = xs.transpose(0, 1).flatten(1, 2)  # [E, M, in]
        weight = self.parameters[layer.weight]
        bias = None if layer.bias == WITHOUT else (self.parameters[layer.bias], torch.Size([outputs]), ())
        return Products([(Contraction(left=False, saved=""), x, cotangent)], (weight, torch.Size([outputs]), ()), bias)

    def _runs(self, place: int, read: list[list[Tensor]]) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Yield (first group, activations, cotangents) of all runs of equally large groups of all ranks."""
        for part, layers, pieces in zip(self.layout.slices, self.layout.layers, read, strict=True):
            if not layers:
                continue
            runs = list(part.groups.runs())
            first, at = part.first, 1 + 2 * len(runs) * place
            for number, (_, groups, _) in enumerate(runs):
                yield first, pieces[at + 2 * number], pieces[at + 2 * number + 1]
                first += groups


class Owned:
    """All entries of the ids that this rank owns, of tables of one width."""

    def __init__(self, layout: ExchangeLayout, entries: Tensor, width: int, tables: Sequence[Table]) -> None:
        self.layout, self.width, self.tables = layout, width, tables
        key = keys_of(entries[:, : layout.key])
        self.ids = key.div(layout.groups, rounding_mode="floor")
        self.group = key % layout.groups
        self.values = entries[:, layout.key :].unflatten(1, (layout.tasks, width))  # [E, K, d]

    def gram(self, precise: bool, only: set[int] | None) -> Tensor:
        """Return the inner products over these tables, or those of them with certain numbers. [N, N]"""
        groups = Groups(1, self.layout.groups)
        tables: list[tuple[Tensor, bool, list[tuple[Entries, Cotangent]]]] = []
        for table in self.tables:
            inside = (self.ids >= table.first) & (self.ids < table.first + table.length)
            if (only is None or table.number in only) and bool(inside.any()):
                # An owner has every W-th id: closed up, so that a small table is seen to be one.
                ids = (self.ids[inside] - table.first).div(self.layout.ranks, rounding_mode="floor")
                cotangent = Cotangent(self.values[inside].transpose(0, 1), groups, Owner(0, 1))
                stands_for = self.values.new_empty(-(-table.length // self.layout.ranks), 0)
                tables.append((stands_for, False, [(InGroup(ids, self.group[inside]), cotangent)]))
        if not tables:
            return torch.zeros(self.layout.rows, self.layout.rows, dtype=self.values.dtype, device=self.values.device)
        return Tables(tables).gram(precise)

    def combine(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Return ids, each once, and the weighted sum of their entries. [U], [U, d]"""
        own = weights.to(self.values).view(self.layout.groups, self.layout.tasks)[self.group]  # [E, K]
        summed = (own.unsqueeze(2) * self.values).sum(1)
        return sum_by_id(self.ids, summed)
