"""Draw the plots of a study: learning curves, conflict, calibration. Each with the numbers it is drawn from."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from gdod.report import svg
from gdod.report.numbers import duration, number, short, whole
from gdod.report.runs import Json, RunRecord, part
from gdod.report.study import HIGHER, TITLES, Setting, Study, as_number
from gdod.report.tables import TextTable

_MOST_POINTS = 80  # on a line; more cannot be told apart at the size of the plots
_MOST_ROWS = 40


class Point(NamedTuple):
    """A value at a moment of a run."""

    step: float
    seconds: float
    value: float


class Curve(NamedTuple):
    """The mean over seeds, with the lowest and highest, at the steps that all of them reached."""

    setting: Setting
    points: list[Point]
    lowest: list[float]
    highest: list[float]


@dataclass(frozen=True)
class Figure:
    """A plot, and its numbers as a table."""

    title: str
    drawings: tuple[str, ...]
    """The plot as SVG: by steps and by time, or in one form."""
    numbers: TextTable
    """What it is drawn from."""
    size: str = "usual"
    """How many fit beside each other: many if "small", three if "usual", two if "broad", one if "alone"."""


@dataclass(frozen=True)
class Chapter:
    """Figures that belong together, with a title and a text above them."""

    title: str
    text: str
    figures: tuple[Figure, ...]
    timed: bool = False
    """Whether each figure has a form by steps and one by time."""
    table: TextTable | None = None
    """A table below the figures."""


def learning_chapters(study: Study, model: str) -> list[Chapter]:
    """Return the curves of each metric on validation data, and of the training losses."""
    settings = [setting for setting in study.settings if setting.model == model]
    chapters = []
    for metric in TITLES:
        tasks: list[str | None] = [*study.tasks_with(metric)]
        if len(study.headlines.get(metric, ())) > 1:
            tasks.insert(0, None)
        figures = [
            _figure(
                study.title_of(metric) if task is None else task,
                _curves(settings, partial(_evaluated, study=study, metric=metric, task=task)),
                TITLES[metric],
                trim_low=0.15 if HIGHER[metric] else 0,
                trim_high=0 if HIGHER[metric] else 0.15,
                broad=in_twos(tasks),
            )
            for task in tasks
        ]
        if any(figures):
            better = "Higher is better." if HIGHER[metric] else "Lower is better."
            title = f"{TITLES[metric][:1].upper()}{TITLES[metric][1:]} on validation"
            chapters.append(Chapter(title, better, _there(figures), timed=True))
    broad = in_twos(study.tasks)
    losses = [
        _figure(
            name, _curves(settings, partial(_trained, what="losses", name=name)), "loss", trim_high=0.05, broad=broad
        )
        for name, _ in study.tasks
    ]
    if any(losses):
        text = "The losses of training batches, averaged over neighbouring steps."
        chapters.append(Chapter("Training loss", text, _there(losses), timed=True))
    return chapters


def conflict_chapters(study: Study, model: str) -> list[Chapter]:
    """Return cosines between tasks and what methods keep of gradients: over time, and by pairs of tasks."""
    # Single-task models share no parameters that tasks could fight over.
    settings = [setting for setting in study.settings if setting.model == model and not setting.is_single_task]
    kept = (("share of gradient energy kept", "energy_kept"), ("share of directions kept", "directions_kept"))
    over_time = [
        _figure("mean cosine between task gradients", _curves(settings, _mean_cosines), "cosine"),
        *(
            _figure(title, _curves(settings, partial(_trained, what="conflict", name=name)), "share")
            for title, name in kept
        ),
    ]
    chapters = []
    if any(over_time):
        text = (
            "Below 0, tasks pull the shared parameters in opposite directions. Kept is what a method leaves of the "
            "task gradients; the plain sum keeps all."
        )
        chapters.append(Chapter("Over time", text, _there(over_time), timed=True))
    matrices = {setting: matrix for setting in settings if (matrix := _pair_cosines(setting, len(study.tasks)))}
    if matrices and len(study.tasks) > 1:
        chapters.append(_pairs(study, matrices))
    return chapters


def calibration_chapter(study: Study, model: str) -> Chapter | None:
    """Return observed against predicted rates of each binary task; None if no run has them."""
    settings = [setting for setting in study.settings if setting.model == model]
    binary = [name for name, kind in study.tasks if kind == "binary"]
    figures = [_calibration(name, settings, before) for name in binary for before in (True, False)]
    if not any(figures):
        return None
    text = (
        "Examples sorted by their predicted probability and put into bins: the share of positives against the mean "
        "prediction. On the diagonal both are equal; below it, predictions are too high."
    )
    return Chapter("Calibration", text, _there(figures))


def conflict_of(setting: Setting, tasks: int) -> list[list[float | None]] | None:
    """Return mean cosines between the tasks' gradients over training; None if they share no parameters."""
    return None if setting.is_single_task else _pair_cosines(setting, tasks)


