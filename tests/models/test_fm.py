"""Products of vectors of ids as features of every model: what they are, that they are exact and fast."""

from itertools import combinations
from typing import Any

import pytest
import torch
from tests import reference
from tests.models.cases import BINNED, FORMS, SCHEMA, TASKS, batch_of, build, labels_of, losses_of, losses_on
from torch import Tensor

import gdod
from gdod.models import Batch, Categorical, Config, Model, Schema
from gdod.models import build as build_model
from gdod.models.features import Features
from gdod.models.fm import pairwise_products


def test_they_are_the_products_of_all_pairs() -> None:
    vectors = torch.randn(4, 5, 3, dtype=torch.float64)
    pairs = [vectors[:, i] * vectors[:, j] for i, j in combinations(range(5), 2)]
    torch.testing.assert_close(pairwise_products(vectors), torch.stack(pairs).sum(0))


@pytest.mark.parametrize("cross", [0, 2])
def test_features_put_them_last_and_leave_the_others_as_they_are(cross: int) -> None:
    torch.manual_seed(0)
    plain, products = (Features(SCHEMA, Config(fm=fm, cross=cross)) for fm in (False, True))
    products.load_state_dict(plain.state_dict())
    assert products.width == plain.width + 8
    batch = batch_of(9)
    x = products(batch)
    assert x.shape == (9, products.width)
    assert torch.equal(x[:, :-8], plain(batch))
    assert plain.table is not None
    (seen,) = batch.sequences
    mean = plain.lists[0](seen).sum(1) / (seen > 0).sum(1, True).clamp(min=1)
    vectors = [*plain.table(batch.categorical + plain.first).unbind(1), mean]  # three fields and a sequence
    expected = torch.stack([a * b for a, b in combinations(vectors, 2)]).sum(0)
    torch.testing.assert_close(x[:, -8:], expected)
    assert products.table is not None
    (slope,) = torch.autograd.grad(x[:, -8:].sum(), products.table.weight)
    torch.testing.assert_close(slope, *torch.autograd.grad(expected.sum(), plain.table.weight))


@pytest.mark.parametrize("form", FORMS)
def test_every_model_has_them_and_stays_fast(form: str) -> None:
    model = build(form, schema=BINNED, fm=True)
    assert all(part.fm for part in model.modules() if isinstance(part, Features))
    losses, mask = losses_of(model)
    info = gdod.backward(losses, mask=mask)
    assert info.slow == ()
    assert info.shared is not None
    assert {id(p) for p in info.shared} == {id(p) for p in model.shared_parameters()}


@pytest.mark.parametrize("options", [{}, {"ensemble": 2, "cross": 1}], ids=["plain", "ensemble"])
@pytest.mark.parametrize("form", ["shared-bottom", "mmoe", "stem", "esmm"])
def test_gdod_is_exact(form: str, options: dict[str, Any]) -> None:
    model, batch, labels = build(form, fm=True, **options).double(), batch_of(22), labels_of(22)

    def losses(model: Model, ids: Tensor, numbers: Tensor, *lists: Tensor) -> dict[str, Tensor]:
        return losses_on(model, Batch(ids, numbers, lists), labels).losses

    inputs = [batch.categorical, batch.numeric, *batch.sequences]
    assert reference.check(model, inputs, losses=losses, groups=5).slow == ()


def test_one_column_of_ids_is_refused() -> None:
    alone = Schema([Categorical("city", 5)], SCHEMA.numeric)
    with pytest.raises(gdod.InputError, match="the schema has 1 column"):
        build_model("shared-bottom", alone, TASKS, fm=True)
