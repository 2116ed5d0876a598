"""Architectures that people use, each exact: on the fast path, or on the slow one with a warning, or refused.

Those of test_exact_models.py and these together are the ones of a trial on real models.
"""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests._backward.test_exact_models import BATCH, OUT, RULES, STEPS, WIDE, Made, Make, Net, build, ids, small, x
from tests.reference import check
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.nn.utils.parametrize import register_parametrization

import gdod

# --- weights that are computed from parameters -----------------------------------------------------


def lora(rank: int = 2, *, frozen: bool = True, frozen_factor: bool = False) -> Make:
    """W + scale * B A, with a base that is usually frozen."""

    def make() -> Made:
        def forward(m: Any, a: Tensor) -> Any:
            return m.last(F.linear(a, m.base.weight + 0.5 * (m.b @ m.a), m.base.bias).tanh()).tanh()

        net = Net(forward, base=nn.Linear(WIDE, 8), a=small(rank, WIDE), b=small(8, rank), last=nn.Linear(8, OUT))
        net.get_parameter("base.weight").requires_grad_(not frozen)
        net.get_parameter("b").requires_grad_(not frozen_factor)
        return net, (x(),)

    return make


def lora_as_wide_as_the_batch() -> Made:
    """Nothing in the shapes tells a dimension of the weight from the examples."""

    def forward(m: Any, a: Tensor) -> Any:
        return m.last((a @ (m.base + m.b @ m.a)).tanh()).tanh()

    parts = {"base": small(BATCH, BATCH), "a": small(BATCH, BATCH), "b": small(BATCH, BATCH)}
    return Net(forward, **parts, last=nn.Linear(BATCH, OUT)), (x(BATCH, BATCH),)


def lora_beside_the_layer() -> Made:
    """As peft has it: the low-rank part on the activations."""
    net = Net(
        lambda m, a: (m.base(a) + 0.5 * m.up(m.down(a))).tanh(),
        base=nn.Linear(WIDE, OUT),
        down=nn.Linear(WIDE, 2, bias=False),
        up=nn.Linear(2, OUT, bias=False),
    )
    net.get_parameter("base.weight").requires_grad_(False)
    return net, (x(),)


def lora_of_a_convolution() -> Made:
    def forward(m: Any, a: Tensor) -> Any:
        low = (m.b @ m.a).view_as(m.base.weight)
        return F.conv1d(a, m.base.weight + low, m.base.bias, padding=1).tanh().mean(2)

    net = Net(forward, base=nn.Conv1d(WIDE, OUT, 3), a=small(2, WIDE * 3), b=small(OUT, 2))
    return net, (x(BATCH, WIDE, 4),)


def lora_of_a_table() -> Made:
    net = Net(
        lambda m, a: m.last(F.embedding(a, m.base + m.b @ m.a).mean(1)).tanh(),
        base=small(7, WIDE),
        a=small(2, WIDE),
        b=small(7, 2),
        last=nn.Linear(WIDE, OUT),
    )
    return net, (ids(BATCH, STEPS),)


def one_computed_weight_used_twice() -> Made:
    def forward(m: Any, a: Tensor) -> Any:
        weight = m.left @ m.right  # [WIDE, WIDE]
        return m.last(((a @ weight).tanh() @ weight.T).tanh()).tanh()

    return Net(forward, left=small(WIDE, 3), right=small(3, WIDE), last=nn.Linear(WIDE, OUT)), (x(),)


def parameter_used_alone_and_in_a_weight() -> Made:
    def forward(m: Any, a: Tensor) -> Any:
        return ((a @ m.w).tanh() @ (m.w @ m.w)).tanh()[:, :OUT]

    return Net(forward, w=small(WIDE, WIDE)), (x(),)


def weight_of_a_weight() -> Made:
    """A weight is used, and another one is computed from it."""

    def forward(m: Any, a: Tensor) -> Any:
        first = m.left @ m.right
        second = first * m.scale.exp()
        return ((a @ first).tanh() @ second).tanh()[:, :OUT]

    return Net(forward, left=small(WIDE, 3), right=small(3, WIDE), scale=small(WIDE)), (x(),)


