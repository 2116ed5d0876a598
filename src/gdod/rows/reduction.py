"""Parameters that are broadcast over the examples: biases, scales, norms' affine parts, tokens."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.graph import Node

from gdod.rows.cotangent import Cotangent, working
from gdod.rows.groups import Owner
from gdod.rows.use import Use

Factor = Tensor | float


@dataclass(frozen=True)
class Reduction(Use):
    """The use of a parameter whose gradient is the cotangent times a factor, summed where it was broadcast."""

    factor: Callable[[Node], Factor]
    channels: bool = False
    """Whether the parameter lies along dimension 1, not along the last ones."""

    def dims(self, shape: torch.Size, weight: torch.Size) -> list[int]:
        """Return the dimensions of the cotangent along which the parameter lies."""
        if self.channels:
            return [1]
        first = len(shape) - len(weight)
        return [first + dim for dim, size in enumerate(weight) if size > 1]

    def allows(self, owner: Owner, shape: torch.Size, weight: torch.Size, examples: int) -> bool:
        return owner.dim not in self.dims(shape, weight)

    def load(self, node: Node) -> Factor:
        return self.factor(node)

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


def constant(value: float) -> Callable[[Node], Factor]:
    """Return a factor that is the same for all nodes."""
    return lambda node: value


def saved(name: str, sign: float = 1.0) -> Callable[[Node], Factor]:
    """Return the factor that a node keeps under this name, a number or tensor."""

    def read(node: Node) -> Factor:
        value: Factor = getattr(node, name)
        return value if sign == 1 else sign * value

    return read


def divisor(node: Node) -> Factor:
    """Return the factor of what is divided: the reciprocal of the divisor."""
    other: Tensor = node._saved_other  # type: ignore[attr-defined]
    return 1 / other


def layer_normalised(node: Node) -> Factor:
    """Return the factor of layer norm's weight: the normalised input."""
    x = working(node._saved_input)  # type: ignore[attr-defined]
    mean, rstd = node._saved_result1, node._saved_result2  # type: ignore[attr-defined]
    if torch.is_grad_enabled():
        dims = tuple(range(-len(node._saved_normalized_shape), 0))  # type: ignore[attr-defined]
        mean, rstd = _moments(x, dims, rstd)
    return (x - mean) * rstd  # type: ignore[no-any-return]


def batch_normalised(node: Node) -> Factor:
    """Return the factor of batch norm's weight: the normalised input."""
    x = working(node._saved_input)  # type: ignore[attr-defined]
    shape = (1, -1) + (1,) * (x.dim() - 2)
    if node._saved_training:  # type: ignore[attr-defined]
        mean, rstd = node._saved_result1.view(shape), node._saved_result2.view(shape)  # type: ignore[attr-defined]
        if torch.is_grad_enabled():
            mean, rstd = _moments(x, (0, *range(2, x.dim())), rstd)
    else:
        mean = node._saved_running_mean.view(shape)  # type: ignore[attr-defined]
        rstd = (node._saved_running_var + node._saved_eps).rsqrt().view(shape)  # type: ignore[attr-defined]
    normalised: Tensor = (x - mean) * rstd
    return normalised


def _moments(x: Tensor, dims: tuple[int, ...], rstd: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and reciprocal deviation that can be differentiated, which those a node saved cannot."""
    mean = x.mean(dims, keepdim=True)
    variance = (x - mean).square().mean(dims, keepdim=True)
    eps = (rstd.detach() ** -2 - variance).detach()
    return mean, (variance + eps).rsqrt()
