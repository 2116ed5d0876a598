"""Every kind of model gets the update of Algorithm 1, whatever path its parameters take."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.reference import BFLOAT16, check, in_precision
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import gdod

BATCH, STEPS, WIDE, OUT = 10, 4, 6, 5  # groups of 4 do not divide the batch

# Where three tasks agree there is often little left; Weighted-GDOD keeps something of every vector.
RULES = pytest.mark.parametrize("rule", ["sign", "weighted"])

Made = tuple[nn.Module, tuple[Tensor, ...]]  # a trunk and its inputs
Make = Callable[[], Made]


class Net(nn.Module):
    """Parts by name (a tensor becomes a parameter), and a forward that is one function of them."""

    def __init__(self, forward: Callable[..., Any], **parts: nn.Module | Tensor) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, nn.Parameter(part) if isinstance(part, Tensor) else part)
        self.function = forward

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(self, *inputs)


class Tasks(nn.Module):
    """A trunk, one linear head a task, and per-example losses of different kinds.

    The trunk returns features [B, OUT] for all tasks, or a list with those of each task.
    """

    def __init__(self, trunk: nn.Module, tasks: int = 3) -> None:
        super().__init__()
        self.trunk = trunk
        self.heads = nn.ModuleList(nn.Linear(OUT, 1) for _ in range(tasks))

    def forward(self, targets: Tensor, *inputs: Tensor) -> dict[str, Tensor]:
        features = self.trunk(*inputs)
        each = features if isinstance(features, list) else [features] * len(self.heads)
        scores = [head(z)[:, 0] for head, z in zip(self.heads, each, strict=True)]
        kinds: list[Callable[..., Tensor]] = [F.mse_loss, F.binary_cross_entropy_with_logits, F.smooth_l1_loss]
        return {f"task {i}": kinds[i % 3](score, targets[:, i], reduction="none") for i, score in enumerate(scores)}


def build(make: Make, dtype: torch.dtype, tasks: int = 3) -> tuple[Tasks, list[Tensor]]:
    trunk, inputs = make()
    model = in_precision(Tasks(trunk, tasks), dtype)
    every = [torch.rand(BATCH, tasks), *inputs]
    return model, [x.to(dtype) if x.is_floating_point() else x for x in every]


def x(*shape: int) -> Tensor:
    return torch.randn(*(shape or (BATCH, WIDE)))


def ids(*shape: int, vocabulary: int = 7) -> Tensor:
    return torch.randint(vocabulary, shape or (BATCH,))


def small(*shape: int) -> Tensor:
    return 0.5 * torch.randn(*shape)


# --- models whose parameters must all take the fast path -----------------------------------------


def mlp() -> Made:
    return nn.Sequential(nn.Linear(WIDE, 8), nn.ReLU(), nn.Linear(8, OUT, bias=False), nn.Tanh()), (x(),)


def linear_with_leading_dimensions() -> Made:
    net = Net(
        lambda m, a: m.b(m.a(a).tanh()).tanh().mean((1, 2)),
        a=nn.Linear(WIDE, 8),
        b=nn.Linear(8, OUT),
    )
    return net, (x(BATCH, 3, 2, WIDE),)


def linear_on_flattened_steps() -> Made:
    net = Net(
        lambda m, a: m.a(a.reshape(-1, WIDE)).tanh().view(BATCH, STEPS, OUT).sum(1),
        a=nn.Linear(WIDE, OUT),
    )
    return net, (x(BATCH, STEPS, WIDE),)


def linear_sequence_first() -> Made:
    net = Net(lambda m, a: m.b(m.a(a).tanh()).mean(0), a=nn.Linear(WIDE, 8), b=nn.Linear(8, OUT))
    return net, (x(STEPS, BATCH, WIDE),)


def linear_sequence_first_as_long_as_the_batch() -> Made:
    """Nothing in the shapes tells the steps from the examples."""
    net = Net(lambda m, a: m.b(m.a(a).tanh()).mean(0), a=nn.Linear(WIDE, 8), b=nn.Linear(8, OUT))
    return net, (x(BATCH, BATCH, WIDE),)


def linear_on_steps_flattened_first() -> Made:
    net = Net(
        lambda m, a: m.a(a.reshape(-1, WIDE)).tanh().view(STEPS, BATCH, OUT).sum(0),
        a=nn.Linear(WIDE, OUT),
    )
    return net, (x(STEPS, BATCH, WIDE),)


def layer_used_twice() -> Made:
    net = Net(lambda m, a: m.b(m.a(m.a(a).tanh()).tanh()), a=nn.Linear(WIDE, WIDE), b=nn.Linear(WIDE, OUT))
    return net, (x(),)


def layer_used_with_two_ranks() -> Made:
    net = Net(lambda m, a, b: m.a(a).tanh() + m.a(b).tanh().mean(1), a=nn.Linear(WIDE, OUT))
    return net, (x(), x(BATCH, STEPS, WIDE))


def embedding() -> Made:
    net = Net(lambda m, a: m.b(m.a(a)).tanh(), a=nn.Embedding(7, WIDE), b=nn.Linear(WIDE, OUT))
    return net, (ids(),)


def embedding_with_padding() -> Made:
    net = Net(
        lambda m, a: m.b(m.a(a).sum(1)).tanh(),
        a=nn.Embedding(7, WIDE, padding_idx=0),
        b=nn.Linear(WIDE, OUT),
    )
    return net, (ids(BATCH, STEPS, vocabulary=3),)


def embedding_sparse() -> Made:
    net = Net(
        lambda m, a: m.b(m.a(a).mean(1)).tanh(),
        a=nn.Embedding(50, WIDE, sparse=True),
        b=nn.Linear(WIDE, OUT),
    )
    return net, (ids(BATCH, STEPS, vocabulary=50),)


def embedding_sparse_with_padding() -> Made:
    net = Net(
        lambda m, a: m.b(m.a(a).mean(1)).tanh(),
        a=nn.Embedding(9, WIDE, sparse=True, padding_idx=2),
        b=nn.Linear(WIDE, OUT),
    )
    return net, (ids(BATCH, STEPS, vocabulary=4),)


def embedding_of_the_same_id_everywhere() -> Made:
    net = Net(lambda m, a: m.b(m.a(a)).tanh(), a=nn.Embedding(7, WIDE), b=nn.Linear(WIDE, OUT))
    return net, (torch.full((BATCH,), 3),)


def one_table_for_several_fields_and_a_sequence() -> Made:
    def forward(m: Any, first: Tensor, second: Tensor, history: Tensor) -> Any:
        fields = [m.table(first), m.table(second), m.table(history).mean(1)]
        return m.mix(torch.cat(fields, dim=1)).tanh()

    net = Net(forward, table=nn.Embedding(7, WIDE), mix=nn.Linear(3 * WIDE, OUT))
    return net, (ids(), ids(), ids(BATCH, STEPS))


def one_table_sequence_first() -> Made:
    net = Net(lambda m, a: m.b(m.a(a).tanh()).mean(0), a=nn.Embedding(7, WIDE), b=nn.Linear(WIDE, OUT))
    return net, (ids(STEPS, BATCH),)


def bag(mode: str, **options: Any) -> Make:
    def make() -> Made:
        net = Net(
            lambda m, a: m.b(m.a(a)).tanh(),
            a=nn.EmbeddingBag(7, WIDE, mode=mode, **options),
            b=nn.Linear(WIDE, OUT),
        )
        return net, (ids(BATCH, STEPS),)

    return make


def bag_with_offsets(mode: str, **options: Any) -> Make:
    """Bags of 0, 1, 2 and 3 ids; the second one and every fourth after it are empty."""

    def make() -> Made:
        sizes = torch.tensor([3, 0, 1, 2] * BATCH)[:BATCH]
        ends = sizes.cumsum(0)
        starts = ends - sizes
        if options.get("include_last_offset"):
            starts = torch.cat([starts, ends[-1:]])
        net = Net(
            lambda m, a, offsets: m.b(m.a(a, offsets)).tanh(),
            a=nn.EmbeddingBag(7, WIDE, mode=mode, **options),
            b=nn.Linear(WIDE, OUT),
        )
        return net, (ids(int(ends[-1])), starts)

    return make


def bag_with_sample_weights() -> Made:
    net = Net(
        lambda m, a, w: m.b(m.a(a, per_sample_weights=w)).tanh(),
        a=nn.EmbeddingBag(7, WIDE, mode="sum"),
        b=nn.Linear(WIDE, OUT),
    )
    return net, (ids(BATCH, STEPS), x(BATCH, STEPS))


def matmul() -> Made:
    net = Net(
        lambda m, a: ((a @ m.w).tanh() @ m.v + m.b).tanh(),
        w=small(WIDE, 8),
        v=small(8, OUT),
        b=small(OUT),
    )
    return net, (x(),)


def matmul_transposed() -> Made:
    net = Net(lambda m, a: (a @ m.w.T).tanh(), w=small(OUT, WIDE))
    return net, (x(),)


def matmul_with_the_parameter_first() -> Made:
    net = Net(lambda m, a: (m.w @ a.T).T.tanh(), w=small(OUT, WIDE))
    return net, (x(),)


def matmul_with_leading_dimensions() -> Made:
    net = Net(lambda m, a: (a @ m.w).tanh().mean(1), w=small(WIDE, OUT))
    return net, (x(BATCH, STEPS, WIDE),)


def matrix_times_vectors() -> Made:
    net = Net(lambda m, a: (m.w @ a.unsqueeze(-1)).squeeze(-1).tanh(), w=small(OUT, WIDE))
    return net, (x(),)


def matmul_with_stacked_experts() -> Made:
    """[B, 1, 1, D] x [E, D, H] -> [B, E, 1, H]"""
    net = Net(lambda m, a: (a[:, None, None] @ m.w).squeeze(2).tanh().mean(1), w=small(3, WIDE, OUT))
    return net, (x(),)


def bmm_with_stacked_experts() -> Made:
    """[E, B, D] x [E, D, H] -> [E, B, H]"""
    net = Net(lambda m, a: torch.bmm(a.expand(3, -1, -1), m.w).tanh().mean(0), w=small(3, WIDE, OUT))
    return net, (x(),)


def bmm_with_as_many_experts_as_examples() -> Made:
    net = Net(
        lambda m, a: torch.bmm(a.expand(BATCH, -1, -1), m.w).tanh().mean(0),
        w=small(BATCH, WIDE, OUT),
    )
    return net, (x(),)


def einsum_with_stacked_experts() -> Made:
    def forward(m: Any, a: Tensor) -> Any:
        experts = torch.einsum("bd,edh->beh", a, m.experts).tanh()  # [B, E, H]
        gates = torch.einsum("bd,tde->tbe", a, m.gates).softmax(-1)  # [K, B, E]
        return list(torch.einsum("tbe,beh->tbh", gates, experts).unbind(0))

    return Net(forward, experts=small(4, WIDE, OUT), gates=small(3, WIDE, 4)), (x(),)


def einsum_over_a_sequence() -> Made:
    net = Net(lambda m, a: torch.einsum("btd,dh->bth", a, m.w).tanh().mean(1), w=small(WIDE, OUT))
    return net, (x(BATCH, STEPS, WIDE),)


def layer_norm() -> Made:
    return nn.Sequential(nn.Linear(WIDE, OUT), nn.LayerNorm(OUT), nn.Tanh()), (x(),)


def layer_norm_over_a_sequence() -> Made:
    net = Net(lambda m, a: m.b(m.a(a)).tanh().mean(1), a=nn.LayerNorm(WIDE), b=nn.Linear(WIDE, OUT))
    return net, (x(BATCH, STEPS, WIDE),)


def layer_norm_sequence_first() -> Made:
    net = Net(lambda m, a: m.b(m.a(a)).tanh().mean(0), a=nn.LayerNorm(WIDE), b=nn.Linear(WIDE, OUT))
    return net, (x(STEPS, BATCH, WIDE),)


def layer_norm_over_two_dimensions() -> Made:
    net = Net(
        lambda m, a: m.b(m.a(a)).tanh().mean(1),
        a=nn.LayerNorm([STEPS, WIDE]),
        b=nn.Linear(WIDE, OUT),
    )
    return net, (x(BATCH, STEPS, WIDE),)


def scale_and_bias() -> Made:
    net = Net(
        lambda m, a: m.a(a * m.scale + m.shift).tanh(),
        scale=small(WIDE),
        shift=small(WIDE),
        a=nn.Linear(WIDE, OUT),
    )
    return net, (x(),)


def scalar_scale() -> Made:
    net = Net(lambda m, a: (m.a(a) * m.scale).tanh(), a=nn.Linear(WIDE, OUT), scale=torch.tensor(1.3))
    return net, (x(),)


def positions_added_to_every_example() -> Made:
    net = Net(
        lambda m, a: m.a((a + m.positions).tanh()).mean(1),
        positions=small(STEPS, WIDE),
        a=nn.Linear(WIDE, OUT),
    )
    return net, (x(BATCH, STEPS, WIDE),)


def dropout() -> Made:
    return nn.Sequential(nn.Linear(WIDE, 8), nn.Dropout(0.4), nn.Linear(8, OUT), nn.Tanh()), (x(),)


def conv1d() -> Made:
    net = Net(
        lambda m, a: m.a(a).tanh().mean(2),
        a=nn.Conv1d(WIDE, OUT, 3, padding=1, stride=2),
    )
    return net, (x(BATCH, WIDE, 8),)


def conv2d() -> Made:
    net = Net(
        lambda m, a: m.b(m.a(a).tanh()).tanh().mean((2, 3)),
        a=nn.Conv2d(2, 6, 3, padding=1, bias=False),
        b=nn.Conv2d(6, OUT, (2, 3), dilation=(2, 1)),
    )
    return net, (x(BATCH, 2, 5, 5),)


def conv2d_in_groups() -> Made:
    net = Net(lambda m, a: m.a(a).tanh().mean((2, 3)), a=nn.Conv2d(OUT, 3 * OUT, 3, groups=OUT))
    forward = net.function
    net.function = lambda m, a: forward(m, a).view(BATCH, OUT, 3).sum(2)
    return net, (x(BATCH, OUT, 4, 4),)


def last_hidden_state() -> Made:
    def forward(m: Any, a: Tensor, lengths: Tensor) -> Any:
        hidden = m.a(a).tanh()  # [B, T, H]
        return m.b(hidden[torch.arange(BATCH), lengths - 1]).tanh()

    net = Net(forward, a=nn.Linear(WIDE, 8), b=nn.Linear(8, OUT))
    return net, (x(BATCH, STEPS, WIDE), torch.randint(1, STEPS + 1, (BATCH,)))


def batch_norm_in_evaluation() -> Made:
    norm = nn.BatchNorm1d(OUT).eval()
    assert norm.running_mean is not None
    assert norm.running_var is not None
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.5, 2)
    return Net(lambda m, a: m.norm(m.a(a)).tanh(), a=nn.Linear(WIDE, OUT), norm=norm), (x(),)


FAST = {
    function.__name__: function
    for function in [
        mlp,
        linear_with_leading_dimensions,
        linear_on_flattened_steps,
        linear_sequence_first,
        linear_sequence_first_as_long_as_the_batch,
        linear_on_steps_flattened_first,
        layer_used_twice,
        layer_used_with_two_ranks,
        embedding,
        embedding_with_padding,
        embedding_sparse,
        embedding_sparse_with_padding,
        embedding_of_the_same_id_everywhere,
        one_table_for_several_fields_and_a_sequence,
        one_table_sequence_first,
        bag_with_sample_weights,
        matmul,
        matmul_transposed,
        matmul_with_the_parameter_first,
        matmul_with_leading_dimensions,
        matrix_times_vectors,
        matmul_with_stacked_experts,
        bmm_with_stacked_experts,
        bmm_with_as_many_experts_as_examples,
        einsum_with_stacked_experts,
        einsum_over_a_sequence,
        layer_norm,
        layer_norm_over_a_sequence,
        layer_norm_sequence_first,
        layer_norm_over_two_dimensions,
        scale_and_bias,
        scalar_scale,
        positions_added_to_every_example,
        dropout,
        conv1d,
        conv2d,
        conv2d_in_groups,
        last_hidden_state,
    ]
} | {
    "bag_sum": bag("sum"),
    "bag_mean": bag("mean"),
    "bag_sum_sparse": bag("sum", sparse=True),
    "bag_mean_with_padding": bag("mean", padding_idx=1),
    "bag_sum_with_offsets": bag_with_offsets("sum"),
    "bag_mean_with_offsets": bag_with_offsets("mean"),
    "bag_mean_with_last_offset": bag_with_offsets("mean", include_last_offset=True),
}


@RULES
@pytest.mark.parametrize("name", FAST)
def test_fast_and_exact(name: str, rule: str, dtype: torch.dtype) -> None:
    model, inputs = build(FAST[name], dtype)
    info = check(model, inputs, rule=rule)
    assert info.slow == ()


# --- models that may take the slow path, and are as exact ----------------------------------------


def tied_embedding_and_linear() -> Made:
    def forward(m: Any, a: Tensor) -> Any:
        return m.a(F.linear(m.table(a).mean(1).tanh(), m.table.weight).tanh())

    return Net(forward, table=nn.Embedding(7, WIDE), a=nn.Linear(7, OUT)), (ids(BATCH, STEPS),)


def embedding_scaled_by_frequency() -> Made:
    net = Net(
        lambda m, a: m.b(m.a(a).sum(1)).tanh(),
        a=nn.Embedding(7, WIDE, scale_grad_by_freq=True),
        b=nn.Linear(WIDE, OUT),
    )
    return net, (ids(BATCH, STEPS),)


def table_read_by_index() -> Made:
    net = Net(lambda m, a: m.b(m.table[a]).tanh(), table=small(7, WIDE), b=nn.Linear(WIDE, OUT))
    return net, (ids(),)


def learned_sample_weights() -> Made:
    net = Net(
        lambda m, a: m.b(m.a(a, per_sample_weights=m.w[a])).tanh(),
        a=nn.EmbeddingBag(7, WIDE, mode="sum"),
        b=nn.Linear(WIDE, OUT),
        w=small(7),
    )
    return net, (ids(BATCH, STEPS),)


def weight_made_of_parameters() -> Made:
    """A low-rank product, a concatenation and a slice: the parameters meet before any example."""

    def forward(m: Any, a: Tensor) -> Any:
        hidden = (a @ (m.left @ m.right)).tanh()  # [B, 8]
        weight = torch.cat([m.first, m.second * 0.7])[1:]  # [8, OUT]
        return (hidden @ weight).tanh()

    parts = {
        "left": small(WIDE, 2),
        "right": small(2, 8),
        "first": small(4, OUT),
        "second": small(5, OUT),
    }
    return Net(forward, **parts), (x(),)


def embedding_of_a_scaled_table() -> Made:
    net = Net(
        lambda m, a: m.b(F.embedding(a, m.table.tanh())).tanh(),
        table=small(7, WIDE),
        b=nn.Linear(WIDE, OUT),
    )
    return net, (ids(),)


def penalty_inside_every_loss() -> Made:
    """A parameter reaches each example's loss both through the model and directly."""
    net = Net(lambda m, a: (m.a(a) + m.a.weight.pow(2).sum()).tanh(), a=nn.Linear(WIDE, OUT))
    return net, (x(),)


