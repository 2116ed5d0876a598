"""Rows of a batch that lies in several processes: the same answers as `Rows` gives, on every rank.

Each rank runs its own backward passes, over the parts of groups that it has examples of. `parcels` says how
the rows then travel; the update is summed over ranks like the gradients of an ordinary data-parallel step,
except that of a table only the rows that were looked up are sent.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from gdod.errors import InputError
from gdod.rows.blocks import Block, Dense, Only
from gdod.rows.collect import check_among, collect
from gdod.rows.cotangent import working
from gdod.rows.distributed.accumulated_rows import JoinedRows
from gdod.rows.distributed.column_exchange import (
    Columns,
    Layer,
    Merged,
    Shape,
    Slice,
    Table,
    apart,
    layer_of,
    merge,
    pack,
)
from gdod.rows.distributed.exchange import Exchange, digest
from gdod.rows.distributed.rank_parameters import lookups, ordered_leaves, refuse_sharded
from gdod.rows.distributed.sums import Gradients, TableSums, from_owners, sum_dense, tables_by_width
from gdod.rows.graph import walk
from gdod.rows.groups import Groups
from gdod.rows.lookup import Tables
from gdod.rows.passes import derivatives
from gdod.rows.plan import plan_for
from gdod.rows.products import Products
from gdod.rows.random_rows import RandomRows
from gdod.rows.rows import Rows, SlowPath, precision
from gdod.rows.targets import Target
from gdod.rows.workspace import release


@dataclass(frozen=True)
class Across:
    """A batch that lies in several processes, one after the other."""

    exchange: Exchange
    sizes: tuple[int, ...]  # examples of each rank
    masked: bool  # whether some rank has examples without a label
    alike: bool  # whether the graphs of all ranks have the same structure

    def collect(
        self,
        targets: Sequence[Target],
        seeds: Tensor,
        active: Sequence[int],
        groups: Groups,
        labelled: Tensor | None,
        shared: Sequence[Tensor] | None,
        retain_graph: bool,
    ) -> "DistributedRows":
        """As `gdod.rows.collect`; ``seeds`` and ``labelled`` are of this rank's examples, ``groups`` of all."""
        slices = slices_of(groups, self.sizes)
        mine = slices[self.exchange.rank]

        def work() -> tuple[_Local, list[int]]:
            known = self.survey(targets, active, mine.examples, shared)
            rows = collect(targets, seeds, active, mine.groups, shared, retain_graph) if mine.examples else None
            labels = _labels(labelled, len(targets), mine) if self.masked else []
            local = self._local(known, rows, mine, groups, len(targets))
            return local, [*local.numbers(), *labels]

        return self._meet(work, slices, groups, len(targets))

    def join(
        self, groups: Groups, joined: JoinedRows, factors: Tensor, known: "Survey", labels: Tensor
    ) -> "DistributedRows":
        """As `collect`, from what this rank's micro-batches left; ``labels`` [K, groups here]: labelled examples."""
        slices = slices_of(groups, self.sizes)
        mine = slices[self.exchange.rank]

        def work() -> tuple[_Local, list[int]]:
            local = self._local(known, joined.rows(factors), mine, groups, joined.tasks)
            return local, [*local.numbers(), *(labels.flatten().long().tolist() if self.masked else [])]

        return self._meet(work, slices, groups, joined.tasks)

    def _meet(
        self,
        work: Callable[[], tuple["_Local", list[int]]],
        slices: tuple[Slice, ...],
        groups: Groups,
        tasks: int,
    ) -> "DistributedRows":
        local, told = self.exchange.agree(work)
        said, rest = zip(*(_Said.read(numbers, self.exchange.ranks) for numbers in told), strict=True)
        _check_model(said)
        in_groups = _in_groups(rest, slices, groups, tasks) if self.masked else None
        return DistributedRows(self.exchange, groups, tasks, slices, local, said, in_groups)

    def differentiate(
        self,
        targets: Sequence[Target],
        seeds: Tensor,
        retain_graph: bool,
        shared: Sequence[Tensor] | None = None,
        further: tuple[Tensor, Tensor] | None = None,
    ) -> Gradients:
        """As `gdod.rows.gradients`, summed over ranks. ``shared``: parameters that must be reached."""

        def work() -> tuple[_Plain, list[int]]:
            graph = walk([target.node for target in targets])
            refuse_sharded(graph)
            order = ordered_leaves(graph, self.alike)
            leaves = [graph.leaf(leaf) for leaf in order]
            check_among(set(map(id, leaves)), shared or ())
            found = lookups(graph, order)
            ids = {number: one.ids().unique() for number, one in found.items()}
            sparse = {number: one.sparse for number, one in found.items()}
            sums = TableSums.of(ids, sparse, leaves, self.exchange.ranks)
            grads = derivatives(targets, seeds, leaves, retain_graph, further)
            plain = _Plain(leaves, list(grads), sums)
            return plain, plain.numbers()

        plain, told = self.exchange.agree(work)
        _check_leaves([numbers[:2] for numbers in told], plain.leaves)
        count = len(plain.leaves)
        reached = [any(numbers[2 + n] for numbers in told) for n in range(count)]
        counts = [numbers[2 + count :] for numbers in told]
        dense = [(n, plain.grads[n]) for n in range(count) if reached[n] and n not in plain.sums.numbers]
        summed = sum_dense(self.exchange, plain.leaves, dense)
        tables = plain.sums.run(self.exchange, counts, [plain.grads[n] for n in plain.sums.numbers], plain.leaves)
        reached_tables = [pair for n, pair in zip(plain.sums.numbers, tables, strict=True) if reached[n]]
        return [*summed, *reached_tables]

    def survey(
        self, targets: Sequence[Target], active: Sequence[int], examples: int, shared: Sequence[Tensor] | None
    ) -> "Survey":
        """What the graph tells beside the rows, to be asked before it is freed."""
        graph = walk([target.node for target in targets])
        refuse_sharded(graph)
        plan = plan_for(graph, examples, None if shared is None else frozenset(map(id, shared)))
        if shared is not None:
            check_among({id(graph.leaf(parameter.leaf)) for parameter in plan.shared}, shared)
        at = {leaf: number for number, leaf in enumerate(ordered_leaves(graph, self.alike))}
        leaves = [graph.leaf(leaf) for leaf in at]
        found = lookups(graph, list(at))
        private = sorted({at[leaf] for task in active for leaf in plan.private[task]})
        return Survey(
            leaves=leaves,
            shared=sorted(at[parameter.leaf] for parameter in plan.shared),
            tables=sorted(at[parameter.leaf] for parameter in plan.shared if parameter.is_table),
            private=private,
            ids={number: found[number].ids().unique() for number in private if number in found},
            sparse={number: one.sparse for number, one in found.items()},
            last_layer=[at[leaf] for leaf in plan.last_layer],
        )

    def _local(self, known: "Survey", rows: Rows | None, mine: Slice, groups: Groups, tasks: int) -> "_Local":
        ranks, leaves = self.exchange.ranks, known.leaves
        numbers = {id(leaf): number for number, leaf in enumerate(leaves)}
        by_width = tables_by_width([(number, leaves[number]) for number in known.tables])
        blocks = [] if rows is None else rows.blocks
        layers = [(layer_of(b, numbers, mine.groups), b) for b in blocks if not isinstance(b, Tables)]
        tables = [b for b in blocks if isinstance(b, Tables)]
        return _Local(
            leaves=leaves,
            shared=known.shared,
            rows=rows,
            layers=sorted(layers, key=lambda pair: pair[0].weight),
            order=[numbers[id(parameter)] for block in blocks for parameter in _parameters(block)],
            merged=_merge_all(tables, by_width, leaves, mine, groups, tasks, ranks),
            widths=tuple(leaves[some[0].number].shape[1] for some in by_width),
            by_width=by_width,
            own=[] if rows is None else sorted(numbers[id(parameter)] for parameter, _ in rows.own),
            sums=TableSums.of(known.ids, known.sparse, leaves, ranks),
            sparse=known.sparse,
            last_layer=known.last_layer,
        )

    def settle(self, values: Tensor) -> Tensor:
        """The first rank's values, so that not even rounding can make ranks decide differently."""
        return self.exchange.broadcast(values, "weights")


