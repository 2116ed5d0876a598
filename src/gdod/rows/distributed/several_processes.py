"""`gdod.rows.processes.Processes` where the batch lies in several processes, one part after the other."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from torch import Tensor

from gdod.errors import InputError
from gdod.ranks import Exchange
from gdod.rows.accumulated_rows import AccumulatedRows
from gdod.rows.collect import check_among, collect
from gdod.rows.distributed.distributed_rows import Description, DistributedRows, LocalPart, check_model, labels_of_all
from gdod.rows.distributed.rank_parameters import lookups, ordered_leaves, refuse_sharded
from gdod.rows.distributed.sums import TableSums, sum_dense
from gdod.rows.distributed.survey import Survey, digest_of, survey
from gdod.rows.fully_sharded import kept_whole, whole_of, write_parts
from gdod.rows.grads import accumulate_quietly
from gdod.rows.graph import walk
from gdod.rows.groups import Groups
from gdod.rows.parts import Slice, slices_of
from gdod.rows.passes import derivatives
from gdod.rows.processes import Accumulated, LocalLosses, P
from gdod.rows.rows import Contributions, Gradients, Rows
from gdod.rows.shares import labels_in


@dataclass(frozen=True)
class SeveralProcesses:
    """A batch that lies in several processes."""

    exchange: Exchange
    sizes: tuple[int, ...]  # examples of each rank
    masked: bool  # whether some rank has examples without a label
    alike: bool  # whether the graphs of all ranks have the same structure

    def collect(self, losses: LocalLosses, groups: Groups, retain_graph: bool) -> Rows:
        slices = slices_of(groups, self.sizes)
        mine = slices[self.exchange.rank]
        losses = replace(losses, shared=whole_of(losses.shared))

        def work() -> tuple[Survey, Contributions | None, Tensor]:
            known = survey(losses, mine.examples, self.alike)
            if not mine.examples:
                return known, None, torch.zeros(len(losses.targets), 0)
            labelled = torch.ones_like(losses.seeds) if losses.labelled is None else losses.labelled
            return known, _collect(losses, mine, retain_graph), labels_in(mine.groups, labelled)

        return self._exchanged(work, slices, groups, len(losses.targets))

    def _exchanged(
        self,
        work: Callable[[], tuple[Survey, Contributions | None, Tensor]],
        slices: tuple[Slice, ...],
        groups: Groups,
        tasks: int,
    ) -> DistributedRows:
        """Do ``work``, which returns what this rank has of the batch, and return the rows of all ranks."""
        ranks, mine = self.exchange.ranks, slices[self.exchange.rank]

        def told_work() -> tuple[LocalPart, list[int]]:
            known, contributions, labels = work()
            local = LocalPart.of(known, contributions, mine, groups, tasks, ranks)
            return local, [*local.description.numbers(), *(labels.flatten().long().tolist() if self.masked else [])]

        local, told = self.exchange.agree(told_work)
        said, labels = zip(*map(Description.read, told), strict=True)
        check_model(said)
        in_groups = labels_of_all(labels, slices, groups, tasks) if self.masked else None
        return DistributedRows(self.exchange, groups, tasks, slices, local, said, in_groups)

    def differentiate(
        self, losses: LocalLosses, retain_graph: bool, further: tuple[Tensor, Tensor] | None = None
    ) -> None:
        def work() -> tuple[_Plain, list[int]]:
            graph = walk([target.node for target in losses.targets])
            refuse_sharded(graph)
            with kept_whole(map(graph.leaf, graph.leaves())):
                order = ordered_leaves(graph, self.alike)
            leaves = [graph.leaf(leaf) for leaf in order]
            check_among(set(map(id, leaves)), whole_of(losses.shared) or ())
            tables = lookups(graph, order)
            ids = {number: table.ids().unique() for number, table in tables.items()}
            sparse = {number: table.sparse for number, table in tables.items()}
            sums = TableSums.of(ids, sparse, leaves, self.exchange.ranks)
            grads = derivatives(losses.targets, losses.seeds, leaves, retain_graph, further)
            plain = _Plain(leaves, list(grads), sums)
            return plain, plain.numbers()

        plain, told = self.exchange.agree(work)
        _check_leaves([numbers[:2] for numbers in told])
        count = len(plain.leaves)
        reached = [any(numbers[2 + n] for numbers in told) for n in range(count)]
        counts = [numbers[2 + count :] for numbers in told]
        dense = [(n, plain.grads[n]) for n in range(count) if reached[n] and n not in plain.sums.numbers]
        summed = sum_dense(self.exchange, plain.leaves, dense)
        tables = plain.sums.run(self.exchange, counts, [plain.grads[n] for n in plain.sums.numbers], plain.leaves)
        self.write([*summed, *(pair for n, pair in zip(plain.sums.numbers, tables, strict=True) if reached[n])])

    def write(self, grads: Gradients) -> None:
        for parameter, grad in write_parts(grads, dist.get_process_group_ranks(self.exchange.group)):
            accumulate_quietly(parameter, grad)

    def settle(self, weights: P) -> P:
        return weights.unpacked(self.exchange.broadcast(weights.packed(), "weights"))

    def accumulate(
        self, before: Accumulated | None, examples: int, groups_of: Callable[[int], Groups], tasks: int
    ) -> Accumulated:
        if isinstance(before, DistributedAccumulated):
            before.processes = replace(self, masked=self.masked or before.processes.masked)
            return before
        sizes = tuple(size for (size,) in self.exchange.numbers([examples]))
        return DistributedAccumulated(self, groups_of(sum(sizes)), sizes, tasks)


def _collect(losses: LocalLosses, part: Slice, retain_graph: bool) -> Contributions:
    return collect(losses.targets, losses.seeds, losses.active, part.groups, losses.shared, retain_graph)


class DistributedAccumulated:
    """`gdod.rows.processes.Accumulated` where other processes have micro-batches of the batch, too."""

    def __init__(self, processes: SeveralProcesses, groups: Groups, sizes: tuple[int, ...], tasks: int) -> None:
        """Start without micro-batches. ``sizes``: examples of the whole batch in each process."""
        self.processes, self.groups, self.sizes = processes, groups, sizes
        self.mine = slices_of(groups, sizes)[processes.exchange.rank]
        self._sum = AccumulatedRows(self.mine.groups, tasks)
        self._known: Survey | None = None

    def add(self, losses: LocalLosses, part: Slice) -> None:
        losses = replace(losses, shared=whole_of(losses.shared))

        def work() -> tuple[tuple[Survey, Contributions | None], list[int]]:
            # Once parameters have numbers, which all ranks give alike, it is enough to know them.
            known = survey(losses, part.examples, self.processes.alike or self._known is not None)
            if self._known is not None:
                self._known.check(known)
            if not part.examples:
                return (known, None), []
            contributions = _collect(losses, part, retain_graph=False)
            self._sum.check(contributions, part)
            return (known, contributions), []

        (known, contributions), _ = self.processes.exchange.agree(work)
        if contributions is not None:
            self._sum.add(contributions, part)
        if self._known is None:
            self._known = known
        else:
            self._known.add(known)

    def rows(self, factors: Tensor, in_groups: Tensor, masked: bool) -> Rows:
        def work() -> tuple[Survey, Contributions | None, Tensor]:
            assert self._known is not None
            return self._known, self._sum.contributions(factors), in_groups

        return self.processes._exchanged(work, slices_of(self.groups, self.sizes), self.groups, len(factors))


@dataclass(frozen=True)
class _Plain:
    """Gradients of this rank's losses, of all parameters that they reach."""

    leaves: list[Tensor]
    grads: list[Tensor | None]
    sums: TableSums

    def numbers(self) -> list[int]:
        reached = [int(grad is not None) for grad in self.grads]
        return [digest_of(self.leaves), len(self.leaves), *reached, *self.sums.counts]


def _check_leaves(told: Sequence[Sequence[int]]) -> None:
    if len(set(map(tuple, told))) > 1:
        counts = "; ".join(f"rank {rank}: {count} parameters" for rank, (_, count) in enumerate(told))
        raise InputError(
            f"the losses do not reach the same parameters on all ranks ({counts}); every rank needs the same model and "
            "the same losses, also for examples without labels: use mask= for those"
        )