def learned_temperature() -> Made:
    net = Net(
        lambda m, a: (m.a(a) * m.log_scale.exp()).tanh(),
        a=nn.Linear(WIDE, OUT),
        log_scale=torch.tensor(0.3),
    )
    return net, (x(),)


def weight_norm() -> Made:
    net = Net(lambda m, a: m.a(a).tanh(), a=nn.utils.parametrizations.weight_norm(nn.Linear(WIDE, OUT)))
    return net, (x(),)


def gru() -> Made:
    net = Net(lambda m, a: m.a(a)[0][:, -1], a=nn.GRU(WIDE, OUT, batch_first=True))
    return net, (x(BATCH, STEPS, WIDE),)


def gru_sequence_first_both_ways() -> Made:
    net = Net(
        lambda m, a: m.b(m.a(a)[0].mean(0)).tanh(),
        a=nn.GRU(WIDE, 3, bidirectional=True),
        b=nn.Linear(6, OUT),
    )
    return net, (x(STEPS, BATCH, WIDE),)


def gru_on_packed_sequences() -> Made:
    """Packing sorts the examples and drops the steps past each one's end."""

    def forward(m: Any, a: Tensor, lengths: Tensor) -> Any:
        packed = nn.utils.rnn.pack_padded_sequence(a, lengths, batch_first=True, enforce_sorted=False)
        return m.a(packed)[1][-1]

    lengths = torch.tensor([1, 2, 3, 4] * BATCH)[:BATCH]
    return Net(forward, a=nn.GRU(WIDE, OUT, batch_first=True)), (x(BATCH, STEPS, WIDE), lengths)


