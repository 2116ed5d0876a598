"""Load training data from a table or a data set with a name: prepared once, then taken from the cache."""

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import rmtree
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gdod._checks import listed
from gdod._files import read_json
from gdod.data.dataset import Dataset
from gdod.data.inspection import inspect
from gdod.data.parts.part import MemoryPart, Part
from gdod.data.preparing.bring_forward import Previous
from gdod.data.preparing.cache import (
    FEATURES_VERSION,
    build_folder,
    cache_folder,
    fingerprint,
    hash_files,
    hash_frame,
    is_whole,
)
from gdod.data.preparing.encoder import Encoder
from gdod.data.preparing.feature_options import FeatureOptions
from gdod.data.preparing.fold import Fold
from gdod.data.preparing.pipeline import RawParts, part_file, prepare_into, row_bytes, vectors_file
from gdod.data.preparing.split import PARTS
from gdod.data.preparing.stored import examples
from gdod.data.preparing.vector_options import VectorOptions
from gdod.data.preparing.vectors import fingerprint_values
from gdod.data.sets import SOURCES
from gdod.data.sets.source import Source
from gdod.data.stream import StreamPart
from gdod.data.tables.files import base_folder, find_files
from gdod.data.tables.frames import AnyFrame, as_frame, chosen, is_frame, polars
from gdod.data.tables.raw_table import FrameTable, file_table, frame_table
from gdod.data.tables.read import columns_of
from gdod.data.tables.table_schema import NumericColumn, TableSchema
from gdod.errors import InputError

# Larger parts are read from disk while they are used.
MEMORY_BYTES = 2 << 30
_LABELS_BESIDE_SCHEMA = "labels=... is for a schema that is inferred; this one is given, so mark them there"
_PREPARED = "prepared data, as `gdod data prepare` makes it"


@dataclass(frozen=True)
class _Request:
    """Data that is to be prepared unless the cache has its fingerprint."""

    name: str
    whole: str
    """A hash of what the data depends on, but for the fold."""
    features: FeatureOptions | None
    vectors: Mapping[str, VectorOptions]
    read: Callable[[Path], RawParts]
    """A function that reads the raw tables; it may keep copies of them in the given folder for a while."""
    fold: Fold | None = None

    previous: Previous | None = None

    @property
    def fingerprint(self) -> str:
        return self.whole if self.fold is None else fingerprint({"whole": self.whole, "fold": self.fold.model_dump()})


def load(
    source: str | Path | AnyFrame,
    *,
    schema: str | Path | TableSchema | None = None,
    labels: Iterable[str] = (),
    validation: AnyFrame | None = None,
    test: AnyFrame | float | None = None,
    folder: str | Path | None = None,
    cache: str | Path | None = None,
    stream: bool | None = None,
    features: FeatureOptions | None = None,
    vectors: Mapping[str, VectorOptions] | None = None,
    fold: Fold | None = None,
    previous: Previous | None = None,
    **options: object,
) -> Dataset:
    """Return training data from a table of your own, or from a data set with a name.

        data = gdod.data.load("ads.csv", schema="ads.yaml")
        data = gdod.data.load("census", folder="downloads/census")
        data = gdod.data.load(frame, labels=["click", "buy"])

    The first time it is prepared and put into the cache; after that it is taken from there, until the
    content of a file, the schema or an option changes.

    Args:
        source: a file, a folder of parts, a pattern such as "logs/*.csv.gz", a name (see `SOURCES`), or a table in
            memory: a polars or pandas DataFrame, or a pyarrow Table.
        schema: what the columns are: a YAML or TOML file, or a `TableSchema`. Without it, it is inferred
            as `gdod data inspect` shows it.
        labels: for an inferred schema, the columns to predict.
        validation: for a table in memory, a table for the validation part; None: it is cut off, as the schema says.
        test: the same for the test part. Of a data set with a name: the share of the rows, if it has that option.
        folder: where the files of a data set with a name are.
        cache: the folder for prepared data. Default: $GDOD_CACHE or ~/.cache/gdod.
        stream: read from disk while it is used instead of from memory. None: if it is large.
        features: what is made of the columns besides ids and scaled numbers: target statistics, bins, ...; None:
            nothing.
        vectors: files with vectors of the values of categorical columns, by the name of the column.
        fold: the fold of a cross-validation that is the test part, such as Fold(number=1, of=5); None: the test part is
            as the schema says. A test table of its own is not looked at then.
        previous: the encoder of an earlier run that is brought forward to this table, with the schema of its own; None:
            a new one is fitted.
        options: the options of a data set with a name.
    """
    prepared = prepare(
        source,
        schema=schema,
        labels=labels,
        validation=validation,
        test=test,
        folder=folder,
        cache=cache,
        features=features,
        vectors=vectors,
        fold=fold,
        previous=previous,
        **options,
    )
    return open_prepared(prepared, stream=stream)


