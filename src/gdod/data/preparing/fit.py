"""Fit an encoder to the training rows of a table: vocabularies, scalings, classes, mean weight."""

from collections.abc import Iterator, Mapping

import numpy as np
import polars as pl

from gdod.data.preparing.added_fields import AddedFields
from gdod.data.preparing.counts import ColumnCounts, Counts
from gdod.data.preparing.encoder import Encoder, VectorField
from gdod.data.preparing.feature_options import FeatureOptions
from gdod.data.preparing.number_values import NumberValues
from gdod.data.preparing.scaling import Moments
from gdod.data.preparing.split import TRAIN, Parts
from gdod.data.preparing.time_fields import TimeFields, extended, fit_times, with_times
from gdod.data.preparing.vectors import Vectors
from gdod.data.preparing.vocabulary import Vocabulary, VocabularyCounts
from gdod.data.tables.columns import label_values, list_texts, numeric_values, weight_values
from gdod.data.tables.raw_table import RawTable
from gdod.data.tables.table_schema import CategoricalColumn, LabelColumn, NumericColumn, SequenceColumn, TableSchema
from gdod.data.tables.values import Origin, text
from gdod.errors import InputError


def fit(
    table: RawTable,
    schema: TableSchema,
    parts: Parts,
    options: FeatureOptions | None = None,
    vectors: Mapping[str, Vectors] | None = None,
) -> Encoder:
    """Return the encoder of the training rows among ``parts`` [n]; memory grows with the vocabularies only.

    With options it also knows which values are rare, and which numbers can be missing or repeat, but no statistics yet.
    Values with vectors are never rare, and are known even if they do not occur.
    """
    times = fit_times(table, schema, parts) if options is not None and options.times else ()
    fitting = _Fitting(schema, options, times, vectors or {})
    for frame, origin in training_rows(table, schema, parts):
        fitting.add(frame, origin)
    return fitting.encoder()


def training_rows(table: RawTable, schema: TableSchema, parts: Parts) -> Iterator[tuple[pl.DataFrame, Origin]]:
    """Yield the training rows of a table, chunk by chunk."""
    first = 0
    for chunk in table.chunks(schema.needed):
        rows = np.flatnonzero(parts[first : first + len(chunk.frame)] == TRAIN)
        first += len(chunk.frame)
        if len(rows):
            yield chunk.frame[rows], chunk.origin.of(rows)


