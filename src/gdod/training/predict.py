"""Predictions and metrics of a run for a table of any length, which is read chunk by chunk."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import polars as pl
import pyarrow.parquet as pq

from gdod._checks import check_number, listed, nearest
from gdod._files import check_writable, make_folder, whole
from gdod.data.parts.part import MemoryPart, Minibatch
from gdod.data.preparing.encoder import Encoded
from gdod.data.preparing.stored import examples
from gdod.data.tables.files import PARQUET, TEXT, find_files, kind
from gdod.data.tables.frames import arrow, chosen, polars
from gdod.data.tables.raw_table import FrameTable
from gdod.data.tables.read import Chunk, columns_of, read_chunks
from gdod.data.tables.values import text
from gdod.errors import InputError
from gdod.training.calibration import calibrated, with_all_negatives
from gdod.training.evaluation import Predictions, predict_batches
from gdod.training.metrics import more_metrics, weights_by_task
from gdod.training.run import Run

BATCH = 8192
_TABLE = "the table"


@dataclass(frozen=True)
class PredictedFile:
    """A summary of the file that `predict_file` wrote."""

    rows: int
    columns: tuple[str, ...]
    notes: tuple[str, ...]
    """Remarks on columns that are missing, or hold no value that training has seen."""


def predict_frame(run: Run, frame: pl.DataFrame, *, batch: int = BATCH) -> pl.DataFrame:
    """Return one row of predictions for each row of the table, in its order."""
    _check_frame(frame, "predict")
    return predict_chunks(run, FrameTable(frame, _TABLE).chunks(frame.columns), frame.columns, batch=batch)[0]


def evaluate_frame(run: Run, frame: pl.DataFrame, *, batch: int = BATCH) -> dict[str, Any]:
    """Return the metrics on a table with labels: {"rows", "tasks", "mean_auc"}."""
    _check_frame(frame, "evaluate")
    return evaluate_chunks(run, FrameTable(frame, _TABLE).chunks(frame.columns), frame.columns, batch=batch)[0]


def predict_chunks(
    run: Run, chunks: Iterable[Chunk], columns: Sequence[str], *, batch: int = BATCH
) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """Return one row of predictions for each row of a table, and remarks on columns as `PredictedFile` has them.

    Besides the predictions, memory holds a chunk at a time.

    Args:
        run: a trained model.
        chunks: the rows of the table.
        columns: the names of its columns.
        batch: rows that go through the model at once.
    """
    notes, unseen = check_columns(run, columns, _TABLE), _UnseenColumns(run, columns)
    parts = [predict_chunk(run, chunk, batch=batch, observer=unseen) for chunk in chunks]
    empty = pl.DataFrame(schema=dict.fromkeys(prediction_columns(run), pl.Float64))
    return pl.concat([empty, *parts]), (*notes, *unseen.notes(_TABLE))


@dataclass(frozen=True)
class EvaluationOptions:
    """What metrics on a table are to be of."""

    threshold: float = 0.5
    """The probability from which on F1 takes a prediction for a 1."""
    group: str | None = None
    """A column, such as a user's id, within whose values the group AUC compares rows; None: there is none."""
    all_negatives: bool = False
    """Whether the table has all negatives, though that of training had not (`negatives_kept`): then predictions are
    corrected, and otherwise not, since the labels are as those of training."""

    def check(self, columns: Sequence[str], where: str) -> None:
        """Raise if the threshold is none, or a table with these columns has no such group."""
        check_number("threshold", self.threshold, at_least=0, at_most=1)
        if self.group is not None and self.group not in columns:
            raise InputError(
                f"{where} has no column {self.group!r} for the group AUC{nearest(self.group, columns)}; it has "
                f"{listed(columns)}"
            )


_USUAL = EvaluationOptions()


