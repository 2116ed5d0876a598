"""Turn raw tables into ids and numbers, with what was fitted on the training part."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gdod._checks import listed
from gdod._files import read_json, write_text
from gdod.data.parts.part import MemoryPart
from gdod.data.preparing import counts as kept_counts
from gdod.data.preparing.added_fields import AddedFields
from gdod.data.preparing.counts import Counts, StoredCounts
from gdod.data.preparing.scaling import Scaling
from gdod.data.preparing.stored import EncodedColumns, examples
from gdod.data.preparing.target_statistics import IdsByColumn, SequenceIds, Source, by_row
from gdod.data.preparing.time_fields import extended, with_times
from gdod.data.preparing.vocabulary import Vocabulary, ids_of_columns
from gdod.data.tables.columns import label_values, list_texts, numeric_values, padded, weight_values
from gdod.data.tables.table_schema import CategoricalColumn, NumericColumn, SequenceColumn, TableSchema
from gdod.data.tables.values import Origin, texts
from gdod.errors import InputError
from gdod.schema import Categorical, LabelScale, Numeric, Schema, Sequence, Task

FORMAT = 1
# With added fields, which a version that knows only the first format must not ignore.
FORMAT_WITH_ADDED_FIELDS = 2
# With scales of labels, without which a model's numbers would be taken for labels.
FORMAT_WITH_LABEL_SCALES = 3
# With statistics of numbers, whose values an earlier version does not look up.
FORMAT_WITH_NUMBER_VALUES = 4
# With vectors of a file, for which a model has weights.
FORMAT_WITH_VECTORS = 5
# With ids that got a vector in an update, or with pairs hashed in a way that lasts through updates.
FORMAT_GROWN = 6
_MOST_IDS = 2**30  # in the sequences of one column, of the rows that are encoded at once
_FEW_ROWS = 4_096  # whose categorical columns are encoded together
_FILE, _STATISTICS = "encoder.json", "statistics.parquet"


@dataclass(frozen=True)
class Encoded:
    """Rows as models take them: ids, scaled numbers, labels."""

    columns: EncodedColumns
    rows: int
    missing: dict[str, int]
    """The number of missing values of each column."""
    unknown: dict[str, int]
    """The number of values of each categorical or sequence column that training has not seen."""

    @cached_property
    def frame(self) -> pl.DataFrame:
        """The rows as they are stored in Parquet."""
        return pl.DataFrame([_series(name, values) for name, values in self.columns.items()])


class VectorField(NamedTuple):
    """What a model needs to know of a column whose values have vectors in a file."""

    size: int
    frozen: bool


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
    label_scales: Mapping[str, LabelScale] = field(default_factory=dict)
    """The units in which a run learns each regression label; a label that is left out is learned as it is."""
    label_weights: Mapping[str, float] = field(default_factory=dict)
    """The mean weight in the training part of each label that has weights of its own."""
    vectors: Mapping[str, VectorField] = field(default_factory=dict)
    """The columns whose values have vectors in a file."""
    counts: Counts | StoredCounts | None = field(default=None, compare=False)
    """What was counted of the training rows, for updates; None: the encoder is of a version that did not keep it."""

    @property
    def model_schema(self) -> Schema:
        """The fields of the model's input, for `gdod.models.build`."""
        of, sizes = self.extended_schema.of, {name: max(1, size) for name, size in self.vector_counts.items()}
        bins = self.added.bins if self.added is not None else {}
        return Schema(
            [Categorical(name, sizes[name], *self.vectors.get(name, ())) for name in of(CategoricalColumn)],
            [Numeric(name, bins.get(name, ())) for name in self.numeric],
            [Sequence(name, sizes[name]) for name in of(SequenceColumn)],
        )

    @property
    def vector_counts(self) -> dict[str, int]:
        """The number of values of each categorical and sequence column that the model tells apart."""
        sizes = {name: len(values) for name, values in self.vocabularies.items()}
        return sizes if self.added is None else {**sizes, **self.added.kept}

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
            Task(
                name,
                label.kind,
                len(self.classes[name]) if label.kind == "multiclass" else None,
                *self.label_scales.get(name, ()),
            )
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
        return MemoryPart(examples(encoded.columns, self), tuple(self.table_schema.labels), tuple(notes))

    def encode_frame(
        self, frame: pl.DataFrame, origin: Origin, *, labels: bool = True, look_up: "IdsLookUp | None" = None
    ) -> Encoded:
        """Return the table as it is stored: features, added fields, labels and weight, a column each.

        ``look_up`` gives the target statistics of these rows; None: they are no training rows, so that their
        statistics are those of the whole training part.
        """
        rows = _Rows(self.with_times(frame), origin)
        made: dict[str, NDArray[Any]] = {**self._categorical(rows)}
        made |= {name: self._numeric(name, one, rows) for name, one in self.extended_schema.of(NumericColumn).items()}
        made |= {name: self._sequence(name, one, rows) for name, one in self.table_schema.of(SequenceColumn).items()}
        columns: dict[str, NDArray[Any] | pl.Series] = {name: made[name] for name in self.extended_schema.features}
        if self.added is not None:
            chosen = look_up or self._statistics
            numbers = self.added.numbers(rows.gaps, lambda source: chosen(source, rows.ids))
            columns |= zip(self.added_names, numbers, strict=True)
        if labels:
            columns |= {column.name: column for column in self._labels(frame, origin, rows.missing)}
        return Encoded(columns, len(frame), rows.missing, rows.unknown)

    def _numeric(self, name: str, column: NumericColumn, rows: "_Rows") -> NDArray[np.float32]:
        known = numeric_values(_column(rows.frame, name), column, self.table_schema.file.missing, rows.origin)
        numbers = known.to_numpy()  # null becomes nan
        rows.gaps[name], rows.missing[name] = np.isnan(numbers), known.null_count()
        if self.added is not None and name in self.added.number_values:
            rows.ids[name] = self.added.number_values[name].ids(numbers)
        return self.scalings[name].apply(numbers)

    def _sequence(self, name: str, column: SequenceColumn, rows: "_Rows") -> NDArray[np.int32]:
        tokens, values = self.table_schema.file.missing, _column(rows.frame, name)
        lists = list_texts(values, column.separator, tokens, column.longest)
        ids = self.vocabularies[name].ids(lists.values)
        if self.added is not None:
            every = np.where(ids == 0, self.largest_ids[name], ids).astype(np.int64)
            rows.ids[name] = SequenceIds(every, lists.rows, len(rows.frame))
            ids = self.added.model_ids(name, ids)
        rows.missing[name], rows.unknown[name] = lists.empty, int((ids == 0).sum())
        _check_size(name, len(rows.frame), self.longest[name])
        return padded(ids, lists.rows, len(rows.frame), self.longest[name])

    def _categorical(self, rows: "_Rows") -> dict[str, NDArray[np.int32]]:
        """Return the ids of all categorical columns; few rows of them together, since calls of Polars take long."""
        names = tuple(self.extended_schema.of(CategoricalColumn))
        columns = {}
        for some in (names,) if len(rows.frame) <= _FEW_ROWS else ((name,) for name in names):
            written = texts([_column(rows.frame, name) for name in some], self.table_schema.file.missing)
            ids = ids_of_columns([self.vocabularies[name] for name in some], written)
            for name, values, known in zip(some, written, ids, strict=True):
                columns[name] = self._frequent(name, values, known, rows)
        return columns

    def _frequent(self, name: str, values: pl.Series, ids: NDArray[np.int32], rows: "_Rows") -> NDArray[np.int32]:
        """Return the ids of a categorical column that the model sees, those of rare values being 0."""
        rows.missing[name] = values.null_count()
        rows.unknown[name] = int((ids == 0).sum()) - rows.missing[name]
        if self.added is None:
            return ids
        unknown = ids == 0
        if rows.missing[name]:
            unknown &= values.is_not_null().to_numpy()
        rows.ids[name] = np.where(unknown, self.largest_ids[name], ids).astype(np.int64)
        return self.added.model_ids(name, ids)

    @cached_property
    def largest_ids(self) -> dict[str, int]:
        """The largest id of each column that statistics tell apart the values of: one for unknown values.

        To the model these are 0, as missing ones are. But what training rows without a value were like says nothing
        about values that are new.
        """
        largest = {name: len(values) + 1 for name, values in self.vocabularies.items()}
        if self.added is not None:
            largest |= {name: len(values) + 1 for name, values in self.added.number_values.items()}
        return largest

    def _statistics(self, source: Source, ids: IdsByColumn) -> NDArray[np.float32]:
        assert self.added is not None
        return by_row(source, ids, self.added.statistics[source].of(source, ids, self.largest_ids))

    def _labels(self, frame: pl.DataFrame, origin: Origin, missing: dict[str, int]) -> list[pl.Series]:
        """Return the columns of labels and weight, as far as the table has them."""
        columns = []
        for name in self.table_schema.labels:
            if name not in frame.columns:
                continue
            values = label_values(frame, name, self.table_schema, self.classes.get(name), origin)
            missing[name] = values.null_count()
            columns.append(values.cast(pl.Float32))
        means = {column: self.label_weights[label] for label, column in self.table_schema.label_weights.items()}
        if self.table_schema.weight is not None:
            means[self.table_schema.weight] = self.weight
        for name, mean in means.items():
            if name in frame.columns:
                weights = weight_values(frame[name], self.table_schema.file.missing, origin)
                missing[name] = weights.null_count()
                columns.append((weights.fill_null(mean) / mean).cast(pl.Float32))
        return columns

    def to_json(self) -> dict[str, Any]:
        """Return plain values, for `json.dump`. The id of a value is its place in its list, from 1 on."""
        content: dict[str, Any] = {
            "format": FORMAT if self.added is None else FORMAT_WITH_ADDED_FIELDS,
            "table": self.table_schema.to_json(),
            "vocabularies": {name: values.values.to_list() for name, values in self.vocabularies.items()},
            "scalings": {name: asdict(scaling) for name, scaling in self.scalings.items()},
            "classes": {name: list(values) for name, values in self.classes.items()},
            "longest": dict(self.longest),
            "weight": self.weight,
            **({"label_weights": dict(self.label_weights)} if self.label_weights else {}),
        }
        if self.added is not None:
            content["added"] = self.added.to_json()
        if self.label_scales:
            content["format"] = FORMAT_WITH_LABEL_SCALES
            content["label_scales"] = {name: list(scale) for name, scale in self.label_scales.items()}
        if self.added is not None and self.added.number_values:
            content["format"] = FORMAT_WITH_NUMBER_VALUES
        if self.vectors:
            content["format"] = FORMAT_WITH_VECTORS
            content["vectors"] = {name: list(one) for name, one in self.vectors.items()}
        if self.added is not None and self.added.is_grown:
            content["format"] = FORMAT_GROWN
        return content

    @classmethod
    def from_json(cls, content: Mapping[str, Any], statistics: Path | None = None) -> Self:
        """Return the encoder that `to_json` made the values of; ``statistics`` is the file of its statistics."""
        if content.get("format") not in range(FORMAT, FORMAT_GROWN + 1):
            raise InputError(
                f"an encoder of format {content.get('format')!r}; this version reads formats {FORMAT} to {FORMAT_GROWN}"
            )
        table = TableSchema(**content["table"])
        _check_longest(content["longest"], table)
        return cls(
            table,
            {name: Vocabulary(values) for name, values in content["vocabularies"].items()},
            {name: Scaling(**scaling) for name, scaling in content["scalings"].items()},
            {name: tuple(values) for name, values in content["classes"].items()},
            dict(content["longest"]),
            content["weight"],
            AddedFields.from_json(content["added"], statistics) if "added" in content else None,
            label_scales(content),
            dict(content.get("label_weights", {})),
            {name: VectorField(*one) for name, one in content.get("vectors", {}).items()},
        )

    def save(self, folder: Path, *, indent: int | None = None) -> None:
        """Write encoder.json and the files that it names the checksums of: statistics.parquet, if there are target
        statistics, and counts.parquet, if there are counts.

        ``indent``: the spaces at the beginning of the lines of JSON; None: all in one line.
        """
        content = self.to_json()
        if self.added is not None and self.added.statistics:
            content["added"]["checksum"] = self.added.write_statistics(folder / _STATISTICS)
        if self.counts is not None:
            content["counts"] = self.counts.write(folder / kept_counts.FILE)
        lines = json.dumps(content, indent=indent, allow_nan=False, ensure_ascii=False)
        write_text(folder / _FILE, lines if indent is None else lines + "\n")

    @classmethod
    def load(cls, folder: Path, what: str = "an encoder, as `Encoder.save` writes it") -> Self:
        """Return the encoder that `save` wrote; ``what`` the folder should hold is part of the error if it lacks it."""
        content = read_json(folder / _FILE, what)
        encoder, counts = cls.from_json(content, folder / _STATISTICS), content.get("counts")
        return encoder if counts is None else replace(encoder, counts=StoredCounts(folder / kept_counts.FILE, counts))