def prepare(
    source: str | Path | AnyFrame,
    *,
    schema: str | Path | TableSchema | None = None,
    labels: Iterable[str] = (),
    validation: AnyFrame | None = None,
    test: AnyFrame | float | None = None,
    folder: str | Path | None = None,
    cache: str | Path | None = None,
    features: FeatureOptions | None = None,
    vectors: Mapping[str, VectorOptions] | None = None,
    fold: Fold | None = None,
    previous: Previous | None = None,
    **options: object,
) -> Path:
    """Return the folder with the prepared data, made now if it is not in the cache. Arguments as for `load`."""
    if not isinstance(source, str | Path) and not is_frame(source):
        raise InputError(
            f"source is a {type(source).__name__}; expected a path, a pattern, a data set's name, or a polars, pandas "
            "or pyarrow table"
        )
    named = SOURCES.get(source) if isinstance(source, str) else None  # a Path, or "./ads", is a file of that name
    if named is not None and test is not None and not is_frame(test):
        options, test = {"test": test, **options}, None
    parts = {part: table for part, table in (("validation", validation), ("test", test)) if table is not None}
    if parts and not is_frame(source):
        raise InputError(
            f"{next(iter(parts))}=... is for a table in memory; for files, name it in the split of the schema"
        )
    if features is not None and not isinstance(features, FeatureOptions):
        raise InputError(f"features is a {type(features).__name__}; expected FeatureOptions(...), or None for none")
    if fold is not None and not isinstance(fold, Fold):
        raise InputError(f"fold is a {type(fold).__name__}; expected Fold(number=1, of=5), say, or None for none")
    root = cache_folder(cache)
    if schema is not None and not isinstance(schema, TableSchema):
        schema = TableSchema.read(schema)
    if previous is not None:
        schema = _updated(schema, previous, "the schema")
    if named is not None:
        if labels := tuple(labels):
            raise InputError(f"labels={labels!r} are given, but the data set {source!r} has its own; leave them out")
        request = _named(named, schema, None if folder is None else Path(folder), options, features, previous)
    else:
        if options:
            raise InputError(f"the option {next(iter(options))!r} is unknown: {_said(source)} is a table of your own")
        if folder is not None:
            raise InputError(
                f"folder={str(folder)!r} is for a data set with a name, and {_said(source)} is none; leave it out, and "
                "give the path of the table as a whole"
            )
        if is_frame(source):
            request = _frames({"train": source, **parts}, schema, tuple(labels), features, previous)
        else:
            request = _files(source, schema, tuple(labels), root, features, previous)
    if previous is not None and vectors:
        raise InputError(
            f"vectors of {listed(vectors)} and an update are given together; an update keeps the vectors that its run "
            "began with, and values that are new learn their own. Leave the vectors out, or train anew without --from, "
            "with a file that has those of new values"
        )
    if previous is not None and fold is not None:
        raise InputError("a fold and an update are given together; expected one of them, so train anew without --from")
    if vectors:
        values = fingerprint({"data": request.whole, **fingerprint_values(vectors, root)})
        request = replace(request, whole=values, vectors=vectors)
    request = replace(request, fold=fold)
    target = root / "prepared" / request.fingerprint
    if not is_whole(target):
        build_folder(target, lambda work: _build(work, request))
    with suppress(OSError):  # a cache that can only be read; `gdod data clean` goes by this time
        os.utime(target / "about.json")
    return target


def open_prepared(folder: Path, *, stream: bool | None = None) -> Dataset:
    """Return the data set in a folder that `prepare` has made. ``stream`` as for `load`."""
    about = read_about(folder)
    encoder = Encoder.load(folder, _PREPARED)
    if stream is None:
        stream = sum(about["rows"].values()) * row_bytes(encoder) > MEMORY_BYTES
    train, validation, test = (_part(folder / part_file(part), encoder, stream) for part in PARTS)
    places = {name: folder / vectors_file(number) for number, name in enumerate(encoder.vectors)}
    # What an update has prepared has no such files: its model goes on with the vectors that it holds.
    vectors = {name: np.load(path, mmap_mode="r") for name, path in places.items() if path.name in about["files"]}
    return Dataset(
        name=about["name"],
        schema=encoder.model_schema,
        tasks=encoder.tasks,
        train=train,
        validation=validation,
        test=test,
        fingerprint=about["fingerprint"],
        encoder=encoder,
        vectors=vectors,
        notes=(*about["notes"], *_reading_notes(encoder.table_schema)),
        fold=None if about.get("fold") is None else Fold(**about["fold"]),
        whole=about.get("whole"),
    )


