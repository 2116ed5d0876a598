"""Target statistics of numbers that repeat: which numbers have them, what they say, and that no label leaks."""

import json
from math import log
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from tests.data.preparing.test_strong_features import Made, differs, flipped, sources
from tests.data.preparing.test_target_statistics import auc

import gdod.data.tables.read
from gdod.data import Encoder, FeatureOptions, MemoryPart, load
from gdod.data.preparing.bring_forward import Previous
from gdod.data.preparing.number_values import NumberValues, NumberVocabulary, similar_ids

COLUMNS = {
    "row": {"type": "numeric", "scale": "none"},
    "weight": "numeric",
    "size": "numeric",
    "noise": "numeric",
    "alone": "numeric",
    "home": "ignore",
    "day": "ignore",
    "click": "label",
    "buy": "label",
}


def households(count: int = 3000) -> pl.DataFrame:
    """Return people whose household decides about a click; its weight is a number without any order to it."""
    draw = np.random.default_rng(3)
    home = draw.integers(0, count // 4, count)
    weights, likes = draw.permutation(count)[: count // 4] / 8 + 0.1, draw.random(count // 4) < 0.5
    size = draw.integers(0, 400, count)
    return pl.DataFrame(
        {
            "row": np.arange(count),
            "weight": pl.Series(weights[home]).set(pl.Series(draw.random(count) < 0.05), None),
            "size": size,
            "noise": draw.integers(0, count // 4, count),
            "alone": draw.permutation(count) / 8,
            "home": home,
            "day": draw.integers(0, 300, count),
            "click": (draw.random(count) < np.where(likes[home], 0.9, 0.1)).astype(int),
            "buy": (draw.random(count) < 0.1 + 0.002 * size).astype(int),
        }
    )


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return Made(tmp_path, households(), columns=COLUMNS)


def test_numbers_that_tell_more_than_similar_ones_have_statistics(made: Made) -> None:
    """Not those whose size says it all, that say nothing, or that do not repeat."""
    assert sources(made) == ["weight"]
    click = made.raw("test")["click"].to_numpy()
    assert auc(click, made.parts["test"]["click | weight"].astype(float)) > 0.8
    assert abs(auc(click, made.parts["test"]["weight"].astype(float)) - 0.5) < 0.05


def test_they_can_be_switched_off(tmp_path: Path) -> None:
    off = Made(tmp_path, households(), options=FeatureOptions(folds=5, repeated_numbers=False), columns=COLUMNS)
    assert sources(off) == []
    assert json.loads((off.folder / "encoder.json").read_text())["format"] == 2


def test_other_parts_have_the_log_odds_of_training_rows_with_the_same_number(made: Made) -> None:
    train, test = made.raw("train"), made.raw("test")
    rate = (float(train["click"].sum()) + 1) / (len(train) + 2)
    for at, weight in enumerate(test["weight"].to_list()):
        same = train.filter(pl.col("weight").eq_missing(weight))
        smooth = (float(same["click"].sum()) + 10 * rate) / (len(same) + 10)
        expected = log(smooth / (1 - smooth)) - log(rate / (1 - rate)) if len(same) else 0.0
        assert made.parts["test"]["click | weight"][at] == pytest.approx(expected, abs=1e-5)
        assert made.parts["test"]["rows | weight"][at] == pytest.approx(log(1 + len(same)) / 5, abs=1e-5)


def test_no_training_row_sees_its_own_label(made: Made, tmp_path: Path) -> None:
    for place in made.places()[:3].tolist():
        other = Made(tmp_path, flipped(made.frame, place), columns=COLUMNS)
        changed = differs(made, other)
        assert sources(other) == ["weight"]
        assert not changed[made.places() == place]
        assert changed.any()  # those of its household


def test_labels_outside_the_training_part_change_nothing(made: Made, tmp_path: Path) -> None:
    others = np.concatenate([made.places("validation"), made.places("test")])
    other = Made(tmp_path, flipped(made.frame, others), columns=COLUMNS)
    assert not any(differs(made, other, part).any() for part in made.parts)


@pytest.mark.parametrize(
    ("by", "column"), [pytest.param("group", "home", id="group"), pytest.param("time", "row", id="time")]
)
def test_a_number_that_no_other_part_can_know_has_none(by: str, column: str, tmp_path: Path) -> None:
    """Of a group each row's fold has the whole; in time a household's rows lie side by side."""
    frame = households().sort("home").with_columns(row=pl.int_range(pl.len()))
    assert sources(Made(tmp_path, frame, {"by": by, "column": column}, columns=COLUMNS)) == []


def test_prediction_sees_what_was_stored(made: Made, tmp_path: Path) -> None:
    made.data.encoder.save(tmp_path)
    encoder = Encoder.load(tmp_path)
    part, test = encoder.encode(made.raw("test")), made.data.test
    assert isinstance(test, MemoryPart)
    order = np.argsort(test.examples.numeric[:, 0].numpy())
    assert torch.equal(part.examples.numeric, test.examples.numeric[torch.from_numpy(order)])
    new = encoder.encode(made.raw("test").with_columns(weight=pl.lit(-5.5)))
    at = [field.name for field in made.data.schema.numeric].index("click | weight")
    assert not new.examples.numeric[:, at : at + 3].any()
    assert json.loads((tmp_path / "encoder.json").read_text())["format"] == 4


def test_streams_and_chunks_do_not_matter(made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gdod.data.tables.read, "_BLOCK_BYTES", 5_000)
    (tmp_path / "pieces").mkdir()
    pieces = Made(tmp_path / "pieces", made.frame, columns=COLUMNS)
    for name, numbers in made.parts["train"].items():
        np.testing.assert_allclose(pieces.parts["train"][name], numbers, rtol=1e-5, atol=1e-6)
    path = next((tmp_path / "pieces").glob("*.csv"))
    options = FeatureOptions(folds=5)
    streamed = load(path, schema=made.schema, cache=tmp_path / "pieces" / "cache", features=options, stream=True)
    assert streamed.schema == pieces.data.schema


def test_values_are_collected_until_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = NumberValues(limit=5)
    for chunk in ([3.0, None, 1.0], [1.0, -0.0], [0.0, 3.0, 7.5]):
        numbers.add(pl.Series(chunk, dtype=pl.Float64))
    values = numbers.repeated(rows_per_value=3)
    assert values is not None
    assert values.values.tolist() == [0.0, 1.0, 3.0, 7.5]
    assert numbers.repeated(rows_per_value=1) is None  # 7 rows of 4 values
    ids = values.ids(np.array([7.5, np.nan, 2.0, 0.0, 9.0]))
    assert ids.tolist() == [4, 0, 5, 1, 5]
    numbers.add(pl.Series([8.0, 9.0, 8.0, 9.0]))
    assert numbers.repeated(rows_per_value=3) is None
    numbers.add(pl.Series([1.0]))
    assert numbers.repeated(rows_per_value=3) is None
    unique = NumberValues(limit=5)
    unique.add(pl.Series([1.0, 2.0, 3.0, 4.0]))
    assert unique.repeated(rows_per_value=3) is None


def test_similar_numbers_share_a_bin_of_as_many_rows() -> None:
    sample = np.arange(1, 101).repeat(10)
    bins = similar_ids(100, sample, rows=1000)  # 4 bins of 250 rows
    assert len(bins) == 102
    assert bins[0] == 0
    assert np.all(np.diff(bins) >= 0)
    assert np.bincount(bins[1:101]).tolist() == [0, 25, 25, 25, 25]
    assert similar_ids(100, sample[:0], rows=0).max() == 1


def test_an_update_adds_new_numbers_after_those_that_are_there(tmp_path: Path) -> None:
    first = NumberVocabulary(np.array([1.0, 5.0]))
    grown = first.with_new(np.array([0.5, 1.0, 3.0]))
    assert grown.values.tolist() == [1.0, 5.0, 0.5, 3.0]
    assert grown.ids(np.array([3.0, 5.0, 0.5, np.nan, 9.0, 1.0])).tolist() == [4, 2, 3, 0, 5, 1]
    # Yesterday's rows and today's, of which some have the numbers of yesterday.
    frame = households()
    weights = pl.col("weight") + pl.when(pl.col("home") % 2 == 0).then(10_000.0).otherwise(0.0)
    today = frame.with_columns(weight=weights, row=pl.col("row") + 3000, click=1 - pl.col("click"))
    made = Made(tmp_path, frame, columns=COLUMNS)
    previous = Previous(made.data.encoder, half_life=1.0, validation=0.2)
    data = load(today, cache=tmp_path / "cache", features=FeatureOptions(folds=5), previous=previous)
    (table,) = data.encoder.added.statistics.values()  # type: ignore[union-attr]
    train = data.train
    assert isinstance(train, MemoryPart)
    rows = set((train.examples.numeric[:, 0].round().int() - 3000).tolist())
    learned = today.filter(pl.col("row").sub(3000).is_in(rows))
    past = made.raw("train")
    weight = float(learned.filter(pl.col("weight") < 9_000)["weight"].drop_nulls()[0])
    new = float(learned.filter(pl.col("weight") > 9_000)["weight"].drop_nulls()[0])
    counts = [
        0.5 * len(past.filter(pl.col("weight") == one)) + len(learned.filter(pl.col("weight") == one))
        for one in (weight, new)
    ]
    ids = data.encoder.added.number_values["weight"].ids(np.array([weight, new]))  # type: ignore[union-attr]
    np.testing.assert_allclose(table.look_up(ids)[:, -1], np.log1p(counts), rtol=1e-5)
