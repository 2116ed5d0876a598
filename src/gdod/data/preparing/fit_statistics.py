"""Fit target statistics to the training rows of a table: choose columns and pairs of them, and count their labels.

Sequences and numbers have statistics of their own, but no pairs.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gdod._checks import listed
from gdod.data.preparing.counts import Counts
from gdod.data.preparing.encoder import Encoder, IdsLookUp
from gdod.data.preparing.feature_options import FeatureOptions
from gdod.data.preparing.folds import assign_folds
from gdod.data.preparing.number_values import NumberVocabulary, similar_ids
from gdod.data.preparing.split import TRAIN, Parts
from gdod.data.preparing.target_statistics import (
    Fitting,
    Folds,
    IdsByColumn,
    Past,
    SequenceIds,
    Source,
    SourceTable,
    Target,
    by_row,
)
from gdod.data.tables.columns import label_values, list_texts, numeric_values, weight_values
from gdod.data.tables.raw_table import RawTable
from gdod.data.tables.table_schema import CategoricalColumn, NumericColumn, SequenceColumn
from gdod.data.tables.values import Origin, text

# Of a label with more classes, the most frequent ones have statistics.
MOST_CLASSES = 20
# If there are too many pairs, they are chosen by how they do on so many training rows; on fewer if they are many.
_SAMPLE_ROWS = 50_000
_FEWEST_SAMPLE_ROWS = 5_000
_PAIRS_OF_WHOLE_SAMPLE = 500
# Of more columns than this, those that alone explain most are paired.
_MOST_PAIRED = 200
# Of more numeric columns than this, those with the most different values may get statistics.
_MOST_NUMBERS = 64
# The very same numbers must explain this share of the labels' deviance, and so many times as much as similar ones do:
# less is chance, or a model that knows the number's size has little of it.
_LEAST_GAIN, _TIMES_SIMILAR = 0.005, 1.5
# Statistics that explain no more than this share of the deviance by themselves are taken for chance.
_NOISE = 0.001
# Sources whose gains are worked out together: what they count is in memory at once.
_TOGETHER = 32


@dataclass(frozen=True)
class TrainingStatistics:
    """The statistics of training rows, out of their own folds."""

    tables: dict[Source, SourceTable]
    fitting: Fitting
    folds: Parts  # [n], the fold of each row of the table

    def look_up(self, rows: NDArray[np.int64]) -> IdsLookUp:
        """Return what gives the statistics of the training rows at these places in the table."""
        folds = self.folds[rows].astype(np.int64)

        def of_ids(source: Source, ids: IdsByColumn) -> NDArray[np.float32]:
            keys = self.fitting.training_keys(source, ids, folds)
            return by_row(source, ids, self.tables[source].look_up(keys))

        return of_ids


@dataclass(frozen=True)
class LabelTarget:
    """A target, and where its labels are."""

    target: Target
    label: int  # the place of the label among the table's
    value: int | None = None  # the number of the class whose rate it is

    def of(self, labels: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the labels of this target, nan where there is none: [n, K] -> [n]."""
        column = labels[:, self.label]
        return column if self.value is None else np.where(np.isnan(column), np.nan, column == self.value)


@dataclass(frozen=True)
class _Rows:
    """Training rows as statistics are fitted to them."""

    ids: Mapping[str, NDArray[np.int64] | SequenceIds]
    folds: NDArray[np.int64]  # [n]
    labels: NDArray[np.float64]  # [n, K], nan where there is none
    weights: NDArray[np.float64] | None  # [n], mean 1 over the training part

    def add_to(self, fitting: Fitting, targets: Sequence[LabelTarget]) -> None:
        labels = np.stack([target.of(self.labels) for target in targets], 1)  # [n, T]
        fitting.add(self.ids, self.folds, labels, self.weights)


