"""How good a model is on a part of the data."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gdod._checks import check_choice
from gdod.errors import InputError
from gdod.models import Batch, Model, Task
from gdod.ranks import Ranks
from gdod.training.metrics import calibration, evaluate

if TYPE_CHECKING:
    from gdod.data.parts.part import Minibatch, Part

Metrics = dict[str, Any]
"""{"tasks": {name: {"auc": ..., "log_loss": ...}}, "mean_auc": ...}, as `gdod.training.metrics.evaluate` gives it."""
_ALONE = Ranks()


@dataclass(frozen=True)
class Scored:
    """Labels and predictions of all examples of a part."""

    tasks: tuple[Task, ...]
    labels: dict[str, Tensor]  # [n] each
    predictions: dict[str, Tensor]  # [n] each, or [n, classes]
    weights: Tensor | None  # [n]

    def metrics(self, *, weighted: bool = False) -> Metrics:
        return evaluate(self.tasks, self.labels, self.predictions, self.weights if weighted else None)

    def calibration(self) -> dict[str, Any]:
        """Of the binary tasks."""
        return {
            task.name: calibration(self.labels[task.name], self.predictions[task.name])
            for task in self.tasks
            if task.kind == "binary"
        }


def predict_batch(model: Model, batch: Batch) -> dict[str, Tensor]:
    """Probabilities [B], numbers [B] or probabilities [B, classes] by task, in float64.

    In float32 probabilities near 1 would fall together, and with them the order of examples.
    """
    found = {}
    logits = model(batch)
    for task in model.tasks:
        logit = logits[task.name].double()
        if task.kind == "binary":
            logit = logit.sigmoid()
        elif task.kind == "multiclass":
            logit = logit.softmax(1)
        found[task.name] = logit.cpu()
    return found


@contextmanager
def evaluating(model: Model) -> Iterator[None]:
    """Without dropout and gradients, and with the model as it was afterwards."""
    training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        model.train(training)


def score(
    model: Model,
    part: "Part",
    size: int,
    device: torch.device,
    stop: Callable[[], bool] = lambda: False,
    ranks: Ranks = _ALONE,
) -> Scored | None:
    """Predictions for a whole part; None if ``stop`` said so before its end, on any rank.

    Each rank has some of the batches that one rank alone would have, so predictions are the same bits. Rank 0 then
    has them all, in their order; other ranks have only their own.
    """
    steps = part.steps(size)
    first, last = (at * steps // ranks.size for at in (ranks.rank, ranks.rank + 1))
    scored = _score(model, islice(part.batches(size, start=first), last - first), device, stop)
    if any(ranks.most([scored is None])):
        return None
    return scored if scored is None or ranks.size == 1 else _gathered(scored, ranks)


def _score(
    model: Model, minibatches: "Iterable[Minibatch]", device: torch.device, stop: Callable[[], bool]
) -> Scored | None:
    labels: dict[str, list[Tensor]] = {task.name: [] for task in model.tasks}
    predictions: dict[str, list[Tensor]] = {task.name: [] for task in model.tasks}
    weights: list[Tensor] = []
    with evaluating(model):
        for minibatch in minibatches:
            if stop():
                return None
            batch = minibatch.batch if device.type == "cpu" else minibatch.batch.to(device)
            for name, values in predict_batch(model, batch).items():
                predictions[name].append(values)
                labels[name].append(minibatch.labels[name])
            if minibatch.weights is not None:
                weights.append(minibatch.weights)
    return Scored(model.tasks, _joined(labels), _joined(predictions), torch.cat(weights) if weights else None)


def _joined(parts: Mapping[str, Sequence[Tensor]]) -> dict[str, Tensor]:
    return {name: torch.cat(list(values)) if values else torch.zeros(0) for name, values in parts.items()}


def _gathered(scored: Scored, ranks: Ranks) -> Scored:
    """On rank 0 with what the others have; all of it travels as the columns of one table of float64."""
    (weighted,) = ranks.most([scored.weights is not None])
    columns = [*scored.labels.values(), *scored.predictions.values()]
    widths = [1] * len(scored.labels) + [task.outputs for task in scored.tasks]
    if weighted:
        columns.append(torch.zeros(0) if scored.weights is None else scored.weights)
        widths.append(1)
    own = torch.cat([values.double().reshape(-1, width) for values, width in zip(columns, widths, strict=True)], 1)
    found = [values.squeeze(1) for values in ranks.gather(own).split(widths, 1)]
    names = [task.name for task in scored.tasks]
    return Scored(
        scored.tasks,
        dict(zip(names, found, strict=False)),
        dict(zip(names, found[len(names) :], strict=False)),
        found[-1] if weighted else None,
    )


def validation_loss(metrics: Metrics, task_weights: Mapping[str, float]) -> float | None:
    """Sum of the tasks' log losses and squared errors; None if one of them cannot be said."""
    total, known = 0.0, False
    for name, found in metrics["tasks"].items():
        if not found["labelled"]:
            continue
        value = found["rmse"] if "rmse" in found else found["log_loss"]
        if value is None:
            return None
        total += task_weights.get(name, 1.0) * (value**2 if "rmse" in found else value)
        known = True
    return total if known else None


def goodness(metrics: Metrics, monitor: str, task_weights: Mapping[str, float]) -> float | None:
    """What early stopping and the choice of the best checkpoint go by; more is better."""
    loss = validation_loss(metrics, task_weights)
    if (monitor == "auto" and metrics["mean_auc"] is not None) or monitor == "mean_auc":
        mean: float | None = metrics["mean_auc"]
        return mean
    if monitor in ("auto", "loss"):
        return None if loss is None else -loss
    found = metrics["tasks"][monitor]
    if "auc" in found:
        auc: float | None = found["auc"]
        return auc
    value = found["rmse"] if "rmse" in found else found["log_loss"]
    return None if value is None else -value


def check_monitor(monitor: str, tasks: Sequence[Task]) -> None:
    """Before training: a task of the data, or one of the general names."""
    names = [task.name for task in tasks]
    check_choice("stopping.monitor", monitor, ("auto", "mean_auc", "loss", *names))
    if monitor == "mean_auc" and not any(task.kind == "binary" for task in tasks):
        raise InputError("stopping.monitor='mean_auc', but no task is binary; use 'loss' or the name of a task")
