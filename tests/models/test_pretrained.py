"""Vectors of ids that are given: what a model makes of them, that it is exact and fast."""

import pytest
import torch
from tests import reference
from tests.models.cases import FORMS, SCHEMA, TASKS, batch_of, build, labels_of, losses_of, losses_on
from torch import Tensor, nan

import gdod
from gdod.models import Batch, Categorical, Config, Model, Schema, export
from gdod.models.features import Features
from gdod.models.pretrained import Pretrained


def with_vectors(size: int = 5, frozen: bool = False) -> Schema:
    city, device, user = SCHEMA.categorical
    return Schema([city, device, Categorical("user", user.cardinality, size, frozen)], SCHEMA.numeric, SCHEMA.sequences)


def given(size: int = 5) -> dict[str, Tensor]:
    """Vectors of the users 1 to 20 of 40."""
    table = torch.full((41, size), nan)
    table[1:21] = 7 * torch.randn(20, size, generator=torch.Generator().manual_seed(3))
    return {"user": table}


def filled(form: str, size: int = 5, frozen: bool = False, **options: object) -> Model:
    model = build(form, schema=with_vectors(size, frozen), **options)  # type: ignore[arg-type]
    model.set_vectors(given(size))
    return model


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("size", [5, 8])
def test_an_id_with_a_vector_begins_with_it_and_others_as_usual(size: int, frozen: bool) -> None:
    torch.manual_seed(0)
    plain, features = Features(SCHEMA, Config()), Features(with_vectors(size, frozen), Config())
    features.load_state_dict(plain.state_dict(), strict=False)
    features.set_vectors(given(size))
    batch = batch_of(200)
    ids, x, before = batch.categorical[:, 2], features(batch), plain(batch)
    others = torch.ones(plain.width, dtype=torch.bool)
    others[16:24] = False  # where the vector of the user is
    assert torch.equal(x[:, others], before[:, others])
    without = (ids == 0) | (ids > 20)
    assert 0 < int(without.sum()) < 200
    assert torch.equal(x[without, 16:24], before[without, 16:24])
    vectors = given(size)["user"][ids[~without]]
    scale = given(size)["user"][1:21].square().mean().sqrt()
    pretrained = features.pretrained["2"]
    assert isinstance(pretrained, Pretrained)
    expected = vectors / scale @ pretrained.projection.weight.T
    torch.testing.assert_close(x[~without, 16:24], expected)
    if size == 8:
        torch.testing.assert_close(x[~without, 16:24], vectors / scale)
    # Its own vector counts unless the given one is frozen.
    assert features.table is not None
    with torch.no_grad():
        features.table.weight += 1
    torch.testing.assert_close(features(batch)[~without, 16:24], expected + (0 if frozen else 1))
    torch.testing.assert_close(features(batch)[without, 16:24], before[without, 16:24] + 1)


@pytest.mark.parametrize("form", FORMS)
def test_every_model_takes_them_and_stays_fast(form: str) -> None:
    model = filled(form)
    losses, mask = losses_of(model)
    info = gdod.backward(losses, mask=mask)
    assert info.slow == ()
    assert info.shared is not None
    assert {id(p) for p in info.shared} == {id(p) for p in model.shared_parameters()}
    for name, buffer in model.named_buffers():
        assert not name.endswith("pretrained.2.vectors") or int((buffer != 0).any(1).sum()) == 20


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("form", ["shared-bottom", "stem", "esmm"])
def test_gdod_is_exact(form: str, frozen: bool) -> None:
    model, batch, labels = filled(form, frozen=frozen, fm=True).double(), batch_of(22), labels_of(22)

    def losses(model: Model, ids: Tensor, numbers: Tensor, *lists: Tensor) -> dict[str, Tensor]:
        return losses_on(model, Batch(ids, numbers, lists), labels).losses

    inputs = [batch.categorical, batch.numeric, *batch.sequences]
    assert reference.check(model, inputs, losses=losses, groups=5).slow == ()


def test_they_are_in_the_weights_and_in_an_exported_program() -> None:
    model, other = filled("mmoe").eval(), build("mmoe", schema=with_vectors()).eval()
    batch = batch_of(9)
    program = export(model, batch).module()
    assert not torch.equal(other(batch)["click"], model(batch)["click"])
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(batch)["click"], model(batch)["click"])
    torch.testing.assert_close(program(*batch)["click"], model(batch)["click"])


def test_vectors_that_do_not_fit_are_refused() -> None:
    model = build("mmoe", schema=with_vectors())
    with pytest.raises(gdod.InputError, match=r"have shape \[41, 4\]; expected \[41, 5\]"):
        model.set_vectors(given(4))
    with pytest.raises(gdod.InputError, match="vectors are given for 'city'; the schema has some for 'user'"):
        model.set_vectors({"city": torch.zeros(6, 5)})
    with pytest.raises(gdod.InputError, match="the schema has some for none"):
        build("mmoe", TASKS).set_vectors(given())
    with pytest.raises(gdod.InputError, match="vectors of 'user'=-1"):
        Categorical("user", 40, -1)
