"""Tests that the loop does what its configuration says, with every model, method and optimizer."""

import dataclasses
import json
import re
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.training import tiny, together

import gdod
import gdod.data
from gdod import InputError
from gdod.data.parts.part import MemoryPart, Minibatch, Part
from gdod.errors import NonFiniteInputError
from gdod.models import MODELS, Batch, SharedBottom, Task, per_example_losses
from gdod.ranks import Ranks
from gdod.training import Interrupted, NonFiniteError, Silent, TrainConfig, train
from gdod.training.checkpoint import load
from gdod.training.loop import Trainer
from gdod.training.minibatch_losses import binary_labels, binary_losses, minibatch_losses
from gdod.training.optimizers import Optimizers
from gdod.training.record import points
from gdod.training.run import Folder
from gdod.training.seeds import seed_for


def lines(folder: Path, kind: str | None = None) -> list[dict[str, Any]]:
    recorded = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in recorded if kind in (None, line["kind"])]


@pytest.mark.parametrize("method", ["sum", "gdod", "gradnorm", "uncertainty", "gradreg", "pcgrad", "famo", "modo"])
def test_every_kind_of_method_learns(tmp_path: Path, method: str) -> None:
    config = tiny.config(method=method, epochs=2, optimizer={"lr": 0.02})
    result = train(config, tmp_path / "run", dataset=tiny.dataset())
    assert result["test"]["mean_auc"] > 0.7
    assert result["validation"]["mean_auc"] > 0.7
    assert result["stopped"] == "finished"


@pytest.mark.parametrize("model", MODELS)
def test_every_model_trains(tmp_path: Path, model: str) -> None:
    method = "sum" if model == "single-task" else "gdod"
    config = tiny.config(model=model, method=method, epochs=2, optimizer={"lr": 0.02})
    result = train(config, tmp_path / "run", dataset=tiny.dataset(conditional=model not in ("esmm", "aitm")))
    assert result["test"]["mean_auc"] > 0.7


@pytest.mark.parametrize("streamed", [False, True])
def test_labels_that_a_model_cannot_learn_from_are_refused_before_training(tmp_path: Path, streamed: bool) -> None:
    dataset = tiny.dataset()  # with purchases that have a label only where there is a click
    if streamed:
        dataset = together.streamed(tmp_path, dataset)
    with pytest.raises(InputError, match="'buy' has a label only where 'click' is 1"):
        train(tiny.config(model="esmm"), tmp_path / "run", dataset=dataset)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "settings",
    [
        {"optimizer": {"name": "adamw", "lr": 0.01, "weight_decay": 0.01}},
        {"optimizer": {"name": "sgd", "lr": 0.5, "momentum": 0.9}},
        {"optimizer": {"name": "sparse-adam", "lr": 0.01}, "clip": 0.5, "method": "gdod"},
        {"precision": "bf16", "method": "gdod"},
        {"schedule": {"name": "cosine", "warmup": 5}, "clip": 1.0},
        {"task_weights": {"buy": 3}, "sample_weights": False},
    ],
    ids=lambda settings: "-".join(settings),
)
def test_settings_that_change_how_it_learns(tmp_path: Path, settings: dict[str, Any]) -> None:
    result = train(tiny.config(epochs=3, **settings), tmp_path / "run", dataset=tiny.dataset())
    assert result["test"]["mean_auc"] > 0.7


