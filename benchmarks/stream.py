"""Training on a table that is larger than the memory it may take, against training on it in memory.

``python -m benchmarks.stream`` makes a Parquet table, sorted by label, the worst order there is; prepares it and
trains on it with `data.stream=true` in a process with a limit on its memory; and times blocks of training steps
there and, in turn, in a process without a limit that has all examples in memory.
"""

import json
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from itertools import pairwise
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import torch
import typer

from benchmarks.measure import limit_memory, peak_bytes
from benchmarks.report import ENOUGH_PAIRS, UNSTEADY, environment, markdown_table
from gdod.data import TableSchema, load
from gdod.data.preparing.pipeline import row_bytes
from gdod.data.stream import StreamPart
from gdod.errors import InputError
from gdod.models import build
from gdod.training import Folder, Silent, check_config
from gdod.training.evaluation import predict_part
from gdod.training.interruption import StopRequest
from gdod.training.loop import Trainer
from gdod.training.record import Record
from gdod.training.seeds import seed_for, seeded_method

RESULTS = Path(__file__).parent / "results"
BATCH = 256
BLOCK = 512  # steps that are timed together: in it a streamed part reads as many row groups as it mixes
IDS, NUMBERS = (2_000, 500, 100, 100, 50, 20, 10, 5), 24
CHUNK = 250_000
SMALL = 60_000
BAR = 1.1
SCHEMA = TableSchema(
    columns={f"id{at}": "categorical" for at in range(len(IDS))}
    | {f"x{at}": "numeric" for at in range(NUMBERS)}
    | {"click": "label", "buy": "label"},
    split={"validation": 0.02, "test": 0},
)


def write_table(path: Path, rows: int) -> None:
    """Write rows without a click, then those with one; ids and numbers decide, with noise."""
    writer = None
    for click in (0, 1):
        for first in range(0, rows, CHUNK):
            chunk = _rows(first, min(CHUNK, rows - first)).filter(pl.col("click") == click).to_arrow()
            writer = writer or pq.ParquetWriter(path, chunk.schema)
            writer.write_table(chunk)
    assert writer is not None
    writer.close()


def _rows(first: int, size: int) -> pl.DataFrame:
    draw = np.random.default_rng([first])
    ids = [(draw.random(size) ** 2 * many).astype(np.int32) for many in IDS]
    numbers = draw.standard_normal((NUMBERS, size), np.float32)
    taste = [np.random.default_rng([at, 1]).normal(0, 0.5, many) for at, many in enumerate(IDS)]
    logit = sum(one[each] for one, each in zip(taste, ids, strict=True)) + numbers[:4].sum(0) / 2
    click = logit + draw.logistic(size=size) > 1
    buy = click & (numbers[4:8].sum(0) / 2 - taste[0][ids[0]] + draw.logistic(size=size) > 1)
    return pl.DataFrame(
        {f"id{at}": each for at, each in enumerate(ids)}
        | {f"x{at}": each for at, each in enumerate(numbers)}
        | {"click": click.astype(np.int8), "buy": buy.astype(np.int8)}
    )


class Training:
    """The loop of `gdod train` on a table, in blocks of steps."""

    def __init__(self, table: Path, cache: Path, method: str, stream: bool) -> None:
        settings = {"recipe": "paper", "data": str(table), "method": method, "batch": BATCH}
        config = check_config({**settings, "log_every": 100, "evaluate_every": 10**9})
        dataset = load(table, schema=SCHEMA, cache=cache, stream=stream)
        self.megabytes = len(dataset.train) * row_bytes(dataset.encoder) / 1e6
        model = build("shared-bottom", dataset.schema, dataset.tasks, seed=seed_for("model", 0))
        self._folder = tempfile.TemporaryDirectory()
        folder = Path(self._folder.name)
        self.trainer = Trainer(
            config,
            dataset,
            model,
            seeded_method(method, {}, 0),
            Folder(folder),
            device=torch.device("cpu"),
            progress=Silent(),
        )
        self.trainer.record = Record(folder / "metrics.jsonl", 0, None)
        self._batches, self._nothing = self.trainer._batches(), StopRequest()

    def block(self, steps: int) -> tuple[float, float]:
        """Train a block of steps; return the seconds on the clock and those of the processor."""
        start = time.perf_counter(), time.process_time()
        self.trainer.total = self.trainer.state.step + steps
        self.trainer._train(self._batches, self._nothing)
        return time.perf_counter() - start[0], time.process_time() - start[1]

    def auc(self) -> float:
        trainer = self.trainer
        scored = predict_part(trainer.model, trainer.dataset.validation, 4096, torch.device("cpu"))
        assert scored is not None
        return float(scored.metrics()["mean_auc"])


