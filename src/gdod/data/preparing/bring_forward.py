"""Bring an encoder forward to the rows of a new table: a day that has come since it was fitted.

- Values that are new get ids after those that are there, the most frequent first. An id never changes.
- A value that by now has enough rows gets a vector: the model's ids for such values come after those that it has.
- Counts, and the sums that target statistics are made of, are multiplied by 0.5^(1 / half-life) before the rows of the
  new table are added, so that a row counts half after as many updates as the half-life.
- The new table's training rows see those past sums in full, since they are of other rows, and of the new table only
  what lies in other folds. So no row sees its own label.
- Everything else stays as it was fitted: the scales and bins of numbers, which columns and pairs have statistics, the
  classes, the mean weights, the longest sequence.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from gdod._checks import listed
from gdod.data.preparing.counts import ColumnCounts, Counts, StoredCounts
from gdod.data.preparing.encoder import Encoder
from gdod.data.preparing.feature_options import FeatureOptions
from gdod.data.preparing.fit import training_rows
from gdod.data.preparing.fit_statistics import LabelTarget, SourceRows, TrainingStatistics
from gdod.data.preparing.folds import assign_folds
from gdod.data.preparing.number_values import NumberValues
from gdod.data.preparing.split import TRAIN, Parts
from gdod.data.preparing.target_statistics import Fitting, Folds, Past, Source, SourceSums
from gdod.data.preparing.vocabulary import MOST, Vocabulary, VocabularyCounts
from gdod.data.tables.columns import label_values, list_texts, numeric_values
from gdod.data.tables.raw_table import RawTable
from gdod.data.tables.table_schema import CategoricalColumn, NumericColumn, SequenceColumn, Split, TableSchema
from gdod.data.tables.values import Origin, text
from gdod.errors import InputError

_VALIDATION = 0.1  # the share of the rows, where the schema names a file


@dataclass(frozen=True)
class Previous:
    """The encoder of an earlier run, and how it is brought forward."""

    encoder: Encoder
    half_life: float
    """After how many updates what was counted of a row counts half."""
    validation: float | None = None
    """The share of the new table's rows for validation; None: as in the earlier run."""
    test: float = 0.0
    """The share of the new table's rows for a test."""

    @property
    def fingerprint(self) -> dict[str, object]:
        """Plain values that differ if anything does that prepared data depends on."""
        content = json.dumps(self.encoder.to_json(), sort_keys=True)
        counts = self.encoder.counts.about["checksum"] if isinstance(self.encoder.counts, StoredCounts) else None
        return {
            "encoder": hashlib.sha256(content.encode()).hexdigest(),
            "counts": counts,
            "half_life": self.half_life,
        }

    @property
    def schema(self) -> TableSchema:
        """The columns of the earlier table, with the split of the new one.

        It is split in the same way, by time, at random or by group, but without a test part unless one is asked for.
        """
        schema = self.encoder.table_schema
        split = schema.split
        own = _VALIDATION if isinstance(split.validation, str) else split.validation
        shares = {"validation": own if self.validation is None else self.validation, "test": self.test}
        kind = "random" if split.by == "files" else split.by
        return schema.model_copy(update={"split": Split(**{**split.model_dump(), "by": kind, **shares})})

    def check_new(self, hashes: Mapping[str, str]) -> None:
        """Raise if a table, by its name and the hash of its content, is one that the earlier run has learned from.

        The sums of the past would then tell its rows their own labels.
        """
        counts = self.encoder.counts
        assert isinstance(counts, StoredCounts)
        for name, seen in zip(hashes, counts.seen(hashes.values()), strict=True):
            if seen:
                raise InputError(
                    f"{name} was trained on already, by the run to go on from or one before it, and its rows would now "
                    "see their own labels in the target statistics; give rows that are new"
                )

    def check_schema(self, given: TableSchema, where: str) -> None:
        """Raise if a schema that is given besides has other columns than the earlier run's."""
        before, now = (one.to_json() for one in (self.encoder.table_schema, given))
        changes = _differences(before["columns"], now["columns"])
        changes += [
            f"file.{name} was {before['file'][name]!r} and is {value!r}"
            for name, value in now["file"].items()
            if value != before["file"][name] and name == "missing"
        ]
        if changes:
            raise InputError(
                f"{where} is not that of the run to go on from: {'; '.join(changes)}. An update keeps the columns as "
                "they are: leave the schema out, or train anew without --from"
            )