@pytest.mark.parametrize("clip", [None, 0.3])
def test_it_makes_the_steps_that_a_loop_written_by_hand_makes(tmp_path: Path, clip: float | None) -> None:
    """Sum, weights, masks, penalty, clipping and schedule are compared with plain torch, step by step."""
    config = tiny.config(
        model={"name": "snr", "options": {"l0": 0.1}},
        steps=10,
        clip=clip,
        task_weights={"buy": 2.0},
        schedule={"name": "linear"},
        optimizer={"name": "sgd", "lr": 0.1},
        conflict_every=0,
    )
    dataset = tiny.dataset()
    train(config, tmp_path / "run", dataset=dataset)

    model = gdod.models.build("snr", dataset.schema, dataset.tasks, seed=seed_for("model", 0), l0=0.1)
    torch.manual_seed(seed_for("torch", 0))
    batches = dataset.train.batches(64, seed=seed_for("order", 0))
    for step in range(10):
        minibatch = next(batches)
        losses, mask = per_example_losses(
            model(minibatch.batch), minibatch.labels, model.tasks, weights=minibatch.weights
        )
        loss = model.penalty()
        assert loss is not None
        for task, factor in (("click", 1.0), ("buy", 2.0)):
            loss = loss + factor * losses[task][mask[task]].mean()
        model.zero_grad()
        loss.backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        with torch.no_grad():
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.sub_(0.1 * (1 - step / 10) * parameter.grad)
    trained = load(tmp_path / "run" / "checkpoints" / "last.pt")["model"]
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(trained[name], parameter.detach(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("model_name", ["shared-bottom", "aitm"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("missing", [False, True])
def test_the_quick_way_to_losses_gives_the_same_losses(missing: bool, weighted: bool, model_name: str) -> None:
    dataset = tiny.dataset()
    model = gdod.models.build(model_name, dataset.schema, dataset.tasks)
    batch, labels, weights, _ = next(dataset.train.batches(100))
    labels = labels if missing else {name: label.nan_to_num(0.0) for name, label in labels.items()}
    weights = weights if weighted else None
    quick = binary_labels(labels, model.tasks)
    assert quick is not None
    assert (quick.mask is not None) == missing
    logits = model(batch)
    added = model.example_penalties(logits)
    assert bool(added) == (model_name == "aitm")
    expected, mask = per_example_losses(logits, labels, model.tasks, weights=weights, penalties=added)
    torch.testing.assert_close(binary_losses(logits, quick.values, weights, added), expected)
    minibatch = Minibatch(batch, labels, weights)
    torch.testing.assert_close(minibatch_losses(model, minibatch, torch.device("cpu"))[0], expected)
    assert quick.mask is None or tiny.same(quick.mask, mask)
    assert quick.mask is not None or all(bool(known.all()) for known in mask.values())


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("members", [1, 3])
def test_the_losses_of_an_ensemble_are_averaged(members: int, weighted: bool) -> None:
    dataset = tiny.dataset()
    _, labels, weights, _ = next(dataset.train.batches(100))
    labels, weights = {name: label.nan_to_num(0.0) for name, label in labels.items()}, weights if weighted else None
    logits = {name: torch.randn(100, members, requires_grad=True) for name in labels}
    losses = binary_losses(logits, labels, weights)
    for name, label in labels.items():
        each = [binary_losses({name: logits[name][:, one]}, {name: label}, weights)[name] for one in range(members)]
        torch.testing.assert_close(losses[name], torch.stack(each).mean(0))
    (slope,) = torch.autograd.grad(losses["click"].sum(), logits["click"])
    expected = (logits["click"].detach().sigmoid() - labels["click"].unsqueeze(1)) / members
    torch.testing.assert_close(slope, expected if weights is None else expected * weights.unsqueeze(1))


def test_a_model_with_several_logits_for_an_example_trains(tmp_path: Path) -> None:
    class Ensemble(SharedBottom):
        def forward(self, batch: Batch) -> dict[str, torch.Tensor]:
            logits = super().forward(batch)
            if not self.training:
                return logits
            return {name: torch.stack([logit, 2 * logit], 1) for name, logit in logits.items()}

    dataset = tiny.dataset()
    model = Ensemble(dataset.schema, dataset.tasks)
    minibatch = next(dataset.train.batches(50))
    losses, _ = minibatch_losses(model, minibatch, torch.device("cpu"))
    assert {name: loss.shape for name, loss in losses.items()} == {"click": (50,), "buy": (50,)}
    working = Trainer(
        tiny.config(steps=3), dataset, model, gdod.GDOD(), Folder(tmp_path / "run"),
        device=torch.device("cpu"), progress=Silent(),
    )  # fmt: skip
    working._step(minibatch, 1, conflict=True)
    assert len(working._unread_losses) == 1


def with_labels(part: Part, change: Callable[[torch.Tensor], torch.Tensor]) -> MemoryPart:
    assert isinstance(part, MemoryPart)
    return dataclasses.replace(part, examples=part.examples._replace(labels=change(part.examples.labels)))


@pytest.mark.parametrize("missing", [False, True])
def test_labels_that_were_seen_with_others_are_not_looked_at_again(missing: bool) -> None:
    dataset = tiny.dataset()
    part = dataset.train if missing else with_labels(dataset.train, lambda labels: labels.nan_to_num(0.0))
    for minibatch in part.batches(100, seed=1):
        assert minibatch.seen == ("gaps" if missing else "whole")
        quick = binary_labels(minibatch.labels, dataset.tasks, minibatch.seen)
        expected = binary_labels(minibatch.labels, dataset.tasks)
        assert quick is not None
        assert expected is not None
        assert tiny.same(quick.values, expected.values)
        assert tiny.same(quick.mask or {}, expected.mask or {})


@pytest.mark.parametrize("label", [-1.0, 2.0, float("inf"), float("-inf")])
def test_labels_out_of_range_are_not_called_seen(label: float) -> None:
    def spoiled(labels: torch.Tensor) -> torch.Tensor:
        labels = labels.clone()
        labels[0, 7] = label
        return labels

    part = with_labels(tiny.dataset().train, spoiled)
    assert {minibatch.seen for minibatch in part.batches(100)} == {None}


@pytest.mark.parametrize("label", [-1.0, 2.0, float("inf")])
@pytest.mark.parametrize("other", [0.0, float("nan")])
def test_labels_out_of_range_take_the_way_that_refuses_them(label: float, other: float) -> None:
    labels = {"click": torch.tensor([label, 1.0]), "buy": torch.tensor([other, 1.0])}
    assert binary_labels(labels, tiny.dataset().tasks) is None
    assert binary_labels({name: torch.tensor([1.0]) for name in "ab"}, (Task("a"), Task("b", "regression"))) is None


def test_sparse_tables_move_only_where_ids_occur() -> None:
    dataset = tiny.dataset()
    model = gdod.models.build("shared-bottom", dataset.schema, dataset.tasks, sparse=True)
    with pytest.raises(InputError, match="sparse-adam"):
        Optimizers(model, tiny.config().optimizer)
    optimizers = Optimizers(model, tiny.config(optimizer="sparse-adam").optimizer)
    table = model.get_parameter("features.table.weight")
    before = table.detach().clone()
    minibatch = next(dataset.train.batches(1))
    gdod.backward(per_example_losses(model(minibatch.batch), minibatch.labels, model.tasks).losses)
    optimizers.step()
    moved = (table.detach() != before).any(1)
    assert int(moved.sum()) <= len(minibatch.batch.categorical[0])
    assert bool(moved.any())


@pytest.mark.parametrize("model", MODELS)
def test_id_tables_matrices_and_biases_decay_each_in_their_way(model: str) -> None:
    dataset = tiny.dataset()
    built = gdod.models.build(model, dataset.schema, dataset.tasks)
    settings = {"name": "adamw", "lr": 0.5, "weight_decay": 0.1, "id_decay": 0.01}
    optimizers = Optimizers(built, tiny.config(optimizer=settings).optimizer)
    (optimizer,) = optimizers.all
    assert all(group["fused"] for group in optimizer.param_groups)
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(list(built.parameters()))
    before = {name: parameter.detach().clone() for name, parameter in built.named_parameters()}
    for parameter in built.parameters():
        parameter.grad = torch.zeros_like(parameter)  # so that nothing but decay moves it
    optimizers.set_lr(0.2)
    optimizers.step()
    for name, parameter in built.named_parameters():
        decay = 0.1 if name.endswith("weight") else 0.0
        if "features" in name:
            decay = 0.01
        torch.testing.assert_close(parameter.detach(), before[name] * (1 - 0.1 * decay), msg=name)


def test_without_a_decay_of_id_tables_all_decay_alike() -> None:
    dataset = tiny.dataset()
    built = gdod.models.build("shared-bottom", dataset.schema, dataset.tasks)
    for name in ("adam", "adamw"):
        config = tiny.config(optimizer={"name": name, "weight_decay": 0.1}).optimizer
        (group,) = Optimizers(built, config).all[0].param_groups
        assert group["weight_decay"] == 0.1


def test_clipping_sparse_and_dense_gradients_is_that_of_torch() -> None:
    dataset = tiny.dataset()
    minibatch = next(dataset.train.batches(32))
    lengths = []
    for sparse in (False, True):
        model = gdod.models.build("shared-bottom", dataset.schema, dataset.tasks, sparse=sparse)
        optimizers = Optimizers(model, tiny.config(optimizer="sparse-adam").optimizer)
        sum(loss.mean() for loss in model(minibatch.batch).values()).backward()
        length = optimizers.gradient_length()
        lengths.append(float(length))
        optimizers.clip(0.01, length)
        assert float(optimizers.gradient_length()) == pytest.approx(0.01, rel=1e-3)
    assert lengths[0] == pytest.approx(lengths[1], rel=1e-5)


def test_the_best_on_validation_is_kept_and_tested_once(tmp_path: Path) -> None:
    config = tiny.config(epochs=6, optimizer={"lr": 0.05}, evaluate_every=5)
    result = train(config, tmp_path / "run", dataset=tiny.dataset(rows=300))
    evaluations = lines(tmp_path / "run", "evaluation")
    best = max(evaluations, key=lambda line: line["mean_auc"])
    assert result["best_step"] == best["step"]
    assert result["validation"]["mean_auc"] == best["mean_auc"]
    assert {line["part"] for line in evaluations} == {"validation"}
    assert [line["step"] for line in evaluations] == [*range(0, 30, 5), 30]
    assert load(tmp_path / "run" / "checkpoints" / "best.pt")["step"] == best["step"]


@pytest.mark.parametrize("monitor", ["mean_auc", "loss", "buy"])
def test_early_stopping(tmp_path: Path, monitor: str) -> None:
    config = tiny.config(
        epochs=60, optimizer={"lr": 0.05}, stopping={"patience": 2, "monitor": monitor}, model={"options": {}}
    )
    result = train(config, tmp_path / "run", dataset=tiny.dataset(rows=256))
    assert result["stopped"] == "early"
    after = [line for line in lines(tmp_path / "run", "evaluation") if line["step"] > result["best_step"]]
    assert len(after) == 2
    assert not any(line["best"] for line in after)


def test_losses_and_conflict_are_recorded(tmp_path: Path) -> None:
    config = tiny.config(method="gdod", steps=20, log_every=5, conflict_every=10)
    train(config, tmp_path / "run", dataset=tiny.dataset())
    recorded = lines(tmp_path / "run", "train")
    assert [line["step"] for line in recorded] == [5, 10, 15, 20]
    assert [line["conflict"] is not None for line in recorded] == [False, True, False, True]
    conflict = recorded[1]["conflict"]
    assert 0 < conflict["energy_kept"] <= 1
    assert conflict["cosines"][0][1] == pytest.approx(conflict["cosines"][1][0])
    assert set(recorded[0]["losses"]) == {"click", "buy"}
    assert recorded[0]["loss"] == pytest.approx(sum(recorded[0]["losses"].values()))
    assert {"conflict/cosine/click-buy", "conflict/energy_kept", "loss/click", "lr"} <= set(points(recorded[1]))


def test_the_plain_sum_records_conflict_too(tmp_path: Path) -> None:
    train(tiny.config(steps=7), tmp_path / "run", dataset=tiny.dataset())
    conflict = lines(tmp_path / "run", "train")[0]["conflict"]
    assert -1 < conflict["cosines"][0][1] < 1
    assert conflict["energy_kept"] == 1


def test_curves_for_tensorboard(tmp_path: Path) -> None:
    train(tiny.config(steps=14, tensorboard=True), tmp_path / "run", dataset=tiny.dataset())
    assert sum(file.stat().st_size for file in (tmp_path / "run" / "tensorboard").iterdir()) > 500


def broken(value: float, at: int | slice) -> Any:
    """Return a data set whose training part has examples with a number that makes every loss infinite or nan."""
    dataset = tiny.dataset()
    assert isinstance(dataset.train, MemoryPart)
    dataset.train.examples.numeric[at] = value
    return dataset


def test_a_loss_that_is_not_finite_stops_with_the_step_the_task_and_the_checkpoint(tmp_path: Path) -> None:
    config = tiny.config(epochs=1, checkpoint_every=1)
    with pytest.raises(NonFiniteError, match=r"step \d+: the loss of task 'click', 'buy' is not finite") as caught:
        train(config, tmp_path / "run", dataset=broken(float("inf"), 700))
    error = caught.value
    assert error.checkpoint == tmp_path / "run" / "checkpoints" / "last.pt"
    assert load(error.checkpoint)["state"]["step"] == error.step - 1
    assert str(error.checkpoint) in str(error)


@pytest.mark.parametrize("method", ["sum", "gdod", "gradnorm"])
def test_such_a_step_can_be_skipped(tmp_path: Path, method: str) -> None:
    config = tiny.config(epochs=3, non_finite="skip", method=method)
    result = train(config, tmp_path / "run", dataset=broken(float("inf"), 700))
    assert result["skipped"] == 3
    assert result["test"]["mean_auc"] > 0.7


def test_no_checkpoint_is_written_in_skipped_steps_and_the_last_good_one_stays(tmp_path: Path) -> None:
    """There is a checkpoint after every step, and about two of three steps are skipped, often several in a row."""
    last = Folder(tmp_path / "run").last
    skipped: list[int] = []

    class Watching(Silent):
        def say(self, text: str) -> None:
            step = int(text.split()[1])
            good = next(before for before in range(step - 1, -1, -1) if before not in skipped)
            skipped.append(step)
            saved = load(last)
            assert saved["state"]["step"] == good
            assert all(bool(one.isfinite().all()) for one in saved["model"].values())

    config = tiny.config(steps=60, batch=8, evaluate_every=60, checkpoint_every=1, non_finite="skip")
    dataset = broken(float("nan"), slice(0, None, 8))
    result = train(config, tmp_path / "run", dataset=dataset, progress=Watching())
    assert result["skipped"] == len(skipped)
    assert any({step + 1, step + 2} <= set(skipped) for step in skipped)
    assert len(skipped) < 60


def test_other_errors_are_not_taken_for_a_loss_that_is_not_finite(tmp_path: Path) -> None:
    config = tiny.config(steps=3, non_finite="skip", method="gdod")
    working = trainer(config, tmp_path)
    losses = {"click": torch.ones(3), "buy": torch.ones(3)}
    with pytest.raises(InputError, match="the list is not finite"):
        working._skip_or_raise(1, losses, InputError("the list is not finite"))
    assert working.state.skipped == 0
    working._skip_or_raise(1, losses, NonFiniteInputError("whatever it says"))
    assert working.state.skipped == 1


@pytest.mark.parametrize("where", ["losses", "gradient"])
def test_backward_says_by_its_class_that_something_is_not_finite(where: str) -> None:
    values = torch.ones(4, requires_grad=True) * 2
    bad = values / 0 if where == "losses" else values + (values * 0).sqrt()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", gdod.MixingWarning)  # nan looks like anything
        with pytest.raises(NonFiniteInputError, match="not finite"):
            gdod.backward({"a": values, "b": bad}, gdod.GDOD())


def test_weights_that_are_not_finite_are_never_saved(tmp_path: Path) -> None:
    """The losses are finite and the step is infinite, so that only the weights show it."""
    config = tiny.config(steps=1, optimizer={"name": "sgd", "lr": 3e38})
    with pytest.raises(NonFiniteError, match="a weight is not finite"):
        train(config, tmp_path / "run", dataset=broken(1e6, slice(None)))
    for name in ("last.pt", "best.pt"):
        weights = load(tmp_path / "run" / "checkpoints" / name)["model"]
        assert all(bool(one.isfinite().all()) for one in weights.values())


def test_skipping_comes_to_an_end(tmp_path: Path) -> None:
    dataset = broken(float("nan"), slice(None))
    with pytest.raises(NonFiniteError, match="step 100"):
        train(tiny.config(epochs=100, non_finite="skip"), tmp_path / "run", dataset=dataset)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"model": "mmeo"}, "did you mean 'mmoe'"),
        ({"model": {"name": "mmoe", "options": {"expertz": 2}}}, "did you mean 'expert'"),
        ({"method": "gdood"}, "did you mean 'gdod'"),
        ({"method": {"name": "gdod", "options": {"groups": 0}}}, "groups=0"),
        ({"method": {"name": "sum", "options": {"groups": 1}}}, "takes no options"),
        ({"device": "cuda:99"}, "device='cuda:99' cannot be used"),
        ({"device": "toaster"}, "device='toaster' cannot be used"),
        ({"task_weights": {"clik": 1}}, "task_weights names 'clik'"),
        ({"stopping": {"monitor": "clik"}}, "stopping.monitor='clik'"),
        ({"model": {"options": {"sparse": True}}}, "sparse-adam"),
    ],
)
def test_wrong_settings_are_refused_before_anything_is_trained(
    tmp_path: Path, settings: dict[str, Any], says: str
) -> None:
    with pytest.raises(InputError) as caught:
        train(tiny.config(**settings), tmp_path / "run", dataset=tiny.dataset())
    assert says in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_without_validation_the_last_weights_are_the_best(tmp_path: Path) -> None:
    dataset = tiny.dataset(validation=0)
    with pytest.raises(InputError, match="validation part"):
        train(tiny.config(stopping={"patience": 1}), tmp_path / "refused", dataset=dataset)
    result = train(tiny.config(steps=20), tmp_path / "run", dataset=dataset)
    assert (result["best_step"], result["validation"]) == (20, None)
    assert result["test"]["mean_auc"] > 0.5


