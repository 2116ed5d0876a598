"""Predictions of a run for a table of any length, chunk by chunk; and how good they are, if it has labels."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import torch
from torch import Tensor

from gdod._checks import listed, nearest
from gdod._files import check_writable, make_folder, whole
from gdod.data.parts.part import MemoryPart
from gdod.data.preparing.encoder import Encoded
from gdod.data.preparing.stored import examples
from gdod.data.tables.files import PARQUET, TEXT, find_files, kind
from gdod.data.tables.frames import arrow, polars
from gdod.data.tables.read import Chunk, columns_of, read_chunks
from gdod.data.tables.values import Origin
from gdod.errors import InputError
from gdod.training.evaluation import Scored, evaluating, predict_batch
from gdod.training.run import Run

BATCH = 8192


@dataclass(frozen=True)
class Predicted:
    """What became of a table."""

    rows: int
    columns: tuple[str, ...]
    notes: tuple[str, ...]


def predict_frame(run: Run, frame: pl.DataFrame, *, batch: int = BATCH) -> pl.DataFrame:
    """One row of predictions for each row of the table, in its order."""
    if not isinstance(frame, pl.DataFrame):
        raise InputError(f"predict got a {type(frame).__name__}; expected a polars DataFrame")
    _check_columns(run, frame.columns, "the table")
    return _predictions(run, Chunk(frame, Origin()), batch)


def evaluate_frame(run: Run, frame: pl.DataFrame, *, batch: int = BATCH) -> dict[str, Any]:
    if not isinstance(frame, pl.DataFrame):
        raise InputError(f"evaluate got a {type(frame).__name__}; expected a polars DataFrame")
    _check_columns(run, frame.columns, "the table")
    _check_labels(run, frame.columns, "the table")
    return _metrics(run, iter([Chunk(frame, Origin())]), batch)


def predict_file(
    run: Run,
    table: str | Path,
    out: Path,
    *,
    keep: Sequence[str] = (),
    batch: int = BATCH,
    told: Callable[[int], object] = lambda rows: None,
) -> Predicted:
    """Reads a table, writes one with a column for each task. The file is whole or not there.

    Args:
        table: a CSV or Parquet file, a folder of them or a pattern.
        out: where the predictions go; a name that ends in .csv, .tsv or .parquet.
        keep: columns of the table that are to stand before them, such as a row's id.
        batch: rows that go through the model at once.
        told: is called with the number of rows done.
    """
    files = find_files(table)
    if kind(out) is None or kind(out) not in (".csv", ".tsv", *PARQUET) or out.suffix.lower() != kind(out):
        raise InputError(f"--out {out} is of an unknown kind; expected a name that ends in .csv, .tsv or .parquet")
    if any(out.exists() and out.samefile(file) for file in files):
        raise InputError(f"--out {out} is the table itself; choose another name")
    columns, notes = _columns(run, files, keep)
    empty = _empty(run, files, columns, keep)
    if kind(out) not in PARQUET and (nested := [name for name, type in empty.schema.items() if type.is_nested()]):
        raise InputError(f"--keep {nested[0]!r} holds lists, and {kind(out)} has no place for them; use .parquet")
    check_writable(out.parent)
    make_folder(out.parent)
    rows, known = 0, _Known(run, columns)
    with whole(out) as part, closing(_writer(part, out)) as writer:
        writer.write(empty)  # a table without rows has columns, too
        for chunk in read_chunks(files, run.encoder.table_schema.file, columns):
            found = _predictions(run, chunk, batch, known)
            writer.write(pl.concat([chunk.frame.select(keep), found], how="horizontal") if keep else found)
            rows += len(found)
            told(rows)
    return Predicted(rows, (*keep, *prediction_columns(run)), (*notes, *known.notes(_place(files))))


def evaluate_file(
    run: Run, table: str | Path, *, batch: int = BATCH, told: Callable[[int], object] = lambda rows: None
) -> dict[str, Any]:
    """Metrics on a table with labels: {"rows", "tasks", "mean_auc", "notes"}."""
    files = find_files(table)
    names = columns_of(files, run.encoder.table_schema.file)
    columns, notes = _columns(run, files, ())
    _check_labels(run, names, str(table))
    labels = run.encoder.table_schema.labels
    needed = {*labels, *(one.when for one in labels.values()), _weight(run)}
    columns = [*columns, *(name for name in names if name in needed and name not in columns)]
    known = _Known(run, columns)
    found = _metrics(run, read_chunks(files, run.encoder.table_schema.file, columns), batch, told, known)
    return {**found, "notes": [*notes, *known.notes(_place(files))]}


def prediction_columns(run: Run) -> tuple[str, ...]:
    """A task's name, or for several classes `task:class`."""
    names: list[str] = []
    for task in run.tasks:
        classes = run.encoder.classes.get(task.name, ())
        names += [f"{task.name}:{one}" for one in classes] if task.kind == "multiclass" else [task.name]
    return tuple(names)


