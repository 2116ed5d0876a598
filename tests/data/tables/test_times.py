"""Dates and times, however they are written, become the same moments in UTC."""

from datetime import UTC, date, datetime, timedelta, timezone

import polars as pl
import pytest

from gdod import InputError
from gdod.data.tables.times import moments

NOON = datetime(2024, 2, 29, 12, 30)


def read(values: list[object], dtype: pl.DataType | None = None, **options: str) -> list[datetime | None]:
    return moments(pl.Series("when", values, dtype=dtype), ("", "NA"), **options).to_list()  # type: ignore[arg-type]


def test_one_moment_is_the_same_in_every_form() -> None:
    offset = timezone(timedelta(hours=5, minutes=30))
    zoned = pl.Series("when", [NOON.replace(tzinfo=UTC).astimezone(offset)]).dt.convert_time_zone("Asia/Kolkata")
    assert zoned.dt.hour().to_list() == [18]
    assert moments(zoned, ()).to_list() == [NOON]
    for precision in ("ms", "us", "ns"):
        assert read([NOON], pl.Datetime(precision)) == [NOON]
    for written in (
        "2024-02-29T12:30:00",
        "2024-02-29 12:30:00.000",
        " 2024-02-29 12:30",
        "2024-02-29T12:30",
        "2024-02-29T12:30:00Z",
        "2024-02-29T14:30:00+02:00",
        "2024-02-29 09:00:00.000000-0330",
    ):
        assert read([written]) == [NOON], written
    seconds = int(NOON.replace(tzinfo=UTC).timestamp())
    for unit, factor in (("s", 1), ("ms", 1_000), ("us", 1_000_000)):
        assert read([seconds * factor], unit=unit) == [NOON]
        assert read([str(seconds * factor)], unit=unit) == [NOON]
    assert read([seconds + 0.5], unit="s") == [NOON + timedelta(seconds=0.5)]
    assert read(["29/02/2024 12.30"], format="%d/%m/%Y %H.%M") == [NOON]
    assert read(["29/02/2024 14.30 +0200"], format="%d/%m/%Y %H.%M %z") == [NOON]


def test_dates_are_the_beginning_of_their_day() -> None:
    for value in (date(2024, 2, 29), "2024-02-29"):
        assert read([value, None]) == [datetime(2024, 2, 29), None]
    assert read(["29.2.24", None], format="%d.%m.%y") == [datetime(2024, 2, 29), None]
    assert read(["2024-02-29", "NA", "2024-02-29 12:30", "2024-02-30", "soon", "1", ""]) == [
        *(datetime(2024, 2, 29), None, NOON),
        *([None] * 4),
    ]


def test_times_that_no_calendar_has_are_missing() -> None:
    far = [0, 2**62, -(2**62), None]
    for kind in (pl.Datetime("ms"), pl.Datetime("us")):
        assert moments(pl.Series(far).cast(kind), ()).to_list() == [datetime(1970, 1, 1), None, None, None]
    days = pl.Series([0, 2**31 - 1, -(2**31)], dtype=pl.Int32).cast(pl.Date)
    assert moments(days, ()).to_list() == [datetime(1970, 1, 1), None, None]
    assert read([0.0, 1e30, float("inf"), float("nan"), None], unit="s") == [datetime(1970, 1, 1), *[None] * 4]
    ends = [date(1, 1, 1), date(9999, 12, 31)]
    assert read(list(ends)) == [datetime(1, 1, 1), datetime(9999, 12, 31)]
    assert read([None, None], pl.Null()) == [None, None]


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pl.Series("when", [1, 2]), "column 'when' holds numbers .*`{type: time, unit: s}`"),
        (pl.Series("when", [timedelta(1)]), "holds Duration.*expected dates or times"),
        (pl.Series("when", [[date(2024, 1, 1)]]), "holds List"),
        (pl.Series("when", [True]), "holds Boolean"),
    ],
)
def test_what_is_no_time_is_refused(column: pl.Series, message: str) -> None:
    with pytest.raises(InputError, match=message):
        moments(column, ())
