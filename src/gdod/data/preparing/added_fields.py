"""Numeric fields that examples get besides those of the table's columns: target statistics and flags for gaps."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from gdod._files import digest, whole
from gdod.data.preparing.number_values import NumberVocabulary
from gdod.data.preparing.target_statistics import Source, SourceTable, Target
from gdod.data.preparing.time_fields import TimeFields
from gdod.errors import InputError

Numbers = NDArray[np.float32]
LookUp = Callable[[Source], Numbers]
"""Gives the statistics of a source for the rows that are being encoded. [n, T + 1]"""

# Brings the logarithm of a count near 1: e⁵ is about 150 rows.
_COUNT_SCALE = np.float32(5)
# A file of statistics is unpacked up to so many bytes, or to so many times its length: each of its keys differs from
# those before it, which cannot be packed away.
_SMALL, _MOST_PACKED = 1 << 28, 256


@dataclass(frozen=True)
class AddedFields:
    """What `gdod.data.preparing.feature_options.FeatureOptions` made of a table's training part."""

    kept: Mapping[str, int] = field(default_factory=dict)
    """The number of values of each categorical and sequence column that the model tells apart, by ids from 1 on; it
    sees 0 in place of rarer ones."""
    flags: tuple[str, ...] = ()
    """Numeric columns with missing values in the training part; each has a field that is 1 where there is none."""
    targets: tuple[Target, ...] = ()
    """What the statistics estimate."""
    statistics: Mapping[Source, SourceTable] = field(default_factory=dict)
    """The statistics of each column and pair of columns, from all training rows."""
    bins: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """The edges of the bins of numeric fields, of the table's columns and added ones, by name."""
    times: tuple[TimeFields, ...] = ()
    """What is made of columns of times, before anything else."""
    number_values: Mapping[str, NumberVocabulary] = field(default_factory=dict)
    """The values of numeric columns that statistics are of."""
    promoted: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """The ids of values that the model tells apart since an update only, in the order of its ids for them, which are
    the last of those that are kept. The model's ids of all others are their own."""

    @property
    def is_grown(self) -> bool:
        """Whether a version without updates would take this for something else."""
        return any(self.promoted.values()) or any(table.wide for table in self.statistics.values())

    def model_ids(self, name: str, ids: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the ids that the model sees in place of those of a column's values: [n] -> [n]."""
        promoted = np.array(self.promoted.get(name, ()), np.int32)
        first = self.kept[name] - len(promoted)
        own = np.where(ids <= first, ids, np.int32(0))
        if not len(promoted):
            return own
        order = np.argsort(promoted)
        places = np.minimum(np.searchsorted(promoted, ids, sorter=order), len(promoted) - 1)
        found = order[places]  # [n], the place among the promoted ids
        return np.where(promoted[found] == ids, first + 1 + found, own).astype(np.int32)

    def names(self, taken: Iterable[str]) -> tuple[str, ...]:
        """Return the names of the added fields, all different and none of them ``taken`` by a column."""
        wanted = [f"{name} is missing" for name in self.flags]
        for source in self.statistics:
            wanted += [f"{what} | {' × '.join(source)}" for what in (*(one.name for one in self.targets), "rows")]
        used, names = set(taken), []
        for name in wanted:
            while name in used:
                name += " *"
            used.add(name)
            names.append(name)
        return tuple(names)

    def numbers(self, gaps: Mapping[str, NDArray[np.bool_]], look_up: LookUp) -> list[Numbers]:
        """Return the values of the added fields, in the order of their names: [n] each.

        Args:
            gaps: for each numeric column, in which rows its value is missing.
            look_up: gives the statistics of a source.
        """
        columns = [gaps[name].astype(np.float32) for name in self.flags]
        for source in self.statistics:
            numbers = look_up(source)
            columns += [*numbers[:, :-1].T, numbers[:, -1] / _COUNT_SCALE]
        return columns

    def to_json(self) -> dict[str, Any]:
        """Return plain values; the statistics' numbers are not among them, `write_statistics` keeps them."""
        return {
            "kept": dict(self.kept),
            "missing": list(self.flags),
            "targets": [asdict(target) for target in self.targets],
            "sources": [
                {
                    "columns": list(source),
                    "keys": len(table.keys),
                    "buckets": table.buckets,
                    **({"wide": True} if table.wide else {}),
                }
                for source, table in self.statistics.items()
            ],
            "bins": {name: list(edges) for name, edges in self.bins.items()},
            "times": [asdict(fields) for fields in self.times],
            **(
                {"number_values": {name: one.values.tolist() for name, one in self.number_values.items()}}
                if self.number_values
                else {}
            ),
            **({"promoted": {name: list(ids) for name, ids in self.promoted.items()}} if self.promoted else {}),
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any], statistics: Path | None) -> Self:
        """Return what `to_json` made the values of, with the statistics in a file, which must fit."""
        return cls(
            dict(content["kept"]),
            tuple(content["missing"]),
            tuple(Target(**target) for target in content["targets"]),
            _read_statistics(statistics, content) if content["sources"] else {},
            {name: tuple(edges) for name, edges in content["bins"].items()},
            tuple(TimeFields(**fields) for fields in content.get("times", ())),
            {
                name: NumberVocabulary(np.array(values, np.float64))
                for name, values in content.get("number_values", {}).items()
            },
            {name: tuple(ids) for name, ids in content.get("promoted", {}).items()},
        )

    def write_statistics(self, path: Path) -> str:
        """Write the statistics to a Parquet file, a row for each key of each source, and return its checksum."""
        width = len(self.targets) + 1
        types = pa.schema([("source", pa.int32()), ("key", pa.int64()), ("numbers", pa.list_(pa.float32(), width))])
        with whole(path) as part:
            with pq.ParquetWriter(part, types, compression="zstd", compression_level=1) as writer:
                for at, table in enumerate(self.statistics.values()):
                    numbers = pa.FixedSizeListArray.from_arrays(pa.array(table.numbers.reshape(-1)), width)
                    places = np.full(len(table.keys), at, np.int32)
                    # A row group or more of its own, so that sources can be read one by one.
                    writer.write_table(pa.Table.from_arrays([places, pa.array(table.keys), numbers], schema=types))
            return digest(part)


