"""Views of a parameter on its way to where it is used: `weight.t()`, a reshape, a slice, a cast.

They are undone for a gradient by calling their own backward nodes, whatever they are. What has to be
known about them is that they move numbers without changing or summing them, so that the inner
products of rows are the same before and after.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd.graph import Node

_MOVES = {
    "AliasBackward0",
    "CloneBackward0",
    "NarrowBackward0",
    "PermuteBackward0",
    "ReshapeAliasBackward0",
    "SelectBackward0",
    "SliceBackward0",
    "SplitBackward0",
    "SplitWithSizesBackward0",
    "SqueezeBackward0",
    "SqueezeBackward1",
    "SqueezeBackward2",
    "TBackward0",
    "ToCopyBackward0",
    "TransposeBackward0",
    "TransposeBackward1",
    "UnbindBackward0",
    "UnflattenBackward0",
    "UnsafeSplitBackward0",
    "UnsafeViewBackward0",
    "UnsqueezeBackward0",
    "ViewBackward0",
}


def is_view(node: Node) -> bool:
    kind = type(node).__name__
    return kind in _MOVES or (kind == "ExpandBackward0" and _keeps_size(node))


def _keeps_size(node: Node) -> bool:
    child, output = node.next_functions[0]
    return child is not None and output_shape(child, output).numel() == output_shape(node, 0).numel()


def output_shape(node: Node, output: int) -> torch.Size:
    """The shape of the tensor whose gradient this node takes."""
    if hasattr(node, "variable"):
        return node.variable.shape  # type: ignore[no-any-return]
    return torch.Size(node._input_metadata[output].shape)


def undo(chain: Sequence[tuple[Node, int]], grad: Tensor) -> Tensor:
    """Takes the gradient of a viewed parameter back to the parameter's own shape.

    ``chain`` holds (node, output number) from the parameter outwards.
    """
    for node, output in reversed(chain):
        grads: list[Tensor | None] = [None] * len(node._input_metadata)
        grads[output] = grad
        result = node(*grads)  # type: ignore[operator]
        grad = result[0] if isinstance(result, tuple) else result
    return grad
