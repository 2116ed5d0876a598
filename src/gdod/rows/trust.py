"""Whether examples stay apart in a graph whatever the numbers in it are.

That examples did not mix on one batch proves nothing about the next if a node could have mixed them
and did not: a matrix product along the batch with an identity, a path whose weight was zero. This
file says which kinds of nodes cannot do that, given which dimension the examples lie along. A graph
with any other node on the way is looked at anew in every step.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch.autograd.graph import Node

from gdod.rows.graph import Graph, signed
from gdod.rows.groups import Owner
from gdod.rows.views import output_shape

# Element by element, or row by row of the last dimension's logits. A term that is broadcast over
# examples gets a cotangent summed over them, which no example owns; that is noticed by itself.
_POINTWISE: frozenset[str] = frozenset(
    """
    Abs Add Addcdiv Addcmul Atan BinaryCrossEntropy BinaryCrossEntropyWithLogits Celu Clamp ClampMax ClampMin Clone
    Copy Cos Div Elu Erf Erfc Exp Expm1 Gelu Hardshrink Hardsigmoid Hardswish Hardtanh HuberLoss LeakyRelu Lerp
    LogSigmoid Log Log10 Log1p Log2 Logaddexp Logit MaskedFill Maximum Minimum Mish MseLoss Mul NativeDropout Neg
    NllLoss NllLoss2D Pow Reciprocal Relu Rrelu Rsqrt Rsub Selu Sgn Sigmoid Sign Silu Sin Sinh SmoothL1Loss
    SoftMarginLoss Softplus Softshrink Sqrt Square Sub Tan Tanh Threshold ToCopy Where Xlogy
    """.split()  # noqa: SIM905
)
# Linear, in a way that shapes alone decide: what one batch shows holds for all.
_MOVES: frozenset[str] = frozenset(
    """
    Alias AsStrided Cat ConstantPadNd Diagonal Expand Flip Mean Narrow Permute Repeat ReshapeAlias Roll Select Slice
    Split SplitWithSizes Squeeze Stack Sum T Transpose Tril Triu Unbind Unflatten Unfold UnsafeSplit UnsafeView
    Unsqueeze View
    """.split()  # noqa: SIM905
)
# Matrix products: the dimension of the output that the gradient of each input sums over.
_PRODUCTS = {
    "Addmm": (None, -1, -2),
    "Baddbmm": (None, -1, -2),
    "Bmm": (-1, -2),
    "Mm": (-1, -2),
    "Mv": (None, -1),
}


def _along(name: str) -> Callable[[Node, int, torch.Size], bool]:
    """Mixes along the one dimension that the node keeps."""
    return lambda node, dim, shape: signed(getattr(node, name)) % len(shape) != dim


def _not_normalised(node: Node, dim: int, shape: torch.Size) -> bool:
    return dim < len(shape) - len(node._saved_normalized_shape)  # type: ignore[attr-defined]


def _leading(count: int) -> Callable[[Node, int, torch.Size], bool]:
    return lambda node, dim, shape: dim < count


_OTHERS: dict[str, Callable[[Node, int, torch.Size], bool]] = {
    "AvgPool2D": _leading(1),
    "Convolution": _leading(1),
    "Cumsum": _along("_saved_dim"),
    "Embedding": lambda node, dim, shape: True,  # leads to its table only
    "EmbeddingBag": lambda node, dim, shape: True,
    "Glu": _along("_saved_dim"),
    "LogSoftmax": _along("_saved_dim"),
    "MaxPool2DWithIndices": _leading(1),
    "NativeBatchNorm": lambda node, dim, shape: not node._saved_training and dim == 0,  # type: ignore[attr-defined]
    "NativeGroupNorm": _leading(1),
    "NativeLayerNorm": _not_normalised,
    "ScaledDotProductFlashAttentionForCpu": _leading(2),
    "Softmax": _along("_saved_dim"),
}


def is_known(node: Node) -> bool:
    """Whether this file has anything to say about nodes of this kind."""
    kind = _kind(node)
    return kind in _POINTWISE or kind in _MOVES or kind in _PRODUCTS or kind in _OTHERS


def _kind(node: Node) -> str:
    return type(node).__name__.partition("Backward")[0]


def keeps_apart(graph: Graph, way: Sequence[tuple[int, int]], owners: Mapping[tuple[int, int], list[Owner]]) -> bool:
    """Whether no node on the way could mix examples, with other numbers in the same graph."""
    on_way = {graph.nodes[number] for number, _ in way}
    return all(_keeps_apart(graph.nodes[number], output, owners[number, output], on_way) for number, output in way)


def _keeps_apart(node: Node, output: int, owned: list[Owner], on_way: set[Node]) -> bool:
    if len(owned) != 1:
        # A further output that nothing uses has no owner, and no cotangent either.
        return output > 0 and not owned
    kind = _kind(node)
    if kind in _POINTWISE or kind in _MOVES:
        return True
    dim, shape = owned[0].dim, output_shape(node, output)
    if kind in _PRODUCTS:
        summed = _PRODUCTS[kind]
        passes_on = [slot for slot, (child, _) in enumerate(node.next_functions) if child in on_way]
        return all(summed[slot] is None or len(shape) + summed[slot] != dim for slot in passes_on)  # type: ignore[operator]
    return kind in _OTHERS and _OTHERS[kind](node, dim, shape)
