"""Methods that take layers apart, against rows of each layer made by autograd in float64."""

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gdod
import reference
from gdod import GDODVariant

EXAMPLES, GROUPS = 26, 4
NAMES = ("one", "two", "three")
# What the engine holds together: a weight with its bias, tables of one width; all others alone.
LAYERS = [
    ["first.weight", "first.bias"],
    ["second.weight", "second.bias"],
    ["user.weight", "item.weight"],
    ["words.weight"],
    ["norm.weight"],
    ["norm.bias"],
]
TABLES = ["user.weight", "item.weight", "words.weight"]


class Net(nn.Module):
    def __init__(self, sparse: bool = False) -> None:
        super().__init__()
        self.user, self.item = nn.Embedding(30, 4, sparse=sparse), nn.Embedding(200, 4, sparse=sparse)
        self.words = nn.EmbeddingBag(40, 3, mode="mean", sparse=sparse)
        self.first, self.norm, self.second = nn.Linear(11, 8), nn.LayerNorm(8), nn.Linear(8, 8)
        self.towers = nn.ModuleList(nn.Linear(8, 1) for _ in NAMES)

    def forward(self, ids: Tensor, words: Tensor) -> dict[str, Tensor]:
        x = torch.cat([self.user(ids[:, 0]), self.item(ids[:, 1]), self.words(words)], 1)
        x = self.second(self.norm(self.first(x).tanh())).tanh()
        return {name: tower(x).squeeze(1).square() for name, tower in zip(NAMES, self.towers, strict=True)}


def data(seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, 30, (EXAMPLES, 2), generator=generator)
    return ids, torch.randint(0, 40, (EXAMPLES, 3), generator=generator)


