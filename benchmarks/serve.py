"""How long `gdod serve` takes to answer: python -m benchmarks.serve

Trains a small run on simulated ads, starts a server for it as a user does, and sends it requests from another process
over 127.0.0.1: single rows one after the other, in turn with the same rows predicted in a process of its own without a
server; then many connections at once, each of which sends its next request when it has its answer; then a fixed number
of requests a second, whose time counts from when they were due.
"""

import asyncio
import gc
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from benchmarks.report import environment, markdown_table
from gdod.data.sets.ads import AdsOptions, simulate
from gdod.data.tables.read import Chunk
from gdod.data.tables.values import Origin
from gdod.serving.json_rows import frame_of, table_of
from gdod.training import load_run
from gdod.training.predict import predict_chunk

RESULTS = Path(__file__).parent / "results"
ROWS = 20_000  # of the table
BLOCK = 50  # requests that are timed before it is the other's turn
BAR = 2.0  # milliseconds
UNSTEADY = 1.5  # p90 over p50 of the model alone: beyond it other programs take the machine's time
Row = dict[str, Any]


@dataclass(frozen=True)
class Load:
    """Times of requests in milliseconds, under some load."""

    connections: int
    rows: int
    """Rows in a request."""
    rate: float
    """Requests answered in a second."""
    asked: float | None
    """Requests a second that were to be sent; None: as many as were answered."""
    p50: float
    p99: float


@dataclass(frozen=True)
class Single:
    """Times of single rows in milliseconds, by the clock and by the processor."""

    p10: float
    p50: float
    p90: float
    p99: float
    processor: float
    """The time of the processor for a row, of the client and the server together."""

    @classmethod
    def of(cls, took: Sequence[float], processor: float) -> "Single":
        cuts = statistics.quantiles(took, n=100)
        return cls(cuts[9], cuts[49], cuts[89], cuts[98], processor)