def test_a_task_with_one_class_in_validation_says_so(tmp_path: Path) -> None:
    dataset = tiny.dataset()
    assert isinstance(dataset.validation, MemoryPart)
    dataset.validation.examples.labels[1] = 0.0
    with pytest.raises(InputError, match=r"monitor='buy' has no value.*no AUC: all 300 labels are 0"):
        train(tiny.config(stopping={"monitor": "buy"}), tmp_path / "refused", dataset=dataset)
    result = train(tiny.config(steps=20), tmp_path / "run", dataset=dataset)
    assert result["validation"]["tasks"]["buy"]["auc"] is None
    assert result["validation"]["mean_auc"] == result["validation"]["tasks"]["click"]["auc"]


class Interrupting(Silent):
    """Sends the signal of Ctrl-C to its own process at a chosen time."""

    def __init__(self, at: int) -> None:
        self.at = at

    def trained(self, step: int, loss: float) -> None:
        if step == self.at:
            signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("at", [7, 21])
def test_ctrl_c_saves_and_the_run_goes_on_as_if_nothing_had_been(tmp_path: Path, at: int) -> None:
    """At step 21 an evaluation is due, which the interrupted run makes after it is resumed."""
    config = tiny.config(steps=30, evaluate_every=21, method="gradnorm")
    with pytest.raises(Interrupted) as caught:
        train(config, tmp_path / "run", dataset=tiny.dataset(), progress=Interrupting(at))
    assert caught.value.exit_code == 130
    assert load(tmp_path / "run" / "checkpoints" / "last.pt")["state"]["step"] == at
    train(config, tmp_path / "run", dataset=tiny.dataset(), resume=True)
    train(config, tmp_path / "whole", dataset=tiny.dataset())
    check_same(tmp_path / "run", tmp_path / "whole")


