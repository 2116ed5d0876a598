"""Rows of a batch that lies in several processes: the same answers as in one, on every rank.

Each rank runs its own backward passes, over the parts of groups that it has examples of. `column_exchange` says how
contributions then travel; the update is summed over ranks like the gradients of an ordinary data-parallel step,
except that of a table only the rows that were looked up are sent.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property

import torch
from torch import Tensor

from gdod.errors import InputError
from gdod.ranks import Exchange
from gdod.rows.blocks import Block, Only
from gdod.rows.cotangent import working
from gdod.rows.distributed.column_exchange import Columns, ExchangeLayout, Table, pack
from gdod.rows.distributed.sums import TableSums, from_owners, sum_dense, tables_by_width
from gdod.rows.distributed.survey import Survey, digest_of
from gdod.rows.groups import Groups
from gdod.rows.lookup import Tables
from gdod.rows.multiply import GRAM_ERROR
from gdod.rows.parts import Layer, Merged, Slice, apart, layer_of, merge
from gdod.rows.rows import Contributions, Gradients, SlowPath, precision
from gdod.rows.shares import shares_of
from gdod.rows.workspace import release


@dataclass(frozen=True)
class Description:
    """What every rank has to know of what another has to send, in numbers of parameters."""

    model: list[int]  # a number for the shapes of all parameters, and 1 if the rank has examples
    shared: list[int]
    layers: list[int]  # all numbers of a `Layer`, one layer after the other
    own: list[int]  # private parameters that got a gradient
    entries: list[int]  # for each width of tables, how many go to each rank
    sums: list[int]  # the same, of private tables
    order: list[int]  # shared parameters that got a gradient, as `Contributions.combine` has them
    last_layer: list[int]

    def numbers(self) -> list[int]:
        """Return all of it, each list after its length."""
        lists = [getattr(self, field.name) for field in fields(self)]
        return [number for numbers in lists for number in (len(numbers), *numbers)]

    @staticmethod
    def read(numbers: list[int]) -> "tuple[Description, list[int]]":
        """Return what `numbers` described, and the numbers that follow."""
        lists = []
        for _ in fields(Description):
            lists.append(numbers[1 : 1 + numbers[0]])
            numbers = numbers[1 + numbers[0] :]
        return Description(*lists), numbers

    @property
    def has_examples(self) -> bool:
        """Whether the rank has examples."""
        return bool(self.model[1])

    @cached_property
    def described(self) -> tuple[Layer, ...]:
        """The layers."""
        return tuple(Layer(*numbers) for numbers in _chunks(self.layers, 7))

    @property
    def layout(self) -> list[list[int]]:
        """What has to be alike on all ranks for their contributions to fit together."""
        return [layer.numbers[:-1] for layer in self.described]


@dataclass(frozen=True)
class LocalPart:
    """What one rank has after its own backward passes."""

    known: Survey
    contributions: Contributions | None  # None without examples
    blocks: list[Block]  # but for tables, in the order of layers
    merged: list[Merged]  # one for each width
    by_width: tuple[tuple[Table, ...], ...]
    sums: TableSums  # of private tables
    description: Description

    @staticmethod
    def of(
        known: Survey, contributions: Contributions | None, mine: Slice, groups: Groups, tasks: int, ranks: int
    ) -> "LocalPart":
        """Sort what was collected here by how it is sent. ``groups``: of the whole batch."""
        leaves = known.leaves
        numbers = {id(leaf): number for number, leaf in enumerate(leaves)}
        by_width = tables_by_width([(number, leaves[number]) for number in known.tables])
        blocks = [] if contributions is None else contributions.blocks
        layers = [(layer_of(b, numbers, mine.groups), b) for b in blocks if not isinstance(b, Tables)]
        layers.sort(key=lambda pair: pair[0].weight)
        tables = [b for b in blocks if isinstance(b, Tables)]
        merged = [_merged(tables, leaves, some, mine, groups, tasks, ranks) for some in by_width]
        sums = TableSums.of(known.ids, known.sparse, leaves, ranks)
        description = Description(
            model=[digest_of(leaves), int(contributions is not None)],
            shared=known.shared,
            layers=[number for layer, _ in layers for number in layer.numbers],
            own=[] if contributions is None else sorted(numbers[id(parameter)] for parameter, _ in contributions.own),
            entries=[count for some in merged for count in some.counts],
            sums=sums.counts,
            order=[numbers[id(parameter)] for block in blocks for parameter in _in_order(block)],
            last_layer=known.last_layer,
        )
        return LocalPart(known, contributions, [block for _, block in layers], merged, by_width, sums, description)


def _chunks(numbers: Sequence[int], size: int) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(numbers[at : at + size]) for at in range(0, len(numbers), size))


def _in_order(block: Block) -> tuple[Tensor, ...]:
    """Return a block's parameters in the order of its `combine`, which has a bias first."""
    return block.parameters if isinstance(block, Tables) else block.parameters[::-1]


