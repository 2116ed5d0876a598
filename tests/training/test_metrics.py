"""Tests that metrics equal scikit-learn's, and say why where they are not defined."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn import metrics as sklearn

import gdod
from gdod.models import Task
from gdod.training import metrics

Examples = tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]


@st.composite
def examples(draw: st.DrawFn) -> Examples:
    """Draw labels (some missing), scores (few different ones, so that many tie) and weights (some zero)."""
    n = draw(st.integers(2, 60))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    labels = (random.random(n) < draw(st.sampled_from([0.05, 0.3, 0.5, 0.95]))).astype(float)
    labels[:2] = 0, 1
    labels[2:][random.random(n - 2) < draw(st.sampled_from([0, 0.4]))] = np.nan
    levels = draw(st.sampled_from([1, 2, 7, 10**9]))
    scores = random.integers(0, levels + 1, n) / levels
    weights = random.random(n) * 10.0 ** draw(st.sampled_from([-6, 0, 6]))
    weights[2:][random.random(n - 2) < 0.1] = 0
    return labels, scores, weights


@given(examples(), st.booleans())
def test_auc_and_log_loss_are_scikit_learns(data: Examples, weighted: bool) -> None:
    labels, scores, weights = data
    known = ~np.isnan(labels)
    ours = weights if weighted else None
    theirs = weights[known] if weighted else None
    expected = sklearn.roc_auc_score(labels[known], scores[known], sample_weight=theirs)
    assert metrics.auc(labels, scores, ours) == pytest.approx(expected, abs=1e-12, rel=0)
    expected = sklearn.log_loss(labels[known], scores[known], sample_weight=theirs, labels=[0, 1])
    assert metrics.log_loss(labels, scores, ours) == pytest.approx(expected, abs=1e-12, rel=1e-14)


@given(examples(), st.booleans())
def test_errors_are_scikit_learns(data: Examples, weighted: bool) -> None:
    labels, scores, weights = data
    known = ~np.isnan(labels)
    ours, theirs = (weights, weights[known]) if weighted else (None, None)
    labels = labels * 3.5
    expected = sklearn.root_mean_squared_error(labels[known], scores[known], sample_weight=theirs)
    assert metrics.rmse(labels, scores, ours) == pytest.approx(expected, abs=1e-12)
    expected = sklearn.mean_absolute_error(labels[known], scores[known], sample_weight=theirs)
    assert metrics.mae(labels, scores, ours) == pytest.approx(expected, abs=1e-12)


@given(st.integers(0, 2**32 - 1), st.booleans())
def test_several_classes_are_scikit_learns(seed: int, weighted: bool) -> None:
    random = np.random.default_rng(seed)
    probabilities = random.dirichlet(np.full(4, 0.3), 50)
    labels = random.integers(-1, 4, 50).astype(float)  # -1 is missing
    labels[7] = np.nan
    weights = random.random(50) if weighted else None
    known = labels >= 0
    theirs = weights[known] if weights is not None else None
    expected = sklearn.log_loss(labels[known], probabilities[known], sample_weight=theirs, labels=range(4))
    assert metrics.log_loss(labels, probabilities, weights) == pytest.approx(expected, abs=1e-12)
    expected = sklearn.accuracy_score(labels[known], probabilities[known].argmax(1), sample_weight=theirs)
    assert metrics.accuracy(labels, probabilities, weights) == pytest.approx(expected, abs=1e-12)


def test_a_million_scores_are_exact() -> None:
    random = np.random.default_rng(0)
    labels = (random.random(10**6) < 0.03).astype(np.float32)
    scores = np.round(random.random(10**6), 5).astype(np.float32)
    weights = random.random(10**6)
    expected = sklearn.roc_auc_score(labels, scores)
    assert metrics.auc(labels, scores) == pytest.approx(expected, abs=1e-12)
    expected = sklearn.roc_auc_score(labels, scores, sample_weight=weights)
    assert metrics.auc(labels, scores, weights) == pytest.approx(expected, abs=1e-12)
    expected = sklearn.log_loss(labels, scores.astype(float))
    assert metrics.log_loss(labels, scores) == pytest.approx(expected, abs=1e-12)


def test_certain_and_wrong_is_finite_as_in_scikit_learn() -> None:
    expected = sklearn.log_loss([0, 1, 1], [1.0, 0.0, 1.0])
    assert metrics.log_loss([0, 1, 1], [1.0, 0.0, 1.0]) == pytest.approx(expected, abs=1e-12)


def test_tensors_and_lists_give_the_same() -> None:
    labels, scores = [0.0, 1.0, float("nan"), 1.0], [0.2, 0.1, 0.5, 0.9]
    tensor = torch.tensor(scores, dtype=torch.float64, requires_grad=True)
    assert metrics.auc(labels, scores) == metrics.auc(torch.tensor(labels), tensor) == 0.5
    half = torch.tensor(scores).bfloat16()
    assert metrics.auc(torch.tensor(labels), half) == 0.5


@pytest.mark.parametrize(
    ("labels", "weights", "reason"),
    [
        ([0, 0, 0], None, "all 3 labels are 0"),
        ([1, np.nan, 1], None, "all 2 labels are 1"),
        ([0, 1, 1], [1.0, 0.0, 0.0], "all 1 labels are 0"),
        ([np.nan] * 3, None, "no example has a label"),
        ([], None, "no example has a label"),
        ([0, 1, 1], [0.0] * 3, "weight 0"),
        ([0, 0.5, 1], None, "between 0 and 1"),
    ],
)
def test_no_auc_comes_with_its_reason(labels: list[float], weights: list[float] | None, reason: str) -> None:
    scores = [0.1, 0.2, 0.3][: len(labels)]
    assert metrics.auc(labels, scores, weights) is None
    assert reason in str(metrics.evaluate_task(Task("click"), labels, scores, weights)["note"])


def test_one_class_still_has_a_log_loss() -> None:
    assert metrics.log_loss([0, 0], [0.25, 0.25]) == pytest.approx(-np.log(0.75))
    assert metrics.log_loss([0.5], [0.25]) == pytest.approx(-(np.log(0.25) + np.log(0.75)) / 2)


def test_predictions_that_are_not_finite_give_no_number() -> None:
    for value in (np.nan, np.inf):
        assert metrics.evaluate_task(Task("click"), [0, 1], [0.5, value]) == {
            "auc": None,
            "log_loss": None,
            "positives": 1,
            "labelled": 2,
            "note": "1 of 2 predictions are not finite",
        }


def test_all_tasks_at_once() -> None:
    tasks = [Task("click"), Task("buy"), Task("price", "regression"), Task("colour", "multiclass", 3)]
    labels: dict[str, metrics.Numbers] = {
        "click": [0, 1, 1],
        "buy": [0, 0, np.nan],
        "price": [1.0, 2.0, 4.0],
        "colour": [0, 2, 1],
    }
    predictions: dict[str, metrics.Numbers] = {
        "click": [0.1, 0.2, 0.05],
        "buy": [0.5, 0.5, 0.5],
        "price": [1.0, 2.0, 3.0],
        "colour": [[1, 0, 0], [0, 0, 1], [1, 0, 0]],
    }
    whole = metrics.evaluate(tasks, labels, predictions)
    by_task = whole["tasks"]
    assert whole["mean_auc"] == by_task["click"]["auc"] == 0.5
    assert whole["mean_auc_of"] == ["click"]
    buy = by_task["buy"]
    assert buy == {
        "auc": None,
        "log_loss": pytest.approx(np.log(2)),
        "positives": 0,
        "labelled": 2,
        "note": "no AUC: all 2 labels are 0",
    }
    assert by_task["price"] == {"rmse": pytest.approx(3**-0.5), "mae": pytest.approx(1 / 3), "labelled": 3}
    assert by_task["colour"]["accuracy"] == pytest.approx(2 / 3)


def test_mean_auc_without_any_is_none() -> None:
    assert metrics.evaluate([Task("click")], {"click": [1]}, {"click": [0.5]})["mean_auc"] is None


def test_calibration_recovers_the_rates() -> None:
    random = np.random.default_rng(0)
    probabilities = random.beta(1, 20, 20_000)
    labels = (random.random(20_000) < probabilities).astype(float)
    labels[:1000] = np.nan
    bins = metrics.calibration(labels, probabilities, 10)
    assert [part["count"] for part in bins] == [1900] * 10
    for part in bins:
        assert part["mean_observed"] == pytest.approx(part["mean_predicted"], abs=0.02)
    total = sum(part["mean_observed"] * part["count"] for part in bins)
    assert total == pytest.approx(np.nansum(labels))


def test_calibration_keeps_ties_together_and_leaves_empty_bins_out() -> None:
    labels, probabilities = [0, 1, 1, 0], [0.3, 0.3, 0.3, 0.9]
    expected = [
        {"mean_predicted": pytest.approx(0.3), "mean_observed": pytest.approx(2 / 3), "count": 3},
        {"mean_predicted": pytest.approx(0.9), "mean_observed": 0, "count": 1},
    ]
    assert metrics.calibration(labels, probabilities, 4, spread="uniform") == expected
    assert metrics.calibration(labels, probabilities, 4) == expected
    assert metrics.calibration([np.nan], [0.5]) == []


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: metrics.auc([0, 2], [0.1, 0.2]), "labels go from 0 to 2"),
        (lambda: metrics.log_loss([0, 1], [0.1, 1.2]), "use torch.sigmoid"),
        (lambda: metrics.auc([0, 1], [0.1]), r"expected \[2\]"),
        (lambda: metrics.auc([0, 1], [0.1, 0.2], [1, -1]), "weights have negative"),
        (lambda: metrics.log_loss([0, 3], [[0.5, 0.5]] * 2), "from 0 to 1"),
        (lambda: metrics.calibration([0, 1], [0.1, 0.2], 0), "bins=0"),
        (lambda: metrics.evaluate_task(Task("buy"), [0, 1], [0.1]), "task 'buy'"),
    ],
)
def test_wrong_input_is_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(gdod.InputError, match=message):
        call()


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_precision_recall_and_f1_are_scikit_learns(seed: int, weighted: bool) -> None:
    random = np.random.default_rng(seed)
    labels, scores = (random.random(300) < 0.2).astype(float), random.random(300).round(seed)  # with ties, or all tied
    labels[::7] = np.nan
    known = ~np.isnan(labels)
    weights = random.uniform(0, 2, 300) if weighted else None
    theirs = None if weights is None else weights[known]
    expected = sklearn.average_precision_score(labels[known], scores[known], sample_weight=theirs)
    assert metrics.pr_auc(labels, scores, weights) == pytest.approx(expected, abs=1e-12)
    for threshold in (0.3, 0.5):
        expected = sklearn.f1_score(labels[known], scores[known] >= threshold, sample_weight=theirs)
        assert metrics.f1(labels, scores, threshold, weights) == pytest.approx(expected, abs=1e-12)


def test_precision_and_recall_without_positives() -> None:
    assert metrics.pr_auc([0, 0], [0.1, 0.9]) is None
    assert metrics.f1([0, 0], [0.1, 0.9]) == 0
    assert metrics.f1([0, 0], [0.1, 0.2]) is None
    assert metrics.f1([float("nan")], [0.1]) is None


@pytest.mark.parametrize("seed", range(3))
def test_group_auc_is_the_mean_of_the_groups(seed: int) -> None:
    random = np.random.default_rng(seed)
    labels, scores = (random.random(400) < 0.3).astype(float), random.random(400).round(1)
    labels[::9] = np.nan
    groups = random.integers(0, 60, 400)
    total, rows = 0.0, 0
    for group in range(60):
        mine = (groups == group) & ~np.isnan(labels)
        if 0 < labels[mine].sum() < mine.sum():
            total += sklearn.roc_auc_score(labels[mine], scores[mine]) * mine.sum()
            rows += int(mine.sum())
    assert 0 < rows < 400
    assert metrics.group_auc(labels, scores, groups) == pytest.approx(total / rows, abs=1e-12)
    assert metrics.group_auc(labels, scores, np.array([f"user{one}" for one in groups])) == pytest.approx(total / rows)
    # What is the same for all rows of a group does not help to tell them apart.
    assert metrics.group_auc(labels, groups.astype(float), groups) == pytest.approx(0.5)
    assert metrics.group_auc(labels, scores, np.zeros(400)) == pytest.approx(metrics.auc(labels, scores))
    assert metrics.group_auc([0, 1], [0.5, 0.6], np.array([1, 2])) is None


@pytest.mark.parametrize("weighted", [False, True])
def test_auc_of_classes_is_scikit_learns(weighted: bool) -> None:
    random = np.random.default_rng(0)
    labels, scores = random.integers(0, 3, 200).astype(float), random.dirichlet([1, 2, 3], 200).round(2)
    scores /= scores.sum(1, keepdims=True)
    weights = random.uniform(0.5, 2, 200) if weighted else None
    each = [sklearn.roc_auc_score(labels == one, scores[:, one], sample_weight=weights) for one in range(3)]
    assert metrics.auc_one_vs_rest(labels, scores, weights) == pytest.approx(np.mean(each), abs=1e-12)
    if weights is None:
        theirs = sklearn.roc_auc_score(labels, scores, multi_class="ovr")
        assert metrics.auc_one_vs_rest(labels, scores) == pytest.approx(theirs, abs=1e-12)
    few = labels < 2  # a class that does not occur is left out
    each = [sklearn.roc_auc_score(labels[few] == one, scores[few, one]) for one in range(2)]
    assert metrics.auc_one_vs_rest(labels[few], scores[few]) == pytest.approx(np.mean(each), abs=1e-12)
    assert metrics.auc_one_vs_rest([0, 0], [[0.5, 0.5], [0.1, 0.9]]) is None
