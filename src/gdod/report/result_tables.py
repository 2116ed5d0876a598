"""The tables of a study: an overview, one for each metric, all runs, and every figure for CSV."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from gdod.report import svg
from gdod.report.numbers import duration, number, p_value, signed, size, whole, with_spread
from gdod.report.runs import RunRecord, part
from gdod.report.study import HIGHER, TITLES, Comparison, Setting, Study, as_number
from gdod.report.tables import Cell, Column, TextTable, Value, as_csv, as_markdown


def result_tables(study: Study) -> list[TextTable]:
    """Return the overview, then a table for each metric; none if no run has finished."""
    if not any(setting.finished for setting in study.settings):
        return []
    metrics = [metric for metric in TITLES if study.tasks_with(metric)]
    return [overview(study), *(metric_table(study, metric) for metric in metrics)]


def overview(study: Study) -> TextTable:
    """Return one row for each model and method: the headline metric, its difference from the baseline, ranks, time."""
    metric, _ = study.headline
    compared = study.compare(metric)[None]
    others = {other: study.compare(other)[None] for other in study.headlines if other != metric}
    ranks, gains, times = study.ranks(), study.gains(), study.step_times()
    best = _best([one.summary.mean for one in compared], HIGHER[metric])
    reach = _reach(compared)
    title = study.headline_title
    columns = [
        *_first_columns(study),
        Column(title, f"mean ± standard deviation over {study.over}, on {study.part}"),
        Column(f"difference from {study.baseline}", f"mean over common {study.over}, with its 95 % interval"),
        Column("worse better" if HIGHER[metric] else "better worse", "interval", drawn=True),
        Column("p", f"{_test(study)}, corrected for the number of comparisons (Holm)"),
        *(Column(study.title_of(other), _better(other)) for other in others),
        Column("average rank", f"mean place over tasks and {study.over}; 1 is best"),
    ]
    if any(gains):
        columns.append(Column("Δm %", "mean relative gain over single-task models; above 0 is better"))
    columns += [
        Column("ms / step", f"median over the steps of a run, mean over {study.over}"),
        Column("relative time", f"per step; {study.baseline} = 1"),
    ]
    if study.rivals:
        over = f"mean over {study.over}"
        columns.append(Column("training time", f"without evaluation at the end, {over}; of a rival all tasks"))
        columns.append(Column("size", f"of the trained model on disk, {over}; of a rival all its models"))
    columns.append(Column("seeds" if study.folds is None else "runs", "finished runs"))
    training, sizes = study.training_times(), study.sizes()
    rows = []
    for place, (setting, one) in enumerate(zip(study.settings, compared, strict=True)):
        time, ratio = times[place]
        gain = gains[place]
        row = [
            *_first_cells(study, setting),
            Cell(with_spread(one.summary.mean, one.summary.sd), one.summary.mean, best=place in best),
            _difference_cell(one, setting, study),
            _interval_cell(one, reach),
            Cell(p_value(one.p_holm), one.p_holm),
            *_other_cells(others, place),
            Cell(number(ranks[place], 2), ranks[place]),
        ]
        if any(gains):
            row.append(Cell(signed(gain.mean, 2), gain.mean) if gain else Cell("–"))
        row += [
            Cell(number(time.mean, 2), time.mean),
            Cell(number(ratio, 2), ratio),
        ]
        if study.rivals:
            row.append(Cell(duration(training[place].mean), training[place].mean))
            row.append(Cell(size(sizes[place].mean), sizes[place].mean))
        row.append(Cell(str(one.summary.n), one.summary.n))
        rows.append(row)
    caption = " ".join(_over(study, headline) for headline in study.headlines)
    if study.folds is not None:
        caption += f" {folds_in_words(study)}"
    if study.unequal:
        caption += f" Not all runs are alike but for model and method: they differ in {', '.join(study.unequal)}."
    caption += "".join(f" {sentence}." for sentence in trade_sentences(study))
    if study.rivals:
        caption += f" Rivals are boosted trees on the same rows. {' '.join(f'{one}.' for one in rival_settings(study))}"
    return TextTable(columns, rows, "Overview", caption, "overview")


def folds_in_words(study: Study) -> str:
    """Return sentences on what the figures of a cross-validation are, and by which test they are compared."""
    return (
        f"The figures are over {study.folds} folds: each model was trained on the other folds, stopped early by a part "
        "of them, and tested on its own fold. Folds share training rows, so intervals and p are those of the corrected "
        "resampled t-test (Nadeau and Bengio, 2003), which are wider than the plain ones."
    )


def _test(study: Study) -> str:
    return "paired t-test" if study.folds is None else "corrected resampled t-test over folds"


def trade_sentences(study: Study) -> list[str]:
    """Return a sentence on each method that gains on a task and loses on another: it trades, as weights of tasks do."""
    said = []
    for setting, trade in zip(study.settings, study.trades(), strict=True):
        if trade is not None:
            where = f" in {setting.model}" if len(study.models) > 1 else ""
            gains, losses = (_with_signs(part) for part in (trade.gains, trade.losses))
            said.append(
                f"{setting.method}{where} is a trade: better on {gains}, worse on {losses} than {study.baseline}"
            )
    if said:
        said.append("Task weights trade as well and cost nothing; gdod front tells whether a method does more")
    return said


def _with_signs(differences: Mapping[str, float]) -> str:
    return ", ".join(f"{task} ({signed(value)})" for task, value in differences.items())


def _over(study: Study, metric: str) -> str:
    """Return a sentence on what the figure of a headline is."""
    title, tasks = study.title_of(metric), study.headlines[metric]
    over = f"the mean over {', '.join(tasks)}" if len(tasks) > 1 else f"the figure of {', '.join(tasks)}"
    return f"{title[:1].upper()}{title[1:]} is {over}, on the {study.part} part."


def _better(metric: str) -> str:
    return f"{'higher' if HIGHER[metric] else 'lower'} is better; the difference from the baseline below it"


def _other_cells(others: dict[str, list[Comparison]], place: int) -> list[Cell]:
    """Return the cells of further kinds of tasks in a row of the overview."""
    cells = []
    for metric, compared in others.items():
        one, best = compared[place], _best([each.summary.mean for each in compared], HIGHER[metric])
        text = with_spread(one.summary.mean, one.summary.sd)
        cells.append(Cell(text, one.summary.mean, _difference_text(one), place in best))
    return cells


def rival_settings(study: Study) -> list[str]:
    """Return a sentence on the settings of each rival, and what was out of the ordinary in its runs."""
    said: dict[str, None] = {}
    for setting in study.rivals:
        for run in setting.runs:
            if isinstance(settings := part(run.about, "rival").get("settings"), str):
                said[f"{setting.method}: {settings}"] = None
        for run in setting.finished.values():
            notes = (run.result or {}).get("notes")
            said |= {f"{setting.method}, {note}": None for note in (notes if isinstance(notes, list) else ())}
    return list(said)


def metric_table(study: Study, metric: str) -> TextTable:
    """Return one column for each task, with differences from the baseline below each figure."""
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
        f"On {study.part}, mean ± standard deviation over {study.over}; {direction} is better. Then the difference "
        f"from {study.baseline} with its 95 % interval; * where the {_test(study)}, corrected for the table, has "
        "p < 0.05."
    )
    return TextTable(columns, rows, f"{TITLES[metric][:1].upper()}{TITLES[metric][1:]} by task", caption, metric)


def run_table(study: Study) -> TextTable:
    """Return one row for each run, finished or not."""
    columns = [
        Column("model", numeric=False),
        Column("method", numeric=False),
        Column("seed"),
        *([] if study.folds is None else [Column("fold")]),
        Column("state", numeric=False, badges=True),
        Column(f"{study.headline_title} ({study.part})"),
        Column("best step"),
        Column("steps"),
        Column("training time", "without evaluation"),
        Column("folder", numeric=False),
    ]
    rows = [
        _run_row(study, run, setting)
        for setting in study.settings
        for run in sorted(setting.runs, key=lambda run: (run.seed is None, run.seed or 0, run.repetition.fold or 0))
    ]
    return TextTable(columns, rows, "All runs", name="runs")


def to_markdown(tables: Iterable[TextTable]) -> str:
    """Return the tables in Markdown, one below the other."""
    return "\n".join(f"{as_markdown(table)}\n" for table in tables)


def to_csv(studies: Iterable[Study]) -> str:
    """Return one line for each data set, model, method, task and metric; empty where there is no figure."""
    return as_csv(TextTable.of_values(_FIGURES, (row for study in studies for row in _figures(study))))


_FIGURES = (
    *("data", "part", "model", "method", "task", "metric", "seeds", "mean", "sd"),
    *("baseline", "common_seeds", "difference", "low", "high", "p", "p_holm", "folds"),
)


def _figures(study: Study) -> Iterator[list[Value]]:
    groups = [
        ("mean", metric, study.compare(metric)[None]) for metric, tasks in study.headlines.items() if len(tasks) > 1
    ]
    for metric in TITLES:
        by_task = study.compare(metric, study.tasks_with(metric))
        groups += [(task, metric, compared) for task, compared in by_task.items() if task]
    for task, metric, compared in groups:
        for setting, one in zip(study.settings, compared, strict=True):
            yield _figure_row(study, setting, task, metric, one)
    for setting, (time, _) in zip(study.settings, study.step_times(), strict=True):
        yield _figure_row(study, setting, "", "milliseconds_per_step", Comparison(time, None, None))
    if study.rivals:
        for metric, summaries in (("training_seconds", study.training_times()), ("bytes", study.sizes())):
            for setting, summary in zip(study.settings, summaries, strict=True):
                yield _figure_row(study, setting, "", metric, Comparison(summary, None, None))


def _figure_row(study: Study, setting: Setting, task: str, metric: str, one: Comparison) -> list[Value]:
    base, difference = study.base_of(setting), one.difference
    values: list[Value] = [study.name, study.part, setting.model, setting.method, task, metric]
    values += [one.summary.n, one.summary.mean, one.summary.sd, None if base is None else base.method]
    if difference is None:
        values += [None] * 6
    else:
        values += [difference.n, difference.mean, difference.low, difference.high, difference.p, one.p_holm]
    return [*values, study.folds]


def _first_columns(study: Study) -> list[Column]:
    model = [Column("model", numeric=False)] if len(study.models) > 1 else []
    return [*model, Column("method", numeric=False)]


def _first_cells(study: Study, setting: Setting) -> list[Cell]:
    model = [Cell(setting.model, setting.model)] if len(study.models) > 1 else []
    return [*model, method_cell(study, setting)]


def method_cell(study: Study, setting: Setting) -> Cell:
    """Return the name of a method, with the style of its line and whether it is the baseline."""
    baseline = any(setting.method == base.method for base in study.bases)
    return Cell(setting.method, setting.method, style=setting.style, baseline=baseline)


def _difference_cell(one: Comparison, setting: Setting, study: Study) -> Cell:
    difference = one.difference
    if difference is None:
        return Cell("baseline" if setting in study.bases else "–")
    if difference.mean is None:
        return Cell("–", detail=difference.note or "")
    if difference.low is None or difference.note:
        return Cell(signed(difference.mean), difference.mean, difference.note or "")
    return Cell(signed(difference.mean), difference.mean, f"[{signed(difference.low)}, {signed(difference.high)}]")


def _difference_text(one: Comparison) -> str:
    difference = one.difference
    if difference is None or difference.mean is None:
        return ""
    star = " *" if one.p_holm is not None and one.p_holm < 0.05 else ""
    if difference.low is None or difference.note:
        return f"{signed(difference.mean)}{star}"
    return f"{signed(difference.mean)} [{signed(difference.low)}, {signed(difference.high)}]{star}"


def _interval_cell(one: Comparison, reach: float) -> Cell:
    difference = one.difference
    if difference is None or difference.mean is None:
        return Cell("", drawing=svg.interval(None, None, None, (), reach))
    return Cell(
        "",
        difference.mean,
        drawing=svg.interval(difference.mean, difference.low, difference.high, one.each.values(), reach),
    )


def _reach(compared: Sequence[Comparison]) -> float:
    """Return how far the drawn axis goes: over all runs, and over intervals that are not very much longer."""
    single = [abs(value) for one in compared for value in one.each.values()]
    ends = [
        abs(end)
        for one in compared
        if one.difference
        for end in (one.difference.low, one.difference.high)
        if end is not None
    ]
    longest = max(single, default=0)
    return max(longest * 1.1, min(max(ends, default=0) * 1.05, longest * 3)) or 1.0


def _best(values: Sequence[float | None], higher: bool) -> set[int]:
    known = {place: value for place, value in enumerate(values) if value is not None}
    if len(known) < 2:
        return set()
    top = max(known.values()) if higher else min(known.values())
    return {place for place, value in known.items() if value == top}


def _run_row(study: Study, run: RunRecord, setting: Setting) -> list[Cell]:
    result = run.result or {}
    value = study.value(run, study.headline[0]) if run.result else None
    best, steps = as_number(result.get("best_step")), as_number(result.get("steps", run.last_step))
    seconds = as_number(result.get("seconds"))
    state = "finished early" if result.get("stopped") == "early" else run.status
    return [
        Cell(setting.model, setting.model),
        method_cell(study, setting),
        Cell("–" if run.seed is None else str(run.seed), run.seed),
        *([] if study.folds is None else [Cell(str(run.repetition.fold), run.repetition.fold)]),
        Cell(state, state, run.reason or ""),
        Cell(number(value), value),
        Cell(whole(best), best),
        Cell(whole(steps), steps),
        Cell(duration(seconds), seconds),
        Cell(run.name, run.name),
    ]
