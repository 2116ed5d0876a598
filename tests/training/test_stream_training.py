"""Tests that a run that streams its data and is killed ends, once resumed, as one that never was, bit for bit."""

import multiprocessing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from tests.training import tiny
from tests.training.test_loop import check_same
from tests.training.test_resume import check_same_result, kill, wait_for_lines

from gdod.data import StreamPart, TableSchema, open_prepared, prepare
from gdod.training import TrainConfig, train

ROWS = 64  # of a row group, of which two at a time are in memory


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    tiny.frame(1500).write_parquet(tmp_path / "table.parquet")
    schema = TableSchema.parse(tiny.SCHEMA, Path("schema.yaml"))
    folder = prepare(tmp_path / "table.parquet", schema=schema, cache=tmp_path / "cache")
    pq.write_table(pq.read_table(folder / "train-00000.parquet"), folder / "small.parquet", row_group_size=ROWS)
    return folder


def work(settings: dict[str, Any], prepared: str, out: str) -> None:
    data = open_prepared(Path(prepared), stream=True)
    part = StreamPart(Path(prepared) / "small.parquet", data.encoder, window=2)
    train(TrainConfig.model_validate(settings), out, dataset=replace(data, train=part), resume=True)


def start(settings: TrainConfig, prepared: Path, out: Path) -> multiprocessing.process.BaseProcess:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch._dynamo", "gdod.training.train_run", "gdod.data"])
    process = context.Process(target=work, args=(settings.model_dump(mode="json"), str(prepared), str(out)))
    process.start()
    return process


def test_killed_while_it_streams_it_ends_the_same(prepared: Path, tmp_path: Path) -> None:
    # 960 examples: batches of 50 cross the borders of row groups, of windows and of checkpoints.
    settings = tiny.config(steps=70, batch=50, log_every=5, evaluate_every=40, checkpoint_every=3, method="gdod")
    whole = start(settings, prepared, tmp_path / "whole")
    whole.join(120)
    assert whole.exitcode == 0
    died = 0
    for lines in (3, 6, 9):
        process = start(settings, prepared, tmp_path / "killed")
        wait_for_lines(tmp_path / "killed", lines, process)
        died += kill(process)
    assert died >= 2
    last = start(settings, prepared, tmp_path / "killed")
    last.join(120)
    assert last.exitcode == 0
    check_same(tmp_path / "killed", tmp_path / "whole")
    check_same_result(tmp_path / "killed", tmp_path / "whole")
