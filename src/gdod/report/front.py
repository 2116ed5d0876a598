"""A front as one HTML page, Markdown and CSV: from its `front.json` alone, which `gdod front` writes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from itertools import combinations, count
from pathlib import Path
from typing import Any

from gdod._files import read_json, write_text
from gdod.errors import InputError
from gdod.report import svg
from gdod.report.elements import card, counted, described_list, explanations, figure_box, table_box, whole_page
from gdod.report.figures import Figure
from gdod.report.numbers import duration, number, p_value, signed, whole
from gdod.report.tables import Cell, Column, TextTable, Value, as_csv, as_markdown, heading

Json = dict[str, Any]
FRONT, METHOD, SINGLE_TASK, RIVAL = "front", "method", "single-task", "rival"

PLACES = {
    "below": "below the front",
    "on": "on the front",
    "gap": "in a gap of the front",
    "above": "above the front",
}
"""What each place of a method relative to the front is called."""
MEANINGS = {
    "below": "a weighting is better on every task",
    "on": "as far as one can tell: that a weighting is better on every task, or that none is, may be chance",
    "gap": "no weighting is better on every task, but by no more than weightings lie apart there",
    "above": "no weighting is better on every task",
}
_MOST_SHOWN = 15  # pairs of tasks; more are behind a button


@dataclass(frozen=True)
class FrontPoint:
    """What was trained with every seed, with its scores as means over seeds."""

    name: str
    kind: str
    """"front" (a weighting of the plain sum), "method", "single-task" or "rival"."""
    weights: Mapping[str, float] | None
    rate: str
    """Its learning rate and decay; "own": those of the recipe."""
    validation: Mapping[str, float]
    """Scores by task."""
    test: Mapping[str, float]
    difference: Mapping[str, Mapping[str, float]] | None
    """The difference from equal weights on test by task: value, low and high; None for equal weights."""
    seconds: float
    """The mean time of training of a run."""
    runs: Mapping[str, Mapping[str, float]]
    """The names of its run folders, one for each seed, with their scores on validation by task."""
    style: int = 0
    """The number of its colour and marker."""

    @property
    def title(self) -> str:
        return f"weights {self.name}" if self.kind == FRONT else self.name

    def interval(self, task: str) -> tuple[float, float] | None:
        """Return the ends of the interval that is drawn through a method, that of its difference from equal weights."""
        if self.kind != METHOD or self.difference is None:
            return None
        around, beside = self.test[task], self.difference[task]
        return around + beside["low"] - beside["value"], around + beside["high"] - beside["value"]


@dataclass(frozen=True)
class Front:
    """A front as its folder has it."""

    folder: Path
    asked: Json = field(repr=False)
    points: tuple[FrontPoint, ...]
    verdicts: tuple[Json, ...]
    hypervolume: Json | None

    @classmethod
    def read(cls, folder: Path) -> "Front":
        """Read the front in a folder that `gdod front` wrote; raise if it has no results yet."""
        asked = read_json(folder / "front.json", "a front; the folder is one that gdod front writes")
        results = asked.get("results")
        if not isinstance(results, dict):
            raise InputError(f"the front in {folder} is not finished; give the same gdod front command again")
        styles = count(1)
        try:
            points = tuple(
                FrontPoint(**one, style=0 if one["kind"] == FRONT else next(styles)) for one in results["candidates"]
            )
            return cls(folder, asked, points, tuple(results["verdicts"]), results["hypervolume"])
        except (KeyError, TypeError) as error:
            raise InputError(
                f"{folder / 'front.json'} is damaged ({type(error).__name__}: {error}); give the same gdod front "
                "command again, which writes it anew"
            ) from error

    @property
    def name(self) -> str:
        return str(self.asked.get("data", "unknown data"))

    @property
    def results(self) -> Json:
        found: Json = self.asked["results"]
        return found

    @cached_property
    def metrics(self) -> dict[str, str]:
        """What the score of each task is called, by task."""
        return {task["name"]: task["metric"] for task in self.results["tasks"]}

    @property
    def tasks(self) -> tuple[str, ...]:
        return tuple(self.metrics)

    @property
    def warnings(self) -> tuple[str, ...]:
        return tuple(self.results["warnings"])

    @property
    def front(self) -> tuple[FrontPoint, ...]:
        return self.of(FRONT)

    def of(self, *kinds: str) -> tuple[FrontPoint, ...]:
        return tuple(point for point in self.points if point.kind in kinds)

    def axis(self, task: str) -> svg.Axis:
        """Return the axis of a task's scores; of more than two tasks without the lowest tenth of the weightings.

        A weighting that hardly trains one of many tasks would leave no room for the others, and so would a rival that
        is further below all else than all else is wide.
        """
        scores = sorted(point.test[task] for point in self.front)
        values = scores[len(scores) // 10 if len(self.tasks) > 2 else 0 :]
        values += [point.test[task] for point in self.points if point.kind not in (FRONT, RIVAL)]
        values += [end for point in self.points if point.kind != RIVAL for end in point.interval(task) or ()]
        least = 2 * min(values) - max(values)
        values += [point.test[task] for point in self.of(RIVAL) if point.test[task] >= least]
        return svg.axis_for(f"{self.metrics[task]} of {task}", values)

    def legend(self, point: FrontPoint) -> str:
        """Return what a legend calls a point, also that it lies outside of a picture."""
        axes = {task: self.axis(task) for task in self.tasks}
        inside = all(axis.low <= point.test[task] <= axis.high for task, axis in axes.items())
        return point.name if inside or point.kind != RIVAL else f"{point.name} (outside)"

    def by_weight(self, first: str, second: str) -> list[tuple[float, float]]:
        """Return the weightings of two tasks in the order of their ratios, as points of a line; of more, no line."""
        return [(point.test[first], point.test[second]) for point in self.front] if len(self.tasks) == 2 else []

    def undominated(self, first: str, second: str) -> list[tuple[float, float]]:
        """Return the weightings that no other is better than on both tasks, as points of a line from left to right."""
        found = {(point.test[first], point.test[second]) for point in self.front}
        line: list[tuple[float, float]] = []
        for x, y in sorted(found, reverse=True):
            if not line or y > line[-1][1]:
                line.append((x, y))
        return line[::-1]


def write_front(front: Front, out: Path, *, markdown: Path, csv: Path) -> None:
    """Write the page of a front, its tables as Markdown, and every figure as CSV."""
    for path, text in ((out, front_page(front)), (markdown, front_markdown(front)), (csv, front_csv(front))):
        write_text(path, text)


def verdict_table(front: Front) -> TextTable:
    """Return one row for each method: where it lies, its d with the interval, and its nearest weighting."""
    reach = max([abs(one["d"][end]) for one in front.verdicts for end in ("value", "low", "high")], default=1.0) * 1.05
    added = (front.hypervolume or {}).get("added_percent", {})
    columns = [
        Column("method", numeric=False),
        Column("place", numeric=False, badges=True),
        Column("d", "above 0: some weighting is better on every task; below 0: none is"),
        Column("above below", "interval", drawn=True),
        Column("p", "of d being 0, corrected for the number of methods (Holm)"),
        Column("nearest weighting", numeric=False),
        *(
            Column(f"its lead on {task}", f"{metric} of the weighting minus the method")
            for task, metric in front.metrics.items()
        ),
        Column("gap", "how far the nearest weighting itself lies above the others"),
    ]
    if front.hypervolume is not None:
        columns.append(Column("adds %", "to the hypervolume of the front"))
    styles = {point.name: point.style for point in front.points}
    rows = []
    for one in front.verdicts:
        d = one["d"]
        row = [
            Cell(one["method"], one["method"], style=styles[one["method"]]),
            Cell(PLACES[one["place"]], one["place"]),
            Cell(signed(d["value"]), d["value"], _ends(d)),
            Cell("", d["value"], drawing=svg.interval(d["value"], d["low"], d["high"], (), reach or 1.0)),
            Cell(p_value(one["p_holm"]), one["p_holm"]),
            Cell(one["weighting"], one["weighting"]),
            *(Cell(signed(lead["value"]), lead["value"], _ends(lead)) for lead in one["leads"].values()),
            Cell(number(one["gap"]), one["gap"]),
        ]
        if front.hypervolume is not None:
            row.append(Cell(number(added[one["method"]], 3), added[one["method"]]))
        rows.append(row)
    caption = (
        "d is the largest least lead of a weighting: the weighting is chosen on validation, d is shown on test. In "
        f"brackets: 95 % intervals, by {whole(front.results['draws'])} draws of rows and seeds."
    )
    return TextTable(columns, rows, "Methods against the front", caption, "verdicts")


def point_table(front: Front) -> TextTable:
    """Return one row for each weighting, method and reference: its scores on test, and how it was trained."""
    columns = [
        Column("trained", numeric=False),
        *(
            Column(task, f"{metric} on test; the difference from equal weights below it")
            for task, metric in front.metrics.items()
        ),
        Column("mean", "over tasks, on test"),
        Column("mean on validation", "over tasks"),
        Column("learning rate and decay", numeric=False),
        Column("seconds", "of training a run, lower is better"),
    ]
    rows = []
    for point in front.points:
        differences = point.difference or {}
        best = {task for task in front.tasks if point.test[task] == max(other.test[task] for other in front.points)}
        means = [sum(part.values()) / len(part) for part in (point.test, point.validation)]
        rows.append(
            [
                Cell(point.title, point.title, style=point.style),
                *(
                    Cell(
                        number(point.test[task]),
                        point.test[task],
                        f"{signed(differences[task]['value'])} {_ends(differences[task])}" if differences else "",
                        task in best,
                    )
                    for task in front.tasks
                ),
                *(Cell(number(mean), mean) for mean in means),
                Cell(point.rate, point.rate),
                Cell(number(point.seconds, 1), point.seconds),
            ]
        )
    order = f"Weights are of {' and '.join(front.tasks)}." if len(front.tasks) == 2 else "Weights are in figures.csv."
    caption = (
        f"Means over {counted(len(front.asked['seeds']), 'seed')} on test; then the difference from equal weights with "
        f"its 95 % interval. {order}"
    )
    return TextTable(columns, rows, "Scores on test", caption, "points")


def front_figures(front: Front) -> list[Figure]:
    """Return one picture for each pair of tasks: the front as a line, methods with their intervals, and references."""
    pairs = list(combinations(front.tasks, 2))
    return [_figure(front, first, second, broad=len(pairs) == 1) for first, second in pairs]


def front_page(front: Front) -> str:
    """Return the page of a front, whole."""
    weightings, methods = counted(len(front.front), "weighting"), counted(len(front.of(METHOD)), "method")
    text = f"{weightings} of the plain sum, {methods} · {counted(len(front.asked['seeds']), 'seed')}"
    sections = {
        "verdict": "Verdict",
        "picture": "Picture",
        "points": "Everything that was trained",
        "how": "What was run",
    }
    links = "".join(f'<a href="#{name}">{title}</a>' for name, title in sections.items())
    parts = [f'<h2 id="verdict">{sections["verdict"]}</h2>', _cards(front), _notice(front)]
    if front.verdicts:
        parts.append(table_box(verdict_table(front), pinned=True))
    about = _PICTURE + (_TWO_TASKS if len(front.tasks) == 2 else _MORE_TASKS)
    parts.append(
        f'<div class="plots"><div class="head"><h2 id="picture">{sections["picture"]}</h2></div>{_legend(front)}'
    )
    parts.append(f'<p class="text">{escape(about)}</p>{_grid(front_figures(front))}</div>')
    parts.append(f'<h2 id="points">{sections["points"]}</h2>{table_box(point_table(front), pinned=True)}')
    parts.append(f'<h2 id="how">{sections["how"]}</h2>{_how(front)}')
    body = f'<section class="study">{"".join(parts)}</section>{explanations(_READING)}'
    return whole_page("gdod front", front.name, text, f'{links}<a href="#reading">How to read this page</a>', body)


def front_markdown(front: Front) -> str:
    """Return the tables and warnings of a front in Markdown."""
    parts = [f"## {heading(front.name)}", ""]
    parts += [f"- {heading(sentence)}" for sentence in verdict_sentences(front)]
    parts += [f"- {heading(warning)}" for warning in front.warnings]
    tables = [verdict_table(front)] if front.verdicts else []
    return "\n".join([*parts, ""]) + "".join(f"\n{as_markdown(table)}\n" for table in (*tables, point_table(front)))


def front_csv(front: Front) -> str:
    """Return one line for each weighting, method and reference, and task."""
    titles = (
        "data",
        "name",
        "kind",
        "task",
        "metric",
        "weight",
        "validation",
        "test",
        "difference",
        "low",
        "high",
        "seconds",
    )
    return as_csv(TextTable.of_values(titles, _figures(front)))


def verdict_sentences(front: Front) -> list[str]:
    """Return a sentence on each method: where it lies, and what that means."""
    return [
        f"{one['method']}: {PLACES[one['place']]}; {MEANINGS[one['place']]} (d {signed(one['d']['value'])} "
        f"{_ends(one['d'])}, nearest weights {one['weighting']})"
        for one in front.verdicts
    ]


def _figures(front: Front) -> Iterator[list[Value]]:
    for point in front.points:
        for task, metric in front.metrics.items():
            beside = (point.difference or {}).get(task, {})
            weight = None if point.weights is None else point.weights[task]
            values: list[Value] = [front.name, point.name, point.kind, task, metric, weight]
            values += [point.validation[task], point.test[task]]
            values += [beside.get(end) for end in ("value", "low", "high")]
            yield [*values, point.seconds]


def _ends(one: Mapping[str, float]) -> str:
    return f"[{signed(one['low'])}, {signed(one['high'])}]"


def _figure(front: Front, first: str, second: str, *, broad: bool) -> Figure:
    marks = [_mark(front, point, first, second) for point in front.front]
    marks += [_mark(front, point, first, second) for point in front.points if point.kind != FRONT]
    line = front.undominated(first, second)
    x, y = front.axis(first), front.axis(second)
    placed = "; ".join(f"{mark.name} {number(mark.point[0])}, {number(mark.point[1])}" for mark in marks)
    title = f"{first} and {second}"
    words = f"Scores on test of {first} and of {second}: {placed}."
    path = front.by_weight(first, second)
    drawing = svg.scatter_chart(title, words, marks, line, path, x, y, broad=broad)
    rows = [(mark.name, number(mark.point[0]), number(mark.point[1])) for mark in marks]
    numbers = TextTable.of_texts(("trained", first, second), rows)
    return Figure(title, (drawing,), numbers, "alone" if broad else "usual")


def _mark(front: Front, point: FrontPoint, first: str, second: str) -> svg.Mark:
    x, y = point.test[first], point.test[second]
    weighting = point.kind == FRONT
    told = (front.front[0], front.front[-1]) if len(front.tasks) == 2 else ()
    text = point.name if weighting and (point.difference is None or point in told) else ""
    return svg.Mark(
        point.title, point.style, (x, y), point.interval(first), point.interval(second), text, small=weighting
    )


def _grid(figures: Sequence[Figure]) -> str:
    """Return the figures, of which many are behind a button."""
    shown, others = figures[:_MOST_SHOWN], figures[_MOST_SHOWN:]
    grid = f'<div class="grid {figures[0].size}">{"".join(map(figure_box, shown))}</div>'
    if not others:
        return grid
    more = f'<div class="grid {figures[0].size}">{"".join(map(figure_box, others))}</div>'
    return f'{grid}<details class="model"><summary>{len(others)} more pairs of tasks</summary>{more}</details>'


def _legend(front: Front) -> str:
    named = {0: "weightings of the sum"} | {
        point.style: front.legend(point) for point in front.points if point.kind != FRONT
    }
    buttons = "".join(
        f'<button type="button" data-series="{style}" aria-pressed="false">{svg.swatch(style)}{escape(name)}</button>'
        for style, name in named.items()
    )
    return f'<div class="legend" role="group" aria-label="Single out methods">{buttons}</div>'


def _cards(front: Front) -> str:
    cards = [card(one["method"], PLACES[one["place"]], MEANINGS[one["place"]]) for one in front.verdicts]
    if not cards:
        cards.append(card("Methods", "none", "give --method to have one judged"))
    if front.hypervolume is not None:
        least = ", ".join(number(one, 2) for one in dict.fromkeys(front.hypervolume["reference"]))
        cards.append(card("Hypervolume of the front", f"{front.hypervolume['front']:.4g}", f"above chance ({least})"))
    return f'<div class="cards">{"".join(cards)}</div>'


def _notice(front: Front) -> str:
    failed = front.asked.get("failed", {})
    items = [f"<li>{escape(warning)}.</li>" for warning in front.warnings]
    items += [f"<li><strong>{escape(name)}</strong> failed: {escape(str(why))}</li>" for name, why in failed.items()]
    return f'<div class="notice" role="note"><h3>Read with care</h3><ul>{"".join(items)}</ul></div>' if items else ""


def _how(front: Front) -> str:
    asked, rows = front.asked, front.results["rows"]
    listed = described_list(
        {
            "data": f"{front.name}, {whole(rows['validation'])} validation and {whole(rows['test'])} test rows",
            "tasks": ", ".join(f"{task} ({metric})" for task, metric in front.metrics.items()),
            "seeds": ", ".join(map(str, asked["seeds"])),
            "learning rate and decay": f"the best on validation of: {'; '.join(asked['tune'])}",
            "runs": f"{asked['runs']}, {duration(_whole_time(front))} of training in those that are shown",
            "command": " ".join(asked["command"]),
            "fingerprint": asked["fingerprint"],
            "started": asked["started"],
        }
    )
    closed = {
        "Versions": described_list(asked["versions"]),
        "Settings of all runs": described_list(asked["settings"], code=True),
    }
    return listed + "".join(f"<details><summary>{name}</summary>{one}</details>" for name, one in closed.items())


def _whole_time(front: Front) -> float:
    return sum(point.seconds * len(point.runs) for point in front.points)


_PICTURE = (
    "Each small disc is the plain sum with other task weights. The line joins those that no other is better than on "
    "both tasks. A method above and to the right of the line reaches what no weighting does. The cross through a "
    "method is the 95 % interval of its difference from equal weights, on the same rows and seeds."
)
_TWO_TASKS = " The dotted line follows the ratio of the weights."
_MORE_TASKS = " The lowest weightings may lie outside; the numbers are below each picture."
_READING = {
    "weighting": "The plain sum of the tasks' losses, each multiplied by a fixed weight: the cheapest way to prefer "
    "one task to another. Of two tasks it is called by the ratio of their weights; weights add up to the number of "
    "tasks.",
    "d": "For each weighting, its least lead over the method on any task; d is the largest of these. Above 0, some "
    "weighting is better on every task. Below 0, each is worse on some task. The weighting is chosen on validation, "
    "and d is shown on test.",
    "interval": "95 %, by drawing test rows and seeds again, the same for all. Its upper end holds for all tasks at "
    "once, since the least of many chance figures is low by chance.",
    "p": "The chance of such a d if the true one were 0, corrected for the number of methods by Holm's method.",
    "gap": "The d that the nearest weighting would have, with the other sign, if it were left out and judged as a "
    "method. A method that is above the front by less may lie on it, between two weightings.",
    "hypervolume": "The volume between chance and the front: all combinations of scores that some weighting reaches or "
    "exceeds on every task. Beside a method: how much of it the method would add, in per cent.",
    "learning rate and decay": "Every weighting and method has tried the same few settings with the first seed, and "
    "has kept what was best on validation. Rivals have their own settings.",
}
