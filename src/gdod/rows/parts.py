"""Parts of a batch whose contributions are put together: micro-batches one after the other, or what processes have.

The rows of a layer (`Layer`) are added up as a matrix; of tables there is an entry for each id and group (`Merged`).
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from gdod.rows.blocks import Block, Dense, row_matrix
from gdod.rows.cotangent import Cotangent
from gdod.rows.groups import Groups
from gdod.rows.lookup import Entries, Tables
from gdod.rows.products import Products

WITHOUT = -1  # in place of a bias's number


def digest(text: str) -> int:
    """Return the same number for the same text in every process, which `hash` does not promise."""
    return zlib.crc32(text.encode())


@dataclass(frozen=True)
class Layer:
    """Describes a block whose rows are a matrix or can be made one, by numbers that can be sent to other ranks."""

    weight: int  # number among the parameters
    bias: int
    experts: int
    inputs: int  # of rows that are a matrix already: their length
    outputs: int  # 0 for those
    view: int  # a digest of the views in between: rows of one layer must be laid out alike
    places: int  # vectors that an example has

    @property
    def size(self) -> int:
        """The length of a row."""
        return self.experts * self.inputs * max(self.outputs, 1)

    @property
    def parameters(self) -> list[int]:
        """The numbers of the layer's parameters."""
        return [self.weight] if self.bias == WITHOUT else [self.weight, self.bias]

    @property
    def numbers(self) -> list[int]:
        """All of the description, in the order in which the constructor takes it."""
        return [self.weight, self.bias, self.experts, self.inputs, self.outputs, self.view, self.places]

    @property
    def activations(self) -> int:
        """The number of inputs that have to be sent: that of a bias is always 1."""
        return self.inputs - (self.bias != WITHOUT)


@dataclass(frozen=True)
class Slice:
    """A part of the batch: its examples, and the groups they lie in."""

    start: int  # number of its first example
    examples: int
    first: int  # number of the group that this one lies in
    groups: Groups  # parts of groups, with the examples that are here


@lru_cache(maxsize=64)
def slices_of(groups: Groups, sizes: tuple[int, ...]) -> tuple[Slice, ...]:
    """Return the parts of a batch, which have these numbers of examples, one after the other."""
    slices, start = [], 0
    for size in sizes:
        slices.append(slice_of(groups, start, size))
        start += size
    return tuple(slices)


def slice_of(groups: Groups, start: int, examples: int) -> Slice:
    """Return the part of a batch that has ``examples`` examples from ``start`` on."""
    first, own = groups.part(start, examples) if examples else (0, Groups(0, 0, ()))
    return Slice(start, examples, first, own)


def layer_of(block: Block, numbers: dict[int, int], groups: Groups) -> Layer:
    """Return the description of a block; ``numbers``: of the parameters, by their ids."""
    view = view_of(block)
    if isinstance(block, Products):
        bias = WITHOUT if block.bias is None else numbers[id(block.bias[0])]
        if not block.xs:  # nothing is left but rows
            vectors = block.like.shape[1] // block.inputs
            return Layer(numbers[id(block.weight[0])], bias, vectors, block.inputs, 0, view, 0)
        outputs = block.ds[0].shape[-1] // block.tasks
        _, _, size = next(groups.runs())
        places = block.xs[0].shape[1] // size
        return Layer(numbers[id(block.weight[0])], bias, block.experts, block.inputs, outputs, view, places)
    assert isinstance(block, Dense)
    return Layer(numbers[id(block.parameter)], WITHOUT, 1, block.rows.shape[1], 0, view, 0)


def view_of(block: Block) -> int:
    """Return a number, the same in every process, for how a block's parameters are laid out in its rows."""
    if isinstance(block, Products):
        chains = [block.weight[2], () if block.bias is None else block.bias[2]]
        left = block.use.left
    else:
        assert isinstance(block, Dense)
        chains, left = [block.chain], False
    kinds = [[type(node).__name__ for node, _ in chain] for chain in chains]
    return digest(f"{left}{kinds}")


def apart(blocks: Sequence[Block], count: int, parameters: Sequence[Tensor], dtype: torch.dtype) -> list[Block]:
    """Return blocks with the ``count`` rows of each parameter in its own shape, whatever the form of ``blocks``."""
    rows = {id(p): row_matrix(p.detach().new_zeros(count, *p.shape)).to(dtype) for p in parameters}
    for block in blocks:
        for row, unit in enumerate(torch.eye(count).to(block.like)):
            for parameter, grad in block.combine(unit):
                rows[id(parameter)][row] = row_matrix(grad.unsqueeze(0))[0]
    return [Dense(p, rows[id(p)], p.shape, []) for p in parameters]


def matrix_of(block: Block) -> Tensor:
    """Return the rows of a layer as they are. [rows, columns]"""
    if isinstance(block, Products):
        return block.as_rows()
    assert isinstance(block, Dense)
    return block.rows


def fill_groups(
    runs: Sequence[tuple[int, Tensor, Tensor]], first: int, count: int, length: int
) -> tuple[Tensor, Tensor]:
    """Return activations and cotangents of ``count`` groups from ``first`` on, each filled up to ``length`` vectors.

    ``runs``: the first group, activations and cotangents [groups, E, vectors, ...] of groups that follow each other.
    """
    _, x, d = runs[0]
    xs, ds = (some.new_zeros(count, some.shape[1], length, *some.shape[3:]) for some in (x, d))
    used = [0] * count
    for group, x, d in runs:
        if first <= group < first + count:
            at, begin = group - first, used[group - first]  # only a part of a group, a run of one, can meet another
            places = slice(at, at + len(x)), slice(None), slice(begin, begin + x.shape[2])
            xs[places], ds[places] = x, d
            used[at : at + len(x)] = [begin + x.shape[2]] * len(x)
    return xs, ds


@dataclass(frozen=True)
class Merged:
    """Entries of tables of one width, one for each id and group, sorted by owner."""

    keys: Tensor  # (first id of the table + id) * groups + group [E]
    values: Tensor  # [E, K * d]
    counts: tuple[int, ...]  # for each rank


def merge(
    blocks: Sequence[Tables], first_ids: dict[int, int], part: Slice, groups: int, tasks: int, ranks: int
) -> Merged:
    """Return the entries of a part of the batch, added up for each id and group. ``first_ids``: by a table's `id`."""
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


def sum_by_id(ids: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Return ids, each once, and the sums of their values. [U], [U, d]"""
    distinct, place = torch.unique(ids, return_inverse=True)
    return distinct, values.new_zeros(len(distinct), values.shape[1]).index_add_(0, place, values)


class InGroup(Entries):
    """Entries of tables whose groups are known."""

    def __init__(self, ids: Tensor, group: Tensor) -> None:
        super().__init__(ids)
        object.__setattr__(self, "group", group)

    def groups(self, cotangent: Cotangent) -> Tensor:
        return self.group  # type: ignore[attr-defined, no-any-return]