@dataclass
class Survey:
    """Parameters by their numbers, which are the same on all ranks."""

    leaves: list[Tensor]
    shared: list[int]
    tables: list[int]  # among the shared ones
    private: list[int]  # other parameters that a task with labels reaches
    ids: dict[int, Tensor]  # looked up in private tables on this rank, each once
    sparse: dict[int, bool]  # of all tables: whether the gradient is to be
    last_layer: list[int]

    def check(self, other: "Survey") -> None:
        """Refuses what another model tells."""
        if set(map(id, self.leaves)) != set(map(id, other.leaves)):
            raise InputError(
                f"the losses of this micro-batch reach {len(other.leaves)} parameters, and those of the first one "
                f"{len(self.leaves)}, or others; every micro-batch of an update needs the same model and losses"
            )

    def add(self, other: "Survey") -> None:
        """Takes in what another micro-batch tells."""
        at = {id(leaf): number for number, leaf in enumerate(self.leaves)}
        names = [at[id(leaf)] for leaf in other.leaves]
        self.private = sorted({*self.private, *(names[number] for number in other.private)})
        for number, ids in other.ids.items():
            before = self.ids.get(names[number], ids)
            self.ids[names[number]] = torch.cat([before, ids]).unique()


@dataclass(frozen=True)
class _Plain:
    leaves: list[Tensor]
    grads: list[Tensor | None]
    sums: "TableSums"

    def numbers(self) -> list[int]:
        reached = [int(grad is not None) for grad in self.grads]
        return [_digest_of(self.leaves), len(self.leaves), *reached, *self.sums.counts]


