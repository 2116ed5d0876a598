"""What a person sees while many runs go on: bars in a terminal, a line for each run anywhere else, or nothing."""

import time
from typing import TYPE_CHECKING, Any

from gdod.report.numbers import duration
from gdod.training.progress import Display

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID

    from gdod.experiments.pool import Ended, Job

Json = dict[str, Any]


class Watch(Display):
    """Is told how far many runs are, and shows nothing. What follows runs in another way derives from it."""

    def begin(self, runs: int, finished: int) -> None:
        """There are ``runs`` in all, of which some were finished before."""

    def told(self, job: "Job", event: Json) -> None:
        """A process told something of a run: `worker.Told` has the kinds of events."""

    def ended(self, ended: "Ended") -> None:
        """A run has finished or failed."""


class ShownRuns(Watch):
    """A bar for all runs, with the time that remains, and one for each run that is going on."""

    def __init__(self, console: "Console") -> None:
        super().__init__(console)
        self.whole: TaskID | None = None
        self.rows: dict[str, TaskID] = {}
        self.texts: dict[str, dict[str, str]] = {}
        self.amounts = Amounts(0, 0)

    def begin(self, runs: int, finished: int) -> None:
        self.amounts = Amounts(runs, finished)
        if finished:
            self.say(f"{finished} of {runs} runs are finished already")
        if not self.in_terminal or finished == runs:
            return
        from rich.progress import BarColumn, TaskProgressColumn, TextColumn

        name, text = (TextColumn(f"{{task.{what}}}", markup=False) for what in ("description", "fields[text]"))
        columns = (name, BarColumn(bar_width=20), TaskProgressColumn(), text)
        self.whole = self.open_bars(columns, "all runs", runs, finished, f"{finished}/{runs}", transient=True)

    def told(self, job: "Job", event: Json) -> None:
        name, kind = job.name, event["kind"]
        self.amounts.told(name, event)
        texts = self.texts.setdefault(name, {})
        if kind == "trained" and event["loss"] is not None:
            texts["loss"] = f"loss {event['loss']:.4f}"
        if kind == "evaluated" and event["mean_auc"] is not None:
            texts["auc"] = f"validation AUC {event['mean_auc']:.4f}"
        if self.bars is None or self.whole is None:
            return
        if name not in self.rows:
            self.rows[name] = self.bars.add_task(name, total=None, text="")
        self.bars.update(
            self.rows[name],
            total=self.amounts.steps.get(name),
            completed=self.amounts.now.get(name, 0),
            text=" ".join(texts.values()),
        )
        self._update_whole()

    def ended(self, ended: "Ended") -> None:
        self.amounts.ended(ended.job.name)
        if self.bars is not None and ended.job.name in self.rows:
            self.bars.remove_task(self.rows.pop(ended.job.name))
        self._update_whole()
        count = f"[{self.amounts.finished}/{self.amounts.runs}]"
        left = self.amounts.left()
        rest = f", {duration(left)} left" if self.bars is None and left else ""
        self.say(f"{count} {ended.job.name}: {_outcome(ended)}{rest}")

    def _update_whole(self) -> None:
        if self.bars is not None and self.whole is not None:
            left = self.amounts.left()
            text = f"{self.amounts.finished}/{self.amounts.runs}"
            text += f", {duration(left)} left" if left else ""
            self.bars.update(self.whole, completed=self.amounts.done, text=text)


class Amounts:
    """How much of many runs is done, and how long the rest takes."""

    def __init__(self, runs: int, finished: int) -> None:
        self.runs, self.finished = runs, finished
        self.before: float = finished
        """How many runs were done when it began, with parts of those that went on."""
        self.steps: dict[str, int] = {}
        self.now: dict[str, int] = {}
        self.began: float | None = None

    @property
    def done(self) -> float:
        """How many runs are done, with parts of those that are going on."""
        return self.finished + sum(self._share(name) for name in self.now)

    def told(self, name: str, event: Json) -> None:
        if event["kind"] == "started":
            self.steps[name], self.now[name] = event["steps"], event["done"]
            self.before += self._share(name)
            self.began = self.began or time.monotonic()
        elif event["kind"] in ("trained", "evaluated"):
            self.now[name] = event["step"]

    def ended(self, name: str) -> None:
        self.finished += 1
        self.now.pop(name, None)

    def left(self) -> float | None:
        """Return the seconds that remain, once enough is done to tell."""
        worked = self.done - self.before
        if self.began is None or worked < 0.05:
            return None
        return (time.monotonic() - self.began) / worked * (self.runs - self.done)

    def _share(self, name: str) -> float:
        return self.now[name] / self.steps[name] if self.steps.get(name) else 0.0


def _outcome(ended: "Ended") -> str:
    if ended.result is None:
        return f"failed: {ended.message}"
    metrics = ended.result["test"] or ended.result["validation"]
    part = "test" if ended.result["test"] else "validation"
    auc = metrics and metrics["mean_auc"]
    shown = "" if auc is None else f"mean AUC {auc:.4f} on {part}, "
    return f"{shown}{duration(ended.result['seconds'])} of training"