def _differences(before: Mapping[str, dict[str, object]], now: Mapping[str, dict[str, object]]) -> list[str]:
    """Return a sentence for each column that differs between two schemas."""
    changes = [f"the column {name!r} is missing" for name in before if name not in now]
    changes += [f"the column {name!r} is new" for name in now if name not in before]
    for name in before:
        for key in dict.fromkeys((*before[name], *now.get(name, before[name]))):
            was, value = before[name].get(key), now.get(name, before[name]).get(key)
            if was != value:
                changes.append(f"{key} of {name!r} was {was!r} and is {value!r}")
    return changes


def bring_forward(
    table: RawTable, schema: TableSchema, parts: Parts, previous: Previous, options: FeatureOptions | None
) -> tuple[Encoder, TrainingStatistics | None, tuple[str, ...]]:
    """Return the encoder brought forward, the statistics of the new training rows if there are any, and notes.

    ``schema`` is that of the encoder with the split of the new table, ``options`` are those it was fitted with.
    """
    encoder = previous.encoder
    if encoder.counts is None:
        raise InputError("the encoder has no counts to bring forward, as those of earlier versions; train anew")
    counts = encoder.counts.read() if isinstance(encoder.counts, StoredCounts) else encoder.counts
    keep = 0.5 ** (1 / previous.half_life)
    seen = _Seen(replace(encoder, table_schema=schema))
    for frame, origin in training_rows(table, schema, parts):
        seen.add(frame, origin)
    seen.check_labels()
    columns = {name: _Column.of(seen.counts[name], counts.columns[name], encoder, keep) for name in seen.counts}
    grown = _grown(replace(encoder, table_schema=schema), columns, seen)
    counts = Counts(
        counts.rows + seen.rows,
        counts.updates + 1,
        {name: column.counts for name, column in columns.items()},
        counts.targets,
        counts.tables,
        _aged(counts.past, encoder, grown, keep),
    )
    training = None
    if grown.added is not None and grown.added.statistics and options is not None:
        grown, counts, training = _statistics(table, parts, grown, counts, options)
    return replace(grown, counts=counts), training, (_note(encoder, grown), *seen.notes(encoder))


