"""Rows of a matrix product, or only their inner products: two ways to the same numbers."""

import pytest
import torch
from torch import Tensor, nn

import gdod
from gdod.rows import kernels, products
from gdod.rows.blocks import symmetric_product
from gdod.rows.cotangent import Cotangent
from gdod.rows.groups import Groups, Owner
from gdod.rows.multiply import GRAM_ERROR
from gdod.rows.products import Products
from gdod.rows.uses import Contraction

EXAMPLES, TASKS = 10, 3
NARROW, WIDE = (5, 4), (3, 7)  # inputs and outputs: rows of a wide layer are made task by task


def make_block(
    monkeypatch: pytest.MonkeyPatch, rows: bool, groups: int, experts: int, bias: bool, sizes: tuple[int, int] = NARROW
) -> Products:
    inputs, outputs = sizes
    monkeypatch.setattr(Products, "_rows_are_cheaper", lambda self: rows)
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    x = draw(experts, EXAMPLES, inputs)
    deltas = draw(TASKS, experts, EXAMPLES, outputs) if experts > 1 else draw(TASKS, EXAMPLES, outputs)
    shape = (experts, inputs, outputs) if experts > 1 else (inputs, outputs)
    cotangent = Cotangent(deltas, Groups(EXAMPLES, groups), Owner(1 if experts > 1 else 0, 1))
    weight, column = nn.Parameter(draw(*shape)), nn.Parameter(draw(outputs))
    return Products(
        [(Contraction(left=False, saved="x"), x, cotangent)],
        (weight, weight.shape, []),
        (column, column.shape, []) if bias else None,
    )


@pytest.mark.parametrize("chunk", [2**22, 30], ids=["at once", "in chunks"])
@pytest.mark.parametrize(("experts", "bias"), [(1, False), (1, True), (3, False)])
@pytest.mark.parametrize("groups", [1, 4, 5, EXAMPLES])
@pytest.mark.parametrize("sizes", [NARROW, WIDE], ids=["narrow", "wide"])
@torch.no_grad()
def test_inner_products_without_rows(
    monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, int], groups: int, experts: int, bias: bool, chunk: int
) -> None:
    monkeypatch.setattr(products, "_CHUNK", chunk)
    by_rows = make_block(monkeypatch, True, groups, experts, bias, sizes)
    between = make_block(monkeypatch, False, groups, experts, bias, sizes)
    assert by_rows.has_rows
    assert not between.has_rows
    even = EXAMPLES % groups == 0
    assert (by_rows.by_task is not None) == (sizes == WIDE and even and experts == 1)
    torch.testing.assert_close(by_rows.as_rows(), between.as_rows())
    torch.testing.assert_close(between.gram(precise=True), by_rows.gram(precise=True))
    assert torch.equal(between.gram(precise=True), between.gram(precise=True).T)
    weights = torch.linspace(-1, 1, groups * TASKS, dtype=torch.float64)
    several = torch.stack([weights, weights.square()])
    for block in (by_rows, between):
        torch.testing.assert_close(block.products_with(several), several @ by_rows.gram(precise=True))
    for (_, one), (_, other) in zip(between.combine(weights), by_rows.combine(weights), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("sizes", [NARROW, WIDE], ids=["narrow", "wide"])
@torch.no_grad()
def test_inner_products_over_the_weight_or_the_bias_alone(
    monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, int]
) -> None:
    whole = {}
    for rows in (True, False):
        block = make_block(monkeypatch, rows, groups=5, experts=1, bias=True, sizes=sizes)
        assert block.bias is not None
        parts = [block.gram(True, frozenset([id(part[0])])) for part in (block.weight, block.bias)]
        torch.testing.assert_close(parts[0] + parts[1], block.gram(True))
        whole[rows] = parts
    torch.testing.assert_close(whole[True], whole[False])


@pytest.mark.parametrize("method", ["gdod", "gradreg", "gradnorm"])
def test_a_model_is_updated_the_same_either_way(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    grads = []
    for rows in (True, False):
        monkeypatch.setattr(Products, "_rows_are_cheaper", lambda self, rows=rows: rows)
        torch.manual_seed(0)
        bottom, heads = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5)).double(), nn.Linear(5, 2).double()
        losses = heads(bottom(torch.randn(9, 6, dtype=torch.float64))).square()
        gdod.backward(losses, gdod.method(method))
        grads.append([p.grad for p in (*bottom.parameters(), *heads.parameters())])
    torch.testing.assert_close(grads[0], grads[1])


@pytest.mark.parametrize(
    ("places", "inputs", "outputs", "tasks", "rows"),
    [
        (256, 16, 256, 2, True),
        (256, 233, 256, 2, False),
        (256, 91, 256, 3, True),
        (256, 233, 32, 2, True),
        (256, 233, 32, 12, False),
        (256, 13, 256, 12, True),
        (4096, 233, 256, 2, True),
    ],
)
def test_the_cheaper_way_is_taken(
    monkeypatch: pytest.MonkeyPatch, places: int, inputs: int, outputs: int, tasks: int, rows: bool
) -> None:
    """As measured on the layers of the benchmarks, without compiled kernels."""
    monkeypatch.setattr(kernels, "compiled", None)
    cotangent = Cotangent(torch.zeros(tasks, places, outputs), Groups(places, 16), Owner(0, 1))
    weight = nn.Parameter(torch.zeros(inputs, outputs))
    uses = [(Contraction(left=False, saved="x"), torch.zeros(1, places, inputs), cotangent)]
    with torch.no_grad():
        assert Products(uses, (weight, weight.shape, []), None).has_rows == rows


@pytest.mark.parametrize("steady", [False, True])
@pytest.mark.parametrize("mean", [0, 1])
@pytest.mark.parametrize(("rows", "columns"), [(3, 10), (70, 5000), (33, 19_200), (192, 3328), (5, 70_001)])
@torch.no_grad()
def test_sums_of_many_columns_lose_little(rows: int, columns: int, mean: int, steady: bool) -> None:
    """Within what the estimate of rounding takes for granted, also where all numbers have one sign."""
    x = torch.randn(rows, columns, generator=torch.Generator().manual_seed(0)) + mean
    exact = x.double() @ x.double().T
    off = (symmetric_product(x, steady) - exact) / torch.outer(*[exact.diagonal().sqrt()] * 2)
    eps = torch.finfo(torch.float32).eps
    assert off.square().mean().sqrt() <= (GRAM_ERROR if steady else 1) * eps * (0.75 if mean else 0.35)
    torch.testing.assert_close(symmetric_product(x.double()), exact)
