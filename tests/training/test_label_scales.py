"""Tests that regression labels are learned with mean 0 and deviation 1, and that nobody else sees these units."""

import json
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from tests.training import tiny, together
from tests.training.test_loop import Heard, Interrupting, check_same

import gdod
from gdod._files import read_json
from gdod.data import StreamPart, open_prepared, prepare
from gdod.data.dataset import Dataset
from gdod.data.preparing.encoder import Encoder
from gdod.data.tables.table_schema import TableSchema
from gdod.errors import InputError
from gdod.models import Task, build, export, per_example_losses
from gdod.ranks import Ranks
from gdod.training import load_run, train
from gdod.training.evaluation import monitored_score, validation_loss
from gdod.training.interruption import Interrupted
from gdod.training.label_scales import fit_label_scales

SCHEMA = """\
columns:
  city: categorical
  item: categorical
  w: weight
  click: label
  age: {type: label, kind: regression}
split: {by: random, seed: 0, validation: 0.2, test: 0.2}
"""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return prepared data with an age in days, of which some are missing."""
    folder = tmp_path_factory.mktemp("ages")
    table = tiny.frame(1500).with_columns(pl.col("age") * 365 + 50 * pl.col("click"))
    table.with_columns(pl.when(pl.col("id") % 7 > 0).then("age")).write_parquet(folder / "table.parquet")
    schema = TableSchema.parse(SCHEMA, Path("schema.yaml"))
    return prepare(folder / "table.parquet", schema=schema, cache=folder / "cache")


@pytest.fixture
def data(prepared: Path) -> Dataset:
    return open_prepared(prepared)


def stored(run: Path) -> dict[str, Any]:
    return read_json(run / "encoder.json", "")["label_scales"]  # type: ignore[no-any-return]


def as_before(data: Dataset, run: Path) -> None:
    """Make a run that has yet to begin one of a version without scales: it has its files, but no step."""
    with pytest.raises(Interrupted):
        train(tiny.config(steps=20, log_every=1, conflict_every=0), run, dataset=data, progress=Interrupting(1))
    content = json.loads((run / "encoder.json").read_text())
    del content["label_scales"]
    (run / "encoder.json").write_text(json.dumps({**content, "format": 1}))
    about = json.loads((run / "about.json").read_text())
    (run / "about.json").write_text(json.dumps({**about, "checksums": {}}))
    for path in (run / "checkpoints").iterdir():
        path.unlink()


@pytest.mark.parametrize("weighted", [False, True])
def test_the_scale_is_that_of_the_labels_as_the_loss_weighs_them(data: Dataset, weighted: bool) -> None:
    batch = next(data.train.batches(len(data.train)))
    assert batch.weights is not None
    known = ~batch.labels["age"].isnan()
    labels, weights = batch.labels["age"][known].double().numpy(), batch.weights[known].double().numpy()
    assert not known.all()
    weights = weights if weighted else np.ones_like(weights)
    mean = np.average(labels, weights=weights)
    sd = np.sqrt(np.average((labels - mean) ** 2, weights=weights))
    (scale,) = fit_label_scales(data.train, data.tasks, weighted=weighted).values()
    assert scale == pytest.approx((mean, sd), rel=1e-12)


def test_a_label_with_weights_of_its_own_goes_by_them(data: Dataset) -> None:
    minibatch = next(data.train.batches(4))
    labels = {"click": torch.zeros(4), "age": torch.tensor([1.0, 2.0, 3.0, 9.0])}
    weights = torch.tensor([[5.0, 5.0, 5.0, 5.0], [1.0, 1.0, 2.0, 0.0]])  # [K, B]

    class Part:
        def batches(self, size: int) -> Any:
            yield minibatch._replace(labels=labels, weights=weights)

    (scale,) = fit_label_scales(Part(), data.tasks, weighted=True).values()  # type: ignore[arg-type]
    assert [task.name for task in data.tasks] == ["click", "age"]
    assert scale == pytest.approx((2.25, np.sqrt((1.25**2 + 0.25**2 + 2 * 0.75**2) / 4)))


def test_streamed_in_pieces_of_any_size_it_is_the_same_to_the_bit(prepared: Path, data: Dataset) -> None:
    import pyarrow.parquet as pq

    pq.write_table(
        pq.read_table(prepared / "train-00000.parquet"), prepared.parent / "small.parquet", row_group_size=37
    )
    part = StreamPart(prepared.parent / "small.parquet", data.encoder, window=2)
    for weighted in (False, True):
        assert fit_label_scales(part, data.tasks, weighted=weighted) == fit_label_scales(
            data.train, data.tasks, weighted=weighted
        )


@pytest.mark.parametrize("values", [[3.5] * 5, [1e7 + 0.1] * 50, [float("nan")] * 3])
def test_labels_without_spread_keep_their_units(data: Dataset, values: list[float]) -> None:
    minibatch = next(data.train.batches(len(values)))

    class Part:
        def batches(self, size: int) -> Any:
            yield minibatch._replace(labels={"age": torch.tensor(values)}, weights=None)

    (scale,) = fit_label_scales(Part(), data.tasks, weighted=True).values()  # type: ignore[arg-type]
    assert scale.sd == 1.0


def test_units_of_a_label_change_nothing_but_the_units(data: Dataset, prepared: Path, tmp_path: Path) -> None:
    """The same ages in other units, a power of two and so without rounding, give the same run, bit for bit."""
    runs = {}
    for name, factor in {"days": 1.0, "blinks": 1024.0}.items():
        parts = {}
        for part in ("train", "validation", "test"):
            memory = getattr(data, part)
            labels = memory.examples.labels * torch.tensor([[1.0], [factor]])
            parts[part] = replace(memory, examples=memory.examples._replace(labels=labels))
        settings = tiny.config(steps=20, method="gdod")
        runs[name] = train(settings, tmp_path / name, dataset=replace(data, **parts))
    days, blinks = (load_run(tmp_path / name) for name in runs)
    for one, other in zip(days.model.parameters(), blinks.model.parameters(), strict=True):
        assert torch.equal(one, other)
    table = tiny.frame(50)
    np.testing.assert_array_equal(days.predict(table)["age"] * 1024, blinks.predict(table)["age"])
    first, second = (runs[name]["test"]["tasks"]["age"] for name in ("days", "blinks"))
    assert second["rmse"] == 1024 * first["rmse"]
    assert second["loss"] == first["loss"]
    spread = tiny.frame(1500)["age"].std() * 365  # type: ignore[operator]
    assert first["rmse"] < 2 * spread, "predictions are in days"


def test_the_drowned_task_learns(data: Dataset, tmp_path: Path) -> None:
    """Clicks are learned beside ages in days as well as alone; nobody is told that one loss drowns the other."""
    heard = Heard()
    settings = tiny.config(steps=120, optimizer={"lr": 0.01})
    result = train(settings, tmp_path / "run", dataset=data, progress=heard)
    assert not [text for text in heard.said if "drown" in text]
    alone = replace(data, tasks=data.tasks[:1])
    settings = tiny.config(steps=120, optimizer={"lr": 0.01})
    model_alone = train(settings, tmp_path / "alone", dataset=alone)
    assert result["test"]["tasks"]["click"]["auc"] > model_alone["test"]["tasks"]["click"]["auc"] - 0.02


def test_a_run_of_a_version_without_scales_goes_on_and_predicts_in_labels(data: Dataset, tmp_path: Path) -> None:
    as_before(data, tmp_path / "old")
    train(tiny.config(steps=20, log_every=1, conflict_every=0), tmp_path / "old", dataset=data, resume=True)
    run = load_run(tmp_path / "old")
    assert run.tasks == (Task("click"), Task("age", "regression"))
    assert not run.encoder.label_scales
    with torch.inference_mode():
        numbers = run.model(next(run.encoder.encode(tiny.frame(9)).batches(9)).batch)["age"]
    np.testing.assert_array_equal(run.predict(tiny.frame(9))["age"], numbers.double())
    # Steps in labels as they are: those of a loop that knows no scales.
    model = trained_by_hand(data, steps=20)
    for name, values in torch.load(tmp_path / "old/checkpoints/last.pt", weights_only=True)["model"].items():
        assert torch.equal(values, model.state_dict()[name])


def trained_by_hand(data: Dataset, steps: int) -> Any:
    from gdod.training.optimizers import Optimizers
    from gdod.training.run import model_options
    from gdod.training.seeds import seed_for

    config = tiny.config(steps=steps)
    model = build("shared-bottom", data.schema, data.tasks, seed=seed_for("model", 0), **model_options(config))
    torch.manual_seed(seed_for("torch", 0))
    optimizers = Optimizers(model, config.optimizer)
    epochs = (data.train.batches(config.batch, seed=seed_for("order", 0), epoch=epoch) for epoch in range(steps))
    for batch in islice(chain.from_iterable(epochs), steps):
        optimizers.zero_grad()
        losses, mask = per_example_losses(model(batch.batch), batch.labels, model.tasks, weights=batch.weights)
        gdod.backward(losses, gdod.Sum(), mask=mask)
        optimizers.step()
    return model


def test_interrupted_it_goes_on_in_the_same_units(data: Dataset, tmp_path: Path) -> None:
    settings = tiny.config(steps=30, log_every=1)
    with pytest.raises(Interrupted):
        train(settings, tmp_path / "cut", dataset=data, progress=Interrupting(11))
    train(settings, tmp_path / "cut", dataset=data, resume=True)
    train(settings, tmp_path / "whole", dataset=data)
    check_same(tmp_path / "cut", tmp_path / "whole")
    assert stored(tmp_path / "cut") == stored(tmp_path / "whole")


def learn(ranks: Ranks, prepared: str, out: str) -> object:
    config = tiny.config(steps=3, model={"name": "shared-bottom", "options": {"embedding": 4, "bottom": [16]}})
    return train(config, out, dataset=open_prepared(Path(prepared), stream=True), ranks=ranks)


def test_several_processes_learn_in_the_units_of_one(prepared: Path, data: Dataset, tmp_path: Path) -> None:
    results = together.together(2, tmp_path, learn, str(prepared), str(tmp_path / "two"))
    assert results[0] == results[1]
    learn(Ranks(), str(prepared), str(tmp_path / "one"))
    assert stored(tmp_path / "two") == stored(tmp_path / "one")


def test_an_earlier_version_refuses_a_run_in_these_units(data: Dataset, tmp_path: Path) -> None:
    """It reads formats 1 and 2, and would take the model's numbers for labels."""
    train(tiny.config(steps=1), tmp_path / "run", dataset=data)
    assert read_json(tmp_path / "run/encoder.json", "")["format"] == 3
    assert data.encoder.to_json()["format"] == 1, "prepared data is as it was"
    loaded = Encoder.load(tmp_path / "run")
    assert loaded.label_scales == fit_label_scales(data.train, data.tasks, weighted=True)


