"""A comparison in short: a table for the terminal, and the same figures for scripts."""

from typing import TYPE_CHECKING, Any

from gdod.report import Study
from gdod.report.numbers import number, p_value, signed, with_spread
from gdod.report.study import HIGHER, MAIN, Comparison

if TYPE_CHECKING:
    from rich.table import Table


def overview_table(study: Study) -> "Table":
    """One line for each method, by model: mean and spread, difference from the baseline, rank, Δm, time.

    Narrow enough for 80 columns; the page and the Markdown say more.
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    compared = study.compare(study.headline[0])[None]
    ranks, gains, times = study.ranks(), study.gains(), study.step_times()
    shown = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    shown.add_column("method", overflow="fold")
    titles = [study.headline_title, f"− {study.baseline}", "p", "rank", *(["Δm %"] if any(gains) else []), "time"]
    for title in titles:
        shown.add_column(Text(title), justify="right", no_wrap=True)
    for place, (setting, one) in enumerate(zip(study.settings, compared, strict=True)):
        if len(study.models) > 1 and (place == 0 or study.settings[place - 1].model != setting.model):
            shown.add_section()
            shown.add_row(Text(setting.model, style="bold"))
        gain, ratio = gains[place], times[place][1]
        shown.add_row(
            Text(setting.method),
            with_spread(one.summary.mean, one.summary.sd),
            difference(one),
            p_value(one.p_holm),
            number(ranks[place], 2),
            *([signed(gain.mean, 2) if gain else "–"] if any(gains) else []),
            "–" if ratio is None or setting.is_single_task else f"{ratio:.2f}×",
        )
    return shown


def difference(one: Comparison) -> str:
    """From the baseline, with half the width of its interval."""
    found = one.difference
    if found is None:
        return "–"
    if found.low is None or found.high is None:
        return signed(found.mean)
    return f"{signed(found.mean)} ± {number((found.high - found.low) / 2)}"


def caption(study: Study) -> str:
    """What stands above the table."""
    seeds = sorted({len(setting.finished) for setting in study.settings})
    many = str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    better = "higher" if HIGHER[study.headline[0]] else "lower"
    return (
        f"{study.name}, {study.part} part, {many} seeds, {better} is better. Mean ± standard deviation;\n"
        f"difference from {study.baseline} ± its 95 % interval; p of the paired test, corrected (Holm)"
    )


def figures(study: Study) -> list[dict[str, Any]]:
    """The same for scripts, with the main metric of every task."""
    metric = study.headline[0]
    compared = study.compare(metric)[None]
    ranks, gains, times = study.ranks(), study.gains(), study.step_times()
    by_task: dict[str | None, list[Comparison]] = {}
    for name in dict.fromkeys(MAIN[kind] for _, kind in study.tasks if kind in MAIN):
        by_task |= study.compare(name, [task for task, kind in study.tasks if MAIN.get(kind) == name])
    kinds = dict(study.tasks)
    found = []
    for place, setting in enumerate(study.settings):
        gain, (time, ratio) = gains[place], times[place]
        found.append(
            {
                "model": setting.model,
                "method": setting.method,
                "seeds": [seed for seed in setting.finished if seed is not None],
                "part": study.part,
                "metric": study.headline_title,
                **_comparison(compared[place]),
                "average_rank": ranks[place],
                "delta_m_percent": None if gain is None else gain.mean,
                "milliseconds_per_step": time.mean,
                "relative_time": ratio,
                "tasks": {
                    task: {"metric": MAIN[kinds[task]], **_comparison(one[place])}
                    for task, one in by_task.items()
                    if task is not None
                },
            }
        )
    return found


def _comparison(one: Comparison) -> dict[str, Any]:
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
            "common_seeds": difference.n,
        },
    }
