"""AITM (Xi, Chen, Yan, Zhang, Zhu, Zhuang, Chen, "Modeling the Sequential Dependence among Audience Multi-step
Conversions with Multi-task Learning in Targeted Display Advertising", KDD 2021)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt

import torch
from torch import Tensor, nn

from gdod._checks import check_number
from gdod.models.chains import ChainConfig, ChainModel
from gdod.models.features import Features
from gdod.models.layers import activation, glorot, linear, mix, mlp, output_layer
from gdod.schema import Batch, Schema, Task


@dataclass(frozen=True, kw_only=True)
class AITMConfig(ChainConfig):
    """The sizes and options of `AITM`."""

    calibrator: float = 0.6
    """The weight of the behavioural expectation calibrator, which asks that a step is no more probable than the one
    before; 0.6 is the paper's."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._sizes("tower", at_least=1)
        check_number("calibrator", self.calibrator, at_least=0)


class Transfer(nn.Module):
    """Adaptive information transfer from a step to the next, the paper's AIT module: [B, H], [B, H] -> [B, H].

    p = g(z_before), and z = Σ_u w_u h1(u) over u in {p, q}, with w = softmax(<h2(u), h3(u)> / √H).
    """

    def __init__(self, width: int, config: AITMConfig) -> None:
        super().__init__()
        self.passed = nn.Sequential(linear(width, width), *activation(config))  # g
        self.projections = linear(width, 3 * width, bias=False)  # h1, h2 and h3, side by side
        glorot(self.projections.weight, width, width)  # as if each stood alone
        self.scale = 1 / sqrt(width)

    def forward(self, before: Tensor, own: Tensor) -> Tensor:
        both = torch.stack([self.passed(before), own], 1)  # [B, 2, H]
        value, key, query = self.projections(both).chunk(3, 2)  # [B, 2, 3 * H] -> [B, 2, H] each
        weights = ((key * query).sum(2) * self.scale).softmax(1)  # [B, 2]
        return mix(weights, value)  # [B, 2] x [B, 2, H] -> [B, H]


class AITM(ChainModel):
    """A tower for each step, whose last hidden layer is mixed with what the step before passes on.

        batch ► features ─┬─► tower 1 ──► z₁ ─┬─► logit of p(click)
                          │                   ▼ transfer
                          └─► tower 2 ──► q₂ ─► z₂ ─► logit of p(buy)

    The probability of a step is that of all steps up to it, over all rows. What makes a later step no more probable
    than an earlier one is the behavioural expectation calibrator, max(p_t - p_{t-1}, 0) for each example:
    `example_penalties` gives it, times `calibrator`, and training adds it to the loss of the later step. Further tasks
    may stand beside the chain, with towers of their own. The losses of later steps reach the tower of a step, so it is
    shared; by the calibrator they reach its output layer, too.

    Deviations: where the later step has no label, its calibrator does not count either; layers that all towers share
    may lie below them (`bottom`); the output layer comes right after the transfer.
    """

    config_type = AITMConfig

    def __init__(self, schema: Schema, tasks: Iterable[Task], config: AITMConfig | None = None) -> None:
        config = config or AITMConfig()
        super().__init__(schema, tasks, config)
        self.calibrator = config.calibrator
        self.features = Features(schema, config)
        self.bottom = mlp(self.features.width, config.bottom, config)
        inputs, width = (self.features.width, *config.bottom)[-1], config.tower[-1]
        self.towers = nn.ModuleList(mlp(inputs, config.tower, config) for _ in self.tasks)
        self.transfers = nn.ModuleList(Transfer(width, config) for _ in self.chain[1:])
        self.outputs = nn.ModuleList(output_layer(width, task, config) for task in self.tasks)

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        h = self.bottom(self.features(batch))  # [B, width] -> [B, in]
        units = {task.name: tower(h) for task, tower in zip(self.tasks, self.towers, strict=True)}  # [B, H] each
        for (before, after), transfer in zip(pairwise(self.chain), self.transfers, strict=True):
            units[after] = transfer(units[before], units[after])  # [B, H]
        logits = {}
        for task, output in zip(self.tasks, self.outputs, strict=True):
            logit = output(units[task.name])  # [B, outputs]
            logits[task.name] = logit.squeeze(-1) if task.classes is None else logit
        return logits

    def example_penalties(self, logits: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return max(p_t - p_{t-1}, 0) times ``calibrator``, [B], for every step but the first."""
        if not self.calibrator:
            return {}
        penalties = {}
        for before, after in pairwise(self.chain):
            above = (logits[after].sigmoid() - logits[before].sigmoid()).relu()  # [B], or [B, k] of an ensemble
            penalties[after] = self.calibrator * (above if above.dim() == 1 else above.mean(1))
        return penalties

    def _private(self, number: int) -> Iterable[nn.Module]:
        if self._is_followed(number):
            return [] if self.calibrator else [self.outputs[number]]
        last = [self.transfers[-1]] if self.tasks[number].name == self.chain[-1] else []
        return [self.towers[number], self.outputs[number], *last]
