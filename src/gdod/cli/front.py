"""`gdod front`."""

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
    from gdod.experiments.front.plan import FrontPlan

__all__ = ["EXAMPLES", "EXIT_CODES", "front"]

EXAMPLES = """
Examples:

  gdod front --data clicks.csv --schema clicks.yaml --method gdod --method pcgrad

  gdod front --data ads --method gdod --single-task --rival lightgbm --seeds 5

  gdod front --data clicks.csv --schema clicks.yaml --points 21 --span 100 --tune 9

  gdod choose runs/front --prefer buy=0.7,click=0.3
"""
_SETTINGS = {
    "model": "model",
    "method": "methods",
    "rival": "rivals",
    **{name: name for name in ("single_task", "points", "span", "tune")},
}


def front(
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
    method: Annotated[
        list[str] | None, typer.Option(help="To be judged; may be given several times: gdod, cagrad:c=0.3, ...")
    ] = None,
    points: Annotated[
        int | None, typer.Option(min=3, help="Weightings of the plain sum. (default: 11 for two tasks, 32 for more)")
    ] = None,
    span: Annotated[float | None, typer.Option(help="Largest ratio of two tasks' weights. (default: 32)")] = None,
    weights: Annotated[
        list[str] | None,
        typer.Option(metavar="TASK=WEIGHT,...", help="A certain weighting, in place of both; again for each."),
    ] = None,
    tune: Annotated[
        int | None, typer.Option(min=1, max=9, help="Learning rates and decays that each may try. (default: 5)")
    ] = None,
    single_task: Annotated[
        bool | None, typer.Option("--single-task", help="Train single-task models, too, as a reference.")
    ] = None,
    rival: Annotated[
        list[str] | None, typer.Option(help="Boosted trees as a reference: lightgbm, catboost:depth=8.")
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="How many, from 0 on. (default: 3)")] = None,
    seed: Annotated[list[int] | None, typer.Option(help="A certain seed. May be given several times.")] = None,
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
    out: Annotated[Path, typer.Option(help="Folder of the front.")] = Path("runs/front"),
    check: options.Check = False,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Train the plain sum along task weights, and tell whether methods reach what no weights do.

    Finished runs are never repeated: after an interruption, give the same command again.
    """
    with explained():
        from gdod.errors import InputError
        from gdod.experiments.front.choose import read_figures
        from gdod.experiments.front.plan import read_front, recipe_in_words
        from gdod.experiments.front.results import sparse_warning

        if seeds is not None and seed:
            raise InputError("both --seeds and --seed are given; expected one of them")
        settings = options.given_settings(context, _SETTINGS | {"seed" if seed else "seeds": "seeds"})
        options.need_data(config, settings)
        if weights:
            settings["weights"] = [read_figures(one, "--weights") for one in weights]
        plan = read_front(config, settings)
        if (warning := sparse_warning(plan)) is not None:
            say(f"gdod: {warning}", err=True)
        if check:
            options.rehearse_all(plan.run(one, plan.seeds[0]).config for one in plan.candidates)
            options.tell_recipe(recipe_in_words(plan))
            typer.echo(json.dumps(plan.to_json(), indent=2))
            return
        _front(plan, out, jobs, as_json=as_json, quiet=quiet)


def _front(plan: "FrontPlan", out: Path, jobs: int | None, *, as_json: bool, quiet: bool) -> None:
    from gdod.experiments.front.run import front
    from gdod.experiments.watch import ShownRuns, Watch
    from gdod.report.front import verdict_sentences

    console = screen(stderr=as_json)
    with stopping_told():
        outcome = front(
            plan,
            out,
            processes=jobs,
            watch=Watch() if quiet else ShownRuns(console),
            command=["gdod", *sys.argv[1:]],
        )
    written = {"report": outcome.report, "picture": outcome.picture, "markdown": outcome.markdown, "csv": outcome.csv}
    if as_json:
        places = {name: str(path) for name, path in written.items()}
        failed = [{"run": name, "message": message} for name, message in outcome.failed.items()]
        typer.echo(json.dumps({"folder": str(out), **places, "results": outcome.front.results, "failed": failed}))
    else:
        for line in (*verdict_sentences(outcome.front), *outcome.front.warnings):
            console.print(line, soft_wrap=True)
        for path in written.values():
            console.print(str(path), soft_wrap=True)
    end(dict(outcome.failed))
