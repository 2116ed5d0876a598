"""`gdod.Accumulation`: one update from several micro-batches, each with a graph of its own.

Micro-batches in time are to each other what parts of a batch in several processes are in space: parts of groups,
whose contributions are added up (`gdod.rows.parts`). Both go together: each process first adds up those of its own
micro-batches.
"""

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from gdod._backward.info import Info
from gdod._backward.inputs import Inputs, checked_parameters, read_inputs
from gdod._backward.losses import Losses, Masks, Scaler, Tasks, TaskWeights, Totals, read
from gdod._backward.step import full_precision, groups_of, step_along
from gdod.errors import InputError
from gdod.methods import GDOD, Method, PenaltyMethod, as_method
from gdod.ranks import ProcessGroup, exchange_over
from gdod.rows import Accumulated, LocalLosses, labels_in, slice_of


class Accumulation:
    """Gather the rows of micro-batches, and make of all of them the update of the whole batch.

        update = gdod.Accumulation(gdod.GDOD(groups=16), examples=1024)
        for micro_batch in micro_batches:
            update.add(losses(micro_batch))  # frees this micro-batch's graph
        info = update.backward()  # what gdod.backward does with all 1024 losses at once

    After `backward` (or `clear`) it takes the micro-batches of the next update. With several processes each
    adds its own micro-batches, equally many, and ``examples`` are those of this process.

    Args:
        method: as in `gdod.backward`; its ``groups`` are those of the whole update. Methods that
            differentiate task gradients (GradReg) are refused.
        examples: how many the whole update has, so that it is known beforehand where groups end.
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
        """The number of examples that are still to come before `backward`."""
        return self.examples - (0 if self._update is None else self._update.added)

    def clear(self) -> None:
        """Forget the micro-batches that were added."""
        self._update = None

    def add(self, losses: Losses, *, mask: Masks | None = None) -> None:
        """Take the next micro-batch: per-example losses, and which have a label, as in `gdod.backward`.

        Raises:
            InputError: without having taken anything.
        """
        inputs = read_inputs(
            self.process_group,
            self.method,
            lambda may_be_empty: (self._read(losses, mask, may_be_empty), self.shared),
            diagnose=False,
        )
        before = None if self._update is None else self._update.accumulated
        accumulated = inputs.processes.accumulate(
            before, self.examples, partial(groups_of, self.method), len(inputs.tasks.names)
        )
        update = self._update or _Update(inputs, accumulated)
        with torch.no_grad(), full_precision(inputs.tasks.values.device.type):
            update.add(inputs)
        self._update = update

    def backward(self) -> Info:
        """Add to `.grad` what `gdod.backward` would have for all micro-batches at once."""
        update, _ = exchange_over(self.process_group).agree(lambda: (self._complete(), ()))
        self.clear()
        with torch.no_grad(), full_precision(update.inputs.tasks.values.device.type):
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

    def __init__(self, inputs: Inputs, accumulated: Accumulated) -> None:
        tasks, count = inputs.tasks, len(inputs.tasks.names)
        first = replace(tasks, targets=(), values=tasks.values[:, :0], labelled=None, totals=None, own_means=None)
        self.inputs, self.accumulated = replace(inputs, tasks=first), accumulated
        self.added = 0  # examples
        self.masked = False
        self.counts = torch.zeros(count, dtype=torch.float64)  # labelled examples in all processes [K]
        self.losses = torch.zeros(count, dtype=torch.float64)  # sums over those [K]
        self.in_groups = torch.zeros(count, accumulated.mine.groups.count, dtype=torch.float64)  # labelled here [K, n]

    def check(self, tasks: Tasks) -> None:
        """Refuse a micro-batch that does not go with those before."""
        first = self.inputs.tasks
        if tasks.names != first.names or tasks.values.dtype != first.values.dtype or tasks.scale != first.scale:
            given, before = (
                f"tasks {', '.join(map(repr, t.names))} with losses of {t.values.dtype}"
                + ("" if t.scale is None else f", scaled by {t.scale}")
                for t in (tasks, first)
            )
            raise InputError(
                f"this micro-batch has {given}, and the first one of the update has {before}; all micro-batches of an "
                "update need the same, with mask= for missing labels, and scaler.update() comes after backward()"
            )

    def add(self, inputs: Inputs) -> None:
        """Add the rows of a micro-batch."""
        tasks, batch = inputs.tasks, inputs.tasks.values.shape[1]
        part = slice_of(self.accumulated.mine.groups, self.added, batch)
        # As if every example of the update had a label: `step` corrects that, when it is known how many have.
        examples = self.accumulated.groups.examples
        every = replace(tasks, totals=Totals(examples, torch.full((len(tasks.names),), examples), self.losses))
        losses = LocalLosses(tasks.targets, every.seeds(), tasks.active(), tasks.labelled, inputs.shared)
        self.accumulated.add(losses, part)
        counts = tasks.counts.to("cpu", torch.float64)
        self.counts += counts
        self.losses += torch.where(counts > 0, tasks.mean_losses() * counts, 0.0)
        if batch:
            labelled = torch.ones_like(tasks.values) if tasks.labelled is None else tasks.labelled
            self.in_groups[:, part.first : part.first + part.groups.count] += labels_in(part.groups, labelled)
        self.masked = self.masked or tasks.labelled is not None
        self.added += batch

    def step(self, method: Method) -> Info:
        """Make the update of all micro-batches."""
        some, examples = self.counts > 0, self.accumulated.groups.examples
        factors = torch.where(some, examples / self.counts, 0.0)
        means = torch.where(some, self.losses / self.counts, torch.nan)
        tasks = replace(self.inputs.tasks, totals=Totals(examples, self.counts, means))
        rows = self.accumulated.rows(factors, self.in_groups, self.masked)
        return step_along(method, rows, replace(self.inputs, tasks=tasks))
