"""PLE (Tang, Liu, Zhao, Gong, "Progressive Layered Extraction (PLE): A Novel Multi-Task Learning
(MTL) Model for Personalized Recommendations", RecSys 2020)."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor, nn

from gdod._checks import check_number, check_positive
from gdod.errors import InputError
from gdod.models.config import MOST_LEVELS, Config
from gdod.models.features import Features
from gdod.models.layers import Experts, Gate, Tower, mix, numbered
from gdod.models.model import GatePlace, Model
from gdod.schema import Batch, Schema, Task


@dataclass(frozen=True, kw_only=True)
class PLEConfig(Config):
    """The sizes and options of `PLE`."""

    levels: int = 2
    """The number of extraction levels. One is the paper's CGC (Customized Gate Control)."""
    experts: int = 8
    """The number of experts of a level, all together."""
    task_experts: int = 1
    """How many of them each task has to itself; the rest is shared."""
    expert: tuple[int, ...] = (32,)
    """The sizes of the layers of each expert."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("levels", "experts", "task_experts"):
            check_positive(name, getattr(self, name))
        check_number("levels", self.levels, at_most=MOST_LEVELS)
        self._sizes("expert", at_least=1)

    def shared_experts(self, tasks: int) -> int:
        """Return how many experts of a level are shared, and raise if there is none left."""
        shared = self.experts - tasks * self.task_experts
        if shared < 1:
            raise InputError(
                f"experts={self.experts} with task_experts={self.task_experts} for each of {tasks} "
                f"tasks leaves none to share; use at least {tasks * self.task_experts + 1} experts"
            )
        return shared


class Extraction(nn.Module):
    """One level of PLE: experts of the tasks and of the shared branch, and a gate for each branch.

    Task i's gate weighs its own and the shared experts; the shared gate weighs all experts of the
    level. The last level has no shared gate, because nothing follows that would take its output.
    """

    def __init__(self, inputs: int, tasks: int, first: bool, last: bool, config: PLEConfig) -> None:
        super().__init__()
        own, shared = config.task_experts, config.shared_experts(tasks)
        self.counts = [own] * tasks + [shared]
        # In the first level all experts have the same input, so that they can be one wide layer. In
        # the last level they cannot: there the experts of a task are its own parameters.
        counts = [config.experts] if first and not last else self.counts
        self.experts = nn.ModuleList(Experts(count, inputs, config.expert, config) for count in counts)
        self.gates = nn.ModuleList(Gate(inputs, own + shared) for _ in range(tasks))
        self.shared_gate = None if last else Gate(inputs, config.experts)

    def forward(self, xs: list[Tensor], x: Tensor) -> tuple[list[Tensor], Tensor]:
        """Return the outputs [B, H] of the tasks and of the shared branch, from their inputs [B, in]."""
        *own, shared = self._expert_outputs(xs, x)  # K of [B, T, H], and [B, S, H]
        outputs = []
        for gate, x_i, own_i in zip(self.gates, xs, own, strict=True):
            seen = torch.cat([own_i, shared], 1)  # [B, T + S, H]
            outputs.append(mix(gate(x_i), seen))  # [B, T + S] x [B, T + S, H] -> [B, H]
        if self.shared_gate is None:
            return outputs, x
        everything = torch.cat([*own, shared], 1)  # [B, K * T + S, H]
        return outputs, mix(self.shared_gate(x), everything)  # [B, H]

    def _expert_outputs(self, xs: list[Tensor], x: Tensor) -> list[Tensor]:
        """Return the outputs of the experts of each task, [B, T, H], then of the shared ones, [B, S, H]."""
        if len(self.experts) == 1:
            return list(self.experts[0](x).split(self.counts, 1))  # [B, K * T + S, H], cut
        return [experts(x_i) for experts, x_i in zip(self.experts, [*xs, x], strict=True)]


class PLE(Model):
    """Experts of every task and shared ones, in levels that separate them step by step.

                       ┌─► experts 1 ──┬─► gate 1 ──────┐
        batch ► features ─► shared ────┼─► shared gate ─┼─► next level ... ─► tower i ─► logit i
                       └─► experts 2 ──┴─► gate 2 ──────┘

    In every level gate i sees the experts of task i and the shared ones, the shared gate sees all.
    Below the last level everything but the last gates is therefore reached by all tasks, task
    experts included: they feed the shared branch.
    """

    config_type = PLEConfig

    def __init__(self, schema: Schema, tasks: Iterable[Task], config: PLEConfig | None = None) -> None:
        config = config or PLEConfig()
        super().__init__(schema, tasks, config)
        self.features = Features(schema, config)
        count, outputs = len(self.tasks), config.expert[-1]
        widths = [self.features.width] + [outputs] * (config.levels - 1)
        self.levels = nn.ModuleList(
            Extraction(inputs, count, number == 0, number == config.levels - 1, config)
            for number, inputs in enumerate(widths)
        )
        self.towers = nn.ModuleList(Tower(outputs, task, config) for task in self.tasks)

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        x = self.features(batch)  # [B, width]
        xs = [x] * len(self.tasks)
        for level in self.levels:
            xs, x = level(xs, x)  # K of [B, H], and [B, H]
        towers = zip(self.tasks, self.towers, xs, strict=True)
        return {task.name: tower(x_i) for task, tower, x_i in towers}  # [B] each

    def _private(self, number: int) -> Iterable[nn.Module]:
        *_, last = levels = [level for level in self.levels if isinstance(level, Extraction)]
        private = [self.towers[number], last.gates[number], last.experts[number]]
        # What gate i of the level before makes goes into the experts and the gate of task i alone.
        return private + [level.gates[number] for level in levels[-2:-1]]

    def gate_places(self) -> list[GatePlace]:
        places = []
        for number, level in enumerate(self.levels, 1):
            assert isinstance(level, Extraction)
            *owns, count = level.counts
            shared = numbered("shared", count)
            own = [numbered(task.name, many) for task, many in zip(self.tasks, owns, strict=True)]
            for task, experts, gate in zip(self.tasks, own, level.gates, strict=True):
                places.append(GatePlace(number, (task.name,), experts + shared, gate))
            if level.shared_gate is not None:
                everything = tuple(chain(*own, shared))
                places.append(GatePlace(number, ("shared branch",), everything, level.shared_gate))
        return places