def weight_that_only_one_task_changes() -> Made:
    def forward(m: Any, a: Tensor) -> Any:
        base = m.left @ m.right
        return [(a @ base).tanh(), (a @ base).tanh(), (a @ (base + m.own)).tanh()]

    return Net(forward, left=small(WIDE, 2), right=small(2, OUT), own=small(WIDE, OUT)), (x(),)


def weight_norm_of_a_convolution() -> Made:
    net = Net(
        lambda m, a: m.a(a).tanh().mean((2, 3)),
        a=parametrizations.weight_norm(nn.Conv2d(2, OUT, 3, padding=1)),
    )
    return net, (x(BATCH, 2, 4, 4),)


def weight_norm_by_hand() -> Made:
    net = Net(lambda m, a: (a @ (m.v / m.v.norm(dim=0) * m.g)).tanh(), v=small(WIDE, OUT), g=small(OUT))
    return net, (x(),)


def spectral_norm_in_evaluation() -> Made:
    layer = parametrizations.spectral_norm(nn.Linear(WIDE, OUT)).eval()
    return Net(lambda m, a: m.a(a).tanh(), a=layer), (x(),)


def orthogonal_weight() -> Made:
    layer = parametrizations.orthogonal(nn.Linear(WIDE, WIDE))
    return Net(lambda m, a: m.b(m.a(a).tanh()).tanh(), a=layer, b=nn.Linear(WIDE, OUT)), (x(),)


class Symmetric(nn.Module):
    def forward(self, w: Tensor) -> Tensor:
        return w.triu() + w.triu(1).T


def parametrization_of_ones_own() -> Made:
    layer = nn.Linear(WIDE, WIDE)
    register_parametrization(layer, "weight", Symmetric())
    return Net(lambda m, a: m.b(m.a(a).tanh()).tanh(), a=layer, b=nn.Linear(WIDE, OUT)), (x(),)


def standardised_weight() -> Made:
    """Weight standardisation of a convolution, before group norm."""

    def forward(m: Any, a: Tensor) -> Any:
        weight = m.conv.weight
        weight = (weight - weight.mean((1, 2), keepdim=True)) / (weight.var((1, 2), keepdim=True) + 1e-5).sqrt()
        return m.out(m.norm(F.conv1d(a, weight, m.conv.bias)).tanh().mean(2)).tanh()

    net = Net(forward, conv=nn.Conv1d(WIDE, 6, 3), norm=nn.GroupNorm(3, 6), out=nn.Linear(6, OUT))
    return net, (x(BATCH, WIDE, 6),)


def masked_weight() -> Made:
    """A pruned layer: the mask is a buffer."""
    mask = (torch.rand(OUT, WIDE) > 0.4).float()
    net = Net(lambda m, a: F.linear(a, m.a.weight * mask.to(a), m.a.bias).tanh(), a=nn.Linear(WIDE, OUT))
    return net, (x(),)


def temperature_and_softmax_of_gates() -> Made:
    """Mixing weights of layers, by a softmax over parameters alone."""

    def forward(m: Any, a: Tensor) -> Any:
        mix = (m.logits / m.log_temperature.exp()).softmax(0)
        return sum(mix[i] * layer(a).tanh() for i, layer in enumerate(m.layers))

    layers = nn.ModuleList(nn.Linear(WIDE, OUT) for _ in range(3))
    return Net(forward, layers=layers, logits=small(3), log_temperature=torch.tensor(0.2)), (x(),)


# --- activations and norms --------------------------------------------------------------------------


def prelu_with_one_slope() -> Made:
    return nn.Sequential(nn.Linear(WIDE, 8), nn.PReLU(), nn.Linear(8, OUT), nn.PReLU()), (x(),)


def prelu_by_channel() -> Made:
    net = Net(
        lambda m, a: m.act(m.a(a)).mean((2, 3)).tanh(),
        a=nn.Conv2d(2, OUT, 3, padding=1),
        act=nn.PReLU(OUT),
    )
    return net, (x(BATCH, 2, 4, 4),)


