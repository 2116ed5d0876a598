"""Preparing a table, and handing batches over: time, peak memory, and the rate against a training step.

``python -m benchmarks.data`` makes tables of BookCrossing's shape, prepares one of a million rows and one
that is larger than the memory it may use, and compares the rate of batches with that of a Shared-Bottom
step at batch 256. With the features of the strong recipe it prepares a table and one four times as large: what
they may take has a bound, which does not go by the number of rows.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import polars as pl
import torch
import typer

from benchmarks.measure import limit_memory, peak_bytes
from benchmarks.report import environment, markdown_table
from gdod.data import Dataset, FeatureOptions, Minibatch, TableSchema, load, prepare
from gdod.models import build, per_example_losses

RESULTS = Path(__file__).parent / "results"
BATCH = 256
USERS, BOOKS, PLACES = 105_000, 340_000, 22_000
CHUNK = 1_000_000
FEATURES_ALLOWANCE = 6 << 30
SCHEMA = TableSchema(
    columns={
        "user": "categorical",
        "isbn": "categorical",
        "age": "numeric",
        "place": "categorical",
        "country": "categorical",
        "rated": "label",
        "liked": "label",
    }
)


@dataclass(frozen=True)
class Measured:
    what: str
    measured: float
    unit: str
    bar: str

    def line(self) -> list[str]:
        return [self.what, f"{self.measured:,.2f} {self.unit}", self.bar]


def write_books(path: Path, rows: int) -> None:
    """Write a table of book ratings: ids with a long tail, text, numbers with gaps, two labels."""
    draw = np.random.default_rng(0)
    with path.open("wb") as file:
        for first in range(0, rows, CHUNK):
            _books(draw, min(CHUNK, rows - first)).write_csv(file, include_header=first == 0)


def _books(draw: np.random.Generator, rows: int) -> pl.DataFrame:
    user, book = draw.zipf(1.2, rows) % USERS, draw.zipf(1.1, rows) % BOOKS
    rating = np.where(draw.random(rows) < 0.62, 0, draw.integers(1, 11, rows))
    frame = pl.DataFrame({"user": user, "book": book, "place": user * 7 % PLACES, "rating": rating})
    age = draw.integers(10, 90, rows)
    return frame.select(
        "user",
        isbn=pl.format("0{}{}X", pl.col("book") % 9, (pl.col("book") + 10_000_000)),
        age=pl.when(pl.Series(draw.random(rows) > 0.3)).then(pl.Series(age)),
        place=pl.format("city {}, state {}", "place", pl.col("place") % 300),
        country=pl.format("country {}", pl.col("place") % 60),
        rated=(pl.col("rating") > 0).cast(pl.Int8),
        liked=(pl.col("rating") >= 9).cast(pl.Int8),
    )


def in_child(order: dict[str, Any]) -> dict[str, float]:
    """Return what `run_child` measures in a new process; in an old one an earlier peak would hide this one."""
    child = subprocess.run(
        [sys.executable, "-m", "benchmarks.data", "--child", json.dumps(order)],
        cwd=Path(__file__).parent.parent,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    measured: dict[str, float] = json.loads(child.stdout)
    return measured


def run_child(order: dict[str, Any]) -> dict[str, float]:
    """Prepare a file, and stream an epoch of it if it is told to."""
    torch.set_num_threads(1)
    features = FeatureOptions() if order.get("features") else None
    if allowance := order.get("allowance"):
        _limit_memory(Path(order["cache"]), allowance, features)
    before, start = peak_bytes(), time.perf_counter()
    prepare(order["file"], schema=SCHEMA, cache=order["cache"], features=features)
    measured = {"seconds": time.perf_counter() - start, "megabytes": peak_bytes() / 1e6, "before": before / 1e6}
    if order.get("epoch"):
        data = load(order["file"], schema=SCHEMA, cache=order["cache"], stream=True, features=features)
        start = time.perf_counter()
        seen = sum(step.batch.size for step in data.train.batches(BATCH, seed=0))
        measured |= {"rows_a_second": seen / (time.perf_counter() - start), "megabytes": peak_bytes() / 1e6}
    return measured


def _limit_memory(folder: Path, allowance: int, features: FeatureOptions | None) -> None:
    """Allow no more than ``allowance`` bytes beyond what the process has after it prepared a small table."""
    small = folder.parent / "small.csv"
    write_books(small, 50_000)
    data = load(small, schema=SCHEMA, cache=folder, stream=True, features=features)
    next(data.train.batches(BATCH, seed=0))
    limit_memory(allowance)


def batch_rate(data: Dataset, seconds: float) -> tuple[float, float]:
    """Return the milliseconds for a batch, and for the cheapest Shared-Bottom step with it, in turns.

    Forward and backward only, sparse gradients, no optimizer: whatever is added makes steps slower.
    """
    torch.set_num_threads(1)
    model = build("shared-bottom", data.schema, data.tasks, sparse=True)
    feed, at_once = _forever(data), 100
    fetching: list[float] = []
    stepping: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(fetching) < 5:
        start = time.perf_counter()
        steps = [next(feed) for _ in range(at_once)]
        fetching.append((time.perf_counter() - start) / at_once)
        start = time.perf_counter()
        for step in steps[:10]:
            model.zero_grad()
            losses, _ = per_example_losses(model(step.batch), step.labels, data.tasks)
            torch.stack([loss.mean() for loss in losses.values()]).sum().backward()
        stepping.append((time.perf_counter() - start) / 10)
    # The mean for batches, which come in bursts; the median for steps, in favour of which no outlier counts.
    return 1e3 * statistics.mean(fetching), 1e3 * statistics.median(stepping)


def _forever(data: Dataset) -> Iterator[Minibatch]:
    epoch = 0
    while True:
        yield from data.train.batches(BATCH, seed=0, epoch=epoch)
        epoch += 1


def measure(folder: Path, rows: int, large: int, allowance: int, seconds: float, features: int) -> list[Measured]:
    results = []
    if rows:
        table, cache = folder / "books.csv", folder / "cache"
        write_books(table, rows)
        measured = in_child({"file": str(table), "cache": str(cache)})
        results += [
            Measured(f"preparing {rows:,} rows", measured["seconds"], "s", "< 20 s"),
            Measured("its peak memory", measured["megabytes"], "MB", "< 2,000 MB"),
        ]
        for stream in (False, True):
            data = load(table, schema=SCHEMA, cache=cache, stream=stream)
            batch, step = batch_rate(data, seconds)
            place = "disk" if stream else "memory"
            results += [
                Measured(f"a batch of {BATCH}, from {place}", batch, "ms", ""),
                Measured("Shared-Bottom, forward and backward", step, "ms", ""),
                Measured(f"batches from {place} / steps, in the same time", step / batch, "×", "≥ 20 ×"),
            ]
    if large:
        table = folder / "large.csv"
        write_books(table, large)
        order = {"file": str(table), "cache": str(folder / "cache"), "allowance": allowance << 20, "epoch": True}
        measured = in_child(order)
        results += [
            Measured(f"a file of {large:,} rows", table.stat().st_size / 1e6, "MB", ""),
            Measured(f"preparing it, allowed {allowance:,} MB more than a small table", measured["seconds"], "s", ""),
            Measured("peak resident memory, with an epoch streamed", measured["megabytes"], "MB", ""),
            Measured("of it before the large table", measured["before"], "MB", ""),
            Measured("streamed rows a second", measured["rows_a_second"] / 1e6, "million", ""),
        ]
        table.unlink()
    for size in (features // 4, features) if features else ():
        table = folder / "features.csv"
        write_books(table, size)
        order = {"file": str(table), "cache": str(folder / "cache"), "allowance": FEATURES_ALLOWANCE, "features": True}
        measured = in_child({**order, "epoch": True})
        results += [
            Measured(f"preparing {size:,} rows with the strong recipe's features", measured["seconds"], "s", ""),
            Measured(
                "its peak resident memory, with an epoch streamed",
                measured["megabytes"],
                "MB",
                f"allowed {FEATURES_ALLOWANCE >> 20:,} MB more than a small table",
            ),
        ]
    return results


def main(
    rows: Annotated[int, typer.Option(min=0, help="Rows of the table that fits in memory.")] = 1_000_000,
    large: Annotated[int, typer.Option(min=0, help="Rows of the table that does not.")] = 20_000_000,
    allowance: Annotated[int, typer.Option(min=1, help="MB that the large one may take beyond a small one.")] = 500,
    seconds: Annotated[float, typer.Option(min=0, help="Time for each rate of batches.")] = 5.0,
    features: Annotated[int, typer.Option(min=0, help="Rows of a table that gets the strong recipe's features.")] = (
        4_000_000
    ),
    out: Annotated[Path, typer.Option(help="Folder for data.json and data.md.")] = RESULTS,
    child: Annotated[str | None, typer.Option(hidden=True)] = None,
) -> None:
    """Print times, peaks and rates, and write them as JSON and Markdown."""
    if child is not None:
        print(json.dumps(run_child(json.loads(child))))
        return
    with tempfile.TemporaryDirectory() as folder:
        results = measure(Path(folder), rows, large, allowance, seconds, features)
    about = {"command": " ".join(["python -m benchmarks.data", *sys.argv[1:]]), **environment(), "threads": "1"}
    table = markdown_table(["what", "measured", "bar"], [result.line() for result in results])
    text = "\n".join(["# Data: preparing and handing over", "", *(f"- {k}: {v}" for k, v in about.items()), "", table])
    out.mkdir(parents=True, exist_ok=True)
    (out / "data.md").write_text(text + "\n")
    (out / "data.json").write_text(json.dumps({"about": about, "results": [asdict(r) for r in results]}, indent=1))
    print(text)


if __name__ == "__main__":
    typer.run(main)
