"""Scores on rows, and on rows drawn again: against the metrics of training, and against drawing rows for real."""

from pathlib import Path

import numpy as np
import pytest
import torch

from gdod import InputError
from gdod.experiments.front.rows import PartRows, Scored, draw_seeds, over_seeds
from gdod.experiments.predictions import read_predictions, row_values
from gdod.schema import Task
from gdod.statistics import paired_difference
from gdod.training.evaluation import Predictions
from gdod.training.metrics import accuracy, auc

TASKS = (Task("click", "binary"), Task("price", "regression"), Task("colour", "multiclass", 3))


def made(rows: int, seed: int = 0) -> tuple[PartRows, Predictions]:
    """Labels, some of them missing, and predictions that know something; many of those of clicks are equal."""
    random = np.random.default_rng(seed)
    click = (random.random(rows) < 0.2).astype(np.float32)
    price = random.normal(1000, 3, rows).astype(np.float32)
    colour = random.integers(0, 3, rows).astype(np.float32)
    probability = np.clip(np.round(0.3 + 0.2 * click + random.normal(0, 0.2, rows), 1), 0.05, 0.95)
    colours = random.random((rows, 3)) + np.eye(3)[colour.astype(int)] * 0.5
    predictions = {
        "click": probability,
        "price": price + random.normal(0, 2, rows),
        "colour": colours / colours.sum(1)[:, None],
    }
    click[:7], price[3:9], colour[5:12], colour[12:40] = np.nan, np.nan, np.nan, -1
    labels = {"click": click, "price": price, "colour": colour}
    weights = random.uniform(0.5, 2, rows).astype(np.float32)
    rows_ = PartRows(TASKS, labels, weights)
    return rows_, Predictions(
        TASKS,
        {name: torch.from_numpy(values) for name, values in labels.items()},
        {name: torch.from_numpy(values) for name, values in predictions.items()},
        torch.from_numpy(weights),
    )


@pytest.mark.parametrize("weighted", [False, True])
def test_scores_are_the_metrics_of_training(weighted: bool) -> None:
    rows, predictions = made(400)
    weights = rows.weights if weighted else None
    rows = PartRows(TASKS, rows.labels, weights)
    scored = rows.score(row_values(predictions))
    labels, predicted = predictions.labels, predictions.predictions
    known = ~np.isnan(rows.labels["price"])
    error = (rows.labels["price"] - predicted["price"].numpy())[known] ** 2
    own = None if weights is None else weights[known]
    middle = np.average(rows.labels["price"][known].astype(float), weights=own)
    spread = np.average((rows.labels["price"][known].astype(float) - middle) ** 2, weights=own)
    expected = [
        auc(labels["click"], predicted["click"], weights),
        1 - np.average(error, weights=own) / spread,
        accuracy(labels["colour"], predicted["colour"], weights),
    ]
    np.testing.assert_allclose(scored.scores, np.array(expected, dtype=float), atol=1e-5)
    assert scored.drawn.shape == (0, 3)


def test_the_order_of_probabilities_next_to_one_is_kept() -> None:
    near = torch.tensor([1 - 1e-9, 1 - 2e-9, 1 - 3e-9, 1.0], dtype=torch.float64)
    labels = torch.tensor([1.0, 0.0, 0.0, 1.0])
    values = row_values(Predictions(TASKS[:1], {"click": labels}, {"click": near}, None))
    assert PartRows(TASKS[:1], {"click": labels.numpy()}).score(values).scores.tolist() == [1.0]


def test_drawn_scores_spread_as_those_of_rows_that_are_drawn_for_real() -> None:
    rows, predictions = made(600)
    values = row_values(predictions)
    scored = rows.draw(np.random.default_rng(1), 500).score(values)
    random, real = np.random.default_rng(2), []
    for _ in range(500):
        at = random.integers(0, len(rows), len(rows))
        assert rows.weights is not None
        again = PartRows(TASKS, {name: labels[at] for name, labels in rows.labels.items()}, rows.weights[at])
        real.append(again.score({name: column[at] for name, column in values.items()}).scores)
    np.testing.assert_allclose(scored.drawn.mean(0), np.mean(real, 0), atol=0.006)
    np.testing.assert_allclose(scored.drawn.std(0), np.std(real, 0), rtol=0.15)


