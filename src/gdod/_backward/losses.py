"""The losses as they were passed, checked and brought into one form."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from gdod.errors import InputError, NonFiniteInputError
from gdod.rows import Target, before_stacking

Losses = Mapping[str, Tensor] | Sequence[Tensor] | Tensor
Masks = Losses
TaskWeights = Mapping[str, float] | Sequence[float] | Tensor


class Scaler(Protocol):
    """What is needed of a `torch.amp.GradScaler`."""

    def is_enabled(self) -> bool: ...

    def scale(self, outputs: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class Totals:
    """What is counted over the examples of all processes."""

    examples: int
    counts: Tensor  # labelled examples of each task [K]
    mean_losses: Tensor  # [K], float64; nan for a task without labels


@dataclass(frozen=True)
class Tasks:
    """Per-example losses of all tasks."""

    names: tuple[str, ...]
    targets: tuple[Target, ...]
    values: Tensor  # [K, B], detached
    labelled: Tensor | None  # [K, B], bool; None: everything is
    weights: Tensor | None  # [K], float64; None: all 1
    totals: Totals | None = None  # where other processes have examples of the batch, too
    scale: float | None = None  # of a gradient scaler: by how much all gradients are to be larger
    own_means: Tensor | None = None  # the mean losses over this process's examples [K], float64; None: not worked out

    @property
    def examples(self) -> int:
        """The number of examples of the whole batch."""
        return self.values.shape[1] if self.totals is None else self.totals.examples

    @property
    def counts(self) -> Tensor:
        """The number of labelled examples of each task. [K]"""
        if self.totals is not None:
            return self.totals.counts
        if self.labelled is None:
            return torch.full((len(self.names),), self.values.shape[1])
        return self.labelled.sum(1)

    @property
    def all_labelled(self) -> bool:
        """Whether every example is known to have a label for every task."""
        return self.labelled is None and self.totals is None

    def active(self) -> list[int]:
        """Return the tasks that have a label and a weight."""
        tasks = range(len(self.names))
        if self.all_labelled and self.weights is None:
            return list(tasks)
        weights = [1.0] * len(tasks) if self.weights is None else self.weights.tolist()
        return [task for task, count in enumerate(self.counts.tolist()) if count and weights[task]]

    def seeds(self) -> Tensor:
        """Return the derivative of a task's weighted (and scaled) mean loss by each example's loss. [K, B]"""
        factor = 1.0 if self.scale is None else self.scale
        if self.all_labelled and self.weights is None:
            return torch.full_like(self.values, factor / self.values.shape[1])
        weights = torch.ones(len(self.names)) if self.weights is None else self.weights
        scale = (factor * weights.double() / self.counts.clamp(min=1).cpu()).to(self.values).unsqueeze(1)
        labelled = torch.ones_like(self.values) if self.labelled is None else self.labelled
        return labelled * scale

    def mean_losses(self) -> Tensor:
        """Return the mean loss of each task over its labelled examples; nan for a task without labels. [K]"""
        if self.totals is not None:
            return self.totals.mean_losses
        return means(self.values, self.labelled) if self.own_means is None else self.own_means


def means(values: Tensor, labelled: Tensor | None) -> Tensor:
    """Return the mean loss of each task over its labelled examples; nan for a task without labels. [K]"""
    if labelled is None:
        return values.mean(1, dtype=torch.float64).cpu()
    return (torch.where(labelled, values, 0.0).sum(1, dtype=torch.float64) / labelled.sum(1)).cpu()


def scale_of(scaler: Scaler | None, losses: Tensor) -> float | None:
    """Return the scaler's factor. It is asked in its own way, after which it knows the losses' device."""
    if scaler is None:
        return None
    if not callable(getattr(scaler, "scale", None)) or not callable(getattr(scaler, "is_enabled", None)):
        raise InputError(f"scaler is a {type(scaler).__name__}; expected a torch.amp.GradScaler, or None")
    return float(scaler.scale(torch.ones((), device=losses.device))) if scaler.is_enabled() else None


def read(
    losses: Losses,
    mask: Masks | None,
    task_weights: TaskWeights | None,
    may_be_empty: bool = False,
    scaler: Scaler | None = None,
) -> Tasks:
    """Check the losses and bring them into one form. ``may_be_empty``: other processes may have all the examples."""
    names, tensors, targets = _targets(losses, may_be_empty)
    with torch.no_grad():
        values = torch.stack(tensors)
    if mask is not None and isinstance(losses, Mapping) != isinstance(mask, Mapping):
        kinds = type(mask).__name__, type(losses).__name__
        raise InputError(f"mask is a {kinds[0]} and losses a {kinds[1]}; expected the same structure, task by task")
    labelled = None if mask is None else _mask(mask, names, values.shape[1])
    # A finite sum has finite terms, and takes a fraction of the time of looking at each. Means are needed anyway.
    own_means = means(values, None) if labelled is None and values.device.type == "cpu" and values.numel() else None
    finite = math.isfinite(values.sum() if own_means is None else sum(own_means.tolist()))
    if not finite and not bool(values.isfinite().all()):
        bad = [name for name, row in zip(names, values, strict=True) if not bool(row.isfinite().all())]
        hint = "" if mask is None else "; losses of unlabelled examples must be finite, too: give them any finite label"
        raise NonFiniteInputError(
            f"the losses of {_list(bad)} are not finite (inf or nan); look at its labels and inputs{hint}"
        )
    weights, scale = _weights(task_weights, names), scale_of(scaler, values)
    return Tasks(names, targets, values, labelled, weights, scale=scale, own_means=own_means)


def _targets(losses: Losses, may_be_empty: bool) -> tuple[tuple[str, ...], list[Tensor], tuple[Target, ...]]:
    if isinstance(losses, Tensor):
        return _columns(losses, may_be_empty)
    if isinstance(losses, Mapping):
        names, tensors = tuple(map(str, losses.keys())), list(losses.values())
    elif isinstance(losses, Sequence) and not isinstance(losses, str):
        names, tensors = tuple(map(str, range(len(losses)))), list(losses)
    else:
        raise InputError(
            f"losses is a {type(losses).__name__}; expected a mapping of names to tensors [batch], a sequence of "
            "such tensors, or one tensor [batch, tasks]"
        )
    if not tensors:
        raise InputError("losses is empty; pass the losses of at least one task")
    for name, tensor in zip(names, tensors, strict=True):
        _check_loss(name, tensor, may_be_empty)
    first = tensors[0]
    if any(tensor.shape != first.shape for tensor in tensors):
        lengths = ", ".join(f"{name!r}: {len(tensor)}" for name, tensor in zip(names, tensors, strict=True))
        raise InputError(
            f"the losses have unequal lengths ({lengths}); every task needs one loss for each example of the batch; "
            "use mask= for examples without a label"
        )
    if any(tensor.dtype != first.dtype or tensor.device != first.device for tensor in tensors):
        types = ", ".join(f"{name!r}: {t.dtype} on {t.device}" for name, t in zip(names, tensors, strict=True))
        raise InputError(f"the losses differ in type or device ({types}); bring them to one, e.g. with .float()")
    return names, tensors, tuple(Target(tensor) for tensor in tensors)


def _check_loss(name: str, loss: Any, may_be_empty: bool) -> None:
    if not isinstance(loss, Tensor):
        raise InputError(f"the loss of task {name!r} is a {type(loss).__name__}; expected a tensor of shape [batch]")
    if loss.dim() == 0:
        raise InputError(
            f"the loss of task {name!r} is a single number: it is averaged already; expected one loss for each "
            "example, of shape [batch]; pass reduction='none' to the loss function"
        )
    if loss.dim() != 1:
        raise InputError(
            f"the loss of task {name!r} has shape {tuple(loss.shape)}; expected [batch]: one number for each example; "
            "average or sum the other dimensions, e.g. loss.flatten(1).mean(1)"
        )
    _check_tensor(f"the loss of task {name!r}", loss, may_be_empty)


def _check_tensor(what: str, loss: Tensor, may_be_empty: bool) -> None:
    if loss.shape[0] == 0 and not may_be_empty:
        raise InputError(f"{what} has shape {tuple(loss.shape)}, no examples; expected at least one")
    if not loss.is_floating_point():
        raise InputError(f"{what} has type {loss.dtype}; expected a floating-point type")
    if loss.grad_fn is None:
        raise InputError(
            f"{what} has no graph to differentiate; compute it from parameters with requires_grad=True, "
            "outside torch.no_grad(), and do not detach it"
        )


def _columns(losses: Tensor, may_be_empty: bool) -> tuple[tuple[str, ...], list[Tensor], tuple[Target, ...]]:
    if losses.dim() != 2 or losses.shape[1] == 0:
        kind = "a single number: it is averaged already" if losses.dim() == 0 else f"of shape {tuple(losses.shape)}"
        raise InputError(
            f"losses is one tensor {kind}; expected [batch, tasks] with at least one task; a single task's losses of "
            "shape [batch] go into a mapping or list"
        )
    _check_tensor("losses", losses, may_be_empty)
    columns = losses.shape[1]
    names = tuple(map(str, range(columns)))
    return (
        names,
        list(losses.unbind(1)),
        before_stacking(losses) or tuple(Target(losses, column, columns) for column in range(columns)),
    )


def _mask(mask: Masks, names: tuple[str, ...], batch: int) -> Tensor:
    expected = f"expected the structure of losses: {len(names)} boolean masks of shape [{batch}]"
    if isinstance(mask, Tensor):
        if tuple(mask.shape) != (batch, len(names)):
            raise InputError(f"mask has shape {tuple(mask.shape)}; expected [batch, tasks] = ({batch}, {len(names)})")
        parts = list(mask.unbind(1))
    elif isinstance(mask, Mapping):
        if set(map(str, mask)) != set(names):
            raise InputError(f"mask has the tasks {_list(map(str, mask))}; losses has {_list(names)}; {expected}")
        parts = [mask[name] for name in mask]
        order = list(map(str, mask))
        parts = [parts[order.index(name)] for name in names]
    elif isinstance(mask, Sequence):
        parts = list(mask)
        if len(parts) != len(names):
            raise InputError(f"mask has {len(parts)} entries for {len(names)} tasks; {expected}")
    else:
        raise InputError(f"mask is a {type(mask).__name__}; {expected}")
    for name, part in zip(names, parts, strict=True):
        if not isinstance(part, Tensor) or tuple(part.shape) != (batch,):
            shape = tuple(part.shape) if isinstance(part, Tensor) else type(part).__name__
            raise InputError(f"the mask of task {name!r} is {shape}; expected a boolean tensor of shape [{batch}]")
        if part.dtype != torch.bool:
            raise InputError(
                f"the mask of task {name!r} has type {part.dtype}; expected torch.bool, True where a label exists: "
                "pass e.g. mask.bool()"
            )
    return torch.stack(parts)


def _weights(task_weights: TaskWeights | None, names: tuple[str, ...]) -> Tensor | None:
    if task_weights is None:
        return None
    if isinstance(task_weights, Mapping):
        if set(map(str, task_weights)) != set(names):
            raise InputError(
                f"task_weights has the tasks {_list(map(str, task_weights))}; "
                f"expected one factor for each of {_list(names)}"
            )
        given = {str(name): value for name, value in task_weights.items()}
        values: Iterable[Any] = [given[name] for name in names]
    elif isinstance(task_weights, Tensor) and task_weights.dim() != 1:
        raise InputError(f"task_weights has shape {tuple(task_weights.shape)}; expected [{len(names)}]")
    else:
        values = task_weights
    try:
        weights = [float(value) for value in values]
    except (TypeError, ValueError) as error:
        raise InputError(f"task_weights={task_weights!r}; expected one number for each of {_list(names)}") from error
    if len(weights) != len(names):
        raise InputError(f"task_weights has {len(weights)} entries; expected one for each of {_list(names)}")
    if not all(map(math.isfinite, weights)):
        raise InputError(f"task_weights={weights}; expected finite numbers")
    return torch.tensor(weights, dtype=torch.float64)


def _list(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names)) or "none"