def fit_statistics(
    table: RawTable, parts: Parts, encoder: Encoder, options: FeatureOptions
) -> tuple[Encoder, TrainingStatistics | None, tuple[str, ...]]:
    """Return the encoder with statistics, those of the training rows themselves, and sentences about the choice.

    If no column calls for statistics, the encoder stays as it is and there are none.
    It goes through the table twice more, and once more where numbers repeat. Memory is bounded by ``options.keys`` for
    each column and pair, by a few GB for all of them, and by three bytes a row.
    """
    added = encoder.added
    assert added is not None
    split, missing = encoder.table_schema.split, encoder.table_schema.file.missing
    folds = Folds(options.folds, in_time=split.by == "time")
    of_rows = assign_folds(table, parts, split, missing, options.folds)
    schema = encoder.extended_schema
    columns = [name for name in schema.of(CategoricalColumn) if len(encoder.vocabularies[name]) > 1]
    sequences = [name for name in schema.of(SequenceColumn) if options.sequences and len(encoder.vocabularies[name])]
    rows_there = int((parts == TRAIN).sum())
    scarce = {name for name in columns if rows_there < options.rows_per_value * len(encoder.vocabularies[name])}
    numbers, unpaired = _most_different(added.number_values), sequences
    if not scarce and not sequences and not numbers:
        return encoder, None, ()
    source_rows = SourceRows(table, encoder, [*columns, *sequences, *numbers], of_rows)
    sample = source_rows.joined(_sample(parts, split.seed, len(columns)))
    targets = _targets(encoder, sample.labels)
    sizes = encoder.largest_ids

    def fitting(sources: Sequence[Source], sizes: Mapping[str, int] = sizes) -> Fitting:
        kinds = [target.target for target in targets]
        return Fitting(sources, sizes, kinds, folds, options.prior, options.keys)

    def gains(sources: Sequence[Source]) -> dict[Source, float]:
        """Return how much each source alone explains in the sample, the mean over targets."""
        means: dict[Source, float] = {}
        for first in range(0, len(sources), _TOGETHER):
            some = fitting(sources[first : first + _TOGETHER])
            sample.add_to(some, targets)
            means |= {source: float(gain.mean()) for source, gain in some.gains().items()}
        return means

    if numbers:
        of_numbers = replace(source_rows, columns=list(numbers)).chunks(parts == TRAIN)
        bins = {name: similar_ids(len(one), _plain(sample.ids[name]), rows_there) for name, one in numbers.items()}
        telling = _telling_numbers(of_numbers, bins, fitting, targets)
        added = replace(added, number_values={name: numbers[name] for name in telling})
        encoder = replace(encoder, added=added)
        unpaired = [*sequences, *telling]
        if not scarce and not unpaired:
            return encoder, None, ()
        source_rows = replace(source_rows, encoder=encoder, columns=[*columns, *unpaired])
    room = options.columns // (len(targets) + 1)
    every: list[Source] = [(name,) for name in (*columns, *unpaired) if name in scarce or name in unpaired]
    most = max(0, min(options.pairs, room - len(every)))
    candidates = _pairs(columns, scarce) if most else []
    alone = gains(every) if len(every) > room or len(candidates) > most else {}
    singles, pairs = _best(every, alone, room), candidates
    if len(candidates) > most:
        paired: list[Source] = [(name,) for name in columns]
        alone |= gains([source for source in paired if source not in alone])
        candidates = _pairs([column for (column,) in _best(paired, alone, _MOST_PAIRED)], scarce)
        # A pair that alone tells less than one of its columns may still add to both, so even those have a rank.
        beyond = {pair: gain - max(alone[(one,)] for one in pair) for pair, gain in gains(candidates).items()}
        pairs = _best(candidates, beyond, most)

    counted = fitting([*singles, *pairs])
    for rows in source_rows.chunks(parts == TRAIN):
        rows.add_to(counted, targets)
    sums, training = counted.sums(), counted.training_tables()
    tables = counted.tables(sums)
    gained = counted.gains(training)
    counted.forget()
    # What is zero in every training row (say, the column that groups are of) would be news to a model later on.
    told = {
        source: table
        for source, table in tables.items()
        if training[source].numbers.any() and (options.noise or _tells(gained[source]))
    }
    kinds = tuple(target.target for target in targets)
    values = {name: values for name, values in added.number_values.items() if (name,) in told}
    added = replace(added, targets=kinds, statistics=told, number_values=values)
    of_columns = f"{sum(source in told for source in singles)} of {len(columns) + len(unpaired)} columns"
    note = _note(of_columns, sum(len(source) == 2 for source in told), len(candidates), len(targets), list(values))
    assert isinstance(encoder.counts, Counts)
    past = Past(counted.base, {source: sums[source] for source in told})
    counts = replace(encoder.counts, targets=tuple((one.label, one.value) for one in targets), past=past)
    return (
        replace(encoder, added=added, counts=counts),
        TrainingStatistics({source: training[source] for source in told}, counted, of_rows),
        (note,) if told else (),
    )


