"""`gdod demo`: the nine methods of the paper and a booster on simulated ads, two seeds each, as one comparison.

Clicks, visits and purchases of one Shared-Bottom model; part of what draws clicks keeps people from buying
(`gdod.data.sets.ads` has the details), so the tasks pull at the shared layers in different directions. The booster is
what one would train otherwise: one model a label.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from gdod.experiments.compare import Outcome, compare
from gdod.experiments.plan import PAPER, ComparisonPlan, make_plan
from gdod.experiments.summary import difference, times_as_long
from gdod.experiments.watch import ShownRuns
from gdod.report.numbers import number
from gdod.report.tables import Cell, Column, TextTable, as_terminal

if TYPE_CHECKING:
    from gdod.report import Study

SEEDS = 2
RIVAL = "lightgbm"
INSTALL = "a row of boosted trees needs LightGBM, which pip install 'gdod[rivals]' installs."
TITLES = {"auc": "AUC on test data, higher is better", "log_loss": "Log loss on test data, lower is better"}


def demo_plan(seed: int = 0, *, recipe: str = "strong", quick: bool = False) -> ComparisonPlan:
    """Return the comparison that the demo makes, with a rival if its library is installed.

    Args:
        seed: that of the data, and of the first run.
        recipe: that of all runs.
        quick: take less of everything, to see that it works.
    """
    rows, steps = (6_000, 20) if quick else (60_000, 300)
    # Pairs of columns gain nothing on these data, and steps take half the time without them.
    features = {"pairs": 0} if recipe == "strong" else None
    options = {"rows": rows, "users": rows // 25, "conflict": 0.5, "seed": seed}
    return make_plan(
        {
            "recipe": recipe,
            "data": {"source": "ads", "options": options, "features": features},
            "models": ["shared-bottom"],
            "methods": list(PAPER),
            "rivals": [RIVAL] if has_rival() else [],
            "seeds": [seed + number for number in range(SEEDS)],
            "steps": steps,  # fewer than the recipe would choose
            "evaluate_every": steps // 4,
            "log_every": max(1, steps // 40),
            "conflict_every": max(1, steps // 40),
            "device": "cpu",
            "threads": 1,  # the model is small: more threads would wait for each other
        }
    )


def has_rival() -> bool:
    """Return whether the library of the rival is installed."""
    return find_spec(RIVAL) is not None


def run(
    out: Path, seed: int = 0, *, recipe: str = "strong", quick: bool = False, console: Console | None = None
) -> Outcome:
    """Train under a progress display, then print a table for each metric and where the report is."""
    console = console or Console()
    plan = demo_plan(seed, recipe=recipe, quick=quick)
    command = ["gdod", "demo", "--seed", str(seed), "--recipe", recipe, *(["--quick"] if quick else [])]
    outcome = compare(plan, out, watch=ShownRuns(console), command=command)
    best = best_reachable(plan)
    for metric in TITLES:
        console.print(as_terminal(table(outcome.study, metric, best if metric == "auc" else {})))
    rival = f"{RIVAL}: one model a task, on the same rows." if has_rival() else f"No rival: {INSTALL}"
    console.print(
        f"Means over {SEEDS} seeds. ±: 95 % interval of the difference, wide with so few seeds.\n"
        f"Time: a whole training step, relative to the plain sum.\n{rival}",
        highlight=False,
        markup=False,
    )
    console.print(f"Report: {outcome.report.resolve()}", highlight=False, markup=False, soft_wrap=True)
    return outcome


def best_reachable(plan: ComparisonPlan) -> dict[str, float | None]:
    """Return the AUC of each task on the test part for someone who knows how the labels were made."""
    from gdod.data.sets.ads import AdsOptions, best_auc, simulate

    options = AdsOptions.of(plan.config.data.options)
    made = simulate(options)
    train = options.rows - round(options.rows * options.test)
    return best_auc(made.table[train:], made.truth[train:])


def table(study: "Study", metric: str, best: dict[str, float | None]) -> TextTable:
    """Return one row for each method: the metric of each task, the mean's difference from the plain sum, time a step.

    Narrow enough for 80 columns. ``best``: what can be reached in each task, for a last row.
    """
    tasks = study.tasks_with(metric)
    compared, means = study.compare(metric, tasks), study.compare(metric)[None]
    times = study.step_times()
    rows = []
    for place, setting in enumerate(study.settings):
        figures = [compared[task][place].summary.mean for task in tasks]
        shown = map(number, [*figures, means[place].summary.mean])
        rows.append([setting.method, *shown, difference(means[place]), times_as_long(times[place][1])])
    if best:
        known = [value for value in best.values() if value is not None]
        mean = sum(known) / len(known) if len(known) == len(tasks) else None
        rows.append(["best reachable", *(number(best.get(task)) for task in tasks), number(mean), "", ""])
    titles = (*tasks, "mean", f"mean − {study.baseline}", "time")
    columns = [Column("method", numeric=False), *(Column(title) for title in titles)]
    cells = [[Cell(text) for text in row] for row in rows]
    return TextTable(columns, cells, TITLES[metric], sections=[len(study.settings)])
