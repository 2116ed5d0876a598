"""STEM (Su, Pan, Wang, Xiao, Quan, Chen, Jiang, "STEM: Unleashing the Power of Embeddings for Multi-Task
Recommendation", AAAI 2024), in its form STEM-Net."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gdod._checks import check_positive
from gdod.models.config import Config
from gdod.models.features import Features
from gdod.models.layers import Experts, Gate, Tower, mix, numbered
from gdod.models.model import GatePlace, Model
from gdod.schema import Batch, Schema, Task


@dataclass(frozen=True, kw_only=True)
class STEMConfig(Config):
    """The sizes and options of `STEM`."""

    task_experts: int = 2
    """The number of experts that each task has to itself."""
    shared_experts: int = 2
    """The number of experts that all tasks share."""
    expert: tuple[int, ...] = (32,)
    """The sizes of the layers of each expert."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("task_experts", self.task_experts)
        check_positive("shared_experts", self.shared_experts)
        self._sizes("expert", at_least=1)


class STEM(Model):
    """Every task has vectors of ids and experts of its own, beside those that all share.

        batch ─┬─► features 1 ──────► experts 1 ──────┬─► gate 1 ──► tower 1 ──► logit 1
               ├─► shared features ─► shared experts ─┤
               └─► features 2 ──────► experts 2 ──────┴─► gate 2 ──► tower 2 ──► logit 2

    Gate i is softmax(W_i (x_i + x_shared)) and weighs the experts of all tasks and the shared ones. The experts of
    other tasks give it their output, but get no gradient from task i (the paper's "all forward, task-specific
    backward"). So the tables of a task belong to it alone and learn what it needs, and the shared ones are the only
    place where tasks may pull in different directions.

    Deviation: one level of experts and gates.
    """

    config_type = STEMConfig

    def __init__(self, schema: Schema, tasks: Iterable[Task], config: STEMConfig | None = None) -> None:
        config = config or STEMConfig()
        super().__init__(schema, tasks, config)
        self.features = Features(schema, config)
        self.task_features = nn.ModuleList(Features(schema, config) for _ in self.tasks)
        width, own, shared = self.features.width, config.task_experts, config.shared_experts
        self.experts = Experts(shared, width, config.expert, config)
        self.task_experts = nn.ModuleList(Experts(own, width, config.expert, config) for _ in self.tasks)
        self.gates = nn.ModuleList(Gate(width, own * len(self.tasks) + shared) for _ in self.tasks)
        self.towers = nn.ModuleList(Tower(config.expert[-1], task, config) for task in self.tasks)

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        x = self.features(batch)  # [B, width]
        shared = self.experts(x)  # [B, S, H]
        xs = [features(batch) for features in self.task_features]  # K of [B, width]
        own = [experts(x_i) for experts, x_i in zip(self.task_experts, xs, strict=True)]  # K of [B, T, H]
        others = [experts.detach() for experts in own]
        logits = {}
        for number, task in enumerate(self.tasks):
            seen = torch.cat([*others[:number], own[number], *others[number + 1 :], shared], 1)  # [B, K * T + S, H]
            weights = self.gates[number](xs[number] + x)  # [B, K * T + S]
            logits[task.name] = self.towers[number](mix(weights, seen))  # [B, H] -> [B]
        return logits

    def _private(self, number: int) -> Iterable[nn.Module]:
        parts = (self.task_features, self.task_experts, self.gates, self.towers)
        return [part[number] for part in parts]

    def gate_places(self) -> list[GatePlace]:
        experts: tuple[str, ...] = ()
        for task, own in zip(self.tasks, self.task_experts, strict=True):
            assert isinstance(own, Experts)
            experts += numbered(task.name, own.count)
        experts += numbered("shared", self.experts.count)
        return [GatePlace(1, (task.name,), experts, gate) for task, gate in zip(self.tasks, self.gates, strict=True)]