def lstm() -> Made:
    net = Net(lambda m, a: m.a(a)[1][0][-1], a=nn.LSTM(WIDE, OUT, num_layers=2, batch_first=True))
    return net, (x(BATCH, STEPS, WIDE),)


def attention(batch_first: bool, cross: bool, need_weights: bool = False) -> Make:
    def make() -> Made:
        over = 1 if batch_first else 0

        def forward(m: Any, a: Tensor, b: Tensor) -> Any:
            other = b if cross else a
            return m.b(m.a(a, other, other, need_weights=need_weights)[0].mean(over)).tanh()

        def steps(count: int) -> Tensor:
            return x(BATCH, count, WIDE) if batch_first else x(count, BATCH, WIDE)

        net = Net(
            forward,
            a=nn.MultiheadAttention(WIDE, 2, batch_first=batch_first),
            b=nn.Linear(WIDE, OUT),
        )
        return net, (steps(STEPS), steps(3))

    return make


def transformer_layer_with_cls_token() -> Made:
    def forward(m: Any, a: Tensor) -> Any:
        tokens = torch.cat([m.cls.expand(BATCH, -1, -1), a], dim=1)  # [B, 1 + T, D]
        return m.b(m.a(tokens)[:, 0]).tanh()

    net = Net(
        forward,
        cls=small(1, 1, WIDE),
        a=nn.TransformerEncoderLayer(WIDE, 2, 8, dropout=0.0, batch_first=True),
        b=nn.Linear(WIDE, OUT),
    )
    return net, (x(BATCH, STEPS, WIDE),)


