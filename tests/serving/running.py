"""A run with tasks of every kind, and a server for it in a process of its own."""

import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
from tests.training import tiny
from typer.testing import CliRunner

from gdod.cli import app

SCHEMA = """\
columns:
  city: categorical
  item: categorical
  age: numeric
  seen: {type: sequence, separator: " ", longest: 4}
  at: time
  click: label
  paid: {type: label, kind: regression}
  kind of buy: {type: label, kind: multiclass}
"""
COLUMNS = ["city", "item", "age", "seen", "at"]


def table(rows: int, seed: int = 0) -> pl.DataFrame:
    frame = tiny.frame(rows, seed)
    hours = pl.int_range(rows) * 7 % 1000
    kinds = pl.Series(["none", "one", "two"]).gather(frame["buy"] + frame["click"])
    return frame.with_columns(
        (pl.datetime(2024, 5, 1) + pl.duration(hours=hours)).dt.to_string("%Y-%m-%d %H:%M").alias("at"),
        (pl.col("age") * 100).alias("paid"),
        kinds.alias("kind of buy"),
    )


def trained(place: Path) -> Path:
    """Train a small run, whose predictions are calibrated and corrected, and return its folder."""
    table(600).write_parquet(place / "table.parquet")
    (place / "schema.yaml").write_text(SCHEMA)
    given = ["--data", str(place / "table.parquet"), "--schema", str(place / "schema.yaml")]
    quick = ["--steps", "5", "--batch", "64", "--threads", "1", "--no-tensorboard", "--quiet"]
    changed = ["--calibrate", "platt", "--negatives-kept", "click=0.5"]
    kept = ["--set", f"data.cache={place / 'cache'}", "--out", str(place / "run")]
    done = CliRunner().invoke(app, ["train", *given, *quick, *changed, *kept])
    assert done.exit_code == 0, done.output
    return place / "run"


@dataclass(frozen=True)
class Answer:
    status: int
    content: Any
    headers: Mapping[str, str]


@dataclass(frozen=True)
class Server:
    process: "subprocess.Popen[str]"
    told: dict[str, Any]

    @property
    def port(self) -> int:
        return int(self.told["url"].rpartition(":")[2])

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)

    def ask(self, path: str, content: object = None, method: str | None = None) -> Answer:
        """Send a request on a connection of its own: bytes as they are, anything else as JSON."""
        connection = self.connect()
        try:
            send(connection, content, path, method)
            return answer(connection)
        finally:
            connection.close()

    def predict(self, rows: object) -> Answer:
        return self.ask("/predict", {"rows": rows})

    def metric(self, name: str) -> float:
        """Return a number of /metrics, 0 if it is not there."""
        lines = self.ask("/metrics").content.splitlines()
        return next((float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name} ")), 0.0)

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """Send a signal; return the exit code and what was said on standard error."""
        self.process.send_signal(number)
        _, said = self.process.communicate(timeout=60)
        return self.process.returncode, said


def send(
    connection: http.client.HTTPConnection, content: object, path: str = "/predict", method: str | None = None
) -> None:
    body = content if isinstance(content, bytes) or content is None else json.dumps(content).encode()
    connection.request(method or ("GET" if content is None else "POST"), path, body)


def answer(connection: http.client.HTTPConnection) -> Answer:
    response = connection.getresponse()
    body = response.read()
    kind = response.headers["content-type"]
    return Answer(
        response.status, json.loads(body) if kind == "application/json" else body.decode(), dict(response.headers)
    )


@contextmanager
def serving(run: Path, *options: str) -> Iterator[Server]:
    command = [sys.executable, "-m", "gdod", "serve", str(run), "--port", "0", "--json", "--threads", "1", *options]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        line = process.stdout.readline()
        assert line, process.stderr.read()
        yield Server(process, json.loads(line))
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()
