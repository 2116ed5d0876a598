"""Tests that a run that is killed at any moment and started again ends as one that never was, bit for bit.

The processes are real and so is the SIGKILL; they are forked from a server that has torch loaded, which
takes no more than a moment.
"""

import multiprocessing
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.training import tiny
from tests.training.test_loop import check_same, lines

from gdod import InputError
from gdod._files import read_json
from gdod.report.runs import read_run
from gdod.training import Silent, TrainConfig, train
from gdod.training.checkpoint import keep_weights_only, load

METHODS: dict[str, dict[str, Any]] = {
    "sum": {},
    "gradnorm": {},
    "gdod": {"decomposition": "randomized", "rank": 4},
    "uncertainty": {},
    "pcgrad": {},
    "famo": {},
    "modo": {},
}


def config(method: str, **settings: Any) -> TrainConfig:
    """Return settings whose log times, evaluations and checkpoints fall together as seldom as possible."""
    options = {"embedding": 4, "bottom": [16], "tower": [8], "dropout": 0.3}
    return tiny.config(
        method={"name": method, "options": METHODS[method]},
        model={"name": "shared-bottom", "options": options},
        steps=110,
        log_every=7,
        evaluate_every=23,
        checkpoint_every=5,
        stopping={"patience": 50},
        schedule={"name": "cosine", "warmup": 10},
        **settings,
    )


def work(settings: dict[str, Any], folder: str, order: str | None) -> None:
    dataset = tiny.dataset(rows=1000, validation=200, test=100)
    if order is not None:
        object.__setattr__(dataset, "train", Noted(dataset.train, order))
    train(TrainConfig.model_validate(settings), folder, dataset=dataset, resume=True)


class Noted:
    """A part that writes down which examples it hands out."""

    def __init__(self, part: Any, order: str) -> None:
        self.part, self.order = part, order

    def __len__(self) -> int:
        return len(self.part)

    def steps(self, size: int, *, ranks: int = 1) -> int:
        return int(self.part.steps(size, ranks=ranks))

    def batches(self, size: int, *, epoch: int = 0, start: int = 0, **rest: Any) -> Iterator[Any]:
        with open(self.order, "a") as file:
            for at, minibatch in enumerate(self.part.batches(size, epoch=epoch, start=start, **rest), start):
                examples = [round(float(age), 6) for age in minibatch.batch.numeric[:, 0]]
                print(epoch, at, examples, file=file, flush=True)
                yield minibatch


def start(settings: TrainConfig, folder: Path, order: Path | None = None) -> multiprocessing.process.BaseProcess:
    context = multiprocessing.get_context("forkserver")
    # torch's optimizers load torch._dynamo when they are first used, which takes longer than the training here.
    context.set_forkserver_preload(["torch._dynamo", "gdod.training.train_run", "gdod.data"])
    process = context.Process(
        target=work, args=(settings.model_dump(mode="json"), str(folder), None if order is None else str(order))
    )
    process.start()
    return process


def finish(settings: TrainConfig, folder: Path, order: Path | None = None) -> None:
    process = start(settings, folder, order)
    process.join(120)
    assert process.exitcode == 0


def kill(process: multiprocessing.process.BaseProcess) -> bool:
    """Kill the process, and return whether it was still running."""
    assert process.pid is not None
    running = process.is_alive()
    if running:
        os.kill(process.pid, signal.SIGKILL)
    process.join(120)
    return running and process.exitcode == -signal.SIGKILL


def wait_for_lines(folder: Path, count: int, process: multiprocessing.process.BaseProcess) -> None:
    metrics = folder / "metrics.jsonl"
    while process.is_alive() and not (metrics.exists() and metrics.read_bytes().count(b"\n") >= count):
        time.sleep(0.001)


def killed_often(settings: TrainConfig, folder: Path, seed: int, kills: int, order: Path | None = None) -> int:
    """Start the run, kill it at random points, start it again, …, and let it end. Return how often it died."""
    chance = random.Random(seed)
    died = 0
    for _ in range(kills):
        process = start(settings, folder, order)
        # From before there is a folder to somewhere between two lines of the record.
        seen = (folder / "metrics.jsonl").read_bytes().count(b"\n") if (folder / "metrics.jsonl").exists() else 0
        wait_for_lines(folder, chance.randint(0, seen + 7), process)
        time.sleep(chance.uniform(0, 0.02))
        died += kill(process)
    finish(settings, folder, order)
    return died


