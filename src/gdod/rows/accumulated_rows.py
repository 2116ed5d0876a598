"""Contributions of a batch that comes in micro-batches, one after the other, each with a graph of its own.

Of a micro-batch no more is kept than is needed: of a layer the contributions, added up over micro-batches, or
activations and cotangents where these are smaller; of tables an entry for each id and group; of other parameters
their gradients. What comes out are `Contributions`, as if the whole batch had been there at once.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from gdod.errors import InputError
from gdod.rows.blocks import Block, Dense
from gdod.rows.cotangent import Cotangent
from gdod.rows.groups import Groups, Owner
from gdod.rows.lookup import Entries, Tables
from gdod.rows.parts import InGroup, Layer, Merged, Slice, apart, fill_groups, layer_of, matrix_of, merge, sum_by_id
from gdod.rows.products import Products
from gdod.rows.rows import Contributions, SlowPath
from gdod.rows.workspace import release

_OF_TABLES = (-1,)


class _Kept(ABC):
    """What is kept of the contributions to the gradients of some parameters."""

    @abstractmethod
    def add(self, block: Block, part: Slice, groups: Groups) -> None:
        """Add what a micro-batch has, which is this part of the groups."""

    @abstractmethod
    def block(self, groups: Groups, factors: Tensor) -> Block:
        """Return the sum, that of each task times its factor [K]. To be called once."""


class AccumulatedRows:
    """Takes the contributions of one micro-batch after the other, and adds them up."""

    def __init__(self, groups: Groups, tasks: int) -> None:
        """Start without micro-batches. ``groups``: those of the examples of all micro-batches in this process."""
        self.groups, self.tasks = groups, tasks
        self.kept: dict[tuple[object, ...], _Kept] = {}  # in the order in which `collect` has blocks
        self.own: dict[int, dict[int, Tensor]] = {}  # gradients of other parameters, by number and task
        self.slow: dict[int, SlowPath] = {}
        self.passes = 0
        self._leaves: list[Tensor] = []
        self._numbers: dict[int, int] = {}  # of the leaves, by their ids
        self._layouts: dict[int, tuple[int, ...]] = {}  # how each parameter's rows are laid out
        self._apart = False  # whether each parameter's rows are kept in its own shape
        self._first: Contributions | None = None  # without what it held

    def add(self, rows: Contributions, part: Slice) -> None:
        """Add what a micro-batch contributes, which was checked, and must not be used any more."""
        if self._first is None:
            self._first = copy.copy(rows)
            self._first.blocks, self._first.own = [], []
        layouts = self._layouts_of(rows, part)
        if any(self._layouts.get(number, layout) != layout for number, layout in layouts.items()) and not self._apart:
            self._take_apart()
        self._layouts = {**layouts, **self._layouts}
        for block in self._in_own_shapes(rows.blocks, part.groups) if self._apart else rows.blocks:
            self._keep(block, part)
        for parameter, grads in rows.own:
            sums = self.own.setdefault(self._number(parameter), {})
            for task, grad in grads:
                sums[task] = _plus(sums[task], grad) if task in sums else grad
        for slow in rows.slow:
            self.slow.setdefault(self._number(slow.parameter), slow)
        self.passes += rows.passes
        release()

    def contributions(self, factors: Tensor) -> Contributions | None:
        """Return all contributions, those of each task times its factor [K]; None if there were no micro-batches."""
        if self._first is None:
            return None
        scale = factors.tolist()
        own = [
            (self._leaves[number], [(task, _times(scale[task], grad)) for task, grad in sorted(grads.items())])
            for number, grads in self.own.items()
        ]
        return Contributions(
            groups=self.groups,
            tasks=self.tasks,
            blocks=[kept.block(self.groups, factors) for kept in self.kept.values()],
            shared=self._first.shared,
            own=own,
            slow=tuple(self.slow.values()),
            passes=self.passes,
            last_layer=self._first.last_layer,
        )

    def _number(self, parameter: Tensor) -> int:
        if id(parameter) not in self._numbers:
            self._numbers[id(parameter)] = len(self._leaves)
            self._leaves.append(parameter)
        return self._numbers[id(parameter)]

    def _layer(self, block: Block, groups: Groups) -> Layer:
        for parameter in block.parameters:
            self._number(parameter)
        return layer_of(block, self._numbers, groups)

    def check(self, rows: Contributions, part: Slice) -> None:
        """Refuse contributions of another model."""
        if self._first is not None and set(map(id, rows.shared)) != set(map(id, self._first.shared)):
            raise InputError(
                f"{len(rows.shared)} parameters are shared in this micro-batch, and {len(self._first.shared)} were, or "
                "others, in the first one; every micro-batch of an update needs the same model and the same losses, "
                "also for examples without labels: use mask= for those"
            )
        for number, layout in self._layouts_of(rows, part).items():
            if (self._layouts.get(number, layout) == _OF_TABLES) != (layout == _OF_TABLES):
                raise InputError(
                    f"a table of shape {tuple(self._leaves[number].shape)} is only looked up in some micro-batches and "
                    "used in other ways in others; every micro-batch of an update needs the same operations"
                )

    def _layouts_of(self, rows: Contributions, part: Slice) -> dict[int, tuple[int, ...]]:
        layouts: dict[int, tuple[int, ...]] = {}
        for block in rows.blocks:
            if isinstance(block, Tables):
                layouts |= {self._number(table): _OF_TABLES for table in block.parameters}
            else:
                layer = self._layer(block, part.groups)
                layouts |= {number: tuple(layer.numbers[:-1]) for number in layer.parameters}
        return layouts

    def _take_apart(self) -> None:
        """Keep each parameter's rows in its own shape: examples mix in one micro-batch only, and blocks differ."""
        self._apart = True
        layers = {key: kept for key, kept in self.kept.items() if not isinstance(kept, _Entries)}
        self.kept = {key: kept for key, kept in self.kept.items() if key not in layers}
        whole = Slice(0, self.groups.examples, 0, self.groups)
        blocks = [kept.block(self.groups, torch.ones(self.tasks)) for kept in layers.values()]
        for block in self._in_own_shapes(blocks, self.groups):
            self._keep(block, whole)

    def _in_own_shapes(self, blocks: Sequence[Block], groups: Groups) -> Iterator[Block]:
        for block in blocks:
            if isinstance(block, Tables):
                yield block
            else:
                yield from apart([block], groups.count * self.tasks, block.parameters, block.like.dtype)

    def _keep(self, block: Block, part: Slice) -> None:
        if isinstance(block, Tables):
            width = block.tables[0][0].shape[1]
            key: tuple[object, ...] = ("tables", width, block.like.device, block.like.dtype)
            kept = self.kept.get(key) or _Entries(width, self.tasks)
        else:
            layer = self._layer(block, part.groups)
            key = ("layer", layer.weight)
            kept = self.kept.get(key) or self._form_for(layer, block)
        self.kept[key] = kept
        kept.add(block, part, self.groups)

    def _form_for(self, layer: Layer, block: Block) -> "_Kept":
        rows = self.groups.count * self.tasks * layer.size
        each = layer.inputs + self.tasks * layer.outputs
        factors = self.groups.examples * layer.places * layer.experts * each
        if layer.outputs and factors < rows:
            return _Factors(block, self.tasks)
        return _Sum(block, self.groups, self.tasks)


