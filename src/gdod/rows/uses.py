"""The ways in which nodes use a parameter: how its rows come out of what a node saved and of a cotangent there.

Parameters without one of these uses need a backward pass for each row. Tables have theirs in lookup.py.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node

from gdod.rows.cotangent import Cotangent, working
from gdod.rows.groups import Owner
from gdod.rows.workspace import take

Factor = Tensor | float
Saved = tuple[Tensor, Tensor, tuple[object, ...]]  # of a convolution: input, weight, options


class Use(ABC):
    """One way in which nodes use a parameter."""

    @abstractmethod
    def allows(self, owner: Owner, shape: torch.Size, weight: torch.Size, examples: int) -> bool:
        """Return whether rows can be read off a cotangent of this shape whose elements are owned like that."""

    @abstractmethod
    def load(self, node: Node) -> Any:
        """Return what the node saved for the gradient, to be read before the graph is freed."""

    @abstractmethod
    def rows(self, loaded: Any, cotangent: Cotangent, shape: torch.Size) -> Tensor:
        """Return the rows of the (viewed) parameter, in its shape. [N, *shape]"""

    def rows_by_group(self, loaded: Any, cotangent: Cotangent, shape: torch.Size) -> Iterator[Tensor]:
        """Yield the rows of one group after the other, each [K, *shape]."""
        yield from self.rows(loaded, cotangent, shape).unflatten(0, (-1, cotangent.tasks))

    def obstacle(self, node: Node) -> str | None:
        """Return why this node's rows have to come from autograd although its kind has a rule, or None."""
        return None


@dataclass(frozen=True)
class Contraction(Use):
    """The use of W in ``X W`` (or in ``W X``, if ``left``), batched or not: linear layers, experts in `bmm`.

    The row of such a parameter is a product of activations X and cotangents D, summed over the places (examples, or
    examples times positions) of a group, Dᵀ X.
    """

    left: bool
    saved: str  # the attribute in which the node keeps X
    scale: str | None = None  # the attribute in which it keeps a factor of the product
    vector: bool = False  # whether W is a vector in ``X @ W``

    def allows(self, owner: Owner, shape: torch.Size, weight: torch.Size, examples: int) -> bool:
        # The examples have to lie along the dimension of the cotangent that the gradient of W sums over.
        return owner.dim == len(shape) - (1 if self.left or self.vector else 2)

    def load(self, node: Node) -> Tensor:
        """Return X [E, M, in]: experts (1 without a batch dimension), places to sum over, features."""
        x: Tensor = getattr(node, self.saved)
        if self.scale is not None and (scale := getattr(node, self.scale)) != 1:
            x = x * scale
        return working(self._sum_second(x))

    def cotangent(self, cotangent: Cotangent) -> Tensor:
        """Return the cotangents of all tasks side by side. [E, M, K * out]"""
        if self.vector:
            return working(torch.stack(tuple(cotangent.passes), -1)).unsqueeze(0)
        if isinstance(cotangent.deltas, Tensor):
            return self._side_by_side(working(cotangent.deltas))
        deltas = [working(self._sum_second(delta)) for delta in cotangent.passes]
        first = deltas[0]
        return torch.cat(deltas, -1, out=take((*first.shape[:-1], len(deltas) * first.shape[-1]), first))

    def outputs(self, cotangent: Cotangent) -> int:
        """Return the length of the vectors in a cotangent."""
        return 1 if self.vector else cotangent.shape[-2 if self.left else -1]

    def _side_by_side(self, stacked: Tensor) -> Tensor:
        stacked = stacked.transpose(-1, -2) if self.left else stacked
        if stacked.dim() == 3:  # [K, M, out]: the common case, in few operations
            tasks, places, outputs = stacked.shape
            joined, buffer = stacked.transpose(0, 1), take((places, tasks, outputs), stacked)
            return (joined.contiguous() if buffer is None else buffer.copy_(joined)).view(1, places, -1)
        tasks, experts, places, outputs = stacked.shape  # [K, E, M, out]
        joined = stacked.permute(1, 2, 0, 3)
        buffer = take((experts, places, tasks, outputs), stacked)
        return (joined.contiguous() if buffer is None else buffer.copy_(joined)).view(experts, places, -1)

    def _sum_second(self, x: Tensor) -> Tensor:
        if self.left:
            x = x.transpose(-1, -2)
        return x if x.dim() == 3 else x.unsqueeze(0)

    def rows(self, x: Tensor, cotangent: Cotangent, shape: torch.Size) -> Tensor:
        """Return the rows of the viewed parameter, in its shape. [N, *shape]"""
        xs, ds = by_group(x, cotangent), by_group(self.cotangent(cotangent), cotangent)
        rows = rows_of(xs, ds, x.shape[0], cotangent.tasks).unflatten(-1, (x.shape[0], -1, x.shape[-1]))
        oriented: Tensor = rows if self.left else rows.transpose(-1, -2)
        return oriented.reshape(-1, *shape)

    def rows_by_group(self, x: Tensor, cotangent: Cotangent, shape: torch.Size) -> Iterator[Tensor]:
        """Yield the rows as above, which take memory for one group only: a weight may be as large as a model."""
        experts, tasks = x.shape[0], cotangent.tasks
        for xs, ds in zip(by_group(x, cotangent), by_group(self.cotangent(cotangent), cotangent), strict=True):
            for some, others in zip(xs.split(experts), ds.split(experts), strict=True):
                rows = torch.bmm(others.transpose(1, 2), some).unflatten(1, (tasks, -1)).transpose(0, 1)
                oriented = rows if self.left else rows.transpose(-1, -2)  # [K, E, ...]
                yield oriented.reshape(tasks, *shape)


