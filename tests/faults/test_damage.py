"""Each file of a run and of the cache, cut, changed or removed: the result is the same, or refused in words."""

import random
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from tests.faults.commands import TRAIN, check_same_run, check_same_weights, contents, copy_of, finish, start
from tests.training import tiny
from tests.training.test_resume import wait_for_lines
from typer.testing import CliRunner, Result

from gdod.cli import app

pytestmark = [pytest.mark.slow, pytest.mark.faults]
Tried = Callable[[str], None]

RUN = ("config.json", "about.json", "encoder.json", "checkpoints/best.pt", "checkpoints/last.pt", "metrics.jsonl")
# A run whose predictions depend on settings and on its result, too.
CALIBRATED = (*TRAIN, "--steps", "20", "--calibrate", "platt", "--negatives-kept", "click=0.25")
DAMAGES = ("removed", "empty", "half", "without its end", *(f"changed {number}" for number in range(8)))


def damage(path: Path, how: str) -> None:
    content = bytearray(path.read_bytes())
    if how == "removed":
        path.unlink()
        return
    if how in ("empty", "half", "without its end"):
        keep = {"empty": 0, "half": len(content) // 2, "without its end": len(content) - 1}[how]
        path.write_bytes(content[:keep])
        return
    chance = random.Random(how)
    at = chance.randrange(len(content))
    content[at] ^= 1 << chance.randrange(8)
    path.write_bytes(content)


def gdod(*arguments: str) -> Result:
    return CliRunner().invoke(app, [*arguments])


def check_refused(done: Result, before: dict[str, bytes], folder: Path) -> None:
    """It ended with an error in words, and nothing was written over."""
    assert done.exit_code == 2, done.output
    assert "Traceback" not in done.output
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    left = contents(folder)
    assert {name: left.get(name) for name in before} == before


@pytest.mark.parametrize("name", [*(name for name in RUN if name != "metrics.jsonl"), "result.json"])
def test_a_run_that_predicts(place: Path, tried: Tried, name: str) -> None:
    finish(*CALIBRATED, "--out", "run")
    tiny.frame(50, seed=3).write_csv(place / "new.csv")
    assert gdod("predict", "run", "new.csv", "--out", "whole.csv").exit_code == 0
    whole = pl.read_csv(place / "whole.csv")
    for how in DAMAGES:
        folder = copy_of(place / "run", "damaged")
        damage(folder / name, how)
        before = contents(folder)
        tried("a file of a run damaged, then `gdod predict`")
        done = gdod("predict", "damaged", "new.csv", "--out", "new-predictions.csv")
        if done.exit_code == 0:
            if (name, how) != ("result.json", "removed"):  # then the run has not finished, and is not calibrated yet
                assert pl.read_csv(place / "new-predictions.csv").equals(whole), (name, how)
            (place / "new-predictions.csv").unlink()
        else:
            check_refused(done, before, folder)
            assert not (place / "new-predictions.csv").exists()
        shutil.rmtree(folder)


@pytest.mark.parametrize("name", RUN)
def test_a_run_that_is_resumed(place: Path, tried: Tried, name: str) -> None:
    finish(*TRAIN, "--steps", "20", "--out", "whole")
    unfinished = copy_of(place / "whole", "unfinished")
    (unfinished / "result.json").unlink()  # killed just before its end
    for how in DAMAGES:
        folder = copy_of(unfinished, "damaged")
        damage(folder / name, how)
        before = contents(folder)
        tried("a file of a run damaged, then `gdod train --resume`")
        done = gdod("train", "--resume", "--out", "damaged")
        if done.exit_code == 0 and name == "metrics.jsonl":
            check_same_weights(folder, place / "whole")  # records have no checksum, and decide nothing
            told = "metrics.jsonl was cut or removed" in " ".join(done.output.split())
            assert told or len((folder / name).read_bytes()) == len((place / "whole" / name).read_bytes())
        elif done.exit_code == 0:
            check_same_run(folder, place / "whole")
        else:
            check_refused(done, before, folder)
        shutil.rmtree(folder)


@pytest.mark.parametrize("name", RUN)
def test_a_run_that_goes_on_from_its_middle(place: Path, tried: Tried, name: str) -> None:
    """Settings, too, decide what becomes of it."""
    arguments = (*TRAIN, "--epochs", "40", "--out")
    finish(*arguments, "whole")
    command = start(*arguments, "unfinished")
    wait_for_lines(place / "unfinished", 20, command.process)
    assert command.signal(signal.SIGKILL)
    assert command.wait() == -signal.SIGKILL
    (place / "unfinished/.lock").unlink()
    for how in DAMAGES:
        folder = copy_of(place / "unfinished", "damaged")
        damage(folder / name, how)
        before = contents(folder)
        tried("a file of a run damaged, then `gdod train --resume`")
        done = gdod("train", "--resume", "--out", "damaged")
        if done.exit_code == 0:
            check_same_weights(folder, place / "whole")
        else:
            check_refused(done, before, folder)
        shutil.rmtree(folder)


def test_prepared_data(place: Path, tried: Tried) -> None:
    finish(*TRAIN, "--steps", "20", "--out", "whole")
    cache = place / "cache"
    names = [str(path.relative_to(cache)) for path in sorted(cache.rglob("*")) if path.is_file()]
    assert len(names) > 4
    for name in names:
        for how in DAMAGES:
            shutil.move(cache, place / "kept")
            shutil.copytree(place / "kept", cache)
            damage(cache / name, how)
            before = contents(cache)
            tried("a file of the cache damaged, then `gdod train`")
            done = gdod(*TRAIN, "--steps", "20", "--out", "run")
            if done.exit_code == 0:
                check_same_run(place / "run", place / "whole")
            else:
                check_refused(done, before, cache)
            shutil.rmtree(place / "run", ignore_errors=True)
            shutil.rmtree(cache)
            shutil.move(place / "kept", cache)
