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


def chosen(frame: pl.DataFrame, columns: Sequence[str]) -> pl.DataFrame:
    """Return some columns of a frame, in this order. (`select` takes names such as "*" and "^a$" for patterns.)"""
    return frame[list(columns)]


def arrow(frame: pl.DataFrame) -> pa.Table:
    """Return a frame as an Arrow table in types that older readers know, too."""
    return frame.to_arrow(compat_level=pl.CompatLevel.oldest())
