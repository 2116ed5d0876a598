"""Write encoded rows as Parquet, and turn them into tensors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from torch import Tensor

from gdod.data.parts.part import Examples
from gdod.data.tables.frames import arrow
from gdod.data.tables.table_schema import CategoricalColumn, SequenceColumn

if TYPE_CHECKING:
    from gdod.data.preparing.encoder import Encoder

# Rows that are read together when a part is streamed.
ROW_GROUP = 8_192


EncodedColumns = Mapping[str, NDArray[Any] | pl.Series]
"""The columns of encoded rows, by name: ids [n] int32, numbers and labels [n] float32, sequences [n, longest] int32."""


def examples(rows: EncodedColumns | pl.DataFrame, encoder: Encoder) -> Examples:
    """Return encoded rows as tensors. A label that they lack is missing everywhere."""
    columns = {one.name: one for one in rows.get_columns()} if isinstance(rows, pl.DataFrame) else rows
    schema, size = encoder.extended_schema, len(next(iter(columns.values()), ()))
    ids = np.empty((size, len(schema.of(CategoricalColumn))), np.int32)
    for at, name in enumerate(schema.of(CategoricalColumn)):
        ids[:, at] = _array(columns[name])
    values = np.empty((size, len(encoder.numeric)), np.float32)
    for at, name in enumerate(encoder.numeric):
        values[:, at] = _array(columns[name])
    labels = np.full((len(schema.labels), size), np.nan, np.float32)
    for at, name in enumerate(schema.labels):
        if name in columns:
            labels[at] = _array(columns[name])
    weights = None
    if schema.weight is not None and schema.weight in columns:
        weights = _tensor(_array(columns[schema.weight]))
    own = {label: column for label, column in schema.label_weights.items() if column in columns}
    if own:
        matrix = np.ones((len(schema.labels), size), np.float32)
        if weights is not None:
            matrix *= weights.numpy()
        for at, name in enumerate(schema.labels):
            if name in own:
                matrix[at] *= _array(columns[own[name]])
        weights = _tensor(matrix)
    return Examples(
        _tensor(ids),
        _tensor(values),
        tuple(_matrix(columns[name], encoder.longest[name]) for name in schema.of(SequenceColumn)),
        _tensor(labels),
        weights,
    )


def _array(values: NDArray[Any] | pl.Series) -> NDArray[Any]:
    return values.to_numpy() if isinstance(values, pl.Series) else values  # null becomes nan


def _matrix(lists: NDArray[Any] | pl.Series, longest: int) -> Tensor:
    if not isinstance(lists, pl.Series):
        return _tensor(lists)
    if not len(lists):
        return torch.zeros(0, longest, dtype=torch.int32)
    flat = lists.explode(empty_as_null=False, keep_nulls=False)
    return _tensor(flat.to_numpy().reshape(len(lists), longest))


def _tensor(array: NDArray[np.generic]) -> Tensor:
    # Arrow's memory may be read-only, and torch warns of that.
    return torch.from_numpy(array if array.flags.writeable and array.flags.c_contiguous else array.copy())


class PartWriter:
    """Writes the frames of one part to Parquet, in row groups of equal size whatever the frames' sizes are.

    ``together``: the number of row groups that are collected in memory before they are written.
    """

    def __init__(self, path: Path, row_group: int = ROW_GROUP, together: int = 8) -> None:
        self.path, self.row_group, self.together = path, row_group, together
        self.rows = 0
        self._writer: pq.ParquetWriter | None = None
        self._waiting: list[pl.DataFrame] = []
        self._waits = 0

    def write(self, frame: pl.DataFrame) -> None:
        if not len(frame) and self._writer is not None:
            return
        self.rows += len(frame)
        self._waiting.append(frame)
        self._waits += len(frame)
        # A multiple of the row group's size goes out, the rest waits for more.
        if self._waits >= self.together * self.row_group:
            together = pl.concat(self._waiting)
            full = self._waits // self.row_group * self.row_group
            self._put(together[:full])
            self._waiting, self._waits = [together[full:]], self._waits - full

    def _put(self, frame: pl.DataFrame) -> None:
        rows = arrow(frame)
        if self._writer is None:
            self._writer = pq.ParquetWriter(self.path, rows.schema, compression="zstd", compression_level=1)
        self._writer.write_table(rows, row_group_size=self.row_group)

    def close(self) -> None:
        if self._waiting:
            self._put(pl.concat(self._waiting))
            self._waiting = []
        if self._writer is not None:
            self._writer.close()
            self._writer = None
