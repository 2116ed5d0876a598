"""The estimator against the command line: what `fit` costs beyond `gdod train`, and what `predict_proba` takes.

``python -m benchmarks.estimator`` trains on the same rows in turns, each time from an empty cache, and compares the
processor's time: from a Parquet file as `gdod train` does, and from the same table in memory with
`MultiTaskModel.fit`. Then it predicts tables of three lengths, each in a process of its own: besides the result, memory
above the built model and the table is that of one chunk of 65,536 rows, whatever the number of rows, and what the
allocator keeps of freed chunks; once it has given that back, only the result is left.
"""

import ctypes
import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Annotated, Any

import polars as pl
import torch
import typer

from benchmarks.data import SCHEMA, write_books
from benchmarks.measure import peak_bytes, reset_peak
from benchmarks.report import environment, markdown_table
from gdod import MultiTaskModel
from gdod.training import check_config, train

RESULTS = Path(__file__).parent / "results"
LENGTHS = (100_000, 300_000, 1_000_000)
SETTINGS: dict[str, Any] = {"threads": 1, "device": "cpu", "tensorboard": False}


@dataclass(frozen=True)
class Measured:
    what: str
    measured: float
    unit: str
    bar: str = ""

    def line(self) -> list[str]:
        return [self.what, f"{self.measured:,.2f} {self.unit}", self.bar]


def training(folder: Path, rows: int, pairs: int) -> list[Measured]:
    """Return the time of `gdod train` and of `fit` on the same rows, and their ratio, from pairs in turns."""
    table, schema = folder / "books.parquet", folder / "books.yaml"
    _books(folder, rows).write_parquet(table)
    schema.write_text(json.dumps(SCHEMA.to_json()))
    frame = pl.read_parquet(table)
    seconds: list[tuple[float, float]] = []
    _command(folder / "warm", table, schema)
    _fit(folder / "warm", frame)
    for number in range(pairs):
        order = (0, 1) if number % 2 else (1, 0)
        both = [0.0, 0.0]
        for which in order:
            place = folder / f"{number}-{which}"
            start = time.process_time()
            if which:
                _fit(place, frame)
            else:
                _command(place, table, schema)
            both[which] = time.process_time() - start
        seconds.append((both[0], both[1]))
    ratios = sorted(ours / theirs for theirs, ours in seconds)
    quartiles = statistics.quantiles(ratios, n=4)
    return [
        Measured(f"gdod train on {rows:,} rows of Parquet", statistics.median(one for one, _ in seconds), "s"),
        Measured("MultiTaskModel.fit on the same rows in memory", statistics.median(one for _, one in seconds), "s"),
        Measured(f"fit / train, median of {pairs} pairs", statistics.median(ratios), "×", "≤ 1.05 ×"),
        Measured("its lower quartile", quartiles[0], "×"),
        Measured("its upper quartile", quartiles[2], "×"),
    ]


def _command(place: Path, table: Path, schema: Path) -> None:
    """Train as `gdod train` does, without the time that Python takes to start."""
    data = {"source": str(table), "schema": str(schema), "cache": str(place / "cache")}
    train(check_config({**SETTINGS, "data": data}), place / "train")


def _fit(place: Path, frame: pl.DataFrame) -> None:
    model = MultiTaskModel(schema=SCHEMA, verbose=False, settings={**SETTINGS, "data.cache": str(place / "cache")})
    model.fit(frame)


