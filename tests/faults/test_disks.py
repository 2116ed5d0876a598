"""Disks that are full or can only be read: said in words, and the run goes on once there is room."""

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.faults.commands import QUICK, TABLE, TRAIN, check_refused, check_same_run, finish, start
from tests.training.test_resume import wait_for_lines

pytestmark = [pytest.mark.slow, pytest.mark.faults]
Tried = Callable[[str], None]
ARGUMENTS = (*TRAIN, "--steps", "30", "--method", "gdod")


@pytest.fixture
def disk(place: Path) -> Iterator[Path]:
    """A small disk in memory, for those who may mount one."""
    folder = place / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "gdod-faults", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("mounts nothing here")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def change(disk: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", str(disk)], check=True)


@pytest.mark.parametrize("kilobytes", [8, 32, 64, 128, 256])
def test_a_full_disk(place: Path, disk: Path, tried: Tried, kilobytes: int) -> None:
    finish(*ARGUMENTS, "--out", "whole")
    change(disk, f"size={kilobytes}k")
    command = start(*ARGUMENTS, "--out", "disk/run")
    tried("a full disk")
    check_refused(command)
    assert "disk" in command.said
    change(disk, "size=256m")
    finish(*ARGUMENTS, "--out", "disk/run", "--resume")
    check_same_run(disk / "run", place / "whole")


@pytest.mark.parametrize("lines", [1, 12, 25])
def test_a_disk_that_another_process_fills(place: Path, disk: Path, tried: Tried, lines: int) -> None:
    arguments = (*TRAIN, "--epochs", "30", "--method", "gdod")
    finish(*arguments, "--out", "whole")
    change(disk, "size=24m")
    command = start(*arguments, "--out", "disk/run")
    wait_for_lines(disk / "run", lines, command.process)
    with (disk / "other").open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    tried("a disk that another process fills")
    check_refused(command)
    assert "No space left on device" in command.said
    (disk / "other").unlink()
    finish("train", "--out", "disk/run", "--resume")
    check_same_run(disk / "run", place / "whole")


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5, 0.9, 0.999])
def test_a_disk_that_fills_up_while_it_trains(place: Path, tried: Tried, share: float) -> None:
    """No file may grow beyond a limit, which the checkpoint to be written passes."""
    finish(*ARGUMENTS, "--out", "whole")
    size = (place / "whole/checkpoints/last.pt").stat().st_size
    command = start(*ARGUMENTS, "--out", "full", largest=int(share * size))
    tried("a disk that fills up in training")
    check_refused(command)
    finish(*ARGUMENTS, "--out", "full", "--resume")
    check_same_run(place / "full", place / "whole")


@pytest.mark.parametrize("limit", [10_000, 100_000, 300_000])
def test_a_disk_that_fills_up_within_large_weights(place: Path, tried: Tried, limit: int) -> None:
    """Weights that are written in several pieces, one of which there is no room for."""
    arguments = (*TABLE, *QUICK, "--no-tensorboard", "--steps", "30", "--set", "model.options.bottom=[256,128]")
    finish("train", *arguments, "--out", "whole")
    command = start("train", *arguments, "--out", "full", largest=limit)
    tried("a disk that fills up in training")
    check_refused(command)
    assert "File too large" in command.said
    assert ".pt" in command.said or limit < 50_000
    assert "gdod train --resume --out full" in command.said or not (place / "full/config.json").exists()
    finish("train", *arguments, "--out", "full", "--resume")
    check_same_run(place / "full", place / "whole")


@pytest.mark.parametrize(
    ("arguments", "out"),
    [
        (("predict", "run", "clicks.csv"), "new.csv"),
        (("predict", "run", "clicks.csv"), "new.parquet"),
        (("explain", "run", "clicks.csv", "--rows", "200", "--repeats", "2"), "new"),
        (("export", "run"), "new.onnx"),
        (("export", "run"), "new.pt2"),
        (("report", "run"), "new.html"),
        (("data", "inspect", "clicks.csv"), "new.yaml"),
    ],
)
def test_a_disk_without_room_for_what_a_command_writes(
    place: Path, tried: Tried, arguments: tuple[str, ...], out: str
) -> None:
    finish(*TRAIN, "--steps", "5", "--out", "run")
    # Room for the check that the folder can be written to, if there is one.
    limit = 200 if arguments[0] in ("data", "report") else 5000
    command = start(*arguments, *((out,) if arguments[0] == "export" else ("--out", out)), largest=limit)
    tried("a disk without room for what a command writes")
    check_refused(command)
    assert "File too large" in command.said
    assert re.search(r"new[./]\w+", command.said)
    if arguments[0] == "explain":  # tables are short; a picture is not there in part
        assert {path.suffix for path in (place / "new").iterdir()} <= {".csv"}
    else:
        assert not list(place.glob("*new*"))


def test_a_disk_that_fills_up_as_data_is_prepared(place: Path, tried: Tried) -> None:
    for number, share in enumerate((0.05, 0.5, 0.9)):
        cache = place / f"cache{number}"
        os.environ["GDOD_CACHE"] = str(cache)  # the fixture sets it back
        finish(*ARGUMENTS, "--out", f"whole{number}")
        largest = max(path.stat().st_size for path in cache.rglob("*.parquet"))
        os.environ["GDOD_CACHE"] = str(place / f"full{number}")
        command = start(*ARGUMENTS, "--out", f"run{number}", largest=int(share * largest))
        tried("a disk that fills up as data is prepared")
        check_refused(command)
        assert "File too large" in command.said
        assert share < 0.1 or "GDOD_CACHE" in command.said
        finish(*ARGUMENTS, "--out", f"run{number}", "--resume")
        check_same_run(place / f"run{number}", place / f"whole{number}")


def test_a_disk_that_can_only_be_read(place: Path, disk: Path, tried: Tried) -> None:
    change(disk, "size=64m")
    finish(*ARGUMENTS, "--out", "whole")
    finish(*ARGUMENTS, "--out", "disk/done")
    change(disk, "ro")
    for arguments in (
        (*ARGUMENTS, "--out", "disk/run"),
        ("predict", "whole", "clicks.csv", "--out", "disk/predictions.csv"),
        ("report", "whole", "--out", "disk/report.html"),
    ):
        tried("a folder that can only be read")
        check_refused(start(*arguments))
    finish("evaluate", "disk/done", "clicks.csv")  # reading is enough
    change(disk, "rw")
    finish(*ARGUMENTS, "--out", "disk/run")
    check_same_run(disk / "run", place / "whole")