def other_norms() -> Made:
    net = Net(
        lambda m, a: m.c(m.b(m.a(a))).tanh(),
        a=nn.GroupNorm(2, WIDE),
        b=nn.RMSNorm(WIDE),
        c=nn.Linear(WIDE, OUT),
    )
    return net, (x(),)


def transposed_convolution() -> Made:
    net = Net(lambda m, a: m.a(a).tanh().mean(2), a=nn.ConvTranspose1d(WIDE, OUT, 3, stride=2))
    return net, (x(BATCH, WIDE, 4),)


def prelu_and_bilinear() -> Made:
    net = Net(lambda m, a, b: m.act(m.a(a, b)), a=nn.Bilinear(WIDE, 3, OUT), act=nn.PReLU(OUT))
    return net, (x(), x(BATCH, 3))


def gradient_checkpoint() -> Made:
    def forward(m: Any, a: Tensor) -> Any:
        hidden = checkpoint(lambda h: m.b(m.a(h).tanh()).tanh(), a, use_reentrant=False)
        return m.c(hidden).tanh()

    parts = {"a": nn.Linear(WIDE, 8), "b": nn.Linear(8, 8), "c": nn.Linear(8, OUT)}
    return Net(forward, **parts), (x(),)


def gradient_checkpoint_in_the_middle() -> Made:
    def forward(m: Any, a: Tensor) -> Any:
        hidden = checkpoint(lambda h: m.b(h.tanh()).tanh(), m.a(a), use_reentrant=False)
        return m.c(hidden).tanh()

    parts = {"a": nn.Embedding(7, WIDE), "b": nn.Linear(WIDE, 8), "c": nn.Linear(8, OUT)}
    return Net(forward, **parts), (ids(),)