def _merged(
    blocks: Sequence[Tables],
    leaves: Sequence[Tensor],
    tables: Sequence[Table],
    mine: Slice,
    groups: Groups,
    tasks: int,
    ranks: int,
) -> Merged:
    """Return the entries of tables of one width."""
    first_ids = {id(leaves[table.number]): table.first for table in tables}
    some = [block for block in blocks if id(block.tables[0][0]) in first_ids]
    if some:
        return merge(some, first_ids, mine, groups.count, tasks, ranks)
    like = leaves[tables[0].number].detach()
    values = working(like).new_zeros(0, tasks * like.shape[1])
    return Merged(torch.zeros(0, dtype=torch.int64), values, (0,) * ranks)


def labels_of_all(labels: Sequence[Sequence[int]], slices: Sequence[Slice], groups: Groups, tasks: int) -> Tensor:
    """Return how many labelled examples each task has in each group, from what all ranks told. [K, n]"""
    total = torch.zeros(tasks, groups.count, dtype=torch.float64)
    for numbers, part in zip(labels, slices, strict=True):
        if part.examples:
            here = torch.tensor(numbers, dtype=torch.float64).view(tasks, -1)
            total[:, part.first : part.first + here.shape[1]] += here
    return total


def check_model(said: Sequence[Description]) -> None:
    """Refuse ranks whose losses reach different parameters."""
    if len({(one.model[0], *one.shared) for one in said}) > 1:
        counts = "; ".join(f"rank {rank}: {len(one.shared)} shared" for rank, one in enumerate(said))
        raise InputError(
            f"the losses do not reach the same parameters on all ranks, or share others ({counts}); every rank needs "
            "the same model and the same losses, also for examples without labels: use mask= for those"
        )
    active = [one for one in said if one.has_examples]
    if len({(tuple(one.own), len(one.entries), len(one.sums)) for one in active}) > 1:
        raise InputError(
            "the tasks reach different parameters of their own on different ranks; every rank needs the same model "
            "and the same losses"
        )


