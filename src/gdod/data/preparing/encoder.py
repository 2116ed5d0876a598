"""Turn raw tables into ids and numbers, with what was fitted on the training part."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gdod._checks import listed
from gdod._files import read_json, write_text
from gdod.data.parts.part import MemoryPart
from gdod.data.preparing.added_fields import AddedFields
from gdod.data.preparing.scaling import Scaling
from gdod.data.preparing.stored import examples
from gdod.data.preparing.target_statistics import IdsByColumn, SequenceIds, Source, by_row, keys_of
from gdod.data.preparing.time_fields import extended, with_times
from gdod.data.preparing.vocabulary import Vocabulary
from gdod.data.tables.columns import label_values, list_texts, numeric_values, padded, weight_values
from gdod.data.tables.table_schema import CategoricalColumn, NumericColumn, SequenceColumn, TableSchema
from gdod.data.tables.values import Origin, text
from gdod.errors import InputError
from gdod.schema import Categorical, Numeric, Schema, Sequence, Task

FORMAT = 1
# With added fields, which a version that knows only the first format must not ignore.
FORMAT_WITH_ADDED_FIELDS = 2
_FILE, _STATISTICS = "encoder.json", "statistics.parquet"


@dataclass(frozen=True)
class Encoded:
    """Rows as they are stored: ids, scaled numbers, labels."""

    frame: pl.DataFrame
    missing: dict[str, int]
    """The number of missing values of each column."""
    unknown: dict[str, int]
    """The number of values of each categorical or sequence column that training has not seen."""


@dataclass(frozen=True)
class Encoder:
    """The way from a raw table to examples, as `fit` finds it on the training part. Mappings are by column name."""

    table_schema: TableSchema
    """The columns of the raw table."""
    vocabularies: Mapping[str, Vocabulary] = field(default_factory=dict)
    """The ids of the values of categorical and sequence columns."""
    scalings: Mapping[str, Scaling] = field(default_factory=dict)
    """The scaling of each numeric column."""
    classes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The classes of each multiclass label, in the order of their numbers."""
    longest: Mapping[str, int] = field(default_factory=dict)
    """The length of the longest sequence in the training part, but no more than the schema allows."""
    weight: float = 1.0
    """The mean weight in the training part."""
    added: AddedFields | None = None
    """Numeric fields besides those of the columns, as `FeatureOptions` asked for them; None: no options were given."""

    @property
    def model_schema(self) -> Schema:
        """The fields of the model's input, for `gdod.models.build`."""
        of, sizes = self.extended_schema.of, {name: values.cardinality for name, values in self.vocabularies.items()}
        if self.added is not None:
            sizes |= {name: max(1, kept) for name, kept in self.added.kept.items()}
        bins = self.added.bins if self.added is not None else {}
        return Schema(
            [Categorical(name, sizes[name]) for name in of(CategoricalColumn)],
            [Numeric(name, bins.get(name, ())) for name in self.numeric],
            [Sequence(name, sizes[name]) for name in of(SequenceColumn)],
        )

    @property
    def numeric(self) -> tuple[str, ...]:
        """The names of all numeric fields: first those of the columns, then added ones."""
        return (*self.extended_schema.of(NumericColumn), *self.added_names)

    @cached_property
    def added_names(self) -> tuple[str, ...]:
        """The names of the numeric fields that are neither columns of the table nor made of its times."""
        return () if self.added is None else self.added.names(self.extended_schema.columns)

    @cached_property
    def extended_schema(self) -> TableSchema:
        """The columns of the table, and those that are made of its times."""
        return extended(self.table_schema, () if self.added is None else self.added.times)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the columns of the raw table that the model's input is made of."""
        times = () if self.added is None else self.added.times
        return (*self.table_schema.features, *(fields.column for fields in times))

    def with_times(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Return rows of the raw table with the columns that are made of times."""
        times = () if self.added is None else self.added.times
        return with_times(frame, times, self.table_schema.file.missing)

    @property
    def tasks(self) -> tuple[Task, ...]:
        """The tasks, in the order of the labels in the table's schema."""
        return tuple(
            Task(name, label.kind, len(self.classes[name]) if label.kind == "multiclass" else None)
            for name, label in self.table_schema.labels.items()
        )

    def encode(self, frame: pl.DataFrame, *, labels: bool = True) -> MemoryPart:
        """Return the rows of a table with the same columns as examples, for prediction or evaluation.

        Values that training has not seen get the id 0. A column that is not there counts as missing in
        every row, and the part's notes say so; other columns are ignored.

        Args:
            frame: the table as it was read, with text or numbers.
            labels: also encode the labels and weights, where the table has them.
        """
        if not isinstance(frame, pl.DataFrame):
            raise InputError(f"encode got a {type(frame).__name__}; expected a polars DataFrame")
        absent = [name for name in self.inputs if name not in frame.columns]
        if len(absent) == len(self.inputs):
            raise InputError(f"the table has none of the columns {listed(self.inputs)}; it has {listed(frame.columns)}")
        notes = [f"the table has no column {name!r}; it counts as missing in every row" for name in absent]
        encoded = self.encode_frame(frame, Origin(), labels=labels)
        for name, count in encoded.unknown.items():
            if count:
                notes.append(f"{name}: {count:,} values that training has not seen")
        return MemoryPart(examples(encoded.frame, self), tuple(self.table_schema.labels), tuple(notes))

    def encode_frame(
        self, frame: pl.DataFrame, origin: Origin, *, labels: bool = True, look_up: "IdsLookUp | None" = None
    ) -> Encoded:
        """Return the table as it is stored in Parquet: features, added fields, labels and weight, a column each.

        ``look_up`` gives the target statistics of these rows; None: they are no training rows, so that their
        statistics are those of the whole training part.
        """
        rows = _Rows(self.with_times(frame), origin)
        columns = [self._feature(name, rows) for name in self.extended_schema.features]
        if self.added is not None:
            chosen = look_up or self._statistics
            numbers = self.added.numbers(rows.gaps, lambda source: chosen(source, rows.ids))
            columns += [pl.Series(name, values) for name, values in zip(self.added_names, numbers, strict=True)]
        if labels:
            columns += self._labels(frame, origin, rows.missing)
        return Encoded(pl.DataFrame({column.name: column for column in columns}), rows.missing, rows.unknown)

    def _feature(self, name: str, rows: "_Rows") -> pl.Series:
        column, tokens = self.extended_schema.columns[name], self.table_schema.file.missing
        values = _column(rows.frame, name)
        if isinstance(column, NumericColumn):
            known = numeric_values(values, column, tokens, rows.origin)
            rows.gaps[name], rows.missing[name] = known.is_null(), known.null_count()
            return pl.Series(name, self.scalings[name].apply(known))
        if isinstance(column, SequenceColumn):
            lists = list_texts(values, column.separator, tokens, column.longest)
            ids = self.vocabularies[name].ids(lists.values)
            if self.added is not None:
                every = np.where(ids == 0, self.largest_ids[name], ids).astype(np.int64)
                rows.ids[name] = SequenceIds(every, lists.rows, len(rows.frame))
                ids = np.where(ids <= self.added.kept[name], ids, np.int32(0))
            rows.missing[name], rows.unknown[name] = lists.empty, int((ids == 0).sum())
            matrix = padded(ids, lists.rows, len(rows.frame), self.longest[name])
            return pl.Series(name, matrix, dtype=pl.Array(pl.Int32, self.longest[name]))
        names = text(values, tokens)
        ids = self.vocabularies[name].ids(names)
        rows.missing[name] = names.null_count()
        rows.unknown[name] = int((ids == 0).sum()) - rows.missing[name]
        if self.added is None:
            return pl.Series(name, ids)
        unknown = (ids == 0) & names.is_not_null().to_numpy()
        rows.ids[name] = np.where(unknown, self.largest_ids[name], ids).astype(np.int64)
        return pl.Series(name, np.where(ids <= self.added.kept[name], ids, np.int32(0)))

    @property
    def largest_ids(self) -> dict[str, int]:
        """The largest id of each categorical and sequence column that statistics tell apart: one for unknown values.

        To the model these are 0, as missing ones are. But what training rows without a value were like says nothing
        about values that are new.
        """
        return {name: len(values) + 1 for name, values in self.vocabularies.items()}

    def _statistics(self, source: Source, ids: IdsByColumn) -> NDArray[np.float32]:
        assert self.added is not None
        return by_row(source, ids, self.added.statistics[source].look_up(keys_of(source, ids, self.largest_ids)))

    def _labels(self, frame: pl.DataFrame, origin: Origin, missing: dict[str, int]) -> list[pl.Series]:
        """Return the columns of labels and weight, as far as the table has them."""
        columns = []
        for name in self.table_schema.labels:
            if name not in frame.columns:
                continue
            values = label_values(frame, name, self.table_schema, self.classes.get(name), origin)
            missing[name] = values.null_count()
            columns.append(values.cast(pl.Float32))
        if self.table_schema.weight in frame.columns:
            weights = weight_values(frame[self.table_schema.weight], self.table_schema.file.missing, origin)
            missing[self.table_schema.weight] = weights.null_count()
            columns.append((weights.fill_null(self.weight) / self.weight).cast(pl.Float32))
        return columns

    def to_json(self) -> dict[str, Any]:
        """Return plain values, for `json.dump`. The id of a value is its place in its list, from 1 on."""
        content = {
            "format": FORMAT if self.added is None else FORMAT_WITH_ADDED_FIELDS,
            "table": self.table_schema.to_json(),
            "vocabularies": {name: values.values.to_list() for name, values in self.vocabularies.items()},
            "scalings": {name: asdict(scaling) for name, scaling in self.scalings.items()},
            "classes": {name: list(values) for name, values in self.classes.items()},
            "longest": dict(self.longest),
            "weight": self.weight,
        }
        return content if self.added is None else {**content, "added": self.added.to_json()}

    @classmethod
    def from_json(cls, content: Mapping[str, Any], statistics: Path | None = None) -> Self:
        """Return the encoder that `to_json` made the values of; ``statistics`` is the file of its statistics."""
        if content.get("format") not in (FORMAT, FORMAT_WITH_ADDED_FIELDS):
            raise InputError(
                f"an encoder of format {content.get('format')!r}; this version reads formats {FORMAT} and "
                f"{FORMAT_WITH_ADDED_FIELDS}"
            )
        return cls(
            TableSchema(**content["table"]),
            {name: Vocabulary(values) for name, values in content["vocabularies"].items()},
            {name: Scaling(**scaling) for name, scaling in content["scalings"].items()},
            {name: tuple(values) for name, values in content["classes"].items()},
            dict(content["longest"]),
            content["weight"],
            AddedFields.from_json(content["added"], statistics) if "added" in content else None,
        )

    def save(self, folder: Path, *, indent: int | None = None) -> None:
        """Write encoder.json and, if there are target statistics, statistics.parquet, which it names the checksum of.

        ``indent``: the spaces at the beginning of the lines of JSON; None: all in one line.
        """
        content = self.to_json()
        if self.added is not None and self.added.statistics:
            content["added"]["checksum"] = self.added.write_statistics(folder / _STATISTICS)
        lines = json.dumps(content, indent=indent, allow_nan=False, ensure_ascii=False)
        write_text(folder / _FILE, lines if indent is None else lines + "\n")

    @classmethod
    def load(cls, folder: Path, what: str = "an encoder, as `Encoder.save` writes it") -> Self:
        """Return the encoder that `save` wrote; ``what`` the folder should hold is part of the error if it lacks it."""
        return cls.from_json(read_json(folder / _FILE, what), folder / _STATISTICS)


IdsLookUp = Callable[[Source, IdsByColumn], NDArray[np.float32]]
"""Gives the statistics of a source for rows with these ids, rare values among them, and `Encoder.largest_ids` for
unknown ones. [n, T + 1]"""


@dataclass
class _Rows:
    """Rows that are being encoded, and what their columns turned out to hold."""

    frame: pl.DataFrame
    origin: Origin
    ids: dict[str, NDArray[np.int64] | SequenceIds] = field(default_factory=dict)
    gaps: dict[str, pl.Series] = field(default_factory=dict)
    missing: dict[str, int] = field(default_factory=dict)
    unknown: dict[str, int] = field(default_factory=dict)


def _column(frame: pl.DataFrame, name: str) -> pl.Series:
    column = frame.get_column(name, default=None)
    return pl.Series(name, [None], dtype=pl.String).new_from_index(0, len(frame)) if column is None else column
