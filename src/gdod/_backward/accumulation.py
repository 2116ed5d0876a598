"""`gdod.Accumulation`: one update from several micro-batches, each with a graph of its own.

Micro-batches in time are to each other what parts of a batch in several processes are in space: parts of groups,
whose rows are put together (`rows.joined`). Both go together: each process first joins what its own
micro-batches left.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from gdod._backward.info import Info
from gdod._backward.losses import Losses, Masks, Scaler, Tasks, TaskWeights, Totals, read
from gdod._backward.rank_checks import meet
from gdod._backward.shares import shares_of_groups
from gdod._backward.step import (
    checked_parameters,
    full_precision,
    groups_of,
    step_along,
    step_along_all,
)
from gdod.errors import InputError
from gdod.methods import GDOD, Method, PenaltyMethod, as_method
from gdod.rows import Groups, Rows, collect
from gdod.rows.distributed import Across, JoinedRows, ProcessGroup, Slice, Survey, exchange_over, slices_of


class Accumulation:
    """Gathers the rows of micro-batches, and makes of all of them the update of the whole batch.

        update = gdod.Accumulation(gdod.GDOD(groups=16), examples=1024)
        for micro_batch in micro_batches:
            update.add(losses(micro_batch))  # frees this micro-batch's graph
        info = update.backward()  # what gdod.backward does with all 1024 losses at once

    After `backward` (or `clear`) it takes the micro-batches of the next update. With several processes each
    adds its own micro-batches, equally many, and ``examples`` are those of this process.

    Args:
        method: as in `gdod.backward`; its ``groups`` are those of the whole update. Methods that
            differentiate task gradients (GradReg) are refused.
        examples: of the whole update, so that it is known beforehand where groups end.
        shared: as in `gdod.backward`, and so are the others.
        task_weights: one factor for each task's mean loss.
        scaler: a `torch.amp.GradScaler`.
        process_group: whose ranks have parts of the batch.
    """

    def __init__(
        self,
        method: Method | None = None,
        *,
        examples: int,
        shared: Iterable[Tensor] | None = None,
        task_weights: TaskWeights | None = None,
        scaler: Scaler | None = None,
        process_group: ProcessGroup | Literal["default"] | None = "default",
    ) -> None:
        self.method = GDOD() if method is None else as_method(method)
        if isinstance(self.method, PenaltyMethod):
            raise InputError(
                f"{self.method!r} differentiates task gradients a second time, for which the graphs of all "
                "micro-batches would have to stay; call gdod.backward for each micro-batch, or use another method"
            )
        if isinstance(examples, bool) or not isinstance(examples, int) or examples < 1:
            raise InputError(f"examples={examples!r}; expected how many examples the micro-batches have together")
        self.examples = examples
        self.shared = None if shared is None else checked_parameters(shared)
        self.task_weights, self.scaler, self.process_group = task_weights, scaler, process_group
        self._update: _Update | None = None

    @property
    def left(self) -> int:
        """How many examples are still to come before `backward`."""
        return self.examples - (0 if self._update is None else self._update.added)

    def clear(self) -> None:
        """Forgets the micro-batches that were added."""
        self._update = None

    def add(self, losses: Losses, *, mask: Masks | None = None) -> None:
        """Takes the next micro-batch: per-example losses, and which have a label, as in `gdod.backward`.

        Raises:
            InputError: without having taken anything.
        """
        exchange = exchange_over(self.process_group)
        across: Across | None = None
        if exchange is None:
            tasks = self._read(losses, mask, may_be_empty=False)
        else:
            tasks, _, across = meet(
                exchange,
                self.method,
                lambda: (self._read(losses, mask, may_be_empty=True), self.shared),
                False,
            )
        update = self._update
        if update is None:
            examples = [self.examples] if exchange is None else [some for (some,) in exchange.numbers([self.examples])]
            update = _Update(self.method, tasks, tuple(examples), 0 if exchange is None else exchange.rank)
        with torch.no_grad(), full_precision(tasks.values.device.type):
            update.add(tasks, self.shared, across)
        self._update = update

    def backward(self) -> Info:
        """Adds to `.grad` what `gdod.backward` would have for all micro-batches at once."""
        exchange = exchange_over(self.process_group)
        update = self._complete() if exchange is None else exchange.agree(lambda: (self._complete(), []))[0]
        self.clear()
        with torch.no_grad(), full_precision(update.tasks.values.device.type):
            return update.step(self.method)

    def _read(self, losses: Losses, mask: Masks | None, may_be_empty: bool) -> Tasks:
        tasks = read(losses, mask, self.task_weights, may_be_empty, self.scaler)
        batch = tasks.values.shape[1]
        if batch > self.left:
            raise InputError(
                f"a micro-batch of {batch} examples after {self.examples - self.left} of examples={self.examples}; "
                "call backward() when `left` is 0, and give the last update of an epoch an Accumulation of its own"
            )
        if self._update is not None:
            self._update.check(tasks)
        return tasks

    def _complete(self) -> "_Update":
        if self._update is None or self.left:
            raise InputError(
                f"{self.examples - self.left} of examples={self.examples} were added; add the others first, or make an "
                "Accumulation with as many as there are"
            )
        return self._update


class _Update:
    """What the micro-batches so far come to."""

    def __init__(self, method: Method, tasks: Tasks, sizes: tuple[int, ...], rank: int) -> None:
        """``sizes``: examples of the update in each process."""
        self.groups, self.sizes = groups_of(method, sum(sizes)), sizes
        self.mine = slices_of(self.groups, sizes)[rank]
        self.tasks = replace(tasks, targets=(), values=tasks.values[:, :0], labelled=None, totals=None)
        count = len(tasks.names)
        self.joined = JoinedRows(self.mine.groups, count)
        self.added = 0  # examples
        self.masked = False
        self.counts = torch.zeros(count, dtype=torch.float64)  # labelled examples in all processes [K]
        self.losses = torch.zeros(count, dtype=torch.float64)  # sums over those [K]
        self.in_groups = torch.zeros(count, self.mine.groups.count, dtype=torch.float64)  # labelled ones here [K, n]
        self.across: Across | None = None
        self.known: Survey | None = None

    def check(self, tasks: Tasks) -> None:
        """Refuses a micro-batch that does not go with those before."""
        first = self.tasks
        if tasks.names != first.names or tasks.values.dtype != first.values.dtype or tasks.scale != first.scale:
            found, before = (
                f"tasks {', '.join(map(repr, t.names))} with losses of {t.values.dtype}"
                + ("" if t.scale is None else f", scaled by {t.scale}")
                for t in (tasks, first)
            )
            raise InputError(
                f"this micro-batch has {found}, and the first one of the update has {before}; all micro-batches of an "
                "update need the same, with mask= for missing labels, and scaler.update() comes after backward()"
            )

    def add(self, tasks: Tasks, shared: list[Tensor] | None, across: Across | None) -> None:
        batch = tasks.values.shape[1]
        first, groups = self.mine.groups.part(self.added, batch) if batch else (0, Groups(0, 0, ()))
        part = Slice(self.added, batch, first, groups)

        def work() -> tuple[tuple[Rows | None, Survey | None], list[int]]:
            known = None
            if across is not None:
                # Once parameters have numbers, which all ranks give alike, it is enough to know them.
                at = across if self.known is None else replace(across, alike=True)
                known = at.survey(tasks.targets, tasks.active(), batch, shared)
                if self.known is not None:
                    self.known.check(known)
            if not batch:
                return (None, known), []
            rows = collect(tasks.targets, self._seeds(tasks), tasks.active(), groups, shared, retain_graph=False)
            self.joined.check(rows, part)
            return (rows, known), []

        (rows, known), _ = work() if across is None else across.exchange.agree(work)
        if rows is not None:
            self.joined.add(rows, part)
        if across is not None and known is not None:
            if self.known is None:
                self.known = known
            else:
                self.known.add(known)
            self.across = replace(across, sizes=self.sizes)
        self._count(tasks, part)
        self.masked = self.masked or (tasks.labelled is not None if across is None else across.masked)
        self.added += batch

    def _seeds(self, tasks: Tasks) -> Tensor:
        """As if every example of the update had a label: `step` corrects that, when it is known how many have."""
        examples = self.groups.examples
        return replace(tasks, totals=Totals(examples, torch.full((len(tasks.names),), examples), self.losses)).seeds()

    def _count(self, tasks: Tasks, part: Slice) -> None:
        counts = tasks.counts.to("cpu", torch.float64)
        self.counts += counts
        self.losses += torch.where(counts > 0, tasks.mean_losses() * counts, 0.0)
        labelled = torch.ones_like(tasks.values) if tasks.labelled is None else tasks.labelled
        here = self.in_groups[:, part.first : part.first + part.groups.count]
        if part.examples:
            here.index_add_(1, part.groups.of_example, labelled.to("cpu", torch.float64))

    def step(self, method: Method) -> Info:
        examples = self.groups.examples
        some = self.counts > 0
        factors = torch.where(some, examples / self.counts, 0.0)
        means = torch.where(some, self.losses / self.counts, torch.nan)
        tasks = replace(self.tasks, totals=Totals(examples, self.counts, means))
        if self.across is not None and self.known is not None:
            across = replace(self.across, masked=self.masked)
            of_all = across.join(self.groups, self.joined, factors, self.known, self.in_groups)
            return step_along_all(method, of_all, tasks, self.groups, across)
        rows = self.joined.rows(factors)
        assert rows is not None
        in_groups = self.in_groups if self.masked else None
        return step_along(method, rows, tasks, shares_of_groups(len(tasks.names), self.groups, in_groups))
