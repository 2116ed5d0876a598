"""The subject of the measurements: a Shared-Bottom model, batches for it, and the cases around a centre."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import cycle
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

TABLES = 2
WIDTH = 8
BATCHES = 8


@dataclass(frozen=True)
class Case:
    """One setting of everything that is varied. The defaults are the centre of the variations."""

    tasks: int = 2
    groups: int = 16
    table_rows: int = 100_000
    batch: int = 256
    ids: Literal["uniform", "skewed"] = "uniform"
    adam: bool = False
    sparse: bool = False

    @property
    def rows(self) -> int:
        """The number of rows of M: one per group and task."""
        return min(self.groups, self.batch) * self.tasks

    @property
    def columns(self) -> int:
        """The number of columns of M, which is that of the shared parameters."""
        bottom = TABLES * WIDTH * 256 + 256 + 256 * 32 + 32
        return TABLES * self.table_rows * WIDTH + bottom

    def __str__(self) -> str:
        parts = [f"K={self.tasks}", f"{self.groups} groups", f"tables {self.table_rows:,}"]
        parts.append(f"batch {self.batch}")
        parts += ["skewed ids"] * (self.ids == "skewed") + ["Adam"] * self.adam
        return ", ".join(parts + ["sparse tables"] * self.sparse)


def variations() -> list[Case]:
    """Return the centre for two and six tasks, and each factor changed alone around it."""
    changes: list[dict[str, Any]] = [
        {},
        {"groups": 4},
        {"groups": 64},
        {"table_rows": 1_000_000},
        {"batch": 2048},
        {"ids": "skewed"},
        {"adam": True},
    ]
    cases = [replace(Case(tasks=tasks), **change) for tasks in (2, 6) for change in changes]
    return [*cases, Case(tasks=12), Case(table_rows=1_000_000, adam=True)]


class SharedBottom(nn.Module):
    """Two embedding tables, shared hidden layers [256, 32], and a tower [16, 1] for each task."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(case.table_rows, WIDTH, sparse=case.sparse) for _ in range(TABLES))
        self.bottom = nn.Sequential(nn.Linear(TABLES * WIDTH, 256), nn.ReLU(), nn.Linear(256, 32), nn.ReLU())
        self.towers = nn.ModuleList(
            nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 1)) for _ in range(case.tasks)
        )

    def shared(self) -> list[nn.Parameter]:
        return [*self.tables.parameters(), *self.bottom.parameters()]

    def private(self) -> list[nn.Parameter]:
        return list(self.towers.parameters())

    def forward(self, ids: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return the shared features [batch, 32] and a logit [batch] for each task, from ``ids`` [batch, tables]."""
        columns = zip(self.tables, ids.unbind(1), strict=True)
        features = self.bottom(torch.cat([table(column) for table, column in columns], dim=1))
        return features, [tower(features).squeeze(1) for tower in self.towers]


@dataclass(frozen=True)
class Batch:
    ids: Tensor  # [batch, tables]
    labels: Tensor  # [batch, tasks]


def batches(case: Case, seed: int = 0) -> Iterator[Batch]:
    """Yield a few batches over and over: enough that no step meets the ids of the step before."""
    generator = torch.Generator().manual_seed(seed)

    def draw() -> Batch:
        uniform = torch.rand(case.batch, TABLES, generator=generator)
        # A power of a uniform number is close to the long tail of real ids: with the fourth power,
        # one draw in six lands on one thousandth of the table.
        place = uniform if case.ids == "uniform" else uniform**4
        ids = (place * case.table_rows).long().clamp_(max=case.table_rows - 1)
        labels = torch.rand(case.batch, case.tasks, generator=generator).lt(0.3).float()
        return Batch(ids, labels)

    return cycle([draw() for _ in range(BATCHES)])


def forward(model: SharedBottom, batch: Batch) -> tuple[Tensor, list[Tensor]]:
    """Return the shared features and each task's per-example losses [batch]."""
    features, logits = model(batch.ids)
    pairs = zip(logits, batch.labels.unbind(1), strict=True)
    return features, [binary_cross_entropy_with_logits(logit, label, reduction="none") for logit, label in pairs]
