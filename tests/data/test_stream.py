"""Tables larger than memory: the same numbers as in memory, a good shuffle, and bounded memory."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from tests.data.clicks_table import SCHEMA, write

import gdod.data.preparing.shuffle
from gdod.data import TableSchema, load
from gdod.data.stream import StreamPart
from gdod.data.tables.read import read_chunks
from gdod.data.tables.table_schema import FileFormat
from gdod.models import build, per_example_losses


def test_streaming_gives_what_memory_gives(tmp_path: Path) -> None:
    path = write(tmp_path)
    memory = load(path, schema=SCHEMA, cache=tmp_path / "c", stream=False)
    stream = load(path, schema=SCHEMA, cache=tmp_path / "c", stream=True)
    assert isinstance(stream.train, StreamPart)
    assert stream.fingerprint == memory.fingerprint
    for one, other in zip(memory.train.batches(37), stream.train.batches(37), strict=True):
        assert torch.equal(one.batch.categorical, other.batch.categorical)
        assert torch.equal(one.batch.numeric, other.batch.numeric)
        assert torch.equal(one.batch.sequences[0], other.batch.sequences[0])
        torch.testing.assert_close(one.labels, other.labels, equal_nan=True)


def test_a_sorted_file_is_mixed_through_buckets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of a sorted file end up anywhere, also when they do not fit in memory together."""
    monkeypatch.setattr(gdod.data.preparing.shuffle, "_BUCKET_BYTES", 100_000)
    rows = 40_000
    table = pl.DataFrame({"x": np.arange(rows, dtype=float), "y": np.repeat([0, 1], rows // 2)})
    described = TableSchema(
        columns={"x": {"type": "numeric", "scale": "none"}, "y": "label"}, split={"validation": 0, "test": 0}
    )
    data = load(write(tmp_path, table), schema=described, cache=tmp_path / "c", stream=True)
    order = np.concatenate([step.batch.numeric[:, 0].numpy() for step in data.train.batches(1000)])
    assert sorted(order) == list(range(rows))
    # As in a uniform shuffle, place and value have nothing to do with each other, near or far.
    assert abs(np.corrcoef(order, np.arange(rows))[0, 1]) < 0.02
    assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 0.02
    rates = [float(step.labels["y"].mean()) for step in data.train.batches(256, seed=0)][:-1]
    assert np.std(rates) == pytest.approx(0.5 / 16, rel=0.2)  # of 256 fair draws


def _sorted_table(rows: int) -> pl.DataFrame:
    """Clicks that depend on user and item, in the order of users and labels: the worst order there is."""
    draw = np.random.default_rng(0)
    user, item = draw.integers(0, 200, rows), draw.integers(0, 50, rows)
    logit = draw.normal(0, 1, 200)[user] + draw.normal(0, 1, 50)[item] + draw.normal(0, 0.5, rows)
    table = pl.DataFrame({"user": user, "item": item, "click": (logit > 0).astype(int)})
    return table.sort("click", "user")


def _auc(labels: np.ndarray, scores: np.ndarray) -> float:
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(labels, scores))


@pytest.mark.slow
def test_auc_does_not_suffer_from_streaming(tmp_path: Path) -> None:
    path = write(tmp_path, _sorted_table(60_000))
    table = TableSchema(columns={"user": "categorical", "item": "categorical", "click": "label"})
    aucs = {}
    for stream in (False, True):
        data = load(path, schema=table, cache=tmp_path / "c", stream=stream)
        train = data.train
        if isinstance(train, StreamPart):
            train = StreamPart(train.path, train.encoder, window=1)  # the smallest buffer there is
        model = build("shared-bottom", data.schema, data.tasks, seed=0)
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
        for epoch in range(2):
            for step in train.batches(256, seed=0, epoch=epoch):
                optimizer.zero_grad()
                losses, _ = per_example_losses(model(step.batch), step.labels, data.tasks)
                losses["click"].mean().backward()
                optimizer.step()
        model.eval()
        with torch.no_grad():
            pairs = [(step.labels["click"], model(step.batch)["click"]) for step in data.test.batches(4096)]
        labels, scores = (torch.cat(list(column)).numpy() for column in zip(*pairs, strict=True))
        aucs[stream] = _auc(labels, scores)
    assert aucs[False] > 0.8  # it has learned something
    assert abs(aucs[True] - aucs[False]) < 0.004


LIMITED = """
import resource, sys
from pathlib import Path
import numpy as np, polars as pl
from gdod.data import TableSchema, load

folder, rows, allowance = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
schema = TableSchema(columns={"user": "categorical", "item": "categorical", "text": "categorical",
                              "x": "numeric", "click": "label"})

def write(path, rows):
    draw = np.random.default_rng(0)
    with path.open("wb") as file:
        for first in range(0, rows, 250_000):
            size = min(250_000, rows - first)
            user, item = draw.integers(0, 5000, size), draw.integers(0, 9000, size)
            pl.DataFrame({"user": user, "item": item, "x": draw.random(size), "click": user % 2}).with_columns(
                text=pl.format("a text that is rather long, of item {}", "item")
            ).write_csv(file, include_header=first == 0)

def taken(what):
    line = next(line for line in open("/proc/self/status") if line.startswith(what))
    return int(line.split()[1]) * 1024

write(folder / "small.csv", 60_000)
write(folder / "large.csv", rows)
# Libraries set aside memory and addresses when they are first used; the limit counts from there.
data = load(folder / "small.csv", schema=schema, cache=folder / "cache", stream=True)
sum(step.batch.size for step in data.train.batches(256, seed=0))
limit = taken("VmData:") + (allowance << 20)
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
if "--whole" in sys.argv:
    pl.read_csv(folder / "large.csv", infer_schema=False)
else:
    data = load(folder / "large.csv", schema=schema, cache=folder / "cache", stream=True)
    print(sum(step.batch.size for step in data.train.batches(256, seed=0)))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="limits memory as Linux does")
@pytest.mark.parametrize("whole", [False, True])
def test_a_table_larger_than_memory_is_prepared_and_streamed(whole: bool, tmp_path: Path) -> None:
    """5 million rows, over 330 MB, in 350 MB beyond what a small table takes; reading it whole fails there."""
    command = [sys.executable, "-c", LIMITED, str(tmp_path), "5000000", "350", *(["--whole"] if whole else [])]
    child = subprocess.run(command, capture_output=True, text=True)
    assert (tmp_path / "large.csv").stat().st_size > 330e6
    if whole:
        assert child.returncode != 0
        assert "memory" in child.stderr.lower()
    else:
        assert child.returncode == 0, child.stderr[-2000:]
        assert int(child.stdout) == 3_600_000


def test_a_parquet_file_is_not_read_ahead(tmp_path: Path) -> None:
    path, columns = tmp_path / "wide.parquet", [f"x{at}" for at in range(4)]
    draw = np.random.default_rng(0)
    schema = pa.schema([(name, pa.float64()) for name in columns])
    with pq.ParquetWriter(path, schema) as writer:
        for _ in range(20):
            writer.write_table(pa.table({name: draw.random(50_000) for name in columns}, schema=schema))
    before, most, rows = pa.total_allocated_bytes(), 0, 0
    for chunk in read_chunks([path], FileFormat(), columns):
        most, rows = max(most, pa.total_allocated_bytes() - before), rows + len(chunk.frame)
    assert rows == 1_000_000
    assert most < path.stat().st_size / 3  # 32 MB in all
