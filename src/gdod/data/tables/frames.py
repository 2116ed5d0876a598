"""Convert tables between polars and Arrow."""

from collections.abc import Sequence

import polars as pl
import pyarrow as pa


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
