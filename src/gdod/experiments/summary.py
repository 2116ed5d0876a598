"""A comparison in short: a table for the terminal, and the same figures for scripts."""

from typing import Any

from gdod.report.numbers import NOTHING, duration, number, p_value, signed, with_spread
from gdod.report.study import HIGHER, MAIN, Comparison, Setting, Study
from gdod.report.tables import Cell, Column, TextTable


def overview_table(study: Study) -> TextTable:
    """Return one row for each method, by model: mean and spread, difference from the baseline, rank, Δm, time.

    The time is that of a step as a multiple of the baseline's; beside rivals, which have no steps, that of training.
    Narrow enough for 80 columns; the page and the Markdown say more.
    """
    compared = study.compare(study.headline[0])[None]
    ranks, gains, times = study.ranks(), study.gains(), study.step_times()
    titles = [study.headline_title, f"− {study.baseline}", "p", "rank", *(["Δm %"] if any(gains) else []), "time"]
    training = study.training_times()
    rows: list[list[str]] = []
    headings = []
    for place, (setting, one) in enumerate(zip(study.settings, compared, strict=True)):
        if len(study.models) > 1 and (place == 0 or study.settings[place - 1].model != setting.model):
            headings.append(len(rows))
            rows.append([setting.model])
        gain = gains[place]
        rows.append(
            [
                setting.method,
                with_spread(one.summary.mean, one.summary.sd),
                difference(one),
                p_value(one.p_holm),
                number(ranks[place], 2),
                *([signed(gain.mean, 2) if gain else NOTHING] if any(gains) else []),
                duration(training[place].mean) if study.rivals else _step_time(setting, times[place][1]),
            ]
        )
    columns = [Column("method", numeric=False), *(Column(title) for title in titles)]
    return TextTable(columns, [[Cell(text) for text in row] for row in rows], sections=headings)


def _step_time(setting: Setting, ratio: float | None) -> str:
    return NOTHING if setting.is_single_task else times_as_long(ratio)


def times_as_long(ratio: float | None) -> str:
    """Return a ratio of times as text, such as "1.25×"."""
    return NOTHING if ratio is None else f"{ratio:.2f}×"


def difference(one: Comparison) -> str:
    """Return the difference from the baseline as text, with half the width of its interval."""
    gain = one.difference
    if gain is None:
        return NOTHING
    if gain.low is None or gain.high is None:
        return signed(gain.mean)
    return f"{signed(gain.mean)} ± {number((gain.high - gain.low) / 2)}"


def caption(study: Study) -> str:
    """Return what stands above the overview: the data, how many seeds or folds, and what the columns are."""
    runs = sorted({len(setting.finished) for setting in study.settings})
    many = str(runs[0]) if len(runs) == 1 else f"{runs[0]} to {runs[-1]}"
    over, test = f"{many} seeds", "p of the paired test, corrected (Holm)"
    if study.folds is not None:
        over = f"{study.folds} folds" + ("" if runs == [study.folds] else f" ({many} runs)")
        test = "p of the paired test,\ncorrected for training rows that folds share (Nadeau and Bengio), and by Holm"
    better = "higher" if HIGHER[study.headline[0]] else "lower"
    if len(study.headlines) > 1:
        better += f" (of {', '.join(study.headline[1])}; the report has the other kinds of tasks, too)"
    rivals = "\ntime: of training; of a rival, that has one model a task, of all of them" if study.rivals else ""
    return (
        f"{study.name}, {study.part} part, {over}, {better} is better. Mean ± standard deviation;\n"
        f"difference from {study.baseline} ± its 95 % interval; {test}{rivals}"
    )


def figures(study: Study) -> list[dict[str, Any]]:
    """Return the figures of the overview for scripts, with the main metric of every task."""
    metric = study.headline[0]
    compared = study.compare(metric)[None]
    ranks, gains, times = study.ranks(), study.gains(), study.step_times()
    training, sizes, trades = study.training_times(), study.sizes(), study.trades()
    by_task: dict[str | None, list[Comparison]] = {}
    for name in dict.fromkeys(MAIN[kind] for _, kind in study.tasks if kind in MAIN):
        by_task |= study.compare(name, [task for task, kind in study.tasks if MAIN.get(kind) == name])
    kinds = dict(study.tasks)
    listed = []
    for place, setting in enumerate(study.settings):
        gain, (time, ratio), trade = gains[place], times[place], trades[place]
        listed.append(
            {
                "model": setting.model,
                "method": setting.method,
                "rival": setting.is_rival,
                "seeds": list(dict.fromkeys(seed for seed, _ in setting.finished if seed is not None)),
                "folds": study.folds,
                "part": study.part,
                "metric": study.headline_title,
                **_comparison(study, compared[place]),
                "average_rank": ranks[place],
                "delta_m_percent": None if gain is None else gain.mean,
                "trade": None if trade is None else {"gains": list(trade.gains), "losses": list(trade.losses)},
                "milliseconds_per_step": time.mean,
                "relative_time": ratio,
                "training_seconds": training[place].mean,
                "bytes": sizes[place].mean,
                "tasks": {
                    task: {"metric": MAIN[kinds[task]], **_comparison(study, one[place])}
                    for task, one in by_task.items()
                    if task is not None
                },
            }
        )
    return listed


def _comparison(study: Study, one: Comparison) -> dict[str, Any]:
    difference = one.difference
    return {
        "mean": one.summary.mean,
        "sd": one.summary.sd,
        "difference": None
        if difference is None
        else {
            "mean": difference.mean,
            "low": difference.low,
            "high": difference.high,
            "p": difference.p,
            "p_holm": one.p_holm,
            "common_seeds" if study.folds is None else "common_folds": difference.n,
        },
    }
