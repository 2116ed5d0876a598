"""`gdod compare`."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gdod.cli.train import EXIT_CODES as TRAIN_EXIT_CODES
from gdod.cli.train import explained, pairs, screen

if TYPE_CHECKING:
    from gdod.experiments.compare import Outcome
    from gdod.experiments.plan import Plan
    from gdod.experiments.worker import Worker

SOME_FAILED = 5
EXIT_CODES = TRAIN_EXIT_CODES.replace("6 another", "5 some runs failed, 6 another")
EXAMPLES = """
Examples:

  gdod compare --data ads --method sum --method gdod --method pcgrad --seeds 5

  gdod compare --data clicks.csv --schema clicks.yaml --model mmoe --model ple --single-task

  gdod compare comparison.yaml --method sum --method cagrad:c=0.3 --tuned tuned/best.yaml --jobs 4
"""
Pairs = list[str] | None
Config = Annotated[Path | None, typer.Argument(help="A YAML or TOML file with settings; options win over it.")]
Data = Annotated[str | None, typer.Option(help="A named data set, a file, a folder or a pattern.")]
SchemaFile = Annotated[Path | None, typer.Option(help="What the columns of your own table are (YAML or TOML).")]
Label = Annotated[list[str] | None, typer.Option(help="A column to predict, if you give no schema.")]
DataFolder = Annotated[Path | None, typer.Option(help="Where the files of a named data set are.")]
DataOption = Annotated[Pairs, typer.Option(metavar="NAME=VALUE", help="Of a named data set.")]
Optimizer = Annotated[str | None, typer.Option(help="adam, adamw, sgd, sparse-adam.")]
Rate = Annotated[float | None, typer.Option(help="Learning rate.")]
Batch = Annotated[int | None, typer.Option(help="Examples of a step.")]
Epochs = Annotated[float | None, typer.Option(help="Passes over the training data.")]
Steps = Annotated[int | None, typer.Option(help="Steps, in place of epochs.")]
Patience = Annotated[int | None, typer.Option(help="Evaluations without a better one before a run stops.")]
Monitor = Annotated[str | None, typer.Option(help="What is better: mean_auc, loss or a task.")]
EvaluateEvery = Annotated[int | None, typer.Option(help="Steps; by default each epoch.")]
Set = Annotated[Pairs, typer.Option("--set", metavar="PATH=VALUE", help="Any setting of gdod train.")]
Jobs = Annotated[int | None, typer.Option(min=1, help="Runs at a time. (default: as many as cores, or GPUs)")]
Threads = Annotated[int | None, typer.Option(min=1, help="Of torch in each run. (default: cores / jobs)")]
Check = Annotated[bool, typer.Option("--check", help="Only check the settings, and print what would be run.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress.")]


def compare(
    config: Config = None,
    data: Data = None,
    schema: SchemaFile = None,
    label: Label = None,
    data_folder: DataFolder = None,
    data_option: DataOption = None,
    model: Annotated[
        list[str] | None, typer.Option(help="May be given several times: mmoe, mmoe:experts=4, ...")
    ] = None,
    method: Annotated[
        list[str] | None, typer.Option(help="May be given several times: sum, cagrad:c=0.3, ... (default: the paper's)")
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="How many, from 0 on. (default: 3)")] = None,
    seed: Annotated[list[int] | None, typer.Option(help="A certain seed. May be given several times.")] = None,
    baseline: Annotated[str | None, typer.Option(help="Method that others are compared with. (default: sum)")] = None,
    single_task: Annotated[
        bool | None, typer.Option("--single-task", help="Train single-task models, too, and give Δm %.")
    ] = None,
    tuned: Annotated[list[Path] | None, typer.Option(help="What gdod tune found: its folder or best.yaml.")] = None,
    optimizer: Optimizer = None,
    lr: Rate = None,
    batch: Batch = None,
    epochs: Epochs = None,
    steps: Steps = None,
    patience: Patience = None,
    monitor: Monitor = None,
    evaluate_every: EvaluateEvery = None,
    set_: Set = None,
    jobs: Jobs = None,
    threads: Threads = None,
    nproc: Annotated[int | None, typer.Option(min=1, help="Processes that train each run together.")] = None,
    out: Annotated[Path, typer.Option(help="Folder of the comparison.")] = Path("comparison"),
    check: Check = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Train models × methods × seeds in parallel, and compare them: table, report, CSV.

    Finished runs are never repeated: after an interruption, give the same command again.
    """
    with explained():
        options = run_options(
            {
                "data.source": data,
                "data.schema": schema,
                "data.labels": label,
                "data.folder": data_folder,
                "optimizer.name": optimizer,
                "optimizer.lr": lr,
                "batch": batch,
                "epochs": epochs,
                "steps": steps,
                "stopping.patience": patience,
                "stopping.monitor": monitor,
                "evaluate_every": evaluate_every,
                "threads": threads,
                "models": model,
                "methods": method,
                "seeds": _seeds(seeds, seed),
                "baseline": baseline,
                "single_task": single_task,
                "tuned": tuned,
            },
            data_option,
            set_,
        )
        from gdod.experiments.plan import read_plan

        need_data(config, options)
        plan = read_plan(config, options)
        if check:
            typer.echo(json.dumps(plan.to_json() | {"runs": [run.name for run in plan.runs]}, indent=2))
            return
        _compare_here(plan, out, jobs, nproc, as_json=as_json, quiet=quiet)


def _compare_here(plan: "Plan", out: Path, jobs: int | None, nproc: int | None, *, as_json: bool, quiet: bool) -> None:
    """In processes of its own, or in those that torchrun or another has started: there all but rank 0 follow."""
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
    plan: "Plan",
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
    from gdod.experiments.watch import Shown, Silent

    console = screen(stderr=as_json)
    with stopping_told():
        outcome = compare(
            plan,
            out,
            processes=jobs,
            nproc=nproc,
            worker=worker,
            watch=Silent() if quiet else Shown(console),
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
            console.print(overview_table(outcome.study))
        for path in written.values():
            console.print(str(path), soft_wrap=True)
    end(outcome)


def end(outcome: "Outcome") -> None:
    """Says which runs failed, and makes that the exit code."""
    if outcome.failed:
        for name, message in outcome.failed.items():
            typer.echo(f"gdod: {name} failed: {message}", err=True)
        raise typer.Exit(SOME_FAILED)


@contextmanager
def stopping_told() -> Iterator[None]:
    """Ctrl-C: by now every run has been saved."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo("gdod: stopped; the runs are saved. To go on, give the same command again.", err=True)
        raise typer.Exit(130) from None


def run_options(given: dict[str, Any], data_option: Pairs, set_: Pairs) -> dict[str, Any]:
    """Options that were given, as settings by their paths."""
    found = {name: value for name, value in given.items() if value not in (None, [])}
    found = {name: str(value) if isinstance(value, Path) else value for name, value in found.items()}
    return found | pairs(data_option, "--data-option", "data.options.") | pairs(set_, "--set")


def need_data(file: Path | None, options: dict[str, Any]) -> None:
    from gdod.errors import InputError

    if file is None and "data.source" not in options:
        raise InputError("no data is given; name it with --data, e.g. --data ads, or give a configuration file")


def _seeds(number: int | None, certain: list[int] | None) -> int | list[int] | None:
    from gdod.errors import InputError

    if number is not None and certain:
        raise InputError("both --seeds and --seed are given; expected one of them")
    return certain or number