class _Seen:
    """What the training rows of the new table hold."""

    def __init__(self, encoder: Encoder) -> None:
        self.encoder, self.rows = encoder, 0
        schema = encoder.extended_schema
        named = {**schema.of(CategoricalColumn), **schema.of(SequenceColumn)}
        self.counts = {name: VocabularyCounts(name, column.limit) for name, column in named.items()}
        repeated = encoder.added.number_values if encoder.added is not None else ()
        self.numbers = {name: NumberValues(MOST) for name in repeated}
        self.labelled, self.positive = dict.fromkeys(schema.labels, 0), dict.fromkeys(schema.labels, 0.0)
        self.words: dict[str, set[str]] = {name: set() for name, label in schema.labels.items() if label.positive}

    def add(self, frame: pl.DataFrame, origin: Origin) -> None:
        encoder, missing = self.encoder, self.encoder.table_schema.file.missing
        self.rows += len(frame)
        for name in encoder.table_schema.labels:
            known = self._labels(frame, name, origin)
            self.labelled[name] += len(known)
            self.positive[name] += float((known != 0).sum())
            if name in self.words and len(self.words[name]) < 8:
                self.words[name] |= set(text(frame[name], missing).drop_nulls().unique()[:8])
        for name, numbers in self.numbers.items():
            column = encoder.table_schema.of(NumericColumn)[name]
            numbers.add(numeric_values(frame[name], column, missing, origin))
        frame = encoder.with_times(frame)
        for name, counts in self.counts.items():
            column = encoder.extended_schema.columns[name]
            if isinstance(column, SequenceColumn):
                counts.add(list_texts(frame[name], column.separator, missing, column.longest).values)
            else:
                counts.add(text(frame[name], missing))

    def _labels(self, frame: pl.DataFrame, name: str, origin: Origin) -> pl.Series:
        """Return the values of a label that are there; raise if one is none of those that the run knows."""
        encoder = self.encoder
        try:
            return label_values(frame, name, encoder.table_schema, encoder.classes.get(name), origin).drop_nulls()
        except InputError as error:
            raise InputError(
                f"{error}. An update keeps labels as the run to go on from has them: leave such rows out, or train "
                "anew without --from"
            ) from error

    def check_labels(self) -> None:
        """Raise if no label is there, or one whose positive words are given has none of them."""
        if not any(self.labelled.values()):
            raise InputError(
                f"the labels {listed(self.labelled)} are missing in every training row, so there is nothing to learn"
            )
        for name, words in self.words.items():
            if self.labelled[name] and not self.positive[name]:
                positive = self.encoder.table_schema.labels[name].positive
                raise InputError(
                    f"the label {name!r} is never {listed(positive or ())} in the training rows, which is what counts "
                    f"as 1 in the run to go on from; here it is {listed(sorted(words))}. Were its words changed?"
                )

    def notes(self, before: Encoder) -> list[str]:
        """Return a sentence for each label without values, and each column with none that was seen before."""
        notes = [
            f"the label {name!r} is missing in every training row, so this task learns nothing from this update"
            for name, count in self.labelled.items()
            if not count
        ]
        for name, counts in self.counts.items():
            values = counts.merged()["value"]
            if len(values) and len(before.vocabularies[name]) and not before.vocabularies[name].ids(values).any():
                notes.append(f"column {name!r}: none of its {len(values):,} values was ever seen before")
        return notes


@dataclass(frozen=True)
class _Column:
    """A column's values after the new table was counted."""

    vocabulary: Vocabulary
    counts: ColumnCounts

    @classmethod
    def of(cls, seen: VocabularyCounts, before: ColumnCounts, encoder: Encoder, keep: float) -> "_Column":
        """Return the column of an encoder with the counts of before, each ``keep`` times, and those of the new rows."""
        old, now = encoder.vocabularies[seen.name], seen.merged()
        ids = old.ids(now["value"])
        known = keep * before.known
        known[ids[ids > 0] - 1] += now["count"].to_numpy().astype(np.float64)[ids > 0]
        others = pl.concat(
            [
                before.waiting.with_columns(pl.col("count") * keep),
                now.filter(pl.Series(ids == 0)).select("value", pl.col("count").cast(pl.Float64)),
            ]
        )
        others = others.group_by("value").agg(pl.col("count").sum())
        others = others.sort(["count", "value"], descending=[True, False])
        if len(old) + len(others) > (limit := seen.limit or MOST):
            raise InputError(
                f"column {seen.name!r} has more than {limit:,} different values with those of this update; raise its "
                "`limit` in the schema and train anew, on rows of fewer days"
            )
        # With options even rare values have an id, for statistics.
        taken = len(others) if encoder.added is not None else int((others["count"] >= before.rare).sum())
        values = pl.concat([old.values, others["value"][:taken].alias(old.values.name)])
        counts = np.concatenate([known, others["count"][:taken].to_numpy()])
        return cls(Vocabulary(values), ColumnCounts(counts, others[taken:], before.rare))

    def promoted(self, kept: int, before: tuple[int, ...]) -> tuple[int, ...]:
        """Return the ids of values that get a vector by an update, those of ``before`` and new ones.

        ``kept``: how many values have had a vector.
        """
        enough = np.flatnonzero(self.counts.known >= self.counts.rare) + 1  # ids
        enough = enough[enough > kept - len(before)]
        return (*before, *enough[~np.isin(enough, np.array(before, np.int64))].tolist())


