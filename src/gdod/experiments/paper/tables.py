"""Comparisons of cases: differences from a baseline, paired by seed, and their tables in Markdown."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gdod.experiments.paper.cases import Case
from gdod.experiments.paper.store import Store
from gdod.experiments.paper.verdicts import Verdict, of_gain
from gdod.report.tables import TextTable, as_markdown
from gdod.statistics import Difference, Summary, holm, paired_difference, summarise


@dataclass(frozen=True)
class Row:
    """A line of a comparison: the case that was run, and what the paper prints for it, by task."""

    name: str
    case: Case
    printed: Sequence[float] | None = None


@dataclass(frozen=True)
class Gains:
    """How far each row lies above the baseline, task by task and in the mean over tasks."""

    rows: tuple[Row, ...]
    baseline: Row
    tasks: tuple[str, ...]
    differences: dict[tuple[str, str | None], Difference]
    """The differences by the row's name and the task; the task None is the mean over tasks."""
    corrected: dict[str, float | None]
    """P-values of the differences of means over tasks, by row, corrected for the number of rows (Holm)."""

    def printed(self, row: Row, task: str) -> float | None:
        """Return the gain that the paper prints, None if it prints none."""
        if row.printed is None or self.baseline.printed is None or len(row.printed) != len(self.tasks):
            return None
        place = self.tasks.index(task)
        return row.printed[place] - self.baseline.printed[place]

    def verdict(self, row: Row, task: str) -> Verdict:
        return of_gain(self.printed(row, task), self.differences[row.name, task])

    def verdicts(self, row: Row) -> list[Verdict]:
        return [self.verdict(row, task) for task in self.tasks]


def gains(store: Store, rows: Sequence[Row], baseline: Row, metric: str = "auc") -> Gains:
    """Return how far each row lies above the baseline on test data, paired by seed."""
    tasks = store.tasks(baseline.case)
    others = tuple(row for row in rows if row.name != baseline.name)
    differences = {
        (row.name, task): paired_difference(
            store.metric(row.case, task, metric), store.metric(baseline.case, task, metric)
        )
        for row in others
        for task in (*tasks, None)
    }
    corrected = holm([differences[row.name, None].p for row in others])
    return Gains(others, baseline, tasks, differences, {row.name: p for row, p in zip(others, corrected, strict=True)})


def markdown(titles: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table in Markdown. Its texts are Markdown themselves."""
    return as_markdown(TextTable.of_texts(titles, rows), escaped=False)


def figures_table(store: Store, rows: Sequence[Row], metric: str = "auc", *, with_costs: bool = True) -> str:
    """Return mean ± standard deviation on test data, the paper's figure behind it, and what a step costs."""
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
        lines.append(cells)
    costs = ["ms a step", "times the first", "seeds"] if with_costs else []
    return markdown(("", *tasks, "mean", *costs), lines)


def gains_table(ours: Gains) -> str:
    """Return differences from the baseline with their 95 % intervals, the printed ones, and the verdicts."""
    return markdown((f"minus {ours.baseline.name}", *ours.tasks, "mean", "p (Holm)"), gains_rows(ours))


def gains_rows(ours: Gains) -> list[list[str]]:
    """Return the rows of `gains_table`."""
    lines = []
    for row in ours.rows:
        cells = [row.name]
        for task in ours.tasks:
            printed = ours.printed(row, task)
            text = interval(ours.differences[row.name, task])
            if printed is not None:
                text += f"<br>paper {printed:+.4f}: {ours.verdict(row, task)}"
            cells.append(text)
        p = ours.corrected[row.name]
        cells += [interval(ours.differences[row.name, None]), "–" if p is None else f"{p:.3f}"]
        lines.append(cells)
    return lines


def spread(summary: Summary) -> str:
    """Return mean ± standard deviation as text."""
    if summary.mean is None:
        return "–"
    return f"{summary.mean:.4f}" + ("" if summary.sd is None else f" ± {summary.sd:.4f}")


def interval(difference: Difference) -> str:
    """Return the mean difference and its 95 % interval as text."""
    if difference.mean is None:
        return "–"
    if difference.low is None or difference.high is None:
        return f"{difference.mean:+.4f}"
    return f"{difference.mean:+.4f} [{difference.low:+.4f}, {difference.high:+.4f}]"


def _milliseconds(store: Store, case: Case) -> Summary:
    return summarise(list(store.values(case, lambda result: result.get("milliseconds_per_step")).values()))
