"""Cross layers in front of every model: what they compute, that they are exact and fast."""

from typing import Any

import pytest
import torch
from tests import reference
from tests.models.cases import BINNED, FORMS, batch_of, build, labels_of, losses_of, losses_on
from torch import Tensor

import gdod
from gdod.models import Batch, Model
from gdod.models.cross import CrossLayers


def test_a_layer_multiplies_the_input_with_a_line_of_what_comes_in() -> None:
    torch.manual_seed(0)
    cross, x0 = CrossLayers(2, rank=3, width=5).double(), torch.randn(4, 5, dtype=torch.float64)
    x = x0
    for layer in cross.layers:
        down, up = layer.get_submodule("0"), layer.get_submodule("1")
        matrix = up.get_parameter("weight") @ down.get_parameter("weight")  # [width, width], of rank 3
        assert int(torch.linalg.matrix_rank(matrix)) == 3
        x = x + x0 * (x @ matrix.T + up.get_parameter("bias"))
    torch.testing.assert_close(cross(x0), x)
    assert cross(2 * x0).sub(2 * cross(x0)).abs().max() > 0.1  # products, no lines


@pytest.mark.parametrize("form", FORMS)
def test_every_model_has_them_and_stays_fast(form: str) -> None:
    model = build(form, schema=BINNED, cross=2, cross_rank=4)
    assert sum(isinstance(part, CrossLayers) for part in model.modules()) >= 1
    losses, mask = losses_of(model)
    info = gdod.backward(losses, mask=mask)
    assert info.slow == ()
    assert info.shared is not None
    assert {id(p) for p in info.shared} == {id(p) for p in model.shared_parameters()}


def test_without_them_a_model_is_as_ever() -> None:
    assert [*build("mmoe", cross=0).state_dict()] == [*build("mmoe").state_dict()]


@pytest.mark.parametrize("options", [{}, {"ensemble": 2}], ids=["plain", "ensemble"])
@pytest.mark.parametrize("form", [form for form in FORMS if form != "single-task"])
def test_gdod_is_exact(form: str, options: dict[str, Any]) -> None:
    model = build(form, schema=BINNED, cross=2, cross_rank=4, **options).double()
    batch, labels = batch_of(22), labels_of(22)

    def losses(model: Model, ids: Tensor, numbers: Tensor, *lists: Tensor) -> dict[str, Tensor]:
        return losses_on(model, Batch(ids, numbers, lists), labels).losses

    inputs = [batch.categorical, batch.numeric, *batch.sequences]
    assert reference.check(model, inputs, losses=losses, groups=5).slow == ()
