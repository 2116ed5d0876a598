"""The loss of each example, from logits and labels, as `gdod.backward` takes them."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss

from gdod.errors import InputError
from gdod.schema import Kind, Task


class Losses(NamedTuple):
    """The losses of all tasks by name, and where their labels are known."""

    losses: dict[str, Tensor]  # [B] each
    mask: dict[str, Tensor]  # [B] bool each


def per_example_losses(
    logits: Mapping[str, Tensor],
    labels: Mapping[str, Tensor],
    tasks: Iterable[Task],
    *,
    mask: Mapping[str, Tensor] | None = None,
    weights: Tensor | Mapping[str, Tensor] | None = None,
    penalties: Mapping[str, Tensor] | None = None,
) -> Losses:
    """Return the loss of each example for each task: log loss, or squared error for regression, in deviations of the
    labels if the task knows them.

        losses, mask = per_example_losses(model(batch), labels, model.tasks)
        gdod.backward(losses, mask=mask)

    Args:
        logits: the output of a model: [B] by task name, or [B, classes]; of an ensemble in training [B, k] or
            [B, k, classes], and the loss of an example is the mean of its members' losses.
        labels: the labels [B] by task name: for a binary task 0 or 1, or a probability; for regression any
            number; for several classes the class, from 0 on. A missing label is nan, or a negative
            class.
        tasks: the tasks of the model.
        mask: bool [B] by task name: False where a label is missing, too. Tasks may be left out.
        weights: a factor [B] for the loss of each example, for all tasks or by task name. `gdod.backward`
            takes the mean over labelled examples, so weights with mean 1 keep the losses' scale.
        penalties: what is added to the losses before they are weighted, [B] by task name: that of
            ``model.example_penalties(logits)``. Tasks may be left out.
    """
    losses, known = {}, {}
    for task in tasks:
        logit = _get("logits", logits, task.name)
        label = _get("labels", labels, task.name)
        _check_length("labels", task, label, len(logit))
        labelled = ~label.isnan()  # [B]
        if task.kind == "multiclass":
            labelled &= label >= 0
        if mask is not None and task.name in mask:
            _check_length("mask", task, mask[task.name], len(logit))
            labelled &= mask[task.name]
        label = torch.where(labelled, label, 0)  # any label will do where the loss does not count
        if logit.dtype in (torch.float16, torch.bfloat16):
            logit = logit.float()
        loss = _mean_over_members(partial(_LOSSES[task.kind], task), logit, label, 2 if task.classes else 1)  # [B]
        if penalties is not None and task.name in penalties:
            _check_length("penalties", task, penalties[task.name], len(logit))
            loss = loss + penalties[task.name].to(loss.dtype)
        if weights is not None:
            factor = weights if isinstance(weights, Tensor) else _get("weights", weights, task.name)
            _check_length("weights", task, factor, len(logit))
            loss = loss * factor.to(loss.dtype)
        losses[task.name], known[task.name] = loss, labelled
    return Losses(losses, known)


def _mean_over_members(loss: Callable[[Tensor, Tensor], Tensor], logit: Tensor, label: Tensor, dims: int) -> Tensor:
    """Return the loss of each example [B]; where logits have more than ``dims`` dimensions, the mean over members."""
    if logit.dim() <= dims:
        return loss(logit, label)
    members = logit.shape[1]  # [B, k] or [B, k, classes]
    losses = loss(logit.flatten(0, 1), label.repeat_interleave(members))  # [B * k]
    by_member: Tensor = losses.unflatten(0, (-1, members))  # [B, k]
    return by_member.mean(1)


def _binary(task: Task, logit: Tensor, label: Tensor) -> Tensor:
    if bool(((label < 0) | (label > 1)).any()):
        low, high = float(label.min()), float(label.max())
        raise InputError(f"labels of the binary task {task.name!r} go from {low:g} to {high:g}; expected 0 and 1")
    return binary_cross_entropy_with_logits(logit, label.to(logit.dtype), reduction="none")


def _regression(task: Task, logit: Tensor, label: Tensor) -> Tensor:
    return mse_loss(logit, task.standardised(label).to(logit.dtype), reduction="none")


def _multiclass(task: Task, logit: Tensor, label: Tensor) -> Tensor:
    if len(label) and int(label.max()) >= task.outputs:
        raise InputError(
            f"labels of task {task.name!r} go up to {int(label.max())}; expected classes from 0 to {task.outputs - 1}"
        )
    return cross_entropy(logit, label.long(), reduction="none")


_LOSSES: dict[Kind, Callable[[Task, Tensor, Tensor], Tensor]] = {
    "binary": _binary,
    "regression": _regression,
    "multiclass": _multiclass,
}


def _get(what: str, by_task: Mapping[str, Tensor], name: str) -> Tensor:
    if name not in by_task:
        names = ", ".join(map(repr, by_task)) or "none"
        raise InputError(f"{what} has nothing for task {name!r}; it has {names}")
    return by_task[name]


def _check_length(what: str, task: Task, values: Tensor, size: int) -> None:
    if values.shape != (size,):
        raise InputError(f"{what} of task {task.name!r} has shape {list(values.shape)}; expected [{size}]")
