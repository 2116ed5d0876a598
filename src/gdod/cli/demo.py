"""`gdod demo`."""

from typing import Annotated

import typer


def demo(
    steps: Annotated[int, typer.Option(min=1, help="Training steps for each method.")] = 600,
    seed: Annotated[int, typer.Option(help="Seed of the data, the models and the batches.")] = 0,
) -> None:
    """Train a two-task and a six-task model on made data with three methods; print a table each."""
    from gdod.demo import run

    run(steps=steps, seed=seed)
