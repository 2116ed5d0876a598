"""Compiled kernels against float64 sums: products and tables, in all groupings, by wide and by narrow vectors."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gdod
from gdod._kernels import compiled
from gdod.rows import kernels
from gdod.rows.cotangent import Cotangent
from gdod.rows.groups import Groups, Owner
from gdod.rows.kernels import KERNEL_ERROR, ProductKernel, TableKernel

pytestmark = pytest.mark.skipif(compiled is None, reason="gdod was installed without a C compiler, or GDOD_KERNELS=0")
EPS = torch.finfo(torch.float32).eps


@pytest.fixture(params=[True, False], ids=["wide", "narrow"], autouse=True)
def vectors(request: pytest.FixtureRequest) -> Iterator[None]:
    assert compiled is not None
    if compiled.use_wide(request.param) != request.param:
        pytest.skip("this processor has no wide vectors")
    with torch.no_grad():
        yield
    compiled.use_wide(True)


@pytest.fixture(params=[1, 2], ids=["one thread", "two threads"])
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_threads", lambda work: request.param)


def close(gram: Tensor, rows: Tensor, error: float = KERNEL_ERROR) -> bool:
    """Return whether inner products are rounded no more than the estimate of rounding says, or ``error`` times that."""
    exact = rows @ rows.T
    lengths = exact.diagonal().sqrt().clamp(min=1e-30)
    off = (gram - exact) / torch.outer(lengths, lengths)
    return bool(off.abs().max() <= 8 * EPS and off.square().mean().sqrt() <= error * EPS / 2)


def product(
    inputs: int, outputs: int, tasks: int, groups: Groups, inner: int = 1, experts: int = 1, bias: bool = False
) -> tuple[ProductKernel, Tensor]:
    """Return a kernel, and the rows as float64. [N, E, out, in and bias]"""
    places = groups.examples * inner
    x, deltas = torch.randn(experts, places, inputs), torch.randn(tasks, experts, places, outputs)
    cotangent = Cotangent(deltas if experts > 1 else deltas.squeeze(1), groups, Owner(1 if experts > 1 else 0, inner))
    kernel = ProductKernel.of(x, cotangent, bias)
    assert kernel is not None
    whole = torch.cat([x, torch.ones(experts, places, 1)], 2).double() if bias else x.double()
    of_place = groups.of_example.repeat_interleave(inner)
    rows = [
        torch.einsum("kepo,epi->keoi", deltas[:, :, of_place == group].double(), whole[:, of_place == group])
        for group in range(groups.count)
    ]
    return kernel, torch.cat(rows)


PRODUCTS = {
    "sixteen groups": (40, 48, 2, Groups(64, 16)),
    "one task": (7, 16, 1, Groups(64, 16)),
    "six tasks": (33, 64, 6, Groups(48, 16)),
    "twelve tasks, few inputs": (3, 20, 12, Groups(32, 16)),
    "one group": (40, 24, 3, Groups(30, 1)),
    "one group, many tasks": (50, 16, 12, Groups(17, 1)),
    "two groups": (40, 16, 3, Groups(30, 2)),
    "groups of uneven size": (9, 32, 3, Groups(45, 7)),
    "a part of a batch": (9, 32, 3, Groups(30, 5, ((1, 3), (3, 8), (1, 3)))),
    "groups of more than sixteen": (9, 16, 2, Groups(150, 4)),
    "more than sixteen groups": (6, 32, 2, Groups(47, 37)),
    "outputs that fill no vector": (17, 5, 3, Groups(20, 5)),
    "a single input": (1, 16, 2, Groups(16, 4)),
    "many places of a group": (98, 48, 3, Groups(16 * 176, 16)),
}


@pytest.mark.parametrize("by_rows", [True, False], ids=["by rows", "between groups"])
@pytest.mark.parametrize(("inner", "experts", "bias"), [(1, 1, True), (1, 1, False), (3, 1, True), (2, 3, False)])
@pytest.mark.parametrize("case", PRODUCTS)
@pytest.mark.usefixtures("threads")
def test_products(
    monkeypatch: pytest.MonkeyPatch, case: str, inner: int, experts: int, bias: bool, by_rows: bool
) -> None:
    inputs, outputs, tasks, groups = PRODUCTS[case]
    if outputs % 16 and not by_rows:
        pytest.skip("between groups only with whole vectors of outputs")
    monkeypatch.setattr(kernels, "_cost", lambda *shape: (by_rows, 0))
    kernel, rows = product(inputs, outputs, tasks, groups, inner, experts, bias)
    flat, gram = rows.flatten(1), kernel.gram()
    assert close(gram, flat)
    assert torch.equal(gram, gram.T)  # to the bit: eigenvectors of anything else mean nothing
    weights = torch.randn(2 * len(flat))[::2]  # with gaps
    weight, column = kernel.sum(weights)
    want = torch.einsum("n,neoi->eoi", weights.double(), rows)
    near: dict[str, Any] = {"rtol": 1e-5, "atol": 2e-5 * float(want.abs().max())}
    torch.testing.assert_close(weight.double(), want[..., :inputs], **near)
    if bias:
        assert column is not None
        torch.testing.assert_close(column.double(), want[0, :, inputs], **near)
    else:
        assert column is None
    several = torch.randn(3, len(flat), dtype=torch.float64)
    torch.testing.assert_close(kernel.products_with(several), several @ flat @ flat.T)


def test_the_quicker_way_is_taken() -> None:
    """As measured on layers of the benchmarks: inputs, outputs, tasks."""
    ways = {(75, 32, 2): True, (13, 256, 12): True, (233, 256, 2): False, (233, 256, 6): False, (257, 32, 12): False}
    for (inputs, outputs, tasks), by_rows in ways.items():
        assert kernels._cost(1, 256, inputs, outputs, tasks, 16, 16)[0] == by_rows


@pytest.mark.parametrize("width", [8, 24])
@pytest.mark.parametrize("groups", [1, 4, 16, 37])
@pytest.mark.parametrize("tasks", [1, 2, 5])
@pytest.mark.parametrize("ids", [3, 40, 10_000], ids=["few ids", "some ids", "many ids"])
@pytest.mark.usefixtures("threads")
def test_tables(ids: int, tasks: int, groups: int, width: int) -> None:
    entries = 190
    chosen = torch.randint(ids, (entries,))
    group = torch.randint(groups, (entries,)).sort().values
    values = torch.randn(tasks, entries, width)
    kernel = TableKernel.of(chosen.int(), group, values, groups)
    assert kernel is not None
    distinct, place = chosen.unique(return_inverse=True)
    rows = torch.zeros(groups, tasks, len(distinct), width, dtype=torch.float64)
    for task in range(tasks):
        rows[:, task].index_put_((group, place), values[task].double(), accumulate=True)
    flat = rows.flatten(2).flatten(0, 1)
    assert close(kernel.gram(), flat, 2)  # the rows themselves are rounded where entries of an id are added up
    weights, grad = torch.randn(2 * len(flat))[::2], torch.zeros(ids, width)
    kernel.add_sum(0, chosen, weights, grad)
    want = torch.einsum("n,nid->id", weights.double(), rows.flatten(0, 1))
    torch.testing.assert_close(grad[distinct].double(), want, rtol=1e-5, atol=1e-4)
    assert int((grad != 0).any(1).sum()) <= len(distinct)


def test_what_the_kernels_cannot_do_is_left_to_torch() -> None:
    x, deltas, groups = torch.randn(1, 16, 4), torch.randn(2, 16, 8), Groups(16, 4)

    def of(x: Tensor, deltas: Tensor, groups: Groups = groups) -> ProductKernel | None:
        return ProductKernel.of(x, Cotangent(deltas, groups, Owner(0, 1)), bias=True)

    assert of(x, deltas) is not None
    assert of(x.double(), deltas.double()) is None
    assert of(x.repeat(1, 8, 1), deltas.repeat(1, 8, 1), Groups(128, 65)) is None
    assert of(x[:, :0], deltas[:, :0], Groups(0, 4)) is None
    assert of(x, deltas.repeat(1, 2, 1)) is None  # places of an example are not side by side
    with torch.enable_grad():
        assert of(x, deltas) is None
    ids, group = torch.zeros(6, dtype=torch.long), torch.zeros(6, dtype=torch.long)
    assert TableKernel.of(ids, group, torch.zeros(2, 6, 5), 1) is None
    assert TableKernel.of(ids, group, torch.zeros(2, 6, 8, dtype=torch.float64), 1) is None
    assert TableKernel.of(ids[:0], group[:0], torch.zeros(2, 0, 8), 1) is None


class Tabular(nn.Module):
    """Two tables, one with a padding id that is used twice, and layers over them."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(500, 8), nn.Embedding(30, 8, padding_idx=0)
        self.bottom = nn.Sequential(nn.Linear(24, 48), nn.ReLU(), nn.Linear(48, 16), nn.ReLU())
        self.heads = nn.ModuleList(nn.Linear(16, 1) for _ in range(3))

    def forward(self, ids: Tensor) -> dict[str, Tensor]:
        parts = [self.users(ids), self.items(ids % 30), self.items(ids % 7)]
        hidden = self.bottom(torch.cat(parts, 1))
        return {f"task {number}": head(hidden).squeeze(1).square() for number, head in enumerate(self.heads)}


