"""Read columns of dates and times, in UTC.

A time zone or an offset from UTC is followed, and a time without one is taken as UTC: so the same moment is the same
number however it is written, and hours are those of UTC.
"""

from typing import Literal

import polars as pl

from gdod.data.tables.values import text
from gdod.errors import InputError

Unit = Literal["s", "ms", "us"]
"""What numbers that count from the beginning of 1970 count."""

# Polars panics outside of some years, and years that cannot be written are mistakes: those from 1 to 9999 are times.
_FIRST, _LAST = -62_135_596_800_000_000, 253_402_300_800_000_000  # microseconds from 1970
_MICROSECONDS = {"s": 1_000_000, "ms": 1_000, "us": 1}
_DAY = 86_400_000_000
_ISO_FORMS = ("%Y-%m-%dT%H:%M:%S%.f", "%Y-%m-%d %H:%M:%S%.f", "%Y-%m-%d %H:%M", "%Y-%m-%dT%H:%M")


def moments(
    column: pl.Series, missing: tuple[str, ...], *, format: str | None = None, unit: Unit | None = None
) -> pl.Series:
    """Return the times of a column as `pl.Datetime("us")` in UTC; null where there is none or it cannot be read.

    Args:
        column: dates and times, or their text; numbers only with a unit.
        missing: the texts that mean "no value".
        format: the way times are written; None: ISO dates and times.
        unit: what numbers count from 1970; None: numbers are refused.
    """
    kind = column.dtype
    if isinstance(kind, pl.Date | pl.Datetime):
        return temporal_moments(column)
    if kind == pl.Null:
        return column.cast(pl.Datetime("us"))
    if kind.is_numeric():
        if unit is None:
            raise InputError(
                f"column {column.name!r} holds numbers ({kind}); expected dates or times; if they count from 1970, say "
                f"so in the schema: `{{type: time, unit: s}}` (or ms, us), otherwise use `type: numeric`"
            )
        return _counted(column.cast(pl.Float64), unit)
    if kind.is_nested() or kind.is_temporal() or kind in (pl.Boolean, pl.Binary, pl.Object):
        raise InputError(f"column {column.name!r} holds {kind}; expected dates or times, or their text")
    written = text(column, missing)
    if unit is not None:
        return _counted(written.cast(pl.Float64, strict=False), unit)
    return iso_moments(written) if format is None else formatted_moments(written, format)


def temporal_moments(column: pl.Series) -> pl.Series:
    """Return dates or times of any precision and zone as `pl.Datetime("us")` in UTC; null beyond years 1 to 9999."""
    kind, counts = column.dtype, column.to_physical().cast(pl.Int64)  # those of a time with a zone are in UTC
    if isinstance(kind, pl.Datetime) and kind.time_unit == "ns":  # cannot be that far away
        return (counts // 1_000).cast(pl.Datetime("us"))
    size = _MICROSECONDS[kind.time_unit] if isinstance(kind, pl.Datetime) else _DAY
    counts = counts.set(~counts.is_between(_FIRST // size, _LAST // size, closed="left"), None)
    return (counts * size).cast(pl.Datetime("us"))


def _counted(numbers: pl.Series, unit: Unit) -> pl.Series:
    """Return numbers that count from 1970 as times."""
    counts = numbers * _MICROSECONDS[unit]
    counts = counts.set(~counts.is_between(_FIRST, _LAST, closed="left"), None)  # nan and infinity, too
    return counts.cast(pl.Int64).cast(pl.Datetime("us"))


def iso_moments(written: pl.Series) -> pl.Series:
    """Return ISO dates and times, such as 2024-05-01 or 2024-05-01T10:00:00+02:00; null for other text."""
    written = written.str.strip_suffix("Z")
    times = written.str.strptime(pl.Date, "%Y-%m-%d", strict=False).cast(pl.Datetime("us"))
    for form in _ISO_FORMS:
        if times.null_count() == written.null_count():
            return times
        times = times.fill_null(written.str.strptime(pl.Datetime("us"), form, strict=False))
    for form in _ISO_FORMS:
        if times.null_count() == written.null_count():
            return times
        with_offset = written.str.strptime(pl.Datetime("us", "UTC"), f"{form}%z", strict=False)
        times = times.fill_null(with_offset.dt.replace_time_zone(None))
    return times


def formatted_moments(written: pl.Series, format: str) -> pl.Series:
    """Return times that are written in a format of `strptime`; null for other text."""
    with_time = any(sign in format for sign in ("%H", "%I", "%T", "%M", "%s", "%R", "%X", "%r", "%c"))
    try:
        if with_time:
            return written.str.strptime(pl.Datetime("us"), format, strict=False).dt.replace_time_zone(None)
        return written.str.strptime(pl.Date, format, strict=False).cast(pl.Datetime("us"))
    except pl.exceptions.PolarsError as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise InputError(
            f"column {written.name!r} cannot be read with the format {format!r} ({reason}); its first time is "
            f"{written.drop_nulls().first()!r}; change `format` of the split or column in the schema, or write the "
            "times as ISO dates, which need none"
        ) from error
