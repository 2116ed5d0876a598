"""Which basis vectors tasks agree on, from the tasks' projections on them.

Each function takes projections P [r, K] (basis vectors by tasks; numbers that count as zero are
exactly zero) and returns a factor for each of them [r, K].
"""

from collections.abc import Callable

import torch
from torch import Tensor


def sign(projections: Tensor) -> Tensor:
    """Return 1 where no two tasks point against each other (the paper's definition), and 0 elsewhere."""
    low, high = torch.aminmax(projections, dim=1, keepdim=True)
    return (low * high >= 0).to(projections).expand_as(projections)


def product(projections: Tensor) -> Tensor:
    """Return 1 where the product of the projections is not negative (Algorithm 1, line 4, as printed).

    For an odd number of tasks the product changes its sign with the basis vector, whose sign is
    arbitrary. Each vector is therefore turned first so that the projections' sum is not negative.
    """
    turned = projections * torch.where(projections.sum(1, keepdim=True) < 0, -1.0, 1.0)
    kept = turned.sign().prod(1) >= 0
    return kept.to(projections).unsqueeze(1).expand_as(projections)


def majority(projections: Tensor) -> Tensor:
    """Return |a - b| / K for the larger of a positive and b negative projections, and 0 for the others."""
    positive, negative = projections > 0, projections < 0
    lead = (positive.sum(1) - negative.sum(1)).unsqueeze(1)  # a - b
    winning = torch.where(lead > 0, positive, negative)
    return winning * (lead.abs().to(projections) / projections.shape[1])


def soft(projections: Tensor) -> Tensor:
    """Return |Σ p| / Σ |p| for all projections on a vector: 1 where all agree, 0 where they cancel.

    Not in the paper. Of the changes to GDOD that we studied it lost least (docs/when-it-helps.md).
    """
    total = projections.abs().sum(1, keepdim=True)
    lead = projections.sum(1, keepdim=True).abs()
    return torch.where(total > 0, lead / total, 1.0).clamp(max=1).expand_as(projections)


AGREEMENTS: dict[str, Callable[[Tensor], Tensor]] = {"sign": sign, "product": product, "soft": soft}
