"""Views of a parameter on its way to where it is used: `weight.t()`, a reshape, a slice, a cast.

They are undone for a gradient by calling their own backward nodes, whatever they are. What has to be
known about them is that they move numbers without changing or summing them, so that the inner
products of rows are the same before and after. The table of node kinds says which kinds do that.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.autograd.graph import Node

from gdod.rows.graph import signed

Condition = Callable[[Node], bool]


def always(node: Node) -> bool:
    return True


def never(node: Node) -> bool:
    return False


def keeps_size(node: Node) -> bool:
    """Return whether an `expand` repeats nothing."""
    child, output = node.next_functions[0]
    return child is not None and output_shape(child, output).numel() == output_shape(node, 0).numel()


def swaps_two(node: Node) -> bool:
    """Return whether a `transpose` of a matrix swaps its dimensions."""
    return signed(node._saved_dim0) % 2 != signed(node._saved_dim1) % 2  # type: ignore[attr-defined]


def permutes_two(node: Node) -> bool:
    """Return whether a `permute` of a matrix swaps its dimensions."""
    return signed(node._saved_dims[0]) % 2 == 1  # type: ignore[attr-defined]


def output_shape(node: Node, output: int) -> torch.Size:
    """Return the shape of the tensor whose gradient this node takes."""
    if hasattr(node, "variable"):
        return node.variable.shape  # type: ignore[no-any-return]
    return torch.Size(node._input_metadata[output].shape)


def is_complex(node: Node) -> bool:
    """Return whether the gradient that this node takes is complex. No rule knows which of its factors to conjugate."""
    dtype: torch.dtype = node._input_metadata[0].dtype
    return dtype.is_complex


def undo(chain: Sequence[tuple[Node, int]], grad: Tensor) -> Tensor:
    """Return the gradient of a parameter, in its own shape, from that of a view of it.

    ``chain`` holds (node, output number) from the parameter outwards.
    """
    for node, output in reversed(chain):
        grads: list[Tensor | None] = [None] * len(node._input_metadata)
        grads[output] = grad
        result = node(*grads)  # type: ignore[operator]
        grad = result[0] if isinstance(result, tuple) else result
    return grad