def _columns(run: Run, files: Sequence[Path], keep: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """The columns to read, and notes on those that are not there."""
    found = columns_of(files, run.encoder.table_schema.file)
    where = _place(files)
    notes = _check_columns(run, found, where)
    if absent := [name for name in keep if name not in found]:
        raise InputError(
            f"--keep {absent[0]!r}: {where} has no such column{nearest(absent[0], found)}; it has {listed(found)}"
        )
    if both := set(keep) & set(prediction_columns(run)):
        raise InputError(
            f"--keep {sorted(both)[0]!r} has the name of a task, whose column holds predictions; rename it"
        )
    features = [name for name in run.encoder.table_schema.features if name in found]
    return [*features, *(name for name in keep if name not in features)], notes


def _check_columns(run: Run, found: Sequence[str], where: str) -> tuple[str, ...]:
    features = run.encoder.table_schema.features
    absent = [name for name in features if name not in found]
    if len(absent) == len(features):
        raise InputError(f"{where} has none of the columns {listed(features)}; it has {listed(found)}")
    others = [name for name in found if name not in run.encoder.table_schema.columns]
    unused = f" (not used: {listed(others)})" if others else ""
    return tuple(
        f"{where} has no column {name!r}{nearest(name, others) or unused}; it counts as missing in every row"
        for name in absent
    )


def _place(files: Sequence[Path]) -> str:
    return str(files[0]) if len(files) == 1 else f"{files[0]} and {len(files) - 1} more"


class _Known:
    """Notices columns of a table in which no value is one that training has seen."""

    def __init__(self, run: Run, columns: Sequence[str]) -> None:
        self.unseen: dict[str, str | None] = {name: None for name in run.encoder.vocabularies if name in columns}
        """Columns without a known value so far, each with its first value."""

    def look(self, chunk: Chunk, encoded: Encoded) -> None:
        for name, first in list(self.unseen.items()):
            if (encoded.frame[name].to_numpy() > 0).any():
                del self.unseen[name]
            elif first is None and encoded.unknown[name]:
                self.unseen[name] = str(chunk.frame[name].drop_nulls().first())

    def notes(self, where: str) -> tuple[str, ...]:
        """None on a column whose values are all missing: that is how it is, and not a mistake."""
        return tuple(
            f"{where}: training has seen no value of the column {name!r} (the first is {first!r}); "
            "it counts as unknown in every row"
            for name, first in self.unseen.items()
            if first is not None
        )


def _check_labels(run: Run, found: Sequence[str], where: str) -> None:
    if not any(name in found for name in run.encoder.table_schema.labels):
        names = ", ".join(map(repr, run.encoder.table_schema.labels))
        raise InputError(f"{where} has no label; expected at least one of the columns {names}")


def _weight(run: Run) -> str | None:
    return run.encoder.table_schema.weight if run.config.weighted_metrics else None


def _encoded(run: Run, chunk: Chunk, known: _Known | None, *, labels: bool) -> MemoryPart:
    encoder = run.encoder
    encoded = encoder.encode_frame(chunk.frame, chunk.origin, labels=labels)
    if known is not None:
        known.look(chunk, encoded)
    return MemoryPart(examples(encoded.frame, encoder), tuple(encoder.table_schema.labels))


def _predictions(run: Run, chunk: Chunk, batch: int, known: _Known | None = None) -> pl.DataFrame:
    parts: dict[str, list[Tensor]] = {task.name: [] for task in run.tasks}
    with evaluating(run.model):
        for minibatch in _encoded(run, chunk, known, labels=False).batches(batch):
            for name, values in predict_batch(run.model, minibatch.batch.to(run.device)).items():
                parts[name].append(values)
    names = iter(prediction_columns(run))
    columns = []
    for task in run.tasks:
        values = torch.cat(parts[task.name]) if parts[task.name] else torch.zeros(0, task.outputs).double()
        for column in values.reshape(-1, task.outputs).unbind(1):
            columns.append(pl.Series(next(names), np.ascontiguousarray(column.numpy()), dtype=pl.Float64))
    return pl.DataFrame(columns)


def _metrics(
    run: Run,
    chunks: Iterator[Chunk],
    batch: int,
    told: Callable[[int], object] = lambda rows: None,
    known: _Known | None = None,
) -> dict[str, Any]:
    names = [task.name for task in run.tasks]
    labels: dict[str, list[Tensor]] = {name: [] for name in names}
    predictions: dict[str, list[Tensor]] = {name: [] for name in names}
    weights: list[Tensor] = []
    rows = 0
    with evaluating(run.model):
        for chunk in chunks:
            for minibatch in _encoded(run, chunk, known, labels=True).batches(batch):
                for name, values in predict_batch(run.model, minibatch.batch.to(run.device)).items():
                    predictions[name].append(values)
                    labels[name].append(minibatch.labels[name])
                if minibatch.weights is not None:
                    weights.append(minibatch.weights)
            rows += len(chunk.frame)
            told(rows)
    if not rows:
        raise InputError("the table has no rows, so there is nothing to evaluate")
    scored = Scored(
        run.tasks,
        {name: torch.cat(labels[name]) for name in names},
        {name: torch.cat(predictions[name]) for name in names},
        torch.cat(weights) if weights else None,
    )
    return {"rows": rows, **scored.metrics(weighted=run.config.weighted_metrics)}


def _empty(run: Run, files: Sequence[Path], columns: Sequence[str], keep: Sequence[str]) -> pl.DataFrame:
    """No rows of the columns that will be written."""
    if keep and kind(files[0]) in PARQUET:
        kept = polars(pq.read_schema(files[0]).empty_table().select(list(keep)))
    else:
        kept = pl.DataFrame(schema=dict.fromkeys(keep, pl.String))
    found = pl.DataFrame(schema=dict.fromkeys(prediction_columns(run), pl.Float64))
    return pl.concat([kept, found], how="horizontal") if keep else found


class _Writer(Protocol):
    def write(self, frame: pl.DataFrame) -> None: ...
    def close(self) -> None: ...


class _Parquet:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.writer: pq.ParquetWriter | None = None

    def write(self, frame: pl.DataFrame) -> None:
        rows = arrow(frame)
        if self.writer is None:
            self.writer = pq.ParquetWriter(self.path, rows.schema, compression="zstd", compression_level=1)
        if len(frame):
            self.writer.write_table(rows.cast(self.writer.schema))

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()


class _Text:
    def __init__(self, path: Path, separator: str) -> None:
        self.file = path.open("wb")
        self.separator, self.header = separator, True

    def write(self, frame: pl.DataFrame) -> None:
        frame.write_csv(self.file, include_header=self.header, separator=self.separator)
        self.header = False

    def close(self) -> None:
        self.file.close()


def _writer(path: Path, out: Path) -> _Writer:
    if kind(out) in PARQUET:
        return _Parquet(path)
    assert kind(out) in TEXT
    return _Text(path, "\t" if kind(out) == ".tsv" else ",")