def _grown(encoder: Encoder, columns: Mapping[str, _Column], seen: _Seen) -> Encoder:
    """Return the encoder with the values of the columns, and vectors for those that have enough rows."""
    grown = replace(encoder, vocabularies={name: column.vocabulary for name, column in columns.items()})
    added = encoder.added
    if added is None:
        return grown
    promoted = {name: one.promoted(added.kept[name], added.promoted.get(name, ())) for name, one in columns.items()}
    kept = {name: added.kept[name] - len(added.promoted.get(name, ())) + len(ids) for name, ids in promoted.items()}
    promoted = {name: ids for name, ids in promoted.items() if ids}
    numbers = {name: known.with_new(seen.numbers[name].values()) for name, known in added.number_values.items()}
    return replace(grown, added=replace(added, kept=kept, promoted=promoted, number_values=numbers))


def _aged(past: Past, before: Encoder, now: Encoder, keep: float) -> Past:
    """Return what was counted, each row ``keep`` times, under the keys of columns that have more values by now."""
    sums: dict[Source, SourceSums] = {}
    for source, one in past.sums.items():
        if len(source) > 1:
            one = one.with_sizes(before.largest_ids[source[1]], now.largest_ids[source[1]])
        sums[source] = replace(one, sums=keep * one.sums)
    return Past(keep * past.base, sums)


def _statistics(
    table: RawTable, parts: Parts, encoder: Encoder, counts: Counts, options: FeatureOptions
) -> tuple[Encoder, Counts, TrainingStatistics]:
    """Return the encoder and the counts with the labels of the new rows, and the statistics of those rows."""
    assert encoder.added is not None
    split = encoder.table_schema.split
    # The past is the first fold; those of the new rows come after it.
    folds = Folds(options.folds + 1, in_time=split.by == "time")
    of_rows = assign_folds(table, parts, split, encoder.table_schema.file.missing, options.folds) + np.uint8(1)
    kinds = encoder.added.targets
    targets = [LabelTarget(kind, label, value) for kind, (label, value) in zip(kinds, counts.targets, strict=True)]
    sources = list(encoder.added.statistics)
    counted = Fitting(sources, encoder.largest_ids, kinds, folds, options.prior, options.keys, past=counts.past)
    columns = list(dict.fromkeys(column for source in sources for column in source))
    for rows in SourceRows(table, encoder, columns, of_rows).chunks(parts == TRAIN):
        rows.add_to(counted, targets)
    sums, training = counted.sums(), counted.training_tables()
    counts = replace(counts, past=Past(counted.base, sums))
    encoder = replace(encoder, added=replace(encoder.added, statistics=counted.tables(sums)))
    counted.forget()
    return encoder, counts, TrainingStatistics(training, counted, of_rows)


def _note(before: Encoder, now: Encoder) -> str:
    """Return what the update added, in words."""
    grown = [
        f"{name} {one['values_added']:,} values, {one['vectors_added']:,} vectors"
        for name, one in growth(before, now).items()
        if one["values_added"] or one["vectors_added"]
    ]
    return f"new in this update: {'; '.join(grown)}" if grown else "new in this update: no value of any column"


def growth(before: Encoder, now: Encoder) -> dict[str, dict[str, int]]:
    """Return how many values and how many vectors each column has in all, and how many an update added."""
    sizes, old = now.vector_counts, before.vector_counts
    return {
        name: {
            "values": len(values),
            "values_added": len(values) - len(before.vocabularies[name]),
            "vectors": sizes[name],
            "vectors_added": sizes[name] - old[name],
        }
        for name, values in now.vocabularies.items()
    }
