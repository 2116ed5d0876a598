"""Tables of results: figures by seed as text, with what they differ by from a baseline."""

from collections.abc import Sequence
from dataclasses import dataclass

from gdod.experiments.paper.cases import Case
from gdod.experiments.paper.store import Store
from gdod.experiments.paper.verdicts import Verdict, of_gain
from gdod.statistics import Difference, Summary, holm, paired_difference, summarise


@dataclass(frozen=True)
class Grid:
    """A table as Markdown has it."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def markdown(self) -> str:
        lines = ["| " + " | ".join(self.header) + " |", "|" + " --- |" * len(self.header)]
        return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in self.rows)])


@dataclass(frozen=True)
class Row:
    """A line of a comparison: what the paper prints for it, by task, and the case we ran."""

    name: str
    case: Case
    printed: Sequence[float] | None = None


@dataclass(frozen=True)
class Gains:
    """How far each row lies above the baseline, task by task and in the mean over tasks (None)."""

    rows: tuple[Row, ...]
    baseline: Row
    tasks: tuple[str, ...]
    found: dict[tuple[str, str | None], Difference]
    corrected: dict[str, float | None]
    """P-values of the means' differences, corrected for the number of rows (Holm)."""

    def printed(self, row: Row, task: str) -> float | None:
        if row.printed is None or self.baseline.printed is None or len(row.printed) != len(self.tasks):
            return None
        place = self.tasks.index(task)
        return row.printed[place] - self.baseline.printed[place]

    def verdict(self, row: Row, task: str) -> Verdict:
        return of_gain(self.printed(row, task), self.found[row.name, task])

    def verdicts(self, row: Row) -> list[Verdict]:
        return [self.verdict(row, task) for task in self.tasks]


def gains(store: Store, rows: Sequence[Row], baseline: Row, metric: str = "auc") -> Gains:
    tasks = store.tasks(baseline.case)
    others = tuple(row for row in rows if row.name != baseline.name)
    found = {
        (row.name, task): paired_difference(
            store.metric(row.case, task, metric), store.metric(baseline.case, task, metric)
        )
        for row in others
        for task in (*tasks, None)
    }
    corrected = holm([found[row.name, None].p for row in others])
    return Gains(others, baseline, tasks, found, {row.name: p for row, p in zip(others, corrected, strict=True)})


def figures_grid(store: Store, rows: Sequence[Row], metric: str = "auc", *, with_costs: bool = True) -> Grid:
    """Mean ± standard deviation on test data, the paper's figure behind it, and what a step costs."""
    tasks = store.tasks(rows[0].case)
    base = _milliseconds(store, rows[0].case).mean
    lines = []
    for row in rows:
        cells = [row.name]
        for place, task in enumerate(tasks):
            ours = spread(summarise(list(store.metric(row.case, task, metric).values())))
            theirs = row.printed[place] if row.printed is not None and len(row.printed) == len(tasks) else None
            cells.append(ours if theirs is None else f"{ours} ({theirs:.4f})")
        means = store.metric(row.case, None, metric)
        time = _milliseconds(store, row.case).mean
        costs = [
            "–" if time is None else f"{time:.1f}",
            "–" if time is None or not base else f"{time / base:.1f}",
            str(len(means)),
        ]
        cells += [spread(summarise(list(means.values()))), *(costs if with_costs else [])]
        lines.append(tuple(cells))
    costs = ["ms a step", "times the first", "seeds"] if with_costs else []
    return Grid(("", *tasks, "mean", *costs), tuple(lines))


def gains_grid(found: Gains) -> Grid:
    """Differences from the baseline with their 95 % intervals; the printed one and the verdict behind them."""
    lines = []
    for row in found.rows:
        cells = [row.name]
        for task in found.tasks:
            printed = found.printed(row, task)
            text = interval(found.found[row.name, task])
            if printed is not None:
                text += f"<br>paper {printed:+.4f}: {found.verdict(row, task)}"
            cells.append(text)
        p = found.corrected[row.name]
        cells += [interval(found.found[row.name, None]), "–" if p is None else f"{p:.3f}"]
        lines.append(tuple(cells))
    return Grid((f"minus {found.baseline.name}", *found.tasks, "mean", "p (Holm)"), tuple(lines))


def spread(summary: Summary) -> str:
    if summary.mean is None:
        return "–"
    return f"{summary.mean:.4f}" + ("" if summary.sd is None else f" ± {summary.sd:.4f}")


def interval(difference: Difference) -> str:
    if difference.mean is None:
        return "–"
    if difference.low is None or difference.high is None:
        return f"{difference.mean:+.4f}"
    return f"{difference.mean:+.4f} [{difference.low:+.4f}, {difference.high:+.4f}]"


def _milliseconds(store: Store, case: Case) -> Summary:
    return summarise(list(store.values(case, lambda result: result.get("milliseconds_per_step")).values()))
