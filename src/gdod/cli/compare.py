"""`gdod compare`."""

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gdod.cli import options
from gdod.cli.terminal import say, screen
from gdod.cli.train import EXIT_CODES as TRAIN_EXIT_CODES
from gdod.cli.train import explained

if TYPE_CHECKING:
    from gdod.experiments.plan import ComparisonPlan
    from gdod.experiments.worker import Worker

SOME_FAILED = 5
EXIT_CODES = TRAIN_EXIT_CODES.replace("6 another", "5 some runs failed, 6 another")
EXAMPLES = """
Examples:

  gdod compare --data ads --method sum --method gdod --method pcgrad --seeds 5

  gdod compare --data clicks.csv --schema clicks.yaml --model mmoe --model ple --single-task

  gdod compare --data clicks.csv --schema clicks.yaml --method sum --rival lightgbm --rival catboost

  gdod compare --data clicks.csv --schema clicks.yaml --method sum --rival lightgbm --folds 5

  gdod compare comparison.yaml --method sum --method cagrad:c=0.3 --tuned tuned/best.yaml --jobs 4
"""
_SETTINGS = {
    "model": "models",
    "method": "methods",
    "rival": "rivals",
    **{name: name for name in ("folds", "baseline", "single_task", "tuned")},
}


def compare(
    context: typer.Context,
    config: options.Config = None,
    data: options.Data = None,
    schema: options.SchemaFile = None,
    label: options.Label = None,
    data_folder: options.DataFolder = None,
    data_option: options.DataOption = None,
    vectors: options.Vectors = None,
    recipe: options.Recipe = None,
    model: Annotated[
        list[str] | None, typer.Option(help="May be given several times: mmoe, mmoe:experts=4, ...")
    ] = None,
    method: Annotated[
        list[str] | None, typer.Option(help="May be given several times: sum, cagrad:c=0.3, ... (default: the paper's)")
    ] = None,
    rival: Annotated[
        list[str] | None, typer.Option(help="Boosted trees beside them, one model a task: lightgbm, catboost:depth=8.")
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="How many, from 0 on. (default: 3; with --folds 1)")] = None,
    seed: Annotated[list[int] | None, typer.Option(help="A certain seed. May be given several times.")] = None,
    folds: Annotated[
        int | None,
        typer.Option(min=2, max=255, help="Cross-validate: cut the table into so many folds, each tested on once."),
    ] = None,
    baseline: Annotated[str | None, typer.Option(help="Method that others are compared with. (default: sum)")] = None,
    single_task: Annotated[
        bool | None, typer.Option("--single-task", help="Train single-task models, too, and give Δm %.")
    ] = None,
    tuned: Annotated[list[Path] | None, typer.Option(help="What gdod tune found: its folder or best.yaml.")] = None,
    optimizer: options.Optimizer = None,
    lr: options.Rate = None,
    batch: options.Batch = None,
    epochs: options.Epochs = None,
    steps: options.Steps = None,
    patience: options.Patience = None,
    monitor: options.Monitor = None,
    evaluate_every: options.EvaluateEvery = None,
    set_: options.Set = None,
    jobs: options.Jobs = None,
    threads: options.RunThreads = None,
    nproc: Annotated[int | None, typer.Option(min=1, help="Processes that train each run together.")] = None,
    out: Annotated[Path, typer.Option(help="Folder of the comparison.")] = Path("comparison"),
    check: options.Check = False,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Train models × methods × seeds (× folds) in parallel, and compare them: table, report, CSV.

    Finished runs are never repeated: after an interruption, give the same command again.
    """
    with explained():
        from gdod.errors import InputError
        from gdod.experiments.plan import read_plan

        if seeds is not None and seed:
            raise InputError("both --seeds and --seed are given; expected one of them")
        settings = options.given_settings(context, _SETTINGS | {"seed" if seed else "seeds": "seeds"})
        options.need_data(config, settings)
        plan = read_plan(config, settings)
        if check:
            options.rehearse_all(run.config for run in plan.runs)
            from gdod.experiments.compare import recipe_in_words

            options.tell_recipe(recipe_in_words(plan))
            typer.echo(json.dumps(plan.to_json() | {"runs": [run.name for run in plan.runs]}, indent=2))
            return
        _compare_here(plan, out, jobs, nproc, as_json=as_json, quiet=quiet)


def _compare_here(
    plan: "ComparisonPlan", out: Path, jobs: int | None, nproc: int | None, *, as_json: bool, quiet: bool
) -> None:
    """Compare in processes of our own, or in those that torchrun or others started: there all but rank 0 follow."""
    from gdod.experiments.worker import Worker
    from gdod.ranks import LostError
    from gdod.ranks.processes import check_nproc, joined, surroundings

    place = surroundings()
    check_nproc(nproc, place)
    with joined(place, plan.config.device) as ranks, explained(silent=ranks.rank > 0):
        worker = Worker(ranks)
        if ranks.rank > 0:
            worker.follow()
            return
        try:
            _compare(plan, out, jobs, nproc or 1, None if place is None else worker, as_json=as_json, quiet=quiet)
        finally:
            with suppress(LostError):  # they have ended already
                worker.dismiss()


def _compare(
    plan: "ComparisonPlan",
    out: Path,
    jobs: int | None,
    nproc: int,
    worker: "Worker | None",
    *,
    as_json: bool,
    quiet: bool,
) -> None:
    from gdod.experiments.compare import compare
    from gdod.experiments.summary import caption, figures, overview_table
    from gdod.experiments.watch import ShownRuns, Watch
    from gdod.report.result_tables import trade_sentences
    from gdod.report.tables import as_terminal

    console = screen(stderr=as_json)
    with stopping_told():
        outcome = compare(
            plan,
            out,
            processes=jobs,
            nproc=nproc,
            worker=worker,
            watch=Watch() if quiet else ShownRuns(console),
            command=["gdod", *sys.argv[1:]],
        )
    written = {"report": outcome.report, "markdown": outcome.markdown, "csv": outcome.csv}
    if as_json:
        failed = [{"run": name, "message": message} for name, message in outcome.failed.items()]
        places = {name: str(path) for name, path in written.items()}
        typer.echo(json.dumps({"folder": str(out), **places, "results": figures(outcome.study), "failed": failed}))
    else:
        if any(setting.finished for setting in outcome.study.settings):
            console.print(caption(outcome.study))
            console.print(as_terminal(overview_table(outcome.study)))
            for sentence in trade_sentences(outcome.study):
                console.print(f"{sentence}.", soft_wrap=True)
        for path in written.values():
            console.print(str(path), soft_wrap=True)
    end(outcome.failed)


def end(failed: Mapping[str, str]) -> None:
    """Say which runs failed and why, and make that the exit code."""
    for name, message in failed.items():
        say(f"gdod: {name} failed: {message}", err=True)
    if failed:
        raise typer.Exit(SOME_FAILED)


@contextmanager
def stopping_told() -> Iterator[None]:
    """Turn Ctrl-C, after which every run has been saved, into a line that says how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        say("gdod: stopped; the runs are saved. To go on, give the same command again.", err=True)
        raise typer.Exit(130) from None
