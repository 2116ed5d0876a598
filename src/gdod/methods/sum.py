"""The plain sum of the task gradients (what the paper calls Adam, after its optimizer)."""

import torch
from torch import Tensor

from gdod.methods.base import LossMethod, Weights
from gdod.methods.gram import Gram


class Sum(LossMethod):
    """Add up the task gradients, as ``sum(loss.mean() for loss in losses).backward()`` does."""

    keeps_all = True

    def weigh_losses(self, losses: Tensor) -> Tensor:
        return torch.ones_like(losses)

    def weigh(self, gram: Gram) -> Weights:
        return Weights(gram.averages.sum(0), all_kept=True)

    def __repr__(self) -> str:
        return "Sum()"