def by_group(x: Tensor, cotangent: Cotangent) -> list[Tensor]:
    """Cut [E, M, f] into one [groups * E, places of a group, f] for each run of equal groups."""
    owner, groups = cotangent.owner, cotangent.groups
    if x.shape[0] == 1 and owner.inner * groups.examples == x.shape[1] and groups.even:
        return [x.reshape(groups.count, -1, x.shape[2])]  # the common case, in one operation
    x = x.unflatten(1, (-1, groups.examples, owner.inner))  # [E, outer, B, inner, f]
    return [
        x[:, :, start : start + count * size]
        .unflatten(2, (count, size))  # [E, outer, groups, size, inner, f]
        .permute(2, 0, 1, 3, 4, 5)
        .reshape(count * x.shape[0], -1, x.shape[-1])
        for start, count, size in groups.runs()
    ]


def rows_of(xs: list[Tensor], ds: list[Tensor], experts: int, tasks: int) -> Tensor:
    """Return the rows [N, E * out * in] from activations and cotangents that are cut by group."""
    parts = []
    for x, d in zip(xs, ds, strict=True):
        shape = (d.shape[0], d.shape[2], x.shape[2])
        part = torch.bmm(d.transpose(1, 2), x, out=take(shape, x))  # [g * E, K * out, in]
        size = part.shape[1] // tasks * part.shape[2]
        if experts > 1:
            part = part.view(-1, experts, tasks, size).transpose(1, 2)  # [g, K, E, out * in]
        parts.append(part.reshape(-1, experts * size))  # [g * K, E * out * in]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


@dataclass(frozen=True)
class Convolution(Use):
    """The use of a weight in a convolution of any number of dimensions, grouped, dilated or transposed."""

    def allows(self, owner: Owner, shape: torch.Size, weight: torch.Size, examples: int) -> bool:
        # A group must be a slice of the batch dimension.
        return owner.dim == 0 and owner.inner * examples == shape[0]

    def load(self, node: Node) -> Saved:
        names = ("stride", "padding", "dilation", "transposed", "output_padding", "groups")
        options = tuple(getattr(node, f"_saved_{name}") for name in names)
        return node._saved_input, node._saved_weight, options  # type: ignore[attr-defined]

    def rows(self, saved: Saved, cotangent: Cotangent, shape: torch.Size) -> Tensor:
        """Return the rows by torch's own weight gradient, group by group. [N, *shape]"""
        x, weight, options = saved
        inner = len(x) // cotangent.groups.examples
        rows = []
        for start, count, size in cotangent.groups.runs():
            for group in range(count):
                first = (start + group * size) * inner
                examples = slice(first, first + size * inner)
                for delta in cotangent.passes:
                    _, grad, _ = torch.ops.aten.convolution_backward(
                        delta[examples].contiguous(), x[examples], weight, None, *options,
                        [False, True, False],
                    )  # fmt: skip
                    rows.append(grad)
        return torch.stack(rows)


