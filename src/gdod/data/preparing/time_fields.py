"""Columns that are made of dates and times: hour, weekday, month and age.

They are made of the raw table, before anything else, and from there on are columns like those of the table itself:
hour, weekday and month are categorical, with target statistics and pairs, and the age is a number. So what a time of
day means for one item and another can be told from their pair.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import polars as pl

from gdod.data.preparing.split import TRAIN, Parts
from gdod.data.tables.raw_table import RawTable
from gdod.data.tables.table_schema import CategoricalColumn, IgnoredColumn, NumericColumn, TableSchema, TimeColumn
from gdod.data.tables.times import Unit, moments
from gdod.data.tables.values import text
from gdod.errors import InputError

Aspect = Literal["hour", "weekday", "month", "age"]
_DAY, _YEAR = 86_400_000_000, 365 * 86_400_000_000  # in microseconds


@dataclass(frozen=True)
class TimeFields:
    """The columns that are made of one column of times."""

    column: str
    made: Mapping[str, Aspect]
    """What each of them holds, by name."""
    first: int
    last: int
    """The first and the last time of the training part, in microseconds from 1970."""
    format: str | None = None
    unit: Unit | None = None

    def of(self, column: pl.Series, missing: tuple[str, ...]) -> list[pl.Series]:
        """Return the made columns of some rows; null where the time is missing or cannot be read.

        The age is the time since the beginning of the training part, in days; what lies before or after the training
        part has the age of its nearest row but for a microsecond, since of other ages nothing was learned: so it is no
        longer the same number, and has no part in statistics of the very time of that row.
        """
        times = moments(column, missing, format=self.format, unit=self.unit)
        ages = (times.cast(pl.Int64).clip(self.first - 1, self.last + 1) - self.first) / _DAY
        return [(ages if what == "age" else _aspect(times, what)).rename(name) for name, what in self.made.items()]


def _aspect(times: pl.Series, what: Aspect) -> pl.Series:
    if what == "hour":
        return times.dt.hour()
    return times.dt.weekday() if what == "weekday" else times.dt.month()


def extended(schema: TableSchema, times: Sequence[TimeFields]) -> TableSchema:
    """Return the schema of the table with the columns that are made of times, after its own."""
    if not times:
        return schema
    made = {
        name: NumericColumn() if what == "age" else CategoricalColumn()
        for fields in times
        for name, what in fields.made.items()
    }
    return schema.model_copy(update={"columns": {**schema.columns, **made}})


def with_times(frame: pl.DataFrame, times: Sequence[TimeFields], missing: tuple[str, ...]) -> pl.DataFrame:
    """Return rows of the table with the columns that are made of times; a column that is not there is missing."""
    made: list[pl.Series] = []
    for fields in times:
        there = fields.column in frame.columns
        column = frame[fields.column] if there else pl.Series([None], dtype=pl.String).new_from_index(0, len(frame))
        made += fields.of(column, missing)
    return frame.with_columns(made) if made else frame


def fit_times(table: RawTable, schema: TableSchema, parts: Parts) -> tuple[TimeFields, ...]:
    """Return what is made of the columns that the schema says are times, and of the one that it splits by.

    Only what varies in the training rows is made. If the rows of other parts may be of later times (a split by time or
    by files), there is no age, and the month only if the training part spans a year.
    """
    columns = _time_columns(schema)
    if not columns:
        return ()
    declared = schema.of(TimeColumn)
    spans = {name: _Span(column, name in declared) for name, column in columns.items()}
    first = 0
    for chunk in table.chunks(tuple(columns)):
        rows = np.flatnonzero(parts[first : first + len(chunk.frame)] == TRAIN)
        first += len(chunk.frame)
        for name, span in spans.items():
            span.add(chunk.frame[name][rows], schema.file.missing)
    taken, fitted = {*schema.columns, *schema.needed}, []
    for name, span in spans.items():
        span.check(name)
        made: dict[str, Aspect] = {}
        for what in span.varying(later=schema.split.by in ("time", "files")):
            of_column = f"{what} of {name}"
            while of_column in taken:
                of_column += " *"
            taken.add(of_column)
            made[of_column] = what
        if made:
            fitted.append(TimeFields(name, made, *span.ends, span.column.format, span.column.unit))
    return tuple(fitted)


def _time_columns(schema: TableSchema) -> dict[str, TimeColumn]:
    """Return the columns of times, and the one the table is split by unless it is used otherwise."""
    columns: dict[str, TimeColumn] = schema.of(TimeColumn)
    by = schema.split.column
    if schema.split.by == "time" and by is not None:
        own = schema.columns.get(by, IgnoredColumn())
        if isinstance(own, IgnoredColumn) or own == TimeColumn():
            columns[by] = TimeColumn(format=schema.split.format)
    return columns


class _Span:
    """The smallest and largest of what can be made of a column, over some chunks of training rows.

    ``declared``: the schema says that it holds times. A column to split by may also hold numbers, and then nothing is
    made of it.
    """

    def __init__(self, column: TimeColumn, declared: bool) -> None:
        self.column, self.declared = column, declared
        self.written: object = None  # the first value
        self.low: dict[str, int] = {}
        self.high: dict[str, int] = {}

    def add(self, column: pl.Series, missing: tuple[str, ...]) -> None:
        if not self.declared and not isinstance(column.dtype, pl.Date | pl.Datetime | pl.String):
            return
        times = moments(column, missing, format=self.column.format, unit=self.column.unit)
        if self.written is None:
            self.written = text(column, missing).drop_nulls().first()
        times = times.drop_nulls()
        if not len(times):
            return
        aspects: tuple[Aspect, ...] = ("hour", "weekday", "month")
        values = {"age": times.cast(pl.Int64), **{what: _aspect(times, what) for what in aspects}}
        for what, each in values.items():
            low, high = int(each.min()), int(each.max())  # type: ignore[arg-type]
            self.low[what] = min(low, self.low.get(what, low))
            self.high[what] = max(high, self.high.get(what, high))

    def check(self, name: str) -> None:
        """Raise if there are values in the training part, but not one that can be read as a time."""
        if self.declared and self.written is not None and not self.low:
            how = f"in the format {self.column.format!r}" if self.column.format else "such as 2024-05-01 10:00:00"
            expected = "numbers that count from 1970" if self.column.unit else f"times {how}"
            raise InputError(
                f"column {name!r}: none of its values in the training part is a time, the first is {self.written!r}; "
                f"expected {expected}; change its `format` or `unit` in the schema, or use another type"
            )

    def varying(self, later: bool) -> list[Aspect]:
        """Return what varies and tells something of other rows; ``later``: which may be after all training rows."""
        aspects: list[Aspect] = [what for what in get_args(Aspect) if self.low.get(what) != self.high.get(what)]
        short = self.ends[1] - self.ends[0] < _YEAR
        return [what for what in aspects if not later or what in ("hour", "weekday") or (what == "month" and not short)]

    @property
    def ends(self) -> tuple[int, int]:
        """The first and the last time."""
        return self.low.get("age", 0), self.high.get("age", 0)