def _most_different(values: Mapping[str, NumberVocabulary]) -> dict[str, NumberVocabulary]:
    """Return no more numeric columns than are tried, those with the most different values."""
    chosen = set(sorted(values, key=lambda name: -len(values[name]))[:_MOST_NUMBERS])
    return {name: each for name, each in values.items() if name in chosen}


def _telling_numbers(
    chunks: Iterator["_Rows"],
    bins: Mapping[str, NDArray[np.int64]],
    fitting: Callable[[Sequence[Source], Mapping[str, int]], Fitting],
    targets: Sequence[LabelTarget],
) -> list[str]:
    """Return the numeric columns whose exact values explain the labels of other rows much better than bins of them do.

    All training rows are counted for it: in a sample, values would repeat less often than they do.

    Args:
        chunks: the training rows, with the ids of numbers.
        bins: the bin of each id.
        fitting: makes the counts of sources whose columns have these largest ids.
        targets: the targets that are to be explained.
    """
    sources: list[Source] = [(name,) for name in bins]
    exact = fitting(sources, {name: len(of_id) - 1 for name, of_id in bins.items()})
    similar = fitting(sources, {name: int(of_id.max()) for name, of_id in bins.items()})
    for rows in chunks:
        rows.add_to(exact, targets)
        in_bins = {name: of_id[_plain(rows.ids[name])] for name, of_id in bins.items()}
        replace(rows, ids=in_bins).add_to(similar, targets)
    of_exact, of_similar = exact.gains(), similar.gains()
    means = {name: (of_exact[(name,)].mean(), of_similar[(name,)].mean()) for name in bins}
    return [name for name, (own, of_bins) in means.items() if own > max(_LEAST_GAIN, _TIMES_SIMILAR * of_bins)]


def _tells(gains: NDArray[np.float64]) -> bool:
    """Return whether a source's statistics explain more than chance, of all targets [T] or much of a single one."""
    return bool(gains.mean() > _NOISE or gains.max() > _LEAST_GAIN)


def _plain(ids: "NDArray[np.int64] | SequenceIds") -> NDArray[np.int64]:
    assert not isinstance(ids, SequenceIds)
    return ids


def _pairs(columns: Sequence[str], scarce: Set[str]) -> list[Source]:
    """Return all pairs of columns of which at least one is among the scarce."""
    return [pair for pair in combinations(columns, 2) if not scarce.isdisjoint(pair)]


def _best(sources: list[Source], gains: dict[Source, float], most: int) -> list[Source]:
    """Return the sources that gain most, in the order they are in."""
    if len(sources) <= most:
        return sources
    chosen = set(sorted(sources, key=lambda source: -gains[source])[: max(0, most)])
    return [source for source in sources if source in chosen]


def _note(columns: str, pairs: int, candidates: int, targets: int, numbers: Sequence[str]) -> str:
    of_pairs = f" and {pairs} of {candidates:,} pairs" if candidates else ""
    repeat = f"; among them numbers that repeat: {listed(numbers)}" if numbers else ""
    return f"target statistics: {targets + 1} numbers for each of {columns}{of_pairs}{repeat}"


