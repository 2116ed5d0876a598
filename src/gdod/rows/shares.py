"""How a task's mean loss is spread over groups of examples."""

from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from gdod.rows.groups import Groups


@dataclass(frozen=True)
class Shares:
    """The share of each task's labelled examples that lies in each group."""

    averages: Tensor  # C [K, N]: a task's gradient is the average of its rows, weighted by these

    @cached_property
    def inverse(self) -> Tensor:
        """The factor that makes a row of a group's contribution to a task's gradient; 0 without labels. [N]"""
        share = self.averages.sum(0)
        return torch.where(share > 0, 1 / share, 0.0)

    @cached_property
    def inverses(self) -> Tensor:
        """The product of the factors of each two rows. [N, N]"""
        return self.inverse * self.inverse.unsqueeze(1)

    @cached_property
    def largest(self) -> float:
        """The largest of `inverses`."""
        return float(self.inverses.max())

    @cached_property
    def empty(self) -> Tensor | None:
        """Which rows have no labelled examples; None if all have some. [N]"""
        empty = self.inverse == 0
        return empty if bool(empty.any()) else None


def labels_in(groups: Groups, labelled: Tensor) -> Tensor:
    """Return how many labelled examples each task has in each group, from a mask [K, B]. [K, n]"""
    labels = labelled.to("cpu", torch.float64)
    return torch.zeros(len(labels), groups.count, dtype=torch.float64).index_add_(1, groups.of_example, labels)


def shares_of(tasks: int, groups: Groups, in_groups: Tensor | None) -> Shares:
    """Return the shares of groups; ``in_groups`` [K, n]: labelled examples, as of `labels_in`; None: all are."""
    if in_groups is None:
        return _shares_of_all(tasks, groups)
    share = in_groups / in_groups.sum(1, keepdim=True).clamp(min=1)  # [K, n]
    return Shares(torch.diag_embed(share.T).flatten(0, 1).T)  # [n, K, K] -> [K, N]


@lru_cache(maxsize=64)
def _shares_of_all(tasks: int, groups: Groups) -> Shares:
    share = torch.bincount(groups.of_example).double() / groups.examples
    return Shares(torch.eye(tasks, dtype=torch.float64).repeat(1, groups.count) * share.repeat_interleave(tasks))