@pytest.mark.parametrize("method", ["sum", "gradnorm", "gdod"])
def test_killed_at_random_points_it_ends_the_same(tmp_path: Path, method: str) -> None:
    settings = config(method)
    finish(settings, tmp_path / "whole")
    assert killed_often(settings, tmp_path / "killed", seed=1, kills=4) >= 2
    check_same(tmp_path / "killed", tmp_path / "whole")
    check_same_result(tmp_path / "killed", tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("method", METHODS)
def test_killed_again_and_again_it_ends_the_same(tmp_path: Path, method: str, seed: int) -> None:
    settings = config(method)
    finish(settings, tmp_path / "whole")
    assert killed_often(settings, tmp_path / "killed", seed=seed, kills=10) >= 4
    check_same(tmp_path / "killed", tmp_path / "whole")
    check_same_result(tmp_path / "killed", tmp_path / "whole")


def check_same_result(one: Path, other: Path) -> None:
    results = [read_json(folder / "result.json", "a result") for folder in (one, other)]
    for result in results:
        del result["seconds"], result["milliseconds_per_step"]
    assert results[0] == results[1]


def test_examples_come_in_the_same_order(tmp_path: Path) -> None:
    """A batch that is handed out twice, since it was lost, has the same examples both times."""
    settings = config("sum")
    finish(settings, tmp_path / "whole", tmp_path / "whole.txt")
    assert killed_often(settings, tmp_path / "killed", seed=2, kills=3, order=tmp_path / "killed.txt") >= 1
    whole, killed = ((tmp_path / f"{name}.txt").read_text().splitlines() for name in ("whole", "killed"))
    assert [line.split()[:2] for line in whole[:17]] == [["0", str(at)] for at in range(16)] + [["1", "0"]]
    repeated = [line for line in killed if line.endswith("]")]  # the last line of a killed process may be cut
    assert set(repeated) == set(whole)
    assert list(dict.fromkeys(sorted(repeated, key=whole.index))) == whole


def test_a_checkpoint_is_never_half_written(tmp_path: Path) -> None:
    """Killed while a checkpoint is being written, the one before is still there and whole."""
    settings = config("gradnorm").model_copy(update={"checkpoint_every": 1})
    folder, interrupted = tmp_path / "run", 0
    for _ in range(20):
        process = start(settings, folder)
        while process.is_alive() and not list(folder.glob("checkpoints/.last.pt.*.part")):
            pass
        kill(process)
        interrupted += bool(list(folder.glob("checkpoints/.last.pt.*.part")))
        if (folder / "checkpoints" / "last.pt").exists():
            load(folder / "checkpoints" / "last.pt")
        if interrupted == 2:
            break
    assert interrupted == 2  # what was being written is still beside the one before
    finish(settings, folder)
    assert not list(folder.rglob(".*.part"))


def test_lines_after_the_checkpoint_are_written_once(tmp_path: Path) -> None:
    settings = config("sum")
    killed_often(settings, tmp_path / "run", seed=3, kills=3)
    steps = [(line["kind"], line["step"]) for line in lines(tmp_path / "run")]
    assert len(steps) == len(set(steps))
    assert [step for kind, step in steps if kind == "evaluation"] == [0, 23, 46, 69, 92, 110]


def test_a_finished_run_is_left_alone(tmp_path: Path) -> None:
    settings = tiny.config(steps=3)
    result = train(settings, tmp_path / "run", dataset=tiny.dataset())
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")}
    assert train(settings, tmp_path / "run", dataset=tiny.dataset(), resume=True) == result
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")}


def test_one_process_at_a_time_works_in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, folder = config("sum"), tmp_path / "run"
    finish(settings, tmp_path / "whole")
    first = start(settings, folder)
    wait_for_lines(folder, 1, first)
    os.kill(first.pid or 0, signal.SIGSTOP)  # it is at work for as long as this test needs it to be
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    try:
        monkeypatch.setattr("gdod.training.lock._WAIT", 0.3)
        for resume in (False, True):
            with pytest.raises(InputError, match=r"another process is at work in|holds a run already") as refused:
                train(settings, folder, dataset=tiny.dataset(), resume=resume)
            assert not resume or "another process is at work" in str(refused.value)
        assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    finally:
        os.kill(first.pid or 0, signal.SIGCONT)
        first.join(120)
    assert first.exitcode == 0
    assert read_json(folder / "result.json", "")["test"] == read_json(tmp_path / "whole/result.json", "")["test"]
    assert not (folder / ".lock").exists()


def test_a_run_that_cannot_begin_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="needs a validation part"):
        train(config("sum"), tmp_path / "run", dataset=tiny.dataset(validation=0))
    assert not (tmp_path / "run").exists()


