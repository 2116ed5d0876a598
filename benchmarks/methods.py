"""Every method on the benchmark model: the cost of a step, against a plain one and against `sum`.

``python -m benchmarks.methods`` times each method in turn with the plain step, and with the plain sum
worked out through one gradient for each task (`diagnose=True`), which is what a method that needs the
task gradients cannot go below. PCGrad and CAGrad are timed in turn with torchjd's, too.
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
from benchmarks.ways import PLAIN, TORCHJD, TORCHJD_CAGRAD, Competitor

RESULTS = Path(__file__).parent / "results"
OURS = ["sum", "uncertainty", "gradnorm", "gradreg", "mgda", "pcgrad", "cagrad", "gdod", "weighted-gdod"]
THEIRS = {"pcgrad": TORCHJD, "cagrad": TORCHJD_CAGRAD}
Step = Callable[[], float]


@dataclass(frozen=True)
class Measured:
    method: str
    tasks: int
    to_plain: float
    to_sum: float  # through task gradients
    to_torchjd: float | None  # the same method of torchjd's, with its `mtl_backward`
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


def way_stepper(model: SharedBottom, case: Case, competitor: Competitor) -> Step:
    feed, way = batches(case), competitor.way(case)

    def once() -> float:
        batch = next(feed)
        start = time.perf_counter()
        model.zero_grad()
        way(model, batch)
        return time.perf_counter() - start

    return once


def measure(name: str, tasks: int, seconds: float) -> Measured:
    case = Case(tasks=tasks)
    torch.manual_seed(0)
    model = SharedBottom(case)
    ours = stepper(model, case, name)

    def ratio(base: Step) -> tuple[float, int]:
        for step in (base, ours):
            for _ in range(WARM_UP):
                step()
        pairs = time_pairs(base, ours, seconds)
        return statistics.median(other / base for base, other in pairs), len(pairs)

    to_plain, pairs = ratio(way_stepper(model, case, PLAIN))
    to_sum, more = ratio(stepper(model, case, "sum", diagnose=True))
    theirs = THEIRS.get(name)
    to_torchjd = None if theirs is None else ratio(way_stepper(model, case, theirs))[0]
    return Measured(name, tasks, to_plain, to_sum, to_torchjd, pairs + more)


def as_markdown(results: list[Measured], about: dict[str, str]) -> str:
    rows = [
        [
            r.method,
            str(r.tasks),
            f"{r.to_plain:.2f}",
            f"{r.to_sum:.2f}",
            "" if r.to_torchjd is None else f"{r.to_torchjd:.2f}",
        ]
        for r in results
    ]
    names = ["method", "tasks", "to the plain step", "to `sum` through task gradients", "to torchjd's own"]
    table = markdown_table(names, rows)
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
