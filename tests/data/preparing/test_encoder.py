"""From cells to ids and numbers: what is fitted, what is unseen, what is missing."""

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from tests.data.clicks_table import clicks, schema, write

from gdod import InputError
from gdod.data import Encoder, TableSchema, load
from gdod.data.preparing.fit import fit
from gdod.data.preparing.split import Parts
from gdod.data.preparing.vocabulary import Vocabulary
from gdod.data.tables.raw_table import FrameTable
from gdod.models import build


def fitted(frame: pl.DataFrame, parts: list[int] | None = None, **columns: object) -> Encoder:
    table = TableSchema(columns={**columns, "y": "label"})
    frame = frame.with_columns(y=pl.Series([0, 1] * len(frame))[: len(frame)])
    where: Parts = np.array(parts or [0] * len(frame), np.uint8)
    return fit(FrameTable(frame, "t"), table, where)


def test_ids_by_frequency_then_name() -> None:
    encoder = fitted(pl.DataFrame({"c": ["b", "a", "c", "c", None, "NA", " a "]}), c="categorical")
    assert encoder.to_json()["vocabularies"]["c"] == ["a", "c", "b"]
    part = encoder.encode(pl.DataFrame({"c": ["c", "zzz", None, "", "a"]}))
    assert part.examples.categorical[:, 0].tolist() == [2, 0, 0, 0, 1]


def test_only_training_rows_are_learned_from() -> None:
    frame = pl.DataFrame({"c": ["a", "b", "a", "c"], "x": [1.0, 3.0, 100.0, 500.0]})
    encoder = fitted(frame, [0, 0, 1, 2], c="categorical", x="numeric")
    assert encoder.to_json()["vocabularies"]["c"] == ["a", "b"]
    assert (encoder.scalings["x"].mean, encoder.scalings["x"].sd) == (2.0, 1.0)


def test_rare_values_share_the_reserved_id() -> None:
    frame = pl.DataFrame({"c": ["a", "a", "b", "c", "c", "c"]})
    encoder = fitted(frame, c={"type": "categorical", "rare": 2})
    assert encoder.encode(frame).examples.categorical[:, 0].tolist() == [2, 2, 0, 1, 1, 1]
    assert encoder.model_schema.categorical[0].cardinality == 2


def test_a_whole_number_is_the_same_value_in_every_type() -> None:
    encoder = fitted(pl.DataFrame({"c": ["7", "8.0", "9"]}), c="categorical")
    for values in (["7", "8", "9"], [7, 8, 9], [7.0, 8.0, 9.0], ["7.0", " 8", "9 "]):
        assert encoder.encode(pl.DataFrame({"c": values})).examples.categorical[:, 0].tolist() == [1, 2, 3]


def test_numbers_are_standardised_and_gaps_are_the_mean() -> None:
    values = [1.0, 2.0, 3.0, None, float("nan"), float("inf")]
    encoder = fitted(pl.DataFrame({"x": values}), x="numeric")
    numbers = encoder.encode(pl.DataFrame({"x": values})).examples.numeric[:, 0]
    sd = (2 / 3) ** 0.5
    torch.testing.assert_close(numbers[:5], torch.tensor([-1 / sd, 0, 1 / sd, 0, 0]))
    assert numbers.isfinite().all()


def test_scales_and_constant_columns() -> None:
    frame = pl.DataFrame({"a": [0.0, np.e - 1], "b": [5.0, 7.0], "c": [0.1, 0.1]})
    encoder = fitted(frame, a={"type": "numeric", "scale": "log"}, b={"type": "numeric", "scale": "none"}, c="numeric")
    numbers = encoder.encode(pl.DataFrame({"a": [0.0, np.e - 1], "b": [5.0, 7.0], "c": [0.1, 9.0]})).examples.numeric
    torch.testing.assert_close(numbers, torch.tensor([[-1.0, 5.0, 0.0], [1.0, 7.0, 0.0]]))


def test_moments_do_not_depend_on_chunks() -> None:
    from gdod.data.preparing.scaling import Moments

    values = pl.Series(np.random.default_rng(0).normal(1e6, 2, 10_000))
    whole, pieces = Moments("standard"), Moments("standard")
    whole.add(values)
    for first in range(0, 10_000, 777):
        pieces.add(values[first : first + 777])
    assert pieces.mean == pytest.approx(whole.mean, rel=1e-12)
    assert pieces.squares == pytest.approx(whole.squares, rel=1e-9)
    assert whole.scaling().sd == pytest.approx(float(np.std(values.to_numpy())), rel=1e-9)