def prelu_over_a_sequence() -> Made:
    net = Net(lambda m, a: m.act(m.a(a)).mean(0).tanh(), a=nn.Linear(WIDE, OUT), act=nn.PReLU())
    return net, (x(STEPS, BATCH, WIDE),)


def convolution_with_group_norm() -> Made:
    net = Net(
        lambda m, a: m.c(m.norm(m.a(a)).relu()).tanh().mean((2, 3)),
        a=nn.Conv2d(2, 6, 3, padding=1),
        norm=nn.GroupNorm(3, 6),
        c=nn.Conv2d(6, OUT, 1),
    )
    return net, (x(BATCH, 2, 4, 4),)


def group_norm_of_a_vector() -> Made:
    return nn.Sequential(nn.Linear(WIDE, 8), nn.GroupNorm(4, 8), nn.SiLU(), nn.Linear(8, OUT), nn.Tanh()), (x(),)


def group_norm_without_scales() -> Made:
    return nn.Sequential(nn.Linear(WIDE, 8), nn.GroupNorm(2, 8, affine=False), nn.Linear(8, OUT), nn.Tanh()), (x(),)


def rms_norm() -> Made:
    return nn.Sequential(nn.Linear(WIDE, OUT), nn.RMSNorm(OUT), nn.Tanh()), (x(),)


def gated_linear_unit() -> Made:
    return nn.Sequential(nn.Linear(WIDE, 12), nn.GLU(), nn.Linear(6, OUT), nn.Tanh()), (x(),)


def activation(kind: Callable[[], nn.Module]) -> Make:
    return lambda: (nn.Sequential(nn.Linear(WIDE, 8), kind(), nn.Linear(8, OUT), nn.Tanh()), (x(),))


# --- recommenders -----------------------------------------------------------------------------------


def din() -> Made:
    """Deep interest network: an attention unit over the history, its scores not normalised, with PReLU."""

    def forward(m: Any, item: Tensor, history: Tensor) -> Any:
        query, keys = m.table(item), m.table(history)  # [B, D], [B, T, D]
        query = query.unsqueeze(1).expand_as(keys)
        scores = m.score(m.act(m.unit(torch.cat([query, keys, query - keys, query * keys], -1))))  # [B, T, 1]
        scores = scores.masked_fill((history == 0).unsqueeze(-1), 0.0)
        return m.out(torch.cat([(scores * keys).sum(1), m.table(item)], 1)).tanh()

    net = Net(
        forward,
        table=nn.Embedding(7, 4, padding_idx=0),
        unit=nn.Linear(16, 8),
        act=nn.PReLU(),
        score=nn.Linear(8, 1),
        out=nn.Linear(8, OUT),
    )
    return net, (ids(), ids(BATCH, STEPS))


def din_with_softmax() -> Made:
    def forward(m: Any, item: Tensor, history: Tensor) -> Any:
        query, keys = m.table(item), m.table(history)
        scores = torch.einsum("bd,btd->bt", m.q(query), m.k(keys))
        scores = scores.masked_fill(history == 0, -1e4).softmax(1)
        return m.out(torch.bmm(scores.unsqueeze(1), keys).squeeze(1)).tanh()

    net = Net(forward, table=nn.Embedding(7, 4), q=nn.Linear(4, 3), k=nn.Linear(4, 3), out=nn.Linear(4, OUT))
    return net, (ids(), ids(BATCH, STEPS))


def factorisation_machine() -> Made:
    def forward(m: Any, fields: Tensor) -> Any:
        vectors = m.table(fields)  # [B, F, D]
        pairs = 0.5 * (vectors.sum(1) ** 2 - (vectors**2).sum(1))
        return (m.out(pairs) + m.linear(fields).sum(1) + m.bias).tanh()

    parts = {"table": nn.Embedding(7, WIDE), "linear": nn.Embedding(7, 1), "out": nn.Linear(WIDE, OUT)}
    return Net(forward, **parts, bias=small(1)), (ids(BATCH, 3),)


def cross_network() -> Made:
    def forward(m: Any, a: Tensor) -> Any:
        h = a
        for layer in m.layers:
            h = a * layer(h) + h
        return m.out(h).tanh()

    layers = nn.ModuleList(nn.Linear(WIDE, WIDE) for _ in range(2))
    return Net(forward, layers=layers, out=nn.Linear(WIDE, OUT)), (x(),)


