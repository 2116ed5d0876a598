"""A model's predictions for a part of the data, their metrics, and the score that training goes by."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from math import inf
from typing import Any

import torch
from torch import Tensor

from gdod._checks import check_choice
from gdod.data.parts.part import Minibatch, Part
from gdod.errors import InputError
from gdod.models import Batch, Model, Task
from gdod.ranks import Ranks
from gdod.training.metrics import calibration, evaluate

Metrics = dict[str, Any]
"""{"tasks": {name: {"auc": ..., "log_loss": ...}}, "mean_auc": ...}, as `gdod.training.metrics.evaluate` gives it."""
_ALONE = Ranks()
_UNEQUAL = 10.0  # times: losses that are further apart than that are told


@dataclass(frozen=True)
class Predictions:
    """Labels and predictions of many examples."""

    tasks: tuple[Task, ...]
    labels: dict[str, Tensor]  # [n] each
    predictions: dict[str, Tensor]  # [n] each, or [n, classes]
    weights: Tensor | None  # [n], or [K, n] if a task has weights of its own

    def metrics(self, *, weighted: bool = False) -> Metrics:
        return evaluate(self.tasks, self.labels, self.predictions, self.weights if weighted else None)

    def calibration(self) -> dict[str, Any]:
        """Return the calibration bins of each binary task."""
        return {
            task.name: calibration(self.labels[task.name], self.predictions[task.name])
            for task in self.tasks
            if task.kind == "binary"
        }


def predict_part(
    model: Model,
    part: Part,
    size: int,
    device: torch.device,
    stop: Callable[[], bool] = lambda: False,
    ranks: Ranks = _ALONE,
) -> Predictions | None:
    """Return the predictions for a whole part; None if ``stop`` returned True before its end, on any rank.

    Each rank predicts some of the batches of ``size`` examples that one rank alone would predict, so predictions are
    the same bits. Rank 0 gets all of them in their order, the other ranks keep their own.
    """
    steps = part.steps(size)
    first, last = (at * steps // ranks.size for at in (ranks.rank, ranks.rank + 1))
    own = predict_batches(model, islice(part.batches(size, start=first), last - first), device, stop)
    if any(ranks.most([own is None])):
        return None
    return own if own is None or ranks.size == 1 else _gather(own, ranks)


def predict_batches(
    model: Model, minibatches: Iterable[Minibatch], device: torch.device, stop: Callable[[], bool] = lambda: False
) -> Predictions | None:
    """Return the predictions for these batches, in evaluation mode; None if ``stop`` returned True before the end."""
    labels: dict[str, list[Tensor]] = {task.name: [] for task in model.tasks}
    predictions: dict[str, list[Tensor]] = {task.name: [] for task in model.tasks}
    weights: list[Tensor] = []
    with _evaluating(model):
        for minibatch in minibatches:
            if stop():
                return None
            batch = minibatch.batch if device.type == "cpu" else minibatch.batch.to(device)
            for name, values in _predict_batch(model, batch).items():
                predictions[name].append(values)
                labels[name].append(minibatch.labels[name])
            if minibatch.weights is not None:
                weights.append(minibatch.weights)
    return Predictions(model.tasks, _joined(labels), _joined(predictions), torch.cat(weights, -1) if weights else None)


def _predict_batch(model: Model, batch: Batch) -> dict[str, Tensor]:
    """Return probabilities [B], numbers [B] or probabilities [B, classes] by task, in float64.

    In float32 probabilities near 1 would become equal, and the order of examples would be lost.
    """
    predictions = {}
    logits = model(batch)
    for task in model.tasks:
        logit = logits[task.name].double()
        if task.kind == "binary":
            logit = logit.sigmoid()
        elif task.kind == "multiclass":
            logit = logit.softmax(1)
        else:
            logit = task.in_units(logit)
        predictions[task.name] = logit.cpu()
    return predictions


@contextmanager
def _evaluating(model: Model) -> Iterator[None]:
    """Turn off dropout and gradients, and put the model back into its mode afterwards."""
    training = any(part.training for part in model.modules())  # changing the mode takes much longer than looking
    if training:
        before = model.training
        model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        if training:
            model.train(before)


def _joined(parts: Mapping[str, Sequence[Tensor]]) -> dict[str, Tensor]:
    return {name: torch.cat(list(values)) if values else torch.zeros(0) for name, values in parts.items()}


def _gather(own: Predictions, ranks: Ranks) -> Predictions:
    """Return the predictions of all ranks on rank 0; all of it travels as the columns of one float64 table."""
    (weighted,) = ranks.most([own.weights is not None])
    columns = [*own.labels.values(), *own.predictions.values()]
    widths = [1] * len(own.labels) + [task.outputs for task in own.tasks]
    if weighted:
        # A rank without rows does not know whether tasks have weights of their own.
        (rows,) = ranks.most([1 if own.weights is None or own.weights.dim() == 1 else len(own.weights)])
        columns.append(torch.zeros(0, rows) if own.weights is None else own.weights.reshape(rows, -1).T)
        widths.append(rows)
    table = torch.cat([values.double().reshape(-1, width) for values, width in zip(columns, widths, strict=True)], 1)
    gathered = [values.squeeze(1) for values in ranks.gather(table).split(widths, 1)]
    names = [task.name for task in own.tasks]
    return Predictions(
        own.tasks,
        dict(zip(names, gathered, strict=False)),
        dict(zip(names, gathered[len(names) :], strict=False)),
        gathered[-1].movedim(0, -1) if weighted else None,
    )


def unequal_losses(metrics: Metrics, task_weights: Mapping[str, float]) -> str | None:
    """Return a sentence if the loss of one task is more than ten times that of another, else None.

    Args:
        metrics: those on the validation part, before the first step.
        task_weights: by task name; 1 for those left out.
    """
    losses = {}
    for name, values in metrics["tasks"].items():
        if value := _loss(values):
            losses[name] = task_weights.get(name, 1.0) * value
    if len(losses) < 2:
        return None
    most, least = max(losses, key=losses.__getitem__), min(losses, key=losses.__getitem__)
    ratio = losses[most] / losses[least] if losses[least] else inf
    if ratio <= _UNEQUAL:
        return None
    weight = float(f"{task_weights.get(most, 1.0) / ratio:.1g}")
    return (
        f"the loss of {most!r} is {ratio:,.0f} times that of {least!r} before training, and may drown it; "
        f"--task-weight {most}={weight} would make them about equal"
    )


def validation_loss(metrics: Metrics, task_weights: Mapping[str, float]) -> float | None:
    """Return the weighted sum of the tasks' log losses and squared errors; None if one of them is not defined."""
    total, known = 0.0, False
    for name, values in metrics["tasks"].items():
        if not values["labelled"]:
            continue
        value = _loss(values)
        if value is None:
            return None
        total += task_weights.get(name, 1.0) * value
        known = True
    return total if known else None


