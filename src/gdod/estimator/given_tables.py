"""Tables as people hand them to an estimator: of polars, pandas, pyarrow or numpy, gone through in chunks."""

from collections.abc import Iterator, Mapping
from os import PathLike
from typing import Any, Protocol

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from gdod.data.tables.frames import as_frame, is_frame, is_pandas
from gdod.data.tables.raw_table import CHUNK_ROWS, lazy_chunks
from gdod.data.tables.read import Chunk
from gdod.data.tables.values import Origin
from gdod.errors import InputError

_WHERE = "the table"


class GivenTable(Protocol):
    """A table in the form in which it was given."""

    columns: list[str]

    def whole(self) -> pl.DataFrame:
        """Return all rows."""

    def chunks(self) -> Iterator[Chunk]:
        """Yield the rows chunk by chunk; no more than a chunk is converted at a time."""

    def like(self, frame: pl.DataFrame) -> Any:
        """Return a result with a row for each row of this table in the form of this table."""

    def as_given(self, frame: pl.DataFrame) -> Any:
        """Return any result in the form of this table."""


class _Sliced:
    """What the tables in memory have in common: some of their rows can be taken at a time."""

    columns: list[str]
    rows: int

    def as_given(self, frame: pl.DataFrame) -> Any:
        return self.like(frame)

    def like(self, frame: pl.DataFrame) -> Any:
        raise NotImplementedError

    def part(self, first: int, last: int) -> pl.DataFrame:
        raise NotImplementedError

    def whole(self) -> pl.DataFrame:
        return self.part(0, self.rows)

    def chunks(self) -> Iterator[Chunk]:
        for first in range(0, self.rows, CHUNK_ROWS):
            yield Chunk(self.part(first, min(first + CHUNK_ROWS, self.rows)), Origin(_WHERE, first + 1))


class _Polars(_Sliced):
    def __init__(self, frame: pl.DataFrame) -> None:
        self.frame, self.columns, self.rows = frame, frame.columns, len(frame)

    def part(self, first: int, last: int) -> pl.DataFrame:
        return self.frame[first:last]

    def like(self, frame: pl.DataFrame) -> pl.DataFrame:
        return frame


class _Lazy:
    def __init__(self, frame: pl.LazyFrame) -> None:
        self.frame, self.columns = frame, frame.collect_schema().names()

    def whole(self) -> pl.DataFrame:
        return self.frame.collect()

    def chunks(self) -> Iterator[Chunk]:
        return lazy_chunks(self.frame, _WHERE)

    def like(self, frame: pl.DataFrame) -> pl.DataFrame:
        return frame

    def as_given(self, frame: pl.DataFrame) -> pl.DataFrame:
        return frame


class _Arrow(_Sliced):
    def __init__(self, table: pa.Table | pa.RecordBatch) -> None:
        self.table, self.columns, self.rows = table, table.schema.names, table.num_rows

    def part(self, first: int, last: int) -> pl.DataFrame:
        return as_frame(self.table.slice(first, last - first))

    def like(self, frame: pl.DataFrame) -> pa.Table:
        return frame.to_arrow(compat_level=pl.CompatLevel.oldest())


class _Pandas(_Sliced):
    def __init__(self, frame: Any) -> None:
        self.frame, self.columns, self.rows = frame, [str(name) for name in frame.columns], len(frame)

    def part(self, first: int, last: int) -> pl.DataFrame:
        return as_frame(self.frame.iloc[first:last])

    def like(self, frame: pl.DataFrame) -> Any:
        result = self.as_given(frame)
        result.index = self.frame.index
        return result

    def as_given(self, frame: pl.DataFrame) -> Any:
        return frame.to_pandas()


