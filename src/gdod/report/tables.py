"""Tables of results: what stands in them, and how they look as Markdown and CSV."""

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gdod.report import svg
from gdod.report.numbers import duration, number, p_value, signed, whole, with_spread
from gdod.report.runs import Run
from gdod.report.study import HIGHER, TITLES, Comparison, Setting, Study, as_number


@dataclass(frozen=True)
class Cell:
    text: str
    value: float | str | None = None
    """By which the column sorts; None goes last."""
    detail: str = ""
    """A second, smaller line."""
    best: bool = False
    drawing: str = ""
    """SVG, for the page only."""
    style: int | None = None
    """Number of the method's line in the plots, shown beside the text."""


@dataclass(frozen=True)
class Column:
    title: str
    hint: str = ""
    numeric: bool = True
    drawn: bool = False
    """Holds drawings only: left out of Markdown."""


@dataclass(frozen=True)
class Table:
    name: str
    title: str
    caption: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]


def result_tables(study: Study) -> list[Table]:
    """The overview, then one table for each metric."""
    if not any(setting.finished for setting in study.settings):
        return []
    metrics = [metric for metric in TITLES if study.tasks_with(metric)]
    return [overview(study), *(metric_table(study, metric) for metric in metrics)]


def overview(study: Study) -> Table:
    metric, tasks = study.headline
    compared = study.compare(metric)[None]
    ranks, gains, times = study.ranks(), study.gains(), study.step_times()
    best = _best([one.summary.mean for one in compared], HIGHER[metric])
    reach = _reach(compared)
    title = study.headline_title
    columns = [
        *_first_columns(study),
        Column(title, f"mean ± standard deviation over seeds, on {study.part}"),
        Column(f"difference from {study.baseline}", "mean over common seeds, with its 95 % interval"),
        Column("worse better" if HIGHER[metric] else "better worse", "interval", drawn=True),
        Column("p", "paired t-test, corrected for the number of comparisons (Holm)"),
        Column("average rank", "mean place over tasks and seeds; 1 is best"),
    ]
    if any(gains):
        columns.append(Column("Δm %", "mean relative gain over single-task models; above 0 is better"))
    columns += [
        Column("ms / step", "median over the steps of a run, mean over seeds"),
        Column("relative time", f"per step; {study.baseline} = 1"),
        Column("seeds", "finished runs"),
    ]
    rows = []
    for place, (setting, one) in enumerate(zip(study.settings, compared, strict=True)):
        time, ratio = times[place]
        gain = gains[place]
        row = [
            *_first_cells(study, setting),
            Cell(
                with_spread(one.summary.mean, one.summary.sd),
                one.summary.mean,
                best=place in best,
            ),
            _difference_cell(one, setting, study),
            _interval_cell(one, reach),
            Cell(p_value(one.p_holm), one.p_holm),
            Cell(number(ranks[place], 2), ranks[place]),
        ]
        if any(gains):
            row.append(Cell(signed(gain.mean, 2), gain.mean) if gain else Cell("–"))
        row += [
            Cell(number(time.mean, 2), time.mean),
            Cell(number(ratio, 2), ratio),
            Cell(str(one.summary.n), one.summary.n),
        ]
        rows.append(row)
    over = f"the mean over {', '.join(tasks)}" if len(tasks) > 1 else f"the figure of {', '.join(tasks)}"
    caption = f"{title[:1].upper()}{title[1:]} is {over}, on the {study.part} part."
    return Table("overview", "Overview", caption, columns, rows)


def metric_table(study: Study, metric: str) -> Table:
    """One column for each task; differences from the baseline below each figure."""
    tasks = study.tasks_with(metric)
    compared = study.compare(metric, tasks)
    best = {task: _best([one.summary.mean for one in compared[task]], HIGHER[metric]) for task in tasks}
    rows = []
    for place, setting in enumerate(study.settings):
        row = _first_cells(study, setting)
        for task in tasks:
            one = compared[task][place]
            text = with_spread(one.summary.mean, one.summary.sd)
            row.append(Cell(text, one.summary.mean, _difference_text(one), place in best[task]))
        rows.append(row)
    direction = "higher" if HIGHER[metric] else "lower"
    columns = [*_first_columns(study), *(Column(task, f"{TITLES[metric]}, {direction} is better") for task in tasks)]
    caption = (
        f"On {study.part}, mean ± standard deviation over seeds; {direction} is better. Then the difference from "
        f"{study.baseline} with its 95 % interval; * where the paired test, corrected for the table, has p < 0.05."
    )
    return Table(metric, f"{TITLES[metric][:1].upper()}{TITLES[metric][1:]} by task", caption, columns, rows)


def run_table(study: Study) -> Table:
    """Every run, finished or not."""
    columns = [
        Column("model", numeric=False),
        Column("method", numeric=False),
        Column("seed"),
        Column("state", numeric=False),
        Column(f"{study.headline_title} ({study.part})"),
        Column("best step"),
        Column("steps"),
        Column("training time", "without evaluation"),
        Column("folder", numeric=False),
    ]
    rows = [
        _run_row(study, run, setting)
        for setting in study.settings
        for run in sorted(setting.runs, key=lambda run: (run.seed is None, run.seed or 0))
    ]
    return Table("runs", "All runs", "", columns, rows)


def to_markdown(tables: Iterable[Table]) -> str:
    return "\n".join(_markdown(table) for table in tables)


