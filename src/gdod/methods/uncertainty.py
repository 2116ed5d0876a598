"""Uncertainty weighting (Kendall et al., "Multi-Task Learning Using Uncertainty to Weigh Losses for Scene
Geometry and Semantics", CVPR 2018, equations 7 and 10)."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gdod._checks import check_choice
from gdod.errors import InputError
from gdod.methods.base import LossMethod
from gdod.methods.descent import Descent, check_state, check_tasks

# The factor before exp(-s) L in the paper: equation 7 for a Gaussian, equation 10 for a softmax.
_FACTORS = {"classification": 1.0, "regression": 0.5}


class Uncertainty(LossMethod):
    """Divide each loss by a variance that is learned along with the model.

    With sᵢ = log σᵢ² the objective is, as the paper's section 3.2 has it for both kinds of task,

        Σᵢ exp(-sᵢ) Lᵢ + sᵢ/2       (classification: cross-entropy)
        Σᵢ exp(-sᵢ) Lᵢ/2 + sᵢ/2     (regression: squared error)

    whose weights start, at s = 0, at 1 (the plain sum) and at 1/2. The task's own parameters get the
    same factor as the shared ones, since it is the loss that is weighted.

    Deviations from the paper: s has an optimizer of its own, so that it needs no place in the model's;
    it moves after the weights were taken, as it would in a joint step. A task without labels in a
    batch keeps its s, and its part of the optimizer's memory, and gets the weight 0. A task whose
    gradient vanishes is treated like any other: only its loss counts. One task: its loss, weighted.

    Args:
        likelihood: "classification" or "regression", for all tasks or one for each.
        lr: the learning rate of s.
        optimizer: the optimizer of s, "adam" or "sgd".
    """

    def __init__(
        self, likelihood: str | Sequence[str] = "classification", lr: float = 1e-3, optimizer: str = "adam"
    ) -> None:
        for name in [likelihood] if isinstance(likelihood, str) else likelihood:
            check_choice("likelihood", name, tuple(_FACTORS))
        self.likelihood = likelihood
        self.descent = Descent(optimizer, lr)
        self.log_variances: Tensor | None = None

    def weigh_losses(self, losses: Tensor) -> Tensor:
        if self.log_variances is None:
            self.log_variances = torch.zeros_like(losses)
        check_tasks(self, len(self.log_variances), len(losses))
        present = ~losses.isnan()  # [K]
        weights = torch.where(present, self._factors(len(losses)) * torch.exp(-self.log_variances), 0.0)
        gradient = 0.5 - weights * losses.nan_to_num(0.0)
        self.log_variances = self.descent.step(self.log_variances, gradient, present)
        return weights

    def _factors(self, tasks: int) -> Tensor:
        names = [self.likelihood] * tasks if isinstance(self.likelihood, str) else list(self.likelihood)
        if len(names) != tasks:
            raise InputError(f"likelihood names {len(names)} tasks, but there are {tasks}; expected one for each")
        return torch.tensor([_FACTORS[name] for name in names], dtype=torch.float64)

    def state_dict(self) -> dict[str, Any]:
        if self.log_variances is None:
            return {}
        return {"log_variances": self.log_variances.clone(), "descent": self.descent.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        check_state(self, state, {"log_variances", "descent"})
        self.log_variances = state["log_variances"].clone() if state else None
        self.descent.load_state_dict(state["descent"] if state else {})

    def __repr__(self) -> str:
        return (
            f"Uncertainty(likelihood={self.likelihood!r}, lr={self.descent.lr}, optimizer={self.descent.optimizer!r})"
        )
