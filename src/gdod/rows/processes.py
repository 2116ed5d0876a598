"""The process or processes that a batch lies in: what a step asks of them is the same in one as in several."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, Self, TypeVar

from torch import Tensor

from gdod.rows.accumulated_rows import AccumulatedRows
from gdod.rows.collect import check_reached, collect
from gdod.rows.fully_sharded import write_parts
from gdod.rows.grads import accumulate, accumulate_quietly
from gdod.rows.groups import Groups
from gdod.rows.parts import Slice, slice_of
from gdod.rows.passes import differentiate, gradients
from gdod.rows.rows import Gradients, LocalRows, Rows, unaliased
from gdod.rows.shares import labels_in, shares_of
from gdod.rows.targets import Target


@dataclass
class LocalLosses:
    """What backward passes start from: the losses of this process's examples in the graph."""

    targets: Sequence[Target]
    seeds: Tensor  # the weight of each example in its task's mean [K, B]
    active: Sequence[int]  # the tasks for which weights are not all zero
    labelled: Tensor | None  # [K, B], bool; None: everything is
    shared: Sequence[Tensor] | None  # the parameters to take as shared; None: those that two tasks reach


class Packed(Protocol):
    """Something that can be sent as one vector of float64."""

    def packed(self) -> Tensor: ...

    def unpacked(self, values: Tensor) -> Self: ...


P = TypeVar("P", bound=Packed)


class Accumulated(Protocol):
    """Rows of micro-batches, in one process or in several."""

    groups: Groups  # of the whole batch
    mine: Slice  # the part of the batch that lies in this process

    def add(self, losses: LocalLosses, part: Slice) -> None:
        """Add a micro-batch, which is this part of `mine`, or raise without having taken anything."""

    def rows(self, factors: Tensor, in_groups: Tensor, masked: bool) -> Rows:
        """Return the rows of all micro-batches, those of each task times its factor [K].

        ``in_groups`` [K, groups of `mine`]: labelled examples; ``masked``: whether some are not labelled.
        """


class Processes(Protocol):
    """Where the batch lies."""

    def collect(self, losses: LocalLosses, groups: Groups, retain_graph: bool) -> Rows:
        """Run the backward passes and return the rows of these groups of the whole batch."""

    def differentiate(
        self, losses: LocalLosses, retain_graph: bool, further: tuple[Tensor, Tensor] | None = None
    ) -> None:
        """Add to `.grad` the gradients of the sum of the losses of all processes, times their seeds.

        ``further``: a tensor that is to be differentiated along with the losses, and its cotangent.
        """

    def write(self, grads: Gradients) -> None:
        """Add gradients of the whole batch to `.grad`."""

    def settle(self, weights: P) -> P:
        """Return the first process's weights, so that not even rounding can make processes decide differently."""

    def accumulate(
        self, before: Accumulated | None, examples: int, groups_of: Callable[[int], Groups], tasks: int
    ) -> Accumulated:
        """Return what takes the next micro-batch: ``before`` if there is one, or a new one for so many examples here.

        ``groups_of``: from the number of examples of the whole batch to its groups.
        """


@dataclass(frozen=True)
class OneProcess:
    """`Processes` where the whole batch lies in this one."""

    quiet: bool  # whether hooks on autograd's own nodes must not be called, because they wait for other ranks

    def collect(self, losses: LocalLosses, groups: Groups, retain_graph: bool) -> Rows:
        contributions = collect(losses.targets, losses.seeds, losses.active, groups, losses.shared, retain_graph)
        in_groups = None if losses.labelled is None else labels_in(groups, losses.labelled)
        return LocalRows(contributions, shares_of(len(losses.targets), groups, in_groups))

    def differentiate(
        self, losses: LocalLosses, retain_graph: bool, further: tuple[Tensor, Tensor] | None = None
    ) -> None:
        if losses.shared is not None:
            check_reached(losses.targets, losses.shared)
        if self.quiet:
            self.write([*unaliased(gradients(losses.targets, losses.seeds, retain_graph, further))])
        else:
            differentiate(losses.targets, losses.seeds, retain_graph, None if further is None else further[0])

    def write(self, grads: Gradients) -> None:
        if not self.quiet:
            for parameter, grad in grads:
                accumulate(parameter, grad)
            return
        for parameter, grad in write_parts(grads, ()):
            accumulate_quietly(parameter, grad)

    def settle(self, weights: P) -> P:
        return weights

    def accumulate(
        self, before: Accumulated | None, examples: int, groups_of: Callable[[int], Groups], tasks: int
    ) -> Accumulated:
        return before or LocalAccumulated(groups_of(examples), tasks)


class LocalAccumulated:
    """`Accumulated` where there is only this process."""

    def __init__(self, groups: Groups, tasks: int) -> None:
        self.groups, self.mine = groups, slice_of(groups, 0, groups.examples)
        self._sum = AccumulatedRows(groups, tasks)

    def add(self, losses: LocalLosses, part: Slice) -> None:
        contributions = collect(losses.targets, losses.seeds, losses.active, part.groups, losses.shared, False)
        self._sum.check(contributions, part)
        self._sum.add(contributions, part)

    def rows(self, factors: Tensor, in_groups: Tensor, masked: bool) -> Rows:
        contributions = self._sum.contributions(factors)
        assert contributions is not None
        return LocalRows(contributions, shares_of(len(factors), self.groups, in_groups if masked else None))