def parameters_that_some_tasks_reach() -> Made:
    """`ab` serves tasks 0 and 1, `bc` 1 and 2, `c` task 2 alone, `unused` none."""

    def forward(m: Any, a: Tensor) -> Any:
        ab, bc, c = m.ab(a).tanh(), m.bc(a).tanh(), m.c(a).tanh()
        return [ab, ab * bc, bc + c]

    parts = {name: nn.Linear(WIDE, OUT) for name in ["ab", "bc", "c", "unused"]}
    return Net(forward, **parts), (x(),)


def tasks_that_share_no_direction() -> Made:
    """Two tasks read different inputs of one layer: their projections are zero by turns."""

    def forward(m: Any, a: Tensor, b: Tensor) -> Any:
        return [m.a(a).tanh(), m.a(b).tanh(), m.c(a).tanh()]

    a, b = x(), x()
    a[:, WIDE // 2 :], b[:, : WIDE // 2] = 0, 0
    parts = {"a": nn.Linear(WIDE, OUT, bias=False), "c": nn.Linear(WIDE, OUT)}
    return Net(forward, **parts), (a, b)


def frozen_parameters() -> Made:
    first, second, table = nn.Linear(WIDE, 8), nn.Linear(8, 8), nn.Embedding(7, 8)
    for frozen in [first.weight, first.bias, second.bias, table.weight]:
        frozen.requires_grad_(False)
    net = Net(
        lambda m, a, b: m.c(m.b(m.a(a)).tanh() + m.table(b)).tanh(),
        a=first,
        b=second,
        c=nn.Linear(8, OUT),
        table=table,
    )
    return net, (x(), ids())


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor) -> Tensor:
        ctx.save_for_backward(a)
        return a**2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return 2 * ctx.saved_tensors[0] * grad


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(a, weight)
        return a @ weight

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        a, weight = ctx.saved_tensors
        return grad @ weight.T, a.T @ grad