@dataclass(frozen=True)
class Reduction(Use):
    """The use of a parameter that is broadcast over the examples: biases, scales, norms' affine parts, tokens.

    Its gradient is the cotangent times a factor, summed over the dimensions broadcast over.
    """

    factor: Callable[[Node], Factor] | str | None = None  # a function, or the attribute in which the node keeps it
    sign: int = 1  # a further factor
    channels: bool = False  # whether the parameter lies along dimension 1, not along the last ones

    def dims(self, shape: torch.Size, weight: torch.Size) -> list[int]:
        """Return the dimensions of the cotangent along which the parameter lies."""
        if self.channels:
            return [1]
        first = len(shape) - len(weight)
        return [first + dim for dim, size in enumerate(weight) if size > 1]

    def allows(self, owner: Owner, shape: torch.Size, weight: torch.Size, examples: int) -> bool:
        return owner.dim not in self.dims(shape, weight)

    def load(self, node: Node) -> Factor:
        if self.factor is None:
            return self.sign
        factor: Factor = getattr(node, self.factor) if isinstance(self.factor, str) else self.factor(node)
        return factor if self.sign == 1 else self.sign * factor

    def rows(self, factor: Factor, cotangent: Cotangent, shape: torch.Size) -> Tensor:
        """Return the rows of the parameter. [N, *shape]"""
        deltas = working(cotangent.stacked)  # [K, ...]
        if not isinstance(factor, float | int) or factor != 1:
            deltas = deltas * factor
        dim, groups = cotangent.owner.dim, cotangent.groups
        lies = self.dims(cotangent.shape, shape)
        before = [1 + d for d in lies if d < dim]
        kept = {0, 2 + dim, *before, *(4 + d for d in lies if d > dim)}
        # Dimension ``dim`` becomes four: outer, groups, examples of a group, inner.
        deltas = deltas.unflatten(1 + dim, (-1, groups.examples, cotangent.owner.inner))
        summed = tuple(d for d in range(deltas.dim() + 1) if d not in kept)
        parts = [
            deltas.narrow(2 + dim, start, count * size)
            .unflatten(2 + dim, (count, size))
            .sum(summed)
            .movedim(1 + len(before), 0)  # [groups, K, ...]
            for start, count, size in groups.runs()
        ]
        rows = parts[0] if len(parts) == 1 else torch.cat(parts)
        return rows.reshape(cotangent.rows, *shape)


def divisor(node: Node) -> Factor:
    """Return the factor of what is divided: the reciprocal of the divisor."""
    other: Tensor = node._saved_other  # type: ignore[attr-defined]
    return 1 / other


def negative_part(node: Node) -> Factor:
    """Return the factor of PReLU's slope: its input where that is negative."""
    x: Tensor = node._saved_self  # type: ignore[attr-defined]
    return x.clamp(max=0)


def group_normalised(node: Node) -> Factor:
    """Return the factor of group norm's weight: the normalised input."""
    x: Tensor = node._saved_input  # type: ignore[attr-defined]
    groups: int = node._saved_group  # type: ignore[attr-defined]
    shape = (len(x), groups, 1)
    mean, rstd = node._saved_result1.view(shape), node._saved_result2.view(shape)  # type: ignore[attr-defined]
    return _normalised(x.reshape(len(x), groups, -1), mean, rstd, (2,)).view(x.shape)


def layer_normalised(node: Node) -> Factor:
    """Return the factor of layer norm's weight: the normalised input."""
    dims = tuple(range(-len(node._saved_normalized_shape), 0))  # type: ignore[attr-defined]
    return _normalised(node._saved_input, node._saved_result1, node._saved_result2, dims)  # type: ignore[attr-defined]


def batch_normalised(node: Node) -> Factor:
    """Return the factor of batch norm's weight: the normalised input."""
    x: Tensor = node._saved_input  # type: ignore[attr-defined]
    shape = (1, -1) + (1,) * (x.dim() - 2)
    if node._saved_training:  # type: ignore[attr-defined]
        mean, rstd = node._saved_result1.view(shape), node._saved_result2.view(shape)  # type: ignore[attr-defined]
        return _normalised(x, mean, rstd, (0, *range(2, x.dim())))
    mean = node._saved_running_mean.view(shape)  # type: ignore[attr-defined]
    rstd = (node._saved_running_var + node._saved_eps).rsqrt().view(shape)  # type: ignore[attr-defined]
    return _normalised(x, mean, rstd, ())


def _normalised(x: Tensor, mean: Tensor, rstd: Tensor, dims: tuple[int, ...]) -> Tensor:
    """Return ``(x - mean) * rstd``, which were taken over ``dims`` or, if there are none, do not depend on x."""
    x = working(x)
    if dims and torch.is_grad_enabled():  # what a node saved cannot be differentiated
        mean = x.mean(dims, keepdim=True)
        variance = (x - mean).square().mean(dims, keepdim=True)
        eps = (rstd.detach() ** -2 - variance).detach()
        rstd = (variance + eps).rsqrt()
    return (x - mean) * rstd