def _sample(parts: Parts, seed: int, columns: int) -> NDArray[np.bool_]:
    """Return which training rows pairs are chosen by: about so many, drawn at random, as a table may be sorted. [n]"""
    pairs = max(1, columns * (columns - 1) // 2)
    wanted = max(_FEWEST_SAMPLE_ROWS, min(_SAMPLE_ROWS, _SAMPLE_ROWS * _PAIRS_OF_WHOLE_SAMPLE // pairs))
    train: NDArray[np.bool_] = parts == TRAIN
    share = wanted / max(1, int(train.sum()))
    if share < 1:
        draw = np.random.default_rng([seed, 0x5A3E]).integers(0, 1 << 16, len(parts), dtype=np.uint16)
        train &= draw < max(1, round(share * (1 << 16)))
    return train


def _targets(encoder: Encoder, labels: NDArray[np.float64]) -> list[LabelTarget]:
    """Return what is estimated: a rate for a binary label and for each frequent class, a mean for a number.

    ``labels`` [n, K] of some training rows tell which classes are frequent.
    """
    targets = []
    for at, (name, label) in enumerate(encoder.table_schema.labels.items()):
        if label.kind != "multiclass":
            targets.append(LabelTarget(Target(name, "rate" if label.kind == "binary" else "mean"), at))
            continue
        classes, there = encoder.classes[name], labels[~np.isnan(labels[:, at]), at].astype(np.int64)
        counts = np.bincount(there, minlength=len(classes))
        for value in sorted(np.argsort(-counts, kind="stable")[:MOST_CLASSES].tolist()):
            targets.append(LabelTarget(Target(f"{name} = {classes[value]}"), at, value))
    return targets


@dataclass(frozen=True)
class SourceRows:
    """Goes through chosen rows of a table as `_Rows`."""

    table: RawTable
    encoder: Encoder
    columns: Sequence[str]
    folds: Parts

    def chunks(self, chosen: NDArray[np.bool_]) -> Iterator[_Rows]:
        first = 0
        for chunk in self.table.chunks(self.encoder.table_schema.needed):
            rows = np.flatnonzero(chosen[first : first + len(chunk.frame)])
            if len(rows):
                yield self._rows(chunk.frame[rows], chunk.origin.of(rows), self.folds[first + rows])
            first += len(chunk.frame)

    def joined(self, chosen: NDArray[np.bool_]) -> _Rows:
        """Return all chosen rows at once."""
        parts = list(self.chunks(chosen))
        return _Rows(
            {name: _joined([part.ids[name] for part in parts]) for name in self.columns},
            np.concatenate([part.folds for part in parts]),
            np.concatenate([part.labels for part in parts]),
            None if parts[0].weights is None else np.concatenate([part.weights for part in parts]),
        )

    def _rows(self, frame: pl.DataFrame, origin: Origin, folds: Parts) -> _Rows:
        encoder, schema = self.encoder, self.encoder.table_schema
        labels = np.stack(
            [
                label_values(frame, name, schema, encoder.classes.get(name), origin).to_numpy()  # null becomes nan
                for name in schema.labels
            ],
            1,
        )
        weights = None
        if schema.weight is not None:
            known = weight_values(frame[schema.weight], schema.file.missing, origin)
            weights = known.fill_null(encoder.weight).to_numpy() / encoder.weight
        frame = encoder.with_times(frame)
        ids = {name: self._ids(frame, name, origin) for name in self.columns}
        return _Rows(ids, folds.astype(np.int64), labels, weights)

    def _ids(self, frame: pl.DataFrame, name: str, origin: Origin) -> NDArray[np.int64] | SequenceIds:
        """Return the ids of a column of training rows, none of which is unknown."""
        schema = self.encoder.extended_schema
        column, missing = schema.columns[name], schema.file.missing
        if isinstance(column, NumericColumn):
            assert self.encoder.added is not None
            numbers = numeric_values(frame[name], column, missing, origin).to_numpy()  # null becomes nan
            return self.encoder.added.number_values[name].ids(numbers)
        vocabulary = self.encoder.vocabularies[name]
        if not isinstance(column, SequenceColumn):
            return vocabulary.ids(text(frame[name], missing)).astype(np.int64)
        lists = list_texts(frame[name], column.separator, missing, column.longest)
        return SequenceIds(vocabulary.ids(lists.values).astype(np.int64), lists.rows, len(frame))


def _joined(parts: Sequence[NDArray[np.int64] | SequenceIds]) -> NDArray[np.int64] | SequenceIds:
    """Return the ids of a column in all rows from those in some."""
    sequences = [part for part in parts if isinstance(part, SequenceIds)]
    if not sequences:
        return np.concatenate([part for part in parts if not isinstance(part, SequenceIds)])
    ends = np.cumsum([part.size for part in sequences])
    rows = [part.rows + end - part.size for part, end in zip(sequences, ends.tolist(), strict=True)]
    return SequenceIds(np.concatenate([part.ids for part in sequences]), np.concatenate(rows), int(ends[-1]))
