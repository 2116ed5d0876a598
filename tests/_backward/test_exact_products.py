"""The inner products of rows with sums of rows, which methods may ask for in place of a precise Gram matrix."""

import pytest
import torch
from torch import Tensor, nn

import gdod
from gdod.rows import kernels
from gdod.rows.products import Products


class AskFor(gdod.Method):
    """A method that asks for all inner products in that way, and keeps them and the Gram matrix."""

    groups = 4

    def weigh(self, gram: gdod.Gram) -> gdod.Weights:
        assert gram.products_with is not None
        self.matrix, self.products = gram.matrix, gram.products_with(torch.eye(len(gram.matrix), dtype=torch.float64))
        return gdod.Weights(gram.averages.sum(0))


class Tabular(nn.Module):
    """Tables of many and of few rows, one with a padding id, a bag, a norm and layers."""

    def __init__(self) -> None:
        super().__init__()
        self.large, self.small = nn.Embedding(50, 3, padding_idx=0), nn.Embedding(4, 2)
        self.bag = nn.EmbeddingBag(5, 2)
        self.hidden = nn.Sequential(nn.Linear(7, 6), nn.LayerNorm(6), nn.Tanh(), nn.Linear(6, 5))
        self.heads = nn.Linear(5, 3)

    def forward(self, ids: Tensor) -> Tensor:
        parts = [self.large(ids), self.small(ids % 4), self.bag(ids.unsqueeze(1) % 5)]
        return self.heads(self.hidden(torch.cat(parts, 1)))  # type: ignore[no-any-return]


@pytest.mark.parametrize("way", ["kernels", "rows", "between groups"])
def test_they_are_those_of_the_precise_gram_matrix(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    if way != "kernels":
        monkeypatch.setattr(kernels, "compiled", None)
        monkeypatch.setattr(Products, "_rows_are_cheaper", lambda self: way == "rows")
    torch.manual_seed(0)
    model, method = Tabular(), AskFor()
    losses = model(torch.tensor([0, 3, 7, 7, 12, 3, 0, 41, 7, 9])).square()
    mask = torch.rand(10, 3) < 0.8
    gdod.backward(losses, method, mask=mask, scaler=torch.amp.GradScaler("cpu", init_scale=8.0))
    torch.testing.assert_close(method.products, method.matrix, rtol=1e-9, atol=1e-9 * float(method.matrix.max()))


def test_they_are_those_of_micro_batches() -> None:
    torch.manual_seed(0)
    model, method, ids = Tabular(), AskFor(), torch.tensor([0, 3, 7, 7, 12, 3, 0, 41, 7, 9])
    update = gdod.Accumulation(method, examples=10)
    for part in ids.split([4, 1, 5]):
        update.add(model(part).square())
    update.backward()
    torch.testing.assert_close(method.products, method.matrix, rtol=1e-9, atol=1e-9 * float(method.matrix.max()))
