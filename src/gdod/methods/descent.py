"""The optimizer of what a method learns: a number for each task.

The same formulas as `torch.optim.SGD` and `torch.optim.Adam`, in float64 and for each task by itself: a
task that is absent from a step keeps its number, and its part of the optimizer's memory too.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from gdod._checks import check_choice, check_number
from gdod.errors import InputError

_FIRST, _SECOND, _TINY = 0.9, 0.999, 1e-8  # Adam's β₁, β₂ and ε


class Descent:
    """An optimizer, "adam" or "sgd", for a vector with one number for each task."""

    def __init__(self, optimizer: str, lr: float) -> None:
        check_choice("optimizer", optimizer, ("adam", "sgd"))
        check_number("lr", lr, at_least=0)
        self.optimizer = optimizer
        self.lr = lr
        self.memory: Tensor | None = None  # mean, mean square and number of the gradients so far [3, K]

    def step(self, values: Tensor, gradient: Tensor, present: Tensor) -> Tensor:
        """Return the values [K] after a step against the gradient [K]; those of absent tasks are unchanged."""
        if self.optimizer == "sgd":
            return torch.where(present, values - self.lr * gradient, values)
        if self.memory is None:
            self.memory = values.new_zeros(3, len(values))
        mean, square, count = self.memory
        after = torch.stack(
            [_FIRST * mean + (1 - _FIRST) * gradient, _SECOND * square + (1 - _SECOND) * gradient**2, count + 1]
        )  # [3, K]
        self.memory = torch.where(present, after, self.memory)
        mean, square, count = after
        root = (square / (1 - _SECOND**count)).sqrt() + _TINY
        return torch.where(present, values - self.lr * mean / (1 - _FIRST**count) / root, values)

    def state_dict(self) -> dict[str, Any]:
        return {} if self.memory is None else {"memory": self.memory.clone()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.memory = state["memory"].clone() if "memory" in state else None


def check_state(method: object, state: Mapping[str, Any], keys: set[str]) -> None:
    """Raise unless a state has these keys, or is empty, as it is before the first step."""
    if state and set(state) != keys:
        raise InputError(
            f"the state holds {sorted(state)}; expected {sorted(keys)}, as {method!r}.state_dict() gives it"
        )


def check_tasks(method: object, known: int, given: int) -> None:
    """Raise if a method that has learned about one number of tasks is given another one."""
    if known != given:
        raise InputError(
            f"{method!r} has learned about {known} tasks, but there are {given}; use one method for each set of tasks"
        )