@dataclass(frozen=True)
class _Local:
    """What one rank found by its own backward passes."""

    leaves: list[Tensor]
    shared: list[int]  # numbers among the leaves
    rows: Rows | None  # None without examples
    layers: list[tuple[Layer, Block]]
    order: list[int]  # shared parameters that got a gradient, as `Rows.combine` has them
    merged: list[Merged]  # one for each width
    widths: tuple[int, ...]
    by_width: tuple[tuple[Table, ...], ...]
    own: list[int]  # private parameters that got a gradient
    sums: "TableSums"  # of private tables
    sparse: Mapping[int, bool]  # of tables
    last_layer: list[int]

    def numbers(self) -> list[int]:
        layers = [number for layer, _ in self.layers for number in layer.numbers]
        entries = [count for merged in self.merged for count in merged.counts]
        lists = [self.shared, layers, self.own, entries, self.sums.counts, self.order, self.last_layer]
        return [_digest_of(self.leaves), int(self.rows is not None), *_with_lengths(lists)]


@dataclass(frozen=True)
class _Said:
    """What a rank said of itself."""

    leaves: int
    has_examples: bool
    shared: list[int]
    layers: tuple[Layer, ...]
    own: list[int]
    entries: tuple[tuple[int, ...], ...]
    sums: list[int]
    order: list[int]
    last_layer: list[int]

    @staticmethod
    def read(numbers: list[int], ranks: int) -> "tuple[_Said, list[int]]":
        (leaves, has_examples), rest = numbers[:2], numbers[2:]
        lists = []
        for _ in range(7):
            lists.append(rest[1 : 1 + rest[0]])
            rest = rest[1 + rest[0] :]
        shared, layers, own, entries, sums, order, last_layer = lists
        parsed = tuple(Layer(*layers[at : at + 7]) for at in range(0, len(layers), 7))
        by_width = tuple(tuple(entries[at : at + ranks]) for at in range(0, len(entries), ranks))
        return _Said(leaves, bool(has_examples), shared, parsed, own, by_width, sums, order, last_layer), rest

    @property
    def layout(self) -> list[list[int]]:
        """What has to be alike for rows to fit together."""
        return [layer.numbers[:-1] for layer in self.layers]