def test_a_table_that_lies_column_after_column_gets_its_gradient() -> None:
    table, heads = nn.Parameter(torch.randn(8, 20).T), nn.Linear(8, 2)  # [20, 8]
    ids = torch.randint(20, (32,))
    with torch.enable_grad():
        gdod.backward(heads(nn.functional.embedding(ids, table)).square(), gdod.GDOD(groups=4))
        ours, table.grad = table.grad, None
        double = nn.Parameter(table.detach().double())
        gdod.backward(heads.double()(nn.functional.embedding(ids, double)).square(), gdod.GDOD(groups=4))
    assert ours is not None
    assert double.grad is not None
    torch.testing.assert_close(ours.double(), double.grad, rtol=1e-3, atol=1e-4 * float(double.grad.abs().max()))


@pytest.mark.parametrize("method", ["gdod", "weighted-gdod", "pcgrad"])
@pytest.mark.parametrize("masked", [False, True], ids=["all labels", "missing labels"])
@pytest.mark.parametrize("examples", [64, 50], ids=["even", "uneven"])
def test_a_model_is_updated_as_in_float64_without_kernels(
    monkeypatch: pytest.MonkeyPatch, method: str, masked: bool, examples: int
) -> None:
    model, ids = Tabular(), torch.randint(500, (examples,))
    mask = {f"task {number}": torch.rand(examples) < 0.7 for number in range(3)} if masked else None
    updates = []
    for precise in (False, True):
        model.zero_grad()
        if precise:
            monkeypatch.setattr(kernels, "compiled", None)
            model = model.double()
        with torch.enable_grad():
            gdod.backward(model(ids), gdod.method(method), mask=mask)
        updates.append(torch.cat([p.grad.double().flatten() for p in model.parameters() if p.grad is not None]))
    ours, exact = updates
    assert float((ours - exact).norm()) <= 1e-4 * float(exact.norm())