def test_a_draw_is_scored_as_its_rows_are() -> None:
    """One draw, and the same rows for real: exact but for AUC, of which it is the first-order expansion."""
    rows, predictions = made(2000)
    values = row_values(predictions)
    drawn = rows.draw(np.random.default_rng(3), 3)
    assert drawn.counts is not None
    assert rows.weights is not None
    scored = drawn.score(values)
    for counts, found in zip(drawn.counts, scored.drawn, strict=True):
        at = np.repeat(np.arange(len(rows)), counts)
        assert len(at) == len(rows)
        again = PartRows(TASKS, {name: labels[at] for name, labels in rows.labels.items()}, rows.weights[at])
        exact = again.score({name: column[at] for name, column in values.items()}).scores
        np.testing.assert_allclose(found[1:], exact[1:], rtol=1e-6)
        assert found[0] == pytest.approx(exact[0], abs=1e-3)


def test_a_draw_without_positives_changes_nothing() -> None:
    labels = np.array([1, 0, 0, 0], dtype=np.float32)
    counts = np.array([[0, 2, 1, 1], [1, 1, 1, 1]], dtype=np.uint8)
    scored = PartRows(TASKS[:1], {"click": labels}, counts=counts).score({"click": np.array([2.0, 3.0, 1.0, 0.0])})
    assert np.isfinite(scored.drawn).all()
    assert scored.drawn[1, 0] == pytest.approx(2 / 3)


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_intervals_over_few_seeds_are_those_of_students_t(seeds: int) -> None:
    random = np.random.default_rng(4)
    scores = random.normal(size=seeds)
    draws = draw_seeds(random, 100_000, seeds)
    runs = [Scored(np.array([one]), np.full((len(draws), 1), one)) for one in scores]
    # The rows do not vary here; of runs that differ, their mean is what is left.
    drawn = over_seeds(runs, draws).drawn[:, 0]
    expected = paired_difference(dict(enumerate(scores)), dict.fromkeys(range(seeds), 0.0))
    assert expected.low is not None
    assert expected.high is not None
    np.testing.assert_allclose(np.quantile(drawn, (0.025, 0.975)), (expected.low, expected.high), rtol=0.05, atol=0.05)


def test_one_seed_leaves_the_rows_alone_to_vary() -> None:
    rows, predictions = made(100)
    scored = rows.draw(np.random.default_rng(5), 20).score(row_values(predictions))
    same = over_seeds([scored], draw_seeds(np.random.default_rng(6), 20, 1))
    np.testing.assert_allclose(same.drawn, scored.drawn)


def test_chance_is_what_knowing_nothing_scores() -> None:
    rows, _ = made(50)
    assert rows.chance().tolist() == [0.5, 0.0, pytest.approx(1 / 3)]


def test_kept_predictions_that_are_packed_are_refused(tmp_path: Path) -> None:
    """A few kilobytes can be packed so that they become gigabytes."""
    tasks = (Task("click", "binary"),)
    columns = {"test/click": np.zeros(1000, np.float32)}
    np.savez(tmp_path / "predictions.npz", allow_pickle=False, **columns)
    assert len(read_predictions(tmp_path, "test", tasks, 1000)["click"]) == 1000
    np.savez_compressed(tmp_path / "predictions.npz", allow_pickle=False, **columns)
    with pytest.raises(InputError, match=r"predictions\.npz cannot be read \(its columns are packed"):
        read_predictions(tmp_path, "test", tasks, 1000)
    (tmp_path / "predictions.npz").write_bytes(b"PK")
    with pytest.raises(InputError, match=r"predictions\.npz cannot be read"):
        read_predictions(tmp_path, "test", tasks, 1000)