def _reading_notes(schema: TableSchema) -> list[str]:
    """Return a sentence for each label of words, on which of them counts as 1, and for texts that mean "no number"."""
    labels = [
        f"the label {name!r} is 1 where it is {' or '.join(map(repr, label.positive))}, and 0 for other values"
        for name, label in schema.labels.items()
        if label.positive is not None
    ]
    numbers: dict[str, NumericColumn] = schema.of(NumericColumn)
    return labels + [
        f"column {name!r} counts as missing where it is {listed(column.missing)}"
        for name, column in numbers.items()
        if column.missing
    ]


def read_about(folder: Path) -> dict[str, Any]:
    """Return about.json of a folder of prepared data: rows, missing values, label rates, notes."""
    return read_json(folder / "about.json", _PREPARED)


def _part(path: Path, encoder: Encoder, stream: bool) -> Part:
    try:
        if stream:
            part = StreamPart(path, encoder)
            len(part)
            return part
        frame = polars(pq.read_table(path, use_threads=False))
    except MemoryError as error:
        raise InputError(f"{path} does not fit into memory; read it from disk instead, with stream=True") from error
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{path} is damaged ({error}); remove {path.parent}, it will be made again") from error
    return MemoryPart(examples(frame, encoder), tuple(encoder.table_schema.labels))


def _build(work: Path, request: _Request) -> None:
    scratch = work / "raw"
    scratch.mkdir()
    prepare_into(
        work,
        request.name,
        request.fingerprint,
        request.read(scratch),
        request.features,
        request.vectors,
        fold=request.fold,
        whole=request.whole,
        previous=request.previous,
    )
    rmtree(scratch)


def _named(
    source: Source,
    schema: TableSchema | None,
    folder: Path | None,
    options: dict[str, object],
    features: FeatureOptions | None,
    previous: Previous | None = None,
) -> _Request:
    content = source.fingerprint(folder, options)
    hashes = (hashlib.sha256(content.encode()).hexdigest(),)
    if previous is not None:
        previous.check_schema(source.schema(options), f"the schema of {source.name}")
        previous.check_new({source.name: hashes[0]})

    def read(scratch: Path) -> RawParts:
        raw = source.read(folder, options)
        chosen = schema or raw.schema
        for part, frame in (("train", raw.train), ("test", raw.test)):
            if frame is not None:
                chosen.check_columns(frame.collect_schema().names(), f"the {part} table of {source.name}")
        train = frame_table(raw.train, source.name, chosen.needed, scratch / "train.parquet")
        test = None if raw.test is None else frame_table(raw.test, f"{source.name} (test)", chosen.needed, scratch)
        return RawParts(train, None, test, chosen, raw.notes, hashes)

    values = {
        "source": source.name,
        "input": content,
        "schema": None if schema is None else schema.to_json(),
    }
    whole = _fingerprint(values, schema, features, previous)
    return _Request(source.name, whole, features, {}, read, previous=previous)


def find_schema(
    source: str | Path,
    *,
    schema: str | Path | TableSchema | None = None,
    labels: Iterable[str] = (),
    folder: str | Path | None = None,
    options: Mapping[str, object] | None = None,
) -> TableSchema:
    """Return the schema by which `load` would read a source; raise if files or columns that it needs are not there.

    Nothing is prepared. Arguments as for `load`; ``options``: those of a data set with a name.
    """
    if schema is not None and not isinstance(schema, TableSchema):
        schema = TableSchema.read(schema)
    named = SOURCES.get(source) if isinstance(source, str) else None
    if named is None:
        return _located(source, schema, tuple(labels))[1]
    place, options = None if folder is None else Path(folder), options or {}
    if not named.is_here(place):
        named.fingerprint(place, options)  # says which files are missing, and how to get them
    return schema or named.schema(options)


def _located(
    source: str | Path, schema: TableSchema | None, labels: tuple[str, ...]
) -> tuple[dict[str, tuple[Path, ...]], TableSchema]:
    """Return the files of each part of a table, and its schema, all of whose columns they have."""
    files = {"train": _find(source, SOURCES)}
    if schema is None:
        schema = inspect(source, labels=labels).schema()
    elif labels:
        raise InputError(_LABELS_BESIDE_SCHEMA)
    chosen = schema
    base = base_folder(source)
    for part in ("validation", "test"):
        given = getattr(chosen.split, part)
        if isinstance(given, str):
            if not (base / given).resolve().is_relative_to(base.resolve()):
                raise InputError(
                    f"the schema's split has {part}={given!r}, which leads out of {base}, the folder of the data; "
                    "put the file there, or name all files with a pattern, such as 'logs/*/*.csv', and the "
                    "part relative to the folder before its first '*'"
                )
            files[part] = find_files(base / given)
            taken = {path.resolve() for path in files[part]}
            if twice := taken & {path.resolve() for path in files.get("validation", ()) if part == "test"}:
                raise InputError(f"{min(twice)} is in both `validation` and `test` of the schema's split; name others")
            files["train"] = tuple(path for path in files["train"] if path.resolve() not in taken)
    if not files["train"]:
        raise InputError(f"{source}: no file is left for training; `test` and `validation` take them all")
    for paths in files.values():
        chosen.check_columns(columns_of(paths, chosen.file), str(paths[0]))
    return files, chosen