def _with_lengths(lists: Sequence[Sequence[int]]) -> list[int]:
    return [number for numbers in lists for number in (len(numbers), *numbers)]


def _digest_of(leaves: Sequence[Tensor]) -> int:
    return digest(str([(tuple(leaf.shape), str(leaf.dtype)) for leaf in leaves]))


def _parameters(block: Block) -> list[Tensor]:
    if isinstance(block, Tables):
        return [table for table, _ in block.tables]
    if isinstance(block, Products):
        return [viewed[0] for viewed in (block.bias, block.weight) if viewed is not None]
    assert isinstance(block, Dense)
    return [block.parameter]


def _merge_all(
    blocks: Sequence[Tables],
    by_width: Sequence[Sequence[Table]],
    leaves: Sequence[Tensor],
    mine: Slice,
    groups: Groups,
    tasks: int,
    ranks: int,
) -> list[Merged]:
    merged = []
    for tables in by_width:
        like = leaves[tables[0].number]
        first_ids = {id(leaves[table.number]): table.first for table in tables}
        some = [block for block in blocks if id(block.tables[0][0]) in first_ids]
        if some:
            merged.append(merge(some, first_ids, mine, groups.count, tasks, ranks))
        else:
            values = working(like.detach()).new_zeros(0, tasks * like.shape[1])
            merged.append(Merged(torch.zeros(0, dtype=torch.int64), values, (0,) * ranks))
    return merged


def _labels(labelled: Tensor | None, tasks: int, mine: Slice) -> list[int]:
    """Labelled examples of each task in each part of a group, task by task."""
    if mine.examples == 0:
        return []
    counts = torch.ones(tasks, mine.examples, dtype=torch.int64) if labelled is None else labelled.cpu().long()
    inside = torch.zeros(tasks, mine.groups.count, dtype=torch.int64)
    return inside.index_add_(1, mine.groups.of_example, counts).flatten().tolist()


def _in_groups(labels: Sequence[Sequence[int]], slices: Sequence[Slice], groups: Groups, tasks: int) -> Tensor:
    """Labelled examples of each task in each group, over all ranks. [K, n]"""
    total = torch.zeros(tasks, groups.count, dtype=torch.float64)
    for numbers, part in zip(labels, slices, strict=True):
        if part.examples:
            here = torch.tensor(numbers, dtype=torch.float64).view(tasks, -1)
            total[:, part.first : part.first + here.shape[1]] += here
    return total


@lru_cache(maxsize=64)
def slices_of(groups: Groups, sizes: tuple[int, ...]) -> tuple[Slice, ...]:
    slices, start = [], 0
    for size in sizes:
        first, own = groups.part(start, size) if size else (0, Groups(0, 0, ()))
        slices.append(Slice(start, size, first, own))
        start += size
    return tuple(slices)


def _check_model(said: Sequence[_Said]) -> None:
    if len({(one.leaves, tuple(one.shared)) for one in said}) > 1:
        found = "; ".join(f"rank {rank}: {len(one.shared)} shared" for rank, one in enumerate(said))
        raise InputError(
            f"the losses do not reach the same parameters on all ranks, or share others ({found}); every rank needs "
            "the same model and the same losses, also for examples without labels: use mask= for those"
        )
    active = [one for one in said if one.has_examples]
    if len({(tuple(one.own), len(one.entries), len(one.sums)) for one in active}) > 1:
        raise InputError(
            "the tasks reach different parameters of their own on different ranks; every rank needs the same model "
            "and the same losses"
        )