class Crashing(Silent):
    """Raises an error at a chosen time."""

    def trained(self, step: int, loss: float) -> None:
        if step == 25:
            raise OSError("the terminal is gone")


@pytest.mark.parametrize(("short", "saved"), [(0.0, 21), (float("inf"), 0)])
def test_evaluations_soon_after_a_checkpoint_write_the_best_weights_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, short: float, saved: int
) -> None:
    """The best weights are then newer than what the run resumes from, and it still ends the same."""
    monkeypatch.setattr("gdod.training.loop._SHORT", short)
    config = tiny.config(steps=30, evaluate_every=7, log_every=5, method="gradnorm", average=0.9)
    with pytest.raises(OSError, match="terminal"):
        train(config, tmp_path / "run", dataset=tiny.dataset(), progress=Crashing())
    checkpoints = tmp_path / "run" / "checkpoints"
    assert load(checkpoints / "last.pt")["state"]["step"] == saved
    assert load(checkpoints / "best.pt")["step"] > 0
    train(config, tmp_path / "run", dataset=tiny.dataset(), resume=True)
    train(config, tmp_path / "whole", dataset=tiny.dataset())
    check_same(tmp_path / "run", tmp_path / "whole")
    assert load(checkpoints / "last.pt")["state"]["step"] == 30


