"""Let positive examples of a task count more, or less, than negative ones."""

from collections.abc import Mapping

import torch
from torch import Tensor


def with_positive_weights(
    losses: Mapping[str, Tensor], labels: Mapping[str, Tensor], weights: Mapping[str, float]
) -> dict[str, Tensor]:
    """Return losses [B] by task, those of examples whose label is 1 times the weight of the task.

    Args:
        losses: the loss of each example by task.
        labels: the labels [B] by task, on any device; nan where missing.
        weights: the factors by task; tasks may be left out.
    """
    changed = dict(losses)
    for task, weight in weights.items():
        loss = losses[task]
        changed[task] = loss * torch.where(labels[task].to(loss.device) == 1, weight, 1.0).to(loss.dtype)
    return changed
