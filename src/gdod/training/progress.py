"""What a person sees while a run goes on: a bar in a terminal, lines anywhere else, or nothing."""

from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from gdod._checks import visible

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bars
    from rich.progress import ProgressColumn, TaskID


_SHOWN_TASKS = 4  # in the line of an evaluation; the result has all


class Progress(Protocol):
    """What the training loop tells how far it is."""

    def start(self, steps: int, done: int) -> None:
        """Training of ``steps`` steps begins, or goes on after ``done`` of them."""

    def trained(self, step: int, loss: float) -> None:
        """Steps were made; called at every log time with the last loss."""

    def evaluated(self, step: int, metrics: dict[str, Any], best: bool) -> None:
        """The model was evaluated on the validation part; ``best``: better than ever before."""

    def say(self, text: str) -> None:
        """Show something that a person should know."""

    def close(self) -> None:
        """Training has ended, in whatever way."""


class Silent:
    """A `Progress` that shows nothing."""

    def start(self, steps: int, done: int) -> None: ...
    def trained(self, step: int, loss: float) -> None: ...
    def evaluated(self, step: int, metrics: dict[str, Any], best: bool) -> None: ...
    def say(self, text: str) -> None: ...
    def close(self) -> None: ...


class Display:
    """Lines on a console and, in a terminal, bars that stay below them until the display is closed.

    Displays of one run and of many are made of it. Without a console it shows nothing. As a context manager it
    closes itself.
    """

    console: "Console | None" = None
    bars: "Bars | None" = None

    def __init__(self, console: "Console | None" = None) -> None:
        self.console = console

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def in_terminal(self) -> bool:
        """Whether there is a terminal, which can show bars."""
        return self.console is not None and self.console.is_terminal

    def open_bars(
        self, columns: Sequence["ProgressColumn"], name: str, total: int, done: int, text: str, *, transient: bool
    ) -> "TaskID":
        """Show bars with these columns, and return the first; ``transient``: they vanish at the end."""
        from rich.progress import Progress

        self.bars = Progress(*columns, console=self.console, transient=transient)
        bar = self.bars.add_task(name, total=total, completed=done, text=text)
        self.bars.start()
        return bar

    def say(self, text: str) -> None:
        """Print a line, above the bars if there are any. Brackets in it are no markup."""
        if self.console is not None:
            self.console.print(visible(text), highlight=False, markup=False, soft_wrap=True)

    def close(self) -> None:
        """Take the bars away."""
        if self.bars is not None:
            self.bars.stop()
            self.bars = None


class Shown(Display):
    """A bar with loss, validation AUC and the time that remains; a line for each evaluation if it is no terminal."""

    def __init__(self, console: "Console") -> None:
        super().__init__(console)
        self.bar: TaskID | None = None
        self.steps = 0
        self.loss: float | None = None
        self.last = ""

    def start(self, steps: int, done: int) -> None:
        self.steps = steps
        if self.in_terminal:
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

            text = TextColumn("{task.fields[text]}", markup=False)  # names of tasks may have brackets
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), text, TimeRemainingColumn())
            self.bar = self.open_bars(columns, "training", steps, done, "", transient=False)

    def trained(self, step: int, loss: float) -> None:
        self.loss = loss
        self._update(step)

    def evaluated(self, step: int, metrics: dict[str, Any], best: bool) -> None:
        self.last = visible(_in_short(metrics))
        if self.bars is None and self.console is not None:
            loss = "" if self.loss is None else f"  loss {self.loss:.4f}"
            self.console.print(
                f"step {step}/{self.steps}{loss}  {self.last}{'  best' if best else ''}",
                highlight=False,
                markup=False,
                soft_wrap=True,
            )
        self._update(step)

    def _update(self, step: int) -> None:
        if self.bars is not None and self.bar is not None:
            loss = "" if self.loss is None else f"loss {self.loss:.4f} "
            self.bars.update(self.bar, completed=step, text=loss + self.last)


def _in_short(metrics: dict[str, Any]) -> str:
    """Return the mean AUC, if there is one, and the main metric of each task."""
    values = []
    for task, ours in metrics["tasks"].items():
        name = next((name for name in ("auc", "rmse", "log_loss") if ours.get(name) is not None), None)
        if name is not None:
            values.append(f"{task} {'' if name == 'auc' else f'{name} '}{ours[name]:.4f}")
    more = [f"{len(values) - _SHOWN_TASKS} more"] if len(values) > _SHOWN_TASKS else []
    tasks = ", ".join([*values[:_SHOWN_TASKS], *more])
    if metrics["mean_auc"] is None:
        return f"validation {tasks}" if tasks else ""
    return f"validation AUC {metrics['mean_auc']:.4f}" + (f" ({tasks})" if len(values) > 1 else "")
