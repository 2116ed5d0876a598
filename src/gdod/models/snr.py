"""SNR (Ma, Zhao, Chen, Li, Hong, Chi, "SNR: Sub-Network Routing for Flexible Parameter Sharing in
Multi-Task Learning", AAAI 2019), in its form SNR-Trans.

The coding variables follow the hard concrete distribution of Louizos, Welling, Kingma, "Learning
Sparse Neural Networks through L0 Regularization", ICLR 2018.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from math import log

import torch
from torch import Tensor, nn

from gdod._checks import check_choice, check_number, check_positive
from gdod.models.config import MOST_LEVELS, Config
from gdod.models.features import Features
from gdod.models.layers import Experts, Stack, Tower, activation, numbered
from gdod.models.model import GatePlace, Model
from gdod.schema import Batch, Schema, Task


@dataclass(frozen=True, kw_only=True)
class SNRConfig(Config):
    """The sizes and options of `SNR`."""

    levels: int = 2
    """The number of levels of sub-networks, with routing between them and from the last one to the towers."""
    subnetworks: int = 8
    """The number of sub-networks of a level."""
    width: int = 32
    """The number of units of a sub-network."""
    l0: float = 1e-4
    """The weight of the expected number of open connections in `SNR.penalty`."""
    open: float = 0.5
    """How open connections are at the start: log α = log(open / (1 - open))."""
    temperature: float = 2 / 3
    """β of the hard concrete distribution."""
    low: float = -0.1
    """γ, below 0: what a concrete variable of 0 is stretched to, before it is cut off at 0."""
    high: float = 1.1
    """ζ, above 1: what a concrete variable of 1 is stretched to, before it is cut off at 1."""
    sampling: str = "batch"
    """Whether z is drawn once for each "batch" or for each "example"."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("levels", "subnetworks", "width"):
            check_positive(name, getattr(self, name))
        check_number("levels", self.levels, at_most=MOST_LEVELS)
        check_choice("sampling", self.sampling, ("batch", "example"))
        check_number("l0", self.l0, at_least=0)
        check_number("open", self.open, above=0, below=1)
        check_number("temperature", self.temperature, above=0)
        check_number("low", self.low, below=0)
        check_number("high", self.high, above=1)


class Coding(nn.Module):
    """Coding variables z in [0, 1], one for each connection from J sub-networks to I others.

    In training  z = clamp(s (ζ - γ) + γ, 0, 1),  s = σ((log u - log(1 - u) + log α) / β),  u ~ U(0, 1),
    in evaluation  z = clamp(σ(log α) (ζ - γ) + γ, 0, 1).
    """

    def __init__(self, targets: int, sources: int, config: SNRConfig) -> None:
        super().__init__()
        start = log(config.open / (1 - config.open))
        self.log_alpha = nn.Parameter(start + 0.01 * torch.randn(targets, sources))  # [I, J]
        self.temperature, self.low, self.high = config.temperature, config.low, config.high
        self.each_example = config.sampling == "example"

    def forward(self, examples: int) -> Tensor:
        """Return z for each example. [B, I, J]

        It has that shape also when all examples have the same z: log α is expanded over the examples before
        anything else happens to it, so that its gradient can be told apart by example.
        """
        log_alpha = self.log_alpha.expand(examples, -1, -1)  # [I, J] -> [B, I, J]
        if not self.training:
            return self._stretched(log_alpha.sigmoid())
        u = torch.rand_like(log_alpha if self.each_example else log_alpha[:1])  # [B or 1, I, J]
        noise = u.logit(eps=1e-6)  # log u - log(1 - u), finite for u = 0 as well
        return self._stretched(((log_alpha + noise) / self.temperature).sigmoid())

    def _stretched(self, s: Tensor) -> Tensor:
        return (s * (self.high - self.low) + self.low).clamp(0, 1)

    def expected_l0(self) -> Tensor:
        """Return the expected number of z that are not zero, Σ σ(log α - β log(-γ / ζ)), as a scalar."""
        return (self.log_alpha - self.temperature * log(-self.low / self.high)).sigmoid().sum()