def custom_functions() -> Made:
    net = Net(
        lambda m, a: Square.apply(Product.apply(m.a(a).tanh(), m.w)).tanh(),  # type: ignore[no-untyped-call]
        a=nn.Linear(WIDE, 8),
        w=small(8, OUT),
    )
    return net, (x(),)


def examples_in_another_order() -> Made:
    """The trunk sees the examples shuffled: a layer's position is not the loss's position."""

    def forward(m: Any, a: Tensor, order: Tensor) -> Any:
        hidden = m.b(m.a(a[order]).tanh()).tanh()
        return hidden[order.argsort()]

    net = Net(forward, a=nn.Linear(WIDE, 8), b=nn.Linear(8, OUT))
    return net, (x(), torch.randperm(BATCH))


def ragged_tokens_summed_into_examples() -> Made:
    def forward(m: Any, tokens: Tensor, owner: Tensor) -> Any:
        hidden = m.a(tokens).tanh()  # [tokens, H]
        pooled = hidden.new_zeros(BATCH, 8).index_add(0, owner, hidden)
        return m.b(pooled).tanh()

    net = Net(forward, a=nn.Linear(WIDE, 8), b=nn.Linear(8, OUT))
    return net, (x(3 * BATCH, WIDE), torch.arange(3 * BATCH).flip(0) % BATCH)


