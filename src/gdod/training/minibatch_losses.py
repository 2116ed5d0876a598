"""The losses of a minibatch: what `gdod.models.per_example_losses` gives, in fewer operations for binary tasks.

A step of a small model takes a millisecond or two, in which checks task by task would be a tenth.
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from gdod.data.parts.part import Seen, look_at
from gdod.models import Task, per_example_losses


class Labels(NamedTuple):
    """Labels of binary tasks, looked at together, before they go to a device."""

    values: dict[str, Tensor]  # [B] each, 0 where missing
    mask: dict[str, Tensor] | None  # [B] bool each; None: no label is missing

    def to(self, device: torch.device) -> "Labels":
        mask = None if self.mask is None else {name: known.to(device) for name, known in self.mask.items()}
        return Labels({name: label.to(device) for name, label in self.values.items()}, mask)


def binary_labels(labels: Mapping[str, Tensor], tasks: tuple[Task, ...], seen: Seen | None = None) -> Labels | None:
    """None if there are other tasks or other labels than 0 to 1 and nan; those take the long way.

    ``seen``: what is known of the labels already.
    """
    if any(task.kind != "binary" for task in tasks):
        return None
    given = [labels[task.name] for task in tasks]
    if seen is None:
        seen = look_at(torch.stack(given))
    if seen is None:
        return None
    names = [task.name for task in tasks]
    if seen == "whole":
        return Labels(dict(zip(names, given, strict=True)), None)
    stacked = torch.stack(given)  # [K, B]
    missing = stacked.isnan()
    filled = torch.where(missing, 0.0, stacked)
    return Labels(dict(zip(names, filled, strict=True)), dict(zip(names, ~missing, strict=True)))


def binary_losses(logits: Mapping[str, Tensor], labels: Labels, weights: Tensor | None) -> dict[str, Tensor]:
    """[B] each."""
    return {
        name: binary_cross_entropy_with_logits(logits[name].float(), label, weight=weights, reduction="none")
        for name, label in labels.values.items()
    }


def any_losses(
    logits: Mapping[str, Tensor], labels: Mapping[str, Tensor], weights: Tensor | None, tasks: tuple[Task, ...]
) -> tuple[dict[str, Tensor], dict[str, Tensor] | None]:
    """The same for tasks of any kind, and where their labels are known; None: everywhere."""
    losses, mask = per_example_losses(logits, labels, tasks, weights=weights)
    return losses, None if bool(torch.stack(tuple(mask.values())).all()) else mask