def evaluate_chunks(
    run: Run,
    chunks: Iterable[Chunk],
    columns: Sequence[str],
    *,
    batch: int = BATCH,
    options: EvaluationOptions = _USUAL,
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the metrics on a table with labels, {"rows", "tasks", "mean_auc"}, and remarks on columns.

    Arguments as for `predict_chunks`.
    """
    notes, unseen = check_columns(run, columns, _TABLE), _UnseenColumns(run, columns)
    _check_labels(run, columns, _TABLE)
    options.check(columns, _TABLE)
    metrics = _metrics(run, iter(chunks), batch, unseen=unseen, options=options)
    return metrics, (*notes, *unseen.notes(_TABLE))


def predict_file(
    run: Run,
    table: str | Path,
    out: Path,
    *,
    keep: Sequence[str] = (),
    batch: int = BATCH,
    told: Callable[[int], object] = lambda rows: None,
) -> PredictedFile:
    """Read a table and write a file with a column of predictions for each task, which is whole or not there.

    Args:
        table: a CSV or Parquet file, a folder of them or a pattern.
        out: where the predictions go; a name that ends in .csv, .tsv or .parquet.
        keep: columns of the table to copy before the predictions, such as a row's id.
        batch: rows that go through the model at once.
        told: called with the number of rows done so far.
    """
    files = find_files(table)
    _check_out(out, files)
    columns, notes = _columns(run, files, keep)
    empty = _empty(run, files, keep)
    if kind(out) not in PARQUET and (nested := [name for name, type in empty.schema.items() if type.is_nested()]):
        raise InputError(f"--keep {nested[0]!r} holds lists, and {kind(out)} has no place for them; use .parquet")
    check_writable(out.parent)
    make_folder(out.parent)
    rows, unseen = 0, _UnseenColumns(run, columns)
    with whole(out) as part, closing(_writer(part, out, empty)) as writer:
        for chunk in read_chunks(files, run.encoder.table_schema.file, columns):
            predictions = predict_chunk(run, chunk, batch=batch, observer=unseen)
            kept = [chosen(chunk.frame, keep), predictions]
            writer.write(pl.concat(kept, how="horizontal") if keep else predictions)
            rows += len(predictions)
            told(rows)
    return PredictedFile(rows, (*keep, *prediction_columns(run)), (*notes, *unseen.notes(_place(files))))


def evaluate_file(
    run: Run,
    table: str | Path,
    *,
    batch: int = BATCH,
    told: Callable[[int], object] = lambda rows: None,
    options: EvaluationOptions = _USUAL,
) -> dict[str, Any]:
    """Return the metrics on a table with labels: {"rows", "tasks", "mean_auc", "notes"}.

    Args:
        table: a CSV or Parquet file, a folder of them or a pattern.
        batch: rows that go through the model at once.
        told: called with the number of rows done so far.
        options: what the metrics are to be of.
    """
    files, schema = find_files(table), run.encoder.table_schema
    columns, notes = _columns(run, files, ())
    there = columns_of(files, schema.file)
    _check_labels(run, there, str(table))
    options.check(there, str(table))
    weights = (schema.weight, *schema.label_weights.values()) if run.config.weighted_metrics else ()
    needed = {*schema.labels, *(label.when for label in schema.labels.values()), *weights, options.group}
    columns += [name for name in there if name in needed and name not in columns]
    unseen = _UnseenColumns(run, columns)
    metrics = _metrics(run, read_chunks(files, schema.file, columns), batch, told, unseen, options)
    return {**metrics, "notes": [*notes, *unseen.notes(_place(files))]}


def as_predicted(run: Run, predictions: Predictions) -> Predictions:
    """Return the predictions of a run's model as the run gives them: calibrated, with all negatives made up for."""
    kept = run.config.negatives_kept or {}
    return calibrated(calibrated(predictions, run.calibrators), with_all_negatives(kept))


def prediction_columns(run: Run) -> tuple[str, ...]:
    """Return the names of the columns of predictions: a task's name, or `task:class` for several classes."""
    names: list[str] = []
    for task in run.tasks:
        classes = run.encoder.classes.get(task.name, ())
        names += [f"{task.name}:{one}" for one in classes] if task.kind == "multiclass" else [task.name]
    return tuple(names)


def _check_frame(frame: object, caller: str) -> None:
    if not isinstance(frame, pl.DataFrame):
        raise InputError(f"{caller} got a {type(frame).__name__}; expected a polars DataFrame")


def _check_out(out: Path, files: Sequence[Path]) -> None:
    if kind(out) not in (".csv", ".tsv", *PARQUET) or out.suffix.lower() != kind(out):
        raise InputError(f"--out {out} is of an unknown kind; expected a name that ends in .csv, .tsv or .parquet")
    if any(out.exists() and out.samefile(file) for file in files):
        raise InputError(f"--out {out} is the table itself; choose another name")


def _columns(run: Run, files: Sequence[Path], keep: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """Return the columns to read, and notes on features that have none."""
    there = columns_of(files, run.encoder.table_schema.file)
    where = _place(files)
    notes = check_columns(run, there, where)
    if absent := [name for name in keep if name not in there]:
        raise InputError(
            f"--keep {absent[0]!r}: {where} has no such column{nearest(absent[0], there)}; it has {listed(there)}"
        )
    if both := set(keep) & set(prediction_columns(run)):
        raise InputError(
            f"--keep {sorted(both)[0]!r} has the name of a task, whose column holds predictions; rename it"
        )
    features = [name for name in run.encoder.inputs if name in there]
    return [*features, *(name for name in keep if name not in features)], notes


def check_columns(run: Run, there: Sequence[str], where: str) -> tuple[str, ...]:
    """Return notes on features that have no column; raise an InputError if none has one."""
    features = run.encoder.inputs
    absent = [name for name in features if name not in there]
    if len(absent) == len(features):
        raise InputError(f"{where} has none of the columns {listed(features)}; it has {listed(there)}")
    others = [name for name in there if name not in run.encoder.table_schema.columns]
    unused = f" (not used: {listed(others)})" if others else ""
    return tuple(
        f"{where} has no column {name!r}{nearest(name, others) or unused}; it counts as missing in every row"
        for name in absent
    )


def _check_labels(run: Run, there: Sequence[str], where: str) -> None:
    if not any(name in there for name in run.encoder.table_schema.labels):
        names = ", ".join(map(repr, run.encoder.table_schema.labels))
        raise InputError(f"{where} has no label; expected at least one of the columns {names}")


def _place(files: Sequence[Path]) -> str:
    return str(files[0]) if len(files) == 1 else f"{files[0]} and {len(files) - 1} more"


class Observer(Protocol):
    """Somebody who looks at rows as they are encoded for predictions."""

    def look_at(self, chunk: Chunk, encoded: Encoded) -> None:
        """Take note of some rows."""


class _UnseenColumns:
    """The columns of a table that hold no value training has seen, found chunk by chunk."""

    def __init__(self, run: Run, columns: Sequence[str]) -> None:
        self.first: dict[str, str | None] = {name: None for name in run.encoder.vocabularies if name in columns}
        """Columns without a known value so far, each with its first value."""

    def look_at(self, chunk: Chunk, encoded: Encoded) -> None:
        for name, first in list(self.first.items()):
            # Of a known value that is rare, the id is 0.
            known = encoded.rows - encoded.missing[name] - encoded.unknown[name]
            if known > 0 or (encoded.columns[name] > 0).any():
                del self.first[name]
            elif first is None and encoded.unknown[name]:
                self.first[name] = str(chunk.frame[name].drop_nulls().first())

    def notes(self, where: str) -> tuple[str, ...]:
        """Return a note on each such column, but none on a column whose values are all missing: that is no mistake."""
        return tuple(
            f"{where}: training has seen no value of the column {name!r} (the first is {first!r}); "
            "it counts as unknown in every row"
            for name, first in self.first.items()
            if first is not None
        )


def _minibatches(run: Run, chunk: Chunk, batch: int, observer: Observer | None, *, labels: bool) -> Iterator[Minibatch]:
    encoder = run.encoder
    encoded = encoder.encode_frame(chunk.frame, chunk.origin, labels=labels)
    if observer is not None:
        observer.look_at(chunk, encoded)
    return MemoryPart(examples(encoded.columns, encoder), tuple(encoder.table_schema.labels)).batches(batch)


def predict_chunk(run: Run, chunk: Chunk, *, batch: int = BATCH, observer: Observer | None = None) -> pl.DataFrame:
    """Return one row of predictions for each row of a chunk; what `check_columns` refuses must not come here.

    Args:
        run: a trained model.
        chunk: rows of a table.
        batch: rows that go through the model at once.
        observer: is shown the rows.
    """
    predicted = predict_batches(run.model, _minibatches(run, chunk, batch, observer, labels=False), run.device)
    assert predicted is not None  # nothing stops it
    predicted = as_predicted(run, predicted)
    names = iter(prediction_columns(run))
    return pl.DataFrame(
        [
            pl.Series(next(names), np.ascontiguousarray(column.numpy()), dtype=pl.Float64)
            for task in run.tasks
            for column in predicted.predictions[task.name].reshape(-1, task.outputs).unbind(1)
        ]
    )


def _metrics(
    run: Run,
    chunks: Iterator[Chunk],
    batch: int,
    told: Callable[[int], object] = lambda rows: None,
    unseen: _UnseenColumns | None = None,
    options: EvaluationOptions = _USUAL,
) -> dict[str, Any]:
    rows, groups = 0, []

    def minibatches() -> Iterator[Minibatch]:
        nonlocal rows
        for chunk in chunks:
            yield from _minibatches(run, chunk, batch, unseen, labels=True)
            if options.group is not None:  # 64 bits tell them apart, in less room than their text
                values = text(chunk.frame[options.group], run.encoder.table_schema.file.missing)
                groups.append(values.hash(0).to_numpy())
            rows += len(chunk.frame)
            told(rows)

    predicted = predict_batches(run.model, minibatches(), run.device)
    if not rows:
        raise InputError("the table has no rows, so there is nothing to evaluate")
    assert predicted is not None  # nothing stops it
    predicted = as_predicted(run, predicted) if options.all_negatives else calibrated(predicted, run.calibrators)
    metrics = {"rows": rows, **predicted.metrics(weighted=run.config.weighted_metrics), "threshold": options.threshold}
    weights = weights_by_task(run.tasks, predicted.weights if run.config.weighted_metrics else None)
    for task in run.tasks:
        metrics["tasks"][task.name] |= more_metrics(
            task,
            predicted.labels[task.name],
            predicted.predictions[task.name],
            weights[task.name],
            threshold=options.threshold,
            groups=np.concatenate(groups) if groups else None,
        )
    return metrics


def _empty(run: Run, files: Sequence[Path], keep: Sequence[str]) -> pl.DataFrame:
    """Return a table without rows that has the columns that will be written."""
    if keep and kind(files[0]) in PARQUET:
        kept = polars(pq.read_schema(files[0]).empty_table().select(list(keep)))
    else:
        kept = pl.DataFrame(schema=dict.fromkeys(keep, pl.String))
    predictions = pl.DataFrame(schema=dict.fromkeys(prediction_columns(run), pl.Float64))
    return pl.concat([kept, predictions], how="horizontal") if keep else predictions


class _Parquet:
    def __init__(self, path: Path, empty: pl.DataFrame) -> None:
        self.writer = pq.ParquetWriter(path, arrow(empty).schema, compression="zstd", compression_level=1)

    def write(self, frame: pl.DataFrame) -> None:
        if len(frame):
            self.writer.write_table(arrow(frame).cast(self.writer.schema))

    def close(self) -> None:
        self.writer.close()


class _Text:
    def __init__(self, path: Path, empty: pl.DataFrame, separator: str) -> None:
        self.file, self.separator = path.open("wb"), separator
        empty.write_csv(self.file, separator=separator)  # the header

    def write(self, frame: pl.DataFrame) -> None:
        frame.write_csv(self.file, include_header=False, separator=self.separator)

    def close(self) -> None:
        self.file.close()


def _writer(path: Path, out: Path, empty: pl.DataFrame) -> _Parquet | _Text:
    """Return a writer to ``path`` in the format that the name ``out`` asks for, of tables like ``empty``."""
    if kind(out) in PARQUET:
        return _Parquet(path, empty)
    assert kind(out) in TEXT
    return _Text(path, empty, "\t" if kind(out) == ".tsv" else ",")
