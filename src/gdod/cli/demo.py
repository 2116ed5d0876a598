"""`gdod demo`."""

from pathlib import Path
from typing import Annotated

import typer

from gdod.cli.compare import end, stopping_told
from gdod.cli.train import explained


def demo(
    seed: Annotated[int, typer.Option(min=0, help="Seed of the data, the models and the batches.")] = 0,
    recipe: Annotated[str, typer.Option(help="What input, model and training are: strong, paper.")] = "strong",
    out: Annotated[Path | None, typer.Option(help="Folder of the runs. (default: runs/demo-strong-seed0)")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A few steps only, to see that it works.")] = False,
) -> None:
    """Train the paper's nine methods and a booster on simulated ads; print tables and write a report (2 minutes).

    What is finished in the folder is not repeated: after an interruption, give the same command again.
    """
    with explained(), stopping_told():
        from gdod.experiments.demo import run

        folder = out or Path("runs") / f"demo{'-quick' if quick else ''}-{recipe}-seed{seed}"
        end(run(folder, seed, recipe=recipe, quick=quick).failed)