class _Array(_Sliced):
    """A matrix, whose columns are named x0, x1, ... as scikit-learn names them."""

    def __init__(self, values: NDArray[Any]) -> None:
        self.values, self.rows = values, len(values)
        self.columns = [f"x{at}" for at in range(values.shape[1])]

    def part(self, first: int, last: int) -> pl.DataFrame:
        return pl.DataFrame([series(self.values[first:last, at], name) for at, name in enumerate(self.columns)])

    def like(self, frame: pl.DataFrame) -> NDArray[Any]:
        return frame.to_numpy()

    def as_given(self, frame: pl.DataFrame) -> pl.DataFrame:
        return frame  # with texts and numbers, which a matrix cannot hold


def given_table(table: object) -> GivenTable:
    """Return a table of any library in one form, with an error that says what is expected where it is none."""
    if isinstance(table, pl.LazyFrame):
        return _Lazy(table)
    if isinstance(table, pl.DataFrame):
        return _Polars(table)
    if is_frame(table):
        return _Pandas(table) if is_pandas(table) else _Arrow(table)
    if isinstance(table, Mapping) or hasattr(table, "toarray"):
        raise InputError(
            f"X is a {type(table).__name__}; expected a polars or pandas DataFrame, a pyarrow Table or a numpy matrix. "
            "A dictionary becomes a table with pl.DataFrame(X), a sparse matrix a dense one with X.toarray()"
        )
    if isinstance(table, str | PathLike) or table is None:
        raise InputError(
            f"X is {table!r}; expected a polars or pandas DataFrame, a pyarrow Table or a numpy matrix. Read a file "
            "first, with pl.read_csv or pl.scan_parquet, or train with gdod train --data FILE"
        )
    if isinstance(table, list) and table and isinstance(table[0], Mapping):
        raise InputError("X is a list of dictionaries; expected a table, which pl.DataFrame(X) makes of it")
    values = np.asarray(table)
    if not values.shape and values.dtype.kind == "O":
        raise InputError(
            f"X is a {type(table).__name__}; expected a polars or pandas DataFrame, a pyarrow Table or a numpy matrix"
        )
    if values.dtype.kind == "c":
        raise InputError("Complex data not supported: X holds complex numbers; expected real numbers or text")
    if values.ndim != 2:
        raise InputError(
            f"X has shape {list(values.shape)}; expected a polars or pandas DataFrame, a pyarrow Table, or a matrix of "
            "rows and columns. Reshape your data with .reshape(-1, 1) if it has a single feature, or .reshape(1, -1) "
            "if it is a single sample"
        )
    if not values.shape[1]:
        raise InputError(f"0 feature(s) (shape={values.shape}) while a minimum of 1 is required; X has no column")
    return _Array(values)


def given_labels(labels: object) -> pl.DataFrame:
    """Return labels of any library as a frame with a column a task.

    Tasks have the names of the columns; those of a matrix are y0, y1, ..., that of a vector without a name is y.
    """
    if isinstance(labels, pl.Series):
        return labels.alias(labels.name or "y").to_frame()
    if is_pandas(labels, "Series"):
        named: Any = labels
        return as_frame(named.to_frame("y" if named.name is None else str(named.name)))
    if is_frame(labels):
        return as_frame(labels)
    values = np.asarray(labels)
    if values.dtype.kind == "c":
        raise InputError("Complex data not supported: y holds complex numbers; expected real numbers or text")
    if values.ndim == 1:
        return pl.DataFrame([series(values, "y")])
    if values.ndim != 2 or not values.shape[1]:
        raise InputError(
            f"y has shape {list(values.shape)}; expected a vector, a matrix with a column a task, or a frame of labels"
        )
    return pl.DataFrame([series(values[:, at], f"y{at}") for at in range(values.shape[1])])


def series(values: NDArray[Any], name: str) -> pl.Series:
    """Return a vector of numpy as a column."""
    try:
        if values.dtype.kind == "O":
            return pl.Series(name, values.tolist(), strict=True)
        return pl.Series(name, np.ascontiguousarray(values))
    except (TypeError, pl.exceptions.PolarsError) as error:
        raise InputError(
            f"column {name!r} of the matrix cannot be read, argument must be a string or a number: {error}"
        ) from error
