"""The plain sum of the task gradients (what the paper calls Adam, after its optimizer)."""

import torch
from torch import Tensor

from gdod.methods.gram import Gram
from gdod.methods.method import LossMethod, Weights


class Sum(LossMethod):
    """What ``sum(loss.mean() for loss in losses).backward()`` does."""

    keeps_all = True

    def weigh_losses(self, losses: Tensor) -> Tensor:
        return torch.ones_like(losses)

    def weigh(self, gram: Gram) -> Weights:
        return Weights(gram.averages.sum(0), all_kept=True)

    def __repr__(self) -> str:
        return "Sum()"
