"""Backward through one node for all tasks at once, on cotangents stacked along a new first dimension.

A rule takes the node, the number of its input and the input's shape, and returns a function from the
stacked cotangent [K, *output shape] to the input's stacked gradient [K, *shape], which makes one call of
the framework where autograd would make K. What the node saved is read when the rule is called, so that
the function can be used after the graph is freed. Each rule is called after the operation whose backward
it is; the table of node kinds refers to them. Nodes without a rule are called by themselves, once a task.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.autograd.graph import Node

from gdod.rows.graph import signed
from gdod.rows.multiply import product as product_of
from gdod.rows.views import output_shape
from gdod.rows.workspace import take

Pass = Callable[[Tensor], Tensor]
Rule = Callable[[Node, int, torch.Size], Pass]
_aten = torch.ops.aten
# Results of so many numbers go into memory that is kept from step to step.
_LARGE = 2**15


def _summed(d: Tensor, shape: torch.Size) -> Tensor:
    """Undo broadcasting: return the stacked gradient summed to [K, *shape]."""
    if d.shape[1:] == shape:
        return d
    extra = d.dim() - 1 - len(shape)
    if extra:
        d = d.sum(tuple(range(1, 1 + extra)))
    wide = tuple(dim for dim, size in enumerate(shape, 1) if size == 1 and d.shape[dim] != 1)
    return d.sum(wide, keepdim=True) if wide else d


def reshape(node: Node, slot: int, shape: torch.Size) -> Pass:
    return lambda d: d.reshape(d.shape[0], *shape)


def expand(node: Node, slot: int, shape: torch.Size) -> Pass:
    return lambda d: _summed(d, shape)


def product(left: str, right: str) -> Rule:
    """Return the rule of ``left @ right``, matrices or stacks of them, from where the node keeps both."""

    def rule(node: Node, slot: int, shape: torch.Size) -> Pass:
        factor: Tensor = getattr(node, left if slot else right).mT
        if len(shape) == 2:
            return (lambda d: factor @ d) if slot else (lambda d: _through(d, factor))
        return (lambda d: _from_left(factor, d)) if slot else (lambda d: _from_right(d, factor))

    return rule


def _through(d: Tensor, factor: Tensor) -> Tensor:
    """Multiply [K, rows, in] x [in, out]."""
    tasks, rows, size = d.shape
    return product_of(d.reshape(tasks * rows, size), factor).view(tasks, rows, -1)


# Stacks: tasks go beside the places that stay, so that the factor need not be repeated for each.
def _from_right(d: Tensor, factor: Tensor) -> Tensor:
    tasks, experts, rows, columns = d.shape
    flat = d.transpose(0, 1).reshape(experts, tasks * rows, columns)
    return torch.bmm(flat, factor).view(experts, tasks, rows, -1).transpose(0, 1)


def _from_left(factor: Tensor, d: Tensor) -> Tensor:
    tasks, experts, rows, columns = d.shape
    flat = d.permute(1, 2, 0, 3).reshape(experts, rows, tasks * columns)
    return torch.bmm(factor, flat).view(experts, -1, tasks, columns).permute(2, 0, 1, 3)


def added_product(left: str, right: str) -> Rule:
    """Return the rule of ``beta * something + alpha * left @ right``."""
    multiplied = product(left, right)

    def rule(node: Node, slot: int, shape: torch.Size) -> Pass:
        if slot == 0:
            beta = node._saved_beta  # type: ignore[attr-defined]
            return lambda d: _summed(d if beta == 1 else d * beta, shape)
        alpha, through = node._saved_alpha, multiplied(node, slot - 1, shape)  # type: ignore[attr-defined]
        return through if alpha == 1 else lambda d: through(d * alpha)

    return rule


def transpose(node: Node, slot: int, shape: torch.Size) -> Pass:
    first = signed(node._saved_dim0) % len(shape) + 1  # type: ignore[attr-defined]
    second = signed(node._saved_dim1) % len(shape) + 1  # type: ignore[attr-defined]
    return lambda d: d.transpose(first, second)


def t(node: Node, slot: int, shape: torch.Size) -> Pass:
    return lambda d: d.transpose(1, 2)


def permute(node: Node, slot: int, shape: torch.Size) -> Pass:
    back = [0] * len(shape)
    for dim, source in enumerate(node._saved_dims):  # type: ignore[attr-defined]
        back[signed(source) % len(shape)] = dim + 1
    return lambda d: d.permute(0, *back)


def cat(node: Node, slot: int, shape: torch.Size) -> Pass:
    """The part of this input; `sizes_are_known` has to hold."""
    dim = signed(node._saved_dim) % len(shape)  # type: ignore[attr-defined]
    sizes = [None if child is None else output_shape(child, at)[dim] for child, at in node.next_functions]
    before, after, size = sizes[:slot], sizes[slot + 1 :], shape[dim]
    if None not in before:
        start = sum(known for known in before if known is not None)
    else:
        start = output_shape(node, 0)[dim] - size - sum(known for known in after if known is not None)
    return lambda d: d.narrow(dim + 1, start, size)


def sizes_are_known(node: Node, slot: int) -> bool:
    """Return whether `cat` can tell where an input begins: those without a gradient, which hide their size, lie on
    one side of it."""
    hidden = [child is None for child, _ in node.next_functions]
    return not (any(hidden[:slot]) and any(hidden[slot + 1 :]))


def softmax(node: Node, slot: int, shape: torch.Size) -> Pass:
    dim, y = signed(node._saved_dim) % len(shape), node._saved_result  # type: ignore[attr-defined]

    def back(d: Tensor) -> Tensor:
        weighted = d * y
        return torch.addcmul(weighted, y, weighted.sum(dim + 1, keepdim=True), value=-1)

    return back


def clamp(node: Node, slot: int, shape: torch.Size) -> Pass:
    x, low, high = node._saved_self, node._saved_min, node._saved_max  # type: ignore[attr-defined]
    inside = torch.ones_like(x, dtype=torch.bool) if low is None else x >= low
    inside = inside if high is None else inside & (x <= high)
    return lambda d: d * inside


def mul(node: Node, slot: int, shape: torch.Size) -> Pass:
    factor = node._saved_self if slot else node._saved_other  # type: ignore[attr-defined]
    return lambda d: _summed(d * factor, shape)


def div(node: Node, slot: int, shape: torch.Size) -> Pass:
    y = node._saved_other  # type: ignore[attr-defined]
    if slot == 0:
        return lambda d: _summed(d / y, shape)
    x = node._saved_self  # type: ignore[attr-defined]
    return lambda d: _summed(-d * x / (y * y), shape)


def add(sign: int) -> Rule:
    """Return the rule of ``self + sign * alpha * other``."""

    def rule(node: Node, slot: int, shape: torch.Size) -> Pass:
        factor = sign * node._saved_alpha if slot else 1  # type: ignore[attr-defined]
        return lambda d: _summed(d if factor == 1 else d * factor, shape)

    return rule


def sum_over(node: Node, slot: int, shape: torch.Size) -> Pass:
    dims = sorted(signed(dim) % len(shape) for dim in node._saved_dim)  # type: ignore[attr-defined]
    kept = torch.Size(1 if dim in dims else size for dim, size in enumerate(shape))
    return lambda d: d.reshape(d.shape[0], *kept).expand(d.shape[0], *shape)


def mean_over(node: Node, slot: int, shape: torch.Size) -> Pass:
    spread, count = sum_over(node, slot, shape), shape.numel() // output_shape(node, 0).numel()
    return lambda d: spread(d / count)


def names_dimensions(node: Node, slot: int) -> bool:
    """Return whether a sum or mean says over which dimensions; if it does not, it is over all."""
    return bool(node._saved_dim)  # type: ignore[attr-defined]


def pointwise(derivative: Callable[[Tensor, Tensor], Tensor], saved: str) -> Rule:
    """Return the rule of an activation, from its backward function and the saved result or input that it takes."""

    def rule(node: Node, slot: int, shape: torch.Size) -> Pass:
        x = getattr(node, saved)
        return lambda d: derivative(d, x)

    return rule


def prelu(node: Node, slot: int, shape: torch.Size) -> Pass:
    x, slope = node._saved_self, node._saved_weight  # type: ignore[attr-defined]
    if slot:
        return lambda d: _summed(d * x.clamp(max=0), shape)
    return lambda d: torch.where(x > 0, d, d * slope)


def relu(d: Tensor, y: Tensor) -> Tensor:
    if d.numel() < _LARGE or (out := take(d.shape, d)) is None:
        return _aten.threshold_backward(d, y, 0)  # type: ignore[no-any-return]
    return _aten.threshold_backward.grad_input(d, y, 0, grad_input=out)  # type: ignore[no-any-return]


def call(node: Node, cotangents: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Return all inputs' stacked gradients from the stacked cotangents of the outputs, by a call of the node a task."""
    tasks = next(len(d) for d in cotangents if d is not None)
    by_task = []
    for task in range(tasks):
        result = node(*(None if d is None else d[task] for d in cotangents))  # type: ignore[operator]
        by_task.append(result if isinstance(result, tuple) else (result,))
    # It is autograd that undoes broadcasting, not the node.
    return [
        None if child is None or parts[0] is None else _summed(torch.stack(parts), output_shape(child, output))
        for (child, output), parts in zip(node.next_functions, zip(*by_task, strict=True), strict=True)
    ]