class _Fitting:
    """The state of the fit after some chunks of training rows."""

    def __init__(
        self,
        raw: TableSchema,
        options: FeatureOptions | None,
        times: tuple[TimeFields, ...],
        vectors: Mapping[str, Vectors],
    ) -> None:
        schema = extended(raw, times)
        self.raw, self.schema, self.options, self.times = raw, schema, options, times
        self.vectors = {name: VectorField(one.size, one.frozen) for name, one in vectors.items()}
        named = {**schema.of(CategoricalColumn), **schema.of(SequenceColumn)}
        known = {name: one.values for name, one in vectors.items()}
        self.counts = {name: VocabularyCounts(name, column.limit, known.get(name)) for name, column in named.items()}
        self.moments = {name: Moments(column.scale) for name, column in schema.of(NumericColumn).items()}
        self.gaps = dict.fromkeys(self.moments, 0)
        self.numbers: dict[str, NumberValues] = {}
        if options is not None and options.statistics and options.repeated_numbers:
            self.numbers = {name: NumberValues(options.keys) for name in schema.of(NumericColumn)}
        self.longest = dict.fromkeys(schema.of(SequenceColumn), 1)
        self.values = {
            name: VocabularyCounts(name, 1_000)
            for name, label in schema.labels.items()
            if label.kind == "multiclass" and label.classes is None
        }
        self.labels = {name: _LabelRange() for name in schema.labels}
        self.weights, self.rows, self.all_rows = 0.0, 0, 0
        self.label_weights = {name: [0.0, 0] for name in schema.label_weights}  # their sum and number, by label

    def add(self, frame: pl.DataFrame, origin: Origin) -> None:
        missing = self.schema.file.missing
        self.all_rows += len(frame)
        frame = with_times(frame, self.times, missing)
        for name, column in self.schema.columns.items():
            if isinstance(column, CategoricalColumn):
                self.counts[name].add(text(frame[name], missing))
            elif isinstance(column, SequenceColumn):
                lists = list_texts(frame[name], column.separator, missing, column.longest)
                self.counts[name].add(lists.values)
                self.longest[name] = max(self.longest[name], int(np.bincount(lists.rows).max(initial=0)))
            elif isinstance(column, NumericColumn):
                known = numeric_values(frame[name], column, missing, origin)
                self.moments[name].add(known)
                self.gaps[name] += known.null_count()
                if name in self.numbers:
                    self.numbers[name].add(known)
            elif name in self.values:
                self.values[name].add(text(frame[name], missing))
        self._add_labels(frame, origin)
        if self.schema.weight is not None:
            weights = weight_values(frame[self.schema.weight], missing, origin).drop_nulls()
            self.weights += float(weights.sum())
            self.rows += len(weights)

    def _add_labels(self, frame: pl.DataFrame, origin: Origin) -> None:
        for name, label in self.schema.labels.items():
            if label.kind != "multiclass":
                known = label_values(frame, name, self.schema, None, origin)
                self.labels[name].add(known)
                self._add_label_weights(frame, name, known.is_not_null(), origin)
                continue
            values = text(frame[name], self.schema.file.missing)
            classes = label.classes or tuple(values.drop_nulls().unique())
            there = label_values(frame, name, self.schema, classes, origin).is_not_null()  # also where `when` is 1
            self.labels[name].add(values.filter(there))
            self._add_label_weights(frame, name, there, origin)

    def _add_label_weights(self, frame: pl.DataFrame, label: str, there: pl.Series, origin: Origin) -> None:
        """Add the weights of a label of its own in the rows that have the label."""
        column = self.schema.label_weights.get(label)
        if column is not None:
            weights = weight_values(frame[column], self.schema.file.missing, origin).filter(there).drop_nulls()
            self.label_weights[label][0] += float(weights.sum())
            self.label_weights[label][1] += len(weights)

    def encoder(self) -> Encoder:
        for name, label in self.schema.labels.items():
            self.labels[name].check(name, label)
        for counts in self.counts.values():
            counts.check_known()
        vocabularies = {
            name: counts.vocabulary(self.schema.columns[name].rare)  # type: ignore[union-attr]
            for name, counts in self.counts.items()
        }
        added = None
        if self.options is not None:
            kept = {name: counts.frequent(self._rare(name)) for name, counts in self.counts.items()}
            # Statistics tell rare values apart.
            vocabularies = {name: Vocabulary(counts.values(self._rare(name))) for name, counts in self.counts.items()}
            gaps = tuple(name for name, count in self.gaps.items() if count) if self.options.missing_flags else ()
            repeated = {name: numbers.repeated(self.options.rows_per_value) for name, numbers in self.numbers.items()}
            numbers = {name: one for name, one in repeated.items() if one is not None}
            added = AddedFields(kept, gaps, times=self.times, number_values=numbers)
        return Encoder(
            self.raw,
            vocabularies,
            {name: moments.scaling() for name, moments in self.moments.items()},
            {name: self._classes(name) for name, label in self.schema.labels.items() if label.kind == "multiclass"},
            self.longest,
            self._weight(),
            added,
            label_weights={name: self._label_weight(name) for name in self.label_weights},
            vectors=self.vectors,
            counts=Counts(
                self.all_rows,
                columns={
                    name: ColumnCounts.of(counts.in_order(self._rare(name)), len(vocabularies[name]), self._rare(name))
                    for name, counts in self.counts.items()
                },
            ),
        )

    def _rare(self, name: str) -> int:
        """Return how often a value must occur for an id of its own: as the schema says, or else the options."""
        column = self.schema.columns[name]
        own: int = column.rare  # type: ignore[union-attr]
        return own if self.options is None or "rare" in column.model_fields_set else self.options.rare

    def _classes(self, name: str) -> tuple[str, ...]:
        listed = self.schema.labels[name].classes
        classes = self.values[name].vocabulary(rare=1).values.to_list() if listed is None else listed
        if odd := [one for one in classes if "\0" in one]:  # predictions get columns with names of classes
            raise InputError(f"the label {name!r} has the class {odd[0]!r}, with a zero byte; use other names")
        if listed is not None:
            return listed
        # Numbers in their own order, 2 before 10; other text by name.
        try:
            return tuple(sorted(classes, key=float))
        except ValueError:
            return tuple(sorted(classes))

    def _weight(self) -> float:
        if self.schema.weight is None:
            return 1.0
        if not self.weights:
            raise InputError(f"the weights {self.schema.weight!r} of the training rows are all 0 or missing")
        return self.weights / self.rows

    def _label_weight(self, label: str) -> float:
        total, rows = self.label_weights[label]
        if not total:
            column = self.schema.label_weights[label]
            raise InputError(f"the weights {column!r} are all 0 or missing in the training rows with a label {label!r}")
        return total / rows


class _LabelRange:
    """The number of labels of a task, and some of them: two that differ, if any do."""

    def __init__(self) -> None:
        self.count = 0
        self.some: set[object] = set()

    def add(self, values: pl.Series) -> None:
        values = values.drop_nulls()
        self.count += len(values)
        if len(values) and len(self.some) < 2:
            self.some |= {values.min(), values.max()}

    def check(self, name: str, label: LabelColumn) -> None:
        """Raise for a task without labels, or with one class only: it has nothing to learn."""
        where = f"where {label.when!r} is 1 " if label.when else ""
        hint = f"{'check `when`, ' if label.when else ''}use `type: ignore`, or split in another way"
        if not self.count:
            raise InputError(
                f"the label {name!r} is missing in every training row {where}".rstrip()
                + f", so there is nothing to learn; {hint}"
            )
        if len(self.some) == 1 and label.kind != "regression":
            (only,) = self.some
            said = f"{only:g}" if isinstance(only, float) else repr(only)
            raise InputError(
                f"the label {name!r} is {said} in all {self.count:,} labelled training rows {where}"
                f"(one class only), so there is nothing to learn; {'check `positive`' if label.positive else hint}"
            )