def in_twos(items: Sequence[object]) -> bool:
    """Return whether so many plots look better two in a row than three."""
    return len(items) in (1, 2, 4)


def _there(figures: Iterable[Figure | None]) -> tuple[Figure, ...]:
    return tuple(figure for figure in figures if figure is not None)


def _evaluated(run: RunRecord, study: Study, metric: str, task: str | None) -> list[Point]:
    tasks = study.headlines[metric] if task is None else (task,)
    points = []
    for record in run.evaluations:
        if record.get("part", "validation") != "validation":
            continue
        values = [as_number(part(part(record, "tasks"), name).get(metric)) for name in tasks]
        known = [value for value in values if value is not None]
        if known:
            points.append(_point(record, math.fsum(known) / len(known)))
    return points


def _trained(run: RunRecord, what: str, name: str) -> list[Point]:
    values = [(record, as_number(part(record, what).get(name))) for record in run.train]
    return [_point(record, value) for record, value in values if value is not None]


def _mean_cosines(run: RunRecord) -> list[Point]:
    points = []
    for record in run.train:
        pairs = [value for value in _off_diagonal(_matrix(record)) if value is not None]
        if pairs:
            points.append(_point(record, math.fsum(pairs) / len(pairs)))
    return points


def _point(record: Json, value: float) -> Point:
    return Point(float(record["step"]), as_number(record.get("seconds")) or 0.0, value)


def _matrix(record: Json) -> list[list[float | None]]:
    cosines = part(record, "conflict").get("cosines")
    if not isinstance(cosines, list) or not all(isinstance(row, list) for row in cosines):
        return []
    return [[as_number(value) for value in row] for row in cosines]


def _off_diagonal(matrix: Sequence[Sequence[float | None]]) -> list[float | None]:
    return [value for row, values in enumerate(matrix) for column, value in enumerate(values) if column > row]


def _pair_cosines(setting: Setting, tasks: int) -> list[list[float | None]] | None:
    matrices = [matrix for run in setting.shown for record in run.train if len(matrix := _matrix(record)) == tasks]
    matrices = [matrix for matrix in matrices if all(len(row) == tasks for row in matrix)]
    if not matrices:
        return None

    def mean(row: int, column: int) -> float | None:
        known = [value for matrix in matrices if (value := matrix[row][column]) is not None]
        return math.fsum(known) / len(known) if known else None

    return [[mean(row, column) for column in range(tasks)] for row in range(tasks)]


def _curves(settings: Iterable[Setting], of: Callable[[RunRecord], list[Point]]) -> list[Curve]:
    return [curve for setting in settings if (curve := _curve(setting, of)) is not None]


def _curve(setting: Setting, of: Callable[[RunRecord], list[Point]]) -> Curve | None:
    runs = [{point.step: point for point in points} for run in setting.shown if (points := of(run))]
    if not runs:
        return None
    steps = [step for step in runs[0] if all(step in run for run in runs)]
    if len(steps) < 2:  # seeds that were recorded at different steps: the first stands for all
        runs, steps = runs[:1], list(runs[0])
    points, lowest, highest = [], [], []
    for bucket in _buckets(steps, _MOST_POINTS):
        seeds = [[run[step].value for step in bucket] for run in runs]
        means = [math.fsum(values) / len(values) for values in seeds]
        seconds = [math.fsum(run[step].seconds for step in bucket) / len(bucket) for run in runs]
        points.append(
            Point(math.fsum(bucket) / len(bucket), math.fsum(seconds) / len(seconds), math.fsum(means) / len(means))
        )
        lowest.append(min(means))
        highest.append(max(means))
    return Curve(setting, points, lowest, highest)


def _buckets(steps: Sequence[float], most: int) -> list[list[float]]:
    """Put neighbouring steps together, so that there are not more than `most` groups of them."""
    size = math.ceil(len(steps) / most)
    return [list(steps[start : start + size]) for start in range(0, len(steps), size)]


def _figure(
    title: str, curves: list[Curve], label: str, *, trim_low: float = 0, trim_high: float = 0, broad: bool = False
) -> Figure | None:
    if not curves:
        return None
    # The very first values, before any training, would leave no room for the others.
    values = [point.value for curve in curves for point in curve.points[1 if len(curve.points) > 2 else 0 :]]
    y = svg.axis_for(label, values, trim_low=trim_low, trim_high=trim_high)
    drawings = []
    for name, at in (("step", 0), ("seconds of training", 1)):
        x = svg.axis_for(name, [point[at] for curve in curves for point in curve.points], zero=True)
        lines = [
            svg.Line(
                curve.setting.method,
                curve.setting.style,
                [(point[at], point.value) for point in curve.points],
                [
                    (point[at], low, high)
                    for point, low, high in zip(curve.points, curve.lowest, curve.highest, strict=True)
                    if low < high
                ],
            )
            for curve in curves
        ]
        # Drawn from last to first, so that the baseline lies on top.
        drawings.append(
            svg.line_chart(f"{title}: {label} by {name}", _described(curves, label), lines[::-1], x, y, broad=broad)
        )
    return Figure(title, tuple(drawings), _curve_table(curves), "broad" if broad else "usual")


