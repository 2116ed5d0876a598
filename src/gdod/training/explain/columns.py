"""How much each column of a table matters to a run: what its predictions lose when the column's values are shuffled.

The values of a column are shuffled among the rows as they stand in the table, so that all that is made of them, ids,
statistics, hours of a time, changes with them (permutation importance: Breiman 2001; Fisher, Rudin and Dominici 2019).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl

from gdod._checks import check_whole
from gdod.errors import InputError
from gdod.statistics import paired_difference
from gdod.training.calibration import calibrated
from gdod.training.evaluation import Predictions, predict_batches
from gdod.training.explain.table_rows import check_inputs, check_labels, encoded_part
from gdod.training.run import Run

REPEATS = 5
_BATCH = 8192
# For each kind of task the metric, and whether a higher one is better.
_METRICS: Mapping[str, tuple[str, bool]] = {
    "binary": ("auc", True),
    "regression": ("rmse", False),
    "multiclass": ("log_loss", False),
}


@dataclass(frozen=True)
class Importance:
    """How much worse the predictions of a task are when the values of a column are shuffled."""

    task: str
    column: str
    metric: str
    """The metric that is compared: "auc", "rmse" or "log_loss"."""
    value: float
    """The metric with the columns as they are."""
    importance: float
    """How much worse it is with the column shuffled, the mean over the shuffles; above 0: the column helps."""
    low: float
    high: float
    """The interval of that mean, with 95 % confidence: of the shuffles, not of other rows."""


def importance(
    run: Run,
    frame: pl.DataFrame,
    *,
    repeats: int = REPEATS,
    seed: int = 0,
    told: Callable[[str], object] = lambda name: None,
) -> list[Importance]:
    """Return the importance of each column for each task, in the order of the tasks, the largest first.

    Args:
        run: a trained model.
        frame: rows with labels; a task without the metric there, for example with one class only, is left out.
        repeats: how often each column is shuffled, at least 2.
        seed: the seed of the shuffles.
        told: called with the name of each column before it is shuffled.
    """
    check_whole("repeats", repeats, 2)
    check_whole("seed", seed, 0)
    there = check_inputs(run, frame)
    check_labels(run, frame)
    whole = _predict(run, frame)
    before = _scores(run, whole)
    if not before:
        raise InputError("no task has a metric on these rows; expected labels, of a binary task both 0 and 1")
    drops: dict[tuple[str, str], dict[int, float | None]] = {}
    draw = np.random.default_rng([seed, 0xE8])
    for column in there:
        told(column)
        for repeat in range(repeats):
            values = frame[column].gather(draw.permutation(len(frame)))
            shuffled = _predict(run, frame.with_columns(values))
            # The labels stay as they are, also where one depends on the column (`when`).
            after = _scores(run, replace(shuffled, labels=whole.labels))
            for task, value in before.items():
                drops.setdefault((task, column), {})[repeat] = _worse(run, task, value, after[task])
    found = [_summary(run, task, column, before[task], each) for (task, column), each in drops.items()]
    order = {task: place for place, task in enumerate(before)}
    return sorted(found, key=lambda one: (order[one.task], -one.importance, one.column))


def _predict(run: Run, frame: pl.DataFrame) -> Predictions:
    predicted = predict_batches(run.model, encoded_part(run, frame).batches(_BATCH), run.device)
    assert predicted is not None  # nothing stops it
    return calibrated(predicted, run.calibrators)


def _scores(run: Run, predictions: Predictions) -> dict[str, float]:
    """Return the metric of each task that has one."""
    metrics: dict[str, dict[str, Any]] = predictions.metrics(weighted=run.config.weighted_metrics)["tasks"]
    values = {task.name: metrics[task.name][_METRICS[task.kind][0]] for task in run.tasks}
    return {task: value for task, value in values.items() if value is not None}


def _metric(run: Run, task: str) -> tuple[str, bool]:
    return _METRICS[next(one.kind for one in run.tasks if one.name == task)]


def _worse(run: Run, task: str, before: float, after: float) -> float:
    return before - after if _metric(run, task)[1] else after - before


def _summary(run: Run, task: str, column: str, value: float, drops: Mapping[int, float | None]) -> Importance:
    mean = paired_difference(drops, dict.fromkeys(drops, 0.0))
    assert mean.mean is not None
    low, high = mean.mean if mean.low is None else mean.low, mean.mean if mean.high is None else mean.high
    return Importance(task, column, _metric(run, task)[0], value, mean.mean, low, high)