class Alarming:
    """A part that sends Ctrl-C's signal to its own process while it is read for the second time."""

    def __init__(self, part: Any) -> None:
        self.part, self.times, self.handed_out = part, 0, 0

    def __len__(self) -> int:
        return len(self.part)

    def steps(self, size: int, *, ranks: int = 1) -> int:
        return int(self.part.steps(size, ranks=ranks))

    def batches(self, size: int, **rest: Any) -> Iterator[Any]:
        self.times += 1
        for minibatch in self.part.batches(size, **rest):
            if self.times == 2 and self.handed_out == 0:
                signal.raise_signal(signal.SIGINT)
            self.handed_out += self.times == 2
            yield minibatch


def test_ctrl_c_does_not_wait_for_an_evaluation(tmp_path: Path) -> None:
    config = tiny.config(steps=30, evaluate_every=21, evaluation_batch=10)
    validation = Alarming(tiny.dataset().validation)
    with pytest.raises(Interrupted):
        train(config, tmp_path / "run", dataset=dataclasses.replace(tiny.dataset(), validation=validation))
    assert validation.handed_out == 1
    train(config, tmp_path / "run", dataset=tiny.dataset(), resume=True)
    train(config, tmp_path / "whole", dataset=tiny.dataset())
    check_same(tmp_path / "run", tmp_path / "whole")


