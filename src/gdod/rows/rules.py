"""Which node of the graph, at which input, is which kind of use of a parameter.

A rule is the place to teach the engine a new layer: see CONTRIBUTING.md.
"""

from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.graph import Node

from gdod.rows.contraction import Contraction
from gdod.rows.convolution import Convolution
from gdod.rows.cotangent import Cotangent
from gdod.rows.groups import Owner
from gdod.rows.lookup import Bag, Lookup
from gdod.rows.reduction import (
    Reduction,
    batch_normalised,
    constant,
    divisor,
    layer_normalised,
    saved,
)


class Use(Protocol):
    """How the gradient of a parameter comes out of what a node saved and of a cotangent there."""

    def allows(self, owner: Owner, shape: torch.Size, weight: torch.Size, examples: int) -> bool:
        """Whether rows can be read off a cotangent of this shape whose elements are owned like that."""

    def load(self, node: Node) -> Any:
        """What the node saved; read before the graph is freed."""

    def rows(self, loaded: Any, cotangent: Cotangent, shape: torch.Size) -> Tensor:
        """The rows of the (viewed) parameter, in its shape. [N, *shape]"""


RULES: dict[tuple[str, int], Use] = {
    ("AddmmBackward0", 0): Reduction(saved("_saved_beta")),
    ("AddmmBackward0", 1): Contraction(left=True, saved="_saved_mat2", scale="_saved_alpha"),
    ("AddmmBackward0", 2): Contraction(left=False, saved="_saved_mat1", scale="_saved_alpha"),
    ("MmBackward0", 0): Contraction(left=True, saved="_saved_mat2"),
    ("MmBackward0", 1): Contraction(left=False, saved="_saved_self"),
    ("BmmBackward0", 0): Contraction(left=True, saved="_saved_mat2"),
    ("BmmBackward0", 1): Contraction(left=False, saved="_saved_self"),
    ("BaddbmmBackward0", 0): Reduction(saved("_saved_beta")),
    ("BaddbmmBackward0", 1): Contraction(left=True, saved="_saved_batch2", scale="_saved_alpha"),
    ("BaddbmmBackward0", 2): Contraction(left=False, saved="_saved_batch1", scale="_saved_alpha"),
    ("MvBackward0", 1): Contraction(left=False, saved="_saved_self", vector=True),
    ("EmbeddingBackward0", 0): Lookup(),
    ("EmbeddingBagBackward0", 0): Bag(),
    ("ConvolutionBackward0", 1): Convolution(),
    ("ConvolutionBackward0", 2): Reduction(constant(1.0), channels=True),
    ("NativeLayerNormBackward0", 1): Reduction(layer_normalised),
    ("NativeLayerNormBackward0", 2): Reduction(constant(1.0)),
    ("NativeBatchNormBackward0", 1): Reduction(batch_normalised, channels=True),
    ("NativeBatchNormBackward0", 2): Reduction(constant(1.0), channels=True),
    ("AddBackward0", 0): Reduction(constant(1.0)),
    ("AddBackward0", 1): Reduction(saved("_saved_alpha")),
    ("SubBackward0", 0): Reduction(constant(1.0)),
    ("SubBackward0", 1): Reduction(saved("_saved_alpha", sign=-1.0)),
    ("MulBackward0", 0): Reduction(saved("_saved_other")),
    ("MulBackward0", 1): Reduction(saved("_saved_self")),
    ("DivBackward0", 0): Reduction(divisor),
    ("ExpandBackward0", 0): Reduction(constant(1.0)),
}


def rule_for(node: Node, slot: int) -> Use | str:
    """The kind of use, or the reason why there is no rule."""
    kind = type(node).__name__
    use = RULES.get((kind, slot))
    if use is None:
        return f"no rule for input {slot} of {kind}"
    if isinstance(use, Lookup | Bag) and node._saved_scale_grad_by_freq:  # type: ignore[attr-defined]
        return "the table scales gradients by frequency in the batch"
    if isinstance(use, Bag) and node._saved_mode == 2:  # type: ignore[attr-defined]
        return "an EmbeddingBag of mode 'max'"
    return use