def masks(kind: str) -> dict[str, Tensor] | None:
    if kind == "all labelled":
        return None
    mask = {name: torch.rand(EXAMPLES) > 0.3 for name in NAMES}
    mask["two"][: EXAMPLES // 2] = False  # whole groups
    if kind == "a task missing":
        mask["three"][:] = False
    return mask


def by_name(net: Net, wanted: reference.Expected, values: Tensor) -> dict[str, Tensor]:
    """Columns [..., D] of each shared parameter."""
    named = dict(net.named_parameters())
    pieces = values.split([named[name].numel() for name in wanted.shared], -1)
    return dict(zip(wanted.shared, pieces, strict=True))


def assert_near(net: Net, names: list[str], want: Tensor, total: Tensor, dtype: torch.dtype) -> None:
    named = dict(net.named_parameters())
    of_update, of_total = reference.tolerance_for(dtype)
    error = (reference.flat(named, names) - want).norm()
    assert float(error) <= max(of_update * float(want.norm()), of_total * float(total.norm())), names


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("labels", ["all labelled", "some labelled", "a task missing"])
@pytest.mark.parametrize("scope", ["layer", "dense"])
def test_against_rows_of_each_part(scope: Any, labels: str, sparse: bool, dtype: torch.dtype) -> None:
    net, inputs, mask = Net(sparse).to(dtype), data(), masks(labels)
    twin = deepcopy(net).double()
    wanted = reference.expected(twin, twin(*inputs), groups=GROUPS, mask=mask)
    info = gdod.backward(net(*inputs), GDODVariant(groups=GROUPS, scope=scope), mask=mask)
    assert info.slow == ()
    rows, gradients = by_name(net, wanted, wanted.rows), by_name(net, wanted, wanted.algorithm.gradients)
    together = LAYERS if scope == "layer" else [[name for name in rows if name not in TABLES]]
    kept = 0.0
    for names in together:
        part = reference.algorithm1(torch.cat([rows[name] for name in names], -1), wanted.averages)
        assert_near(net, names, part.update, part.gradients.sum(0), dtype)
        # What is left helps every task in this part of the parameters.
        assert bool((part.gradients @ part.update >= -1e-12).all())
        kept += float((part.factors * part.projections).square().sum())
    if scope == "dense":
        for name in TABLES:
            assert_near(net, [name], gradients[name].sum(0), gradients[name].sum(0), dtype)
            kept += float(gradients[name].square().sum())
    reference.assert_private(dict(net.named_parameters()), wanted)
    # All parts together:
    energy = float(wanted.algorithm.gradients.square().sum())
    assert info.energy_kept == pytest.approx(kept / energy, rel=1e-3)
    torch.testing.assert_close(info.norms, wanted.algorithm.gradients.norm(dim=1), rtol=1e-4, atol=1e-7)
    assert info.row_weights.shape[1] == len(NAMES)


def test_every_layer_has_a_running_average_of_its_own() -> None:
    net = Net().double()
    method, alone = GDODVariant(groups=GROUPS, scope="layer", memory=0.7), [GDODVariant(memory=0.7) for _ in LAYERS]
    for step in range(3):
        inputs = data(step)
        net.zero_grad()
        wanted = reference.expected(net, net(*inputs), groups=GROUPS)
        gdod.backward(net(*inputs), method)
        rows = by_name(net, wanted, wanted.rows)
        for names, own in zip(LAYERS, alone, strict=True):
            update = own.from_rows(torch.cat([rows[name] for name in names], -1), averages=wanted.averages)
            assert_near(net, names, update, wanted.algorithm.gradients.sum(0), torch.float64)
        state = method.state_dict()
        method = GDODVariant(groups=GROUPS, scope="layer", memory=0.7)
        method.load_state_dict(state)


def test_a_layer_without_gradient_in_a_step_does_not_shift_the_others() -> None:
    """Their running averages stay their own when no task that reaches a layer has labels for once."""
    some, every = nn.Linear(3, 3).double(), nn.Linear(3, 3).double()
    x = torch.randn(12, 3, dtype=torch.float64)

    def last(missing: bool) -> Tensor:
        method = GDODVariant(groups=3, scope="layer", memory=0.5)
        for step in range(3):
            some.zero_grad()
            every.zero_grad()
            above, beside = every(some(x).tanh()).tanh(), every(x).tanh()
            losses = [above[:, 0] ** 2, (above[:, 1] - 1) ** 2, beside[:, 0] * beside[:, 2]]
            labels = torch.ones(12, dtype=torch.bool)
            absent = torch.zeros_like(labels) if missing and step == 1 else labels
            gdod.backward(losses, method, mask=[absent, absent, labels], retain_graph=True)
        counts = [part["averaged"] for part in method.state_dict()["parts"].values()]
        assert sorted(counts) == ([2, 3] if missing else [3, 3])
        return reference.flat(dict(some.named_parameters()), ["weight", "bias"])

    # The layer that was left out in the second of three equal steps has seen the same as if it had not been.
    torch.testing.assert_close(last(True), last(False))


@pytest.mark.parametrize("scope", ["layer", "dense"])
def test_nothing_is_shared(scope: Any) -> None:
    one, two, x = nn.Linear(3, 1), nn.Linear(3, 1), torch.randn(8, 3)
    gdod.backward([one(x).squeeze(1), two(x).squeeze(1)], GDODVariant(scope=scope))
    assert one.weight.grad is not None
    torch.testing.assert_close(one.weight.grad, x.mean(0, keepdim=True))


@pytest.mark.parametrize("tables", [True, False], ids=["only tables", "no tables"])
def test_dense_scope_of_one_kind_of_parameters(tables: bool) -> None:
    layer: nn.Module = nn.Embedding(12, 3) if tables else nn.Linear(12, 3)
    layer.double()
    x = torch.arange(12) if tables else torch.eye(12, dtype=torch.float64)

    def step(method: gdod.Method) -> Tensor:
        layer.zero_grad()
        out = layer(x).tanh()
        gdod.backward([out[:, 0] * out[:, 1], (out[:, 1] - 1) ** 2], method)
        return reference.flat(dict(layer.named_parameters()), [name for name, _ in layer.named_parameters()])

    wanted = step(gdod.method("sum")) if tables else step(gdod.GDOD())
    torch.testing.assert_close(step(GDODVariant(scope="dense")), wanted)


@pytest.mark.parametrize("scope", ["layer", "dense"])
def test_outside_its_steps_everything_is_kept(scope: Any) -> None:
    net, inputs = Net(), data()
    info = gdod.backward(net(*inputs), GDODVariant(scope=scope, begin=1))
    assert (info.energy_kept, info.directions_kept) == (1.0, 1.0)
    found = reference.flat(dict(net.named_parameters()), [name for layer in LAYERS for name in layer])
    net.zero_grad()
    gdod.backward(net(*inputs), gdod.method("sum"))
    wanted = reference.flat(dict(net.named_parameters()), [name for layer in LAYERS for name in layer])
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-6)


def test_a_gradient_that_is_not_finite_in_one_layer() -> None:
    body, last = nn.Linear(3, 3).double(), nn.Linear(3, 2).double()
    nn.init.zeros_(body.weight)
    method = GDODVariant(scope="layer")
    with pytest.raises(gdod.InputError, match="is not finite"):
        gdod.backward(last(body(torch.full((6, 3), 1e200, dtype=torch.float64))), method)
    assert all(p.grad is None for p in (*body.parameters(), *last.parameters()))
    assert method.state_dict() == {}  # the step does not count
