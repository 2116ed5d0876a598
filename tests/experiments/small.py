"""A small comparison on a small table, for tests."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.training import tiny

OPTIONS: dict[str, Any] = {
    "recipe": "paper",
    "data.source": "clicks.csv",
    "data.schema": "clicks.yaml",
    "models": ["shared-bottom:bottom=[16],embedding=4"],
    "optimizer.lr": 0.01,
    "batch": 64,
    "device": "cpu",
    "threads": 1,
    "log_every": 5,
}


def make_place(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goes to a folder with a table and its schema."""
    monkeypatch.chdir(place)
    monkeypatch.setenv("GDOD_CACHE", str(place / "cache"))
    tiny.frame(1000).write_csv(place / "clicks.csv")
    (place / "clicks.yaml").write_text(tiny.SCHEMA)


def result(folder: Path) -> dict[str, Any]:
    """What a run came to, without times."""
    found: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return {name: value for name, value in found.items() if "seconds" not in name}


def start(*arguments: str) -> "subprocess.Popen[str]":
    """A command in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", "from gdod.cli import app; app()", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