def _read_statistics(path: Path | None, content: Mapping[str, Any]) -> dict[Source, SourceTable]:
    """Return the statistics in a file; raise unless it is there, and the one that was written with ``content``."""
    if path is None or not path.is_file():
        where = "statistics.parquet" if path is None else path
        raise InputError(f"{where} is missing; expected the target statistics that belong to encoder.json beside it")
    sources, width = content["sources"], len(content["targets"]) + 1
    ends = np.cumsum([0, *(source["keys"] for source in sources)])
    try:
        if digest(path) != content["checksum"] or pq.read_metadata(path).num_rows != ends[-1]:
            raise InputError(f"{path} does not fit encoder.json beside it; expected the file that was written with it")
        if ends[-1] * 4 * (width + 3) > max(_SMALL, _MOST_PACKED * path.stat().st_size):
            raise InputError(f"{path} is packed tighter than target statistics can be; expected a file that gdod wrote")
        table = pq.read_table(path, use_threads=False)
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{path} cannot be read ({error}); expected target statistics as gdod writes them") from error
    keys = table["key"].to_numpy()
    numbers = table["numbers"].combine_chunks().flatten().to_numpy(zero_copy_only=False).reshape(len(keys), width)
    return {
        tuple(source["columns"]): SourceTable(
            keys[first:last], numbers[first:last], source["buckets"], source.get("wide", False)
        )
        for source, first, last in zip(sources, ends[:-1].tolist(), ends[1:].tolist(), strict=True)
    }
