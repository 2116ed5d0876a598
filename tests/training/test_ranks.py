"""Several real processes train one model: as one would, and together whatever happens to one of them."""

import random
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.training import tiny, together
from tests.training.test_loop import check_same, lines
from tests.training.test_resume import check_same_result
from tests.training.together import Started, Stopped, Wrong, start, training

from gdod._files import read_json
from gdod.models import Batch, Categorical, Numeric, Schema, Task, build
from gdod.ranks import Ranks
from gdod.training import Silent, TrainConfig, train
from gdod.training.checkpoint import load
from gdod.training.evaluation import Predictions, predict_part

SEEDS = {"dropout": 0.0, "embedding": 4, "bottom": [16], "tower": [8]}


def settings(dropout: float = 0.0, **more: Any) -> dict[str, Any]:
    """Steps, log times, evaluations and checkpoints that fall together as seldom as possible."""
    config = tiny.config(
        **{
            "model": {"name": "shared-bottom", "options": {**SEEDS, "dropout": dropout}},
            "method": "gdod",
            "steps": 40,
            "log_every": 7,
            "evaluate_every": 11,
            "checkpoint_every": 3,
            "evaluation_batch": 60,
            **more,
        }
    )
    return config.model_dump(mode="json")


def weights(folder: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = load(folder / "checkpoints" / "last.pt")["model"]
    return found


def alone(folder: Path, given: dict[str, Any]) -> None:
    train(TrainConfig.model_validate(given), folder, dataset=together.data(given), resume=True)


def check_close(one: Path, other: Path) -> None:
    """The same steps; weights and losses to what rounding leaves."""
    first, second = (lines(folder) for folder in (one, other))
    assert [(line["kind"], line["step"]) for line in first] == [(line["kind"], line["step"]) for line in second]
    for here, there in zip(first, second, strict=True):
        if here["kind"] == "train":
            assert here["losses"] == pytest.approx(there["losses"], rel=1e-4)
    for name, values in weights(one).items():
        torch.testing.assert_close(values, weights(other)[name], rtol=1e-3, atol=1e-4)


# Evaluation


class Table:
    """Random examples with labels of every kind, of which some are missing, and with weights."""

    schema = Schema(categorical=[Categorical("city", 9)], numeric=[Numeric("age"), Numeric("height")])
    tasks = (Task("click"), Task("spent", "regression"), Task("kind", "multiclass", classes=3))

    def __init__(self, rows: int) -> None:
        draw = torch.Generator().manual_seed(1)
        self.rows = rows
        self.batch = Batch(torch.randint(9, (rows, 1), generator=draw), torch.randn(rows, 2, generator=draw))
        labels = [torch.randint(2, (rows,), generator=draw), torch.randn(rows, generator=draw)]
        labels.append(torch.randint(3, (rows,), generator=draw))
        known, found = torch.rand(rows, generator=draw) < 0.9, zip(self.tasks, labels, strict=True)
        self.labels = {task.name: torch.where(known, one.float(), torch.nan) for task, one in found}
        self.weights = torch.rand(rows, generator=draw)

    def __len__(self) -> int:
        return self.rows

    def steps(self, size: int) -> int:
        return -(-self.rows // size)

    def batches(self, size: int, *, start: int = 0) -> Any:
        from gdod.data import Minibatch

        for first in range(start * size, self.rows, size):
            part = slice(first, first + size)
            labels = {name: label[part] for name, label in self.labels.items()}
            yield Minibatch(self.batch.take(part), labels, self.weights[part])


def scoring(ranks: Ranks, rows: Sequence[int]) -> list[Predictions | None]:
    model = build("mmoe", Table.schema, Table.tasks, seed=3)
    return [predict_part(model, Table(count), 32, torch.device("cpu"), ranks=ranks) for count in rows]  # type: ignore[arg-type]


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_scores_of_all_ranks_are_those_of_one(tmp_path: Path, ranks: int) -> None:
    """Bit for bit, for every kind of task; also where there are fewer batches than ranks."""
    rows = (300, 64, 31, 1)
    expected = scoring(Ranks(), rows)
    found = together.together(ranks, tmp_path, scoring, rows)[0]
    for one, other in zip(found, expected, strict=True):
        assert other is not None
        assert one.metrics() == other.metrics()
        assert one.metrics(weighted=True) == other.metrics(weighted=True)
        assert one.calibration() == other.calibration()
        for task in Table.tasks:
            assert torch.equal(one.predictions[task.name], other.predictions[task.name])


# Training


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_several_train_as_one_does(tmp_path: Path, ranks: int) -> None:
    given = settings()
    alone(tmp_path / "one", given)
    results = together.together(ranks, tmp_path, training, given, tmp_path / "several")
    assert all(result == results[0] for result in results)
    check_close(tmp_path / "several", tmp_path / "one")
    # At the start weights are the same bits, and so is what they score.
    first, second = (lines(tmp_path / name, "evaluation")[0] for name in ("one", "several"))
    assert {**first, "seconds": 0} == {**second, "seconds": 0}
    assert read_json(tmp_path / "several" / "about.json", "")["ranks"] == ranks
    assert not list((tmp_path / "several").rglob(".*.part"))


def test_several_average_their_weights_as_one_does(tmp_path: Path) -> None:
    given = settings(average=0.9, method="sum", optimizer={"name": "adamw", "lr": 0.01, "id_decay": 0.1})
    alone(tmp_path / "one", given)
    together.together(2, tmp_path, training, given, tmp_path / "whole")
    check_close(tmp_path / "whole", tmp_path / "one")
    averages = [load(tmp_path / name / "checkpoints" / "last.pt")["average"] for name in ("whole", "one")]
    for name, values in averages[0].items():
        torch.testing.assert_close(values, averages[1][name], rtol=1e-3, atol=1e-4)
    together.together(2, tmp_path, training, given, tmp_path / "run", Wrong(1, 9, "signal"))
    together.together(2, tmp_path, training, given, tmp_path / "run")
    check_same(tmp_path / "run", tmp_path / "whole")


def test_several_follow_a_recipe_as_one_does(tmp_path: Path) -> None:
    given = TrainConfig.model_validate(
        {
            "recipe": "strong", "data": {"source": "tiny", "features": None}, "model": {"options": {"dropout": 0.0}},
            "epochs": 2, "log_every": 7, "threads": 1, "device": "cpu", "tensorboard": False,
        }
    ).model_dump(mode="json")  # fmt: skip
    alone(tmp_path / "one", given)
    results = together.together(2, tmp_path, training, given, tmp_path / "several", None, Said(tmp_path / "said.txt"))
    assert all(isinstance(result, dict) and result == results[0] for result in results), results
    check_close(tmp_path / "several", tmp_path / "one")
    assert "batch size 64" in (tmp_path / "said.txt").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("model", ["stem", "esmm", "aitm"])
def test_models_with_tables_or_towers_of_tasks_train_as_one_does(tmp_path: Path, model: str) -> None:
    given = settings(model={"name": model, "options": {"embedding": 4, "tower": [8], "ensemble": 2}})
    alone(tmp_path / "one", given)
    results = together.together(2, tmp_path, training, given, tmp_path / "several")
    assert all(isinstance(result, dict) and result == results[0] for result in results), results
    check_close(tmp_path / "several", tmp_path / "one")


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [
        {"method": "sum", "clip": 0.5},
        {"method": "pcgrad", "optimizer": {"name": "sparse-adam", "lr": 0.01}},
        {"method": "uncertainty", "stopping": {"patience": 1}},
        {"method": "gradnorm", "model": "ple", "test_curve": True},
        {"data": "streamed", "method": "cagrad", "batch": 150},
    ],
    ids=lambda more: more["method"],
)
def test_settings_that_ranks_share(tmp_path: Path, more: dict[str, Any]) -> None:
    """Four ranks and two come to the same; streamed, their batches differ, and no more than that."""
    given = settings(**more)
    together.streamed(tmp_path, together.data())
    for ranks in (2, 4):
        results = together.together(ranks, tmp_path, training, given, tmp_path / f"{ranks}")
        assert all(isinstance(result, dict) and result == results[0] for result in results), results
    if given["data"]["source"] != "streamed":
        check_close(tmp_path / "2", tmp_path / "4")


def test_an_epoch_that_is_streamed_ends_with_the_same_step(tmp_path: Path) -> None:
    """20 row groups for 3 ranks, the last batch smaller than there are ranks: nobody waits for anybody."""
    together.streamed(tmp_path, together.data())
    given = settings(steps=None, epochs=2, batch=37, data="streamed", evaluate_every=None, checkpoint_every=None)
    results = together.together(3, tmp_path, training, given, tmp_path / "run")
    assert [result["steps"] for result in results] == [56] * 3


def test_dropout_is_drawn_by_each_rank(tmp_path: Path) -> None:
    together.together(2, tmp_path, training, settings(dropout=0.5, steps=3), tmp_path / "run")
    content = load(tmp_path / "run" / "checkpoints" / "last.pt")
    assert len(content["random_of_others"]) == 1
    assert not torch.equal(content["random"]["cpu"], content["random_of_others"][0]["cpu"])


def test_early_stopping_is_decided_once(tmp_path: Path) -> None:
    given = settings(steps=200, evaluate_every=2, stopping={"patience": 3, "least": 0.02})
    results = together.together(2, tmp_path, training, given, tmp_path / "run")
    assert results[0]["stopped"] == "early"
    assert results[0] == results[1]


# When something happens to one of them


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_a_request_to_end_on_one_rank_ends_all_after_saving_once(tmp_path: Path, ranks: int) -> None:
    given = settings(dropout=0.3)
    together.together(ranks, tmp_path, training, given, tmp_path / "whole")
    stops = together.together(ranks, tmp_path, training, given, tmp_path / "run", Wrong(1, 9, "signal"))
    assert set(stops) == {Stopped("Interrupted", f"stopped at step 10, saved in {tmp_path / 'run'}", 143)}
    assert load(tmp_path / "run" / "checkpoints" / "last.pt")["state"]["step"] == 10
    together.together(ranks, tmp_path, training, given, tmp_path / "run")
    check_same(tmp_path / "run", tmp_path / "whole")
    check_same_result(tmp_path / "run", tmp_path / "whole")


def test_a_loss_that_is_not_finite_on_one_rank_stops_all_with_the_same_words(tmp_path: Path) -> None:
    stops = together.together(2, tmp_path, training, settings(), tmp_path / "run", Wrong(1, 4, "infinite"))
    (stop,) = set(stops)
    assert stop.kind == "NonFiniteError"
    assert "step 5: the loss of task 'click', 'buy' is not finite" in stop.text
    assert "(step 3)" in stop.text


def test_such_a_step_can_be_skipped_by_all(tmp_path: Path) -> None:
    given = settings(non_finite="skip")
    results = together.together(2, tmp_path, training, given, tmp_path / "run", Wrong(1, 4, "infinite"))
    assert [result["skipped"] for result in results] == [3, 3]  # once in each epoch
    assert results[0] == results[1]


@pytest.mark.parametrize(("before", "after"), [(2, 3), (2, 1), (1, 2)])
@pytest.mark.parametrize("data", ["tiny", "streamed"])
def test_another_number_of_ranks_goes_on(tmp_path: Path, before: int, after: int, data: str) -> None:
    """In the middle of an epoch: with the same batches, so that it ends as if nothing had changed."""
    if data == "streamed":
        together.streamed(tmp_path, together.data())
    given = settings(data=data, steps=15)  # within the first epoch: the next is dealt out anew
    together.together(before, tmp_path, training, given, tmp_path / "whole")
    together.together(before, tmp_path, training, given, tmp_path / "run", Wrong(before - 1, 6, "signal"))
    results = together.together(after, tmp_path, training, given, tmp_path / "run")
    assert all(result == results[0] for result in results)
    check_close(tmp_path / "run", tmp_path / "whole")
    about = read_json(tmp_path / "run" / "about.json", "")
    assert about["ranks"] == after
    assert about["ranks_before"] == [{"ranks": before, "to_step": 7}]


class Said(Silent):
    """Keeps what a person would be told."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def say(self, text: str) -> None:
        with self.path.open("a") as file:
            print(text, file=file)


def apart(ranks: Ranks, given: dict[str, Any], out: Path) -> Any:
    return training(ranks, {**given, "seed": ranks.rank}, out, None, Said(out.parent / "said.txt"))


def test_weights_that_drift_apart_are_told(tmp_path: Path) -> None:
    given = settings(steps=2, method="sum", evaluate_every=2)
    together.together(2, tmp_path, apart, given, tmp_path / "run")
    said = (tmp_path / "said.txt").read_text().splitlines()
    assert [line.split(":")[0] for line in said] == ["step 0", "step 2"]
    assert "the weights of rank 1 differ from those of rank 0" in said[0]


def test_weights_that_stay_together_are_not_spoken_of(tmp_path: Path) -> None:
    together.together(2, tmp_path, training, settings(steps=2), tmp_path / "run", None, Said(tmp_path / "said.txt"))
    assert not (tmp_path / "said.txt").exists()


def wait_for_step(folder: Path, step: int) -> None:
    """Until a checkpoint of that step or a later one is there."""
    last, until = folder / "checkpoints" / "last.pt", time.monotonic() + 600
    while not (last.exists() and load(last)["state"]["step"] >= step):
        assert time.monotonic() < until
        time.sleep(0.005)


def check_killed(started: Started, rank: int) -> None:
    """The others notice that a rank is gone, and end."""
    found = started.wait()
    for other, process in enumerate(started.processes):
        if other == rank:
            assert process.exitcode == -signal.SIGKILL
        else:
            assert "lost the others" in found[other].text


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_rank_ends_the_others_and_the_run_goes_on_where_it_was_saved(tmp_path: Path, rank: int) -> None:
    given = settings(dropout=0.3, steps=25)
    together.together(2, tmp_path, training, given, tmp_path / "whole")
    check_killed(start(2, tmp_path, training, given, tmp_path / "run", Wrong(rank, 13, "kill")), rank)
    assert load(tmp_path / "run" / "checkpoints" / "last.pt")["state"]["step"] == 12
    together.together(2, tmp_path, training, given, tmp_path / "run")
    check_same(tmp_path / "run", tmp_path / "whole")
    check_same_result(tmp_path / "run", tmp_path / "whole")
    steps = [(line["kind"], line["step"]) for line in lines(tmp_path / "run")]
    assert len(steps) == len(set(steps))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("data", ["tiny", "streamed"])
def test_killed_again_and_again_it_ends_the_same(tmp_path: Path, seed: int, data: str) -> None:
    chance = random.Random(seed)
    together.streamed(tmp_path, together.data())
    given = settings(dropout=0.3, steps=200, data=data)
    together.together(4, tmp_path, training, given, tmp_path / "whole")
    for step in (5, 40, 80):
        started, rank = start(4, tmp_path, training, given, tmp_path / "run"), chance.randrange(4)
        wait_for_step(tmp_path / "run", step)
        time.sleep(chance.uniform(0, 0.1))
        started.kill(rank)
        check_killed(started, rank)
    together.together(4, tmp_path, training, given, tmp_path / "run")
    check_same(tmp_path / "run", tmp_path / "whole")
    check_same_result(tmp_path / "run", tmp_path / "whole")


@pytest.mark.slow
def test_a_rank_that_hangs_is_noticed(tmp_path: Path) -> None:
    found = start(2, tmp_path, training, settings(steps=100_000), tmp_path / "run", timeout=10)
    wait_for_step(tmp_path / "run", 6)
    found.kill(1, signal.SIGSTOP)
    found.processes[0].join(120)
    assert found.processes[0].exitcode == 0
    found.kill(1)
    assert "lost the others" in found.wait()[0].text
