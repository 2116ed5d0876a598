"""MGDA (Désidéri, "Multiple-gradient descent algorithm (MGDA) for multiobjective optimization", 2012;
Sener & Koltun, "Multi-Task Learning as Multi-Objective Optimization", NeurIPS 2018, Algorithm 2)."""

import torch
from torch import Tensor

from gdod._checks import check_choice
from gdod.errors import InputError
from gdod.methods import hull
from gdod.methods.base import TaskMethod, Weights
from gdod.methods.gram import Gram

NORMALISATIONS = ("none", "l2", "loss", "loss+")


class MGDA(TaskMethod):
    """Follow the shortest vector of the convex hull of the task gradients, which no task is against.

    The weights of the tasks add up to 1, as in the paper: for K tasks with the same gradient the
    update is that gradient, a K-th of what `Sum` gives. A learning rate found for one is not right for
    the other.

    Deviations from Sener & Koltun: their Frank-Wolfe steps (Algorithm 2) stop after a fixed number or
    at a tolerance; here the shortest vector is found exactly, by Wolfe's active sets, on all shared
    parameters and not on the shared representation (their upper bound MGDA-UB). A task gradient that
    is zero (no labels, or it has vanished) takes no part. It would make the shortest vector zero and
    stop all other tasks. One task keeps its plain gradient.

    Args:
        normalisation: what a task's gradient is divided by before the weights are sought. As in their
            published code, the weights then apply to the gradients as they were. "none";
            "l2", its length; "loss", the task's loss; "loss+", both. A loss that is zero or negative
            counts as 1, since dividing by it would turn the gradient round.
    """

    def __init__(self, normalisation: str = "none") -> None:
        check_choice("normalisation", normalisation, NORMALISATIONS)
        self.normalisation = normalisation

    def weigh(self, gram: Gram) -> Weights:
        if not self.normalisation.startswith("loss"):
            return super().weigh(gram)
        if gram.losses is None:
            raise InputError(
                f"{self!r} needs the losses of the tasks, which a matrix does not hold; use gdod.backward, "
                "or normalisation='l2'"
            )
        divisors = torch.where(gram.losses > 0, gram.losses, 1.0)  # without labels: nan, and a zero gradient
        if self.normalisation == "loss+":
            divisors = divisors * gram.norms
        return Weights(_shortest(gram.of_tasks, divisors) @ gram.averages)

    def weigh_tasks(self, gram: Tensor) -> Tensor:
        if self.normalisation.startswith("loss"):
            raise InputError(f"{self!r} needs the losses of the tasks, which a matrix does not hold")
        return _shortest(gram, gram.diagonal().sqrt() if self.normalisation == "l2" else None)

    def __repr__(self) -> str:
        return f"MGDA(normalisation={self.normalisation!r})"


def _shortest(gram: Tensor, divisors: Tensor | None) -> Tensor:
    """Return the weights [K] of the shortest vector of the hull of the gradients, each divided by its divisor."""
    weights = [0.0] * len(gram)
    units = hull.Units.of(gram.tolist())
    if divisors is not None:
        lengths = [n / d for n, d in zip(units.lengths, divisors[units.present].tolist(), strict=True)]
        units = hull.Units(units.present, lengths, units.correlations)
    if units.present:
        amounts = [u / n for u, n in zip(hull.lowest_in_hull(units), units.lengths, strict=True)]
        total = sum(amounts)
        for i, amount in zip(units.present, amounts, strict=True):
            weights[i] = amount / total
    return torch.tensor(weights, dtype=torch.float64)
