"""Does a step grow with the rows of the embedding tables? With ``sparse=True`` it must not.

``python -m benchmarks.tables`` times a whole training step (SparseAdam on the tables, Adam on the rest) of
the benchmark model with large tables in turn with the same step on small ones, for every method, and
measures the memory that steps take above the built model and the optimizer's state.
"""

import gc
import json
import statistics
import subprocess
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
from benchmarks.measure import THREADS, WARM_UP, peak_bytes, reset_peak, time_pairs
from benchmarks.report import environment, markdown_table

RESULTS = Path(__file__).parent / "results"
METHODS = ["sum", "uncertainty", "gradnorm", "gradreg", "mgda", "pcgrad", "cagrad", "gdod", "weighted-gdod"]
SMALL, SIZES = 100_000, (1_000_000, 10_000_000)
Step = Callable[[], float]


@dataclass(frozen=True)
class Measured:
    method: str
    table_rows: int
    ratio: float  # to the step with small tables
    low: float
    high: float
    megabytes: float


def stepper(name: str, rows: int) -> Step:
    case = Case(table_rows=rows, sparse=True)
    torch.manual_seed(0)
    model, method, feed = SharedBottom(case), gdod.method(name), batches(case)
    tables = list(model.tables.parameters())
    rest = [*model.bottom.parameters(), *model.towers.parameters()]
    optimizers = [torch.optim.SparseAdam(tables), torch.optim.Adam(rest)]

    def once() -> float:
        batch = next(feed)
        start = time.perf_counter()
        model.zero_grad()
        _, losses = forward(model, batch)
        gdod.backward(losses, method)
        for optimizer in optimizers:
            optimizer.step()
        return time.perf_counter() - start

    for _ in range(WARM_UP):
        once()
    return once


def measure(name: str, rows: int, seconds: float) -> Measured:
    pairs = time_pairs(stepper(name, SMALL), stepper(name, rows), seconds)
    ratios = [large / small for small, large in pairs]
    low, middle, high = statistics.quantiles(ratios, n=4)
    child = subprocess.run(
        [sys.executable, "-m", "benchmarks.tables", "--memory-of", name, "--rows", str(rows)],
        cwd=Path(__file__).parent.parent,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return Measured(name, rows, middle, low, high, float(child.stdout))


def steps_peak(name: str, rows: int) -> float:
    """Return the peak memory in MB above the model and the optimizer's state. Runs in a process of its own."""
    once = stepper(name, rows)
    gc.collect()
    reset_peak()
    before = peak_bytes()
    for _ in range(WARM_UP):
        once()
    return (peak_bytes() - before) / 1e6


def as_markdown(results: list[Measured], about: dict[str, str]) -> str:
    rows = [
        [r.method, f"{r.table_rows:,}", f"{r.ratio:.2f} ({r.low:.2f}–{r.high:.2f})", f"{r.megabytes:.1f}"]
        for r in results
    ]
    names = ["method", "rows of each table", f"step, to that with {SMALL:,}", "memory of steps, MB"]
    notes = [f"- {key}: {value}" for key, value in about.items()]
    text = "Two tables of 8 columns, `sparse=True`, SparseAdam; K = 2, batch 256. Medians and quartiles of pairs."
    return "\n".join(["# A step with large sparse tables", "", text, "", *notes, "", markdown_table(names, rows), ""])


def main(
    seconds: Annotated[float, typer.Option(min=0, help="Time for each comparison.")] = 1.5,
    out: Annotated[Path, typer.Option(help="Folder for tables.json and tables.md.")] = RESULTS,
    memory_of: Annotated[str | None, typer.Option(hidden=True)] = None,
    rows: Annotated[int, typer.Option(hidden=True)] = SMALL,
) -> None:
    """Print the ratios, and write them as JSON and Markdown."""
    torch.set_num_threads(THREADS)
    if memory_of is not None:
        print(steps_peak(memory_of, rows))
        return
    results = []
    for name in METHODS:
        for size in SIZES:
            print(f"{name}, {size:,} rows", file=sys.stderr, flush=True)
            results.append(measure(name, size, seconds))
    about = {"command": " ".join(["python -m benchmarks.tables", *sys.argv[1:]]), **environment()}
    out.mkdir(parents=True, exist_ok=True)
    (out / "tables.md").write_text(as_markdown(results, about))
    (out / "tables.json").write_text(json.dumps({"about": about, "results": [asdict(r) for r in results]}, indent=1))
    print(as_markdown(results, about))


if __name__ == "__main__":
    typer.run(main)