@contextmanager
def server(run: Path) -> Iterator[int]:
    """Start `gdod serve`, give its port, and end it."""
    command = [sys.executable, "-m", "gdod", "serve", str(run), "--port", "0", "--json", "--threads", "1"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    try:
        line = process.stdout.readline() or sys.exit("the server did not start")
        yield int(json.loads(line)["url"].rpartition(":")[2])
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def predict_alone(link: Connection, run: str, rows: Sequence[Row]) -> None:
    """Predict rows one by one without a server, a block whenever told to: the time that the model itself takes."""
    torch.set_num_threads(1)
    loaded = load_run(run)
    chunks = [Chunk(frame_of([table_of(loaded, [row])]), Origin()) for row in rows]
    for chunk in chunks[:BLOCK]:
        predict_chunk(loaded, chunk)
    _keep_garbage_away()
    link.send("ready")
    at = 0
    while link.recv():
        took, before = [], time.process_time()
        for _ in range(BLOCK):
            start = time.perf_counter()
            predict_chunk(loaded, chunks[at % len(chunks)])
            took.append(1e3 * (time.perf_counter() - start))
            at += 1
        link.send((took, time.process_time() - before))


def _keep_garbage_away() -> None:
    """Keep looking for garbage among all that is loaded from being a part of the times, as the server does."""
    gc.collect()
    gc.freeze()


class Client:
    """One connection, which stays open."""

    def __init__(self, port: int) -> None:
        self.port = port

    async def __aenter__(self) -> "Client":
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()

    async def post(self, body: bytes) -> float:
        """Send a request and return the milliseconds until its answer was there."""
        start = time.perf_counter()
        await self._ask(b"POST /predict HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
        return 1e3 * (time.perf_counter() - start)

    async def processor(self) -> float:
        """Return the seconds of the processor that the server has taken so far."""
        text = (await self._ask(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n")).decode()
        return float(text.partition("\nprocess_cpu_seconds_total ")[2].partition("\n")[0])

    async def _ask(self, request: bytes) -> bytes:
        self.writer.write(request)
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        answer = await self.reader.readexactly(length)
        if not head.startswith(b"HTTP/1.1 200"):
            raise SystemExit(f"the server answered {answer!r}")
        return answer


def bodies(rows: Sequence[Row], size: int) -> list[bytes]:
    return [json.dumps({"rows": rows[at : at + size]}).encode() for at in range(0, len(rows) - size + 1, size)]


async def one_by_one(port: int, requests: Sequence[bytes], link: Any, blocks: int) -> tuple[Single, Single]:
    """Return the times of single rows without the server, and by way of it, in turn."""
    served: list[float] = []
    alone: list[float] = []
    processor = [0.0, 0.0]  # seconds
    async with Client(port) as client:
        for body in requests[:BLOCK]:
            await client.post(body)
        for block in range(blocks):
            link.send(True)
            took, seconds = link.recv()
            alone += took
            processor[0] += seconds
            before = time.process_time() + await client.processor()
            served += [await client.post(requests[(block * BLOCK + at) % len(requests)]) for at in range(BLOCK)]
            processor[1] += time.process_time() + await client.processor() - before
    each = [1e3 * seconds / len(alone) for seconds in processor]
    return Single.of(alone, each[0]), Single.of(served, each[1])


async def closed_loop(port: int, requests: Sequence[bytes], connections: int, size: int, seconds: float) -> Load:
    """Send as much as some connections can."""
    took: list[float] = []
    end = time.perf_counter() + seconds

    async def send(first: int) -> None:
        async with Client(port) as client:
            at = first
            while time.perf_counter() < end:
                took.append(await client.post(requests[at % len(requests)]))
                at += connections

    await asyncio.gather(*map(send, range(connections)))
    return _load(connections, size, len(took) / seconds, None, took)


async def fixed_rate(port: int, requests: Sequence[bytes], rate: float, seconds: float, most: int = 64) -> Load:
    """Send so many requests a second, whatever becomes of them; each takes a connection that is free."""
    free: asyncio.Queue[Client] = asyncio.Queue()
    for _ in range(most):
        free.put_nowait(await Client(port).__aenter__())
    took: list[float] = []
    begin = time.perf_counter() + 0.1

    async def send(at: int) -> None:
        due = begin + at / rate
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        client = await free.get()
        await client.post(requests[at % len(requests)])
        took.append(1e3 * (time.perf_counter() - due))
        free.put_nowait(client)

    await asyncio.gather(*map(send, range(int(rate * seconds))))
    elapsed = time.perf_counter() - begin
    while not free.empty():
        await free.get_nowait().__aexit__()
    return _load(most, 1, len(took) / elapsed, rate, took)


def _load(connections: int, size: int, rate: float, asked: float | None, took: list[float]) -> Load:
    cuts = statistics.quantiles(took, n=100)
    return Load(connections, size, rate, asked, cuts[49], cuts[98])


def train(folder: Path) -> list[Row]:
    """Train a small run and return rows that it can predict."""
    command = [sys.executable, "-m", "gdod", "train", "--data", "ads", "--data-option", f"rows={ROWS}", "--recipe"]
    command += ["strong", "--epochs", "1", "--threads", "1", "--quiet", "--out", str(folder)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "GDOD_CACHE": str(folder.parent)})
    columns = load_run(folder).encoder.inputs
    return simulate(AdsOptions(rows=2_000, seed=1)).table.select(columns).to_dicts()


def verdict(alone: Single, served: Single) -> str:
    """Return whether the server adds more than it may; by the processor if the machine is too busy to tell."""
    added, worked = served.p50 - alone.p50, served.processor - alone.processor
    said = f"The server adds {added:.2f} ms at p50, and {worked:.2f} ms of the processor; the bar is {BAR:g} ms: "
    if alone.p90 <= UNSTEADY * alone.p50:
        return said + ("ok." if added <= BAR else "not reached.")
    by_processor = "ok" if worked <= BAR else "not reached"
    return said + f"machine too busy to tell by the clock; by the processor {by_processor}."


def as_markdown(alone: Single, served: Single, loads: list[Load], about: str) -> str:
    single = [
        [name, *(f"{one:.2f}" for one in (times.p10, times.p50, times.p90, times.p99, times.processor))]
        for name, times in {"model (encoder and network) alone": alone, "by way of `gdod serve`": served}.items()
    ]
    rows = [
        [
            f"{one.connections}" if one.asked is None else f"{one.asked:g} requests a second",
            f"{one.rows}",
            f"{one.rate:,.0f}",
            f"{one.rate * one.rows:,.0f}",
            f"{one.p50:.2f}",
            f"{one.p99:.2f}",
        ]
        for one in loads
    ]
    return "\n".join(
        [
            "# Serving a run",
            "",
            about,
            "",
            "Single rows one after the other, with and without the server in turn, in milliseconds. By the processor: "
            "the time that server and client work.",
            "",
            markdown_table(["one row", "p10", "p50", "p90", "p99", "by the processor"], single),
            "",
            verdict(alone, served),
            "",
            "Under load, in milliseconds: connections that send their next request when they have their answer, and a "
            "fixed rate, where times count from when a request was due.",
            "",
            markdown_table(["load", "rows in a request", "requests/s", "rows/s", "p50", "p99"], rows),
            "",
        ]
    )


def main(
    blocks: Annotated[int, typer.Option(min=2, help="Blocks of 50 single rows.")] = 20,
    seconds: Annotated[float, typer.Option(min=1, help="Time for each load.")] = 5.0,
    rate: Annotated[float, typer.Option(min=1, help="Requests a second of the fixed rate.")] = 200.0,
    run: Annotated[Path | None, typer.Option(help="A run on ads that is there already.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for serve.json and serve.md.")] = RESULTS,
) -> None:
    """Print the times, and write them as JSON and Markdown."""
    busy = os.getloadavg()[1]
    with tempfile.TemporaryDirectory() as scratch:
        folder = run or Path(scratch) / "run"
        rows = train(folder) if run is None else simulate(AdsOptions(rows=2_000, seed=1)).table.to_dicts()
        link, other = get_context("spawn").Pipe()
        process = get_context("spawn").Process(target=predict_alone, args=(other, str(folder), rows), daemon=True)
        process.start()
        link.recv()
        _keep_garbage_away()
        with server(folder) as port:
            alone, served = asyncio.run(one_by_one(port, bodies(rows, 1), link, blocks))
            link.send(False)
            process.join()
            loads = [
                asyncio.run(closed_loop(port, bodies(rows, size), connections, size, seconds))
                for connections, size in ((1, 1), (4, 1), (16, 1), (64, 1), (4, 100))
            ]
            loads.append(asyncio.run(fixed_rate(port, bodies(rows, 1), rate, seconds)))
    about = f"`{' '.join(['python -m benchmarks.serve', *sys.argv[1:]])}` on "
    about += ", ".join(f"{key} {value}" for key, value in {**environment(), "threads": "1"}.items())
    about += f"; programs that wanted to run in the minutes before: {busy:.1f}."
    text = as_markdown(alone, served, loads, about)
    out.mkdir(parents=True, exist_ok=True)
    (out / "serve.md").write_text(text)
    results = {"alone": asdict(alone), "served": asdict(served), "loads": [asdict(one) for one in loads]}
    machine = {**environment(), "threads": "1", "load before": busy}
    (out / "serve.json").write_text(json.dumps({"about": machine, **results}, indent=1))
    print(text)


if __name__ == "__main__":
    typer.run(main)
