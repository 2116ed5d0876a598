"""`gdod choose`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from gdod.cli.options import AsJson
from gdod.cli.terminal import say
from gdod.cli.train import EXIT_CODES, explained

__all__ = ["EXAMPLES", "EXIT_CODES", "choose"]

EXAMPLES = """
Examples:

  gdod choose runs/front --prefer buy=0.7,click=0.3

  gdod choose runs/front --at-least click=0.78

  gdod choose runs/front --prefer buy=1 --at-least click=0.78 --json
"""


def choose(
    folder: Annotated[Path, typer.Argument(metavar="FRONT", help="The folder that gdod front wrote.")],
    prefer: Annotated[
        str | None, typer.Option(metavar="TASK=SHARE,...", help="How much tasks matter. (default: all alike)")
    ] = None,
    at_least: Annotated[
        str | None, typer.Option(metavar="TASK=SCORE,...", help="The least score of a task on validation.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Choose the run of a front that is best for you on validation, ready for gdod predict.

    FRONT/chosen then leads to the run's folder.
    """
    with explained():
        from gdod.experiments.front.choose import choose as choose_run
        from gdod.experiments.front.choose import link_choice, predict_command, read_figures
        from gdod.report.front import Front

        front = Front.read(folder)
        wanted = {} if prefer is None else read_figures(prefer, "--prefer")
        limits = {} if at_least is None else read_figures(at_least, "--at-least")
        choice = choose_run(front, wanted, limits)
        place = link_choice(choice, front)
        if as_json:
            point = choice.point
            told = {"name": point.name, "kind": point.kind, "weights": point.weights, "run": str(choice.run)}
            scores = {"validation": dict(point.validation), "test": dict(point.test)}
            typer.echo(json.dumps({**told, "chosen": str(place), "value": choice.value, **scores}))
            return
        say(f"{choice.point.title}: {choice.value:.4f} on validation, as you prefer tasks")
        for task, metric in front.metrics.items():
            validation, test = choice.point.validation[task], choice.point.test[task]
            say(f"  {task}: {metric} {validation:.4f} on validation, {test:.4f} on test")
        say(f"{choice.run}\n\n  {predict_command(place)}")