def _described(curves: Sequence[Curve], label: str) -> str:
    ends = "; ".join(f"{curve.setting.method} {number(curve.points[-1].value)}" for curve in curves)
    return f"Line chart of {label}, one line for each method. At the end: {ends}."


def _curve_table(curves: Sequence[Curve]) -> TextTable:
    steps = sorted({point.step for curve in curves for point in curve.points})
    kept = [bucket[-1] for bucket in _buckets(steps, _MOST_ROWS)]
    at = [{point.step: point for point in curve.points} for curve in curves]
    rows = []
    for step in kept:
        cells = [by_step.get(step) for by_step in at]
        texts = [f"{number(cell.value)} ({duration(cell.seconds)})" if cell else "" for cell in cells]
        rows.append((whole(step), *texts))
    return TextTable.of_texts(["step", *(f"{curve.setting.method} (time)" for curve in curves)], rows)


def _pairs(study: Study, matrices: dict[Setting, list[list[float | None]]]) -> Chapter:
    names = [name for name, _ in study.tasks]
    values = [abs(value) for matrix in matrices.values() for value in _off_diagonal(matrix) if value is not None]
    top = max([*values, 0.05])
    pairs = [(row, column) for row in range(len(names)) for column in range(row + 1, len(names))]
    figures = []
    for setting, matrix in matrices.items():
        rows = tuple((names[a], names[b], number(matrix[a][b], 3)) for a, b in pairs)
        words = "; ".join(f"{first} and {second} {value}" for first, second, value in rows)
        title = f"{setting.method}: mean cosine between tasks"
        drawing = svg.heat_map(title, f"Mean cosines over training: {words}.", names, matrix, top)
        numbers = TextTable.of_texts(("task", "task", "mean cosine"), rows)
        figures.append(Figure(setting.method, (drawing,), numbers, "small"))
    text = (
        f"Mean cosine between the gradients of two tasks over training. Orange: conflict; blue: agreement; full colour "
        f"is ±{short(float(f'{top:.2g}'))}."
    )
    return Chapter("Between pairs of tasks", text, tuple(figures))


def _calibration(task: str, settings: Sequence[Setting], before: bool) -> Figure | None:
    """Return the figure of a task; ``before``: that of runs that were calibrated, as they were before that."""
    title = f"{task}, before calibration" if before else task
    bins = {setting: points for setting in settings if (points := _bins(setting, task, before))}
    if not bins:
        return None
    top = max(value for points in bins.values() for point in points for value in point[:2]) * 1.05 or 1.0
    x, y = svg.Axis("mean predicted probability", 0, min(top, 1.05)), svg.Axis("observed share", 0, min(top, 1.05))
    lines = [svg.Line(setting.method, setting.style, [p[:2] for p in points]) for setting, points in bins.items()]
    gaps = "; ".join(f"{setting.method} {number(_gap(points), 4)}" for setting, points in bins.items())
    words = f"Observed against predicted rates. Mean distance from the diagonal: {gaps}."
    drawing = svg.line_chart(f"{title}: calibration", words, lines[::-1], x, y, diagonal=True, square=True)
    rows = tuple(
        (setting.method, number(predicted), number(observed), whole(count))
        for setting, points in bins.items()
        for predicted, observed, count in points
    )
    return Figure(title, (drawing,), TextTable.of_texts(("method", "mean predicted", "observed", "examples"), rows))


def _bins(setting: Setting, task: str, before: bool) -> list[tuple[float, float, float]]:
    """Return (predicted, observed, examples) by bin: the mean over seeds, or the first seed's if their bins differ."""
    seeds = []
    for run in setting.finished.values():
        result = part(run.result or {}, "before_calibration") if before else run.result or {}
        listed = part(result, "calibration").get(task)
        points = [_bin(item) for item in listed if isinstance(item, dict)] if isinstance(listed, list) else []
        if known := [point for point in points if point is not None]:
            seeds.append(known)
    if not seeds:
        return []
    if len({len(points) for points in seeds}) > 1:
        return seeds[0]
    means = []
    for same in zip(*seeds, strict=True):
        total = math.fsum(count for _, _, count in same) or 1.0
        predicted = math.fsum(p * count for p, _, count in same) / total
        means.append((predicted, math.fsum(o * count for _, o, count in same) / total, total))
    return means


def _bin(item: Json) -> tuple[float, float, float] | None:
    predicted, observed = as_number(item.get("mean_predicted")), as_number(item.get("mean_observed"))
    count = as_number(item.get("count"))
    return None if predicted is None or observed is None or not count else (predicted, observed, count)


def _gap(points: Sequence[tuple[float, float, float]]) -> float:
    return math.fsum(abs(p - o) * count for p, o, count in points) / math.fsum(count for _, _, count in points)
