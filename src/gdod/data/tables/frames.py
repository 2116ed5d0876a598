"""Convert tables between polars and Arrow."""

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
