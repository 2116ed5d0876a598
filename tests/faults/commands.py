"""The commands in real processes, which can be killed, and what came of them."""

import json
import multiprocessing
import os
import resource
import shutil
import sys
import time
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from tests.training import tiny
from tests.training.test_loop import lines

from gdod.training.checkpoint import load

TABLE = ("--data", "clicks.csv", "--schema", "clicks.yaml")
QUICK = ("--threads", "1", "--batch", "64", "--lr", "0.01", "--set", "device=cpu")
SMALL = ("--model-option", "bottom=[16]", "--model-option", "embedding=4")
TRAIN = ("train", *TABLE, *QUICK, *SMALL, "--no-tensorboard", "--log-every", "5", "--checkpoint-every", "3")
COMPARE = (
    *("compare", *TABLE, *QUICK, "--model", "shared-bottom:bottom=[16],embedding=4", "--jobs", "1", "--seeds", "1"),
    *("--method", "sum", "--method", "gdod", "--steps", "60"),
    *("--set", "log_every=5", "--set", "checkpoint_every=5"),
)
TUNE = (
    *("tune", *TABLE, *QUICK, "--model", "shared-bottom:bottom=[16],embedding=4", "--jobs", "1", "--seeds", "1"),
    *("--recipe", "paper", "--method", "cagrad", "--trials", "2", "--steps", "40", "--set", "checkpoint_every=5"),
)
FRONT = (
    *("front", *TABLE, *QUICK, "--model", "shared-bottom:bottom=[16],embedding=4", "--jobs", "1", "--seeds", "1"),
    *("--points", "3", "--tune", "1", "--method", "gdod", "--steps", "40", "--set", "checkpoint_every=5"),
)


@dataclass(frozen=True)
class Command:
    """A command at work, forked from a server that has torch loaded."""

    process: BaseProcess
    folder: Path

    def wait(self, seconds: float = 300) -> int:
        """Return its exit code, negative for the signal that killed it."""
        self.process.join(seconds)
        assert self.process.exitcode is not None, "it did not end"
        return self.process.exitcode

    @property
    def said(self) -> str:
        errors = self.folder / "err"
        return errors.read_text(errors="replace") if errors.exists() else ""

    def signal(self, number: int) -> bool:
        """Send a signal, and return whether there still was somebody to get it."""
        alive = self.process.is_alive()
        if alive and self.process.pid is not None:
            os.kill(self.process.pid, number)
        return alive


_count = 0


def start(*arguments: str, largest: int | None = None) -> Command:
    """Start ``gdod`` with these arguments in the current folder; no file may grow beyond ``largest`` bytes."""
    global _count
    _count += 1
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch._dynamo", "gdod.cli", "gdod.training.train_run", "gdod.data"])
    folder = Path.cwd() / f".command{_count}"
    folder.mkdir()
    process = context.Process(target=_work, args=(arguments, str(folder), os.getcwd(), dict(os.environ), largest))
    process.start()
    return Command(process, folder)


def _work(
    arguments: tuple[str, ...], folder: str, place: str, environment: dict[str, str], largest: int | None
) -> None:
    os.chdir(place)
    os.environ.update(environment)
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(f"{folder}/{name}", os.O_CREAT | os.O_WRONLY | os.O_TRUNC), number)
    if largest is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest, resource.RLIM_INFINITY))
    from gdod.cli import app

    sys.argv = ["gdod", *arguments]
    app()


def finish(*arguments: str) -> Command:
    command = start(*arguments)
    assert command.wait() == 0, command.said
    return command


def seconds_of(*arguments: str) -> float:
    """Run a command to its end, and return how long it took."""
    begin = time.monotonic()
    finish(*arguments)
    return time.monotonic() - begin


def check_refused(command: Command) -> None:
    """It ended by itself with an error in words: no traceback."""
    assert command.wait() not in (0, 1), command.said
    assert "Traceback" not in command.said, command.said
    assert "gdod: " in command.said, command.said


def check_same_run(one: Path, other: Path) -> None:
    """Two runs are the same, bit for bit, but for times."""
    check_same_weights(one, other)
    assert _without_times(lines(one)) == _without_times(lines(other))


def check_same_weights(one: Path, other: Path) -> None:
    """Two runs have the same checkpoints and results, bit for bit, but for times."""
    for name in ("last.pt", "best.pt"):
        assert tiny.same(load(one / "checkpoints" / name), load(other / "checkpoints" / name)), name
    first, second = (json.loads((run / "result.json").read_text()) for run in (one, other))
    assert _without_times([first]) == _without_times([second])


def _without_times(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in line.items() if "seconds" not in name} for line in records]


def contents(folder: Path) -> dict[str, bytes]:
    """Return the content of all files below a folder, by their path."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def copy_of(folder: Path, name: str) -> Path:
    return shutil.copytree(folder, folder.parent / name)
