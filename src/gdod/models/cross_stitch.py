"""Cross-Stitch (Misra, Shrivastava, Gupta, Hebert, "Cross-stitch Networks for Multi-task Learning",
CVPR 2016)."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from gdod._checks import check_number
from gdod.models.config import Config
from gdod.models.features import Features
from gdod.models.layers import Experts, Stack, activation, mlp, output_layer
from gdod.models.model import GatePlace, Model
from gdod.schema import Batch, Schema, Task


@dataclass(frozen=True, kw_only=True)
class CrossStitchConfig(Config):
    """The sizes and options of `CrossStitch`."""

    bottom: tuple[int, ...] = (256, 32)
    """The sizes of the layers that all tasks share, below the towers. () with a tower of (256, 32, 16) is the form
    of the original paper: a network for each task, mixed after every hidden layer."""
    own: float = 0.9
    """The share that a tower keeps of itself at the start; the others have the rest in equal parts."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._sizes("bottom")
        self._sizes("tower", at_least=1)
        check_number("own", self.own, above=0, at_most=1)


class Stitch(nn.Module):
    """Mix the units of the towers, [K, B, H] -> K of [B, H]: output i is Σ_j a_ij h_j.

    Row i of the matrix a is a parameter of its own, so that in the last unit, where nothing mixes
    it any more, it belongs to task i alone.
    """

    def __init__(self, tasks: int, own: float) -> None:
        super().__init__()
        mixing = torch.eye(1)
        if tasks > 1:
            rest = (1 - own) / (tasks - 1)
            mixing = torch.full((tasks, tasks), rest).fill_diagonal_(own)  # [K, K]
        self.rows = nn.ParameterList(row.clone() for row in mixing)  # K of [K]

    def forward(self, h: Tensor) -> list[Tensor]:
        flat = h.flatten(1)  # [K, B, H] -> [K, B * H]
        return [(row @ flat).view(h.shape[1:]) for row in self.rows]  # [K] x [K, B * H] -> [B, H]


class CrossStitch(Model):
    """Towers whose hidden layers are mixed by learned matrices, on a common bottom.

                                 ┌──► layer 1 ─┐          ┌─► layer 1 ─ ... ─► output 1
        batch ► features ► bottom┤              ├► stitch ─┤
                                 └──► layer 2 ─┘          └─► layer 2 ─ ... ─► output 2

    A stitch gives tower i the mixture Σ_j a_ij h_j of all towers' hidden units, one number a_ij for
    each pair of towers, near the identity at the start. As in the GDOD paper, the towers are those
    of the Shared-Bottom model.
    """

    config_type = CrossStitchConfig

    def __init__(self, schema: Schema, tasks: Iterable[Task], config: CrossStitchConfig | None = None) -> None:
        config = config or CrossStitchConfig()
        super().__init__(schema, tasks, config)
        count, sizes = len(self.tasks), config.tower
        self.features = Features(schema, config)
        self.bottom = mlp(self.features.width, config.bottom, config)
        inputs = (self.features.width, *config.bottom)[-1]
        self.first = Experts(count, inputs, sizes[:1], config)
        self.stacks = nn.ModuleList(Stack(count, *pair) for pair in pairwise(sizes))
        self.activation = nn.Sequential(*activation(config))
        self.stitches = nn.ModuleList(Stitch(count, config.own) for _ in sizes)
        self.outputs = nn.ModuleList(output_layer(sizes[-1], task, config) for task in self.tasks)

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        x = self.bottom(self.features(batch))  # [B, width] -> [B, in]
        h = self.first(x).transpose(0, 1)  # [B, K, H] -> [K, B, H]
        mixed: list[Tensor] = self.stitches[0](h)  # K of [B, H]
        for stack, stitch in zip(self.stacks, list(self.stitches)[1:], strict=True):
            h = self.activation(stack(torch.stack(mixed)))  # [K, B, H] -> [K, B, H']
            mixed = stitch(h)  # K of [B, H']
        logits = {}
        for task, output, units in zip(self.tasks, self.outputs, mixed, strict=True):
            logit = output(units)  # [B, outputs]
            logits[task.name] = logit.squeeze(-1) if task.classes is None else logit
        return logits

    def _private(self, number: int) -> Iterable[nn.Module | nn.Parameter]:
        last = self.stitches[-1]
        assert isinstance(last, Stitch)
        return [self.outputs[number], last.rows[number]]

    def gate_places(self) -> list[GatePlace]:
        names = [task.name for task in self.tasks]
        towers = tuple(f"tower of {name}" for name in names)
        return [
            GatePlace(level, (name,), towers, row)
            for level, stitch in enumerate(self.stitches, 1)
            if isinstance(stitch, Stitch)
            for name, row in zip(names, stitch.rows, strict=True)
        ]
