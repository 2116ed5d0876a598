"""The losses of one training step, on the model's device.

They equal those of `gdod.models.per_example_losses`, which checks labels task by task. A step of a small model takes a
millisecond or two, of which that would be a tenth (benchmarks/loop.py), so labels of binary tasks are checked together.
"""

from collections.abc import Mapping
from contextlib import nullcontext
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from gdod.data.parts.part import Minibatch, Seen, look_at
from gdod.models import Model, Task, per_example_losses


class BinaryLabels(NamedTuple):
    """Labels of binary tasks that are known to lie between 0 and 1."""

    values: dict[str, Tensor]  # [B] each, 0 where missing
    mask: dict[str, Tensor] | None  # [B] bool each, False where missing; None: no label is missing


def minibatch_losses(
    model: Model, minibatch: Minibatch, device: torch.device, *, precision: str = "float32", weighted: bool = True
) -> tuple[dict[str, Tensor], dict[str, Tensor] | None]:
    """Return the loss of each example by task [B], and where labels are known [B] bool; None: everywhere.

    Args:
        device: the model's, to which the minibatch is moved.
        precision: "bf16" runs the model under autocast.
        weighted: whether losses are multiplied by the examples' weights, if there are any.
    """
    batch, labels, weights, seen = minibatch
    weights = weights if weighted else None
    binary = binary_labels(labels, model.tasks, seen)  # before they are moved: a GPU would have to be waited for
    mask = None
    if binary is not None:
        labels, mask = binary
    if device.type != "cpu":
        batch, labels = batch.to(device), _moved(labels, device)
        mask = None if mask is None else _moved(mask, device)
        weights = None if weights is None else weights.to(device)
    by_task = weights if weights is None or weights.dim() == 1 else _by_task(weights, model.tasks)
    with nullcontext() if precision == "float32" else torch.autocast(device.type, dtype=torch.bfloat16):
        logits = model(batch)
    penalties = model.example_penalties(logits)
    if binary is not None:
        return binary_losses(logits, labels, by_task, penalties), mask
    losses, mask = per_example_losses(logits, labels, model.tasks, weights=by_task, penalties=penalties)
    return losses, None if bool(torch.stack(tuple(mask.values())).all()) else mask


def binary_labels(
    labels: Mapping[str, Tensor], tasks: tuple[Task, ...], seen: Seen | None = None
) -> BinaryLabels | None:
    """Return the labels, looked at together; None if a task is not binary or a label is neither in [0, 1] nor nan.

    Args:
        labels: by task name, [B].
        seen: what is known of the labels already.
    """
    if any(task.kind != "binary" for task in tasks):
        return None
    names = [task.name for task in tasks]
    given = [labels[name] for name in names]
    seen = look_at(torch.stack(given)) if seen is None else seen
    if seen is None:
        return None
    if seen == "whole":
        return BinaryLabels(dict(zip(names, given, strict=True)), None)
    stacked = torch.stack(given)  # [K, B]
    missing = stacked.isnan()
    filled = torch.where(missing, 0.0, stacked)
    return BinaryLabels(dict(zip(names, filled, strict=True)), dict(zip(names, ~missing, strict=True)))


def binary_losses(
    logits: Mapping[str, Tensor],
    labels: Mapping[str, Tensor],
    weights: Tensor | Mapping[str, Tensor] | None,
    penalties: Mapping[str, Tensor] | None = None,
) -> dict[str, Tensor]:
    """Return the log loss of each example by task, [B], plus its penalty, times its weight [B] if there are weights.

    Weights are those of all tasks, or by task; penalties are [B] by task, of those that have them.

    Logits are [B], or [B, k] from an ensemble of k members, whose losses are averaged.
    """
    losses, penalties = {}, penalties or {}
    for name, label in labels.items():
        logit = logits[name].float()
        weight = weights if weights is None or isinstance(weights, Tensor) else weights[name]
        if logit.dim() == 1 and name not in penalties:
            losses[name] = binary_cross_entropy_with_logits(logit, label, weight=weight, reduction="none")
            continue
        several = label if logit.dim() == 1 else label.unsqueeze(1).expand_as(logit)  # [B] -> [B, k]
        loss = binary_cross_entropy_with_logits(logit, several, reduction="none")
        loss = loss if loss.dim() == 1 else loss.mean(1)
        loss = loss + penalties[name].float() if name in penalties else loss
        losses[name] = loss if weight is None else loss * weight
    return losses


def _by_task(weights: Tensor, tasks: tuple[Task, ...]) -> dict[str, Tensor]:
    return {task.name: weight for task, weight in zip(tasks, weights.unbind(0), strict=True)}  # [K, B] -> [B] each


def _moved(tensors: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    return {name: tensor.to(device) for name, tensor in tensors.items()}
