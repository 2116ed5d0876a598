"""Positive examples that count more, and weights of single labels, in the losses of training."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from tests.data.clicks_table import clicks, schema
from tests.training import tiny

from gdod import InputError
from gdod.data import MemoryPart, load
from gdod.data.tables.table_schema import TableSchema
from gdod.models import build, per_example_losses
from gdod.training import load_run, train
from gdod.training.minibatch_losses import minibatch_losses
from gdod.training.positive_weights import with_positive_weights

KINDS: dict[str, Any] = {"cost": {"type": "weight", "of": "buy"}, "w": "weight"}


def weighted(rows: int = 400) -> pl.DataFrame:
    row = pl.int_range(pl.len())
    return clicks(rows).with_columns(w=1.0 + row % 2, cost=pl.when(row % 7 != 0).then(row % 5))


def test_positives_count_so_often() -> None:
    losses = {"click": torch.tensor([1.0, 2, 3]), "buy": torch.tensor([4.0, 5, 6])}
    labels = {"click": torch.tensor([1, 0, torch.nan]), "buy": torch.tensor([1.0, 1, 0])}
    changed = with_positive_weights(losses, labels, {"click": 10})
    assert changed["click"].tolist() == [10, 2, 3]
    assert changed["buy"] is losses["buy"]


def test_a_factor_for_positives_trains_as_a_weight_column_does(tmp_path: Path) -> None:
    dataset = tiny.dataset()
    one = tiny.config(steps=12, positive_weights={"click": 3.0})
    train(one, tmp_path / "one", dataset=dataset)
    assert isinstance(dataset.train, MemoryPart)
    labels = dataset.train.examples.labels  # [K, n]
    weights = dataset.train.examples.weights
    assert weights is not None
    matrix = torch.stack([torch.where(labels[0] == 1, 3.0, 1.0), torch.ones_like(labels[1])]) * weights
    part = MemoryPart(dataset.train.examples._replace(weights=matrix), dataset.train.tasks)
    train(tiny.config(steps=12), tmp_path / "other", dataset=replace(dataset, train=part))
    frame = tiny.frame(100, seed=5)
    first, second = (load_run(tmp_path / name).predict(frame) for name in ("one", "other"))
    torch.testing.assert_close(first.to_torch(), second.to_torch(), rtol=1e-5, atol=1e-6)
    train(tiny.config(steps=12), tmp_path / "plain", dataset=dataset)
    plain = load_run(tmp_path / "plain").predict(frame)
    assert float((first["click"] - plain["click"]).mean()) > 0.02  # type: ignore[arg-type]


def test_a_weight_of_one_label_reaches_no_other(tmp_path: Path) -> None:
    table, described = weighted(), schema(**KINDS)
    assert described.weight == "w"
    assert described.label_weights == {"buy": "cost"}
    data = load(table, schema=described, cache=tmp_path)
    same = load(table, schema=schema(w="weight", cost="ignore"), cache=tmp_path)
    model = build("shared-bottom", data.schema, data.tasks, seed=0)
    for one, other in zip(data.train.batches(50, seed=1), same.train.batches(50, seed=1), strict=True):
        assert one.weights is not None
        assert other.weights is not None
        assert one.weights.shape == (2, one.batch.size)
        assert torch.equal(one.weights[0], other.weights)  # click
        (mine, _), (theirs, _) = (minibatch_losses(model, each, torch.device("cpu")) for each in (one, other))
        torch.testing.assert_close(mine["click"], theirs["click"])
        torch.testing.assert_close(mine["buy"], theirs["buy"] * one.weights[1] / one.weights[0])
        checked = dict(zip(("click", "buy"), one.weights, strict=True))
        expected = per_example_losses(model(one.batch), one.labels, model.tasks, weights=checked)
        for name in mine:
            torch.testing.assert_close(mine[name][expected.mask[name]], expected.losses[name][expected.mask[name]])
    train_part = data.encoder.encode(table).examples
    assert train_part.weights is not None
    known = ~train_part.labels[1].isnan()
    every = train_part.weights[1] / train_part.weights[0]
    assert abs(float(every[known].mean()) - 1) < 0.1  # mean 1 where there is a label


def test_the_weight_of_a_label_counts_in_training_and_weighted_metrics(tmp_path: Path) -> None:
    described = schema(**KINDS)
    data = load(weighted(), schema=described, cache=tmp_path / "cache")
    plain = load(weighted(), schema=schema(w="weight", cost="ignore"), cache=tmp_path / "cache")
    small = {"weighted_metrics": True, "steps": 5}
    result = train(tiny.config(**small), tmp_path / "run", dataset=data)
    other = train(tiny.config(**small), tmp_path / "plain", dataset=plain)
    assert result["test"]["tasks"]["buy"]["log_loss"] != other["test"]["tasks"]["buy"]["log_loss"]
    run = load_run(tmp_path / "run")
    assert run.encoder.label_weights == data.encoder.label_weights != {}
    table = weighted(200)
    metrics = run.evaluate(table)
    whole = run.evaluate(table.with_columns(cost=pl.lit(1)))
    assert metrics["tasks"]["click"] == whole["tasks"]["click"]
    assert metrics["tasks"]["buy"]["log_loss"] != whole["tasks"]["buy"]["log_loss"]


def test_schemas_with_weights_that_fit_nothing_are_refused(tmp_path: Path) -> None:
    for kinds, problem in (
        ({"w": "weight", "cost": "weight"}, "more than one weight column: w, cost; a weight of one label names it"),
        ({"cost": {"type": "weight", "of": "bye"}}, "`of` names 'bye', which is no label .did you mean 'buy'"),
        ({"w": KINDS["cost"], "cost": KINDS["cost"]}, "more than one weight column of 'buy'"),
    ):
        with pytest.raises(InputError, match=problem):
            schema(**kinds)
    nothing = weighted().with_columns(cost=pl.lit(0))
    with pytest.raises(InputError, match="the weights 'cost' are all 0 or missing in the training rows"):
        load(nothing, schema=schema(**KINDS), cache=tmp_path)
    # As earlier versions wrote it, so that prepared data is found again.
    assert TableSchema(columns={"a": "numeric", "w": "weight"}).to_json()["columns"]["w"] == {"type": "weight"}