class DistributedRows:
    """`gdod.rows.Rows` of all ranks together."""

    def __init__(
        self,
        exchange: Exchange,
        groups: Groups,
        tasks: int,
        slices: tuple[Slice, ...],
        local: LocalPart,
        said: Sequence[Description],
        in_groups: Tensor | None,
    ) -> None:
        self.exchange, self.groups, self.tasks = exchange, groups, tasks
        self.local, self.said, self.leaves = local, said, local.known.leaves
        self.shares = shares_of(tasks, groups, in_groups)
        self.mine = slices[exchange.rank]
        self.shared = tuple(self.leaves[number] for number in local.known.shared)
        self.slow: tuple[SlowPath, ...] = () if local.contributions is None else local.contributions.slow
        self.passes = 0 if local.contributions is None else local.contributions.passes
        self.last_layer = frozenset(id(self.leaves[number]) for number in said[0].last_layer)
        self.precision, self.gram_error = precision(self.shared), GRAM_ERROR
        self.blocks = local.blocks
        layers = [one.described for one in said]
        if any(one.layout != other.layout for one in said for other in said if one.has_examples and other.has_examples):
            layers = self._one_by_one(layers)
        self.layout = ExchangeLayout(
            rank=exchange.rank,
            slices=slices,
            groups=groups.count,
            tasks=tasks,
            layers=tuple(layers),
            entries=tuple(_chunks(one.entries, exchange.ranks) for one in said),
            widths=tuple(self.leaves[tables[0].number].shape[1] for tables in local.by_width),
            dtype=self._dtype(),
        )

    def _dtype(self) -> torch.dtype:
        dtypes = {torch.float32 if p.dtype in (torch.bfloat16, torch.float16) else p.dtype for p in self.shared}
        return torch.float64 if torch.float64 in dtypes else torch.float32

    def _one_by_one(self, layers: Sequence[tuple[Layer, ...]]) -> list[tuple[Layer, ...]]:
        """Return each parameter as a layer of its own: examples mix in one rank's batch only, and blocks differ."""
        numbers = sorted({n for some in layers for layer in some for n in layer.parameters})
        parameters = [self.leaves[n] for n in numbers]
        self.blocks = apart(self.blocks, self.mine.groups.count * self.tasks, parameters, self._dtype())
        described = tuple(Layer(n, -1, 1, self.leaves[n].numel(), 0, 0, 0) for n in numbers)
        return [described if one.has_examples else () for one in self.said]

    @cached_property
    def sent(self) -> tuple[Tensor, list[int]]:
        """What this rank sends, in order of the ranks it goes to, and how much to each."""
        like = self.shared[0].detach().new_empty(0, dtype=self.layout.dtype) if self.shared else torch.empty(0)
        blocks = self.blocks if self.local.contributions is not None else []
        return pack(self.layout, blocks, self.local.merged, like)

    @cached_property
    def received(self) -> Tensor:
        """What came from all ranks, one after the other."""
        buffer, sizes = self.sent
        arriving = [self.layout.total(source, self.layout.rank) for source in range(self.layout.ranks)]
        received = self.exchange.all_to_all(buffer.detach(), sizes, arriving, "rows")
        return received.requires_grad_(torch.is_grad_enabled())

    @cached_property
    def columns(self) -> Columns:
        """This rank's columns of the contributions of all ranks."""
        return Columns(self.layout, self.received, self.leaves, self.local.by_width)

    def gram(self, precise: bool, only: Only = None) -> Tensor:
        self._partial = self.columns.gram(precise, only)
        self._total = self._sum_over_ranks(self._partial.detach()).requires_grad_(torch.is_grad_enabled())
        return self._total * self.shares.inverses

    def _sum_over_ranks(self, partial: Tensor) -> Tensor:
        """Return the sum of symmetric matrices, of which only one half is sent. [N, N]"""
        count = len(partial)
        if count == 0:
            return partial
        row, column = torch.triu_indices(count, count)
        half = self.exchange.all_reduce(partial[row, column], "Gram matrix").cpu()
        gram = torch.zeros(count, count, dtype=torch.float64)
        gram[row, column] = half
        gram[column, row] = half
        return gram

    def along(self, value: Tensor) -> tuple[Tensor, Tensor] | None:
        # The Gram matrix is a sum over ranks: each differentiates its own part as far back as what others sent it.
        if not value.requires_grad:
            return None
        (slopes,) = torch.autograd.grad(value, self._total)
        buffer, sizes = self.sent
        (cotangent,) = torch.autograd.grad(
            self._partial, self.received, slopes.to(self._partial), allow_unused=True, materialize_grads=True
        )
        arrived = [self.layout.total(source, self.layout.rank) for source in range(self.layout.ranks)]
        back = self.exchange.all_to_all(cotangent, arrived, sizes, "cotangents of rows")
        return buffer, back.to(buffer)

    def release(self) -> None:
        release()

    def products_with(self, weights: Tensor) -> Tensor | None:
        return None

    def combine(self, weights: Tensor) -> Gradients:
        scaled = weights * self.shares.inverse
        grads = [*sum_dense(self.exchange, self.leaves, self._own_part(scaled)), *self._of_tables(scaled)]
        # In the order of one process, so that random numbers that are drawn for one parameter after the other agree.
        order = next((one.order for one in self.said if one.has_examples), [])
        place = {id(self.leaves[number]): at for at, number in enumerate(order)}
        return sorted(grads, key=lambda pair: place.get(id(pair[0]), len(place)))

    def gradients(self, weights: Tensor | None, factors: Tensor | None) -> Gradients:
        private, private_tables = self._own_private(factors)
        scaled = None if weights is None else weights * self.shares.inverse
        own = [] if scaled is None else self._own_part(scaled)
        dense = sum_dense(self.exchange, self.leaves, [*own, *private])
        return [*dense, *([] if scaled is None else self._of_tables(scaled)), *private_tables]

    def _own_part(self, weights: Tensor) -> list[tuple[int, Tensor | None]]:
        """Return this rank's part of the weighted sums of contributions, but for tables."""
        first = self.mine.first * self.tasks
        here = weights[first : first + self.mine.groups.count * self.tasks]
        grads: dict[int, Tensor] = {}
        at = {id(leaf): number for number, leaf in enumerate(self.leaves)}
        for block in self.blocks if self.local.contributions is not None else ():
            for parameter, grad in block.combine(here.to(block.like)):
                grads[at[id(parameter)]] = grad
        return [(n, grads.get(n)) for layer in self.layout.common for n in layer.parameters]

    def _of_tables(self, weights: Tensor) -> Gradients:
        owned = [some.combine(weights) for some in self.columns.tables]
        grads = from_owners(self.exchange, owned, self.local.by_width, self.leaves, self.local.known.sparse)
        reached = {id(self.leaves[number]) for one in self.said for number in one.order}
        return [(table, grad) for table, grad in grads if id(table) in reached]

    def _own_private(self, factors: Tensor | None) -> tuple[list[tuple[int, Tensor | None]], Gradients]:
        """Return this rank's part of the private gradients, and those of tables over all ranks."""
        here, at = self.local.contributions, {id(leaf): number for number, leaf in enumerate(self.leaves)}
        private = {} if here is None else {at[id(p)]: grad for p, grad in here.private(factors)}
        numbers = next((one.own for one in self.said if one.has_examples), [])
        sums = self.local.sums
        dense = [(n, private.get(n)) for n in numbers if n not in sums.numbers]
        grads = [private.get(n) for n in sums.numbers]
        tables = sums.run(self.exchange, [one.sums for one in self.said], grads, self.leaves)
        return dense, [pair for n, pair in zip(sums.numbers, tables, strict=True) if n in numbers]
