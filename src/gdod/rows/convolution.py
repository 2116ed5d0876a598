"""Convolutions of any number of dimensions, grouped, dilated or transposed."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.graph import Node

from gdod.rows.cotangent import Cotangent
from gdod.rows.groups import Owner
from gdod.rows.use import Use


@dataclass(frozen=True)
class Loaded:
    """What a convolution saved: its input, its weight, and the further arguments of its backward function."""

    x: Tensor
    weight: Tensor
    options: tuple[object, ...]


@dataclass(frozen=True)
class Convolution(Use):
    """The use of a weight in a convolution."""

    def allows(self, owner: Owner, shape: torch.Size, weight: torch.Size, examples: int) -> bool:
        # A group must be a slice of the batch dimension.
        return owner.dim == 0 and owner.inner * examples == shape[0]

    def load(self, node: Node) -> Loaded:
        names = ("stride", "padding", "dilation", "transposed", "output_padding", "groups")
        options = tuple(getattr(node, f"_saved_{name}") for name in names)
        return Loaded(node._saved_input, node._saved_weight, options)  # type: ignore[attr-defined]

    def rows(self, loaded: Loaded, cotangent: Cotangent, shape: torch.Size) -> Tensor:
        """Return the rows by torch's own weight gradient, group by group. [N, *shape]"""
        inner = len(loaded.x) // cotangent.groups.examples
        rows = []
        for start, count, size in cotangent.groups.runs():
            for group in range(count):
                first = (start + group * size) * inner
                examples = slice(first, first + size * inner)
                for delta in cotangent.passes:
                    _, grad, _ = torch.ops.aten.convolution_backward(
                        delta[examples].contiguous(), loaded.x[examples], loaded.weight, None, *loaded.options,
                        [False, True, False],
                    )  # fmt: skip
                    rows.append(grad)
        return torch.stack(rows)