def work(link: Connection, order: dict[str, Any]) -> None:
    """Prepare, load, then train a block whenever told to, in a process of its own."""
    torch.set_num_threads(1)
    table, cache, method, stream = Path(order["table"]), Path(order["cache"]), order["method"], order["stream"]
    before: dict[str, Any] = {}
    if order["allowance"]:
        # Libraries set aside memory and addresses when they are first used; the limit counts from there.
        small = Training(Path(order["small"]), cache, method, stream=True)
        small.block(20)
        small.auc()
        before["before"] = peak_bytes() / 1e6
        limit_memory(order["allowance"] << 20)
    start = time.perf_counter()
    try:
        training = Training(table, cache, method, stream)
    except (MemoryError, InputError):
        link.send({"refused": True})
        return
    assert isinstance(training.trainer.dataset.train, StreamPart) == stream
    link.send({**before, "seconds": time.perf_counter() - start, "examples": training.megabytes})
    while steps := link.recv():
        link.send(training.block(steps))
    link.send({"auc": training.auc(), "steps": training.trainer.state.step, "peak": peak_bytes() / 1e6})


class Worker:
    def __init__(self, **order: Any) -> None:
        self.link, child = get_context("spawn").Pipe()
        self.process = get_context("spawn").Process(target=work, args=(child, order))
        self.process.start()
        child.close()

    def begun(self) -> dict[str, Any] | None:
        """Return what the process tells before it trains, or None if its memory was not enough to get there."""
        try:
            told: dict[str, Any] = self.link.recv()
        except EOFError:
            return None
        return None if "refused" in told else told

    def ask(self, steps: int) -> Any:
        self.link.send(steps)
        return self.link.recv()

    def end(self) -> Any:
        answer = self.ask(0)
        self.process.join()
        return answer


@dataclass(frozen=True)
class Measured:
    """Times of streaming over those of training in memory: median and quartiles over pairs of blocks."""

    method: str
    milliseconds: float  # of a step in memory
    clock: float
    low: float
    high: float
    processor: float
    """The same of the processor's time, which other work on the machine leaves alone."""
    pairs: int
    noise: float  # in memory over itself: 1 on a quiet machine
    streamed_auc: float
    memory_auc: float
    steps: int
    peak: float  # MB resident
    before: float  # MB of it before the large table

    @property
    def verdict(self) -> str:
        if abs(self.noise - 1) > UNSTEADY or self.pairs < ENOUGH_PAIRS:
            told = "ok" if self.processor <= BAR else "missed"
            return f"≤ {BAR:g}: machine too busy to tell by the clock; by the processor {told}"
        return f"≤ {BAR:g}: {'ok' if self.clock <= BAR else 'missed'}"

    def line(self) -> list[str]:
        return [
            self.method,
            f"{self.milliseconds:.2f} ms",
            f"{self.noise:.2f}",
            f"{self.clock:.2f} ({self.low:.2f}–{self.high:.2f})",
            f"{self.processor:.2f}",
            self.verdict,
            f"{self.streamed_auc:.4f}, {self.memory_auc:.4f}",
        ]


def measure(
    order: dict[str, Any], method: str, allowance: int, pairs: int, block: int
) -> tuple[Measured, dict[str, Any]]:
    stream = Worker(**order, method=method, stream=True, allowance=allowance)
    about = stream.begun()
    if about is None:
        raise SystemExit(f"{allowance} MB were not enough to prepare the table; allow more with --allowance")
    memory = Worker(**order, method=method, stream=False, allowance=0)
    memory.begun()
    times: list[tuple[tuple[float, float], tuple[float, float]]] = []
    for at in range(-1, pairs):
        workers = (memory, stream) if at % 2 else (stream, memory)
        took = {worker: worker.ask(block) for worker in workers}
        if at >= 0:  # the first warms up
            times.append((took[stream], took[memory]))
    streamed, in_memory = stream.end(), memory.end()
    ratios = [one[0] / other[0] for one, other in times]
    quartiles = statistics.quantiles(ratios, n=4)
    clocks = [other[0] for _, other in times]
    measured = Measured(
        method=method,
        milliseconds=1e3 * statistics.median(clocks) / block,
        clock=statistics.median(ratios),
        low=quartiles[0],
        high=quartiles[2],
        processor=statistics.median(one[1] / other[1] for one, other in times),
        pairs=len(times),
        noise=statistics.median(after / before for before, after in pairwise(clocks)),
        streamed_auc=streamed["auc"],
        memory_auc=in_memory["auc"],
        steps=streamed["steps"],
        peak=streamed["peak"],
        before=about["before"],
    )
    return measured, about