class Heard(Silent):
    """A listener that keeps what a run says."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)


@pytest.mark.parametrize("left", [0.0, 0.6, None])
def test_records_that_were_cut_or_removed_are_told_and_never_made_up(tmp_path: Path, left: float | None) -> None:
    settings, folder = tiny.config(steps=12, log_every=2), tmp_path / "run"
    train(settings, folder, dataset=tiny.dataset())
    (folder / "result.json").unlink()  # as if it had been killed just before its end
    whole = (folder / "metrics.jsonl").read_bytes()
    if left is None:
        (folder / "metrics.jsonl").unlink()
    else:
        os.truncate(folder / "metrics.jsonl", int(left * len(whole)))
    heard = Heard()
    train(settings, folder, dataset=tiny.dataset(), resume=True, progress=heard)
    kept = (folder / "metrics.jsonl").read_bytes()
    assert kept == b"".join(whole[: int((left or 0) * len(whole))].splitlines(keepends=True)[:-1])
    assert any("metrics.jsonl was cut or removed" in said and "up to step 12" in said for said in heard.said)
    assert any("metrics.jsonl was cut or removed" in note for note in read_run(folder).notes)


def test_a_longer_run_goes_on_where_it_had_finished(tmp_path: Path) -> None:
    """With a constant learning rate it ends as one that was as long from the beginning."""
    data, heard = tiny.dataset(), Heard()
    often = {"log_every": 19}  # as long as an epoch: gradients are looked at in the same steps
    train(tiny.config(epochs=3, **often), tmp_path / "whole", dataset=data)
    folder = tmp_path / "run"
    train(tiny.config(epochs=1, **often), folder, dataset=data)
    result = train(tiny.config(epochs=3, **often), folder, dataset=data, resume=True, progress=heard)
    whole = read_json(tmp_path / "whole" / "result.json", "")
    for name in ("validation", "test", "steps", "best_step"):
        assert result[name] == whole[name]
    for name in ("last.pt", "best.pt"):
        one, other = (load(place / "checkpoints" / name) for place in (folder, tmp_path / "whole"))
        assert tiny.same(one["model"], other["model"])
    assert any("goes on from step 19 to step 57" in said for said in heard.said)
    assert read_json(folder / "config.json", "")["epochs"] == 3
    assert read_json(folder / "about.json", "")["lengthened"] == [{"epochs": 1.0, "steps": None, "to_step": 19}]
    steps = [(line["kind"], line["step"]) for line in lines(folder)]
    assert len(steps) == len(set(steps))
    before = (folder / "result.json").read_bytes()
    with pytest.raises(InputError, match=r"epochs is 3.0, not 2.0"):  # it cannot become shorter
        train(tiny.config(epochs=2, **often), folder, dataset=data, resume=True)
    with pytest.raises(InputError, match=r"batch is 64, not 32") as refused:
        train(tiny.config(epochs=5, batch=32, **often), folder, dataset=data, resume=True)
    assert "epochs" not in str(refused.value)
    assert (folder / "result.json").read_bytes() == before


def test_a_run_that_stopped_early_needs_patience_to_go_on(tmp_path: Path) -> None:
    data, folder = tiny.dataset(), tmp_path / "run"
    impatient = {"patience": 1, "least": 0.5}
    assert train(tiny.config(epochs=4, stopping=impatient), folder, dataset=data)["stopped"] == "early"
    before = (folder / "result.json").read_bytes()
    with pytest.raises(InputError, match=r"stopped early, at step .*--patience"):
        train(tiny.config(epochs=5, stopping=impatient), folder, dataset=data, resume=True)
    assert (folder / "result.json").read_bytes() == before
    result = train(tiny.config(epochs=5, stopping={"patience": 9, "least": 0.5}), folder, dataset=data, resume=True)
    assert (result["stopped"], result["steps"]) == ("finished", 95)


def test_weights_alone_cannot_go_on(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    train(tiny.config(steps=3), folder, dataset=tiny.dataset())
    keep_weights_only(folder / "checkpoints" / "last.pt")
    with pytest.raises(InputError, match="has the weights alone"):
        train(tiny.config(steps=5), folder, dataset=tiny.dataset(), resume=True)
    assert (folder / "result.json").exists()