def test_the_loss_is_that_of_standardised_labels() -> None:
    task, numbers = Task("age", "regression", mean=40.0, sd=10.0), torch.tensor([30.0, 40.0, 55.0, float("nan")])
    losses, mask = per_example_losses({"age": torch.tensor([0.0, 1.0, 1.0, 5.0])}, {"age": numbers}, [task])
    assert losses["age"][:3].tolist() == [1.0, 1.0, 0.25]
    assert mask["age"].tolist() == [True, True, True, False]


def test_far_from_zero_nothing_is_lost() -> None:
    """A float32 label of 2 million days keeps its last digit, though the model's output is near 0."""
    task = Task("day", "regression", mean=2_000_000.3, sd=0.5)
    found = task.standardised(torch.tensor([2_000_000.25, 2_000_001.0]))
    assert found.tolist() == pytest.approx([-0.1, 1.4], rel=1e-6)
    assert task.in_units(found).tolist() == pytest.approx([2_000_000.25, 2_000_001.0], rel=1e-15)


def test_an_exported_model_gives_labels_in_their_units(data: Dataset) -> None:
    tasks = (Task("click"), Task("age", "regression", mean=14_600.0, sd=4_000.0))
    model = build("shared-bottom", data.schema, tasks).eval()
    batch = next(data.train.batches(6)).batch
    logits, exported = model(batch), export(model, batch).module()(*batch)
    torch.testing.assert_close(exported["age"], 14_600 + 4_000 * logits["age"])
    torch.testing.assert_close(exported["click"], logits["click"])


