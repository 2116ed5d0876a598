"""The two-task problem with two parameters that CAGrad's paper draws (Liu et al. 2021, figure 2 and appendix).

Above x₂ = 0 each loss has a deep narrow valley, at different places; below it lie two paraboloids with
minima at x₁ = 7 and x₁ = -7. Between those is the Pareto set, a line, with the minimum of the mean
loss in its middle.
"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from gdod.errors import InputError
from gdod.methods.base import Method, PenaltyMethod
from gdod.methods.gram import Gram

STARTS = ((-8.5, 7.5), (-8.5, -5.0), (9.0, 9.0))  # the paper's
LOWEST = -20.0  # no loss is below; methods that weigh losses are shown how far above they are
_DEPTH = 5e-6  # of the valleys, whose logarithm has no bottom


def losses(place: Tensor) -> Tensor:
    """Return both losses [..., 2] at places [..., 2]."""
    x, y = place.unbind(-1)
    valley_1 = (0.5 * (-x - 7) - torch.tanh(-y)).abs().clamp(min=_DEPTH).log() + 6
    valley_2 = (0.5 * (-x + 3) + torch.tanh(-y) + 2).abs().clamp(min=_DEPTH).log() + 6
    bowl_1 = ((-x + 7) ** 2 + 0.1 * (-y - 8) ** 2) / 10 - 20
    bowl_2 = ((-x - 7) ** 2 + 0.1 * (-y - 8) ** 2) / 10 - 20
    above, below = torch.tanh(y / 2).clamp(min=0), torch.tanh(-y / 2).clamp(min=0)
    return torch.stack([valley_1 * above + bowl_1 * below, valley_2 * above + bowl_2 * below], -1)


def paths(
    methods: Sequence[Method], starts: Sequence[Sequence[float]], *, steps: int = 6000, lr: float = 0.02
) -> Tensor:
    """Return the places [steps + 1, methods, 2] that Adam goes through from a start with each method's updates."""
    if len(methods) != len(starts) or any(len(start) != 2 for start in starts):
        raise InputError(f"{len(methods)} methods and starts={starts!r}; expected two numbers for each method")
    place = torch.tensor(starts, dtype=torch.float64, requires_grad=True)  # [P, 2]
    optimizer = torch.optim.Adam([place], lr=lr)
    averages = torch.eye(2, dtype=torch.float64)
    places = [place.detach().clone()]
    second_order = any(isinstance(method, PenaltyMethod) for method in methods)
    for _ in range(steps):
        values = losses(place)
        # A path's losses depend on its own place alone, so one gradient of the sum serves all. [P, 2 tasks, 2]
        rows = torch.stack(
            [
                torch.autograd.grad(task.sum(), place, retain_graph=True, create_graph=second_order)[0]
                for task in values.unbind(-1)
            ],
            1,
        )
        products, shown = rows @ rows.mT, values.detach() - LOWEST
        weights = [
            method.weigh(Gram(gram, averages, mean_losses=partial(torch.clone, loss))).rows
            if not isinstance(method, PenaltyMethod)
            else averages.sum(0)
            for method, gram, loss in zip(methods, products.detach(), shown, strict=True)
        ]
        penalties = [m.penalty(gram) for m, gram in zip(methods, products, strict=True) if isinstance(m, PenaltyMethod)]
        place.grad = torch.einsum("pk,pkd->pd", torch.stack(weights), rows.detach())
        if penalties:
            place.grad += torch.autograd.grad(torch.stack(penalties).sum(), place)[0]
        optimizer.step()
        places.append(place.detach().clone())
    return torch.stack(places)