def in_place_operations() -> Made:
    def forward(m: Any, a: Tensor) -> Any:
        hidden = m.a(a)
        hidden += m.shift
        return m.b(F.relu(hidden, inplace=True)).tanh_()

    net = Net(forward, a=nn.Linear(WIDE, 8), shift=small(8), b=nn.Linear(8, OUT))
    return net, (x(),)


def uncertainty_weights() -> Made:
    """Learned task weights, as in homoscedastic-uncertainty weighting: one vector, all tasks."""

    def forward(m: Any, a: Tensor) -> Any:
        hidden = m.a(a).tanh()
        return [hidden * scale for scale in m.scales.exp()]

    return Net(forward, a=nn.Linear(WIDE, OUT), scales=small(3)), (x(),)


EXACT = {
    function.__name__: function
    for function in [
        tied_embedding_and_linear,
        embedding_scaled_by_frequency,
        table_read_by_index,
        learned_sample_weights,
        weight_made_of_parameters,
        embedding_of_a_scaled_table,
        penalty_inside_every_loss,
        learned_temperature,
        weight_norm,
        gru,
        gru_sequence_first_both_ways,
        lstm,
        transformer_layer_with_cls_token,
        other_norms,
        batch_norm_in_evaluation,
        transposed_convolution,
        prelu_and_bilinear,
        gradient_checkpoint,
        gradient_checkpoint_in_the_middle,
        parameters_that_some_tasks_reach,
        tasks_that_share_no_direction,
        frozen_parameters,
        custom_functions,
        in_place_operations,
        uncertainty_weights,
    ]
} | {
    "bag_max": bag("max"),
    "bag_sum_scaled_by_frequency": bag("sum", scale_grad_by_freq=True),
    "self_attention": attention(batch_first=True, cross=False),
    "self_attention_with_its_weights": attention(True, cross=False, need_weights=True),
    "self_attention_sequence_first": attention(batch_first=False, cross=False),
    "cross_attention": attention(batch_first=True, cross=True),
    "cross_attention_sequence_first": attention(batch_first=False, cross=True),
}


@RULES
@pytest.mark.parametrize("name", EXACT)
@pytest.mark.filterwarnings("ignore::gdod.SlowPathWarning")
def test_exact(name: str, rule: str, dtype: torch.dtype) -> None:
    check(*build(EXACT[name], dtype), rule=rule)


# --- models that mix the examples of a batch -----------------------------------------------------


def batch_norm_in_training() -> Made:
    return nn.Sequential(nn.Linear(WIDE, OUT), nn.BatchNorm1d(OUT), nn.Tanh()), (x(),)


