"""The rows by which a run is explained: read from files, checked, and put into the form that its model takes."""

from pathlib import Path

import polars as pl

from gdod.data.parts.part import MemoryPart
from gdod.data.preparing.stored import examples
from gdod.data.tables.files import find_files
from gdod.data.tables.read import columns_of, read_chunks
from gdod.data.tables.values import Origin
from gdod.errors import InputError
from gdod.training.run import Run

ROWS = 10_000


def read_rows(run: Run, table: str | Path, most: int = ROWS) -> pl.DataFrame:
    """Return the first rows of a table in files, of the columns that explanations need."""
    files, schema = find_files(table), run.encoder.table_schema
    needed = {*run.encoder.inputs, *schema.labels, *(label.when for label in schema.labels.values())}
    needed |= {schema.weight, *schema.label_weights.values()}
    columns = [name for name in columns_of(files, schema.file) if name in needed]
    if not columns:
        raise InputError(f"{table} has none of the columns of the run")
    parts: list[pl.DataFrame] = []
    for chunk in read_chunks(files, schema.file, columns):
        parts.append(chunk.frame[: most - sum(map(len, parts))])
        if sum(map(len, parts)) >= most:
            break
    if sum(map(len, parts)) < 2:
        raise InputError(f"{table} has fewer than 2 rows, and one row explains nothing")
    return pl.concat(parts, how="vertical_relaxed")


def check_inputs(run: Run, frame: pl.DataFrame) -> list[str]:
    """Return the columns of the table that the run takes, and raise if there is none, or fewer than two rows."""
    there = [name for name in run.encoder.inputs if name in frame.columns]
    if not there:
        raise InputError("the table has none of the columns of the run")
    if len(frame) < 2:
        raise InputError(f"the table has {len(frame)} row(s); expected 2 or more, since one row explains nothing")
    return there


def check_labels(run: Run, frame: pl.DataFrame, least: int = 1) -> None:
    """Raise unless the table has the labels of so many tasks."""
    labels = run.encoder.table_schema.labels
    there = [name for name in labels if name in frame.columns]
    if len(there) < least:
        names = ", ".join(map(repr, labels))
        expected = "at least one" if least == 1 else f"at least {least}"
        had = f"the label {there[0]!r} alone" if there else "no label"
        raise InputError(f"the table has {had}; expected {expected} of the columns {names}")


def encoded_part(run: Run, frame: pl.DataFrame) -> MemoryPart:
    """Return the rows as examples of the run's model, with their labels."""
    encoded = run.encoder.encode_frame(frame, Origin())
    return MemoryPart(examples(encoded.frame, run.encoder), tuple(run.encoder.table_schema.labels))
