"""The number of threads that steps of training use."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.training import tiny
from torch import nn

from gdod.training import Silent, step_threads, train
from gdod.training.step_threads import choose_threads, free_cores, multiplications, on_threads


@pytest.fixture(autouse=True)
def two_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)


def model(width: int) -> nn.Module:
    return nn.Sequential(nn.Embedding(1000, width), nn.Linear(width, width))


def test_tables_do_not_count() -> None:
    assert multiplications(model(10), batch=3) == 3 * 110


def test_short_steps_take_one_thread_and_long_ones_the_free_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    for free, threads in ((0, 1), (1, 1), (2, 2), (8, 2)):
        monkeypatch.setattr(step_threads, "free_cores", lambda free=free: free)
        assert choose_threads(model(100), batch=256) == 1
        assert choose_threads(model(1000), batch=256) == threads


def test_a_number_in_the_environment_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert choose_threads(model(100), batch=256) == 2


def test_busy_processes_leave_no_free_core() -> None:
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        assert free_cores() <= (os.cpu_count() or 1) // 2  # some may only have begun
    finally:
        for process in busy:
            process.kill()
            process.wait()


def test_the_number_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    with pytest.raises(ZeroDivisionError), on_threads(1):
        raise ZeroDivisionError
    assert asked == [1, 2]


@pytest.mark.parametrize("given", [None, 1])
def test_a_resumed_run_keeps_the_number_that_it_began_with(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: int | None
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    monkeypatch.setattr("gdod.training.loop.choose_threads", lambda model, batch: 1)
    dataset = tiny.dataset(rows=200, validation=50, test=50)
    train(tiny.config(steps=5, threads=given), tmp_path / "run", dataset=dataset, progress=Silent())
    monkeypatch.setattr("gdod.training.loop.choose_threads", lambda model, batch: 2)
    asked.clear()
    train(tiny.config(steps=9, threads=given), tmp_path / "run", dataset=dataset, resume=True, progress=Silent())
    assert asked[0] == 1
