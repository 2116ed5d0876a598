"""What dates and times become: which fields, from which rows, and the same again for new data."""

from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from tests.data.preparing.test_strong_features import RANDOM, Made, sources
from tests.data.preparing.test_target_statistics import auc

from gdod import InputError
from gdod.data import Encoder, FeatureOptions, load

START = datetime(2023, 3, 1, 7)
COLUMNS = {
    "row": {"type": "numeric", "scale": "none"},
    "item": "categorical",
    "when": "time",
    "click": "label",
    "buy": "label",
}
TIME = {"by": "time", "column": "when"}
OPTIONS = FeatureOptions(folds=5, rare=1, noise=True)


def rows(days: float = 700, count: int = 1000) -> pl.DataFrame:
    """Return a table of rows at random times, in which the hour decides how well an item does."""
    draw = np.random.default_rng(3)
    seconds = np.sort(draw.integers(0, int(days * 86_400), count))
    when = [START + timedelta(seconds=int(second)) for second in seconds]
    item = draw.integers(0, 4, count)
    good = (np.array([moment.hour for moment in when]) // 6 + item) % 2
    return pl.DataFrame(
        {
            "row": np.arange(count),
            "item": item,
            "when": when,
            "click": (draw.random(count) < np.where(good, 0.8, 0.2)).astype(int),
            "buy": draw.integers(0, 2, count),
        }
    )


def made_of_times(made: Made) -> list[str]:
    added = made.data.encoder.added
    return [] if added is None else [name for fields in added.times for name in fields.made]


@pytest.mark.parametrize(
    ("split", "days", "expected"),
    [
        (RANDOM, 700, ["hour", "weekday", "month", "age"]),
        ({"by": "group", "column": "item"}, 700, ["hour", "weekday", "month", "age"]),
        (RANDOM, 20 / 24, ["hour", "weekday", "age"]),
        (TIME, 700, ["hour", "weekday", "month"]),
        (TIME, 400, ["hour", "weekday"]),  # training has less than a year of it
        ({"by": "files", "test": 0, "validation": 0.2}, 300, ["hour", "weekday"]),
    ],
    ids=["random", "group", "a day", "time", "time, a year", "files"],
)
def test_what_is_made_follows_the_split(
    split: Mapping[str, object], days: float, expected: list[str], tmp_path: Path
) -> None:
    made = Made(tmp_path, rows(days), split, OPTIONS, COLUMNS)
    assert made_of_times(made) == [f"{what} of when" for what in expected]
    assert f"made of times, in UTC: {', '.join(made_of_times(made))}" in made.data.notes


def test_a_day_that_differs_from_its_neighbours_has_statistics(tmp_path: Path) -> None:
    """Storms come and go by the day; a row of a day that training has not seen knows nothing of the last day's."""
    draw = np.random.default_rng(4)
    day = draw.integers(0, 300, 6000)
    storm = draw.random(300) < 0.5
    frame = pl.DataFrame(
        {
            "row": np.arange(6000),
            "item": draw.integers(0, 4, 6000),
            "when": [START + timedelta(days=int(one)) for one in day],
            "click": (draw.random(6000) < np.where(storm[day], 0.9, 0.1)).astype(int),
            "buy": draw.integers(0, 2, 6000),
        }
    )
    made = Made(tmp_path, frame, RANDOM, FeatureOptions(), COLUMNS)
    assert "age of when" in sources(made)
    assert auc(made.raw("test")["click"].to_numpy(), made.parts["test"]["click | age of when"].astype(float)) > 0.85
    late = frame[:1].with_columns(when=pl.lit(START + timedelta(days=400)))
    names = [field.name for field in made.data.schema.numeric]
    numbers = made.data.encoder.encode(late).examples.numeric[0].tolist()
    assert numbers[names.index("click | age of when")] == numbers[names.index("rows | age of when")] == 0
    assert "age of when" not in sources(Made(tmp_path, frame, TIME, FeatureOptions(), COLUMNS))


def test_the_values_are_those_of_the_calendar(tmp_path: Path) -> None:
    made = Made(tmp_path, rows(), RANDOM, OPTIONS, COLUMNS)
    names = made.data.encoder.vocabularies
    first, last = made.raw("train")["when"].min(), made.raw("train")["when"].max()
    assert isinstance(first, datetime)
    assert isinstance(last, datetime)
    scaling = made.data.encoder.scalings["age of when"]
    for part, fields in made.parts.items():
        when: list[datetime] = made.raw(part)["when"].to_list()
        for what, expected in (
            ("hour", [moment.hour for moment in when]),
            ("weekday", [moment.isoweekday() for moment in when]),
            ("month", [moment.month for moment in when]),
        ):
            ids = fields[f"{what} of when"].astype(int)
            assert names[f"{what} of when"].values.gather(ids - 1).to_list() == [str(number) for number in expected]
        ages = [(min(max(moment, first), last) - first) / timedelta(days=1) for moment in when]
        np.testing.assert_allclose(fields["age of when"] * scaling.sd + scaling.mean, ages, atol=1e-3)
    assert made.data.schema.names[:5] == ("item", "hour of when", "weekday of when", "month of when", "row")


def test_only_what_varies_is_made(tmp_path: Path) -> None:
    days = rows().with_columns(pl.col("when").dt.date(), pl.lit(date(2024, 1, 1)).alias("fixed"))
    made = Made(tmp_path, days, RANDOM, OPTIONS, {**COLUMNS, "fixed": "time"})
    assert made_of_times(made) == ["weekday of when", "month of when", "age of when"]


@pytest.mark.parametrize("declared", ["ignore", "time", None])
def test_a_split_by_time_gives_its_own_column(declared: str | None, tmp_path: Path) -> None:
    columns = {name: kind for name, kind in COLUMNS.items() if name != "when"}
    columns |= {} if declared is None else {"when": declared}
    frame = rows().with_columns(pl.col("when").dt.strftime("%d.%m.%Y %H:%M:%S"))
    split = {**TIME, "format": "%d.%m.%Y %H:%M:%S"}
    assert made_of_times(Made(tmp_path, frame, split, OPTIONS, columns))[:2] == ["hour of when", "weekday of when"]
    numbers = frame.with_columns(when=pl.Series(np.arange(1000)))
    if declared != "time":
        assert made_of_times(Made(tmp_path, numbers, TIME, OPTIONS, columns)) == []
    used = Made(tmp_path, numbers, TIME, OPTIONS, {**columns, "when": "numeric"})
    assert made_of_times(used) == []


def test_without_options_times_are_not_used(tmp_path: Path) -> None:
    times, none = (Made(tmp_path, rows(), RANDOM, None, {**COLUMNS, "when": kind}).data for kind in ("time", "ignore"))
    assert times.schema == none.schema
    assert torch.equal(times.train.examples.numeric, none.train.examples.numeric)  # type: ignore[attr-defined]
    assert times.encoder.inputs == ("row", "item")
    off = Made(tmp_path, rows(), TIME, OPTIONS.model_copy(update={"times": False}), COLUMNS)
    assert made_of_times(off) == []


def test_hours_have_statistics_and_pairs(tmp_path: Path) -> None:
    made = Made(tmp_path, rows(), RANDOM, OPTIONS, COLUMNS)
    assert {"click | hour of when", "click | item × hour of when"} <= set(made.data.schema.names)
    told, clicks = made.parts["test"]["click | item × hour of when"], made.raw("test")["click"].to_numpy()
    assert told[clicks == 1].mean() > told[clicks == 0].mean() + 0.3


def test_times_of_other_parts_change_nothing(tmp_path: Path) -> None:
    before = Made(tmp_path, rows(), RANDOM, OPTIONS, COLUMNS)
    others = np.append(before.places("validation"), before.places("test"))
    late = rows()["when"].set(pl.Series(np.isin(np.arange(1000), others)), datetime(2099, 7, 7, 7, 7))
    after = Made(tmp_path, rows().with_columns(late), RANDOM, OPTIONS, COLUMNS)
    assert before.described() == after.described()
    for name, numbers in before.parts["train"].items():
        assert (after.parts["train"][name] == numbers).all()
    ages, test = after.parts["train"]["age of when"], after.parts["test"]["age of when"]
    assert (test == ages.max()).all()  # what lies beyond the training part is as its end


def test_missing_and_unreadable_times_are_alike(tmp_path: Path) -> None:
    gaps = pl.Series(np.arange(1000) % 10 == 0)
    frame = rows().with_columns(when=rows()["when"].dt.to_string().set(gaps, None))
    odd = frame.with_columns(when=frame["when"].fill_null("soon"))
    one, other = (Made(tmp_path, each, RANDOM, OPTIONS, COLUMNS) for each in (frame, odd))
    for part in one.parts:
        without = one.raw(part)["when"].is_null().to_numpy()
        assert without.any()
        for fields in (one.parts[part], other.parts[part]):
            assert ((fields["hour of when"] == 0) == without).all()
            assert ((fields["age of when is missing"] == 1) == without).all()
        for name, numbers in one.parts[part].items():
            assert (other.parts[part][name] == numbers).all()
    new = pl.DataFrame({"item": [1, 1, 1], "when": ["2024-01-01 10:00", "2024-13-01", None]})
    encoded = one.data.encoder.encode(new).examples
    assert (encoded.categorical[1:, 1:] == 0).all()
    assert (encoded.categorical[0, 1:] > 0).all()
    absent = one.data.encoder.encode(new.drop("when"))
    assert any("no column 'when'" in note for note in absent.notes)
    assert torch.equal(absent.examples.numeric[1], encoded.numeric[1])


def test_the_same_again_from_other_types_and_from_a_saved_encoder(tmp_path: Path) -> None:
    made = Made(tmp_path, rows(), RANDOM, OPTIONS, COLUMNS)
    made.data.encoder.save(tmp_path)
    again, test = Encoder.load(tmp_path), made.raw("test")
    assert again.model_schema == made.data.schema
    stored = np.stack([made.parts["test"][name] for name in again.numeric], 1)
    forms = (
        test,
        test.with_columns(pl.col("when").cast(pl.Datetime("ns"))),
        test.with_columns(pl.col("when").dt.replace_time_zone("UTC").dt.convert_time_zone("America/New_York")),
        test.with_columns(pl.col("when").dt.to_string("iso")),
        test.with_columns(pl.col("when").dt.strftime("%Y-%m-%dT%H:%M:%SZ").cast(pl.Categorical)),
    )
    for frame in forms:
        assert torch.equal(again.encode(frame).examples.numeric, torch.from_numpy(stored))
    stream = load(tmp_path / "0.csv", schema=made.schema, cache=tmp_path / "cache", features=OPTIONS, stream=True)
    for one, other in zip(stream.train.batches(100), made.data.train.batches(100), strict=True):
        assert torch.equal(one.batch.numeric, other.batch.numeric)
        assert torch.equal(one.batch.categorical, other.batch.categorical)


def test_numbers_are_times_where_the_schema_says_so(tmp_path: Path) -> None:
    when = [int(moment.replace(tzinfo=UTC).timestamp() * 1000) for moment in rows()["when"].to_list()]
    columns = {**COLUMNS, "when": {"type": "time", "unit": "ms"}}
    counted = Made(tmp_path, rows().with_columns(when=pl.Series(when)), RANDOM, OPTIONS, columns)
    written = Made(tmp_path, rows(), RANDOM, OPTIONS, COLUMNS)
    for name, numbers in written.parts["test"].items():
        assert (counted.parts["test"][name] == numbers).all()


def test_columns_that_hold_no_times_are_refused(tmp_path: Path) -> None:
    frame = rows().with_columns(when=pl.lit("03/04/2024"))
    with pytest.raises(InputError, match=r"column 'when': none of its values .* is a time, the first is '03/04/2024'"):
        Made(tmp_path, frame, RANDOM, OPTIONS, COLUMNS)
    rows().with_columns(when=pl.Series(np.arange(1000))).write_parquet(tmp_path / "t.parquet")
    schema = Made(tmp_path, rows(), RANDOM, None, COLUMNS).schema
    with pytest.raises(InputError, match="column 'when' holds numbers"):
        load(tmp_path / "t.parquet", schema=schema, cache=tmp_path / "cache", features=OPTIONS)
    empty = rows().with_columns(when=pl.lit(None, pl.String))
    assert made_of_times(Made(tmp_path, empty, RANDOM, OPTIONS, COLUMNS)) == []


def test_names_that_the_table_has_already_are_kept(tmp_path: Path) -> None:
    frame = rows().with_columns(pl.lit("x").alias("hour of when"), (pl.col("row") % 3).alias("click | item"))
    columns = {**COLUMNS, "hour of when": "ignore", "click | item": "categorical"}
    made = Made(tmp_path, frame, RANDOM, OPTIONS, columns)
    assert made_of_times(made)[0] == "hour of when *"
    assert {"click | item", "click | item *", "click | hour of when *"} <= set(made.data.schema.names)
    ids = made.parts["test"]["hour of when *"].astype(int)
    hours = made.data.encoder.vocabularies["hour of when *"].values.gather(ids - 1).cast(pl.Int8)
    assert hours.to_list() == made.raw("test")["when"].dt.hour().to_list()


def test_a_run_predicts_from_times(tmp_path: Path) -> None:
    from tests.training import tiny

    from gdod.training import load_run, train
    from gdod.training.predict import predict_file

    made = Made(tmp_path, rows(), {**TIME, "test": 0.3}, OPTIONS, {**COLUMNS, "when": "ignore"})
    train(tiny.config(steps=20), tmp_path / "run", dataset=made.data)
    run, test = load_run(tmp_path / "run"), made.raw("test")
    test.write_csv(tmp_path / "new.csv")
    told = predict_file(run, tmp_path / "new.csv", tmp_path / "out.csv", keep=["row"])
    assert told.notes == ()
    known = pl.read_csv(tmp_path / "out.csv")["click"]
    np.testing.assert_allclose(known, run.predict(test)["click"], rtol=1e-6)
    test.drop("when").write_csv(tmp_path / "less.csv")
    told = predict_file(run, tmp_path / "less.csv", tmp_path / "less_out.csv")
    assert any("has no column 'when'" in note for note in told.notes)
    assert not np.allclose(pl.read_csv(tmp_path / "less_out.csv")["click"], known)
