"""How rows travel between processes, so that each ends up with some columns of all rows.

The columns of M are dealt out to ranks: then each rank works out a Gram matrix over its own columns, and
the sum over ranks is that of all rows. There are three kinds of columns:

- those of parameters whose rows are a matrix: rank s gets the s-th part of the columns;
- those of layers where activations and cotangents are smaller than the rows made of them: every rank
  gets all activations, and rank s the s-th part of the outputs' cotangents;
- those of tables: the owner of an id, rank id mod W, gets all entries with it.

Nothing here talks: a `Manifest` says how much a rank will send, `pack` makes one buffer of it, `unpack`
reads what came from all ranks.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from gdod.rows.blocks import Block, Dense, Only, symmetric_product
from gdod.rows.cotangent import Cotangent
from gdod.rows.distributed.exchange import digest
from gdod.rows.groups import Groups, Owner
from gdod.rows.lookup import Entries, Tables
from gdod.rows.products import Products
from gdod.rows.uses import Contraction

_WITHOUT = -1  # in place of a bias's number


@dataclass(frozen=True)
class Layer:
    """A block whose rows are a matrix or can be made one, described by numbers so that it can be told."""

    weight: int  # number among the parameters
    bias: int
    experts: int
    inputs: int  # of rows that are a matrix already: their length
    outputs: int  # 0 for those
    view: int  # a digest of the views in between: rows of one layer must be laid out alike
    places: int  # vectors that an example has

    @property
    def size(self) -> int:
        return self.experts * self.inputs * max(self.outputs, 1)

    @property
    def parameters(self) -> list[int]:
        return [self.weight] if self.bias == _WITHOUT else [self.weight, self.bias]

    @property
    def numbers(self) -> list[int]:
        return [self.weight, self.bias, self.experts, self.inputs, self.outputs, self.view, self.places]

    @property
    def activations(self) -> int:
        """Inputs that have to travel: that of a bias is always 1."""
        return self.inputs - (self.bias != _WITHOUT)


@dataclass(frozen=True)
class Table:
    """A table among those of its width, whose ids follow each other."""

    number: int  # among the parameters
    first: int  # id
    length: int


@dataclass(frozen=True)
class Slice:
    """What a rank has of the batch: its examples, and the groups they lie in."""

    start: int
    examples: int
    first: int  # group
    groups: Groups


@dataclass(frozen=True)
class Shape:
    """What every rank knows about all of them."""

    rank: int
    slices: tuple[Slice, ...]
    groups: int
    tasks: int
    layers: tuple[tuple[Layer, ...], ...]  # of each rank; the same but for places. None of a rank without examples
    entries: tuple[tuple[tuple[int, ...], ...], ...]  # of each rank, for each width, how many go to each rank
    widths: tuple[int, ...]
    dtype: torch.dtype

    @property
    def ranks(self) -> int:
        return len(self.slices)

    @property
    def rows(self) -> int:
        return self.groups * self.tasks

    @cached_property
    def common(self) -> tuple[Layer, ...]:
        """The layers as any rank with examples has them."""
        return next((layers for layers in self.layers if layers), ())

    @cached_property
    def as_factors(self) -> tuple[int, ...]:
        """Numbers of the layers whose activations and cotangents travel."""
        return tuple(number for number, layer in enumerate(self.common) if layer.outputs and self._cheaper(number))

    @cached_property
    def as_rows(self) -> tuple[int, ...]:
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
        """Of all rows that travel as a matrix."""
        return sum(self.common[number].size for number in self.as_rows)

    def share(self, size: int, rank: int) -> slice:
        """The part of ``size`` columns that a rank gets."""
        return slice(size * rank // self.ranks, size * (rank + 1) // self.ranks)

    @property
    def key(self) -> int:
        """How many numbers of the buffer an entry's id and group take."""
        return 8 // self.dtype.itemsize

    def sizes(self, source: int, target: int) -> Iterator[list[int]]:
        """Shapes of all that ``source`` sends to ``target``, in order."""
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
        return sum(torch.Size(size).numel() for size in self.sizes(source, target))


