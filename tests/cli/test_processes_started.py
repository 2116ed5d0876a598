"""`gdod train` and `gdod compare` in several processes, started in earnest: `--nproc`, torchrun, Slurm, ..."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.training import tiny
from tests.training.test_loop import check_same
from tests.training.test_ranks import check_close
from tests.training.test_resume import check_same_result
from typer.testing import CliRunner

from gdod.cli import app
from gdod.training.checkpoint import load

TABLE = ("--data", "clicks.csv", "--schema", "clicks.yaml", "--batch", "64", "--lr", "0.01")
SMALL = ("--model-option", "bottom=[16]", "--model-option", "embedding=4", "--model-option", "dropout=0.3")
QUICK = ("--threads", "1", "--device", "cpu", "--no-tensorboard", "--log-every", "5", "--checkpoint-every", "4")
TRAIN = ("train", *TABLE, *SMALL, *QUICK)
COMPARE = ("compare", *TABLE, "--method", "sum", "--method", "gdod", "--seeds", "1", "--threads", "1", "--set",
           "device=cpu", "--model", "shared-bottom:bottom=[16],embedding=4,dropout=0.0")  # fmt: skip


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a table and its schema, where the commands run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GDOD_CACHE", str(tmp_path / "cache"))
    tiny.frame(1000).write_csv(tmp_path / "clicks.csv")
    (tmp_path / "clicks.yaml").write_text(tiny.SCHEMA)
    return tmp_path


def start(
    *arguments: str, by: tuple[str, ...] = (), environment: dict[str, str] | None = None
) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, *by, "-m", "gdod", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(environment or {})},
    )


def ended(process: "subprocess.Popen[str]") -> tuple[int, str, str]:
    out, errors = process.communicate(timeout=600)
    return process.returncode, out, errors


def run(*arguments: str) -> str:
    code, out, errors = ended(start(*arguments))
    assert code == 0, errors
    return out


def wait_for(happened: Callable[[], bool]) -> None:
    until = time.monotonic() + 600
    while not happened():
        assert time.monotonic() < until
        time.sleep(0.02)


def saved(folder: Path) -> int:
    """The step of the last checkpoint; -1 if there is none."""
    last = folder / "checkpoints" / "last.pt"
    return int(load(last)["state"]["step"]) if last.exists() else -1


def ranks_of(launcher: int) -> dict[int, int]:
    """Process numbers by rank, of those that have this one above them."""
    processes: dict[int, int] = {}
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            text, environment = status.read_text(), status.with_name("environ").read_bytes().split(b"\0")
        except OSError:  # it has just ended
            continue
        if f"\nPPid:\t{launcher}\n" in text:
            processes |= {int(one[5:]): int(status.parent.name) for one in environment if one.startswith(b"RANK=")}
    return processes


def is_alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def result(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return found


def about(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "about.json").read_text())
    return found


def test_a_run_in_two_processes(place: Path) -> None:
    """Prints what one process prints, once."""
    told = json.loads(run(*TRAIN, "--steps", "8", "--nproc", "2", "--out", "run", "--json"))
    assert told == {"folder": "run", **result(place / "run")}
    assert about(place / "run")["ranks"] == 2
    assert "--nproc" in about(place / "run")["command"]


def test_what_is_wrong_is_told_once_before_anything_is_started() -> None:
    found = CliRunner().invoke(
        app, ["train", "--data", "nothing.csv", "--label", "click", "--method", "gdo", "--nproc", "4"]
    )
    assert found.exit_code == 2
    assert found.stderr.count("gdod: ") == 1


@pytest.mark.parametrize("command", [TRAIN, COMPARE])
def test_another_number_of_processes_than_there_are_is_refused(
    command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    found = CliRunner().invoke(app, [*command, "--nproc", "3"])
    assert found.exit_code == 2
    assert "--nproc 3, but this is rank 0 of 2 processes" in found.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("nproc", "killed"), [(2, 0), (2, 1), (4, 2)])
def test_a_killed_rank_is_named_and_the_run_goes_on(place: Path, nproc: int, killed: int) -> None:
    several = (*TRAIN, "--steps", "150", "--nproc", str(nproc))
    run(*several, "--out", "whole")
    process = start(*several, "--out", "run")
    wait_for(lambda: saved(place / "run") >= 8)
    ranks = ranks_of(process.pid)
    assert sorted(ranks) == list(range(nproc))
    os.kill(ranks[killed], signal.SIGKILL)
    code, _, errors = ended(process)
    assert code == 128 + signal.SIGKILL
    assert errors.strip().splitlines()[-2:] == [
        f"gdod: rank {killed} of {nproc} was killed by signal 9 (SIGKILL), and the others were ended. What was saved "
        "last goes on with:",
        f"  gdod train --resume --out run --nproc {nproc}",
    ]
    assert not any(map(is_alive, ranks.values()))
    assert 8 <= saved(place / "run") < 150
    run("train", "--resume", "--out", "run", "--nproc", str(nproc))
    check_same(place / "run", place / "whole")
    check_same_result(place / "run", place / "whole")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("who", ["launcher", "rank 1"])
def test_a_request_to_end_saves_once_and_ends_all(place: Path, number: int, who: str) -> None:
    process = start(*TRAIN, "--steps", "100000", "--nproc", "2", "--out", "run")
    wait_for(lambda: saved(place / "run") >= 4)
    ranks = ranks_of(process.pid)
    os.kill(process.pid if who == "launcher" else ranks[1], number)
    code, _, errors = ended(process)
    assert code == 128 + number
    step = saved(place / "run")
    assert errors.strip() == (
        f"gdod: stopped at step {step}, saved in run. Go on with:\n  gdod train --resume --out run --nproc 2"
    )
    assert not any(map(is_alive, ranks.values()))


@pytest.mark.slow
def test_ranks_do_not_outlive_the_command_that_started_them(place: Path) -> None:
    process = start(*TRAIN, "--steps", "100000", "--nproc", "2", "--out", "run")
    wait_for(lambda: saved(place / "run") >= 4)
    ranks = ranks_of(process.pid)
    process.kill()
    ended(process)
    wait_for(lambda: not any(map(is_alive, ranks.values())))
    assert saved(place / "run") >= 4


@pytest.mark.slow
def test_under_torchrun(place: Path) -> None:
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    code, _, errors = ended(start(*TRAIN, "--steps", "8", "--out", "outer", by=torchrun))
    assert code == 0, errors
    run(*TRAIN, "--steps", "8", "--out", "own", "--nproc", "2")
    check_same(place / "outer", place / "own")
    code, _, errors = ended(start(*COMPARE, "--steps", "8", "--out", "compared", by=torchrun))
    assert code == 0, errors
    runs = list((place / "compared" / "runs").iterdir())
    assert [about(one)["ranks"] for one in runs] == [2, 2]
    assert all((one / "result.json").exists() for one in runs)


@pytest.mark.slow
def test_the_strong_recipe_in_two_processes(place: Path) -> None:
    """Features of a table are prepared once, and two processes train on them as one does."""
    strong = ("train", *TABLE[:4], *QUICK, "--recipe", "strong", "--model-option", "dropout=0.0", "--steps", "30")
    run(*strong, "--out", "two", "--nproc", "2")
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    code, _, errors = ended(start(*strong, "--out", "outer", by=torchrun))
    assert code == 0, errors
    check_same(place / "outer", place / "two")
    run(*strong, "--out", "one")
    check_close(place / "two", place / "one")
    assert about(place / "two")["recipe"]["name"] == "strong"
    for name in ("encoder.json", "statistics.parquet"):
        assert (place / "two" / name).read_bytes() == (place / "one" / name).read_bytes()


def environments(kind: str) -> list[dict[str, str]]:
    """What two processes see that Slurm or a PyTorchJob has started."""
    with socket.create_server(("localhost", 0)) as server:
        port = str(server.getsockname()[1])
    master = {"MASTER_ADDR": "localhost", "MASTER_PORT": port}
    if kind == "PyTorchJob":
        return [{"RANK": str(rank), "WORLD_SIZE": "2", **master} for rank in range(2)]
    job = {"SLURM_JOB_ID": port, "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS": "2"}
    job |= {"SLURM_STEP_NODELIST": "localhost", "SLURM_NODELIST": "localhost"}
    return [{**job, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)} for rank in range(2)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["PyTorchJob", "Slurm"])
def test_in_an_environment_that_others_made(place: Path, kind: str) -> None:
    """A rank that is killed there is noticed, too: the other says so, and ends."""
    for steps, kills in ((100_000, True), (8, False)):
        folder = place / f"run-{steps}"
        arguments = (*TRAIN, "--steps", str(steps), "--out", folder.name)
        processes = [start(*arguments, environment=one) for one in environments(kind)]
        if kills:
            wait_for(lambda folder=folder: saved(folder) >= 4)  # type: ignore[misc]
            processes[1].kill()
        found = [ended(process) for process in processes]
        assert [code for code, _, _ in found] == ([6, -signal.SIGKILL] if kills else [0, 0]), found
        assert ("rank 0 of 2 lost the others" in found[0][2]) == kills
        assert found[1][1] == ""  # rank 0 alone prints
        assert about(folder)["ranks"] == 2


@pytest.mark.slow
def test_a_comparison_in_which_each_run_has_two_processes(place: Path) -> None:
    run(*COMPARE, "--steps", "8", "--out", "one", "--jobs", "1")
    run(*COMPARE, "--steps", "8", "--out", "two", "--jobs", "1", "--nproc", "2")
    for alone in (place / "one" / "runs").iterdir():
        both = place / "two" / "runs" / alone.name
        assert about(both)["ranks"] == 2
        assert result(both)["test"]["mean_auc"] == pytest.approx(result(alone)["test"]["mean_auc"], abs=1e-4)


@pytest.mark.slow
def test_a_comparison_goes_on_when_a_rank_is_killed(place: Path) -> None:
    process = start(*COMPARE, "--steps", "200", "--out", "out", "--jobs", "1", "--nproc", "2", "--set", "log_every=5",
                    "--set", "checkpoint_every=5")  # fmt: skip
    first = "shared-bottom_bottom=16,embedding=4,dropout=0.0-sum-seed0"
    folder = place / "out" / "runs" / first
    wait_for(lambda: saved(folder) >= 5)
    (launcher,) = children(process.pid)
    os.kill(ranks_of(launcher)[1], signal.SIGKILL)
    code, _, errors = ended(process)
    assert code == 5
    assert f"{first} failed: rank 1 of 2 was killed by signal 9 (SIGKILL)" in errors
    assert len(list((place / "out" / "runs").glob("*/result.json"))) == 1
    before = saved(folder)
    run(*COMPARE, "--steps", "200", "--out", "out", "--jobs", "1", "--nproc", "2", "--set", "log_every=5", "--set",
        "checkpoint_every=5")  # fmt: skip
    assert before < 200 == result(folder)["steps"]


@pytest.mark.slow
def test_ctrl_c_has_every_run_of_a_comparison_saved(place: Path) -> None:
    process = start(*COMPARE, "--steps", "100000", "--out", "out", "--jobs", "1", "--nproc", "2")
    wait_for(lambda: any(saved(folder) >= 0 for folder in (place / "out" / "runs").glob("*")))
    (launcher,) = children(process.pid)
    ranks = ranks_of(launcher)
    process.send_signal(signal.SIGINT)
    code, _, errors = ended(process)
    assert code == 130
    assert "the runs are saved" in errors
    assert not any(map(is_alive, [launcher, *ranks.values()]))


def children(pid: int) -> list[int]:
    found = []
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            if f"\nPPid:\t{pid}\n" in status.read_text():
                found.append(int(status.parent.name))
        except OSError:
            continue
    return found
