"""CAGrad (Liu et al., "Conflict-Averse Gradient Descent for Multi-task Learning", NeurIPS 2021,
Algorithm 1)."""

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from gdod._checks import check_number
from gdod.errors import InputError
from gdod.methods import hull
from gdod.methods.base import TaskMethod


class CAGrad(TaskMethod):
    """Take, within a ball around the mean gradient g₀, the update that does the most for the worst-off task.

    Algorithm 1 finds the weights w on the simplex where g_w·g₀ + c‖g₀‖‖g_w‖ is lowest, g_w = Σ wᵢ gᵢ,
    and goes along d = g₀ + c‖g₀‖ g_w/‖g_w‖. The update here is K·d, so that with c = 0 it is the sum
    of the task gradients, as `Sum` gives it, and learning rates compare:

        Σᵢ gᵢ + c ‖Σᵢ gᵢ‖ g_w/‖g_w‖

    Without conflict it is up to 1 + c times as long as the sum; the authors' code can undo that
    (``rescale``).

    Deviations from the paper: the weights are exact for any number of tasks, found by active sets in
    place of a general solver (theirs is SLSQP, from SciPy). Where the lowest g_w is zero, the direction
    of Algorithm 1 is not defined; the problem it solves, max_d minᵢ ⟨gᵢ, d⟩ within the ball, still is,
    and of its solutions we take the one nearest to g₀. A task gradient that is zero (no labels, or it
    has vanished) takes no part: it would allow every other task's gain to be given up. One task gets
    1 + c times its plain gradient, as Algorithm 1 has it, unless rescaled.

    Args:
        c: the radius of the ball, in lengths of the mean gradient. 0 is the plain sum; the paper proves
            that it converges to a stationary point of the mean loss for c < 1, and tends to MGDA's
            direction as c grows.
        rescale: 0: Algorithm 1 as printed (and as torchjd has it); 1: divided by 1 + c², the default
            in the authors' code; 2: divided by 1 + c.
    """

    GRID: ClassVar[Mapping[str, Sequence[float]]] = {"c": (0.1, 0.3, 0.5, 0.7, 0.9)}

    def __init__(self, c: float = 0.5, rescale: int = 0) -> None:
        check_number("c", c, at_least=0)
        if rescale not in (0, 1, 2) or isinstance(rescale, bool):
            raise InputError(f"rescale={rescale!r}; expected 0 (Algorithm 1), 1 (divide by 1 + c²) or 2 (by 1 + c)")
        self.c = c
        self.rescale = rescale

    def weigh_tasks(self, gram: Tensor) -> Tensor:
        products = gram.tolist()
        weights = [1.0] * len(products)
        units = hull.Units.of(products)
        if units.present:
            for i, amount, length in zip(units.present, self._correction(units), units.lengths, strict=True):
                weights[i] += amount / length
        divisor = (1.0, 1 + self.c**2, 1 + self.c)[self.rescale]
        return torch.tensor(weights, dtype=torch.float64) / divisor

    def _correction(self, units: hull.Units) -> hull.Vector:
        """Return the amounts of unit gradients to add to s = K g₀, the sum of the task gradients."""
        nothing = [0.0] * len(units.lengths)
        length = hull.norm(units.correlations, units.lengths)  # ‖s‖
        radius = self.c * length
        if radius == 0 or hull.is_nothing(length, units.lengths):
            return nothing
        slope = [sum(r * n for r, n in zip(row, units.lengths, strict=True)) / radius for row in units.correlations]
        noise = sum(units.lengths) / radius
        amounts = hull.lowest_in_hull(units, slope, noise=noise)
        reached = hull.norm(units.correlations, amounts)
        if hull.is_nothing(reached, amounts):
            nearest = hull.onto_dual_cone(units, slope, noise=noise)
            reached = hull.norm(units.correlations, nearest)
            if reached <= 1 + 1e-9:
                return [radius * z for z in nearest]
            # Zero is in the hull, but it is not the lowest point: this one is lower.
            amounts = hull.lowest_in_hull(units, slope, noise=noise, start=nearest)
            reached = hull.norm(units.correlations, amounts)
        if math.isclose(reached, 0.0, abs_tol=1e-300):
            return nothing
        return [radius / reached * u for u in amounts]

    def __repr__(self) -> str:
        return f"CAGrad(c={self.c}, rescale={self.rescale})"
