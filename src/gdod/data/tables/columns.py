"""Read sequence, label and weight columns: lists of text, labels in range, weights."""

from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gdod.data.tables.table_schema import LabelColumn, NumericColumn, TableSchema
from gdod.data.tables.values import Origin, finite_numbers, numbers, refuse, text
from gdod.errors import InputError


class Lists(NamedTuple):
    """The values of a sequence column, all rows one after the other."""

    values: pl.Series  # [m] text, no nulls
    rows: NDArray[np.int64]  # [m], the row each belongs to
    empty: int  # rows without a value


def list_texts(column: pl.Series, separator: str, missing: tuple[str, ...], longest: int) -> Lists:
    """Return the last ``longest`` values of each row of a sequence column."""
    if isinstance(column.dtype, pl.List | pl.Array):
        lists = column.cast(pl.List(column.dtype.inner)) if isinstance(column.dtype, pl.Array) else column
    else:
        lists = text(column, missing).str.split(separator)
    values = text(lists.explode(empty_as_null=False, keep_nulls=False), ("", *missing))
    lengths = np.nan_to_num(lists.list.len().to_numpy()).astype(np.int64)  # [n], null becomes nan
    rows = np.arange(len(lists)).repeat(lengths)  # [m]
    if values.null_count():
        rows, values = rows[values.is_not_null().to_numpy()], values.drop_nulls()
    counts = np.bincount(rows, minlength=len(lists))  # [n]
    if (counts > longest).any():
        last = np.arange(len(rows)) >= (counts.cumsum() - longest)[rows]
        rows, values = rows[last], values.filter(pl.Series(last))
    return Lists(values, rows, int((counts == 0).sum()))


def padded(ids: NDArray[np.int32], rows: NDArray[np.int64], size: int, longest: int) -> NDArray[np.int32]:
    """Return a matrix of the last known ids of each row, then 0: [m] ids and their rows -> [size, longest]."""
    rows, ids = rows[ids > 0], ids[ids > 0]
    counts = np.bincount(rows, minlength=size)  # [size]
    places = np.arange(len(rows)) - (counts.cumsum() - counts)[rows]  # [m], within the row
    kept = places >= counts[rows] - longest  # the last ones
    places = places - np.maximum(counts[rows] - longest, 0)
    matrix = np.zeros((size, longest), np.int32)
    matrix[rows[kept], places[kept]] = ids[kept]
    return matrix


def numeric_values(column: pl.Series, numeric: NumericColumn, missing: tuple[str, ...], origin: Origin) -> pl.Series:
    """Return a numeric column as float64, null where there is no value or it is not finite."""
    own = (*missing, *numeric.missing)
    return finite_numbers(column, own, origin, decimal=numeric.decimal, thousands=numeric.thousands)


def label_values(
    frame: pl.DataFrame, name: str, table: TableSchema, classes: tuple[str, ...] | None, origin: Origin
) -> pl.Series:
    """Return a label column as float64, null where there is no label. ``classes``: those of a multiclass task."""
    label = table.labels[name]
    values = _label(frame[name], label, table.file.missing, classes, origin)
    if label.when is None:
        return values
    if label.when not in frame.columns:
        raise InputError(f"{origin.where} has no column {label.when!r}, on which the label {name!r} depends")
    there = _condition(frame[label.when], table, origin)
    return pl.select(pl.when(there).then(values)).to_series().rename(name)


def _condition(column: pl.Series, table: TableSchema, origin: Origin) -> pl.Series:
    """Return where a column is 1 or true; for a label, where it is positive."""
    label, missing = table.columns.get(column.name), table.file.missing
    if isinstance(label, LabelColumn) and label.kind == "binary":
        return _binary(column, label, missing, origin) == 1
    words = _truths(column, missing)
    values = words.cast(pl.Float64, strict=False)
    expected = "a condition (`when`) is a number, or true or false; the label is there where it is 1 or true"
    refuse(values.is_null() & words.is_not_null(), column, origin, expected)
    return values == 1


def _truths(column: pl.Series, missing: tuple[str, ...]) -> pl.Series:
    """Return a column as text, with 1 for true and 0 for false."""
    return text(column, missing).str.to_lowercase().replace({"true": "1", "false": "0"})


def _label(
    column: pl.Series, label: LabelColumn, missing: tuple[str, ...], classes: tuple[str, ...] | None, origin: Origin
) -> pl.Series:
    if label.kind == "binary":
        return _binary(column, label, missing, origin)
    if label.kind == "multiclass":
        return _multiclass(text(column, missing), classes or (), origin)
    values = numbers(column, missing, origin)
    refuse(values.is_infinite(), column, origin, "expected a finite number")
    return values


def _binary(column: pl.Series, label: LabelColumn, missing: tuple[str, ...], origin: Origin) -> pl.Series:
    if label.positive is not None:
        return text(column, missing).is_in(list(label.positive)).cast(pl.Float64)
    if column.dtype == pl.Boolean or column.dtype.is_integer():
        # As most are. Of few rows calls of Polars take the time, and a table may have many labels.
        values = column.cast(pl.Float64)
        low, high = values.min(), values.max()
        if low in (None, 0, 1) and high in (None, 0, 1):
            return values
    words = _truths(column, missing)
    values = words.cast(pl.Float64, strict=False)
    refuse(
        words.is_not_null() & ~values.is_in([0.0, 1.0]).fill_null(False),
        column,
        origin,
        "a binary label is 0 or 1; for other values name those that count as 1: `positive: [...]`",
    )
    return values


def _multiclass(column: pl.Series, classes: tuple[str, ...], origin: Origin) -> pl.Series:
    values = column.cast(pl.Enum(classes), strict=False)
    refuse(
        values.is_null() & column.is_not_null(),
        column,
        origin,
        f"expected one of the classes {', '.join(classes[:12])}; list them all in the schema: `classes: [...]`",
    )
    return values.to_physical().cast(pl.Float64)


def weight_values(column: pl.Series, missing: tuple[str, ...], origin: Origin) -> pl.Series:
    """Return a weight column as float64, null where there is none."""
    values = numbers(column, missing, origin)
    refuse((values < 0) | values.is_infinite(), column, origin, "expected a weight of at least 0")
    return values
