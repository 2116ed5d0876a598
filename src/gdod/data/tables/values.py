"""Turn the cells of a table into text and numbers, with null for "no value"."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gdod.errors import InputError


@dataclass(frozen=True)
class Origin:
    """The place that some rows come from, for errors."""

    where: str = "the table"
    first: int = 1
    """The number of the first row."""
    rows: NDArray[np.int64] | None = None
    """The place of each row after ``first``; None: one after the other."""

    def row(self, at: int) -> str:
        """Return the place of the row at this position in words."""
        return f"{self.where}, row {self.first + (at if self.rows is None else int(self.rows[at]))}"

    def of(self, rows: NDArray[np.int64]) -> "Origin":
        """Return the origin of the rows at these positions."""
        return replace(self, rows=rows if self.rows is None else self.rows[rows])


def usable(kind: pl.DataType) -> bool:
    """Return whether a column of this type is text, numbers, times or truth values, or lists of them."""
    if isinstance(kind, pl.List | pl.Array):
        inner = kind.inner
        return isinstance(inner, pl.DataType) and not inner.is_nested() and usable(inner)
    return not kind.is_nested() and kind not in (pl.Binary, pl.Object)


def text(column: pl.Series, missing: tuple[str, ...]) -> pl.Series:
    """Return values as text, without spaces around them; null where there is none.

    A whole number is written the same whether a file or a program held it as 1, "1" or 1.0.
    """
    kind = column.dtype
    if kind == pl.Duration:
        return column.dt.total_microseconds().cast(pl.String)
    if kind == pl.Boolean or kind.is_integer() or kind.is_temporal():
        return column.cast(pl.String)
    if kind.is_float():
        whole = (column == column.floor()) & (column.abs() < 2**53)
        as_text = pl.select(
            pl.when(whole).then(column.cast(pl.Int64, strict=False).cast(pl.String)).otherwise(column.cast(pl.String))
        ).to_series()
        return as_text.set(~column.is_finite(), None).rename(column.name)
    if kind.is_nested() or not usable(kind):
        raise InputError(f"column {column.name!r} holds {kind}; expected text or numbers, or type: sequence for lists")
    values = column.cast(pl.String).str.strip_chars()
    # Only columns of numbers have such values, so look at the end first: it is much cheaper.
    if values.str.ends_with(".0").any():
        values = values.str.replace(r"^(-?\d+)\.0$", "$1")
    return values.set(values.is_in(list(missing)), None)


def texts(columns: Sequence[pl.Series], missing: tuple[str, ...]) -> list[pl.Series]:
    """Return `text` of each of some columns of the same length.

    Those that hold text go through it as one: of few rows, the calls take the time.
    """
    held = [column for column in columns if column.dtype == pl.String]
    if len(held) < 2:
        return [text(column, missing) for column in columns]
    size, joined = len(held[0]), text(pl.concat(held, rechunk=True), missing)
    parts = (joined[first : first + size] for first in range(0, len(joined), size or 1))
    return [next(parts, column) if column.dtype == pl.String else text(column, missing) for column in columns]


def numbers(
    column: pl.Series, missing: tuple[str, ...], origin: Origin, *, decimal: str = ".", thousands: str | None = None
) -> pl.Series:
    """Return values as float64, null where there is none or it is nan; raise for text that is no number."""
    kind = column.dtype
    if kind.is_nested() or kind.is_temporal() or kind in (pl.Binary, pl.Object):
        raise InputError(f"column {column.name!r} of {origin.where} holds {kind}; expected numbers")
    if kind == pl.Boolean or kind.is_numeric() or kind == pl.Null:
        values = column.cast(pl.Float64)
    else:
        # Most cells are numbers as they stand, or have no value. A call of Polars takes a while however few the rows
        # are, and a table may have thousands of columns: so this comes first.
        values = column.cast(pl.String).cast(pl.Float64, strict=False)
        plain = (decimal, thousands) == (".", None) and not _hold_numbers(missing)
        if not plain or (values.null_count() > column.null_count() and not _all_missing(column, values, missing)):
            written = text(column, missing)
            values = plain_numbers(written, decimal=decimal, thousands=thousands)
            refuse(values.is_null() & written.is_not_null(), column, origin, "expected a number")
    return _without(values, np.isnan(values.to_numpy()))


def _all_missing(column: pl.Series, values: pl.Series, missing: tuple[str, ...]) -> bool:
    """Return whether all cells without a number have no value, either."""
    cells = column.filter(values.is_null())
    return text(cells, missing).null_count() == len(cells)


def _without(values: pl.Series, wrong: NDArray[np.bool_]) -> pl.Series:
    """Return numbers with null where they are wrong, which those that are null already may also be."""
    return values if int(wrong.sum()) <= values.null_count() else values.set(pl.Series(wrong), None)


@lru_cache
def _hold_numbers(texts: tuple[str, ...]) -> bool:
    """Return whether one of some texts is a finite number, too."""
    return bool(pl.Series(texts, dtype=pl.String).cast(pl.Float64, strict=False).is_finite().any())


def plain_numbers(written: pl.Series, *, decimal: str = ".", thousands: str | None = None) -> pl.Series:
    """Return text as float64; null for what is no number in this form, such as 1.234,5 or 1,234.5."""
    if thousands is not None:
        grouped = rf"^[+-]?\d{{1,3}}({re.escape(thousands)}\d{{3}})+({re.escape(decimal)}\d*)?$"
        without = written.str.replace_all(thousands, "", literal=True)
        written = pl.select(pl.when(written.str.contains(grouped)).then(without).otherwise(written)).to_series()
    if decimal != ".":
        written = written.set(written.str.contains(".", literal=True), None)
        written = written.str.replace(decimal, ".", literal=True)
    return written.cast(pl.Float64, strict=False)


def finite_numbers(
    column: pl.Series, missing: tuple[str, ...], origin: Origin, *, decimal: str = ".", thousands: str | None = None
) -> pl.Series:
    """Return `numbers` with null for infinity, too: as a feature it would drown all other values."""
    values = numbers(column, missing, origin, decimal=decimal, thousands=thousands)
    return _without(values, ~np.isfinite(values.to_numpy()))


def refuse(wrong: pl.Series, column: pl.Series, origin: Origin, expected: str) -> None:
    """Raise for the first row that is wrong, if there is one."""
    if not wrong.any():
        return
    at = wrong.arg_max()
    assert at is not None
    more = int(wrong.sum()) - 1
    others = f" (and {more:,} more such rows)" if more else ""
    raise InputError(f"{origin.row(at)}: column {column.name!r} is {column[at]!r}; {expected}{others}")
