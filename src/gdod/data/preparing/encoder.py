"""Turn raw tables into ids and numbers, with what was fitted on the training part."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

import polars as pl

from gdod._checks import listed
from gdod.data.parts.part import MemoryPart
from gdod.data.preparing.scaling import Scaling
from gdod.data.preparing.stored import examples
from gdod.data.preparing.vocabulary import Vocabulary
from gdod.data.tables.columns import label_values, list_texts, padded, weight_values
from gdod.data.tables.table_schema import CategoricalColumn, NumericColumn, SequenceColumn, TableSchema
from gdod.data.tables.values import Origin, finite_numbers, text
from gdod.errors import InputError
from gdod.schema import Categorical, Numeric, Schema, Sequence, Task

FORMAT = 1


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

    @property
    def model_schema(self) -> Schema:
        """The fields of the model's input, for `gdod.models.build`."""
        of, sizes = self.table_schema.of, self.vocabularies
        return Schema(
            [Categorical(name, sizes[name].cardinality) for name in of(CategoricalColumn)],
            [Numeric(name) for name in of(NumericColumn)],
            [Sequence(name, sizes[name].cardinality) for name in of(SequenceColumn)],
        )

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
        features = self.table_schema.features
        absent = [name for name in features if name not in frame.columns]
        if len(absent) == len(features):
            raise InputError(f"the table has none of the columns {listed(features)}; it has {listed(frame.columns)}")
        notes = [f"the table has no column {name!r}; it counts as missing in every row" for name in absent]
        encoded = self.encode_frame(frame, Origin(), labels=labels)
        for name, count in encoded.unknown.items():
            if count:
                notes.append(f"{name}: {count:,} values that training has not seen")
        return MemoryPart(examples(encoded.frame, self), tuple(self.table_schema.labels), tuple(notes))

    def encode_frame(self, frame: pl.DataFrame, origin: Origin, *, labels: bool = True) -> Encoded:
        """Return the table as it is stored in Parquet: features, labels and weight, a column each."""
        counts: tuple[dict[str, int], dict[str, int]] = ({}, {})
        columns = [self._feature(name, frame, origin, *counts) for name in self.table_schema.features]
        if labels:
            columns += self._labels(frame, origin, counts[0])
        return Encoded(pl.DataFrame({column.name: column for column in columns}), *counts)

    def _feature(
        self, name: str, frame: pl.DataFrame, origin: Origin, missing: dict[str, int], unknown: dict[str, int]
    ) -> pl.Series:
        column, tokens = self.table_schema.columns[name], self.table_schema.file.missing
        values = _column(frame, name)
        if isinstance(column, NumericColumn):
            known = finite_numbers(values, tokens, origin)
            missing[name] = known.null_count()
            return pl.Series(name, self.scalings[name].apply(known))
        if isinstance(column, SequenceColumn):
            lists = list_texts(values, column.separator, tokens, column.longest)
            ids = self.vocabularies[name].ids(lists.values)
            missing[name], unknown[name] = lists.empty, int((ids == 0).sum())
            matrix = padded(ids, lists.rows, len(frame), self.longest[name])
            return pl.Series(name, matrix, dtype=pl.Array(pl.Int32, self.longest[name]))
        names = text(values, tokens)
        ids = self.vocabularies[name].ids(names)
        missing[name] = names.null_count()
        unknown[name] = int((ids == 0).sum()) - missing[name]
        return pl.Series(name, ids)

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
        return {
            "format": FORMAT,
            "table": self.table_schema.to_json(),
            "vocabularies": {name: values.values.to_list() for name, values in self.vocabularies.items()},
            "scalings": {name: asdict(scaling) for name, scaling in self.scalings.items()},
            "classes": {name: list(values) for name, values in self.classes.items()},
            "longest": dict(self.longest),
            "weight": self.weight,
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Return the encoder that `to_json` made the values of."""
        if content.get("format") != FORMAT:
            raise InputError(f"an encoder of format {content.get('format')!r}; this version reads format {FORMAT}")
        return cls(
            TableSchema(**content["table"]),
            {name: Vocabulary(values) for name, values in content["vocabularies"].items()},
            {name: Scaling(**scaling) for name, scaling in content["scalings"].items()},
            {name: tuple(values) for name, values in content["classes"].items()},
            dict(content["longest"]),
            content["weight"],
        )


def _column(frame: pl.DataFrame, name: str) -> pl.Series:
    if name in frame.columns:
        return frame[name]
    return pl.Series(name, [None], dtype=pl.String).new_from_index(0, len(frame))
