"""Conditions under which a node cannot mix examples, whatever the numbers in the graph are.

That examples did not mix on one batch proves nothing about the next if a node could have mixed them and
did not: a matrix product along the batch with an identity, a path whose weight was zero. The table of node
kinds names a condition for each kind that cannot do that, given which dimension the examples lie along.
"""

from collections.abc import Callable, Sequence

import torch
from torch.autograd.graph import Node

from gdod.rows.graph import signed

Separation = Callable[[Node, int, torch.Size, Sequence[int]], bool]
"""Whether a node keeps examples apart, from the node, the dimension of its output that the examples lie along, the
output's shape, and the numbers of the inputs that the gradient is passed on to."""


def always(node: Node, dim: int, shape: torch.Size, inputs: Sequence[int]) -> bool:
    """Accept every node of a kind.

    It works element by element (or row by row of the last dimension's logits), or is linear in a way that shapes
    alone decide: what one batch shows holds for all. A term that is broadcast over examples gets a cotangent summed
    over them, which no example owns; that is noticed by itself.
    """
    return True


def product(*summed: int | None) -> Separation:
    """For a matrix product: ``summed`` is the dimension of the output that the gradient of each input sums over."""

    def separates(node: Node, dim: int, shape: torch.Size, inputs: Sequence[int]) -> bool:
        dims = [summed[number] for number in inputs]
        return all(over is None or len(shape) + over != dim for over in dims)

    return separates


def unless_along_its_dim(node: Node, dim: int, shape: torch.Size, inputs: Sequence[int]) -> bool:
    """For nodes that mix along the one dimension that they keep."""
    return signed(node._saved_dim) % len(shape) != dim  # type: ignore[attr-defined]


def unless_normalised(node: Node, dim: int, shape: torch.Size, inputs: Sequence[int]) -> bool:
    """For layer norm, which mixes along its last dimensions."""
    return dim < len(shape) - len(node._saved_normalized_shape)  # type: ignore[attr-defined]


def batch_in_evaluation(node: Node, dim: int, shape: torch.Size, inputs: Sequence[int]) -> bool:
    """For batch norm, which mixes examples when it takes its statistics from the batch."""
    return not node._saved_training and dim == 0  # type: ignore[attr-defined]


def leading(count: int) -> Separation:
    """For nodes that never mix along their first ``count`` dimensions."""
    return lambda node, dim, shape, inputs: dim < count