def check_same(one: Path, other: Path) -> None:
    for name in ("last.pt", "best.pt"):
        assert tiny.same(load(one / "checkpoints" / name), load(other / "checkpoints" / name)), name
    without_times = [[{**line, "seconds": 0} for line in lines(folder)] for folder in (one, other)]
    assert without_times[0] == without_times[1]


def test_it_can_run_in_a_thread(tmp_path: Path) -> None:
    """Signals cannot be caught in another thread than the main one."""
    results: list[Any] = []
    thread = threading.Thread(
        target=lambda: results.append(train(tiny.config(steps=3), tmp_path / "run", dataset=tiny.dataset()))
    )
    thread.start()
    thread.join()
    assert results[0]["steps"] == 3


def trainer(config: TrainConfig, folder: Path, rank: int = 0, ranks: int = 1) -> Trainer:
    dataset = tiny.dataset()
    model = gdod.models.build("shared-bottom", dataset.schema, dataset.tasks)
    return Trainer(
        config, dataset, model, gdod.Sum(), Folder(folder), device=torch.device("cpu"), progress=Silent(),
        ranks=Ranks(rank, ranks),
    )  # fmt: skip


def test_ranks_share_out_every_batch(tmp_path: Path) -> None:
    config = tiny.config()
    alone = next(trainer(config, tmp_path)._batches())
    shares = [next(trainer(config, tmp_path, rank, 3)._batches()) for rank in range(3)]
    torch.testing.assert_close(torch.cat([one.batch.numeric for one in shares]), alone.batch.numeric)


