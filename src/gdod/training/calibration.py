"""Fit the probabilities of binary tasks to the labels of the validation part, and correct them for left-out negatives.

What was fitted is plain numbers, which a run's result.json keeps.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from math import isfinite, log
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gdod.errors import InputError
from gdod.training.evaluation import Predictions

_STEPS = 100
# The most numbers that isotonic steps are worked out with at a time.
_AT_ONCE = 1 << 24


@dataclass(frozen=True)
class Line:
    """A line through the logits: p becomes sigmoid(slope · logit(p) + intercept) (Platt 1999)."""

    slope: float
    intercept: float

    def __call__(self, probability: Tensor) -> Tensor:
        tiny = torch.finfo(probability.dtype).eps / 2
        logit = torch.logit(probability, eps=tiny)
        return torch.sigmoid(self.slope * logit + self.intercept)

    def to_json(self) -> dict[str, Any]:
        return {"kind": "platt", "slope": self.slope, "intercept": self.intercept}


@dataclass(frozen=True)
class Steps:
    """Straight pieces between points whose observed rates rise with the probabilities (isotonic regression)."""

    probabilities: tuple[float, ...]
    rates: tuple[float, ...]

    def __call__(self, probability: Tensor) -> Tensor:
        x = torch.tensor(self.probabilities, dtype=probability.dtype, device=probability.device)  # [m]
        y = torch.tensor(self.rates, dtype=probability.dtype, device=probability.device)
        if not torch.compiler.is_exporting() and len(probability) * len(x) > _AT_ONCE:
            return torch.cat([self(rows) for rows in probability.split(max(1, _AT_ONCE // (2 * len(x))))])
        # In this form, without a search for the piece, it can be exported to any runtime.
        shares = ((probability.unsqueeze(-1) - x[:-1]) / x.diff()).clamp(0, 1)  # [B, m - 1]
        return y[0] + (shares * y.diff()).sum(-1)

    def to_json(self) -> dict[str, Any]:
        return {"kind": "isotonic", "probabilities": list(self.probabilities), "rates": list(self.rates)}


Calibrator = Line | Steps


def fit_line(labels: Tensor, probabilities: Tensor) -> Line:
    """Return the line through the logits under which the labels are likeliest.

    As Platt proposes, labels count as slightly less than certain, so that there is a line also where the probabilities
    tell the labels apart without a mistake.

    Args:
        labels: [n] 0 or 1, all of them known.
        probabilities: [n] those of the model.
    """
    y = labels.double().numpy()
    x = torch.logit(probabilities.double(), eps=1e-15).numpy()
    positives = float(y.sum())
    high, low = (positives + 1) / (positives + 2), 1 / (len(y) - positives + 2)
    target = np.where(y == 1, high, low)
    design = np.stack([x, np.ones_like(x)], 1)  # [n, 2]
    line = np.array([1.0, 0.0])
    loss = _line_loss(design @ line, target)
    for _ in range(_STEPS):
        z = design @ line
        p = 1 / (1 + np.exp(-z))
        gradient = design.T @ (p - target)  # [2]
        curvature = (design * (p * (1 - p))[:, None]).T @ design + 1e-12 * np.eye(2)
        step = np.linalg.solve(curvature, gradient)
        # Newton's step, shortened until it helps.
        while (new := _line_loss(design @ (line - step), target)) > loss and np.abs(step).max() > 1e-12:
            step = step / 2
        line, done = line - step, abs(loss - new) <= 1e-12 * (1 + abs(loss))
        loss = new
        if done:
            break
    return Line(float(line[0]), float(line[1]))


def _line_loss(logit: Any, target: Any) -> float:
    return float((np.logaddexp(0, logit) - target * logit).sum())


def fit_steps(labels: Tensor, probabilities: Tensor) -> Steps:
    """Return the rising steps that are nearest to the labels. Arguments as for `fit_line`.

    No rate is 0 or 1: that of no, or only, positives in n examples stays away from it by 1 / (n + 2).
    """
    from scipy.optimize import isotonic_regression

    x, places = np.unique(probabilities.double().numpy(), return_inverse=True)
    counts = np.bincount(places)
    rates = np.bincount(places, weights=labels.double().numpy()) / counts
    fitted = isotonic_regression(rates, weights=counts).x  # [m]
    edge = 1 / (len(labels) + 2)
    fitted = fitted.clip(edge, 1 - edge)
    # The ends of each step are enough; between two steps the rate rises along a line.
    changes = fitted[1:] != fitted[:-1]
    kept = np.flatnonzero(np.r_[True, changes] | np.r_[changes, True])
    if len(kept) == 1:
        return Steps((0.0, 1.0), (float(fitted[0]), float(fitted[0])))
    return Steps(tuple(x[kept].tolist()), tuple(fitted[kept].tolist()))


_FIT: dict[str, Callable[[Tensor, Tensor], Calibrator]] = {"platt": fit_line, "isotonic": fit_steps}


def fit_calibrators(kind: str, predictions: Predictions) -> dict[str, Calibrator]:
    """Return the calibrator of each binary task from predictions of the validation part.

    A task whose labels there are missing, or all the same, is left as it is.
    """
    calibrators: dict[str, Calibrator] = {}
    for task in predictions.tasks:
        labels = predictions.labels[task.name]
        known = ~labels.isnan()
        if task.kind == "binary" and 0 < float(labels[known].sum()) < int(known.sum()):
            calibrators[task.name] = _FIT[kind](labels[known], predictions.predictions[task.name][known])
    return calibrators


def calibrator_content(calibrators: Mapping[str, Calibrator]) -> dict[str, Any]:
    """Return calibrators as `read_calibrators` reads them: plain values by task, and their checksum."""
    content = {task: one.to_json() for task, one in calibrators.items()}
    return {"calibrators": content, "calibrators_checksum": _checksum(content)}


def _checksum(content: object) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def read_calibrators(result: Mapping[str, Any], tasks: Iterable[str]) -> dict[str, Calibrator]:
    """Return the calibrators of a run, by task; raise if they are not as they were written.

    Args:
        result: the content of the run's result.json; that of earlier versions has no checksum.
        tasks: the names of the run's binary tasks.
    """
    content = result.get("calibrators", {})
    if result.get("calibrators_checksum", _checksum(content)) != _checksum(content):
        raise InputError(_damaged("its checksum is wrong"))
    if not isinstance(content, dict) or (unknown := sorted(content.keys() - set(tasks))):
        raise InputError(_damaged(f"{unknown[0]!r} is no binary task" if isinstance(content, dict) else "no object"))
    try:
        return {task: _read_calibrator(values) for task, values in content.items()}
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(_damaged(repr(error))) from error


def _read_calibrator(values: Mapping[str, Any]) -> Calibrator:
    """Return the calibrator that `to_json` made the values of; raise a ValueError if it cannot be one."""
    if values["kind"] == "platt":
        line = Line(float(values["slope"]), float(values["intercept"]))
        if not isfinite(line.slope) or not isfinite(line.intercept):
            raise ValueError(f"{line}; expected finite numbers")
        return line
    steps = Steps(tuple(map(float, values["probabilities"])), tuple(map(float, values["rates"])))
    points = np.array([steps.probabilities, steps.rates])  # [2, m]; a ValueError if one is longer than the other
    if points.shape[1] < 2 or not ((points >= 0) & (points <= 1)).all() or not (np.diff(points[0]) > 0).all():
        raise ValueError("expected two or more rising probabilities, each with its rate")
    return steps


def _damaged(problem: str) -> str:
    return (
        f"the calibration in result.json is damaged or was changed: {problem}. Put a copy of the file in its place, or "
        "train again in another folder with --out"
    )


def calibrated(predictions: Predictions, calibrators: Mapping[str, Calibrator]) -> Predictions:
    """Return predictions with the probabilities of some tasks as their calibrators have them."""
    changed = {task: calibrator(predictions.predictions[task]) for task, calibrator in calibrators.items()}
    return replace(predictions, predictions={**predictions.predictions, **changed})


def with_all_negatives(kept: Mapping[str, float]) -> dict[str, Calibrator]:
    """Return what corrects probabilities for negatives that were left out, by task.

    With a share r of the negatives the odds of a positive are 1 / r times what they are, so that r takes it back.
    """
    return {task: Line(1.0, log(share)) for task, share in kept.items()}