def two_towers_by_an_inner_product() -> Made:
    def forward(m: Any, user: Tensor, item: Tensor) -> Any:
        a, b = F.normalize(m.user(m.users(user)), dim=1), F.normalize(m.item(m.items(item)), dim=1)
        return ((a * b) * m.scale.exp()).tanh()

    net = Net(
        forward,
        users=nn.Embedding(7, 4),
        items=nn.Embedding(9, 4),
        user=nn.Linear(4, OUT),
        item=nn.Linear(4, OUT),
        scale=torch.tensor(0.5),
    )
    return net, (ids(), ids(vocabulary=9))


def squeeze_and_excitation() -> Made:
    def forward(m: Any, a: Tensor) -> Any:
        h = m.conv(a).relu()
        gate = m.up(m.down(h.mean(2)).relu()).sigmoid()
        return (h * gate.unsqueeze(2)).mean(2).tanh()

    net = Net(forward, conv=nn.Conv1d(WIDE, OUT, 3), down=nn.Linear(OUT, 2), up=nn.Linear(2, OUT))
    return net, (x(BATCH, WIDE, 6),)


def weights_made_by_examples() -> Made:
    """A hypernetwork: each example has a layer of its own."""

    def forward(m: Any, a: Tensor, b: Tensor) -> Any:
        weight = m.hyper(b).view(-1, WIDE, OUT)
        return torch.bmm(a.unsqueeze(1), weight).squeeze(1).tanh()

    return Net(forward, hyper=nn.Linear(3, WIDE * OUT)), (x(), x(BATCH, 3))


# --- sequences --------------------------------------------------------------------------------------


def rnn() -> Made:
    return Net(lambda m, a: m.a(a)[0][:, -1], a=nn.RNN(WIDE, OUT, batch_first=True)), (x(BATCH, STEPS, WIDE),)


def lstm_in_parts() -> Made:
    def forward(m: Any, a: Tensor) -> Any:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*TF32.*")  # torch warns of GPUs that are not there
            with torch.backends.mkldnn.flags(enabled=False):
                return m.a(a)[0][:, -1]

    return Net(forward, a=nn.LSTM(WIDE, OUT, batch_first=True)), (x(BATCH, STEPS, WIDE),)


def lstm_cells() -> Made:
    def forward(m: Any, a: Tensor) -> Any:
        state = (a.new_zeros(BATCH, OUT), a.new_zeros(BATCH, OUT))
        for step in range(STEPS):
            state = m.a(a[:, step], state)
        return state[0]

    return Net(forward, a=nn.LSTMCell(WIDE, OUT)), (x(BATCH, STEPS, WIDE),)


def transformer_decoder() -> Made:
    net = Net(
        lambda m, a, b: m.out(m.a(a, b).mean(1)).tanh(),
        a=nn.TransformerDecoderLayer(WIDE, 2, 8, dropout=0.0, batch_first=True, norm_first=True),
        out=nn.Linear(WIDE, OUT),
    )
    return net, (x(BATCH, STEPS, WIDE), x(BATCH, 3, WIDE))


def frequencies() -> Made:
    """A Fourier transform of activations: real parameters below complex numbers."""
    net = Net(lambda m, a: m.b(torch.fft.rfft(m.a(a)).abs()).tanh(), a=nn.Linear(WIDE, 8), b=nn.Linear(5, OUT))
    return net, (x(),)


# --- hooks and other ways to run --------------------------------------------------------------------


def hook_that_scales_gradients() -> Made:
    def forward(m: Any, a: Tensor) -> Any:
        hidden = m.a(a).tanh()
        hidden.register_hook(lambda grad: 0.3 * grad)
        return m.b(hidden).tanh()

    return Net(forward, a=nn.Linear(WIDE, 8), b=nn.Linear(8, OUT)), (x(),)


