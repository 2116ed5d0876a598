"""Losses before they were put together: the same tasks, or nothing."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from gdod.rows.targets import before_stacking


@pytest.mark.parametrize(
    ("join", "apart"),
    [
        (lambda tasks: torch.stack(tasks, 1), True),
        (lambda tasks: torch.stack(tasks, -1), True),
        (lambda tasks: torch.stack(tasks).t(), True),
        (lambda tasks: torch.stack(tasks).permute(1, 0), True),
        (lambda tasks: torch.cat([task[:, None] for task in tasks], 1), True),
        (lambda tasks: torch.stack(tasks), False),
        (lambda tasks: torch.stack(tasks).permute(0, 1), False),
        (lambda tasks: torch.stack(tasks).transpose(1, 1), False),
        (lambda tasks: torch.stack(tasks, 1) * 2, False),
    ],
)
def test_tasks_are_taken_apart_where_each_was_a_column(join: Callable[[list[Tensor]], Tensor], apart: bool) -> None:
    """As many examples as tasks, so that nothing in the shapes tells them apart."""
    tasks = [torch.randn(2, requires_grad=True).square() for _ in range(2)]
    targets = before_stacking(join(tasks))
    assert (targets is not None) is apart
    if targets is not None and targets[0].column is None:
        assert [target.node for target in targets] == [task.grad_fn for task in tasks]
