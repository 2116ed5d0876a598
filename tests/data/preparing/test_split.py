"""Which rows go where: no row lost or twice, none of a user in two parts, none from the future."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from tests.data.clicks_table import clicks, schema, write

from gdod import InputError
from gdod.data import load
from gdod.data.preparing.split import TEST, TRAIN, VALIDATION, Assigned, assign
from gdod.data.tables.raw_table import FrameTable
from gdod.data.tables.table_schema import MISSING, Split


def assigned(frame: pl.DataFrame, test: float = 0.2, validation: float = 0.1, **split: object) -> Assigned:
    return assign(FrameTable(frame, "t"), Split(**split), MISSING, test=test, validation=validation)  # type: ignore[arg-type]


def parts(frame: pl.DataFrame, test: float = 0.2, validation: float = 0.1, **split: object) -> np.ndarray:
    return assigned(frame, test, validation, **split).parts


@pytest.mark.parametrize("rows", [10, 1000, 200_001])
def test_random_shares_are_exact(rows: int) -> None:
    placed = parts(pl.DataFrame({"x": np.zeros(rows)}))
    tests = round(0.2 * rows)
    validations = round((rows - tests) * 0.1)
    assert np.bincount(placed, minlength=3).tolist() == [rows - tests - validations, validations, tests]


def test_random_depends_on_the_seed_alone() -> None:
    frame = pl.DataFrame({"x": np.zeros(150_000)})
    first = parts(frame, seed=1)
    assert (first == parts(frame, seed=1)).all()
    assert (first != parts(frame, seed=2)).mean() > 0.2
    # Test rows lie everywhere, also across the blocks that are drawn one after the other.
    shares = [(piece == TEST).mean() for piece in np.array_split(first, 10)]
    assert max(shares) - min(shares) < 0.03


def test_a_group_is_in_one_part() -> None:
    frame = clicks(3000)
    placed = parts(frame, by="group", column="user")
    together = frame.with_columns(part=pl.Series(placed)).group_by("user").agg(pl.col("part").n_unique())
    assert together["part"].max() == 1
    shares = np.bincount(placed, minlength=3) / 3000
    assert shares == pytest.approx([0.72, 0.08, 0.2], abs=0.04)
    assert (placed != parts(frame, by="group", column="user", seed=5)).any()


def of_sizes(*sizes: int) -> pl.DataFrame:
    """Return a table with one group of each size."""
    return pl.DataFrame({"user": np.repeat(np.arange(len(sizes)), sizes)})


@pytest.mark.parametrize("seed", range(12))
def test_a_group_larger_than_a_part_is_trained_on(seed: int) -> None:
    frame = of_sizes(2000, *[10] * 300)
    result = assigned(frame, by="group", column="user", seed=seed)
    assert np.bincount(result.parts).tolist() == [3600, 400, 1000]
    assert (result.parts[:2000] == TRAIN).all()
    assert not result.notes
    assert (result.parts == parts(frame, by="group", column="user", seed=seed)).all()
    # Which of the small groups are test is left to chance.
    assert (result.parts != parts(frame, by="group", column="user", seed=seed + 1)).mean() > 0.1


@pytest.mark.parametrize("seed", range(12))
def test_a_share_that_groups_do_not_allow_is_told(seed: int) -> None:
    result = assigned(of_sizes(2700, *[3] * 100), by="group", column="user", seed=seed)
    train, validation, test = np.bincount(result.parts).tolist()
    assert train < 2710
    assert test == pytest.approx(214, abs=4)
    assert validation == pytest.approx(86, abs=4)
    (note,) = result.notes
    assert f"validation has {validation} rows instead of 240, test has {test} rows instead of 600; " in note
    assert "rows with the same 'user' stay together, and there are up to 2,700 of them" in note


@pytest.mark.parametrize(
    ("sizes", "shares", "expected"),
    [
        ([20, 20, 20, 20, 20], (0.2, 0.1), [60, 20, 20]),
        ([25] * 4, (0.2, 0.1), [50, 25, 25]),
        ([10] * 8, (0.2, 0.0), [60, 0, 20]),
        ([10, 10, 980], (0.2, 0.1), [980, 10, 10]),
        ([40, 30, 30], (0.05, 0.6), [40, 30, 30]),
        ([50, 50], (0.9, 0.0), [50, 0, 50]),
    ],
)
@pytest.mark.parametrize("seed", range(4))
def test_few_groups_go_where_they_miss_least(
    sizes: list[int], shares: tuple[float, float], expected: list[int], seed: int
) -> None:
    placed = parts(of_sizes(*sizes), *shares, by="group", column="user", seed=seed)
    assert sorted(np.bincount(placed, minlength=3)) == sorted(expected)
    assert (np.bincount(placed, minlength=3) > 0).tolist() == [count > 0 for count in expected]


def test_many_rows_of_one_time_are_told() -> None:
    days = [f"2024-03-{1 + at % 30:02d}" for at in range(100)] + ["2024-04-01"] * 100
    (note,) = assigned(pl.DataFrame({"day": days}), by="time", column="day").notes
    assert "test has 100 rows instead of 40" in note
    assert "rows with the same 'day' stay together" in note


@pytest.mark.parametrize("kind", ["text", "date", "number", "written", "moment"])
def test_later_rows_are_test_then_validation(kind: str) -> None:
    days = pl.Series("day", [f"2024-03-{1 + at % 30:02d}" for at in range(900)])
    split: dict[str, Any] = {"by": "time", "column": "day"}
    if kind == "date":
        days = days.str.to_date()
    elif kind == "number":
        days = days.str.slice(8).cast(pl.Int64)
    elif kind == "written":
        days = days.str.to_date().dt.strftime("%d/%m/%Y")
        split["format"] = "%d/%m/%Y"
    elif kind == "moment":
        days = days + "T01:02:03.5Z"
    placed = parts(pl.DataFrame({"day": days}), **split)
    number = np.array([at % 30 for at in range(900)])
    assert number[placed == TRAIN].max() < number[placed == VALIDATION].min()
    assert number[placed == VALIDATION].max() < number[placed == TEST].min()
    assert np.bincount(placed).tolist() == [660, 60, 180]


def test_rows_without_a_time_are_trained_on_and_bad_times_refused() -> None:
    days = [f"2024-03-{1 + at % 30:02d}" for at in range(60)]
    placed = parts(pl.DataFrame({"day": [*days, None, "NA"]}), by="time", column="day")
    assert placed[-2:].tolist() == [TRAIN, TRAIN]
    with pytest.raises(InputError, match=r"row 61: column 'day' is 'soon'; expected a number or an ISO date"):
        parts(pl.DataFrame({"day": [*days, "soon"]}), by="time", column="day")
    with pytest.raises(InputError, match="missing in every row"):
        parts(pl.DataFrame({"day": [None, None]}, schema={"day": pl.String}), by="time", column="day")


@pytest.mark.parametrize("format", ["%d/%m/%Y %H", "%d/%m/%Y %I"])
def test_a_format_that_cannot_be_read_is_refused(format: str) -> None:
    frame = pl.DataFrame({"ts": [None, *(f"{1 + at % 28:02d}/02/2024 10" for at in range(60))]})
    with pytest.raises(InputError) as refused:
        parts(frame, by="time", column="ts", format=format)
    message = str(refused.value)
    assert f"column 'ts' cannot be read with the format {format!r}" in message
    assert "hour and minute" in message
    assert "'01/02/2024 10'" in message
    assert "change `format` of the split" in message


@pytest.mark.parametrize("format", ["%d/%m/%Y %H:%M:00", "%d/%m/%Y %R:00", "%d/%m/%Y %T", "%d/%m/%Y %X"])
def test_a_format_with_a_time_orders_the_rows_of_a_day(format: str) -> None:
    frame = pl.DataFrame({"ts": [f"01/02/2024 {at // 60:02d}:{at % 60:02d}:00" for at in range(1000)]})
    placed = parts(frame, by="time", column="ts", format=format)
    assert placed.tolist() == [TRAIN] * 720 + [VALIDATION] * 80 + [TEST] * 200


@pytest.mark.parametrize("first", ["20240101", "2023-02-01"])
def test_times_written_as_numbers_here_and_as_dates_there_are_refused(first: str, tmp_path: Path) -> None:
    second = {"20240101": "2023-02-01", "2023-02-01": "20240101"}[first]
    write(tmp_path / "d", clicks(300).with_columns(day=pl.lit(first)), "a.csv")
    write(tmp_path / "d", clicks(300).with_columns(day=pl.lit(second)), "b.csv")
    with pytest.raises(InputError, match="column 'day' holds numbers and dates") as refused:
        load(tmp_path / "d", schema=schema({"by": "time", "column": "day"}), cache=tmp_path / "c")
    assert f"a.csv, line 2 is {first!r}" in str(refused.value)
    assert f"b.csv, line 2 is {second!r}" in str(refused.value)
    with pytest.raises(InputError, match=r"row 1 is '20240101'.*row 2 is '2023-02-01'.*the same way"):
        parts(pl.DataFrame({"day": ["20240101", "2023-02-01"] * 50}), by="time", column="day")


def test_given_files(tmp_path: Path) -> None:
    table = clicks()
    path = write(tmp_path, table[:400], "train.csv")
    write(tmp_path, table[400:450], "valid.csv")
    write(tmp_path, table[450:], "test.csv")
    given = load(path, schema=schema({"by": "files", "validation": "valid.csv", "test": "test.csv"}), cache=tmp_path)
    assert [len(part) for part in (given.train, given.validation, given.test)] == [400, 50, 150]
    cut = load(path, schema=schema({"by": "files", "validation": 0.25, "test": "test.csv"}), cache=tmp_path)
    assert [len(part) for part in (cut.train, cut.validation, cut.test)] == [300, 100, 150]


def test_files_of_the_same_folder_are_not_trained_on(tmp_path: Path) -> None:
    table = clicks()
    for name, rows in (("a.csv", table[:200]), ("b.csv", table[200:400]), ("test.csv", table[400:])):
        write(tmp_path / "d", rows, name)
    data = load(tmp_path / "d", schema=schema({"by": "files", "validation": 0, "test": "test.csv"}), cache=tmp_path)
    assert [len(part) for part in (data.train, data.validation, data.test)] == [400, 0, 200]


@pytest.mark.parametrize(
    ("split", "says"),
    [
        ({"by": "time", "column": "day"}, "split by time: 60 rows (10.0%) have no 'day'; they are all in the training"),
        ({"by": "group", "column": "user"}, "split by group: 60 rows (10.0%) have no 'user'; they count as one group"),
    ],
    ids=["time", "group"],
)
def test_rows_that_do_not_say_where_they_belong_are_counted(split: dict[str, str], says: str, tmp_path: Path) -> None:
    gaps = pl.when(pl.col("id") % 10 > 0).then(pl.col(split["column"]))
    for name, kept in (("whole.csv", clicks()), ("gaps.csv", clicks().with_columns(gaps))):
        data = load(write(tmp_path, kept, name), schema=schema(split), cache=tmp_path / "c")
        assert any(says in note for note in data.notes) == (name == "gaps.csv")
