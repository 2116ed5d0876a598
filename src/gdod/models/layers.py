"""The layers that models are made of."""

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from math import log, sqrt

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from gdod.models.config import ACTIVATIONS, Config
from gdod.schema import Kind, Task


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
    """A task's own layers: [B, inputs] -> logits, [B] or, for several classes, [B, classes].

    In an ensemble the inputs are [B * k, inputs], and the logits of training are [B, k] or [B, k, classes]; those of
    evaluation, too, unless members predict ``together``.
    """

    def __init__(self, inputs: int, task: Task, config: Config, *, together: bool = True) -> None:
        super().__init__()
        self.hidden = mlp(inputs, config.tower, config)
        self.output = output_layer((inputs, *config.tower)[-1], task, config, together=together)
        self.one = task.classes is None

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.output(self.hidden(x))  # [B, outputs]
        return logits.squeeze(-1) if self.one else logits


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


class Members(nn.Module):
    """Make an ensemble of k members of all layers that follow: [B, width] -> [B * k, width].

    As in TabM-mini (Gorishniy, Kotelnikov, Babenko, "TabM: Advancing Tabular Deep Learning with Parameter-Efficient
    Ensembling", ICLR 2025) member j sees the input times a vector r_j of its own, of random signs at the start, and has
    output layers of its own (`MemberOutputs`); it shares all other weights. Members of an example lie next to each
    other, so the layers between need not know of them: they see B * k examples.
    """

    def __init__(self, count: int, width: int) -> None:
        super().__init__()
        self.scales = nn.Parameter(2.0 * torch.randint(2, (count, width)) - 1)  # [k, width]

    def forward(self, x: Tensor) -> Tensor:
        return (x.unsqueeze(1) * self.scales).flatten(0, 1)  # [B, 1, width] x [k, width] -> [B * k, width]


class MemberOutputs(Stack):
    """The members' output layers: [B * k, in] -> [B, k, out] in training, where each member has a loss of its own.

    In evaluation they predict ``together``, [B, out]: `mean_of_members`.
    """

    def __init__(self, count: int, inputs: int, task: Task, *, together: bool = True) -> None:
        super().__init__(count, inputs, task.outputs)
        self.task, self.together = task, together

    def forward(self, x: Tensor) -> Tensor:
        by_member = x.unflatten(0, (-1, len(self.weight))).transpose(0, 1)  # [B * k, in] -> [k, B, in]
        logits = super().forward(by_member).transpose(0, 1)  # [k, B, out] -> [B, k, out]
        return mean_of_members(logits, self.task) if self.together and not self.training else logits


def mean_of_members(logits: Tensor, task: Task) -> Tensor:
    """Return the logits of the mean of the members' probabilities, or the mean of their numbers.

    [B, k, outputs] -> [B, outputs], or [B, k] -> [B].
    """
    return _MEANS[task.kind](logits)


def _binary_mean(logits: Tensor) -> Tensor:
    """Return log(mean p / mean(1 - p)), which stays exact where a probability would round to 0 or 1."""
    return logsigmoid(logits).logsumexp(1) - logsigmoid(-logits).logsumexp(1)


def _number_mean(numbers: Tensor) -> Tensor:
    return numbers.mean(1)


def _class_mean(logits: Tensor) -> Tensor:
    return logits.log_softmax(2).logsumexp(1) - log(logits.shape[1])


_MEANS: dict[Kind, Callable[[Tensor], Tensor]] = {
    "binary": _binary_mean,
    "regression": _number_mean,
    "multiclass": _class_mean,
}


def output_layer(inputs: int, task: Task, config: Config, *, together: bool = True) -> nn.Module:
    """Return the layer that makes a task's logits, [B, inputs] -> [B, outputs], or those of an ensemble's members."""
    if config.ensemble == 1:
        return linear(inputs, task.outputs)
    return MemberOutputs(config.ensemble, inputs, task, together=together)


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


def numbered(name: str, count: int) -> tuple[str, ...]:
    """Return so many names with a number each: "expert 1", "expert 2", ..."""
    return tuple(f"{name} {number}" for number in range(1, count + 1))


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