def test_scores_go_by_the_loss_that_is_trained() -> None:
    values = {"rmse": 365.0, "mae": 300.0, "loss": 0.25, "labelled": 5}
    metrics = {"tasks": {"age": values, "click": {"log_loss": 0.5, "auc": 0.7, "labelled": 5}}, "mean_auc": 0.7}
    assert validation_loss(metrics, {}) == 0.75
    assert monitored_score(metrics, "loss", {"age": 2.0}) == -1.0
    assert monitored_score(metrics, "age", {}) == -365.0
    del values["loss"]  # of a run without scales
    assert validation_loss(metrics, {}) == 365.0**2 + 0.5


@pytest.mark.parametrize(
    "task",
    [
        {"name": "a", "kind": "regression", "sd": 0.0},
        {"name": "a", "kind": "regression", "mean": float("inf")},
        {"name": "a", "kind": "binary", "mean": 1.0},
    ],
)
def test_scales_that_cannot_be_are_refused(task: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="task 'a': mean"):
        Task(**task)


def test_a_scale_that_was_changed_by_hand_is_refused(data: Dataset, tmp_path: Path) -> None:
    train(tiny.config(steps=1), tmp_path / "run", dataset=data)
    path = tmp_path / "run" / "encoder.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "label_scales": {"age": [0.0, 1e9]}}))
    with pytest.raises(InputError, match="damaged or was changed"):
        load_run(tmp_path / "run")