def test_the_seed_decides_everything(tmp_path: Path) -> None:
    config = tiny.config(steps=12, method="gdod", model={"options": {"dropout": 0.3}})
    for name, seed in (("one", 1), ("again", 1), ("other", 2)):
        torch.manual_seed(len(name))  # what was drawn before does not matter
        train(config.model_copy(update={"seed": seed}), tmp_path / name, dataset=tiny.dataset())
    check_same(tmp_path / "one", tmp_path / "again")
    weights = [load(tmp_path / name / "checkpoints" / "last.pt")["model"] for name in ("one", "other")]
    assert not tiny.same(*weights)


def test_data_that_changed_is_not_gone_on_with(tmp_path: Path) -> None:
    config = tiny.config(steps=14)
    with pytest.raises(Interrupted):
        train(config, tmp_path / "run", dataset=tiny.dataset(), progress=Interrupting(7))
    changed = dataclasses.replace(tiny.dataset(), fingerprint="other")
    with pytest.raises(InputError, match="has changed"):
        train(config, tmp_path / "run", dataset=changed, resume=True)


class Heard(Silent):
    """Keeps what is said."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)


def test_a_loss_that_drowns_the_others_is_told(tmp_path: Path) -> None:
    """An age that was given a large weight beside a click: said once, with the weight that makes them equal."""
    table = tiny.frame(400).select("city", "item", "age", "click")
    table.write_csv(tmp_path / "t.csv")
    (tmp_path / "s.yaml").write_text(
        "columns: {city: categorical, item: categorical, age: {type: label, kind: regression}, click: label}\n"
    )
    data = gdod.data.load(tmp_path / "t.csv", schema=tmp_path / "s.yaml", cache=tmp_path / "c")

    first, second = Heard(), Heard()
    heavy = tiny.config(steps=3, evaluate_every=1, task_weights={"age": 2000})
    train(heavy, tmp_path / "one", dataset=data, progress=first)
    (told,) = [text for text in first.said if "may drown it" in text]
    found = re.search(r"the loss of 'age' is ([\d,]+) times that of 'click' .* --task-weight age=(\S+) would", told)
    assert found is not None, told
    assert 1000 < int(found[1].replace(",", "")) < 6000  # 2000 against log 2
    weights = {"age": float(found[2])}
    train(tiny.config(steps=1, task_weights=weights), tmp_path / "two", dataset=data, progress=second)
    assert not [text for text in second.said if "may drown it" in text]