def test_sequences_keep_the_last_known_values() -> None:
    frame = pl.DataFrame({"s": ["1 2 3 4", "2 2", None, "1 x"]})
    encoder = fitted(frame, [0, 0, 0, 1], s={"type": "sequence", "longest": 3})
    assert encoder.to_json()["vocabularies"]["s"] == ["2", "3", "4"]
    sequences = encoder.encode(pl.DataFrame({"s": ["9 2 3", "4 3 2 4", None, "x", "3"]})).examples.sequences[0]
    assert sequences.tolist() == [[1, 2, 0], [2, 1, 3], [0, 0, 0], [0, 0, 0], [2, 0, 0]]
    lists = pl.DataFrame({"s": [["9", "2", "3"], ["4", "3", "2", "4"], None, ["x", None], ["3"]]})
    assert torch.equal(encoder.encode(lists).examples.sequences[0], sequences)


def test_rows_are_encoded_alike_one_by_one_and_in_a_large_table() -> None:
    """Of few rows, columns are encoded together."""
    rows = 4_200
    random = np.random.default_rng(0)
    words = pl.Series(["a", " a", "b ", "1", "1.0", "NA", "", None, "never seen", "rare"])
    frame = pl.DataFrame(
        {
            "c": words.gather(random.integers(10, size=rows)),
            "d": words.gather(random.integers(9, size=rows)),
            "n": random.integers(5, size=rows),
            "x": pl.Series(["1", "2.5", None, "NA"]).gather(random.integers(4, size=rows)),
            "s": pl.Series(["a b", None, "1.0 a a b", "never"]).gather(random.integers(4, size=rows)),
        }
    )
    encoder = fitted(
        frame.filter(~pl.col("c").is_in(["never seen"])).with_columns(other=pl.lit("a")),
        c="categorical",
        d="categorical",
        n="categorical",
        other="categorical",
        x="numeric",
        s={"type": "sequence", "separator": " "},
    )
    whole = encoder.encode(frame).examples
    for size in (1, 90, 300):
        for first in range(0, 20 * size if size < 100 else rows, size):
            part = encoder.encode(frame[first : first + size]).examples
            for name in ("categorical", "numeric"):
                assert torch.equal(getattr(part, name), getattr(whole, name)[first : first + size])
            assert torch.equal(part.sequences[0], whole.sequences[0][first : first + size])
    assert set(whole.categorical[:, 0].tolist()) == {0, 1, 2, 3, 4}


def test_labels_of_every_kind_and_their_condition() -> None:
    table = TableSchema(
        columns={
            "x": "numeric",
            "click": {"type": "label", "positive": ["yes", 1]},
            "buy": {"type": "label", "when": "click"},
            "shown": {"type": "label", "kind": "regression", "when": "flag"},
            "stars": {"type": "label", "kind": "multiclass"},
        }
    )
    frame = pl.DataFrame(
        {
            "x": [1.0, 2, 3, 4],
            "click": ["yes", "no", "1", None],
            "buy": ["true", "1", "False", "1"],
            "shown": [0.5, 1.5, -2.5, 3],
            "flag": [1, 0, 1, None],
            "stars": ["10", "9", "1", ""],
        }
    )
    encoder = fit(FrameTable(frame, "t"), table, np.zeros(4, np.uint8))
    labels = encoder.encode(frame).examples.labels
    nan = float("nan")
    expected = torch.tensor([[1, 0, 1, nan], [1, nan, 0, nan], [0.5, nan, -2.5, nan], [2, 1, 0, nan]])
    torch.testing.assert_close(labels, expected, equal_nan=True)
    assert encoder.classes["stars"] == ("1", "9", "10")
    assert [(task.kind, task.classes) for task in encoder.tasks][2:] == [("regression", None), ("multiclass", 3)]


def test_whole_numbers_in_the_schema_are_those_of_the_cells() -> None:
    table = TableSchema(
        columns={
            "x": "numeric",
            "high": {"type": "label", "positive": [2.0, "3 "]},
            "stars": {"type": "label", "kind": "multiclass", "classes": [1.0, 2.0, 3.0]},
        }
    )
    for values in (["1.0", "2.0", "3"], [1, 2, 3], [1.0, 2.0, 3.0]):
        frame = pl.DataFrame({"x": [1.0, 2, 3], "high": values, "stars": values})
        labels = fit(FrameTable(frame, "t"), table, np.zeros(3, np.uint8)).encode(frame).examples.labels
        assert labels.tolist() == [[0, 1, 1], [0, 1, 2]]


