"""The autograd graph behind the losses: its nodes in a fixed order, and a signature of its structure.

Everything the engine works out about a graph (where parameters meet data, which task reaches what)
is stored as node numbers under that signature, so that a step whose graph looks like an earlier one
only walks it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node


def _leaf() -> type:
    """Return the class of the nodes at which tensors accumulate their gradient, also if gradients are switched off."""
    with torch.enable_grad():
        return type(torch.zeros(1, requires_grad=True).view(1).grad_fn.next_functions[0][0])  # type: ignore[union-attr]


LEAF: type = _leaf()
_SCALARS: dict[type, tuple[str, ...]] = {}


@dataclass(frozen=True)
class Graph:
    """The numbered nodes of an autograd graph."""

    nodes: list[Node]
    roots: list[int]  # the node of each loss
    signature: tuple[Any, ...]  # equal for two graphs of the same structure over the same parameters

    def leaf(self, index: int) -> Tensor:
        """Return the tensor that accumulates its gradient at this node."""
        return self.nodes[index].variable  # type: ignore[attr-defined, no-any-return]

    def saved_scalars(self, index: int) -> tuple[Any, ...]:
        """Return the class of a node and what it saved besides tensors."""
        node = self.nodes[index]
        values = (getattr(node, name) for name in _SCALARS[type(node)])
        return type(node), *(tuple(value) if isinstance(value, list) else value for value in values)

    def leaves(self) -> list[int]:
        """Return the numbers of the nodes at which tensors accumulate their gradient."""
        return [number for number, node in enumerate(self.nodes) if type(node) is LEAF]


def walk(roots: Sequence[Node]) -> Graph:
    """Number the nodes reachable from ``roots``, breadth first."""
    nodes = list(dict.fromkeys(roots))
    index = {node: number for number, node in enumerate(nodes)}
    starts = [index[root] for root in roots]
    signature: list[Any] = [*starts]
    for node in nodes:  # grows while we go
        kind = type(node)
        signature.append(kind)
        if kind is LEAF:
            variable = node.variable  # type: ignore[attr-defined]
            signature.append((id(variable), variable.shape))
            continue
        scalars = _SCALARS.get(kind)
        if scalars is None:
            scalars = _SCALARS[kind] = _names_of_scalars(kind)
        for name in scalars:
            value = getattr(node, name)
            signature.append(tuple(value) if isinstance(value, list) else value)
        for child, output in node.next_functions:
            if child is None:
                signature.append(None)
                continue
            number = index.get(child)
            if number is None:
                number = index[child] = len(nodes)
                nodes.append(child)
            signature.append((number, output) if output else number)
    return Graph(nodes, starts, tuple(signature))


def signed(value: int) -> int:
    """Return a saved dimension as it was passed: nodes report negative numbers as unsigned ones."""
    return value - 2**64 if value >= 2**63 else value


def _names_of_scalars(kind: type) -> tuple[str, ...]:
    """Return the names of what nodes of a class save besides tensors: dimensions, sizes, flags."""
    names = dir(kind)
    return tuple(
        name
        for name in names
        # `_raw_saved_x` stands beside `_saved_x` for tensors only; strides decide nothing here.
        if name.startswith("_saved_") and f"_raw{name}" not in names and "strides" not in name
    )