def _loss(values: Mapping[str, Any]) -> float | None:
    """Return the loss of a task by its metrics: its log loss, or its squared error in the units of training."""
    if "rmse" not in values:
        return values["log_loss"]  # type: ignore[no-any-return]
    error: float | None = values["rmse"]
    squared: float | None = values.get("loss", None if error is None else error**2)
    return squared


def monitored_score(metrics: Metrics, monitor: str, task_weights: Mapping[str, float]) -> float | None:
    """Return the score that early stopping and the choice of the best weights go by; higher is better.

    Args:
        monitor: "mean_auc", "loss", the name of a task, or "auto": mean AUC if there is one, else loss.
        task_weights: by task name; 1 for those left out.

    Returns:
        The score, negative for losses and errors; None if it is not defined.
    """
    mean: float | None = metrics["mean_auc"]
    if monitor == "mean_auc" or (monitor == "auto" and mean is not None):
        return mean
    if monitor in ("auto", "loss"):
        loss = validation_loss(metrics, task_weights)
        return None if loss is None else -loss
    values: dict[str, float | None] = metrics["tasks"][monitor]
    if "auc" in values:
        return values["auc"]
    error = values["rmse"] if "rmse" in values else values["log_loss"]
    return None if error is None else -error


def check_monitor(monitor: str, tasks: Sequence[Task]) -> None:
    """Raise an InputError if these tasks have no such score to monitor."""
    names = [task.name for task in tasks]
    check_choice("stopping.monitor", monitor, ("auto", "mean_auc", "loss", *names))
    if monitor == "mean_auc" and not any(task.kind == "binary" for task in tasks):
        raise InputError("stopping.monitor='mean_auc', but no task is binary; use 'loss' or the name of a task")
