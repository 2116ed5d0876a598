"""Conditions under which a node cannot mix examples, whatever the numbers in the graph are.

That examples did not mix on one batch proves nothing about the next if a node could have mixed them and
did not: a matrix product along the batch with an identity, a path whose weight was zero.
"""

from collections.abc import Callable, Sequence

import torch
from torch.autograd.graph import Node

from gdod.rows.graph import signed

Separation = Callable[[Node, int, torch.Size, Sequence[int]], bool]
"""Whether a node keeps examples apart, from the node, the dimension of its output that the examples lie along, the
output's shape, and the numbers of the inputs that the gradient is passed on to."""


def always(node: Node, dim: int, shape: torch.Size, inputs: Sequence[int]) -> bool:
    """Return True, for a kind of node that never mixes examples.

    It works element by element (or row by row of the last dimension's logits), or is linear in a way that shapes
    alone decide: what one batch shows holds for all. A term that is broadcast over examples gets a cotangent summed
    over them, which no example owns; that is noticed by itself.
    """
    return True


def product(*summed: int | None) -> Separation:
    """Return the condition for a matrix product, from the output's dimension that each input's gradient sums over."""
    return lambda node, dim, shape, inputs: dim - len(shape) not in [summed[number] for number in inputs]


def unless_along_its_dim(node: Node, dim: int, shape: torch.Size, inputs: Sequence[int]) -> bool:
    """Return whether examples lie along another dimension than the one that the node mixes along."""
    return signed(node._saved_dim) % len(shape) != dim  # type: ignore[attr-defined]


def unless_normalised(node: Node, dim: int, shape: torch.Size, inputs: Sequence[int]) -> bool:
    """Return whether examples lie before the last dimensions, along which layer norm mixes."""
    return dim < len(shape) - len(node._saved_normalized_shape)  # type: ignore[attr-defined]


def batch_in_evaluation(node: Node, dim: int, shape: torch.Size, inputs: Sequence[int]) -> bool:
    """Return whether examples come first and batch norm does not take its statistics from them."""
    return not node._saved_training and dim == 0  # type: ignore[attr-defined]


def leading(count: int) -> Separation:
    """Return the condition for nodes that never mix along their first ``count`` dimensions."""
    return lambda node, dim, shape, inputs: dim < count
