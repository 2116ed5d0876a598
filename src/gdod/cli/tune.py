"""`gdod tune`."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gdod.cli.compare import (
    EXIT_CODES,
    SOME_FAILED,
    AsJson,
    Batch,
    Check,
    Config,
    Data,
    DataFolder,
    DataOption,
    Epochs,
    EvaluateEvery,
    Jobs,
    Label,
    Monitor,
    Optimizer,
    Pairs,
    Patience,
    Quiet,
    Rate,
    SchemaFile,
    Set,
    Steps,
    Threads,
    need_data,
    run_options,
    stopping_told,
)
from gdod.cli.train import explained, screen

if TYPE_CHECKING:
    from gdod.experiments.search import Space
    from gdod.experiments.tune import Search

EXAMPLES = """
Examples:

  gdod tune --data ads --method cagrad --out tuned/cagrad

  gdod tune --data ads --method gdod --range optimizer.lr=1e-4..1e-2:log --trials 20

  gdod compare --data ads --method sum --method cagrad --tuned tuned/cagrad
"""

__all__ = ["EXAMPLES", "EXIT_CODES", "tune"]


def tune(
    config: Config = None,
    data: Data = None,
    schema: SchemaFile = None,
    label: Label = None,
    data_folder: DataFolder = None,
    data_option: DataOption = None,
    model: Annotated[str | None, typer.Option(help="E.g. mmoe, or mmoe:experts=4. (default: shared-bottom)")] = None,
    method: Annotated[str | None, typer.Option(help="E.g. cagrad, or gdod:groups=16.")] = None,
    range_: Annotated[
        Pairs, typer.Option("--range", metavar="PATH=LOW..HIGH[:log]", help="E.g. optimizer.lr=1e-4..1e-2:log.")
    ] = None,
    grid: Annotated[
        Pairs, typer.Option(metavar="PATH=[VALUE,...]", help="E.g. batch=[128,256]. (default: the method's own)")
    ] = None,
    trials: Annotated[int | None, typer.Option(min=1, help="(default: the whole grid; 20 with ranges)")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Runs of each trial, from seed 0 on. (default: 1)")] = None,
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
    out: Annotated[Path, typer.Option(help="Folder of the search.")] = Path("tuned"),
    check: Check = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Search for good settings of a method on the validation part; never looks at the test part.

    Finished trials are never repeated: after an interruption, give the same command again.
    """
    with explained():
        options = run_options(
            {
                "data.source": data,
                "data.schema": schema,
                "data.labels": label,
                "data.folder": data_folder,
                "model": model,
                "method": method,
                "optimizer.name": optimizer,
                "optimizer.lr": lr,
                "batch": batch,
                "epochs": epochs,
                "steps": steps,
                "stopping.patience": patience,
                "stopping.monitor": monitor,
                "evaluate_every": evaluate_every,
                "threads": threads,
                "seeds": seeds,
            },
            data_option,
            set_,
        )
        from gdod.experiments.tune import read_search

        need_data(config, options)
        search = read_search(config, options, _space(range_, grid), trials)
        if check:
            typer.echo(json.dumps({**search.to_json(), "trials": search.trials}, indent=2))
            return
        _tune(search, out, jobs, as_json=as_json, quiet=quiet)


def _space(ranges: Pairs, grids: Pairs) -> "Space":
    from gdod.experiments.search import read_grid, read_range

    return {**dict(map(read_range, ranges or ())), **dict(map(read_grid, grids or ()))}


def _tune(search: "Search", out: Path, jobs: int | None, *, as_json: bool, quiet: bool) -> None:
    from gdod.experiments.tune import tune
    from gdod.experiments.watch import ShownRuns, Watch

    console = screen(stderr=as_json)
    with stopping_told():
        best = tune(
            search,
            out,
            processes=jobs,
            watch=Watch() if quiet else ShownRuns(console),
            command=["gdod", *sys.argv[1:]],
        )
    if as_json:
        failed = [{"run": name, "message": message} for name, message in best.failed.items()]
        found = {"file": str(best.file), "value": best.value, "found": best.found, "trials": best.trials}
        typer.echo(json.dumps({**found, "failed": failed}))
    else:
        settings = ", ".join(f"{name}={value}" for name, value in best.found.items())
        typer.echo(f"Best of {best.trials} trials on validation: {settings} ({best.value:.4f})")
        typer.echo(f"Use it with: gdod compare ... --tuned {best.file}")
    if best.failed:
        for name, message in best.failed.items():
            typer.echo(f"gdod: trial {name} failed: {message}", err=True)
        raise typer.Exit(SOME_FAILED)