def layer_of(block: Block, numbers: dict[int, int], groups: Groups) -> Layer:
    """Describes a block; ``numbers``: of the parameters by their ids."""
    view = view_of(block)
    if isinstance(block, Products):
        bias = _WITHOUT if block.bias is None else numbers[id(block.bias[0])]
        if not block.xs:  # nothing is left but rows
            vectors = block.like.shape[1] // block.inputs
            return Layer(numbers[id(block.weight[0])], bias, vectors, block.inputs, 0, view, 0)
        outputs = block.ds[0].shape[-1] // block.tasks
        _, _, size = next(groups.runs())
        places = block.xs[0].shape[1] // size
        return Layer(numbers[id(block.weight[0])], bias, block.experts, block.inputs, outputs, view, places)
    assert isinstance(block, Dense)
    return Layer(numbers[id(block.parameter)], _WITHOUT, 1, block.rows.shape[1], 0, view, 0)


def view_of(block: Block) -> int:
    """How a block's parameters are laid out in its rows: as a number, the same in every process."""
    if isinstance(block, Products):
        chains = [block.weight[2], () if block.bias is None else block.bias[2]]
        left = block.use.left
    else:
        assert isinstance(block, Dense)
        chains, left = [block.chain], False
    kinds = [[type(node).__name__ for node, _ in chain] for chain in chains]
    return digest(f"{left}{kinds}")


def apart(blocks: Sequence[Block], count: int, parameters: Sequence[Tensor], dtype: torch.dtype) -> list[Block]:
    """The ``count`` rows of each parameter in its own shape, in whatever way blocks have found them."""
    rows = {id(p): p.detach().new_zeros(count, p.numel(), dtype=dtype) for p in parameters}
    for block in blocks:
        for row, unit in enumerate(torch.eye(count).to(block.like)):
            for parameter, grad in block.combine(unit):
                rows[id(parameter)][row] = grad.reshape(-1)
    return [Dense(p, rows[id(p)], p.shape, []) for p in parameters]


@dataclass(frozen=True)
class Merged:
    """Entries of tables of one width, one for each id and group, sorted by owner."""

    keys: Tensor  # (first id of the table + id) * groups + group [E]
    values: Tensor  # [E, K * d]
    counts: tuple[int, ...]  # for each rank


def merge(
    blocks: Sequence[Tables], first_ids: dict[int, int], part: Slice, groups: int, tasks: int, ranks: int
) -> Merged:
    """Adds up what a rank has for one id in one group. ``first_ids``: of tables by their `id`."""
    keys, values = [], []
    for block in blocks:
        slow = block.tasks != tasks or block.groups != part.groups.count  # every entry has a value in each row
        own = block.values.unflatten(0, (part.groups.count, tasks)) if slow else block.values.unsqueeze(0)
        at = 0
        for number, entries in block.uses:
            ids = entries.ids
            value = own[:, :, at : at + len(ids)]  # [L or 1, K, E, d]
            group = block.group[at : at + len(ids)]
            at += len(ids)
            if entries.padding >= 0:
                kept = ids != entries.padding
                ids, group, value = ids[kept], group[kept], value[:, :, kept]
            named = ids.long() + first_ids[id(block.tables[number][0])]
            for run, some in enumerate(value):
                keys.append(named * groups + (group + run + part.first))
                values.append(some.transpose(0, 1).flatten(1))  # [E, K * d]
    key, value = torch.cat(keys), torch.cat(values)
    distinct, place = torch.unique(key, return_inverse=True)
    total = value.new_zeros(len(distinct), value.shape[1]).index_add(0, place, value)
    owner = distinct.div(groups, rounding_mode="floor") % ranks
    order = owner.argsort(stable=True)
    counts = torch.bincount(owner, minlength=ranks)
    return Merged(distinct[order], total[order], tuple(counts.tolist()))