def to_csv(studies: Iterable[Study]) -> str:
    """One line for each data set, model, method, task and metric; empty where there is no figure."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(_CSV_COLUMNS)
    for study in studies:
        headline = study.headline[0]
        groups = [("mean", headline, study.compare(headline)[None])] if len(study.headline[1]) > 1 else []
        for metric in TITLES:
            groups += [
                (task, metric, found) for task, found in study.compare(metric, study.tasks_with(metric)).items() if task
            ]
        for task, metric, compared in groups:
            for setting, one in zip(study.settings, compared, strict=True):
                writer.writerow(_csv_row(study, setting, task, metric, one))
        for setting, (time, _) in zip(study.settings, study.step_times(), strict=True):
            named = [_safe(study.name), study.part, setting.model, _safe(setting.method), "", "milliseconds_per_step"]
            writer.writerow([*named, time.n, _exact(time.mean), _exact(time.sd), _base(study, setting), *[""] * 6])
    return out.getvalue()


_CSV_COLUMNS = (
    *("data", "part", "model", "method", "task", "metric", "seeds", "mean", "sd"),
    *("baseline", "common_seeds", "difference", "low", "high", "p", "p_holm"),
)


def _first_columns(study: Study) -> list[Column]:
    model = [Column("model", numeric=False)] if len(study.models) > 1 else []
    return [*model, Column("method", numeric=False)]


def _first_cells(study: Study, setting: Setting) -> list[Cell]:
    model = [Cell(setting.model, setting.model)] if len(study.models) > 1 else []
    return [*model, Cell(setting.method, setting.method, style=setting.style)]


def _difference_cell(one: Comparison, setting: Setting, study: Study) -> Cell:
    found = one.difference
    if found is None:
        return Cell("baseline" if setting in study.bases else "–")
    if found.mean is None:
        return Cell("–", detail=found.note or "")
    if found.low is None or found.note:
        return Cell(signed(found.mean), found.mean, found.note or "")
    return Cell(signed(found.mean), found.mean, f"[{signed(found.low)}, {signed(found.high)}]")


def _difference_text(one: Comparison) -> str:
    found = one.difference
    if found is None or found.mean is None:
        return ""
    star = " *" if one.p_holm is not None and one.p_holm < 0.05 else ""
    if found.low is None or found.note:
        return f"{signed(found.mean)}{star}"
    return f"{signed(found.mean)} [{signed(found.low)}, {signed(found.high)}]{star}"


def _interval_cell(one: Comparison, reach: float) -> Cell:
    found = one.difference
    if found is None or found.mean is None:
        return Cell("", drawing=svg.interval(None, None, None, (), reach))
    return Cell("", found.mean, drawing=svg.interval(found.mean, found.low, found.high, one.by_seed.values(), reach))


def _reach(compared: Sequence[Comparison]) -> float:
    """How far the line of intervals goes: over all seeds, and over intervals that are not very much longer."""
    seeds = [abs(value) for one in compared for value in one.by_seed.values()]
    ends = [
        abs(end)
        for one in compared
        if one.difference
        for end in (one.difference.low, one.difference.high)
        if end is not None
    ]
    longest = max(seeds, default=0)
    return max(longest * 1.1, min(max(ends, default=0) * 1.05, longest * 3)) or 1.0


def _best(values: Sequence[float | None], higher: bool) -> set[int]:
    known = {place: value for place, value in enumerate(values) if value is not None}
    if len(known) < 2:
        return set()
    top = max(known.values()) if higher else min(known.values())
    return {place for place, value in known.items() if value == top}


def _run_row(study: Study, run: Run, setting: Setting) -> list[Cell]:
    result = run.result or {}
    value = study.value(run, study.headline[0]) if run.result else None
    best, steps = as_number(result.get("best_step")), as_number(result.get("steps", run.last_step))
    seconds = as_number(result.get("seconds"))
    state = "finished early" if result.get("stopped") == "early" else run.status
    return [
        Cell(setting.model, setting.model),
        Cell(setting.method, setting.method, style=setting.style),
        Cell("–" if run.seed is None else str(run.seed), run.seed),
        Cell(state, state, run.reason or ""),
        Cell(number(value), value),
        Cell(whole(best), best),
        Cell(whole(steps), steps),
        Cell(duration(seconds), seconds),
        Cell(run.name, run.name),
    ]


def _markdown(table: Table) -> str:
    kept = [place for place, column in enumerate(table.columns) if not column.drawn]
    head = " | ".join(_plain(table.columns[place].title) for place in kept)
    rule = "|".join("---:" if table.columns[place].numeric else "---" for place in kept)
    lines = [
        f"### {table.title}",
        "",
        *([_plain(table.caption), ""] if table.caption else []),
        f"| {head} |",
        f"|{rule}|",
    ]
    for row in table.rows:
        cells = []
        for place in kept:
            cell = row[place]
            text = f"**{_plain(cell.text)}**" if cell.best else _plain(cell.text)
            cells.append(f"{text} ({_plain(cell.detail)})" if cell.detail else text)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _plain(text: str) -> str:
    """Text that no Markdown reader takes for markup."""
    text = " ".join(text.split())
    for sign in "\\`*_|<>":
        text = text.replace(sign, f"\\{sign}")
    return text


def _csv_row(study: Study, setting: Setting, task: str, metric: str, one: Comparison) -> list[str | int]:
    found = one.difference
    row: list[str | int] = [_safe(study.name), study.part, setting.model, _safe(setting.method), _safe(task), metric]
    row += [one.summary.n, _exact(one.summary.mean), _exact(one.summary.sd), _base(study, setting)]
    if found is None:
        return [*row, *[""] * 6]
    return [*row, found.n, *map(_exact, (found.mean, found.low, found.high, found.p, one.p_holm))]


def _base(study: Study, setting: Setting) -> str:
    base = study.base_of(setting)
    return "" if base is None else _safe(base.method)


def _safe(text: str) -> str:
    """Text that a spreadsheet does not take for a formula."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text


def _exact(value: float | None) -> str:
    return "" if value is None else repr(value)
