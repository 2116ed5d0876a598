"""MMoE (Ma, Zhao, Yi, Chen, Hong, Chi, "Modeling Task Relationships in Multi-task Learning with
Multi-gate Mixture-of-Experts", KDD 2018)."""

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor, nn

from gdod._checks import check_positive
from gdod.models.config import Config
from gdod.models.features import Features
from gdod.models.layers import Experts, Gate, Tower, mix, numbered
from gdod.models.model import GatePlace, Model
from gdod.schema import Batch, Schema, Task


@dataclass(frozen=True, kw_only=True)
class MMoEConfig(Config):
    """The sizes and options of `MMoE`."""

    experts: int = 8
    """The number of experts."""
    expert: tuple[int, ...] = (32,)
    """The sizes of the layers of each expert."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("experts", self.experts)
        self._sizes("expert", at_least=1)


class MMoE(Model):
    """Experts that all tasks share, and for each task a gate that weighs them by the input.

        batch ──► features ─┬─► experts 1 … E ─┐
                            ├─► gate 1 ────────┼─► Σ_e gate_1e · expert_e ──► tower 1 ──► logit 1
                            └─► gate 2 ────────┴─► Σ_e gate_2e · expert_e ──► tower 2 ──► logit 2

    The gates are softmax(W x), as in the paper.
    """

    config_type = MMoEConfig

    def __init__(self, schema: Schema, tasks: Iterable[Task], config: MMoEConfig | None = None) -> None:
        config = config or MMoEConfig()
        super().__init__(schema, tasks, config)
        self.features = Features(schema, config)
        width = self.features.width
        self.experts = Experts(config.experts, width, config.expert, config)
        self.gates = nn.ModuleList(Gate(width, config.experts) for _ in self.tasks)
        self.towers = nn.ModuleList(Tower(config.expert[-1], task, config) for task in self.tasks)

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        x = self.features(batch)  # [B, width]
        experts = self.experts(x)  # [B, E, H]
        logits = {}
        for task, gate, tower in zip(self.tasks, self.gates, self.towers, strict=True):
            h = mix(gate(x), experts)  # [B, E] x [B, E, H] -> [B, H]
            logits[task.name] = tower(h)  # [B]
        return logits

    def _private(self, number: int) -> Iterable[nn.Module]:
        return [self.gates[number], self.towers[number]]

    def gate_places(self) -> list[GatePlace]:
        experts = numbered("expert", self.experts.count)
        return [GatePlace(1, (task.name,), experts, gate) for task, gate in zip(self.tasks, self.gates, strict=True)]
