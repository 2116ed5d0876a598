"""How far float32 inner products move the update, on real tables, beside how far they may.

``python -m benchmarks.drift`` trains on the tables of `benchmarks.real` and makes each step's Gram matrix twice, in
float32 and in float64. It prints the distance of the two updates over what is allowed (1e-4 of the update or 1e-6 of
the plain sum, whichever is more), and in how many steps the estimate refused the float32 matrix.
"""

import statistics
import tempfile
from pathlib import Path
from typing import Annotated

import torch
import typer
from torch import Tensor

import gdod._backward.step as step
from benchmarks.real import ON_BASIS, TABLES, Case, blocks
from benchmarks.report import markdown_table
from gdod._backward.inputs import Inputs
from gdod._backward.method_weights import _gram, _weights
from gdod.methods import Gram, Method, Weights
from gdod.rows import Rows


class Watch:
    """Takes the place of `weigh`: it makes both matrices, keeps their difference, and goes on with the precise one."""

    def __init__(self) -> None:
        self.shares: list[float] = []
        self.refused = 0

    def __call__(self, method: Method, rows: Rows, inputs: Inputs) -> tuple[Gram, Weights]:
        rough, precise = (_gram(method, rows, inputs.tasks, way) for way in (False, True))
        ours, exact = _weights(method, rough, inputs.tasks), _weights(method, precise, inputs.tasks)
        if not ours.precise_enough:
            self.refused += 1
        else:
            self.shares.append(share_of_allowed(ours.rows - exact.rows, exact.rows, precise))
        return precise, exact


def share_of_allowed(difference: Tensor, weights: Tensor, gram: Gram) -> float:
    """Return how far an update is off, over what is allowed."""
    allowed = max(1e-8 * float(weights @ gram.matrix @ weights), 1e-12 * float(gram.of_tasks.sum()))
    return float((difference @ gram.matrix @ difference).clamp(min=0) / allowed) ** 0.5 if allowed > 0 else 0.0


def main(
    rounds: Annotated[int, typer.Option(min=1, help="Blocks of ten steps on each table.")] = 20,
    table: Annotated[list[str] | None, typer.Option(help="Only these tables.")] = None,
) -> None:
    """Train on each table with both methods, and print a row for each."""
    names = [one.name for one in TABLES]
    if unknown := [name for name in table or () if name not in names]:
        raise typer.BadParameter(f"no table is called {', '.join(unknown)}; expected some of {', '.join(names)}")
    torch.set_num_threads(1)
    rows = []
    for one in TABLES:
        for way in ON_BASIS if table is None or one.name in table else ():
            watch = Watch()
            setattr(step, "weigh", watch)  # noqa: B010 - it is imported there
            with tempfile.TemporaryDirectory() as folder:
                block, _ = blocks(Case(one, "paper", 1, keeps_memory=False), way, Path(folder))
                for _ in range(rounds):
                    block()
            middle, largest = statistics.median(watch.shares), max(watch.shares)
            steps = len(watch.shares) + watch.refused
            rows.append([one.name, way, str(steps), str(watch.refused), f"{middle:.4f}", f"{largest:.2f}"])
    print(markdown_table(["table", "method", "steps", "refused", "middle share of what is allowed", "largest"], rows))


if __name__ == "__main__":
    typer.run(main)
