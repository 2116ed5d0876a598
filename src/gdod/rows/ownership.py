"""Which example each element of a cotangent belongs to, found out by experiment.

Seed the losses of example b with a power of two, r_b, instead of 1. As long as examples do not
mix, every element of a cotangent that belongs to b comes out exactly r_b times as large, bit for
bit: scaling by a power of two commutes with rounding. So two backward passes tell for every layer
along which dimension the examples lie, or that they mix, whatever the layers in between do.
"""

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor
from torch.autograd.graph import Node

from gdod.rows.graph import Graph
from gdod.rows.groups import Owner
from gdod.rows.node_kinds import kind_of
from gdod.rows.views import output_shape

# Signs and small powers of two, so that float16 neither overflows nor loses digits.
_FACTORS = torch.tensor([sign * 2.0**power for power in range(-3, 4) for sign in (1, -1)])


def factors(examples: int, generator: torch.Generator) -> Tensor:
    """Return a factor for each example, all distinct as far as there are enough. [B]"""
    rounds = -(-examples // len(_FACTORS))
    order = torch.cat([torch.randperm(len(_FACTORS), generator=generator) for _ in range(rounds)])
    return _FACTORS[order[:examples]]


def owners(plain: Tensor, scaled: Tensor, factor: Tensor) -> list[Owner]:
    """Return all ways to assign the elements to examples under which ``scaled`` is ``factor * plain``."""
    size = scaled.norm()
    tolerance = torch.finfo(plain.dtype).eps * (1 if plain.dtype in (torch.bfloat16, torch.float16) else 4)
    possible = []
    for owner in _candidates(plain.shape, len(factor)):
        own = factor[owner.examples_of(plain.shape, len(factor)).to(factor.device)]
        own = own.to(plain.dtype).view(-1, *[1] * (plain.dim() - owner.dim - 1))
        if (scaled - own * plain).norm() <= tolerance * size:
            possible.append(owner)
    return possible


def has_candidates(shape: Sequence[int], examples: int) -> bool:
    """Return whether a cotangent of this shape has a dimension that examples could lie along."""
    return next(_candidates(shape, examples), None) is not None


def _candidates(shape: Sequence[int], examples: int) -> Iterator[Owner]:
    for dim, size in enumerate(shape):
        if size and size % examples == 0:
            inner = size // examples
            yield from (Owner(dim, divisor) for divisor in range(inner, 0, -1) if inner % divisor == 0)


def keeps_apart(graph: Graph, way: Sequence[tuple[int, int]], owners: Mapping[tuple[int, int], list[Owner]]) -> bool:
    """Return whether no node on the way could mix examples, with other numbers in the same graph."""
    on_way = {graph.nodes[number] for number, _ in way}
    return all(_keeps_apart(graph.nodes[number], output, owners[number, output], on_way) for number, output in way)


def _keeps_apart(node: Node, output: int, owned: list[Owner], on_way: set[Node]) -> bool:
    if len(owned) != 1:
        # A further output that nothing uses has no owner, and no cotangent either.
        return output > 0 and not owned
    separates = kind_of(node).separates
    inputs = [slot for slot, (child, _) in enumerate(node.next_functions) if child in on_way]
    return separates is not None and separates(node, owned[0].dim, output_shape(node, output), inputs)
