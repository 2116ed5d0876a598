"""The layers that models are made of."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import sqrt

import torch
from torch import Tensor, nn

from gdod.models.config import ACTIVATIONS, Config
from gdod.schema import Task


def glorot(weight: Tensor, inputs: int, outputs: int) -> None:
    """Draw weights in place that keep the size of what passes through a layer, forwards and backwards."""
    bound = sqrt(6 / (inputs + outputs))
    nn.init.uniform_(weight, -bound, bound)


def linear(inputs: int, outputs: int, bias: bool = True) -> nn.Linear:
    """Return a linear layer with Glorot's weights and a bias of zero."""
    layer = nn.Linear(inputs, outputs, bias=bias)
    glorot(layer.weight, inputs, outputs)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


def activation(config: Config) -> list[nn.Module]:
    """Return the modules that follow a hidden layer: the activation, and dropout if there is any."""
    function = ACTIVATIONS[config.activation]()
    return [function, nn.Dropout(config.dropout)] if config.dropout else [function]


def mlp(inputs: int, sizes: Iterable[int], config: Config) -> nn.Sequential:
    """Return hidden layers of these sizes: [B, inputs] -> [B, last size]."""
    layers: list[nn.Module] = []
    for size in sizes:
        layers += [linear(inputs, size), *activation(config)]
        inputs = size
    return nn.Sequential(*layers)


class Tower(nn.Module):
    """A task's own layers: [B, inputs] -> logits, [B] or, for several classes, [B, classes]."""

    def __init__(self, inputs: int, task: Task, config: Config) -> None:
        super().__init__()
        self.hidden = mlp(inputs, config.tower, config)
        self.output = linear((inputs, *config.tower)[-1], task.outputs)
        self.one = task.classes is None

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.output(self.hidden(x))  # [B, outputs]
        return logits.squeeze(1) if self.one else logits


class Stack(nn.Module):
    """E linear layers, each with an input of its own: [E, B, in] -> [E, B, out]."""

    def __init__(self, count: int, inputs: int, outputs: int, bias: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(count, inputs, outputs))
        glorot(self.weight, inputs, outputs)
        self.bias = nn.Parameter(torch.zeros(count, 1, outputs)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        if self.bias is None:
            return torch.bmm(x, self.weight)  # [E, B, in] x [E, in, out] -> [E, B, out]
        return torch.baddbmm(self.bias, x, self.weight)  # as above, + [E, 1, out]


class Experts(nn.Module):
    """E networks of equal sizes on one input: [B, in] -> [B, E, out].

    Their first layers have that input in common, so that they are one wide layer; each of the
    following ones is a stack.
    """

    def __init__(self, count: int, inputs: int, sizes: Sequence[int], config: Config) -> None:
        super().__init__()
        self.count = count
        self.outputs = sizes[-1]
        self.first = linear(inputs, count * sizes[0])
        glorot(self.first.weight, inputs, sizes[0])  # as if each expert stood alone
        self.activation = nn.Sequential(*activation(config))
        self.stacks = nn.ModuleList(Stack(count, *pair) for pair in pairwise(sizes))

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.activation(self.first(x))  # [B, in] -> [B, E * out]
        h = h.unflatten(1, (self.count, -1))  # [B, E, out]
        if len(self.stacks):
            h = h.transpose(0, 1)  # [E, B, out]
            for stack in self.stacks:
                h = self.activation(stack(h))  # [E, B, in] -> [E, B, out]
            h = h.transpose(0, 1)  # [B, E, out]
        return h


class Gate(nn.Module):
    """Weigh E experts for each example, softmax(W x): [B, in] -> [B, E]."""

    def __init__(self, inputs: int, experts: int) -> None:
        super().__init__()
        self.linear = linear(inputs, experts, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).softmax(1)  # type: ignore[no-any-return]


def mix(gate: Tensor, experts: Tensor) -> Tensor:
    """Return the sum of the experts' outputs [B, E, H], each times its weight [B, E]. [B, H]"""
    return torch.bmm(gate.unsqueeze(1), experts).squeeze(1)  # [B, 1, E] x [B, E, H] -> [B, H]
