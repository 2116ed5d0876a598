"""Read the tables in files, chunk by chunk in bounded memory."""

import codecs
import csv as python_csv
import io
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq

from gdod._checks import listed
from gdod.data.tables.files import PARQUET, kind
from gdod.data.tables.frames import arrow, chosen, polars
from gdod.data.tables.lines import CountedLines, find_stray_quote
from gdod.data.tables.table_schema import FileFormat
from gdod.data.tables.values import Origin
from gdod.errors import InputError

_BLOCK_BYTES = 4 << 20
_COLUMN_BYTES = 1 << 18  # of a Parquet file, read at a time of each column
_CHUNK_ROWS = 65_536
_ROW = re.compile(r"Row #(\d+): ")
_COMPRESSION = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}


@dataclass(frozen=True)
class Chunk:
    """Some rows of a table, and where they come from."""

    frame: pl.DataFrame
    origin: Origin


def columns_of(files: Sequence[Path], format: FileFormat) -> tuple[str, ...]:
    """Return the names of the columns, which must be the same in all files."""
    first: tuple[str, ...] | None = None
    for path in files:
        names = _names(path, format)
        repeated = [name for name, times in Counter(names).items() if times > 1]
        if repeated:
            raise InputError(f"{path}: more than one column has the name {listed(repeated)}; names must differ")
        if odd := [name for name in names if "\0" in name]:
            raise InputError(f"{path}: the name of the column {odd[0]!r} holds a zero byte; is it a text file?")
        if first is None:
            first = names
        elif set(names) != set(first):
            differ = sorted(set(names) ^ set(first))
            raise InputError(f"{path} has other columns than {files[0]}: they differ in {listed(differ)}")
    assert first is not None
    return first


def read_chunks(files: Sequence[Path], format: FileFormat, columns: Sequence[str]) -> Iterator[Chunk]:
    """Yield all rows of some columns, file after file. Text files give text; nothing is guessed."""
    for path in files:
        yield from _parquet(path, columns) if kind(path) in PARQUET else _text(path, format, columns)


def common_types(files: Sequence[Path], columns: Sequence[str]) -> pa.Schema:
    """Return types that hold the columns of all Parquet files that have rows."""
    common: dict[str, tuple[pa.DataType, Path]] = {}
    for path in files:
        with _explained(path), pq.ParquetFile(path) as file:
            if not file.metadata.num_rows:
                continue
            # By way of Polars, as the rows come.
            types = arrow(polars(file.schema_arrow.empty_table().select(list(columns)))).schema
        for field in types:
            before, first = common.setdefault(field.name, (field.type, path))
            if field.type == before:
                continue
            wider = _wider(before, field.type)
            if wider is None:
                raise InputError(
                    f"column {field.name!r} is of type {before} in {first} but {field.type} in {path}; "
                    f"write it with the same type in all parts"
                )
            if wider != before:
                common[field.name] = wider, path
    return pa.schema([(name, type) for name, (type, _) in common.items()])