def softmax_over_the_batch() -> Made:
    def forward(m: Any, a: Tensor, b: Tensor) -> Any:
        scores = m.a(a) @ m.b(b).T  # [B, B]
        return scores.log_softmax(1) @ m.c

    net = Net(forward, a=nn.Linear(WIDE, 4), b=nn.Linear(WIDE, 4), c=small(BATCH, OUT))
    return net, (x(), x())


def mean_over_the_batch_for_one_task() -> Made:
    def forward(m: Any, a: Tensor) -> Any:
        hidden = m.a(a).tanh()
        return [hidden, hidden, hidden - hidden.mean(0)]

    return Net(forward, a=nn.Linear(WIDE, OUT)), (x(),)


def neighbours_by_index() -> Made:
    net = Net(
        lambda m, a: m.b(m.a(a).tanh().roll(1, 0) * m.a(a)).tanh(),
        a=nn.Linear(WIDE, 8),
        b=nn.Linear(8, OUT),
    )
    return net, (x(),)


MIXING = {
    function.__name__: function
    for function in [
        batch_norm_in_training,
        softmax_over_the_batch,
        mean_over_the_batch_for_one_task,
        neighbours_by_index,
    ]
}


@pytest.mark.parametrize("name", MIXING)
def test_mixed_examples_warn_once_and_stay_exact(name: str, dtype: torch.dtype) -> None:
    model, inputs = build(MIXING[name], dtype)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            model.zero_grad()
            check(model, inputs)
    assert [w.category for w in caught] == [gdod.MixingWarning]


# --- models that keep examples apart in a way that shapes do not show ----------------------------


def repeated_ids_read_once() -> Made:
    """`unique` makes examples with one id share a row of activations."""

    def forward(m: Any, a: Tensor) -> Any:
        distinct, back = a.unique(return_inverse=True)
        return m.b(m.a(distinct)).tanh()[back]

    return Net(forward, a=nn.Embedding(7, WIDE), b=nn.Linear(WIDE, OUT)), (ids(),)


REARRANGING = {
    function.__name__: function
    for function in [
        gru_on_packed_sequences,
        examples_in_another_order,
        ragged_tokens_summed_into_examples,
        repeated_ids_read_once,
    ]
}


@pytest.mark.parametrize("name", REARRANGING)
@pytest.mark.filterwarnings("ignore::gdod.SlowPathWarning")
def test_rearranged_examples_may_warn_and_stay_exact(name: str, dtype: torch.dtype) -> None:
    check(*build(REARRANGING[name], dtype))


# --- the ways a model is run ---------------------------------------------------------------------


def test_sparse_tables_get_sparse_gradients() -> None:
    model, inputs = build(embedding_sparse, torch.float32)
    check(model, inputs)
    grad = model.trunk.get_parameter("a.weight").grad
    assert grad is not None
    assert grad.is_sparse
    assert set(grad.coalesce().indices()[0].tolist()) == set(inputs[1].flatten().tolist())


def test_autocast() -> None:
    """Against the rows that autograd gives for the same bfloat16 forward."""
    model, inputs = build(mlp, torch.float32, tasks=2)

    def losses(model: nn.Module, *inputs: Tensor) -> dict[str, Tensor]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            result: dict[str, Tensor] = model(*inputs)
        return result

    check(model, inputs, losses=losses, groups=2, reference_in=None, tolerance=BFLOAT16)
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in model.parameters())


def test_reentrant_checkpoint_is_refused() -> None:
    def forward(m: Any, a: Tensor) -> Any:
        return checkpoint(lambda h: m.b(h.tanh()).tanh(), m.a(a), use_reentrant=True)

    def make() -> Made:
        return Net(forward, a=nn.Linear(WIDE, 8), b=nn.Linear(8, OUT)), (x(),)

    model, inputs = build(make, torch.float32)
    with pytest.raises(gdod.InputError, match="use_reentrant=False"):
        gdod.backward(model(*inputs))
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.filterwarnings("ignore")
def test_compiled_model_is_exact_or_refused() -> None:
    model, inputs = build(mlp, torch.float32)

    def losses(model: nn.Module, *inputs: Tensor) -> dict[str, Tensor]:
        result: dict[str, Tensor] = torch.compile(model, backend="aot_eager")(*inputs)
        return result

    refusal = ""
    try:
        check(model, inputs, losses=losses)
    except gdod.InputError as error:
        refusal = str(error)
    if refusal:
        assert "compile" in refusal
        assert all(p.grad is None for p in model.parameters())