def hook_on_a_computed_weight() -> Made:
    def forward(m: Any, a: Tensor) -> Any:
        weight = m.left @ m.right
        weight.register_hook(lambda grad: -2.0 * grad)
        return m.b((a @ weight).tanh()).tanh()

    return Net(forward, left=small(WIDE, 2), right=small(2, 8), b=nn.Linear(8, OUT)), (x(),)


def hook_on_a_module() -> Made:
    layer = nn.Linear(8, OUT)
    layer.register_full_backward_hook(lambda module, inputs, outputs: None)
    return Net(lambda m, a: m.b(m.a(a).tanh()).tanh(), a=nn.Linear(WIDE, 8), b=layer), (x(),)


FAST = {
    function.__name__: function
    for function in [
        lora_as_wide_as_the_batch,
        lora_beside_the_layer,
        lora_of_a_convolution,
        lora_of_a_table,
        one_computed_weight_used_twice,
        parameter_used_alone_and_in_a_weight,
        weight_of_a_weight,
        weight_norm_of_a_convolution,
        weight_norm_by_hand,
        spectral_norm_in_evaluation,
        orthogonal_weight,
        parametrization_of_ones_own,
        masked_weight,
        temperature_and_softmax_of_gates,
        prelu_with_one_slope,
        prelu_by_channel,
        prelu_over_a_sequence,
        convolution_with_group_norm,
        group_norm_of_a_vector,
        group_norm_without_scales,
        rms_norm,
        gated_linear_unit,
        din,
        din_with_softmax,
        factorisation_machine,
        cross_network,
        two_towers_by_an_inner_product,
        squeeze_and_excitation,
        weights_made_by_examples,
        rnn,
        lstm_in_parts,
        lstm_cells,
        transformer_decoder,
        frequencies,
        hook_that_scales_gradients,
        hook_on_a_computed_weight,
        hook_on_a_module,
    ]
} | {
    "lora": lora(),
    "lora_of_rank_1": lora(1),
    "lora_on_a_base_that_learns": lora(frozen=False),
    "lora_with_a_frozen_factor": lora(frozen_factor=True),
    "gelu": activation(nn.GELU),
    "mish": activation(nn.Mish),
    "elu": activation(nn.ELU),
    "leaky_relu": activation(nn.LeakyReLU),
    "hardswish": activation(nn.Hardswish),
    "softplus": activation(nn.Softplus),
}


@RULES
@pytest.mark.parametrize("name", FAST)
def test_fast_and_exact(name: str, rule: str, dtype: torch.dtype) -> None:
    model, inputs = build(FAST[name], dtype)
    for _ in range(2):  # the second time from what is known of the first
        model.zero_grad()
        info = check(model, inputs, rule=rule)
    assert info.slow == ()


# --- exact on the slow path, which is told -----------------------------------------------------------


def complex_weights() -> Made:
    """A layer of complex numbers, whose rows are real and imaginary parts."""

    def forward(m: Any, a: Tensor) -> Any:
        hidden = torch.complex(a[:, :3], a[:, 3:]) @ m.w + m.b  # [B, OUT]
        return m.out((hidden * hidden.conj()).real).tanh() + hidden.imag.tanh()

    parts = {"w": torch.complex(small(3, OUT), small(3, OUT)), "b": torch.complex(small(OUT), small(OUT))}
    return Net(forward, **parts, out=nn.Linear(OUT, OUT)), (x(),)


def real_factor_of_complex_numbers() -> Made:
    """A filter in the frequency domain: the parameter is real, what it multiplies is not."""

    def forward(m: Any, a: Tensor) -> Any:
        return torch.fft.irfft(torch.fft.rfft(m.a(a)) * m.filter).tanh()[:, :OUT]

    return Net(forward, a=nn.Linear(WIDE, 8), filter=small(5)), (x(),)


def complex_filter() -> Made:
    """As in FNet and FMLP-Rec: a complex filter, kept as pairs of real numbers."""

    def forward(m: Any, a: Tensor) -> Any:
        return torch.fft.irfft(torch.fft.rfft(m.a(a)) * torch.view_as_complex(m.filter)).tanh()[:, :OUT]

    return Net(forward, a=nn.Linear(WIDE, 8), filter=small(5, 2)), (x(),)


