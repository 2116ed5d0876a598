"""Choose the run of a front that is best for stated preferences or limits, on validation."""

import math
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from gdod._checks import nearest
from gdod.errors import InputError
from gdod.report.front import RIVAL, Front, FrontPoint

LINK = "chosen"
"""The name of the link to the chosen run in the folder of a front."""


@dataclass(frozen=True)
class Choice:
    """A run of a front, and why it was chosen."""

    point: FrontPoint
    """What it is a run of."""
    run: Path
    """The folder of the run, as `gdod predict` takes it."""
    value: float
    """The mean score on validation by which it was chosen, over tasks as they are preferred and over seeds."""


def choose(
    front: Front, prefer: Mapping[str, float] | None = None, at_least: Mapping[str, float] | None = None
) -> Choice:
    """Return the run that is best for preferences, among those that keep limits. Only validation is looked at.

    First the weighting or method whose mean over seeds is best, then the best of its runs. Rivals cannot be chosen.

    Args:
        front: the front, from `Front.read`.
        prefer: how much each task matters; 0 for tasks that are left out. None: all alike.
        at_least: the least score of a task that is accepted, by task.
    """
    shares, limits = _shares(front, prefer or {}), dict(at_least or {})
    for task, limit in limits.items():
        _check_task(front, task, "at_least")
        if not math.isfinite(limit):
            raise InputError(f"at_least: {task}={limit}; expected a number such as 0.78")
    points = [point for point in front.points if point.kind != RIVAL]
    for point in sorted(points, key=lambda point: -_value(point.validation, shares)):
        runs = {name: scores for name, scores in point.runs.items() if _keeps(scores, limits)}
        if runs and _keeps(point.validation, limits):
            best = max(runs, key=lambda name: _value(runs[name], shares))
            return Choice(point, front.folder / "runs" / best, _value(point.validation, shares))
    most = ", ".join(f"{task} {max(point.validation[task] for point in points):.4f}" for task in limits)
    together = " at once" if len(limits) > 1 else ""
    raise InputError(
        f"nothing on the front reaches {', '.join(f'{task} {limit:g}' for task, limit in limits.items())}{together} on "
        f"validation; the most that is reached is {most}. Ask for less, or train a wider front with a larger --span"
    )


def link_choice(choice: Choice, front: Front) -> Path:
    """Make the link `chosen` in the folder of the front lead to the run, and return it; the run if links cannot be."""
    link = front.folder / LINK
    if link.exists() and not link.is_symlink():
        raise InputError(f"{link} is there and no link; move it away, or use {choice.run} itself")
    new = link.with_name(f".{LINK}.part")
    with suppress(OSError):
        new.unlink(missing_ok=True)
        new.symlink_to(Path("runs") / choice.run.name, target_is_directory=True)
        os.replace(new, link)
        return link
    return choice.run


def predict_command(run: Path) -> str:
    """Return the command that predicts with a run."""
    return f"gdod predict {quote(str(run))} new.csv --out scores.csv"


def read_figures(text: str, option: str) -> dict[str, float]:
    """Return numbers by task from a text such as `buy=0.7,click=0.3`."""
    figures: dict[str, float] = {}
    for pair in text.split(","):
        task, sign, value = (part.strip() for part in pair.rpartition("="))
        try:
            figure = float(value)
        except ValueError:
            figure = math.nan
        if not sign or not task or math.isnan(figure):
            raise InputError(f"{option} {text!r}; expected tasks with numbers, e.g. {option} buy=0.7,click=0.3")
        if task in figures:
            raise InputError(f"{option} {text!r} names {task!r} twice")
        figures[task] = figure
    return figures


def _shares(front: Front, prefer: Mapping[str, float]) -> dict[str, float]:
    for task, share in prefer.items():
        _check_task(front, task, "prefer")
        if not 0 <= share < math.inf:
            raise InputError(f"prefer: {task}={share:g}; expected a number of at least 0")
    total = math.fsum(prefer.values())
    if prefer and not total:
        raise InputError("prefer: all numbers are 0; expected one above 0")
    return {task: share / total for task, share in prefer.items()} or dict.fromkeys(front.tasks, 1 / len(front.tasks))


def _check_task(front: Front, task: str, what: str) -> None:
    if task not in front.tasks:
        raise InputError(f"{what} names {task!r}; the tasks are {', '.join(front.tasks)}{nearest(task, front.tasks)}")


def _value(scores: Mapping[str, float], shares: Mapping[str, float]) -> float:
    return math.fsum(share * scores[task] for task, share in shares.items())


def _keeps(scores: Mapping[str, float], limits: Mapping[str, float]) -> bool:
    return all(scores[task] >= limit for task, limit in limits.items())
