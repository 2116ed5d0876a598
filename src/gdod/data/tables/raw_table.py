"""Raw tables that can be gone through several times, whatever they were read from."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from polars.selectors import by_name

from gdod.data.tables.files import PARQUET, kind
from gdod.data.tables.frames import arrow, chosen, polars
from gdod.data.tables.read import Chunk, common_types, read_chunks
from gdod.data.tables.table_schema import FileFormat
from gdod.data.tables.values import Origin
from gdod.errors import InputError

CHUNK_ROWS = 65_536


class RawTable(Protocol):
    """A table as it was read, before anything is fitted or encoded."""

    @property
    def rows(self) -> int:
        """The number of rows."""

    def chunks(self, columns: Sequence[str]) -> Iterator[Chunk]:
        """Yield all rows of some columns, in the same order each time."""


@dataclass(frozen=True)
class FrameTable:
    """A table in memory."""

    frame: pl.DataFrame
    where: str

    @property
    def rows(self) -> int:
        return len(self.frame)

    def chunks(self, columns: Sequence[str]) -> Iterator[Chunk]:
        frame = chosen(self.frame, columns)
        for first in range(0, len(frame), CHUNK_ROWS):
            yield Chunk(frame[first : first + CHUNK_ROWS], Origin(self.where, first + 1))


@dataclass(frozen=True)
class SpooledTable:
    """A table that was read once and lies as Parquet beside what is being prepared, a row group a chunk.

    Going through it again costs a fraction of parsing text, and takes no more memory than a chunk.
    """

    path: Path
    origins: tuple[Origin, ...]
    rows: int

    def chunks(self, columns: Sequence[str]) -> Iterator[Chunk]:
        if not self.rows:
            return
        with pq.ParquetFile(self.path) as file:
            for at, origin in enumerate(self.origins):
                frame = polars(file.read_row_group(at, columns=list(columns), use_threads=False))
                yield Chunk(chosen(frame, columns), origin)


def spool(chunks: Iterator[Chunk], path: Path, types: pa.Schema | None = None) -> SpooledTable:
    """Write chunks to a file and return the table there. ``types``: those to write, if the chunks' may differ."""
    writer: pq.ParquetWriter | None = None
    origins, rows = [], 0
    try:
        for chunk in chunks:
            if not len(chunk.frame):
                continue
            part = arrow(chunk.frame)
            if writer is None:
                writer = pq.ParquetWriter(path, types or part.schema, compression="lz4")
            if part.schema != writer.schema:
                part = _cast(part, writer.schema, chunk.origin)
            writer.write_table(part, row_group_size=max(1, len(chunk.frame)))
            origins.append(chunk.origin)
            rows += len(chunk.frame)
    finally:
        if writer is not None:
            writer.close()
    return SpooledTable(path, tuple(origins), rows)


def _cast(part: pa.Table, types: pa.Schema, origin: Origin) -> pa.Table:
    """Return rows with other types: parts of one table may have whole numbers here, fractions there."""
    columns = []
    for field in types:
        column = part[field.name]
        try:
            columns.append(column.cast(field.type))
        except pa.ArrowException as error:
            raise InputError(
                f"{origin.where}: column {field.name!r} is of type {column.type} here, and cannot become "
                f"{field.type} as the other parts need: {error}; write it with the same type in all parts"
            ) from error
    return pa.Table.from_arrays(columns, schema=types)


def file_table(files: Sequence[Path], format: FileFormat, columns: Sequence[str], path: Path) -> RawTable:
    """Return the table in some files, with these columns; a copy lies at ``path`` while it is used."""
    types = common_types(files, columns) if kind(files[0]) in PARQUET else None
    return spool(read_chunks(files, format, columns), path, types)


def frame_table(frame: pl.DataFrame | pl.LazyFrame, where: str, columns: Sequence[str], path: Path) -> RawTable:
    """Return a frame as a table; of a lazy one, a copy of these columns lies at ``path`` while it is used."""
    if isinstance(frame, pl.DataFrame):
        return FrameTable(frame, where)
    return spool(lazy_chunks(frame.select(by_name(*columns)), where), path)


def lazy_chunks(frame: pl.LazyFrame, where: str) -> Iterator[Chunk]:
    """Yield the rows of a lazy frame in bounded memory."""
    row = 1
    for part in frame.collect_batches(chunk_size=CHUNK_ROWS, maintain_order=True):
        if len(part):
            yield Chunk(part, Origin(where, row))
            row += len(part)
