"""How a task's mean loss is spread over groups of examples."""

from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from gdod._backward.losses import Tasks
from gdod.rows import Groups


@dataclass(frozen=True)
class Shares:
    """How a task's mean loss is spread over groups, and what follows for rows."""

    averages: Tensor  # C [K, N]: the share of a task's labelled examples that lies in each group

    @cached_property
    def inverse(self) -> Tensor:
        """From the part of a task's gradient that a group contributes to the group's own mean. [N]"""
        share = self.averages.sum(0)
        return torch.where(share > 0, 1 / share, 0.0)

    @cached_property
    def inverses(self) -> Tensor:
        """[N, N]"""
        return self.inverse * self.inverse.unsqueeze(1)

    @cached_property
    def largest(self) -> float:
        """Of the inverses."""
        return float(self.inverses.max())

    @cached_property
    def empty(self) -> Tensor | None:
        """Which rows have no examples. [N]"""
        empty = self.inverse == 0
        return empty if bool(empty.any()) else None


def shares_of(tasks: Tasks, groups: Groups) -> Shares:
    if tasks.labelled is None:
        return shares_of_groups(len(tasks.names), groups)
    labels = tasks.labelled.cpu().double()
    in_group = torch.zeros(len(labels), groups.count, dtype=torch.float64).index_add_(1, groups.of_example, labels)
    return shares_of_groups(len(tasks.names), groups, in_group)


def shares_of_groups(tasks: int, groups: Groups, in_group: Tensor | None = None) -> Shares:
    """``in_group``: the labelled examples of each task in each group [K, n]; None: all are."""
    if in_group is None:
        return _shares_of_all(tasks, groups)
    share = in_group / in_group.sum(1, keepdim=True).clamp(min=1)  # [K, n]
    return Shares(torch.diag_embed(share.T).flatten(0, 1).T)  # [n, K, K] -> [K, N]


@lru_cache(maxsize=64)
def _shares_of_all(tasks: int, groups: Groups) -> Shares:
    share = torch.bincount(groups.of_example).double() / groups.examples
    return Shares(torch.eye(tasks, dtype=torch.float64).repeat(1, groups.count) * share.repeat_interleave(tasks))
