"""The description of a model's input, and what it refuses."""

from collections.abc import Callable

import pytest
import torch
from tests.models.cases import SCHEMA, TASKS, batch_of, columns
from torch import Tensor

import gdod
from gdod.models import Batch, Categorical, Config, Numeric, Schema, Sequence, Task, build
from gdod.models.features import Features


def test_a_batch_is_made_from_named_columns_whatever_their_order() -> None:
    named = columns(5)
    batch = SCHEMA.batch({**named, "something else": torch.zeros(5)})
    assert batch.size == 5
    for column, name in enumerate(("city", "device", "user")):
        assert torch.equal(batch.categorical[:, column], named[name])
    assert torch.equal(batch.numeric, torch.stack([named["age"], named["one"]], 1))
    assert torch.equal(batch.sequences[0], named["seen"])


def test_a_batch_can_be_cut_and_moved() -> None:
    batch = batch_of(6)
    some = batch.take(torch.tensor([4, 1])).to("cpu")
    assert torch.equal(some.categorical, batch.categorical[[4, 1]])
    assert torch.equal(some.sequences[0], batch.sequences[0][[4, 1]])
    assert isinstance(some, Batch)


def test_features_are_the_vectors_of_each_field_side_by_side() -> None:
    features = Features(SCHEMA, Config(embedding=2))
    batch = batch_of(9)
    assert features.table is not None
    tables = features.table.weight.split([6, 4, 41])  # one row more than categories: id 0
    seen = features.lists[0].get_parameter("weight")

    def mean(ids: Tensor) -> Tensor:
        known = [seen[i] for i in ids.tolist() if i > 0]
        return torch.stack(known).mean(0) if known else torch.zeros(2)

    for example, out in enumerate(features(batch)):
        ids = batch.categorical[example].tolist()
        expected = [
            *(table[i] for table, i in zip(tables, ids, strict=True)),
            mean(batch.sequences[0][example]),
            batch.numeric[example],
        ]
        torch.testing.assert_close(out, torch.cat(expected))


def test_an_empty_sequence_is_a_zero_vector() -> None:
    features = Features(Schema(sequences=[Sequence("seen", 3)]), Config(embedding=2))
    weight = features.lists[0].get_parameter("weight")
    torch.nn.init.ones_(weight)
    none = Batch(torch.zeros(2, 0).long(), torch.zeros(2, 0), (torch.tensor([[0, 0], [0, 2]]),))
    torch.nn.init.zeros_(weight[0])
    assert features(none).tolist() == [[0, 0], [1, 1]]


def test_unseen_ids_start_as_zero_vectors() -> None:
    features = Features(SCHEMA, Config(embedding=3))
    zero = Batch(torch.zeros(1, 3).long(), torch.ones(1, 2), (torch.zeros(1, 4).long(),))
    assert features(zero)[0].tolist() == [0] * 12 + [1, 1]
    assert not bool((features(batch_of(64)) == 0).all(0).any())


def test_dropout_of_ids_leaves_numbers_alone() -> None:
    features, batch = Features(SCHEMA, Config(embedding=2, id_dropout=0.5)), batch_of(64)
    whole = features.eval()(batch)
    some = features.train()(batch)
    dropped = (some == 0) & (whole != 0)
    assert 0.4 < float(dropped[:, :8].double().mean()) < 0.6
    torch.testing.assert_close(some[:, :8], torch.where(dropped, 0, 2 * whole)[:, :8])  # their mean stays
    assert torch.equal(some[:, 8:], batch.numeric)


@pytest.mark.parametrize(
    "schema",
    [
        Schema(categorical=[Categorical("a", 3)]),
        Schema(numeric=[Numeric("x")]),
        Schema(sequences=[Sequence("s", 3)]),
    ],
    ids=["categorical", "numeric", "sequences"],
)
def test_one_kind_of_field_is_enough(schema: Schema) -> None:
    column = {"a": torch.tensor([1, 3]), "x": torch.tensor([0.5, 2]), "s": torch.tensor([[1], [3]])}
    model = build("mmoe", schema, TASKS)
    assert model(schema.batch(column))["click"].shape == (2,)


def test_schemas_of_equal_fields_are_equal() -> None:
    assert Schema([Categorical("a", 3)]) == Schema(categorical=(Categorical("a", 3),))
    assert Schema([Categorical("a", 3)]) != Schema([Categorical("a", 4)])


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Schema(), "no field"),
        (lambda: Schema([Categorical("a", 3)], [Numeric("a")]), "'a'"),
        (lambda: Schema(["a"]), "Categorical"),  # type: ignore[list-item]
        (lambda: Categorical("a", 0), "cardinality of 'a'=0"),
        (lambda: Sequence("a", 2.5), "cardinality of 'a'=2.5"),  # type: ignore[arg-type]
        (lambda: Numeric("a", (1.0,)), "bins=(1.0,) of 'a'; expected none, or two or more rising, finite edges"),
        (lambda: Numeric("a", (0.0, 1.0, 1.0)), "rising"),
        (lambda: Numeric("a", (0.0, float("nan"))), "rising"),
        (lambda: Numeric("a", (float("-inf"), 0.0)), "finite"),
        (lambda: Task("a", "ranking"), "'binary', 'regression', 'multiclass'"),  # type: ignore[arg-type]
        (lambda: Task("a", "multiclass"), "at least 2"),
        (lambda: Task("a", classes=3), "kind='multiclass'"),
        (lambda: SCHEMA.batch({"city": torch.zeros(2)}), "'device', 'user'"),
        (lambda: SCHEMA.batch(columns(3) | {"age": torch.zeros(4)}), "'age': (4,)"),
        (lambda: build("mmoe", SCHEMA, []), "no task"),
        (lambda: build("mmoe", SCHEMA, [Task("a"), Task("a")]), "'a'"),
        (lambda: build("mmoe", SCHEMA, ["click"]), "Task"),  # type: ignore[list-item]
        (lambda: build("mmoe", [Categorical("a", 3)], TASKS), "Schema"),  # type: ignore[arg-type]
    ],
)
def test_refusals(make: Callable[[], object], text: str) -> None:
    with pytest.raises(gdod.InputError) as refused:
        make()
    assert text in str(refused.value)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda b: b.categorical, "Tensor"),
        (lambda b: b._replace(categorical=b.categorical[:, :2]), "expected [4, 3]"),
        (lambda b: b._replace(numeric=b.numeric[:3]), "expected [4, 2]"),
        (lambda b: b._replace(sequences=()), "0 sequences"),
        (lambda b: b._replace(sequences=(b.sequences[0][:2],)), "'seen'"),
        (lambda b: b._replace(categorical=b.categorical.int()), "torch.int64"),
        (lambda b: b._replace(categorical=b.categorical + 41), "'city'"),
        (lambda b: b._replace(categorical=b.categorical - 41), "'city'"),
        (lambda b: b._replace(sequences=(b.sequences[0] + 13,)), "1 to 12"),
    ],
)
def test_a_batch_that_does_not_fit_is_refused(change: Callable[[Batch], object], text: str) -> None:
    model = build("shared-bottom", SCHEMA, TASKS)
    with pytest.raises(gdod.InputError) as refused:
        model(change(batch_of(4)))
    assert text in str(refused.value)
