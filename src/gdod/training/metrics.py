"""Metrics of predictions: AUC of several kinds, log loss, F1, RMSE, MAE, accuracy and calibration.

AUC and log loss equal scikit-learn's `roc_auc_score` and `log_loss` to the last digits; everything is computed in
float64. A metric that is not defined is None, and `evaluate_task` says why under "note".
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypedDict

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from gdod._checks import check_choice, check_positive
from gdod.errors import InputError
from gdod.schema import Task

Numbers = torch.Tensor | ArrayLike
Floats = NDArray[np.float64]

_EPSILON = float(np.finfo(np.float64).eps)  # how near to 0 or 1 a probability counts, as in scikit-learn


class Bin(TypedDict):
    """One point of a calibration plot: examples with similar predictions."""

    mean_predicted: float
    mean_observed: float
    count: int


def auc(labels: Numbers, scores: Numbers, weights: Numbers | None = None) -> float | None:
    """Return the chance that a positive example scores above a negative one; ties count half.

    Args:
        labels: [n] 0 or 1; nan where missing, which leaves the example out.
        scores: [n] any numbers; only their order matters.
        weights: [n] how much an example counts, at least 0.

    Returns:
        The AUC, or None if it is not defined; `evaluate_task` says why.
    """
    return _auc(*_known(labels, scores, weights))


def log_loss(labels: Numbers, probabilities: Numbers, weights: Numbers | None = None) -> float | None:
    """Return the mean negative log-likelihood; None without a label or with a probability that is not finite.

    Args:
        labels: [n] 0, 1 or a probability; the class from 0 on if there are several. Missing: nan, or a negative class.
        probabilities: [n] of class 1, or [n, C] of all classes.
        weights: [n] how much an example counts, at least 0.
    """
    return _log_loss(*_known(labels, probabilities, weights))


def rmse(labels: Numbers, predictions: Numbers, weights: Numbers | None = None) -> float | None:
    """Return the root of the mean squared error; None without a label or with a prediction that is not finite."""
    label, prediction, weight = _known(labels, predictions, weights)
    if _gap(label, prediction, weight):
        return None
    return float(np.sqrt(_mean((label - prediction) ** 2, weight)))


def mae(labels: Numbers, predictions: Numbers, weights: Numbers | None = None) -> float | None:
    """Return the mean absolute error; None without a label or with a prediction that is not finite."""
    label, prediction, weight = _known(labels, predictions, weights)
    if _gap(label, prediction, weight):
        return None
    return _mean(np.abs(label - prediction), weight)


def accuracy(labels: Numbers, probabilities: Numbers, weights: Numbers | None = None) -> float | None:
    """Return the share of examples whose most probable class, of [n, C], is the right one; None as for `log_loss`."""
    label, probability, weight = _known(labels, probabilities, weights)
    if probability.ndim != 2:
        raise InputError(f"probabilities have shape {list(probability.shape)}; expected [n, classes]")
    if _gap(label, probability, weight):
        return None
    return _mean((probability.argmax(1) == label).astype(np.float64), weight)


def pr_auc(labels: Numbers, scores: Numbers, weights: Numbers | None = None) -> float | None:
    """Return the area below precision against recall, as average precision; None without a positive label.

    Arguments as for `auc`. It equals scikit-learn's `average_precision_score`.
    """
    label, score, weight = _known(labels, scores, weights)
    if _auc_gap(label, score, weight):
        return None
    weight = np.ones(len(label)) if weight is None else weight
    order = np.argsort(-score, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(score[order])), len(score) - 1)  # last example of each tie
    positive = np.cumsum((label * weight)[order])[ends]
    every = np.cumsum(weight[order])[ends]
    precision = np.divide(positive, every, out=np.zeros_like(every), where=every > 0)
    return float((np.diff(positive, prepend=0) * precision).sum() / positive[-1])


def f1(labels: Numbers, probabilities: Numbers, threshold: float = 0.5, weights: Numbers | None = None) -> float | None:
    """Return the harmonic mean of precision and recall of "at least ``threshold``"; None as for `log_loss`.

    It is None as well where nothing is positive, neither a label nor a prediction.
    """
    label, probability, weight = _known(labels, probabilities, weights)
    if _gap(label, probability, weight):
        return None
    weight = np.ones(len(label)) if weight is None else weight
    found = probability >= threshold
    both = float((weight * found * label).sum())
    either = float((weight * found).sum() + (weight * label).sum())
    return 2 * both / either if either else None


def group_auc(labels: Numbers, scores: Numbers, groups: NDArray[np.generic]) -> float | None:
    """Return the mean of the AUC within each group, such as a user, weighted by the group's examples (GAUC).

    Groups whose labels are all the same have no AUC and are left out; None if all are.

    Args:
        labels: [n] 0 or 1; nan where missing, which leaves the example out.
        scores: [n] any numbers; only their order within a group matters.
        groups: [n] the group of each example: numbers or text.
    """
    label, score, _ = _known(labels, scores, None)
    if _gap(label, score, None):
        return None
    _check_labels(label)
    group = np.unique(groups[~np.isnan(_array(labels))], return_inverse=True)[1]
    order = np.lexsort((score, group))
    label, score, group = label[order], score[order], group[order]
    starts = np.flatnonzero(np.diff(group, prepend=-1))  # the first example of each group
    sizes = np.diff(np.append(starts, len(group)))
    # Within a group, equal scores share the mean of their ranks.
    tie = np.flatnonzero((np.diff(score, prepend=np.nan) != 0) | (np.diff(group, prepend=-1) != 0))
    lengths = np.diff(np.append(tie, len(score)))
    ranks = np.repeat(tie + (lengths + 1) / 2, lengths) - np.repeat(starts, sizes)
    positives = np.add.reduceat(label, starts)
    negatives = sizes - positives
    pairs = np.add.reduceat(label * ranks, starts) - positives * (positives + 1) / 2
    told = (positives > 0) & (negatives > 0)
    if not told.any():
        return None
    return float(np.average(pairs[told] / (positives * negatives)[told], weights=sizes[told]))


def auc_one_vs_rest(labels: Numbers, probabilities: Numbers, weights: Numbers | None = None) -> float | None:
    """Return the mean over classes of the AUC of telling a class from all others, by its probability.

    It equals scikit-learn's `roc_auc_score(..., multi_class="ovr")`; classes that no example has are left out, and it
    is None if fewer than two are there.

    Args:
        labels: [n] the class, from 0 on; missing: nan or a negative class.
        probabilities: [n, C] of all classes.
        weights: [n] how much an example counts, at least 0.
    """
    label, probability, weight = _known(labels, probabilities, weights)
    if probability.ndim != 2:
        raise InputError(f"probabilities have shape {list(probability.shape)}; expected [n, classes]")
    if _gap(label, probability, weight):
        return None
    each = [_auc((label == one).astype(np.float64), scores, weight) for one, scores in enumerate(probability.T)]
    known = [value for value in each if value is not None]
    return sum(known) / len(known) if len(known) > 1 else None


def more_metrics(
    task: Task,
    labels: Numbers,
    predictions: Numbers,
    weights: Numbers | None = None,
    *,
    threshold: float = 0.5,
    groups: NDArray[np.generic] | None = None,
) -> dict[str, float | None]:
    """Return the metrics of a task that `evaluate_task` leaves out, since training does not go by them."""
    if task.kind == "multiclass":
        return {"auc_one_vs_rest": auc_one_vs_rest(labels, predictions, weights)}
    if task.kind == "regression":
        return {}
    metrics = {"pr_auc": pr_auc(labels, predictions, weights), "f1": f1(labels, predictions, threshold, weights)}
    return metrics if groups is None else {**metrics, "group_auc": group_auc(labels, predictions, groups)}


def calibration(
    labels: Numbers, probabilities: Numbers, bins: int = 10, *, weights: Numbers | None = None, spread: str = "quantile"
) -> list[Bin]:
    """Return predicted and observed rates in bins, from low to high predictions; no bins without labels.

    Args:
        bins: the number of bins, at most.
        spread: "quantile" puts as many examples in each bin, which suits rare events; "uniform" cuts
            [0, 1] into equal pieces. Equal predictions always share a bin, and empty bins are left out.
    """
    check_positive("bins", bins)
    check_choice("spread", spread, ("quantile", "uniform"))
    label, probability, weight = _known(labels, probabilities, weights)
    if _gap(label, probability, weight):
        return []
    _check_probabilities(probability)
    order = np.argsort(probability, kind="stable")
    label, probability = label[order], probability[order]
    weight = np.ones(len(label)) if weight is None else weight[order]
    parts = np.arange(1, bins)
    cuts = probability[parts * len(label) // bins] if spread == "quantile" else parts / bins
    edges = np.unique([0, *np.searchsorted(probability, cuts), len(label)])
    return [
        Bin(
            mean_predicted=_mean(probability[start:end], weight[start:end]),
            mean_observed=_mean(label[start:end], weight[start:end]),
            count=end - start,
        )
        for start, end in pairwise(edges.tolist())
        if weight[start:end].sum() > 0
    ]


def evaluate(
    tasks: Iterable[Task],
    labels: Mapping[str, Numbers],
    predictions: Mapping[str, Numbers],
    weights: Numbers | None = None,
) -> dict[str, Any]:
    """Return the metrics of all tasks, as `result.json` and `metrics.jsonl` hold them.

    Args:
        labels: by task name, [n], nan where missing.
        predictions: by task name: probabilities [n] of a binary task, numbers [n] of a regression,
            probabilities [n, C] of several classes.
        weights: [n], for all tasks, or [K, n], in their order.

    Returns:
        {"tasks": {name: {"auc": ..., "log_loss": ..., "positives": ..., "labelled": ...}}, "mean_auc": ...}.
        A task with a metric that is not defined has the reason under "note". The "loss" of a regression is its squared
        error in deviations of the training labels, as it is trained. The mean is over the binary
        tasks that have an AUC, None if there is none; "mean_auc_of" names them if some are left out.
    """
    tasks = tuple(tasks)
    every = weights_by_task(tasks, weights)
    by_task = {
        task.name: evaluate_task(task, labels[task.name], predictions[task.name], every[task.name]) for task in tasks
    }
    aucs = {name: value for name, metrics in by_task.items() if isinstance(value := metrics.get("auc"), float)}
    whole: dict[str, Any] = {"tasks": by_task, "mean_auc": sum(aucs.values()) / len(aucs) if aucs else None}
    if 0 < len(aucs) < sum(task.kind == "binary" for task in tasks):
        whole["mean_auc_of"] = list(aucs)
    return whole


def weights_by_task(tasks: Sequence[Task], weights: Numbers | None) -> dict[str, Numbers | None]:
    """Return the weights of each task from those of all, [n] or None, or from one row for each task, [K, n]."""
    rows = None if weights is None else _array(weights)
    own = [weights] * len(tasks) if rows is None or rows.ndim == 1 else list(rows)
    return {task.name: weight for task, weight in zip(tasks, own, strict=True)}


def evaluate_task(
    task: Task, labels: Numbers, predictions: Numbers, weights: Numbers | None = None
) -> dict[str, float | int | str | None]:
    """Return the metrics of one task, and the number of labels they come from."""
    try:
        label, score, weight = _known(labels, predictions, weights)
    except InputError as error:
        raise InputError(f"task {task.name!r}: {error}") from error
    metrics: dict[str, float | int | str | None]
    gap = _gap(label, score, weight)
    if task.kind == "binary":
        gap = _auc_gap(label, score, weight)
        metrics = {"auc": _auc(label, score, weight), "log_loss": _log_loss(label, score, weight)}
        metrics["positives"] = int((label == 1).sum())
    elif task.kind == "regression":
        metrics = {"rmse": rmse(label, score, weight), "mae": mae(label, score, weight)}
        if task.is_standardised and isinstance(apart := metrics["rmse"], float):
            metrics["loss"] = (apart / task.sd) ** 2
    else:
        metrics = {"accuracy": accuracy(label, score, weight), "log_loss": _log_loss(label, score, weight)}
    metrics["labelled"] = len(label)
    return {**metrics, "note": gap} if gap else metrics


def _known(labels: Numbers, scores: Numbers, weights: Numbers | None) -> tuple[Floats, Floats, Floats | None]:
    """Return labels, scores and weights of the examples that have a label, as float64."""
    label, score = _array(labels), _array(scores)
    if label.ndim != 1:
        raise InputError(f"labels have shape {list(label.shape)}; expected [n]")
    if score.ndim not in (1, 2) or len(score) != len(label):
        raise InputError(f"scores have shape {list(score.shape)}; expected [{len(label)}] or [{len(label)}, classes]")
    known = ~np.isnan(label)
    if score.ndim == 2:
        known &= label >= 0
    weight = None if weights is None else _array(weights)
    if weight is not None:
        if weight.shape != label.shape:
            raise InputError(f"weights have shape {list(weight.shape)}; expected [{len(label)}]")
        if not np.isfinite(weight).all() or (weight < 0).any():
            raise InputError("weights have negative numbers or nan; expected numbers of at least 0")
    if known.all():  # no copies in the usual case
        return label, score, weight
    return label[known], score[known], None if weight is None else weight[known]


def _array(values: Numbers) -> Floats:
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu().double().numpy()
    return np.asarray(values, dtype=np.float64)


def _gap(label: Floats, score: Floats, weight: Floats | None) -> str | None:
    """Return the reason why no metric at all is defined for these examples; None if some are."""
    if not len(label):
        return "no example has a label"
    if weight is not None and not weight.sum() > 0:
        return "all labelled examples have weight 0"
    if not np.isfinite(score).all():
        bad = int((~np.isfinite(score)).reshape(len(score), -1).any(1).sum())
        return f"{bad} of {len(score)} predictions are not finite"
    return None


def _auc_gap(label: Floats, score: Floats, weight: Floats | None) -> str | None:
    if score.ndim != 1:
        raise InputError(f"scores have shape {list(score.shape)}; expected [n]")
    _check_labels(label)
    if gap := _gap(label, score, weight):
        return gap
    counts = label if weight is None else label[weight > 0]
    positives = int((counts == 1).sum())
    if positives + int((counts == 0).sum()) < len(counts):
        return "no AUC: some labels lie between 0 and 1"
    if positives in (0, len(counts)):
        return f"no AUC: all {len(counts)} labels are {1 if positives else 0}"
    return None


def _auc(label: Floats, score: Floats, weight: Floats | None) -> float | None:
    if _auc_gap(label, score, weight):
        return None
    order = np.argsort(score)  # order within ties does not matter
    score, label = score[order], label[order]
    ends = np.append(np.flatnonzero(score[1:] != score[:-1]), len(score) - 1)  # last example of each tie
    if weight is None:
        # Whole numbers: exact.
        positive = np.diff(np.cumsum(label.astype(np.int64))[ends], prepend=0)  # in each tie
        total = np.diff(ends, prepend=-1)
        negative = total - positive
        below = np.cumsum(negative) - negative  # negatives that score less
        doubled = int((positive * (2 * below + negative)).sum())
        return doubled / (2 * int(positive.sum()) * int(negative.sum()))
    starts = np.append(0, ends[:-1] + 1)
    weight = weight[order]
    positives: Floats = np.add.reduceat(weight * label, starts)
    negatives: Floats = np.add.reduceat(weight * (1 - label), starts)
    lower = np.cumsum(negatives) - negatives
    pairs = float((positives * (lower + negatives / 2)).sum())
    return pairs / (float(positives.sum()) * float(negatives.sum()))


def _log_loss(label: Floats, probability: Floats, weight: Floats | None) -> float | None:
    if _gap(label, probability, weight):
        return None
    _check_probabilities(probability)
    # Clipped on both sides for each class: what scikit-learn does.
    if probability.ndim == 2:
        _check_classes(label, probability.shape[1])
        chosen = np.take_along_axis(probability, label.astype(np.int64)[:, None], 1)[:, 0]  # [n]
        return _mean(-np.log(chosen.clip(_EPSILON, 1 - _EPSILON)), weight)
    _check_labels(label)
    yes = np.log(probability.clip(_EPSILON, 1 - _EPSILON))
    no = np.log((1 - probability).clip(_EPSILON, 1 - _EPSILON))
    return _mean(-(label * yes + (1 - label) * no), weight)


def _mean(values: Floats, weight: Floats | None) -> float:
    return float(values.mean() if weight is None else np.average(values, weights=weight))


def _check_labels(label: Floats) -> None:
    if len(label) and (label.min() < 0 or label.max() > 1):
        raise InputError(f"labels go from {label.min():g} to {label.max():g}; expected 0 and 1, or nan where missing")


def _check_classes(label: Floats, classes: int) -> None:
    if label.max() >= classes or (label != np.floor(label)).any():
        raise InputError(
            f"labels go from {label.min():g} to {label.max():g}; expected whole numbers from 0 to {classes - 1}"
        )


def _check_probabilities(probability: Floats) -> None:
    if probability.min() < 0 or probability.max() > 1:
        raise InputError(
            f"probabilities go from {probability.min():g} to {probability.max():g}; expected 0 to 1 "
            "(a model gives logits: use torch.sigmoid or torch.softmax)"
        )