def _check_longest(longest: Mapping[str, int], table: TableSchema) -> None:
    """Raise if sequences are longer than the schema beside them allows: a file that was changed."""
    for name, column in table.of(SequenceColumn).items():
        if not isinstance(longest[name], int) or not 1 <= longest[name] <= column.longest:
            raise InputError(
                f"an encoder whose sequences {name!r} are {longest[name]!r} long; expected 1 to {column.longest}, "
                "as its table's schema says"
            )


def _check_size(name: str, rows: int, longest: int) -> None:
    """Raise before sequences take memory that no machine has."""
    if rows * longest > _MOST_IDS:
        raise InputError(
            f"{rows:,} rows of the sequence {name!r} with {longest:,} places each take "
            f"{4e-9 * rows * longest:,.0f} GB; lower `longest` of the column in the schema, and prepare and train again"
        )


def label_scales(content: Mapping[str, Any]) -> dict[str, LabelScale]:
    """Return the scales of labels in what `Encoder.to_json` gave; none in that of earlier versions."""
    return {name: LabelScale(*map(float, scale)) for name, scale in content.get("label_scales", {}).items()}


IdsLookUp = Callable[[Source, IdsByColumn], NDArray[np.float32]]
"""Gives the statistics of a source for rows with these ids, rare values among them, and `Encoder.largest_ids` for
unknown ones. [n, T + 1]"""


@dataclass
class _Rows:
    """Rows that are being encoded, and what their columns turned out to hold."""

    frame: pl.DataFrame
    origin: Origin
    ids: dict[str, NDArray[np.int64] | SequenceIds] = field(default_factory=dict)
    gaps: dict[str, NDArray[np.bool_]] = field(default_factory=dict)
    missing: dict[str, int] = field(default_factory=dict)
    unknown: dict[str, int] = field(default_factory=dict)


def _series(name: str, values: NDArray[Any] | pl.Series) -> pl.Series:
    if isinstance(values, pl.Series):
        return values
    return pl.Series(name, values, dtype=pl.Array(pl.Int32, values.shape[1]) if values.ndim == 2 else None)


def _column(frame: pl.DataFrame, name: str) -> pl.Series:
    column = frame.get_column(name, default=None)
    return pl.Series(name, [None], dtype=pl.String).new_from_index(0, len(frame)) if column is None else column
