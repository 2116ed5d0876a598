"""All that is known about each kind of autograd node, in one table.

A kind is known by the name of its class in torch. What the table says is only ever a matter of speed: a node that is
not in it is called by itself, a parameter that enters it needs a backward pass for each row, and a graph with it is
examined in every step. CONTRIBUTING.md says how to add one.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import torch
from torch.autograd.graph import Node

from gdod.rows import mixing, stacked, views
from gdod.rows.lookup import Bag, Lookup
from gdod.rows.mixing import Separation
from gdod.rows.stacked import Rule
from gdod.rows.uses import (
    Contraction,
    Convolution,
    Reduction,
    Use,
    batch_normalised,
    divisor,
    group_normalised,
    layer_normalised,
    negative_part,
)
from gdod.rows.views import Condition


@dataclass(frozen=True)
class NodeKind:
    """What is known about the nodes of one kind; by default nothing."""

    uses: Mapping[int, Use] = field(default_factory=dict)
    """How a parameter gets rows, by the number of the input at which it enters the node."""
    stacked: Rule | None = None
    """Backward for all tasks in one call."""
    stacked_if: Callable[[Node, int], bool] | None = None
    """Whether ``stacked`` holds for an input of a node; None: always."""
    view: Condition = views.never
    """Whether a node only moves numbers, so that a parameter can be followed through it."""
    transposes: Condition = views.never
    """Whether a node swaps the two dimensions of a matrix."""
    joins: Literal["cat", "stack"] | None = None
    """Whether a node puts tensors together, along a dimension of theirs or along a new one."""
    separates: Separation | None = None
    """Under what condition a node cannot mix examples; None: it has to be examined in every step."""
    refusal: str | None = None
    """What to tell the user where a graph with such a node cannot be used at all."""
    hint: str | None = None
    """What to tell the user about how to do without such a node, where it has no rule."""


_UNKNOWN = NodeKind()
_SUM = Reduction()
_SUM_OF_CHANNELS = Reduction(channels=True)
_separate = partial(NodeKind, separates=mixing.always)

# The names of node classes of which the same is known, and what it is. Each name stands here once.
ENTRIES: Mapping[str, NodeKind] = {
    # Matrix products
    "AddmmBackward0": NodeKind(
        uses={
            0: Reduction("_saved_beta"),
            1: Contraction(left=True, saved="_saved_mat2", scale="_saved_alpha"),
            2: Contraction(left=False, saved="_saved_mat1", scale="_saved_alpha"),
        },
        stacked=stacked.added_product("_saved_mat1", "_saved_mat2"),
        separates=mixing.product(None, -1, -2),
    ),
    "BaddbmmBackward0": NodeKind(
        uses={
            0: Reduction("_saved_beta"),
            1: Contraction(left=True, saved="_saved_batch2", scale="_saved_alpha"),
            2: Contraction(left=False, saved="_saved_batch1", scale="_saved_alpha"),
        },
        stacked=stacked.added_product("_saved_batch1", "_saved_batch2"),
        separates=mixing.product(None, -1, -2),
    ),
    "BmmBackward0 MmBackward0": NodeKind(
        uses={0: Contraction(left=True, saved="_saved_mat2"), 1: Contraction(left=False, saved="_saved_self")},
        stacked=stacked.product("_saved_self", "_saved_mat2"),
        separates=mixing.product(-1, -2),
    ),
    "MvBackward0": NodeKind(
        uses={1: Contraction(left=False, saved="_saved_self", vector=True)}, separates=mixing.product(None, -1)
    ),
    # Tables, which lead to nothing else
    "EmbeddingBackward0": _separate(uses={0: Lookup()}),
    "EmbeddingBagBackward0": _separate(uses={0: Bag()}),
    # Layers
    "ConvolutionBackward0": NodeKind(uses={1: Convolution(), 2: _SUM_OF_CHANNELS}, separates=mixing.leading(1)),
    "NativeLayerNormBackward0": NodeKind(
        uses={1: Reduction(layer_normalised), 2: _SUM}, separates=mixing.unless_normalised
    ),
    "NativeBatchNormBackward0": NodeKind(
        uses={1: Reduction(batch_normalised, channels=True), 2: _SUM_OF_CHANNELS}, separates=mixing.batch_in_evaluation
    ),
    "NativeLayerNormBackwardBackward0": NodeKind(separates=mixing.unless_normalised),
    """
    AvgPool2DBackward0 AvgPool2DBackwardBackward0 ConvolutionBackward1 MaxPool2DWithIndicesBackward0
    MaxPool2DWithIndicesBackwardBackward0
    """: NodeKind(separates=mixing.leading(1)),
    "NativeGroupNormBackward0": NodeKind(
        uses={1: Reduction(group_normalised, channels=True), 2: _SUM_OF_CHANNELS}, separates=mixing.leading(1)
    ),
    "MkldnnRnnLayerBackward0": NodeKind(
        hint="torch runs this LSTM as one node; within `with torch.backends.mkldnn.flags(enabled=False):` it shows its "
        "parts, which have rules"
    ),
    "ScaledDotProductFlashAttentionForCpuBackward0": NodeKind(separates=mixing.leading(2)),
    "SoftmaxBackward0": NodeKind(stacked=stacked.softmax, separates=mixing.unless_along_its_dim),
    """
    CumsumBackward0 GluBackward0 GluBackwardBackward0 LogSoftmaxBackward0 LogSoftmaxBackwardDataBackward0
    SoftmaxBackwardDataBackward0
    """: NodeKind(separates=mixing.unless_along_its_dim),
    # Element by element
    "AddBackward0": _separate(uses={0: _SUM, 1: Reduction("_saved_alpha")}, stacked=stacked.add(1)),
    "SubBackward0": _separate(uses={0: _SUM, 1: Reduction("_saved_alpha", sign=-1)}, stacked=stacked.add(-1)),
    "MulBackward0": _separate(uses={0: Reduction("_saved_other"), 1: Reduction("_saved_self")}, stacked=stacked.mul),
    "DivBackward0": _separate(uses={0: Reduction(divisor)}, stacked=stacked.div),
    "ClampBackward1": _separate(stacked=stacked.clamp),
    "ReluBackward0": _separate(stacked=stacked.pointwise(stacked.relu, "_saved_result")),
    "SigmoidBackward0": _separate(stacked=stacked.pointwise(torch.ops.aten.sigmoid_backward, "_saved_result")),
    "PreluKernelBackward0": _separate(uses={1: Reduction(negative_part)}, stacked=stacked.prelu),
    "SiluBackward0": _separate(stacked=stacked.pointwise(torch.ops.aten.silu_backward, "_saved_self")),
    "TanhBackward0": _separate(stacked=stacked.pointwise(torch.ops.aten.tanh_backward, "_saved_result")),
    """
    AbsBackward0 AddBackward1 AddcdivBackward0 AddcmulBackward0 AtanBackward0 BinaryCrossEntropyBackward0
    BinaryCrossEntropyBackwardBackward0 BinaryCrossEntropyWithLogitsBackward0 CeluBackward0 CeluBackward1
    ClampBackward0 ClampMaxBackward0 ClampMaxBackward1 ClampMinBackward0 ClampMinBackward1 CopyBackwards
    CosBackward0 DivBackward1 DivBackward2 DivBackward3 EluBackward0 EluBackward1 EluBackwardBackward0 ErfBackward0
    ErfcBackward0 ExpBackward0 Expm1Backward0 GeluBackward0 GeluBackwardBackward0 HardshrinkBackward0
    HardshrinkBackwardBackward0 HardsigmoidBackward0 HardswishBackward0 HardswishBackwardBackward0 HardtanhBackward0
    HardtanhBackwardBackward0 HuberLossBackward0 HuberLossBackwardBackward0 LeakyReluBackward0 LeakyReluBackward1
    LeakyReluBackwardBackward0 LerpBackward0 LerpBackward1 LogSigmoidBackward0 LogSigmoidBackwardBackward0
    LogBackward0 Log10Backward0 Log1PBackward0 Log2Backward0 LogaddexpBackward0 LogitBackward0 MaskedFillBackward0
    MaskedFillBackward1 MaximumBackward0 MinimumBackward0 MishBackward0 MseLossBackward0 MseLossBackwardBackward0
    MulBackward1 NativeDropoutBackward0 NativeDropoutBackwardBackward0 NegBackward0 NllLossBackward0
    NllLossBackwardBackward0 NllLoss2DBackward0 NllLoss2DBackwardBackward0 PowBackward0 PowBackward1 PowBackward2
    ReciprocalBackward0 RreluWithNoiseBackward0 RreluWithNoiseBackward1 RsqrtBackward0 RsubBackward0 RsubBackward1
    SgnBackward0 SigmoidBackwardBackward0 SignBackward0 SinBackward0 SinhBackward0 SmoothL1LossBackward0
    SmoothL1LossBackwardBackward0 SoftMarginLossBackward0 SoftMarginLossBackwardBackward0 SoftplusBackward0
    SoftplusBackwardBackward0 SoftshrinkBackward0 SoftshrinkBackwardBackward0 SqrtBackward0 SubBackward1
    TanBackward0 TanhBackwardBackward0 ThresholdBackward0 ThresholdBackward1 ThresholdBackwardBackward0
    WhereBackward0 XlogyBackward0 XlogyBackward1 XlogyBackward2
    """: _separate(),
    # Weights made of parameters, in one node: nothing else enters it
    "WeightNormInterfaceBackward0": NodeKind(),
    # Views and copies
    """
    CloneBackward0 ReshapeAliasBackward0 SqueezeBackward0 SqueezeBackward1 SqueezeBackward2 SqueezeBackward3
    SqueezeBackward4 SqueezeBackward5 UnsafeViewBackward0 UnsqueezeBackward0 UnsqueezeBackward1 ViewBackward0
    """: _separate(stacked=stacked.reshape, view=views.always),
    "TBackward0 TBackward1": _separate(stacked=stacked.t, view=views.always, transposes=views.always),
    "TransposeBackward0 TransposeBackward1": _separate(
        stacked=stacked.transpose, view=views.always, transposes=views.swaps_two
    ),
    "PermuteBackward0": _separate(stacked=stacked.permute, view=views.always, transposes=views.permutes_two),
    """
    AliasBackward0 SelectBackward0 SliceBackward0 SplitBackward0 SplitWithSizesBackward0 ToCopyBackward0
    UnbindBackward0 UnsafeSplitBackward0
    """: _separate(view=views.always),
    "ExpandBackward0": _separate(uses={0: _SUM}, stacked=stacked.expand, view=views.keeps_size),
    # Others that are linear in a way that shapes alone decide
    "CatBackward0": _separate(stacked=stacked.cat, stacked_if=stacked.sizes_are_known, joins="cat"),
    "StackBackward0": _separate(joins="stack"),
    "SumBackward1": _separate(stacked=stacked.sum_over, stacked_if=stacked.names_dimensions),
    "MeanBackward1": _separate(stacked=stacked.mean_over, stacked_if=stacked.names_dimensions),
    """
    AsStridedBackward0 AsStridedBackward1 ConstantPadNdBackward0 DiagonalBackward0 DiagonalBackwardBackward0
    FlipBackward0 MeanBackward0 RepeatBackward0 RollBackward0 SelectBackwardBackward0 SliceBackwardBackward0
    SumBackward0 TrilBackward0 TriuBackward0 UnfoldBackward0 UnfoldBackwardBackward0
    """: _separate(),
    # What hides parameters
    "CheckpointFunctionBackward": NodeKind(
        refusal="the model uses reentrant gradient checkpointing, which hides its parameters from the graph of the "
        "losses; pass use_reentrant=False to torch.utils.checkpoint.checkpoint"
    ),
}
# FBGEMM's lookups, named after their optimizer; those called Dense have none.
_FUSED = re.compile(r"Split(NoBag)?LookupFunction_(?!Dense_)")
_FUSED_TABLES = (
    "the model has FBGEMM tables with a fused optimizer (SplitTableBatchedEmbeddingBagsCodegen, as in sharded or fused "
    "collections of TorchRec), which change their weights in every backward pass, and a method makes several; use "
    "tables without it: torchrec.EmbeddingBagCollection as it is, DenseTableBatchedEmbeddingBagsCodegen, or "
    "nn.EmbeddingBag"
)
KINDS: Mapping[str, NodeKind] = {name: kind for names, kind in ENTRIES.items() for name in names.split()}


def kind_of(node: Node) -> NodeKind:
    """Return what is known about nodes of this kind."""
    return KINDS.get(type(node).__name__, _UNKNOWN)


def refusal_of(node: Node) -> str | None:
    """Return what to tell the user if a graph with this node cannot be used at all."""
    # All functions in C++ are of one class, and only their name tells which they are.
    if type(node).__name__ == "CppFunction" and _FUSED.search(node.name()):
        return _FUSED_TABLES
    return kind_of(node).refusal


def is_known(node: Node) -> bool:
    """Return whether the table has an entry for nodes of this kind."""
    return type(node).__name__ in KINDS


def use_of(node: Node, slot: int) -> Use | str:
    """Return how a parameter that enters at input ``slot`` gets rows, or the reason why it needs a pass for each."""
    use = kind_of(node).uses.get(slot)
    if use is None:
        hint = kind_of(node).hint
        return f"no rule for input {slot} of {type(node).__name__}{'' if hint is None else f': {hint}'}"
    return use.obstacle(node) or use


def stacked_rule(node: Node, slot: int) -> Rule | None:
    """Return the stacked backward of this input, or None where the node has to be called for each task."""
    kind = kind_of(node)
    return kind.stacked if kind.stacked_if is None or kind.stacked_if(node, slot) else None


def is_view(node: Node) -> bool:
    """Return whether the node only moves numbers, so that a parameter can be followed through it."""
    return kind_of(node).view(node)
