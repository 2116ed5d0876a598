"""`gdod demo`: the nine methods of the paper on simulated ads, two seeds each, as one comparison.

Clicks, visits and purchases of a Shared-Bottom model; part of what draws clicks keeps people from buying
(`gdod.data.sets.ads` has the details), so the tasks pull at the shared layers in different directions.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gdod.experiments.compare import Outcome, compare
from gdod.experiments.plan import PAPER, Plan, make_plan
from gdod.experiments.summary import difference
from gdod.experiments.watch import Shown
from gdod.report.numbers import number

if TYPE_CHECKING:
    from gdod.report import Study

SEEDS = 2
TITLES = {"auc": "AUC on test data, higher is better", "log_loss": "Log loss on test data, lower is better"}


def demo_plan(seed: int = 0, *, quick: bool = False) -> Plan:
    """What the demo runs. ``quick``: the same with less of everything, to see that it works."""
    rows, steps = (6_000, 20) if quick else (150_000, 800)
    return make_plan(
        {
            "data": {"source": "ads", "options": {"rows": rows, "users": rows // 25, "conflict": 0.5, "seed": seed}},
            "models": ["shared-bottom"],
            "methods": list(PAPER),
            "seeds": [seed + number for number in range(SEEDS)],
            "batch": 256,
            "steps": steps,
            "evaluate_every": steps // 4,
            "log_every": max(1, steps // 40),
            "conflict_every": max(1, steps // 40),
            "device": "cpu",
            "threads": 1,  # the model is small: more threads would wait for each other
        }
    )


def run(out: Path, seed: int = 0, *, quick: bool = False, console: Console | None = None) -> Outcome:
    """Trains under a progress display, then prints a table for each metric and where the report is."""
    console = console or Console()
    plan = demo_plan(seed, quick=quick)
    command = ["gdod", "demo", "--seed", str(seed), *(["--quick"] if quick else [])]
    outcome = compare(plan, out, watch=Shown(console), command=command)
    best = best_reachable(plan)
    for metric in TITLES:
        console.print(table(outcome.study, metric, best if metric == "auc" else {}))
    console.print(
        f"Means over {SEEDS} seeds. ±: 95 % interval of the difference, wide with so few seeds.\n"
        "Time: a whole training step, relative to the plain sum.",
        highlight=False,
        markup=False,
    )
    console.print(f"Report: {outcome.report.resolve()}", highlight=False, markup=False, soft_wrap=True)
    return outcome


def best_reachable(plan: Plan) -> dict[str, float | None]:
    """AUC on the test part of someone who knows how the labels were made."""
    from gdod.data.sets.ads import AdsOptions, best_auc, simulate

    options = AdsOptions.of(plan.config.data.options)
    made = simulate(options)
    train = options.rows - round(options.rows * options.test)
    return best_auc(made.table[train:], made.truth[train:])


def table(study: "Study", metric: str, best: dict[str, float | None]) -> Table:
    """One method a row: the metric of each task, the mean's difference from the plain sum, time per step."""
    tasks = study.tasks_with(metric)
    compared, means = study.compare(metric, tasks), study.compare(metric)[None]
    times = study.step_times()
    # Narrow enough for 80 columns.
    shown = Table(title=TITLES[metric], title_justify="left", title_style="", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    shown.add_column("method", no_wrap=True)
    for title in (*tasks, "mean", f"mean − {study.baseline}", "time"):
        shown.add_column(title, justify="right", no_wrap=True)
    for place, setting in enumerate(study.settings):
        figures = [compared[task][place].summary.mean for task in tasks]
        ratio = times[place][1]
        shown.add_row(
            Text(setting.method),
            *map(number, [*figures, means[place].summary.mean]),
            difference(means[place]),
            "–" if ratio is None else f"{ratio:.2f}×",
        )
    if best:
        known = [value for value in best.values() if value is not None]
        shown.add_section()
        mean = sum(known) / len(known) if len(known) == len(tasks) else None
        shown.add_row("best reachable", *(number(best.get(task)) for task in tasks), number(mean), "", "")
    return shown
