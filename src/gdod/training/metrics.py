"""How good predictions are: AUC, log loss, errors, calibration. Numbers in, numbers out.

AUC and log loss are scikit-learn's (`roc_auc_score`, `log_loss`), to the last digits, of the scores as
float64. What cannot be said is None, never a made-up number: `auc_gap` and `score_gap` tell why.
"""

from collections.abc import Iterable, Mapping
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
    """One point of a calibration plot."""

    mean_predicted: float
    mean_observed: float
    count: int


def auc(labels: Numbers, scores: Numbers, weights: Numbers | None = None) -> float | None:
    """Chance that a positive example scores above a negative one; ties count half.

    Args:
        labels: [n] 0 or 1; nan where missing, which leaves the example out.
        scores: [n] any numbers; only their order matters.
        weights: [n] not negative; how much an example counts.

    None where it is not defined, see `auc_gap`.
    """
    return _auc(*_known(labels, scores, weights))


def auc_gap(labels: Numbers, scores: Numbers, weights: Numbers | None = None) -> str | None:
    """Why these examples have no AUC; None if they have one."""
    return _auc_gap(*_known(labels, scores, weights))


def log_loss(labels: Numbers, probabilities: Numbers, weights: Numbers | None = None) -> float | None:
    """Mean negative log-likelihood. Probabilities are of class 1, [n], or of all classes, [n, C].

    Missing labels are nan, or negative if there are several classes. Labels of [n] probabilities may
    themselves be probabilities. One class is enough. None without a label or with a score that is not
    finite, see `score_gap`.
    """
    return _log_loss(*_known(labels, probabilities, weights))


def score_gap(labels: Numbers, scores: Numbers, weights: Numbers | None = None) -> str | None:
    """Why nothing can be said about these examples at all; None if something can."""
    return _gap(*_known(labels, scores, weights))


def rmse(labels: Numbers, predictions: Numbers, weights: Numbers | None = None) -> float | None:
    """Root of the mean squared error."""
    label, prediction, weight = _known(labels, predictions, weights)
    if _gap(label, prediction, weight):
        return None
    return float(np.sqrt(_mean((label - prediction) ** 2, weight)))


def mae(labels: Numbers, predictions: Numbers, weights: Numbers | None = None) -> float | None:
    """Mean absolute error."""
    label, prediction, weight = _known(labels, predictions, weights)
    if _gap(label, prediction, weight):
        return None
    return _mean(np.abs(label - prediction), weight)


def accuracy(labels: Numbers, probabilities: Numbers, weights: Numbers | None = None) -> float | None:
    """Share of examples whose most probable class, of [n, C], is the right one."""
    label, probability, weight = _known(labels, probabilities, weights)
    if probability.ndim != 2:
        raise InputError(f"probabilities have shape {list(probability.shape)}; expected [n, classes]")
    if _gap(label, probability, weight):
        return None
    return _mean((probability.argmax(1) == label).astype(np.float64), weight)


def calibration(
    labels: Numbers, probabilities: Numbers, bins: int = 10, *, weights: Numbers | None = None, spread: str = "quantile"
) -> list[Bin]:
    """Predicted against observed rates, from low to high predictions; empty without labels.

    Args:
        bins: how many at most.
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
    found: list[Bin] = []
    for start, end in pairwise(edges.tolist()):
        part = slice(start, end)
        if weight[part].sum() > 0:
            found.append(
                Bin(
                    mean_predicted=_mean(probability[part], weight[part]),
                    mean_observed=_mean(label[part], weight[part]),
                    count=end - start,
                )
            )
    return found


def evaluate(
    tasks: Iterable[Task],
    labels: Mapping[str, Numbers],
    predictions: Mapping[str, Numbers],
    weights: Numbers | None = None,
) -> dict[str, Any]:
    """The metrics of all tasks, as they stand in a run's files.

    Args:
        labels: by task name, [n], nan where missing.
        predictions: by task name: probabilities [n] of a binary task, numbers [n] of a regression,
            probabilities [n, C] of several classes.
        weights: [n], for all tasks.

    Returns:
        {"tasks": {name: {"auc": ..., "log_loss": ..., "positives": ..., "labelled": ...}}, "mean_auc": ...}.
        A task of which something cannot be said has the reason under "note". The mean is over the binary
        tasks that have an AUC, None if there is none; "mean_auc_of" names them if some are left out.
    """
    tasks = tuple(tasks)
    found = {task.name: evaluate_task(task, labels[task.name], predictions[task.name], weights) for task in tasks}
    aucs = {name: value for name, metrics in found.items() if isinstance(value := metrics.get("auc"), float)}
    whole: dict[str, Any] = {"tasks": found, "mean_auc": sum(aucs.values()) / len(aucs) if aucs else None}
    if 0 < len(aucs) < sum(task.kind == "binary" for task in tasks):
        whole["mean_auc_of"] = list(aucs)
    return whole


def evaluate_task(
    task: Task, labels: Numbers, predictions: Numbers, weights: Numbers | None = None
) -> dict[str, float | int | str | None]:
    """The metrics of one task, with the number of labels they come from."""
    try:
        label, score, weight = _known(labels, predictions, weights)
    except InputError as error:
        raise InputError(f"task {task.name!r}: {error}") from error
    found: dict[str, float | int | str | None] = {}
    gap = _gap(label, score, weight)
    if task.kind == "binary":
        gap = _auc_gap(label, score, weight)
        found |= {"auc": _auc(label, score, weight), "log_loss": _log_loss(label, score, weight)}
        found["positives"] = int((label == 1).sum())
    elif task.kind == "regression":
        found |= {"rmse": rmse(label, score, weight), "mae": mae(label, score, weight)}
    else:
        found |= {"accuracy": accuracy(label, score, weight), "log_loss": _log_loss(label, score, weight)}
    found["labelled"] = len(label)
    if gap:
        found["note"] = gap
    return found


def _known(labels: Numbers, scores: Numbers, weights: Numbers | None) -> tuple[Floats, Floats, Floats | None]:
    """The examples with a label, as float64."""
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
    if ((label == 0) | (label == 1)).all():
        chosen = np.where(label == 1, probability, 1 - probability)
        return _mean(-np.log(chosen.clip(_EPSILON, 1 - _EPSILON)), weight)
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
