"""Prepare raw tables: split, fit on the training rows, encode, shuffle, and write the prepared folder."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from shutil import rmtree
from typing import Any

import numpy as np
import polars as pl

from gdod._files import digest
from gdod.data.preparing.bins import fit_bins
from gdod.data.preparing.bring_forward import Previous, bring_forward
from gdod.data.preparing.cache import VERSION
from gdod.data.preparing.counts import FILE, Counts, StoredCounts
from gdod.data.preparing.cross_validation import assign_fold
from gdod.data.preparing.encoder import Encoded, Encoder
from gdod.data.preparing.feature_options import FeatureOptions
from gdod.data.preparing.fit import fit
from gdod.data.preparing.fit_statistics import TrainingStatistics, fit_statistics
from gdod.data.preparing.fold import Fold
from gdod.data.preparing.shuffle import Shuffler
from gdod.data.preparing.split import PARTS, TEST, TRAIN, VALIDATION, Assigned, Parts, assign
from gdod.data.preparing.stored import PartWriter
from gdod.data.preparing.vector_options import VectorOptions
from gdod.data.preparing.vectors import Vectors, read_all
from gdod.data.tables.raw_table import RawTable
from gdod.data.tables.table_schema import NumericColumn, SequenceColumn, TableSchema
from gdod.errors import InputError


@dataclass(frozen=True)
class RawParts:
    """The tables to prepare. A part without a table of its own is cut off ``train``."""

    train: RawTable
    validation: RawTable | None
    test: RawTable | None
    schema: TableSchema
    notes: tuple[str, ...] = ()
    hashes: tuple[str, ...] = ()
    """Of the files, or of the table in memory, that training rows come from."""

    def training_only(self) -> "RawParts":
        """Return the parts without the test table, if there is one, and a note on that: folds are cut off training."""
        if self.test is None:
            return self
        note = "the folds are those of the training table; the test table is not looked at"
        return replace(self, test=None, notes=(*self.notes, note))


def part_file(part: str) -> str:
    return f"{part}-00000.parquet"


def vectors_file(number: int) -> str:
    """Return the name of the file with the vectors of the ids of one of `Encoder.vectors`, in their order."""
    return f"vectors-{number:05}.npy"


def write_vectors(folder: Path, known: Mapping[str, Vectors], encoder: Encoder) -> Iterator[str]:
    """Write the vectors of the ids of each column, and yield a sentence on how many there are."""
    sizes = {field.name: field.cardinality for field in encoder.model_schema.categorical}
    for number, (name, vectors) in enumerate(known.items()):
        table = vectors.by_id(encoder.vocabularies[name], sizes[name])  # [cardinality + 1, p]
        np.save(folder / vectors_file(number), table)
        count = int(np.isfinite(table[:, 0]).sum())
        yield f"{name}: vectors of {vectors.size} numbers for {count:,} of {sizes[name]:,} values"


def prepare_into(
    folder: Path,
    name: str,
    fingerprint: str,
    raw: RawParts,
    options: FeatureOptions | None = None,
    vectors: Mapping[str, VectorOptions] | None = None,
    fold: Fold | None = None,
    whole: str | None = None,
    previous: Previous | None = None,
) -> None:
    """Write the three parts, the encoder's files, vectors and, last, about.json into the folder.

    Args:
        folder: where to.
        name: what the data is called.
        fingerprint: the hash of all that the prepared data depends on.
        raw: the tables.
        options: what is made of the columns besides ids and scaled numbers; None: nothing.
        vectors: the files with vectors of values, by column.
        fold: the fold of the training table that is the test part; None: the test part is as the schema says.
        whole: the fingerprint that the data would have without a fold, which all folds have in common.
        previous: the encoder that is brought forward to this table, in place of a new one.
    """
    if not raw.schema.labels:
        raise InputError("the schema has no label; give at least one column `type: label`")
    known = read_all(vectors or {}, raw.schema)
    raw = raw if fold is None else raw.training_only()
    parts, notes = _assign(raw, name, fold)
    if previous is not None:
        encoder, training, more = bring_forward(raw.train, raw.schema, parts, previous, options)
    else:
        encoder, training, more = _fitted(raw, parts, options, known)
    notes += (*more, *write_vectors(folder, known, encoder))
    encoder = replace(encoder, counts=_written(encoder, raw.hashes, folder))
    about = [_About() for _ in PARTS]
    with _Writers(folder, int((parts == TRAIN).sum()), encoder) as writers:
        _encode(raw.train, parts, encoder, writers, about, training)
        for part, table in ((VALIDATION, raw.validation), (TEST, raw.test)):
            if table is not None:
                _encode(table, np.full(table.rows, part, np.uint8), encoder, writers, about)
    if options is not None and options.bins and previous is None:
        columns = tuple(encoder.extended_schema.of(NumericColumn))
        bins = fit_bins(folder / part_file("train"), columns, encoder.added_names, options)
        encoder = replace(encoder, added=replace(encoder.added, bins=bins))  # type: ignore[type-var]
    encoder.save(folder)
    files = [path for path in sorted(folder.iterdir()) if path.is_file()]
    described = {
        "version": VERSION,
        "name": name,
        "fingerprint": fingerprint,
        "fold": None if fold is None else fold.model_dump(),
        "whole": whole,
        "rows": {part: about[at].rows for at, part in enumerate(PARTS)},
        "parts": {part: about[at].to_json() for at, part in enumerate(PARTS)},
        "notes": [*raw.notes, *notes, *_notes(encoder, about)],
        "files": {path.name: path.stat().st_size for path in files},
        "checksums": {path.name: digest(path) for path in files},
    }
    (folder / "about.json").write_text(json.dumps(described, indent=1, ensure_ascii=False), "utf-8")


def _written(encoder: Encoder, hashes: tuple[str, ...], folder: Path) -> StoredCounts:
    """Write what was counted, of the tables with these hashes, so that memory need not hold it any longer."""
    assert isinstance(encoder.counts, Counts)
    path = folder / FILE
    return StoredCounts(path, encoder.counts.with_tables(hashes).write(path))


def _fitted(
    raw: RawParts, parts: Parts, options: FeatureOptions | None, vectors: Mapping[str, Vectors]
) -> tuple[Encoder, TrainingStatistics | None, tuple[str, ...]]:
    """Return a new encoder, the statistics of the training rows if there are any, and notes."""
    encoder = fit(raw.train, raw.schema, parts, options, vectors)
    training: TrainingStatistics | None = None
    notes: tuple[str, ...] = ()
    if encoder.added is not None and encoder.added.times:
        made = ", ".join(name for each in encoder.added.times for name in each.made)
        notes += (f"made of times, in UTC: {made}",)
    if options is not None and options.statistics:
        encoder, training, more = fit_statistics(raw.train, parts, encoder, options)
        notes += more
    return encoder, training, notes


def _assign(raw: RawParts, source: str, fold: Fold | None) -> Assigned:
    """Return the part of each row of ``raw.train``; raise if a part has no rows that should have some."""
    split = raw.schema.split
    wanted = {
        "test": 0.0 if raw.test is not None or isinstance(split.test, str) else split.test,
        "validation": 0.0 if raw.validation is not None or isinstance(split.validation, str) else split.validation,
    }
    if not raw.train.rows:
        raise InputError(f"{source}: the table has no rows; {_ROWS}")
    missing = raw.schema.file.missing
    if fold is None:
        assigned = assign(raw.train, split, missing, **wanted)
    else:
        wanted["test"] = 1 / fold.of
        assigned = assign_fold(raw.train, split, missing, fold, validation=wanted["validation"])
    sizes = np.bincount(assigned.parts, minlength=3)
    for part, name in enumerate(PARTS):
        if not sizes[part] and (part == TRAIN or wanted[name] > 0):
            few = f", and {split.column!r} has too few different values" if split.column else ""
            raise InputError(
                f"the split by {split.by} leaves no row for {name}: the table has {raw.train.rows:,} rows"
                f"{few}; change the shares or the kind of split in the schema"
            )
    for name, table in (("validation", raw.validation), ("test", raw.test)):
        if table is not None and not table.rows:
            file = getattr(split, name)
            where = file if isinstance(file, str) else source
            raise InputError(f"{where}: the {name} table has no rows; {_ROWS}")
    return assigned


_ROWS = "expected at least one besides the names of the columns; is the file cut off?"


class _Writers:
    """The writers of the three parts; training rows are shuffled on the way."""

    def __init__(self, folder: Path, training_rows: int, encoder: Encoder) -> None:
        self._scratch = folder / "shuffle"
        self._scratch.mkdir()
        self._parts = [PartWriter(folder / part_file(part)) for part in PARTS]
        self._shuffler = Shuffler(self._scratch, training_rows, row_bytes(encoder), encoder.table_schema.split.seed)

    def write(self, part: int, frame: pl.DataFrame) -> None:
        (self._shuffler if part == TRAIN else self._parts[part]).write(frame)

    def __enter__(self) -> "_Writers":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._shuffler.finish(self._parts[TRAIN])
        for writer in self._parts:
            writer.close()
        rmtree(self._scratch)


def row_bytes(encoder: Encoder) -> int:
    """Return the bytes that an example takes in memory."""
    fields = len(encoder.extended_schema.features) + len(encoder.added_names)
    return 4 * (fields + len(encoder.table_schema.labels) + 1 + sum(encoder.longest.values()))


def _encode(
    table: RawTable,
    parts: Parts,
    encoder: Encoder,
    writers: _Writers,
    about: list["_About"],
    training: TrainingStatistics | None = None,
) -> None:
    first = 0
    for chunk in table.chunks(encoder.table_schema.needed):
        here = parts[first : first + len(chunk.frame)]
        for part in range(len(PARTS)):
            rows = np.flatnonzero(here == part)
            # An empty part gets its columns all the same, so that it can be opened.
            look_up = training.look_up(first + rows) if training is not None and part == TRAIN else None
            encoded = encoder.encode_frame(chunk.frame[rows], chunk.origin.of(rows), look_up=look_up)
            about[part].add(encoded, encoder)
            writers.write(part, encoded.frame)
        first += len(chunk.frame)


@dataclass
class _About:
    """The counts of a part that about.json tells, by column."""

    rows: int = 0
    missing: dict[str, int] = field(default_factory=dict)
    unknown: dict[str, int] = field(default_factory=dict)
    values: dict[str, int] = field(default_factory=dict)  # the number of values in sequences, known or not
    labelled: dict[str, int] = field(default_factory=dict)
    sums: dict[str, float] = field(default_factory=dict)

    def add(self, encoded: Encoded, encoder: Encoder) -> None:
        self.rows += encoded.rows
        for total, counts in ((self.missing, encoded.missing), (self.unknown, encoded.unknown)):
            for name, count in counts.items():
                total[name] = total.get(name, 0) + count
        for name in encoder.table_schema.of(SequenceColumn):
            known = int(np.count_nonzero(encoded.columns[name]))
            self.values[name] = self.values.get(name, 0) + known + encoded.unknown[name]
        for name in encoder.table_schema.labels:
            labels = encoded.frame[name].drop_nulls()
            self.labelled[name] = self.labelled.get(name, 0) + len(labels)
            self.sums[name] = self.sums.get(name, 0.0) + float(labels.sum())

    def to_json(self) -> dict[str, Any]:
        means = {name: self.sums[name] / count if count else None for name, count in self.labelled.items()}
        labels = {name: {"labelled": self.labelled[name], "mean": means[name]} for name in self.labelled}
        return {"rows": self.rows, "missing": self.missing, "unknown": self.unknown, "labels": labels}


def _notes(encoder: Encoder, about: list[_About]) -> list[str]:
    """Return notes on missing and unknown values, and on parts that no AUC can be worked out for."""
    notes = []
    for at, part in enumerate(PARTS):
        # A label with a condition is missing by design.
        conditional = {name for name, label in encoder.table_schema.labels.items() if label.when}
        gaps = {name: count for name, count in about[at].missing.items() if name not in conditional}
        if missing := _shares(gaps, about[at].rows, {}):
            notes.append(f"{part}: missing values in {missing}")
        if unknown := _shares(about[at].unknown, about[at].rows, about[at].values):
            rarely = any(getattr(column, "rare", 1) > 1 for column in encoder.table_schema.columns.values())
            unseen = f"values that training has not seen{', or too rarely,' if rarely else ''}"
            notes.append(f"{part}: {'rare values' if at == TRAIN else unseen} in {unknown}")
    for name, label in encoder.table_schema.labels.items():
        for at in (VALIDATION, TEST):
            labelled = about[at].labelled.get(name, 0)
            if about[at].rows and not labelled:
                notes.append(f"{PARTS[at]}: the label {name!r} is missing in every row")
            elif labelled and label.kind == "binary" and about[at].sums[name] in (0, labelled):
                notes.append(f"{PARTS[at]}: the label {name!r} has one class only, so it has no AUC there")
    return notes


def _shares(counts: Mapping[str, int], rows: int, values: Mapping[str, int]) -> str:
    """Return counts and their shares in words: shares of ``values`` for sequence columns, otherwise of the rows."""
    names = sorted((name for name, count in counts.items() if count), key=lambda name: (-counts[name], name))
    shares = [
        f"{name} {counts[name]:,} ({counts[name] / values.get(name, rows):.1%}{' of its values' * (name in values)})"
        for name in names[:8]
    ]
    return ", ".join(shares) + (f" and {len(names) - 8} more columns" if len(names) > 8 else "")
