"""GradNorm (Chen et al., "GradNorm: Gradient Normalization for Adaptive Loss Balancing in Deep Multitask
Networks", ICML 2018, Algorithm 1)."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from gdod._checks import check_number
from gdod.errors import InputError
from gdod.methods.base import Method, Weights
from gdod.methods.descent import Descent, check_state, check_tasks
from gdod.methods.gram import Gram

_LEAST = 1e-4  # no task's weight falls below this


class GradNorm(Method):
    """Learn task weights that bring gradients to a common length, larger for tasks that learn slowly.

    With nᵢ the length of task i's gradient at the last shared layer, and rᵢ its loss ratio Lᵢ/Lᵢ(0)
    divided by the mean one, the weights go down the gradient of

        Σᵢ | wᵢ nᵢ - mean(w n) rᵢ^α |     (the second term held constant)

    and are then rescaled to add up to K, the number of tasks. The update is Σ wᵢ gᵢ with the weights
    from before that step, as in Algorithm 1; the tasks' own parameters get the same factors, since it
    is the loss that is weighted. All weights 1 is the plain sum.

    Deviations from the paper: weights stay positive (at least 1e-4 before rescaling; Adam could step
    across zero). A task without labels in a batch keeps its weight, and its part of the optimizer's
    memory, and takes no part in the means; its Lᵢ(0) is the first loss it has. A first loss that is
    not positive says nothing about the pace of learning: the ratio counts as 1. A task whose gradient
    vanishes gets no pull, and its weight only changes by the rescaling. One task has the weight 1.

    Args:
        alpha: the strength of the pull towards equal pace of learning; 0 only equalises lengths.
        lr: the learning rate of the task weights.
        optimizer: the optimizer of the task weights, "adam" or "sgd".
        parameters: the parameters at which lengths are taken, in place of those of the last shared layer.
    """

    GRID: ClassVar[Mapping[str, Sequence[float]]] = {"alpha": (0.5, 1.5)}
    groups = 1

    def __init__(
        self,
        alpha: float = 1.5,
        lr: float = 0.025,
        optimizer: str = "adam",
        parameters: Iterable[Tensor] | None = None,
    ) -> None:
        check_number("alpha", alpha, at_least=0)
        if isinstance(parameters, Tensor):
            raise InputError("parameters is a tensor; expected an iterable of parameters, e.g. layer.parameters()")
        self.alpha = alpha
        self.descent = Descent(optimizer, lr)
        self.lengths_at = "last-shared-layer" if parameters is None else tuple(parameters)
        self.task_weights: Tensor | None = None
        self.initial_losses: Tensor | None = None  # nan for a task that had no label yet

    def weigh(self, gram: Gram) -> Weights:
        if gram.losses is None:
            raise InputError(f"{self!r} needs the losses of the tasks, which a matrix does not hold; use gdod.backward")
        losses = gram.losses.to(torch.float64)
        if self.task_weights is None or self.initial_losses is None:
            self.task_weights, self.initial_losses = torch.ones_like(losses), losses.clone()
        check_tasks(self, len(self.task_weights), len(losses))
        weights, present = self.task_weights, ~losses.isnan()  # [K] each
        self.initial_losses = torch.where(self.initial_losses.isnan(), losses, self.initial_losses)
        products = gram.of_tasks if gram.norm_gram is None else gram.norm_gram  # [K, K]
        lengths = products.diagonal().clamp(min=0).sqrt()  # [K]
        if bool(present.any()):
            self._learn(weights, lengths, losses, present)
        factors = torch.where(present, weights, 0.0)
        return Weights(factors @ gram.averages, heads=factors)

    def _learn(self, weights: Tensor, lengths: Tensor, losses: Tensor, present: Tensor) -> None:
        """Take one step of the task weights. All arguments are [K]."""
        assert self.initial_losses is not None
        weighted = weights * lengths
        usable = present & (self.initial_losses > 0)
        ratios = torch.where(usable, losses / self.initial_losses, 1.0).clamp(min=0)
        pace = ratios / ratios[present].mean()
        target = weighted[present].mean() * pace.nan_to_num(1.0) ** self.alpha  # all losses zero: 0 / 0
        stepped = self.descent.step(weights, torch.sign(weighted - target) * lengths, present)
        stepped = torch.where(present, stepped.clamp(min=_LEAST), stepped)
        share = len(weights) - float(stepped[~present].sum())  # absent tasks keep their weights
        if share > 0:
            stepped = torch.where(present, stepped * (share / stepped[present].sum()), stepped)
        self.task_weights = stepped

    def state_dict(self) -> dict[str, Any]:
        if self.task_weights is None or self.initial_losses is None:
            return {}
        return {
            "task_weights": self.task_weights.clone(),
            "initial_losses": self.initial_losses.clone(),
            "descent": self.descent.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        check_state(self, state, {"task_weights", "initial_losses", "descent"})
        self.task_weights = state["task_weights"].clone() if state else None
        self.initial_losses = state["initial_losses"].clone() if state else None
        self.descent.load_state_dict(state["descent"] if state else {})

    def __repr__(self) -> str:
        return f"GradNorm(alpha={self.alpha}, lr={self.descent.lr}, optimizer={self.descent.optimizer!r})"
