"""What a person sees while a run goes on: a bar in a terminal, lines anywhere else, or nothing."""

from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bars
    from rich.progress import TaskID


class Progress(Protocol):
    """Told by the loop how far it is. `gdod compare` has one of its own for many runs."""

    def start(self, steps: int, done: int) -> None:
        """Training of ``steps`` steps begins, or goes on after ``done`` of them."""
        ...

    def trained(self, step: int, loss: float) -> None:
        """At every log time."""
        ...

    def evaluated(self, step: int, metrics: dict[str, Any], best: bool) -> None: ...

    def say(self, text: str) -> None:
        """Something a person should know."""
        ...

    def close(self) -> None: ...


class Silent:
    """Says nothing."""

    def start(self, steps: int, done: int) -> None: ...
    def trained(self, step: int, loss: float) -> None: ...
    def evaluated(self, step: int, metrics: dict[str, Any], best: bool) -> None: ...
    def say(self, text: str) -> None: ...
    def close(self) -> None: ...


class Shown:
    """A bar with loss, validation AUC and the time that remains; a line for each evaluation if it is no terminal."""

    def __init__(self, console: "Console") -> None:
        self.console = console
        self.bars: Bars | None = None
        self.bar: TaskID | None = None
        self.steps = 0
        self.loss: float | None = None
        self.last = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self, steps: int, done: int) -> None:
        self.steps = steps
        if not self.console.is_terminal:
            return
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self.bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[text]}", markup=False),  # names of tasks may have brackets
            TimeRemainingColumn(),
            console=self.console,
        )
        self.bar = self.bars.add_task("training", total=steps, completed=done, text="")
        self.bars.start()

    def trained(self, step: int, loss: float) -> None:
        self.loss = loss
        self._update(step)

    def evaluated(self, step: int, metrics: dict[str, Any], best: bool) -> None:
        self.last = _in_short(metrics)
        if self.bars is None:
            loss = "" if self.loss is None else f"  loss {self.loss:.4f}"
            self.console.print(
                f"step {step}/{self.steps}{loss}  {self.last}{'  best' if best else ''}", highlight=False, markup=False
            )
        self._update(step)

    def say(self, text: str) -> None:
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def close(self) -> None:
        if self.bars is not None:
            self.bars.stop()
            self.bars = None

    def _update(self, step: int) -> None:
        if self.bars is not None and self.bar is not None:
            loss = "" if self.loss is None else f"loss {self.loss:.4f} "
            self.bars.update(self.bar, completed=step, text=loss + self.last)


def _in_short(metrics: dict[str, Any]) -> str:
    if metrics["mean_auc"] is not None:
        return f"validation AUC {metrics['mean_auc']:.4f}"
    values = []
    for task, found in metrics["tasks"].items():
        name = "rmse" if "rmse" in found else "log_loss"
        if found.get(name) is not None:
            values.append(f"{task} {name} {found[name]:.4f}")
    return "validation " + ", ".join(values) if values else ""
