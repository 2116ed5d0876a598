"""PCGrad (Yu et al., "Gradient Surgery for Multi-Task Learning", NeurIPS 2020, Algorithm 1)."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from gdod.errors import InputError
from gdod.methods.base import TaskMethod
from gdod.methods.generator import generator_of


class PCGrad(TaskMethod):
    """Remove from each task gradient what points against another one, taking the others in random order.

    The update is the sum of the projected gradients, as in the paper, so that without conflicts it is
    the plain sum. A task gradient that is zero (no labels, or it has vanished) conflicts with none;
    one task keeps its plain gradient.

    Deviations from the paper: none. Gradients are never formed: each projected one is its
    coefficients on the original ones, with its inner products with them.

    Args:
        seed: where the random orders start; a number or a `torch.Generator`.
    """

    def __init__(self, seed: int | torch.Generator = 0) -> None:
        self.generator = generator_of(seed)

    def weigh_tasks(self, gram: Tensor) -> Tensor:
        tasks = len(gram)
        orders = torch.rand(tasks, tasks, generator=self.generator).argsort(1).tolist()
        products = gram.tolist()
        weights = [1.0] * tasks
        for i, order in enumerate(orders):
            with_others = products[i]  # inner products of the projected gradient with the original ones [K]
            for j in order:
                if j != i and with_others[j] < 0 < products[j][j]:
                    share = with_others[j] / products[j][j]
                    weights[j] -= share
                    with_others = [x - share * y for x, y in zip(with_others, products[j], strict=True)]
        return torch.tensor(weights, dtype=torch.float64)

    def state_dict(self) -> dict[str, Any]:
        return {"generator": self.generator.get_state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if set(state) != {"generator"}:
            raise InputError(f"the state holds {sorted(state)}; expected 'generator', as PCGrad.state_dict() gives it")
        self.generator.set_state(state["generator"])

    def __repr__(self) -> str:
        return "PCGrad()"
