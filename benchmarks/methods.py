"""Every method on the benchmark model: the cost of a step, against a plain one and against `sum`.

``python -m benchmarks.methods`` times each method in turn with the plain step, and with the plain sum
worked out through one gradient for each task (`diagnose=True`), which is what a method that needs the
task gradients cannot go below.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import torch
import typer

import gdod
from benchmarks.case import Case, SharedBottom, batches, forward
from benchmarks.measure import THREADS, WARM_UP, time_pairs
from benchmarks.report import environment, markdown_table

RESULTS = Path(__file__).parent / "results"
OURS = ["sum", "uncertainty", "gradnorm", "gradreg", "mgda", "pcgrad", "cagrad", "gdod", "weighted-gdod"]
Step = Callable[[], float]


@dataclass(frozen=True)
class Measured:
    method: str
    tasks: int
    to_plain: float
    to_sum: float  # through task gradients
    pairs: int


def stepper(model: SharedBottom, case: Case, name: str, diagnose: bool = False) -> Step:
    method, feed = gdod.method(name), batches(case)

    def once() -> float:
        batch = next(feed)
        start = time.perf_counter()
        model.zero_grad()
        _, losses = forward(model, batch)
        gdod.backward(losses, method, diagnose=diagnose)
        return time.perf_counter() - start

    return once


def plain_stepper(model: SharedBottom, case: Case) -> Step:
    feed = batches(case)

    def once() -> float:
        batch = next(feed)
        start = time.perf_counter()
        model.zero_grad()
        _, losses = forward(model, batch)
        torch.stack([loss.mean() for loss in losses]).sum().backward()
        return time.perf_counter() - start

    return once


def measure(name: str, tasks: int, seconds: float) -> Measured:
    case = Case(tasks=tasks)
    torch.manual_seed(0)
    model = SharedBottom(case)
    plain, through, ours = plain_stepper(model, case), stepper(model, case, "sum", True), stepper(model, case, name)
    for step in (plain, through, ours):
        for _ in range(WARM_UP):
            step()
    to_plain, to_sum = time_pairs(plain, ours, seconds), time_pairs(through, ours, seconds)
    return Measured(
        name,
        tasks,
        statistics.median(other / base for base, other in to_plain),
        statistics.median(other / base for base, other in to_sum),
        len(to_plain) + len(to_sum),
    )


def as_markdown(results: list[Measured], about: dict[str, str]) -> str:
    rows = [[r.method, str(r.tasks), f"{r.to_plain:.2f}", f"{r.to_sum:.2f}"] for r in results]
    table = markdown_table(["method", "tasks", "to the plain step", "to `sum` through task gradients"], rows)
    notes = [f"- {key}: {value}" for key, value in about.items()]
    return "\n".join(["# Cost of a step by method", "", *notes, "", table, ""])


def main(
    seconds: Annotated[float, typer.Option(min=0, help="Time for each comparison.")] = 1.0,
    every: Annotated[bool, typer.Option("--every", help="Also the methods that torchjd keeps.")] = False,
    out: Annotated[Path, typer.Option(help="Folder for methods.json and methods.md.")] = RESULTS,
) -> None:
    """Print ratios of medians, and write them as JSON and Markdown."""
    torch.set_num_threads(THREADS)
    results = []
    for tasks in (2, 6):
        for name in gdod.METHODS if every else OURS:
            print(f"{name}, {tasks} tasks", file=sys.stderr, flush=True)
            try:
                results.append(measure(name, tasks, seconds))
            except (ImportError, gdod.InputError) as error:
                print(f"  left out: {error}", file=sys.stderr)
    about = {"command": " ".join(["python -m benchmarks.methods", *sys.argv[1:]]), **environment()}
    out.mkdir(parents=True, exist_ok=True)
    (out / "methods.md").write_text(as_markdown(results, about))
    (out / "methods.json").write_text(json.dumps({"about": about, "results": [asdict(r) for r in results]}, indent=1))
    print(as_markdown(results, about))


if __name__ == "__main__":
    typer.run(main)
