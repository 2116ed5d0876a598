"""Embedding tables in every proportion of ids, rows and groups, against gradients of whole tables."""

import pytest
import torch
from torch import Tensor, nn

import gdod

EXAMPLES, TASKS = 12, 2


class Net(nn.Module):
    def __init__(self, rows: tuple[int, int], ids: tuple[Tensor, ...], sparse: bool) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(count, 3, sparse=sparse) for count in rows)
        self.ids = ids
        self.heads = nn.Linear(3 * len(ids), TASKS)

    def forward(self) -> Tensor:
        """Return losses [B, K]. The first table serves the first use, the other one all others."""
        vectors = [self.tables[min(use, 1)](ids) for use, ids in enumerate(self.ids)]
        outputs: Tensor = self.heads(torch.cat([x.sum(1) if x.dim() == 3 else x for x in vectors], 1).tanh())
        return outputs.square()


def draw(kind: str, rows: int, *shape: int) -> Tensor:
    if kind == "once":
        return torch.randperm(rows)[: torch.Size(shape).numel()].view(shape)
    return torch.randint(0, rows if kind == "some" else 2, shape)


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("groups", [1, 4, 5, EXAMPLES])
@pytest.mark.parametrize("repeated", ["once", "some", "often"])
@pytest.mark.parametrize("rows", [(50, 60), (50, 7), (4, 6)], ids=str)
@pytest.mark.parametrize("form", ["one each", "two of one table", "a list"])
def test_gram_and_update(rows: tuple[int, int], form: str, repeated: str, groups: int, sparse: bool) -> None:
    if repeated == "once" and min(rows) < 2 * EXAMPLES:
        pytest.skip("more entries than ids")
    ids = [draw(repeated, rows[0], EXAMPLES), draw(repeated, rows[1], EXAMPLES)]
    if form == "two of one table":
        ids.append(draw(repeated, rows[1], EXAMPLES))
    if form == "a list":
        ids[1] = draw("some", rows[1], EXAMPLES, 3)
    net = Net(rows, tuple(ids), sparse).double()
    tables = list(net.tables.parameters())

    losses = net()
    expected = []
    for chunk in losses.tensor_split(groups):
        for task in range(TASKS):
            grads = torch.autograd.grad(chunk[:, task].mean(), tables, retain_graph=True)
            expected.append(torch.cat([grad.to_dense().flatten() for grad in grads]))
    m = torch.stack(expected)
    info = gdod.backward(losses, gdod.GDOD(groups=groups), shared=tables)
    assert info.gram is not None
    assert info.slow == ()
    torch.testing.assert_close(info.gram.matrix, m @ m.T)
    update = torch.cat([table.grad.to_dense().flatten() for table in tables if table.grad is not None])
    torch.testing.assert_close(update, info.weights.rows @ m)


def test_lookups_beside_other_inputs() -> None:
    """The cotangents are then a part of a wider tensor."""
    table, layer = nn.Embedding(500, 3).double(), nn.Linear(5, TASKS).double()
    numbers, ids = torch.randn(EXAMPLES, 2, dtype=torch.float64), torch.randint(0, 500, (EXAMPLES,))
    losses = layer(torch.cat([table(ids), numbers], 1)).square()
    gdod.backward(losses, gdod.Sum(), diagnose=True, shared=[table.weight])
    expected = torch.autograd.grad(layer(torch.cat([table(ids), numbers], 1)).square().mean(0).sum(), [table.weight])[0]
    torch.testing.assert_close(table.weight.grad, expected)


@pytest.mark.parametrize("repeated", ["once", "often"])
def test_a_table_much_longer_than_the_batch(repeated: str) -> None:
    """Ids are then sorted, and not looked up in memory of the table's length."""
    test_gram_and_update((3000, 4000), "one each", repeated, groups=4, sparse=True)


def test_lists_without_any_id() -> None:
    table, layer = nn.EmbeddingBag(5, 3, mode="sum"), nn.Linear(3, TASKS)
    nothing, offsets = torch.zeros(0, dtype=torch.long), torch.zeros(EXAMPLES, dtype=torch.long)
    info = gdod.backward(layer(table(nothing, offsets)).square(), gdod.GDOD(groups=4), shared=[table.weight])
    assert info.gram is not None
    assert not bool(info.gram.matrix.any())