def _files(
    source: str | Path,
    schema: TableSchema | None,
    labels: tuple[str, ...],
    cache: Path,
    features: FeatureOptions | None,
    previous: Previous | None = None,
) -> _Request:
    files, chosen = _located(source, schema, labels)
    hashes = {part: hash_files(paths, cache) for part, paths in files.items()}
    if previous is not None:
        previous.check_new(dict(zip(map(str, files["train"]), hashes["train"], strict=True)))

    def read(scratch: Path) -> RawParts:
        tables = {
            part: file_table(paths, chosen.file, chosen.needed, scratch / f"{part}.parquet")
            for part, paths in files.items()
        }
        parts = tables["train"], tables.get("validation"), tables.get("test")
        return RawParts(*parts, chosen, hashes=tuple(hashes["train"]))

    values: dict[str, Any] = {
        "files": hashes,
        # A text file's kind is in its name, not in its content.
        "names": {part: [path.suffixes for path in paths] for part, paths in files.items()},
        "schema": chosen.to_json(),
    }
    whole = _fingerprint(values, chosen, features, previous)
    return _Request(Path(source).name, whole, features, {}, read, previous=previous)


def _frames(
    tables: Mapping[str, AnyFrame],
    schema: TableSchema | None,
    labels: tuple[str, ...],
    features: FeatureOptions | None,
    previous: Previous | None = None,
) -> _Request:
    """Return the request for tables in memory, by the name of their part."""
    frames = {part: as_frame(table) for part, table in tables.items()}
    if schema is None:
        schema = inspect(frames["train"], labels=labels).schema()
    elif labels:
        raise InputError(_LABELS_BESIDE_SCHEMA)
    table = schema
    for part in ("validation", "test"):
        if isinstance(getattr(table.split, part), str) and part not in frames:
            raise InputError(
                f"the schema's split has {part}={getattr(table.split, part)!r}, a file, and the table is in memory; "
                f"give that part as a table, too: {part}=..."
            )
    for part, frame in frames.items():
        table.check_columns(frame.columns, "the table" if part == "train" else f"the {part} table")
    needed = {part: chosen(frame, table.needed) for part, frame in frames.items()}
    hashes = {part: hash_frame(frame) for part, frame in needed.items()}
    if previous is not None:
        previous.check_new({"the table": hashes["train"]})

    def read(scratch: Path) -> RawParts:
        raw = {
            part: FrameTable(frame, "the table" if part == "train" else f"the {part} table")
            for part, frame in needed.items()
        }
        return RawParts(raw["train"], raw.get("validation"), raw.get("test"), table, hashes=(hashes["train"],))

    values = {"frames": hashes, "schema": table.to_json()}
    return _Request("frame", _fingerprint(values, table, features, previous), features, {}, read, previous=previous)


def _updated(given: TableSchema | None, previous: Previous, where: str) -> TableSchema:
    """Return the schema by which a table is read whose rows update an earlier run; raise if another one is given."""
    if given is not None:
        previous.check_schema(given, where)
    return previous.schema


def _said(source: object) -> str:
    return repr(str(source)) if isinstance(source, str | Path) else f"a {type(source).__name__}"


def _fingerprint(
    values: dict[str, Any],
    schema: TableSchema | None,
    features: FeatureOptions | None,
    previous: Previous | None,
) -> str:
    """Return the fingerprint of values and options; without options it is that of the values alone."""
    if previous is not None:
        values = {**values, "previous": previous.fingerprint}
    if features is None:
        return fingerprint(values)
    # A `rare` that the schema gives is not what the options say, even if it is the default.
    columns = {} if schema is None else schema.columns
    own = [name for name, column in columns.items() if "rare" in column.model_fields_set]
    made = {"version": FEATURES_VERSION, "options": features.model_dump(mode="json"), "rare": own}
    return fingerprint({**values, "features": made})


def _find(source: str | Path, names: Iterable[str]) -> tuple[Path, ...]:
    """Return the files of a table; if there are none, the error also lists the data sets with a name."""
    try:
        return find_files(source)
    except InputError as error:
        if "/" in str(source) or "." in str(source):
            raise
        raise InputError(f"{error}; data sets with a name: {', '.join(names)}") from None