def as_markdown(
    results: list[Measured], facts: list[list[str]], about: dict[str, str], command: str, block: int
) -> str:
    parts = [
        "# Training on more than memory holds",
        f"`{command}` on {', '.join(f'{name} {value}' for name, value in about.items())}.",
        "A table sorted by label is prepared and trained on with `data.stream=true` in a process that may take no more "
        "than a fixed amount beyond what it has after it trained on a small table.",
        markdown_table(["what", "measured"], facts),
        f"Blocks of {block} steps of `gdod train`, batch {BATCH}, Shared-Bottom, streamed under the limit, over blocks "
        "in a process without a limit that has all examples in memory: median over pairs of blocks timed in turn, with "
        "the quartiles, by the clock and by the time of the processor. The column itself is training in memory over "
        "its block before. AUC: mean over the tasks on validation after the same number of steps, streamed and from "
        "memory with a full shuffle.",
        markdown_table(
            ["method", "step in memory", "itself", "streamed", "by processor", "bar", "AUC streamed, in memory"],
            [one.line() for one in results],
        ),
    ]
    return "\n\n".join(parts) + "\n"


def main(
    rows: Annotated[int, typer.Option(min=SMALL, help="Rows of the table.")] = 8_000_000,
    allowance: Annotated[int, typer.Option(min=1, help="MB that it may take beyond a small table.")] = 400,
    pairs: Annotated[int, typer.Option(min=2, help="Pairs of blocks that are timed.")] = 24,
    block: Annotated[int, typer.Option(min=1, help="Steps of a block.")] = BLOCK,
    out: Annotated[Path, typer.Option(help="Folder for stream.json and stream.md.")] = RESULTS,
) -> None:
    """Print the times of streamed training over those of training in memory, and write them as JSON and Markdown."""
    results = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        table, small = folder / "table.parquet", folder / "small.parquet"
        write_table(table, rows)
        write_table(small, SMALL)
        order = {"table": str(table), "small": str(small), "cache": str(folder / "cache")}
        facts = [["rows", f"{rows:,}"], ["the Parquet file", f"{table.stat().st_size / 1e6:,.0f} MB"]]
        for method in ("sum", "gdod"):
            print(method, file=sys.stderr, flush=True)
            measured, about = measure(order, method, allowance, pairs, block)
            results.append(measured)
            if len(results) == 1:
                facts += [
                    ["training examples, as tensors in memory", f"{about['examples']:,.0f} MB"],
                    ["allowed beyond a small table", f"{allowance:,} MB"],
                    ["preparing it under the limit", f"{about['seconds']:,.0f} s"],
                ]
        whole = Worker(**order, method="sum", stream=False, allowance=allowance)
        refused = whole.begun() is None
        if not refused:
            whole.end()
    most = max(results, key=lambda one: one.peak)
    facts += [
        ["peak resident memory of streamed training", f"{most.peak:,.0f} MB, of it {most.before:,.0f} MB before"],
        ["loading all examples under the limit", "ends for want of memory" if refused else "was possible"],
    ]
    about = environment() | {"threads": "1"}
    command = f"python -m benchmarks.stream --rows {rows} --allowance {allowance} --pairs {pairs} --block {block}"
    text = as_markdown(results, facts, about, command, block)
    out.mkdir(parents=True, exist_ok=True)
    content = {
        "command": command,
        "environment": about,
        "facts": dict(facts),
        "results": [asdict(one) for one in results],
    }
    (out / "stream.json").write_text(json.dumps(content, indent=2) + "\n")
    (out / "stream.md").write_text(text)
    print(text)


if __name__ == "__main__":
    typer.run(main)
