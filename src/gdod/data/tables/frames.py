"""Convert tables between polars, Arrow and pandas."""

import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

import polars as pl
import pyarrow as pa

from gdod._checks import listed
from gdod.errors import InputError

AnyFrame = Any
"""A table in memory: a polars DataFrame or LazyFrame, a pandas DataFrame, or a pyarrow Table or RecordBatch."""


def polars(rows: pa.Table | pa.RecordBatch) -> pl.DataFrame:
    """Return Arrow rows as a frame with the same column names (polars would name a nameless column itself)."""
    frame = pl.from_arrow(rows)
    assert isinstance(frame, pl.DataFrame)
    frame.columns = rows.schema.names
    return frame


def arrow(frame: pl.DataFrame) -> pa.Table:
    """Return a frame as an Arrow table in types that older readers know, too."""
    return frame.to_arrow(compat_level=pl.CompatLevel.oldest())


def is_pattern(name: str) -> bool:
    """Return whether polars takes a column's name for a pattern of names, so that it cannot do much with the column."""
    return name == "*" or (name.startswith("^") and name.endswith("$"))


def chosen(frame: pl.DataFrame, columns: Sequence[str]) -> pl.DataFrame:
    """Return some columns, in this order. `DataFrame.select` would take some names for patterns."""
    return frame[list(columns)]


def is_frame(table: object) -> bool:
    """Return whether `as_frame` takes this table."""
    return isinstance(table, pl.DataFrame | pl.LazyFrame | pa.Table | pa.RecordBatch) or is_pandas(table)


def is_pandas(table: object, kind: str = "DataFrame") -> bool:
    """Return whether this is a pandas DataFrame, or of another ``kind`` of pandas; pandas is not imported for that."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(table, getattr(pandas, kind))


def as_frame(table: AnyFrame) -> pl.DataFrame:
    """Return a table of any library as a polars frame; the index of a pandas frame is left out."""
    if isinstance(table, pl.DataFrame):
        return table
    if isinstance(table, pl.LazyFrame):
        return table.collect()
    if isinstance(table, pa.Table | pa.RecordBatch):
        _check_names(table.schema.names)
        try:
            return pl.DataFrame([_readable(column) for column in polars(table)])
        except (pa.ArrowException, pl.exceptions.PolarsError, TypeError) as error:
            raise InputError(f"the pyarrow table cannot be read: {error}") from error
    if is_pandas(table):
        return _from_pandas(table)
    raise InputError(
        f"the table is a {type(table).__name__}; expected a polars or pandas DataFrame, or a pyarrow Table"
    )


def _from_pandas(frame: Any) -> pl.DataFrame:
    names = [str(name) for name in frame.columns]
    _check_names(names)
    columns = []
    for at, name in enumerate(names):
        values = frame.iloc[:, at]
        try:
            if hasattr(values, "cat"):  # whatever the categories are, they are names of things
                values = values.cat.rename_categories(values.cat.categories.map(str))
            columns.append(_readable(pl.Series(name, pl.from_pandas(values))))
        except (pa.ArrowException, pl.exceptions.PolarsError, TypeError, ValueError) as error:
            raise InputError(
                f"column {name!r} of the pandas frame, of type {values.dtype}, cannot be read: {error}; make it text "
                "(.astype(str)), numbers, times or truth values, or leave it out"
            ) from error
    return pl.DataFrame(columns)


def _readable(column: pl.Series) -> pl.Series:
    """Return a column; raise if it is of an extension type, such as pandas' periods, of which polars makes nothing."""
    if isinstance(column.dtype, pl.BaseExtension):
        raise TypeError(f"{column.name!r} is of the extension type {column.dtype.ext_name()}")
    return column


def _check_names(names: Sequence[str]) -> None:
    if repeated := [name for name, times in Counter(names).items() if times > 1]:
        raise InputError(f"more than one column has the name {listed(repeated)}; names must differ")