def complex_table() -> Made:
    """Knowledge-graph embeddings as in ComplEx."""

    def forward(m: Any, a: Tensor, b: Tensor) -> Any:
        product = m.table[a] * m.table[b].conj()
        return m.out(product.real).tanh()

    return Net(forward, table=torch.complex(small(7, WIDE), small(7, WIDE)), out=nn.Linear(WIDE, OUT)), (ids(), ids())


def instance_norm() -> Made:
    net = Net(
        lambda m, a: m.norm(m.a(a)).tanh().mean(2), a=nn.Conv1d(WIDE, OUT, 3), norm=nn.InstanceNorm1d(OUT, affine=True)
    )
    return net, (x(BATCH, WIDE, 6),)


def bilinear() -> Made:
    return Net(lambda m, a, b: m.a(a, b).tanh(), a=nn.Bilinear(WIDE, 3, OUT)), (x(), x(BATCH, 3))


def spectral_norm_in_training() -> Made:
    """Its estimate of the largest singular value moves in every call, so both models have to begin alike."""
    layer = parametrizations.spectral_norm(nn.Linear(WIDE, OUT))
    return Net(lambda m, a: m.a(a).tanh(), a=layer), (x(),)


SLOW = {
    function.__name__: function
    for function in [
        complex_weights,
        real_factor_of_complex_numbers,
        complex_filter,
        complex_table,
        instance_norm,
        bilinear,
        standardised_weight,
        weight_that_only_one_task_changes,
        spectral_norm_in_training,
    ]
}


@RULES
@pytest.mark.parametrize("name", SLOW)
@pytest.mark.filterwarnings("ignore::gdod.SlowPathWarning")
def test_exact(name: str, rule: str, dtype: torch.dtype) -> None:
    model, inputs = build(SLOW[name], dtype)
    check(model, inputs, rule=rule)


# --- what cannot be exact is told -------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda grad: grad.clamp(-0.01, 0.01), id="clamp"),
        pytest.param(lambda grad: grad / (grad.norm() + 1e-6), id="unit length"),
        pytest.param(lambda grad: torch.where(grad.abs() > 0.01, grad, 0.0), id="drop small ones"),
        # Gradients of means over the batch are that small, those of plain sums are not.
        pytest.param(lambda grad: grad if grad.norm() > 0.2 else 0 * grad, id="drop all if small"),
    ],
)
def test_a_hook_that_goes_by_the_size_of_gradients_is_told(change: Callable[[Tensor], Tensor]) -> None:
    """Rows of groups and of the batch differ in size, so there is no exact update."""

    def forward(m: Any, a: Tensor) -> Any:
        hidden = m.a(a).tanh()
        hidden.register_hook(change)
        return m.b(hidden).tanh()

    model, inputs = build(lambda: (Net(forward, a=nn.Linear(WIDE, 8), b=nn.Linear(8, OUT)), (x(),)), torch.float32)
    with pytest.warns(gdod.MixingWarning, match=r"a hook changes gradients depending on their size.*trunk\.a\.weight"):
        gdod.backward(model(*inputs), gdod.GDOD(groups=4))


def test_complex_parameters_are_refused_where_they_cannot_be_sent() -> None:
    from gdod.rows.distributed.rank_parameters import refuse_sharded
    from gdod.rows.graph import walk

    model, inputs = build(complex_weights, torch.float32)
    roots = [loss.grad_fn for loss in model(*inputs).values()]
    with pytest.raises(gdod.InputError, match="complex, which works in one process only"):
        refuse_sharded(walk([root for root in roots if root is not None]))


@pytest.mark.filterwarnings("ignore::gdod.SlowPathWarning")
def test_complex_parameters_in_micro_batches() -> None:
    model, (targets, a) = build(complex_weights, torch.float64)
    gdod.backward(model(targets, a), gdod.GDOD(groups=5))
    whole = {name: p.grad for name, p in model.named_parameters()}
    model.zero_grad()
    update = gdod.Accumulation(gdod.GDOD(groups=5), examples=BATCH)
    for part in (slice(0, 4), slice(4, BATCH)):
        update.add(model(targets[part], a[part]))
    update.backward()
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.grad, whole[name])
