"""Commands that are killed at random moments, again and again, end as if nothing had been."""

import json
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.faults.commands import COMPARE, FRONT, TRAIN, TUNE, Command, check_same_run, finish, seconds_of, start
from tests.training import together
from tests.training.test_loop import check_same
from tests.training.test_ranks import check_killed, settings, wait_for_step
from tests.training.test_resume import wait_for_lines

pytestmark = [pytest.mark.slow, pytest.mark.faults]
Tried = Callable[[str], None]


def kill_at_random(arguments: tuple[str, ...], kills: int, seed: int, within: float, died: Callable[[], None]) -> None:
    """Start a command and kill it, as often as asked for, then let it end."""
    chance = random.Random(seed)
    for _ in range(3 * kills):
        command = start(*arguments)
        command.process.join(chance.uniform(0, within))
        if command.signal(signal.SIGKILL) and command.wait() == -signal.SIGKILL:
            died()
            kills -= 1
        if not kills:
            break
    finish(*arguments)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("method", ["gdod", "gradnorm"])
def test_train(place: Path, tried: Tried, method: str, seed: int) -> None:
    arguments = (*TRAIN, "--epochs", "12", "--method", method)
    took = seconds_of(*arguments, "--out", "whole")
    resumed = (*arguments, "--out", "killed", "--resume")
    kill_at_random(resumed, 10, seed, took, lambda: tried("`gdod train` killed"))
    check_same_run(place / "killed", place / "whole")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals(place: Path, tried: Tried, number: signal.Signals) -> None:
    arguments = (*TRAIN, "--epochs", "20", "--method", "gdod")
    took, chance = seconds_of(*arguments, "--out", "whole"), random.Random(int(number))
    for _ in range(4):
        metrics = place / "cut" / "metrics.jsonl"
        before = metrics.read_bytes().count(b"\n") if metrics.exists() else 0
        command = start(*arguments, "--out", "cut", "--resume")
        # Before its first line of this time, it is Python's own way to end.
        wait_for_lines(place / "cut", before + 1, command.process)
        command.process.join(chance.uniform(0, took / 6))
        if command.signal(number):
            tried("`gdod train` gets SIGINT, SIGTERM or SIGHUP")
        assert command.wait() in (0, 128 + number, -number), command.said
        assert "Traceback" not in command.said, command.said
    finish(*arguments, "--out", "cut", "--resume")
    check_same_run(place / "cut", place / "whole")


def test_compare(place: Path, tried: Tried) -> None:
    took = seconds_of(*COMPARE, "--out", "whole")
    kill_at_random((*COMPARE, "--out", "killed"), 5, 0, took, lambda: tried("`gdod compare` killed"))
    runs = sorted(path.name for path in (place / "whole/runs").iterdir())
    assert len(runs) == 2
    for run in runs:
        check_same_run(place / "killed/runs" / run, place / "whole/runs" / run)


def test_front(place: Path, tried: Tried) -> None:
    took = seconds_of(*FRONT, "--out", "whole")
    kill_at_random((*FRONT, "--out", "killed"), 5, 0, took, lambda: tried("`gdod front` killed"))
    whole, killed = (json.loads((place / name / "front.json").read_text())["results"] for name in ("whole", "killed"))
    assert killed["verdicts"] == whole["verdicts"]
    runs = sorted(path.parent.relative_to(place / "whole") for path in (place / "whole").rglob("result.json"))
    assert len(runs) >= 4
    for run in runs:
        check_same_run(place / "killed" / run, place / "whole" / run)


def test_tune(place: Path, tried: Tried) -> None:
    took = seconds_of(*TUNE, "--out", "whole")
    kill_at_random((*TUNE, "--out", "killed"), 5, 0, took, lambda: tried("`gdod tune` killed"))
    assert (place / "killed/best.yaml").read_text() == (place / "whole/best.yaml").read_text()


@pytest.mark.parametrize("seed", range(2))
def test_a_lost_rank(tmp_path: Path, tried: Tried, seed: int) -> None:
    chance = random.Random(seed)
    given = settings(dropout=0.3, steps=150)
    together.together(2, tmp_path, together.training, given, tmp_path / "whole")
    for step in (5, 40, 80):
        started, rank = together.start(2, tmp_path, together.training, given, tmp_path / "run"), chance.randrange(2)
        wait_for_step(tmp_path / "run", step)
        time.sleep(chance.uniform(0, 0.1))
        started.kill(rank)
        tried("one of two processes of a run killed")
        check_killed(started, rank)
    together.together(2, tmp_path, together.training, given, tmp_path / "run")
    check_same(tmp_path / "run", tmp_path / "whole")


def test_two_commands_in_one_folder(place: Path, tried: Tried) -> None:
    """One of them works, the other waits and finds it done, or is refused; nothing mixes."""
    arguments = (*TRAIN, "--epochs", "4", "--method", "gdod")
    took, chance = seconds_of(*arguments, "--out", "whole"), random.Random(1)
    for number in range(5):
        both: list[Command] = []
        for _ in range(2):
            both.append(start(*arguments, "--out", f"both{number}", "--resume"))
            time.sleep(chance.uniform(0, took / 2))
        tried("two commands in one folder")
        assert 0 in [command.wait() for command in both]
        assert not [command.said for command in both if "Traceback" in command.said]
        check_same_run(place / f"both{number}", place / "whole")
