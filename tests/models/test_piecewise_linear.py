"""Numbers by their places in bins, against the paper's formula."""

import pytest
import torch
from tests import reference
from tests.models.cases import BINNED, FORMS, batch_of, build, labels_of, losses_of, losses_on
from torch import Tensor

import gdod
from gdod.models import MODELS, Batch, Config, Model, Numeric, Schema
from gdod.models.features import Features
from gdod.models.piecewise_linear import PiecewiseLinear

EDGES = (-1.0, -0.25, 0.5, 3.0)
FIELDS = (Numeric("bins", EDGES), Numeric("none"), Numeric("one bin", (0.0, 2.0)))


def by_hand(x: float, edges: tuple[float, ...]) -> list[float]:
    """Equation 1 of the paper, one bin at a time, cut off outside all bins."""
    if not edges:
        return [x]
    places = []
    for t in range(1, len(edges)):
        place = (x - edges[t - 1]) / (edges[t] - edges[t - 1])
        if place < 0:
            place = max(place, -3.0) if t == 1 else 0.0
        if place > 1:
            place = min(place, 4.0) if t == len(edges) - 1 else 1.0
        places.append(place)
    return [min(max(x, -5.0), 5.0), *places]


def test_each_number_is_followed_by_its_places_in_its_bins() -> None:
    values = torch.tensor([-1e30, -60.0, -5.5, -2.0, -1.0, -0.9, -0.25, 0.0, 0.5, 1.7, 3.0, 4.5, 7.0, 1e30])
    numbers = torch.stack([values, values.flip(0), values.roll(3)], 1)  # [B, 3]
    encoding = PiecewiseLinear(FIELDS)
    assert encoding.width == 4 + 1 + 2
    expected = [
        [out for x, field in zip(row, FIELDS, strict=True) for out in by_hand(x, field.bins)]
        for row in numbers.tolist()
    ]
    torch.testing.assert_close(encoding(numbers), torch.tensor(expected), rtol=1e-6, atol=1e-6)
    assert torch.equal(encoding(numbers)[:, 4], numbers[:, 1])  # bit for bit


def test_numbers_of_other_precision_become_that_of_the_model() -> None:
    encoding, numbers = PiecewiseLinear(FIELDS), torch.randn(5, 3, dtype=torch.float64)
    assert encoding(numbers).dtype == torch.float32
    torch.testing.assert_close(encoding.double()(numbers).float(), PiecewiseLinear(FIELDS)(numbers))


def test_bins_too_narrow_for_float32_stay_finite() -> None:
    encoding = PiecewiseLinear([Numeric("a", (0.0, 1e-300, 1.0)), Numeric("b", (1.0, 1 + 1e-15, 2.0))])
    out = encoding(torch.tensor([[0.0, 1.0], [1.0, 2.0], [-1.0, 0.5], [1e30, -1e30]]))
    assert bool(out.isfinite().all())


def test_bins_leave_nothing_in_the_state_of_a_model() -> None:
    plain, binned = build("mmoe"), build("mmoe", schema=BINNED)
    assert list(plain.state_dict()) == list(binned.state_dict())


def test_features_put_them_where_the_numbers_are() -> None:
    plain, binned = (Features(schema, Config()) for schema in (build("mmoe").schema, BINNED))
    binned.load_state_dict(plain.state_dict())
    assert binned.width == plain.width + 4
    batch = batch_of(9)
    assert torch.equal(binned(batch)[:, :-6], plain(batch)[:, :-2])
    assert torch.equal(binned(batch)[:, -6:], PiecewiseLinear(BINNED.numeric)(batch.numeric))


def test_numbers_alone_are_enough() -> None:
    schema = Schema(numeric=FIELDS)
    batch = schema.batch({field.name: torch.randn(4) for field in FIELDS})
    assert torch.equal(Features(schema, Config())(batch), PiecewiseLinear(FIELDS)(batch.numeric))


@pytest.mark.parametrize("form", FORMS)
def test_every_model_stays_on_the_fast_path(form: str) -> None:
    model = build(form, schema=BINNED)
    losses, mask = losses_of(model)
    assert gdod.backward(losses, mask=mask).slow == ()


@pytest.mark.parametrize("form", [name for name in MODELS if name != "single-task"])
def test_gdod_is_exact(form: str, dtype: torch.dtype) -> None:
    model, batch, labels = build(form, schema=BINNED).to(dtype).eval(), batch_of(22), labels_of(22)

    def losses(model: Model, ids: Tensor, numbers: Tensor, *lists: Tensor) -> dict[str, Tensor]:
        return losses_on(model, Batch(ids, numbers, lists), labels).losses

    info = reference.check(model, [batch.categorical, batch.numeric, *batch.sequences], losses=losses, groups=5)
    assert info.slow == ()