class Routing(nn.Module):
    """Connect J sub-networks with I others, [B, J, H] -> [I, B, H]: v_i = Σ_j z_ij W_ij u_j."""

    def __init__(self, targets: int, sources: int, config: SNRConfig) -> None:
        super().__init__()
        self.coding = Coding(targets, sources, config)
        # W_i1 ... W_iJ below each other make one matrix, so that the product also sums over j.
        self.transform = Stack(targets, sources * config.width, config.width, bias=False)

    def forward(self, u: Tensor) -> Tensor:
        z = self.coding(u.shape[0])  # [B, I, J]
        scaled = z.unsqueeze(3) * u.unsqueeze(1)  # [B, I, J, 1] x [B, 1, J, H] -> [B, I, J, H]
        scaled = scaled.flatten(2).transpose(0, 1)  # [I, B, J * H]
        return self.transform(scaled)  # type: ignore[no-any-return]  # [I, B, H]


class SNR(Model):
    """Levels of sub-networks whose connections are learned: each has a matrix and a switch.

        batch ► features ─┬─► sub-network 1 ─┐           ┌─► sub-network 1 ─┐           ┌─► tower 1
                          ├─►      …         ├► routing ─┤        …         ├► routing ─┤
                          └─► sub-network 8 ─┘           └─► sub-network 8 ─┘           └─► tower 2

    The routing gives its target i the input v_i = Σ_j z_ij W_ij u_j. Call `penalty` for the weighted
    expected L0 norm of the switches z, which training adds to the losses.
    """

    config_type = SNRConfig

    def __init__(self, schema: Schema, tasks: Iterable[Task], config: SNRConfig | None = None) -> None:
        config = config or SNRConfig()
        super().__init__(schema, tasks, config)
        count, width, between = config.subnetworks, config.width, range(config.levels - 1)
        self.l0 = config.l0
        self.features = Features(schema, config)
        self.first = Experts(count, self.features.width, [width], config)
        self.routings = nn.ModuleList(Routing(count, count, config) for _ in between)
        self.subnetworks = nn.ModuleList(Stack(count, width, width) for _ in between)
        self.activation = nn.Sequential(*activation(config))
        self.to_tasks = nn.ModuleList(Routing(1, count, config) for _ in self.tasks)
        self.towers = nn.ModuleList(Tower(width, task, config) for task in self.tasks)

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        u = self.first(self.features(batch))  # [B, width] -> [B, J, H]
        for routing, subnetworks in zip(self.routings, self.subnetworks, strict=True):
            v = routing(u)  # [I, B, H]
            u = self.activation(subnetworks(v)).transpose(0, 1)  # [I, B, H] -> [B, I, H]
        logits = {}
        for task, routing, tower in zip(self.tasks, self.to_tasks, self.towers, strict=True):
            logits[task.name] = tower(routing(u).squeeze(0))  # [1, B, H] -> [B]
        return logits

    def expected_l0(self) -> Tensor:
        """Return the expected number of open connections as a scalar."""
        codings = [module for module in self.modules() if isinstance(module, Coding)]
        return torch.stack([coding.expected_l0() for coding in codings]).sum()

    def penalty(self) -> Tensor:
        """Return the expected number of open connections times ``l0``, as a scalar."""
        return self.l0 * self.expected_l0()

    def _private(self, number: int) -> Iterable[nn.Module]:
        return [self.to_tasks[number], self.towers[number]]

    def gate_places(self) -> list[GatePlace]:
        levels = range(1, len(self.routings) + 2)
        names = [numbered(f"level {level}, sub-network", self.first.count) for level in levels]
        between = zip(pairwise(names), self.routings, strict=True)
        places = [
            GatePlace(level, above, below, _coding(one)) for level, ((below, above), one) in enumerate(between, 1)
        ]
        last = len(names)
        tasks = zip(self.tasks, self.to_tasks, strict=True)
        return places + [GatePlace(last, (task.name,), names[-1], _coding(one)) for task, one in tasks]


def _coding(routing: nn.Module) -> Coding:
    assert isinstance(routing, Routing)
    return routing.coding
