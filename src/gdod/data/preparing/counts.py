"""What was counted of the training rows, kept with an encoder so that an update can bring it forward.

An encoder holds what statistics say; from that alone they cannot go on. The counts are in a file of their own, of which
the encoder names the checksum: only an update reads it.
"""

import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from gdod._files import digest, whole
from gdod.data.preparing.target_statistics import Past, Source, SourceSums
from gdod.errors import InputError

FILE = "counts.parquet"
MOST_TABLES = 10_000
_HASH = 16  # digits of a hash that are kept
Floats = NDArray[np.float64]
_TYPES = pa.schema([("key", pa.int64()), ("value", pa.string()), ("numbers", pa.list_(pa.float64()))])


@dataclass(frozen=True)
class ColumnCounts:
    """How many rows each value of a categorical or sequence column has had."""

    known: Floats  # [V], of the values in the column's vocabulary, by id
    waiting: pl.DataFrame  # of those that were too rare for it: the columns "value" and "count"
    rare: int  # with fewer rows than this a value has no vector of its own

    @classmethod
    def of(cls, counted: pl.DataFrame, known: int, rare: int) -> Self:
        """Return the counts of values in the order of their ids, of which the first ``known`` are in the vocabulary."""
        counts = counted.with_columns(pl.col("count").cast(pl.Float64))
        return cls(counts["count"][:known].to_numpy(), counts[known:], rare)


@dataclass(frozen=True)
class Counts:
    """What was counted of all training rows so far; those of earlier updates count for less by now."""

    rows: int
    """The number of training rows of all updates, each of them in full."""
    updates: int = 0
    """How often the first run was brought up to date."""
    columns: Mapping[str, ColumnCounts] = field(default_factory=dict)
    targets: tuple[tuple[int, int | None], ...] = ()
    """Of each target of the statistics the place of its label, and the number of its class if it is a class's rate."""
    tables: tuple[str, ...] = ()
    """The hashes of the files or tables that the rows came from, the last `MOST_TABLES` of them."""
    past: Past = field(default_factory=lambda: Past(np.zeros((3, 0)), {}))
    """What the statistics are made of."""

    def with_tables(self, hashes: Iterable[str]) -> "Counts":
        """Return the counts with the hashes of more tables, which the rows came from."""
        return replace(self, tables=(*self.tables, *(one[:_HASH] for one in hashes))[-MOST_TABLES:])

    def write(self, path: Path) -> dict[str, Any]:
        """Write the file, and return what reading it takes, its checksum among it, as plain values."""
        with whole(path) as part:
            with pq.ParquetWriter(part, _TYPES, compression="zstd", compression_level=1) as writer:
                for table in self._tables():
                    writer.write_table(table)
            checksum = digest(part)
        return {
            "checksum": checksum,
            "rows": self.rows,
            "updates": self.updates,
            "columns": {
                name: {"known": len(one.known), "waiting": len(one.waiting), "rare": one.rare}
                for name, one in self.columns.items()
            },
            "targets": [list(target) for target in self.targets],
            "tables": list(self.tables),
            "sources": [
                {"columns": list(source), "keys": len(one.keys), "buckets": one.buckets}
                for source, one in self.past.sums.items()
            ],
        }

    def _tables(self) -> Iterator[pa.Table]:
        for one in self.columns.values():
            yield _table(np.arange(1, len(one.known) + 1), one.known[:, None])
            waiting = one.waiting["count"].to_numpy()[:, None]
            yield _table(np.zeros(len(waiting), np.int64), waiting, one.waiting["value"].to_arrow())
        yield _table(np.zeros(1, np.int64), self.past.base.reshape(1, -1))
        for sums in self.past.sums.values():
            yield _table(sums.keys, sums.sums)


def _table(keys: NDArray[np.int64], numbers: Floats, values: pa.Array | None = None) -> pa.Table:
    width = numbers.shape[1]
    lists = pa.ListArray.from_arrays(
        pa.array(np.arange(len(keys) + 1, dtype=np.int32) * width), pa.array(np.ascontiguousarray(numbers).reshape(-1))
    )
    text = pa.nulls(len(keys), pa.string()) if values is None else values.cast(pa.string())
    return pa.Table.from_arrays([pa.array(keys), text, lists], schema=_TYPES)


@dataclass(frozen=True)
class StoredCounts:
    """Counts in a file, which is read when they are needed."""

    path: Path
    about: Mapping[str, Any]
    """What `Counts.write` returned."""

    @property
    def rows(self) -> int:
        return int(self.about["rows"])

    @property
    def updates(self) -> int:
        return int(self.about["updates"])

    @property
    def tables(self) -> tuple[str, ...]:
        return tuple(self.about["tables"])

    def write(self, path: Path) -> dict[str, Any]:
        """Copy the file to another place, and return what reading it takes."""
        self.check()
        if path != self.path:
            with whole(path) as part:
                shutil.copyfile(self.path, part)
        return dict(self.about)

    def seen(self, hashes: Iterable[str]) -> list[bool]:
        """Return which tables, told by their hashes, are among those that were counted."""
        known = set(self.tables)
        return [one[:_HASH] in known for one in hashes]

    def check(self) -> None:
        """Raise unless the file is there as it was written."""
        if not self.path.is_file():
            raise InputError(f"{self.path} is missing; expected the counts that belong to encoder.json beside it")
        if digest(self.path) != self.about["checksum"]:
            raise InputError(f"{self.path} is damaged or was changed; expected the file that was written with the run")

    def read(self) -> Counts:
        """Return what is in the file, which must be the one that was written."""
        self.check()
        table, place = pq.read_table(self.path, use_threads=False), 0

        def some(rows: int, width: int) -> tuple[pa.Table, Floats]:
            nonlocal place
            part = table.slice(place, rows)
            place += rows
            numbers = part["numbers"].combine_chunks().flatten().to_numpy(zero_copy_only=False)
            return part, numbers.reshape(rows, width)

        columns = {}
        for name, sizes in self.about["columns"].items():
            known = some(sizes["known"], 1)[1][:, 0]
            part, waiting = some(sizes["waiting"], 1)
            values = pl.Series("value", part["value"].to_pylist(), dtype=pl.String)
            counted = pl.DataFrame([values, pl.Series("count", waiting[:, 0], dtype=pl.Float64)])
            columns[name] = ColumnCounts(known, counted, sizes["rare"])
        targets = tuple((int(label), value) for label, value in self.about["targets"])
        base = some(1, 3 * len(targets))[1].reshape(3, -1)
        sums: dict[Source, SourceSums] = {}
        for source in self.about["sources"]:
            part, numbers = some(source["keys"], 1 + 2 * len(targets))
            sums[tuple(source["columns"])] = SourceSums(part["key"].to_numpy(), numbers, source["buckets"])
        return Counts(self.rows, self.updates, columns, targets, self.tables, Past(base, sums))
