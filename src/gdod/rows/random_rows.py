"""Random vectors of the whole parameter space, for the ablation that takes its basis from there.

They are drawn a piece at a time and drawn again when their sum is wanted, never stored.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

_NUMBERS_AT_ONCE = 2**22


class RandomRows:
    def __init__(self, gradients: Sequence[Sequence[tuple[Tensor, Tensor]]]) -> None:
        """``gradients``: for each task the shared parameters with its gradient."""
        self.gradients = gradients
        self.seed = 0

    def draw(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draws Z [r, D], r at most D; returns its products with the task gradients [r, K] and Z Zᵀ."""
        self.seed = int(torch.randint(2**62, (), generator=generator))
        count = min(count, sum(parameter.numel() for parameter, _ in self.gradients[0]))
        with_tasks = torch.zeros(count, len(self.gradients), dtype=torch.float64)
        among = torch.zeros(count, count, dtype=torch.float64)
        for grads, pieces in zip(zip(*self.gradients, strict=True), self._pieces(count), strict=True):
            flat = torch.stack([_flat(grad) for _, grad in grads], 1)  # [numel, K]
            first = 0
            for piece in pieces:
                with_tasks += piece @ flat[first : first + piece.shape[1]]
                among += piece @ piece.T
                first += piece.shape[1]
        return with_tasks, among

    def combine(self, weights: Tensor) -> list[tuple[Tensor, Tensor]]:
        """The weighted sum of the vectors drawn last, as gradients."""
        grads = []
        for (parameter, grad), pieces in zip(self.gradients[0], self._pieces(len(weights)), strict=True):
            update = torch.cat([weights @ piece for piece in pieces]).view(parameter.shape).to(parameter)
            grads.append((parameter, update.to_sparse(1) if grad.is_sparse else update))
        return grads

    def _pieces(self, count: int) -> Iterator[Iterator[Tensor]]:
        """For each parameter its columns of Z, some at a time; the same ones each time."""
        generator = torch.Generator().manual_seed(self.seed)
        step = max(1, _NUMBERS_AT_ONCE // count)
        for parameter, _ in self.gradients[0]:
            sizes = [min(step, parameter.numel() - first) for first in range(0, parameter.numel(), step)]
            yield (torch.randn(count, size, dtype=torch.float64, generator=generator) for size in sizes)


def _flat(grad: Tensor) -> Tensor:
    return (grad.to_dense() if grad.is_sparse else grad).reshape(-1).to("cpu", torch.float64)