def key_bits(keys: Tensor, like: Tensor) -> Tensor:
    """Whole numbers as floating-point ones of the same bits: they travel in one buffer. [E, 1 or 2]"""
    return keys.to(like.device).contiguous().view(like.dtype).view(len(keys), 8 // like.element_size())


def keys_of(bits: Tensor) -> Tensor:
    return bits.detach().contiguous().view(torch.int64).view(-1)


def pack(shape: Shape, blocks: Sequence[Block], merged: Sequence[Merged], like: Tensor) -> tuple[Tensor, list[int]]:
    """All that this rank sends, and how much of it to each rank. ``blocks``: those of ``shape.common``."""
    rows = [_matrix(blocks[number]).to(like) for number in shape.as_rows] if blocks else []
    matrix = torch.cat(rows, 1) if rows else like.new_zeros(0, shape.columns)
    parts: list[Tensor] = []
    sizes = []
    begins = [0] * len(merged)
    for target in range(shape.ranks):
        before = len(parts)
        parts.append(matrix[:, shape.share(shape.columns, target)])
        for number in shape.as_factors if blocks else ():
            parts += _factors(shape, blocks[number], target)
        for number, entries in enumerate(merged):
            some = slice(begins[number], begins[number] + entries.counts[target])
            begins[number] = some.stop
            parts.append(torch.cat([key_bits(entries.keys[some], like), entries.values[some].to(like)], 1))
        sizes.append(sum(part.numel() for part in parts[before:]))
    return torch.cat([part.reshape(-1).to(like) for part in parts]), sizes


def _matrix(block: Block) -> Tensor:
    """[rows, columns]"""
    if isinstance(block, Products):
        return block.as_rows()
    assert isinstance(block, Dense)
    return block.rows


def _factors(shape: Shape, block: Block, target: int) -> Iterator[Tensor]:
    assert isinstance(block, Products)
    outputs = block.ds[0].shape[-1] // block.tasks
    for x, d in zip(block.xs, block.ds, strict=True):
        yield x if block.bias is None else x[..., :-1]
        yield d.unflatten(-1, (block.tasks, outputs))[..., shape.share(outputs, target)]


class Columns:
    """This rank's columns of all rows."""

    def __init__(self, shape: Shape, received: Tensor, parameters: Sequence[Tensor], tables: Sequence[Sequence[Table]]):
        """``tables``: those of each width."""
        self.shape, self.parameters = shape, parameters
        read = [self._read(part, source) for source, part in enumerate(self._by_source(received))]
        self.rows = self._joined_rows(received, read)
        self.layers = [self._joined_factors(received, place, read) for place in range(len(shape.as_factors))]
        self.tables = [
            Owned(shape, torch.cat([parts[place - len(tables)] for parts in read]), width, tables[place])
            for place, width in enumerate(shape.widths)
        ]

    def gram(self, precise: bool, only: Only = None) -> Tensor:
        """[N, N], float64"""
        numbers = None if only is None else {n for n, parameter in enumerate(self.parameters) if id(parameter) in only}
        rows = self.rows if numbers is None else self.rows * self._belong_to(numbers)
        found = [symmetric_product(rows.double() if precise else rows)]
        found += [layer.gram(precise, only) for layer in self.layers if layer is not None]
        found += [table.gram(precise, numbers) for table in self.tables]
        return torch.stack([gram.double() for gram in found]).sum(0)

    def _by_source(self, received: Tensor) -> list[Tensor]:
        shape = self.shape
        sizes = [shape.total(source, shape.rank) for source in range(shape.ranks)]
        return list(received.split(sizes))

    def _read(self, part: Tensor, source: int) -> list[Tensor]:
        shapes = list(self.shape.sizes(source, self.shape.rank))
        pieces = part.split([torch.Size(size).numel() for size in shapes])
        return [piece.view(size) for piece, size in zip(pieces, shapes, strict=True)]

    def _joined_rows(self, like: Tensor, read: list[list[Tensor]]) -> Tensor:
        """[N, columns]. A group whose examples lie in several ranks gets its row from all of them."""
        shape, tasks = self.shape, self.shape.tasks
        mine = shape.share(shape.columns, shape.rank)
        rows = like.new_zeros(shape.rows, mine.stop - mine.start)
        for part, layers, found in zip(shape.slices, shape.layers, read, strict=True):
            if layers:
                first = part.first * tasks
                rows[first : first + len(found[0])] += found[0]
        return rows

    def _belong_to(self, numbers: set[int]) -> Tensor:
        """1 for the columns of these parameters, 0 for others. [columns]"""
        shape, owners = self.shape, []
        for layer in (shape.common[number] for number in shape.as_rows):
            inside = self.rows.new_full((layer.size // layer.inputs, layer.inputs), float(layer.weight in numbers))
            if layer.bias != _WITHOUT:
                inside[:, -1] = float(layer.bias in numbers)
            owners.append(inside.flatten())
        mine = shape.share(shape.columns, shape.rank)
        return torch.cat(owners)[mine] if owners else self.rows.new_zeros(0)

    def _joined_factors(self, like: Tensor, place: int, read: list[list[Tensor]]) -> Products | None:
        """A layer with all examples and some of its outputs. Groups are made equal in size by zeros."""
        shape, number = self.shape, self.shape.as_factors[place]
        layer = shape.common[number]
        mine = shape.share(layer.outputs, shape.rank)
        outputs = mine.stop - mine.start
        if outputs == 0:
            return None
        runs = list(self._runs(place, read))
        used = [0] * shape.groups
        for group, x, _ in runs:
            for one in range(group, group + len(x)):
                used[one] += x.shape[2]
        most = max(used)
        xs = like.new_zeros(shape.groups, layer.experts, most, layer.activations)
        ds = like.new_zeros(shape.groups, layer.experts, most, shape.tasks, outputs)
        at = [0] * shape.groups
        for group, x, d in runs:
            groups, begin = slice(group, group + len(x)), at[group]  # only a part of a group can meet another
            xs[groups, :, begin : begin + x.shape[2]] = x
            ds[groups, :, begin : begin + x.shape[2]] = d
            for one in range(group, group + len(x)):
                at[one] += x.shape[2]
        cotangent = Cotangent(
            ds.permute(3, 1, 0, 2, 4).flatten(2, 3),  # [K, E, M, out]
            Groups(shape.groups * most, shape.groups),
            Owner(1, 1),
        )
        x = xs.transpose(0, 1).flatten(1, 2)  # [E, M, in]
        weight = self.parameters[layer.weight]
        bias = None if layer.bias == _WITHOUT else (self.parameters[layer.bias], torch.Size([outputs]), ())
        return Products([(Contraction(left=False, saved=""), x, cotangent)], (weight, torch.Size([outputs]), ()), bias)

    def _runs(self, place: int, read: list[list[Tensor]]) -> Iterator[tuple[int, Tensor, Tensor]]:
        """(first group, activations, cotangents) of all runs of equally large groups of all ranks."""
        for part, layers, found in zip(self.shape.slices, self.shape.layers, read, strict=True):
            if not layers:
                continue
            runs = list(part.groups.runs())
            first, at = part.first, 1 + 2 * len(runs) * place
            for number, (_, groups, _) in enumerate(runs):
                yield first, found[at + 2 * number], found[at + 2 * number + 1]
                first += groups


class InGroup(Entries):
    """Entries whose groups are known."""

    def __init__(self, ids: Tensor, group: Tensor) -> None:
        super().__init__(ids)
        object.__setattr__(self, "group", group)

    def groups(self, cotangent: Cotangent) -> Tensor:
        return self.group  # type: ignore[attr-defined, no-any-return]


class Owned:
    """All entries of the ids that this rank owns, of tables of one width."""

    def __init__(self, shape: Shape, found: Tensor, width: int, tables: Sequence[Table]) -> None:
        self.shape, self.width, self.tables = shape, width, tables
        key = keys_of(found[:, : shape.key])
        self.ids = key.div(shape.groups, rounding_mode="floor")
        self.group = key % shape.groups
        self.values = found[:, shape.key :].unflatten(1, (shape.tasks, width))  # [E, K, d]

    def gram(self, precise: bool, only: set[int] | None) -> Tensor:
        groups = Groups(1, self.shape.groups)
        tables: list[tuple[Tensor, bool, list[tuple[Entries, Cotangent]]]] = []
        for table in self.tables:
            inside = (self.ids >= table.first) & (self.ids < table.first + table.length)
            if (only is None or table.number in only) and bool(inside.any()):
                # An owner has every W-th id: closed up, so that a small table is seen to be one.
                ids = (self.ids[inside] - table.first).div(self.shape.ranks, rounding_mode="floor")
                cotangent = Cotangent(self.values[inside].transpose(0, 1), groups, Owner(0, 1))
                stands_for = self.values.new_empty(-(-table.length // self.shape.ranks), 0)
                tables.append((stands_for, False, [(InGroup(ids, self.group[inside]), cotangent)]))
        if not tables:
            return torch.zeros(self.shape.rows, self.shape.rows, dtype=self.values.dtype, device=self.values.device)
        return Tables(tables).gram(precise)

    def combine(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Ids, each once, and the weighted sum of their rows. [U], [U, d]"""
        own = weights.to(self.values).view(self.shape.groups, self.shape.tasks)[self.group]  # [E, K]
        summed = (own.unsqueeze(2) * self.values).sum(1)
        return sum_by_id(self.ids, summed)


def sum_by_id(ids: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    distinct, place = torch.unique(ids, return_inverse=True)
    return distinct, values.new_zeros(len(distinct), values.shape[1]).index_add_(0, place, values)