def _check_leaves(told: Sequence[Sequence[int]], leaves: Sequence[Tensor]) -> None:
    if len(set(map(tuple, told))) > 1:
        found = "; ".join(f"rank {rank}: {count} parameters" for rank, (_, count) in enumerate(told))
        raise InputError(
            f"the losses do not reach the same parameters on all ranks ({found}); every rank needs the same model and "
            "the same losses, also for examples without labels: use mask= for those"
        )


class DistributedRows:
    """`Rows` of all ranks together."""

    def __init__(
        self,
        exchange: Exchange,
        groups: Groups,
        tasks: int,
        slices: tuple[Slice, ...],
        local: _Local,
        said: Sequence[_Said],
        in_groups: Tensor | None,
    ) -> None:
        self.exchange, self.groups, self.tasks = exchange, groups, tasks
        self.local, self.said, self.in_groups = local, said, in_groups
        self.mine = slices[exchange.rank]
        self.shared = tuple(local.leaves[number] for number in local.shared)
        self.slow: tuple[SlowPath, ...] = () if local.rows is None else local.rows.slow
        self.passes = 0 if local.rows is None else local.rows.passes
        self.last_layer = frozenset(id(local.leaves[number]) for number in said[0].last_layer)
        self.blocks = [block for _, block in local.layers]
        layers = [one.layers for one in said]
        if any(one.layout != other.layout for one in said for other in said if one.has_examples and other.has_examples):
            layers = self._one_by_one(layers)
        self.shape = Shape(
            rank=exchange.rank,
            slices=slices,
            groups=groups.count,
            tasks=tasks,
            layers=tuple(layers),
            entries=tuple(one.entries for one in said),
            widths=local.widths,
            dtype=self._dtype(),
        )

    def _dtype(self) -> torch.dtype:
        dtypes = {torch.float32 if p.dtype in (torch.bfloat16, torch.float16) else p.dtype for p in self.shared}
        return torch.float64 if torch.float64 in dtypes else torch.float32

    def _one_by_one(self, layers: Sequence[tuple[Layer, ...]]) -> list[tuple[Layer, ...]]:
        """Ranks found rows in different ways (examples mix in one rank's batch only): each parameter's in its shape."""
        numbers = sorted({n for some in layers for layer in some for n in layer.parameters})
        parameters = [self.local.leaves[n] for n in numbers]
        self.blocks = apart(self.blocks, self.mine.groups.count * self.tasks, parameters, self._dtype())
        described = tuple(Layer(n, -1, 1, self.local.leaves[n].numel(), 0, 0, 0) for n in numbers)
        return [described if one.has_examples else () for one in self.said]

    @cached_property
    def sent(self) -> tuple[Tensor, list[int]]:
        """What leaves this rank, in order of the ranks it goes to, and how much to each."""
        like = self.shared[0].detach().new_empty(0, dtype=self.shape.dtype) if self.shared else torch.empty(0)
        blocks = self.blocks if self.local.rows is not None else []
        return pack(self.shape, blocks, self.local.merged, like)

    @cached_property
    def received(self) -> Tensor:
        buffer, sizes = self.sent
        arriving = [self.shape.total(source, self.shape.rank) for source in range(self.shape.ranks)]
        found = self.exchange.all_to_all(buffer.detach(), sizes, arriving, "rows")
        return found.requires_grad_(torch.is_grad_enabled())

    def differentiated(self, partial: Tensor, slopes: Tensor) -> tuple[Tensor, Tensor]:
        """What this rank sent, and how the sum of the Gram matrix's elements, each times its slope, changes with it."""
        buffer, sizes = self.sent
        (cotangent,) = torch.autograd.grad(partial, self.received, slopes.to(partial), allow_unused=True)
        cotangent = torch.zeros_like(self.received) if cotangent is None else cotangent
        arrived = [self.shape.total(source, self.shape.rank) for source in range(self.shape.ranks)]
        back = self.exchange.all_to_all(cotangent, arrived, sizes, "cotangents of rows")
        return buffer, back.to(buffer)

    @cached_property
    def columns(self) -> Columns:
        return Columns(self.shape, self.received, self.local.leaves, self.local.by_width)

    def partial_gram(self, precise: bool, only: Only = None) -> Tensor:
        """Inner products over this rank's columns. [N, N]"""
        return self.columns.gram(precise, only)

    def total_gram(self, partial: Tensor) -> Tensor:
        """The sum over ranks; only one half travels. [N, N]"""
        count = len(partial)
        if count == 0:
            return partial
        row, column = torch.triu_indices(count, count)
        half = self.exchange.all_reduce(partial.detach()[row, column], "Gram matrix").cpu()
        gram = torch.zeros(count, count, dtype=torch.float64)
        gram[row, column] = half
        gram[column, row] = half
        return gram

    def gram(self, precise: bool, only: Only = None) -> Tensor:
        """As `Rows.gram`."""
        return self.total_gram(self.partial_gram(precise, only))

    def release(self) -> None:
        release()

    def combine(self, weights: Tensor) -> Gradients:
        """As `Rows.combine`."""
        return [*sum_dense(self.exchange, self.local.leaves, self._own_part(weights)), *self._of_tables(weights)]

    def gradients(self, weights: Tensor | None, factors: Tensor | None) -> Gradients:
        """`combine` (if there are weights) and `private` in one go."""
        if weights is None:
            return self.private(factors)
        private, tables = self._own_private(factors)
        dense = sum_dense(self.exchange, self.local.leaves, [*self._own_part(weights), *private])
        return [*dense, *self._of_tables(weights), *tables]

    def private(self, factors: Tensor | None) -> Gradients:
        """As `Rows.private`."""
        private, tables = self._own_private(factors)
        return [*sum_dense(self.exchange, self.local.leaves, private), *tables]

    def _own_part(self, weights: Tensor) -> list[tuple[int, Tensor | None]]:
        """This rank's part of the weighted sums of rows, but for tables."""
        first = self.mine.first * self.tasks
        here = weights[first : first + self.mine.groups.count * self.tasks]
        grads: dict[int, Tensor] = {}
        at = {id(leaf): number for number, leaf in enumerate(self.local.leaves)}
        for block in self.blocks if self.local.rows is not None else ():
            for parameter, grad in block.combine(here.to(block.like)):
                grads[at[id(parameter)]] = grad
        return [(n, grads.get(n)) for layer in self.shape.common for n in layer.parameters]

    def _of_tables(self, weights: Tensor) -> Gradients:
        found = [owned.combine(weights) for owned in self.columns.tables]
        grads = from_owners(self.exchange, found, self.local.by_width, self.local.leaves, self.local.sparse)
        reached = {id(self.local.leaves[number]) for one in self.said for number in one.order}
        return [(table, grad) for table, grad in grads if id(table) in reached]

    def _own_private(self, factors: Tensor | None) -> tuple[list[tuple[int, Tensor | None]], Gradients]:
        rows, at = self.local.rows, {id(leaf): number for number, leaf in enumerate(self.local.leaves)}
        found = {} if rows is None else {at[id(p)]: grad for p, grad in rows.private(factors)}
        numbers = next((one.own for one in self.said if one.has_examples), [])
        sums = self.local.sums
        dense = [(n, found.get(n)) for n in numbers if n not in sums.numbers]
        grads = [found.get(n) for n in sums.numbers]
        tables = sums.run(self.exchange, [one.sums for one in self.said], grads, self.local.leaves)
        return dense, [pair for n, pair in zip(sums.numbers, tables, strict=True) if n in numbers]

    def random_rows(self, averages: Tensor) -> RandomRows:
        """As `Rows.random_rows`, which draws for one parameter after the other: in the same order."""
        order = next((one.order for one in self.said if one.has_examples), [])
        place = {id(self.local.leaves[number]): at for at, number in enumerate(order)}
        grads = [self.combine((share > 0).double()) for share in averages]
        return RandomRows([sorted(some, key=lambda pair: place[id(pair[0])]) for some in grads])

    @property
    def precision(self) -> float:
        return precision(self.shared)
