"""Backward through one node for all tasks at once, on cotangents stacked along a new first dimension.

A rule takes the node, the number of its input and the input's shape, and returns a function from the
stacked cotangent [K, *output shape] to the input's stacked gradient [K, *shape], which makes one call of
the framework where autograd would make K. What the node saved is read when the rule is called, so that
the function can be used after the graph is freed. Nodes without a rule are called by themselves, once
for each task.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.autograd.graph import Node

from gdod.rows.graph import signed
from gdod.rows.views import output_shape
from gdod.rows.workspace import take

Pass = Callable[[Tensor], Tensor]
Rule = Callable[[Node, int, torch.Size], Pass]
_aten = torch.ops.aten
# Results of so many numbers go into memory that is kept from step to step.
_LARGE = 2**15


def _summed(d: Tensor, shape: torch.Size) -> Tensor:
    """Undoes broadcasting."""
    if d.shape[1:] == shape:
        return d
    extra = d.dim() - 1 - len(shape)
    if extra:
        d = d.sum(tuple(range(1, 1 + extra)))
    wide = tuple(dim for dim, size in enumerate(shape, 1) if size == 1 and d.shape[dim] != 1)
    return d.sum(wide, keepdim=True) if wide else d


def _same(node: Node, slot: int, shape: torch.Size) -> Pass:
    return lambda d: d


def _reshaped(node: Node, slot: int, shape: torch.Size) -> Pass:
    return lambda d: d.reshape(d.shape[0], *shape)


def _broadcast(node: Node, slot: int, shape: torch.Size) -> Pass:
    return lambda d: _summed(d, shape)


def _product(left: str, right: str) -> Rule:
    """``left @ right`` of matrices or of stacks of them."""

    def rule(node: Node, slot: int, shape: torch.Size) -> Pass:
        factor: Tensor = getattr(node, left if slot else right).mT
        if len(shape) == 2:
            return (lambda d: factor @ d) if slot else (lambda d: _through(d, factor))
        return (lambda d: _from_left(factor, d)) if slot else (lambda d: _from_right(d, factor))

    return rule


def _through(d: Tensor, factor: Tensor) -> Tensor:
    """[K, rows, in] x [in, out]"""
    tasks, rows, size = d.shape
    if tasks * rows * factor.shape[1] < _LARGE or (out := take((tasks * rows, factor.shape[1]), d)) is None:
        return d @ factor
    return torch.mm(d.reshape(tasks * rows, size), factor, out=out).view(tasks, rows, -1)


# Stacks: tasks go beside the places that stay, so that the factor need not be repeated for each.
def _from_right(d: Tensor, factor: Tensor) -> Tensor:
    tasks, experts, rows, columns = d.shape
    flat = d.transpose(0, 1).reshape(experts, tasks * rows, columns)
    return torch.bmm(flat, factor).view(experts, tasks, rows, -1).transpose(0, 1)


def _from_left(factor: Tensor, d: Tensor) -> Tensor:
    tasks, experts, rows, columns = d.shape
    flat = d.permute(1, 2, 0, 3).reshape(experts, rows, tasks * columns)
    return torch.bmm(factor, flat).view(experts, -1, tasks, columns).permute(2, 0, 1, 3)


def _added_product(left: str, right: str) -> Rule:
    """``beta * something + alpha * left @ right``"""
    product = _product(left, right)

    def rule(node: Node, slot: int, shape: torch.Size) -> Pass:
        if slot == 0:
            beta = node._saved_beta  # type: ignore[attr-defined]
            return lambda d: _summed(d if beta == 1 else d * beta, shape)
        alpha, through = node._saved_alpha, product(node, slot - 1, shape)  # type: ignore[attr-defined]
        return through if alpha == 1 else lambda d: through(d * alpha)

    return rule


def _transposed(node: Node, slot: int, shape: torch.Size) -> Pass:
    first = signed(node._saved_dim0) % len(shape) + 1  # type: ignore[attr-defined]
    second = signed(node._saved_dim1) % len(shape) + 1  # type: ignore[attr-defined]
    return lambda d: d.transpose(first, second)


def _permuted(node: Node, slot: int, shape: torch.Size) -> Pass:
    back = [0] * len(shape)
    for dim, source in enumerate(node._saved_dims):  # type: ignore[attr-defined]
        back[signed(source) % len(shape)] = dim + 1
    return lambda d: d.permute(0, *back)


def _cut(node: Node, slot: int, shape: torch.Size) -> Pass:
    """`cat`: the part of this input. Inputs without a gradient hide their size; only one side may have them."""
    dim = signed(node._saved_dim) % len(shape)  # type: ignore[attr-defined]
    sizes = [None if child is None else output_shape(child, at)[dim] for child, at in node.next_functions]
    before, after, size = sizes[:slot], sizes[slot + 1 :], shape[dim]
    if None not in before:
        start = sum(known for known in before if known is not None)
    else:
        start = output_shape(node, 0)[dim] - size - sum(known for known in after if known is not None)
    return lambda d: d.narrow(dim + 1, start, size)


def _softmax(node: Node, slot: int, shape: torch.Size) -> Pass:
    dim, y = signed(node._saved_dim) % len(shape), node._saved_result  # type: ignore[attr-defined]

    def back(d: Tensor) -> Tensor:
        weighted = d * y
        return torch.addcmul(weighted, y, weighted.sum(dim + 1, keepdim=True), value=-1)

    return back


def _clamped(node: Node, slot: int, shape: torch.Size) -> Pass:
    x, low, high = node._saved_self, node._saved_min, node._saved_max  # type: ignore[attr-defined]
    inside = torch.ones_like(x, dtype=torch.bool) if low is None else x >= low
    inside = inside if high is None else inside & (x <= high)
    return lambda d: d * inside


def _times(node: Node, slot: int, shape: torch.Size) -> Pass:
    factor = node._saved_self if slot else node._saved_other  # type: ignore[attr-defined]
    return lambda d: _summed(d * factor, shape)


def _divided(node: Node, slot: int, shape: torch.Size) -> Pass:
    y = node._saved_other  # type: ignore[attr-defined]
    if slot == 0:
        return lambda d: _summed(d / y, shape)
    x = node._saved_self  # type: ignore[attr-defined]
    return lambda d: _summed(-d * x / (y * y), shape)


def _plus(sign: int) -> Rule:
    def rule(node: Node, slot: int, shape: torch.Size) -> Pass:
        factor = sign * node._saved_alpha if slot else 1  # type: ignore[attr-defined]
        return lambda d: _summed(d if factor == 1 else d * factor, shape)

    return rule


def _reduced(node: Node, slot: int, shape: torch.Size) -> Pass:
    dims = sorted(signed(dim) % len(shape) for dim in node._saved_dim)  # type: ignore[attr-defined]
    kept = torch.Size(1 if dim in dims else size for dim, size in enumerate(shape))
    return lambda d: d.reshape(d.shape[0], *kept).expand(d.shape[0], *shape)


def _averaged(node: Node, slot: int, shape: torch.Size) -> Pass:
    spread, count = _reduced(node, slot, shape), shape.numel() // output_shape(node, 0).numel()
    return lambda d: spread(d / count)


def _pointwise(derivative: Callable[[Tensor, Tensor], Tensor], saved: str) -> Rule:
    def rule(node: Node, slot: int, shape: torch.Size) -> Pass:
        x = getattr(node, saved)
        return lambda d: derivative(d, x)

    return rule


def _relu(d: Tensor, y: Tensor) -> Tensor:
    if d.numel() < _LARGE or (out := take(d.shape, d)) is None:
        return _aten.threshold_backward(d, y, 0)  # type: ignore[no-any-return]
    return _aten.threshold_backward.grad_input(d, y, 0, grad_input=out)  # type: ignore[no-any-return]


RULES: dict[str, Rule] = {
    "AddBackward0": _plus(1),
    "AddmmBackward0": _added_product("_saved_mat1", "_saved_mat2"),
    "BaddbmmBackward0": _added_product("_saved_batch1", "_saved_batch2"),
    "BmmBackward0": _product("_saved_self", "_saved_mat2"),
    "CatBackward0": _cut,
    "ClampBackward1": _clamped,
    "CloneBackward0": _same,
    "DivBackward0": _divided,
    "ExpandBackward0": _broadcast,
    "MeanBackward1": _averaged,
    "MmBackward0": _product("_saved_self", "_saved_mat2"),
    "MulBackward0": _times,
    "PermuteBackward0": _permuted,
    "ReluBackward0": _pointwise(_relu, "_saved_result"),
    "ReshapeAliasBackward0": _reshaped,
    "SigmoidBackward0": _pointwise(_aten.sigmoid_backward, "_saved_result"),
    "SiluBackward0": _pointwise(_aten.silu_backward, "_saved_self"),
    "SoftmaxBackward0": _softmax,
    "SqueezeBackward0": _reshaped,
    "SqueezeBackward1": _reshaped,
    "SqueezeBackward2": _reshaped,
    "SqueezeBackward4": _reshaped,
    "SubBackward0": _plus(-1),
    "SumBackward1": _reduced,
    "TBackward0": lambda node, slot, shape: lambda d: d.transpose(1, 2),
    "TanhBackward0": _pointwise(_aten.tanh_backward, "_saved_result"),
    "TransposeBackward0": _transposed,
    "TransposeBackward1": _transposed,
    "UnsafeViewBackward0": _reshaped,
    "UnsqueezeBackward0": _reshaped,
    "ViewBackward0": _reshaped,
}


def rule_for(node: Node, slot: int) -> Rule | None:
    rule = RULES.get(type(node).__name__)
    if rule is _cut:
        hidden = [child is None for child, _ in node.next_functions]
        return None if any(hidden[:slot]) and any(hidden[slot + 1 :]) else rule
    if rule is _reduced or rule is _averaged:
        return rule if node._saved_dim else None  # type: ignore[attr-defined]  # no dimension named: over all
    return rule


def call(node: Node, cotangents: Sequence[Tensor | None]) -> list[Tensor | None]:
    """All inputs' stacked gradients by the node itself, from the stacked cotangents of its outputs."""
    tasks = next(len(d) for d in cotangents if d is not None)
    found = []
    for task in range(tasks):
        result = node(*(None if d is None else d[task] for d in cotangents))  # type: ignore[operator]
        found.append(result if isinstance(result, tuple) else (result,))
    # It is autograd that undoes broadcasting, not the node.
    return [
        None if child is None or parts[0] is None else _summed(torch.stack(parts), output_shape(child, output))
        for (child, output), parts in zip(node.next_functions, zip(*found, strict=True), strict=True)
    ]