@pytest.mark.parametrize("kind", [pl.String, pl.Categorical])
def test_a_condition_may_be_true_or_false_as_text(kind: pl.DataType) -> None:
    table = TableSchema(columns={"x": "numeric", "y": {"type": "label", "when": "seen"}})
    seen = pl.Series(["True", "FALSE", " true", None, "1", "0", "2"], dtype=kind)
    frame = pl.DataFrame({"x": [1.0] * 7, "y": [0, 1, 1, 1, 1, 0, 0], "seen": seen})
    labels = fit(FrameTable(frame, "t"), table, np.zeros(7, np.uint8)).encode(frame).examples.labels[0]
    nan = float("nan")
    torch.testing.assert_close(labels, torch.tensor([0, nan, 1, nan, 1, nan, nan]), equal_nan=True)
    wrong = frame.with_columns(seen=pl.lit("Yes"))
    with pytest.raises(InputError, match=r"row 1: column 'seen' is 'Yes'; .* a number, or true or false"):
        fit(FrameTable(wrong, "t"), table, np.zeros(7, np.uint8))


def test_weights_have_mean_one_in_training() -> None:
    table = TableSchema(columns={"x": "numeric", "y": "label", "w": "weight"})
    frame = pl.DataFrame({"x": [1.0, 2, 3], "y": [0, 1, 1], "w": [1.0, None, 3.0]})
    encoder = fit(FrameTable(frame, "t"), table, np.zeros(3, np.uint8))
    assert encoder.encode(frame).examples.weights.tolist() == [0.5, 1.0, 1.5]  # type: ignore[union-attr]


def test_prediction_takes_tables_that_lack_columns(tmp_path: Path) -> None:
    data = load(write(tmp_path), schema=schema(), cache=tmp_path / "c")
    encoder = Encoder.from_json(json.loads(json.dumps(data.encoder.to_json())))
    table = clicks(5).drop("click", "buy", "city").with_columns(other=pl.lit(1))
    part = encoder.encode(table)
    assert part.examples.categorical[:, 1].tolist() == [0] * 5
    assert part.examples.labels.isnan().all()
    assert any("'city'" in note for note in part.notes)
    model = build("shared-bottom", data.schema, data.tasks)
    assert model(next(part.batches(5)).batch)["click"].shape == (5,)
    assert len(encoder.encode(table[:0])) == 0
    with pytest.raises(InputError, match="none of the columns"):
        encoder.encode(pl.DataFrame({"zzz": [1]}))
    with pytest.raises(InputError, match="polars DataFrame"):
        encoder.encode({"age": [1]})  # type: ignore[arg-type]


def test_json_brings_the_encoder_back(tmp_path: Path) -> None:
    data = load(write(tmp_path), schema=schema(), cache=tmp_path / "c")
    content = data.encoder.to_json()
    again = Encoder.from_json(json.loads(json.dumps(content)))
    assert again.to_json() == content
    assert torch.equal(again.encode(clicks()).examples.categorical, data.encoder.encode(clicks()).examples.categorical)
    with pytest.raises(InputError, match="format 99"):
        Encoder.from_json({**content, "format": 99})


def test_an_encoded_table_equals_the_prepared_part(tmp_path: Path) -> None:
    """What a run sees at prediction is what training saw."""
    data = load(write(tmp_path), schema=schema({"by": "time", "column": "day"}), cache=tmp_path / "c")
    test = data.test
    again = data.encoder.encode(clicks().tail(len(test)))
    for one, other in zip(test.batches(64), again.batches(64), strict=True):
        assert torch.equal(one.batch.categorical, other.batch.categorical)
        assert torch.equal(one.batch.numeric, other.batch.numeric)
        assert torch.equal(one.batch.sequences[0], other.batch.sequences[0])
        torch.testing.assert_close(one.labels, other.labels, equal_nan=True)


@pytest.mark.parametrize("longest", [0, 51, 10**12, "50", 1.5])
def test_sequences_are_no_longer_than_the_schema_allows(longest: object) -> None:
    table = TableSchema.model_validate({"columns": {"seen": "sequence", "y": "label"}})
    content = Encoder(table, {"seen": Vocabulary(["a"])}, longest={"seen": 50}).to_json()
    assert Encoder.from_json(content).longest == {"seen": 50}
    with pytest.raises(InputError, match=r"sequences 'seen' are .* long; expected 1 to 50"):
        Encoder.from_json({**content, "longest": {"seen": longest}})


def test_sequences_that_no_memory_holds_are_refused_before_it_is_taken() -> None:
    """Both numbers of a run's encoder.json may have been raised."""
    column = {"type": "sequence", "longest": 10**12}
    table = TableSchema.model_validate({"columns": {"seen": column, "y": "label"}})
    encoder = Encoder(table, {"seen": Vocabulary(["a"])}, longest={"seen": 10**12})
    with pytest.raises(InputError, match=r"2 rows of the sequence 'seen' .* take 8,000 GB; lower `longest`"):
        encoder.encode(pl.DataFrame({"seen": ["a a", "a"]}))