class _Sum(_Kept):
    """Rows as a matrix, to which micro-batches are added."""

    def __init__(self, block: Block, groups: Groups, tasks: int) -> None:
        rows = matrix_of(block)
        self.tasks = tasks
        self.rows = rows.new_zeros(groups.count * tasks, rows.shape[1])
        self.form = block.without_numbers() if isinstance(block, Products) else copy.copy(block)
        assert isinstance(self.form, Products | Dense)
        self.form.rows = self.rows

    def add(self, block: Block, part: Slice, groups: Groups) -> None:
        rows = matrix_of(block)
        first = part.first * self.tasks
        self.rows[first : first + len(rows)] += rows

    def block(self, groups: Groups, factors: Tensor) -> Block:
        self.rows *= factors.repeat(groups.count).to(self.rows).unsqueeze(1)
        if isinstance(self.form, Products):
            self.form.groups = groups.count
        return self.form


class _Factors(_Kept):
    """Activations and cotangents of a layer, of each micro-batch."""

    def __init__(self, block: Block, tasks: int) -> None:
        assert isinstance(block, Products)
        self.form = block.without_numbers()
        self.tasks = tasks
        self.runs: list[tuple[int, Tensor, Tensor]] = []  # first group, activations, cotangents [g, E, places, f]
        self.places = 0  # most that an example has

    def add(self, block: Block, part: Slice, groups: Groups) -> None:
        assert isinstance(block, Products)
        group = part.first
        for (_, count, size), x, d in zip(part.groups.runs(), block.xs, block.ds, strict=True):
            self.places = max(self.places, x.shape[1] // size)
            self.runs.append((group, x.unflatten(0, (count, -1)).clone(), d.unflatten(0, (count, -1)).clone()))
            group += count

    def block(self, groups: Groups, factors: Tensor) -> Block:
        first = 0
        for _, count, size in groups.runs():
            # Examples that had fewer places than others are filled up with zeros.
            xs, ds = fill_groups(self.runs, first, count, size * self.places)
            ds = ds.unflatten(-1, (self.tasks, -1)) * factors.to(ds).unsqueeze(1)
            self.form.xs.append(xs.flatten(0, 1))
            self.form.ds.append(ds.flatten(-2).flatten(0, 1))
            first += count
        self.runs = []
        self.form.groups = groups.count
        return self.form


class _Entries(_Kept):
    """Entries of all tables of one width."""

    def __init__(self, width: int, tasks: int) -> None:
        self.width, self.tasks = width, tasks
        self.tables: dict[int, tuple[Tensor, bool]] = {}  # and whether gradients are sparse, by the table's id
        self.first_ids: dict[int, int] = {}
        self.ids = 0  # of all tables
        self.merged: list[Merged] = []

    def add(self, block: Block, part: Slice, groups: Groups) -> None:
        assert isinstance(block, Tables)
        for table, sparse in block.tables:
            if id(table) not in self.tables:
                self.tables[id(table)], self.first_ids[id(table)] = (table, sparse), self.ids
                self.ids += table.shape[0]
        self.merged.append(merge([block], self.first_ids, part, groups.count, self.tasks, 1))
        first, *others = (len(some.keys) for some in self.merged)
        if sum(others) > first:  # so that ids that come again and again take no more memory
            self._merge()

    def _merge(self) -> None:
        keys, values = torch.cat([some.keys for some in self.merged]), torch.cat([some.values for some in self.merged])
        distinct, sums = sum_by_id(keys, values)
        self.merged = [Merged(distinct, sums, (len(distinct),))]

    def block(self, groups: Groups, factors: Tensor) -> Block:
        self._merge()
        (merged,) = self.merged
        ids, group = merged.keys.div(groups.count, rounding_mode="floor"), merged.keys % groups.count
        values = merged.values.unflatten(1, (self.tasks, self.width)) * factors.to(merged.values).unsqueeze(1)
        tables: list[tuple[Tensor, bool, list[tuple[Entries, Cotangent]]]] = []
        for table, sparse in self.tables.values():
            first = self.first_ids[id(table)]
            inside = (ids >= first) & (ids < first + table.shape[0])
            cotangent = Cotangent(values[inside].transpose(0, 1), Groups(1, groups.count), Owner(0, 1))
            tables.append((table, sparse, [(InGroup(ids[inside] - first, group[inside]), cotangent)]))
        return Tables(tables)


def _plus(total: Tensor, grad: Tensor) -> Tensor:
    return grad + total if total.is_sparse else total + grad


def _times(factor: float, grad: Tensor) -> Tensor:
    return grad if factor == 1 else factor * grad
