"""`gdod tune`."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gdod.cli import options
from gdod.cli.compare import EXIT_CODES, end, stopping_told
from gdod.cli.terminal import say, screen
from gdod.cli.train import explained

if TYPE_CHECKING:
    from gdod.experiments.search import Space
    from gdod.experiments.tune import Search

EXAMPLES = """
Examples:

  gdod tune --data clicks.csv --schema clicks.yaml --trials 40

  gdod tune --data ads --method cagrad --out tuned/cagrad

  gdod tune --data ads --method gdod --range optimizer.lr=1e-4..1e-2:log --trials 20

  gdod tune --data ads --rival lightgbm --trials 20 --out tuned/lightgbm

  gdod compare --data ads --method sum --method cagrad --tuned tuned/cagrad
"""

__all__ = ["EXAMPLES", "EXIT_CODES", "tune"]


def tune(
    context: typer.Context,
    config: options.Config = None,
    data: options.Data = None,
    schema: options.SchemaFile = None,
    label: options.Label = None,
    data_folder: options.DataFolder = None,
    data_option: options.DataOption = None,
    vectors: options.Vectors = None,
    recipe: options.Recipe = None,
    model: Annotated[str | None, typer.Option(help="E.g. mmoe, or mmoe:experts=4. (default: shared-bottom)")] = None,
    method: Annotated[str | None, typer.Option(help="E.g. cagrad, or gdod:groups=16. (default: sum)")] = None,
    space: Annotated[
        str | None, typer.Option(help="recipe: all parts of the strong recipe. (default: the method's grid, if any)")
    ] = None,
    rival: Annotated[str | None, typer.Option(help="In place of both: lightgbm or catboost.")] = None,
    range_: Annotated[
        options.Pairs, typer.Option("--range", metavar="PATH=LOW..HIGH[:log]", help="E.g. optimizer.lr=1e-4..1e-2:log.")
    ] = None,
    grid: Annotated[
        options.Pairs,
        typer.Option(metavar="PATH=[VALUE,...]", help="E.g. batch=[128,256]."),
    ] = None,
    trials: Annotated[int | None, typer.Option(min=1, help="(default: the whole grid; 20 with ranges)")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Runs of each trial, from seed 0 on. (default: 1)")] = None,
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
    out: Annotated[Path, typer.Option(help="Folder of the search.")] = Path("tuned"),
    check: options.Check = False,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Search for good settings on the validation part; never looks at the test part.

    Finished trials are never repeated: after an interruption, give the same command again.
    """
    with explained():
        from gdod.experiments.tune import read_search, recipe_in_words

        settings = options.given_settings(context, {name: name for name in ("model", "method", "rival", "seeds")})
        options.need_data(config, settings)
        search = read_search(config, settings, _space(range_, grid), trials, space)
        if check:
            options.rehearse_all([search.config({}, search.seeds[0])])
            options.tell_recipe(recipe_in_words(search))
            typer.echo(json.dumps({**search.to_json(), "trials": search.trials}, indent=2))
            return
        _tune(search, out, jobs, as_json=as_json, quiet=quiet)


def _space(ranges: options.Pairs, grids: options.Pairs) -> "Space":
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
        told = {"file": str(best.file), "value": best.value, "found": best.settings, "trials": best.trials}
        typer.echo(json.dumps({**told, "failed": failed}))
    else:
        settings = ", ".join(f"{name}={value}" for name, value in best.settings.items())
        say(f"Best of {best.trials} trials on validation: {settings} ({best.value:.4f})")
        say(f"Use it with: gdod compare ... --tuned {best.file}")
    end({f"trial {name}": message for name, message in best.failed.items()})