def _wider(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Return the type that holds the values of both, if there is one. Text beside anything else makes text."""
    types = [type.value_type if pa.types.is_dictionary(type) else type for type in (one, other)]
    if pa.large_string() in types and not any(map(pa.types.is_nested, types)):
        return pa.large_string()
    try:
        both = [pa.schema([("", type)]) for type in types]
        return pa.unify_schemas(both, promote_options="permissive").field(0).type
    except pa.ArrowException:
        return None


def _names(path: Path, format: FileFormat) -> tuple[str, ...]:
    if kind(path) in PARQUET:
        with _explained(path):
            return tuple(pq.read_schema(path).names)
    if format.header is not None:
        return format.header
    with _explained(path, format), _open(path, format, ()) as (reader, _):
        names = tuple(reader.schema.names)
    if any(end in name for name in names for end in "\r\n"):
        _refuse_stray_quote(path, format)
    return names


def _parquet(path: Path, columns: Sequence[str]) -> Iterator[Chunk]:
    row = 1
    # Without these it reads ahead the whole file, or a whole row group, however large.
    with _explained(path), pq.ParquetFile(path, pre_buffer=False, buffer_size=_COLUMN_BYTES) as file:
        for batch in file.iter_batches(_CHUNK_ROWS, columns=list(columns), use_threads=False):
            yield Chunk(chosen(polars(batch), columns), Origin(path.name, row))
            row += batch.num_rows


def _text(path: Path, format: FileFormat, columns: Sequence[str]) -> Iterator[Chunk]:
    row = 1 if format.header is not None else 2
    with _explained(path, format), _open(path, format, columns) as (reader, lines):
        for batch in reader:
            if not batch.num_rows:
                continue
            yield Chunk(polars(batch), _TextOrigin(where=path.name, first=row, path=path, format=format))
            row += batch.num_rows
    if lines.count != row - 1:  # values of several lines, or rows that are taken for a part of one
        _refuse_stray_quote(path, format)


def _refuse_stray_quote(path: Path, format: FileFormat) -> None:
    """Raise if a quotation mark takes rows for a part of a value; the file is gone through again for that."""
    if not format.quote:
        return
    with _explained(path), _lines(path, format) as lines:
        stray = find_stray_quote(lines, format.quote, format.escape or None, _separator(path, format))
    if stray is None:
        return
    place = "is never closed" if stray.last is None else f"would close in line {stray.last:,} only"
    raise InputError(
        f"{path}, line {stray.line}: the quotation mark {format.quote} that opens a value {place}, so that rows "
        "between would be lost; remove it or close it, or, if quotation marks are ordinary signs in this file, "
        'write `file: {quote: ""}` in the schema'
    )


@dataclass(frozen=True, kw_only=True)
class _TextOrigin(Origin):
    """Rows of a text file, counted with the header; errors name the line where a row begins."""

    path: Path
    format: FileFormat

    def row(self, at: int) -> str:
        row = self.first + (at if self.rows is None else int(self.rows[at]))
        return f"{self.where}, {_line(self.path, self.format, row)}"


def _line(path: Path, format: FileFormat, row: int) -> str:
    """Return "line 7" for the line where a row of a text file begins.

    Blank lines and line breaks within quotation marks have no row of their own, so the file is gone through
    again, up to the row: only a message needs it.
    """
    try:
        with _lines(path, format) as lines:
            reader = python_csv.reader(
                lines,
                delimiter=_separator(path, format),
                quotechar=format.quote or None,
                escapechar=format.escape or None,
                quoting=python_csv.QUOTE_MINIMAL if format.quote else python_csv.QUOTE_NONE,
            )
            rows, begins = 0, 1
            for cells in reader:
                rows += bool(cells)
                if rows == row:
                    return f"line {begins}"
                begins = reader.line_num + 1
    except (python_csv.Error, OSError, ValueError):
        pass
    return f"row {row - (format.header is None)} (not counting the header and blank lines)"


@contextmanager
def _lines(path: Path, format: FileFormat) -> Iterator[io.TextIOWrapper]:
    """Open a text file to go through its lines, whose ends are kept as they are."""
    with _stream(path) as stream, io.TextIOWrapper(stream, format.encoding, "replace", newline="") as lines:
        yield lines


def _stream(path: Path) -> pa.NativeFile:
    """Open a file for reading, unpacked if its ending, in small or capital letters, is that of a compression."""
    return pa.input_stream(str(path), compression=_COMPRESSION.get(path.suffix.lower()))


@contextmanager
def _open(
    path: Path, format: FileFormat, columns: Sequence[str]
) -> Iterator[tuple[csv.CSVStreamingReader, CountedLines]]:
    """Open a text file; when it has been read to its end, the second value knows how many lines it has."""
    # What starts a UTF-16 file: bytes of text they are not, and the parser would not say so.
    with _stream(path) as stream:
        start = stream.read(4)
    if start[:2] in (b"\xff\xfe", b"\xfe\xff") and "16" not in format.encoding:
        raise InputError(f"{path} is written in UTF-16; say so in the schema, `file: {{encoding: utf-16}}`")
    names = format.header or columns
    stream = _stream(path)
    if codecs.lookup(format.encoding).name != "utf-8":
        stream = pa.transcoding_input_stream(stream, format.encoding, "utf-8")
    lines = CountedLines(stream)
    with csv.open_csv(
        lines,
        read_options=csv.ReadOptions(
            block_size=_BLOCK_BYTES,
            use_threads=False,
            column_names=None if format.header is None else list(format.header),
        ),
        parse_options=csv.ParseOptions(
            delimiter=_separator(path, format),
            quote_char=format.quote or False,
            escape_char=format.escape or False,
            newlines_in_values=True,
        ),
        convert_options=csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()),
            include_columns=list(columns),
            strings_can_be_null=False,
        ),
    ) as reader:
        yield reader, lines


def _separator(path: Path, format: FileFormat) -> str:
    """Return the format's separator.

    If it has none: a tab for .tsv, otherwise the one of comma, semicolon, tab and | that the first line has most.
    """
    if format.separator is not None:
        return format.separator
    if kind(path) == ".tsv":
        return "\t"
    with _explained(path), _stream(path) as stream:
        head = stream.read(1 << 16).decode(format.encoding, errors="replace").split("\n", 1)[0]
    best = max(",;\t|", key=head.count)
    return best if head.count(best) else ","


@contextmanager
def _explained(path: Path, format: FileFormat | None = None) -> Iterator[None]:
    """Turn whatever the readers raise into an `InputError` with the file and, for text of a format, the line."""
    try:
        yield
    except (InputError, MemoryError):
        raise
    except UnicodeError as error:
        raise InputError(f"{path} is not in the encoding that was expected: {error}; {_ENCODING}") from error
    except LookupError as error:
        raise InputError(f"{path}: {error}") from error
    except FileNotFoundError as error:
        raise InputError(f"there is no file {path}") from error
    except (pa.ArrowException, pl.exceptions.PolarsError, OSError) as error:
        raise InputError(_reason(path, str(error), format)) from error


_ENCODING = "if it is, say, Windows or Latin text, write `file: {encoding: latin-1}` in the schema"


def _reason(path: Path, error: str, format: FileFormat | None) -> str:
    """Return a reader's error in words that say what to do."""
    if format is not None:
        _refuse_stray_quote(path, format)
    error = error.splitlines()[0] if error else "unknown error"
    row = _ROW.search(error)
    where = f"{path}, {_line(path, format, int(row.group(1)))}" if row and format else str(path)
    if "invalid UTF8" in error:
        return f"{where}: not UTF-8; {_ENCODING}"
    if "Expected" in error and "columns, got" in error:
        return f"{where}: {error[error.index('Expected') :]}; the file is damaged or its separator is another one"
    if "Empty CSV" in error:
        return f"{path} is empty; expected a line of column names and rows below it"
    if "straddl" in error:
        return f"{path}: a row is longer than {_BLOCK_BYTES >> 20} MB; is a quotation mark never closed?"
    if "Truncated" in error or "magic bytes not found" in error or "footer" in error:
        return f"{path} is cut off or damaged ({error}); fetch it again"
    return f"{path} is damaged or not of the kind its name says: {error}"
