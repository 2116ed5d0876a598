"""Load training data from a table or a data set with a name: prepared once, then taken from the cache."""

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from gdod._checks import listed
from gdod._files import read_json
from gdod.data.dataset import Dataset
from gdod.data.inspection import inspect
from gdod.data.parts.part import MemoryPart, Part
from gdod.data.preparing.cache import FEATURES_VERSION, build_folder, cache_folder, fingerprint, hash_files, is_whole
from gdod.data.preparing.encoder import Encoder
from gdod.data.preparing.feature_options import FeatureOptions
from gdod.data.preparing.pipeline import RawParts, part_file, prepare_into, row_bytes
from gdod.data.preparing.split import PARTS
from gdod.data.preparing.stored import examples
from gdod.data.sets import SOURCES
from gdod.data.sets.source import Source
from gdod.data.stream import StreamPart
from gdod.data.tables.files import base_folder, find_files
from gdod.data.tables.frames import polars
from gdod.data.tables.raw_table import file_table, frame_table
from gdod.data.tables.read import columns_of
from gdod.data.tables.table_schema import NumericColumn, TableSchema
from gdod.errors import InputError

# Larger parts are read from disk while they are used.
MEMORY_BYTES = 2 << 30
_PREPARED = "prepared data, as `gdod data prepare` makes it"


@dataclass(frozen=True)
class _Request:
    """Data that is to be prepared unless the cache has its fingerprint."""

    name: str
    fingerprint: str
    features: FeatureOptions | None
    read: Callable[[Path], RawParts]
    """A function that reads the raw tables; it may keep copies of them in the given folder for a while."""


def load(
    source: str | Path,
    *,
    schema: str | Path | TableSchema | None = None,
    labels: Iterable[str] = (),
    folder: str | Path | None = None,
    cache: str | Path | None = None,
    stream: bool | None = None,
    features: FeatureOptions | None = None,
    **options: object,
) -> Dataset:
    """Return training data from a table of your own, or from a data set with a name.

        data = gdod.data.load("ads.csv", schema="ads.yaml")
        data = gdod.data.load("census", folder="downloads/census")

    The first time it is prepared and put into the cache; after that it is taken from there, until the
    content of a file, the schema or an option changes.

    Args:
        source: a file, a folder of parts, a pattern such as "logs/*.csv.gz", or a name (see `SOURCES`).
        schema: what the columns are: a YAML or TOML file, or a `TableSchema`. Without it, it is inferred
            as `gdod data inspect` shows it.
        labels: for an inferred schema, the columns to predict.
        folder: where the files of a data set with a name are.
        cache: the folder for prepared data. Default: $GDOD_CACHE or ~/.cache/gdod.
        stream: read from disk while it is used instead of from memory. None: if it is large.
        features: what is made of the columns besides ids and scaled numbers: target statistics, bins, ...; None:
            nothing.
        options: the options of a data set with a name.
    """
    prepared = prepare(source, schema=schema, labels=labels, folder=folder, cache=cache, features=features, **options)
    return open_prepared(prepared, stream=stream)


def prepare(
    source: str | Path,
    *,
    schema: str | Path | TableSchema | None = None,
    labels: Iterable[str] = (),
    folder: str | Path | None = None,
    cache: str | Path | None = None,
    features: FeatureOptions | None = None,
    **options: object,
) -> Path:
    """Return the folder with the prepared data, made now if it is not in the cache. Arguments as for `load`."""
    if not isinstance(source, str | Path):
        raise InputError(f"source is a {type(source).__name__}; expected a path, a pattern, or a data set's name")
    if features is not None and not isinstance(features, FeatureOptions):
        raise InputError(f"features is a {type(features).__name__}; expected FeatureOptions(...), or None for none")
    root = cache_folder(cache)
    if schema is not None and not isinstance(schema, TableSchema):
        schema = TableSchema.read(schema)
    named = SOURCES.get(source) if isinstance(source, str) else None  # a Path, or "./ads", is a file of that name
    if named is not None:
        if labels := tuple(labels):
            raise InputError(f"labels={labels!r} are given, but the data set {source!r} has its own; leave them out")
        request = _named(named, schema, None if folder is None else Path(folder), options, features)
    else:
        if options:
            raise InputError(f"the option {next(iter(options))!r} is unknown: {str(source)!r} is a table of your own")
        if folder is not None:
            raise InputError(
                f"folder={str(folder)!r} is for a data set with a name, and {str(source)!r} is none; leave it out, and "
                "give the path of the table as a whole"
            )
        request = _files(source, schema, tuple(labels), root, features)
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
    return Dataset(
        name=about["name"],
        schema=encoder.model_schema,
        tasks=encoder.tasks,
        train=train,
        validation=validation,
        test=test,
        fingerprint=about["fingerprint"],
        encoder=encoder,
        notes=(*about["notes"], *_reading_notes(encoder.table_schema)),
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
    prepare_into(work, request.name, request.fingerprint, request.read(scratch), request.features)
    rmtree(scratch)


def _named(
    source: Source,
    schema: TableSchema | None,
    folder: Path | None,
    options: dict[str, object],
    features: FeatureOptions | None,
) -> _Request:
    def read(scratch: Path) -> RawParts:
        raw = source.read(folder, options)
        chosen = schema or raw.schema
        for part, frame in (("train", raw.train), ("test", raw.test)):
            if frame is not None:
                chosen.check_columns(frame.collect_schema().names(), f"the {part} table of {source.name}")
        train = frame_table(raw.train, source.name, chosen.needed, scratch / "train.parquet")
        test = None if raw.test is None else frame_table(raw.test, f"{source.name} (test)", chosen.needed, scratch)
        return RawParts(train, None, test, chosen, raw.notes)

    values = {
        "source": source.name,
        "input": source.fingerprint(folder, options),
        "schema": None if schema is None else schema.to_json(),
    }
    return _Request(source.name, _fingerprint(values, schema, features), features, read)


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
        raise InputError("labels=... is for a schema that is inferred; this one is given, so mark them there")
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
) -> _Request:
    files, chosen = _located(source, schema, labels)

    def read(scratch: Path) -> RawParts:
        tables = {
            part: file_table(paths, chosen.file, chosen.needed, scratch / f"{part}.parquet")
            for part, paths in files.items()
        }
        return RawParts(tables["train"], tables.get("validation"), tables.get("test"), chosen)

    values: dict[str, Any] = {
        "files": {part: hash_files(paths, cache) for part, paths in files.items()},
        # A text file's kind is in its name, not in its content.
        "names": {part: [path.suffixes for path in paths] for part, paths in files.items()},
        "schema": chosen.to_json(),
    }
    return _Request(Path(source).name, _fingerprint(values, chosen, features), features, read)


def _fingerprint(values: dict[str, Any], schema: TableSchema | None, features: FeatureOptions | None) -> str:
    """Return the fingerprint of values and options; without options it is that of the values alone."""
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