def prediction(folder: Path, lengths: tuple[int, ...]) -> list[Measured]:
    """Return the peaks of memory of predictions for tables of these lengths, above the built model and the table."""
    model = MultiTaskModel(
        schema=SCHEMA, verbose=False, epochs=1, settings={**SETTINGS, "data.cache": str(folder / "cache")}
    )
    model.fit(_books(folder, 50_000))
    model.save(folder / "run")
    results = []
    for how in ("in memory", "pl.scan_parquet"):
        peaks = []
        for rows in lengths:
            table = folder / f"books-{rows}.parquet"
            if not table.exists():
                _books(folder, rows).drop("rated", "liked").write_parquet(table)
            found = _in_child({"run": str(folder / "run"), "table": str(table), "how": how})
            peaks.append(found["megabytes"])
            what = f"predict_proba, {rows:,} rows, {how}"
            results.append(Measured(f"{what}: time", found["seconds"], "s"))
            results.append(Measured(f"{what}: the result", found["result"], "MB"))
            results.append(Measured(f"{what}: peak besides", found["megabytes"], "MB", "≤ 300 MB"))
            results.append(Measured(f"{what}: left besides", found["left"], "MB", "≤ 30 MB"))
        what = f"{how}: peak besides the result, {lengths[-1]:,} rows / {lengths[-2]:,}"
        results.append(Measured(what, peaks[-1] / peaks[-2], "×", "≤ 1.5 ×"))
    return results


def run_child(order: dict[str, str]) -> dict[str, float]:
    """Predict a table, and return the peak of memory while that went on, above what there was before."""
    torch.set_num_threads(1)
    model = MultiTaskModel.load(order["run"], verbose=False)
    lazy = pl.scan_parquet(order["table"])
    model.predict_proba(lazy.head(1000))  # libraries set up what they need
    table = lazy.collect() if order["how"] == "in memory" else lazy
    before = _resident_bytes()
    reset_peak()
    start = time.process_time()
    result = model.predict_proba(table)
    seconds, peak, size = time.process_time() - start, peak_bytes(), result.estimated_size()
    return {
        "megabytes": (peak - before - size) / 1e6,
        "left": (_resident_bytes() - before - size) / 1e6,
        "result": size / 1e6,
        "seconds": seconds,
    }


def _resident_bytes() -> int:
    """Return the memory in use, after what is free was given back to the system (Linux with glibc)."""
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024


def _in_child(order: dict[str, str]) -> dict[str, float]:
    """Return what `run_child` measures in a new process; in an old one freed memory would hide what is taken."""
    child = subprocess.run(
        [sys.executable, "-m", "benchmarks.estimator", "--child", json.dumps(order)],
        cwd=Path(__file__).parent.parent,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    measured: dict[str, float] = json.loads(child.stdout)
    return measured


_NUMBERS = count()


def _books(folder: Path, rows: int) -> pl.DataFrame:
    path = folder / f"books-{next(_NUMBERS)}.csv"
    write_books(path, rows)
    frame = pl.read_csv(path)
    path.unlink()
    return frame


def main(
    rows: Annotated[int, typer.Option(min=1000, help="Rows to train on.")] = 50_000,
    pairs: Annotated[int, typer.Option(min=2, help="How often each trains.")] = 9,
    out: Annotated[Path, typer.Option(help="Folder for estimator.json and estimator.md.")] = RESULTS,
    child: Annotated[str | None, typer.Option(hidden=True)] = None,
) -> None:
    """Print times and peaks, and write them as JSON and Markdown."""
    if child is not None:
        print(json.dumps(run_child(json.loads(child))))
        return
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        results = [*training(Path(folder), rows, pairs), *prediction(Path(folder), LENGTHS)]
    about = {"command": " ".join(["python -m benchmarks.estimator", *sys.argv[1:]]), **environment(), "threads": "1"}
    table = markdown_table(["what", "measured", "bar"], [result.line() for result in results])
    text = "\n".join(["# The estimator", "", *(f"- {k}: {v}" for k, v in about.items()), "", table])
    out.mkdir(parents=True, exist_ok=True)
    (out / "estimator.md").write_text(text + "\n")
    (out / "estimator.json").write_text(json.dumps({"about": about, "results": [asdict(r) for r in results]}, indent=1))
    print(text)


if __name__ == "__main__":
    typer.run(main)
