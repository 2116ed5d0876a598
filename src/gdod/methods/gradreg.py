"""GradReg (Suteu & Guo, "Regularizing Deep Multi-Task Networks using Orthogonal Gradients", 2019,
equation 4)."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from gdod._checks import check_number
from gdod.methods.base import PenaltyMethod


class GradReg(PenaltyMethod):
    """Add to the losses a penalty on the squared cosines between task gradients:

        Σᵢ Lᵢ + weight · Σ_{i<j} cos²(gᵢ, gⱼ)

    The cosines are over all shared parameters, and the penalty's gradient is exact: it goes through
    the task gradients to everything they depend on, shared parameters and heads alike (second order,
    so models with operations that torch cannot differentiate twice are refused by torch).

    Deviation from the paper: none in the formula; the paper takes the gradients at chosen layers, here
    they are over all shared parameters. A task without labels, or whose gradient vanishes, takes part
    in no pair. One task: the plain gradient.

    Args:
        weight: the weight of the penalty.
    """

    GRID: ClassVar[Mapping[str, Sequence[float]]] = {"weight": (1e-1, 1e-2, 1e-3, 1e-4)}

    def __init__(self, weight: float = 1e-2) -> None:
        check_number("weight", weight, at_least=0)
        self.weight = weight

    def penalty(self, gram: Tensor) -> Tensor:
        squares = gram.diagonal()  # squared lengths [K]
        first, second = torch.triu_indices(len(gram), len(gram), 1)  # all pairs
        both = (squares[first] > 0) & (squares[second] > 0)
        first, second = first[both], second[both]
        return self.weight * (gram[first, second] ** 2 / (squares[first] * squares[second])).sum()

    def __repr__(self) -> str:
        return f"GradReg(weight={self.weight})"
