"""Target statistics: what the labels of other training rows with the same value say, as numbers for a model.

For a categorical column, or a pair of them, every value becomes a few numbers: for each target the smoothed log-odds of
its label among the training rows with this value (for a regression label the smoothed mean), relative to all rows, and
the logarithm of how many rows there are. A model then need not learn from a handful of rows what such a value means.

Of a column with several values a row, a row has the means of its values' numbers.

A training row must not see its own label in these numbers. The training rows are cut into folds, and a row's numbers
come from the other folds (where the split is by time: from earlier ones); all other rows use the whole training part.
Sums are made without a row's own fold, never by subtracting it, so that not even rounding tells of it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]
Floats = NDArray[np.float64]
Source = tuple[str, ...]
"""The column, or the two columns, whose values the statistics are of."""


@dataclass(frozen=True)
class SequenceIds:
    """The ids of a column with several values a row."""

    ids: Ids  # [m], all rows one after the other
    rows: Ids  # [m], the row each belongs to, rising
    size: int  # the number of rows

    def means(self, numbers: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the mean over each row's values, zeros for a row without any. [m, k] -> [n, k]"""
        counts = np.maximum(np.bincount(self.rows, minlength=self.size), 1)
        sums = [np.bincount(self.rows, weights=column, minlength=self.size) for column in numbers.T]
        return np.stack([each / counts for each in sums], 1).astype(np.float32)


IdsByColumn = Mapping[str, Ids | SequenceIds]
"""The ids of each column that statistics are of. [n]"""
# So many numbers of keys, folds and sums are held as one array, which is quicker than looking for those that are there.
_DENSE = 4_000_000
# So that no label's square is infinite.
_LARGEST = 1e140
_NARROWEST = 1e-7
# Of sequences, so many values are counted at once: there may be many more of them than rows.
_TOGETHER = 1 << 18
# More ids than any column has. Pairs are hashed as if each column had so many, so that a bucket stays the same as the
# columns get more values.
MOST_IDS = 1 << 28


@dataclass(frozen=True)
class Target:
    """One number that is estimated for each value of a column.

    A binary label is one target and each class of a multiclass label is one, both rates of a label of 0 or 1; a
    regression label is one whose mean is estimated.
    """

    name: str
    kind: Literal["rate", "mean"] = "rate"


@dataclass(frozen=True)
class Folds:
    """How training rows are kept from seeing their own labels."""

    count: int = 10
    in_time: bool = False
    """True: a row sees the folds before its own; False: all but its own."""

    def seen_by(self, fold: int, folds: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which of ``folds`` a row of this fold may see."""
        return folds < fold if self.in_time else folds != fold


@dataclass(frozen=True)
class SourceTable:
    """The statistics of one source after fitting: a line of numbers for each of its keys.

    Keys that were not seen get zeros: no rows, and no difference from the rate of all rows.
    """

    keys: Ids  # [m], sorted
    numbers: NDArray[np.float32]  # [m, T + 1], the last is the logarithm of the number of rows
    buckets: int | None = None  # keys were hashed into so many, because there were too many of them
    wide: bool = False  # the keys that were hashed are those of columns with `MOST_IDS`; False only in earlier versions

    def of(self, source: Source, ids: IdsByColumn, sizes: Mapping[str, int]) -> NDArray[np.float32]:
        """Return the numbers of the source's keys. [n, T + 1], of a sequence [m, T + 1]"""
        return self.look_up(keys_of(source, ids, None if self.wide else sizes))

    def look_up(self, keys: Ids) -> NDArray[np.float32]:
        """Return the numbers of each key. [n] -> [n, T + 1]"""
        keys = keys if self.buckets is None else hashed(keys, self.buckets)
        if not len(self.keys):
            return np.zeros((len(keys), self.numbers.shape[1]), np.float32)
        places = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        known = self.keys[places] == keys
        return np.where(known[:, None], self.numbers[places], np.float32(0))


@dataclass(frozen=True)
class SourceSums:
    """What was counted of one source: all that its statistics are made of."""

    keys: Ids  # [m], sorted
    sums: Floats  # [m, 1 + 2T]: rows, labelled weight and sum of labels of each target
    buckets: int | None = None  # keys were hashed into so many

    def with_sizes(self, before: int, after: int) -> "SourceSums":
        """Return the same of a pair whose second column had ids up to ``before``, and now has them up to ``after``."""
        if self.buckets is not None:
            return self
        return SourceSums(recoded(self.keys, before + 1, after + 1), self.sums)


@dataclass(frozen=True)
class Past:
    """What is known of earlier rows, which are no rows of the table: sums that count by a factor for their age."""

    base: Floats  # [3, T], as `Fitting.base` gives it
    sums: Mapping[Source, SourceSums]


def recoded(keys: Ids, before: int, after: int) -> Ids:
    """Return the keys of pairs, whose first id was multiplied by ``before``, as they are if it is by ``after``."""
    first, second = np.divmod(keys, before)
    return first * after + second


def hashed(keys: Ids, buckets: int) -> Ids:
    """Spread keys over buckets, the same way on every machine (the finaliser of SplitMix64)."""
    x = keys.astype(np.uint64)
    with np.errstate(over="ignore"):
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        x = x ^ (x >> np.uint64(31))
    return (x % np.uint64(buckets)).astype(np.int64)


class _Base:
    """Counts, sums and squares of the targets over all rows of each fold. [folds, 3, T]"""

    def __init__(self, targets: Sequence[Target], folds: Folds) -> None:
        self.targets, self.folds = targets, folds
        self.moments = np.zeros((folds.count, 3, len(targets)))

    def add(self, values: Floats, folds: Ids) -> None:
        """``values`` [n, 3T]: weights of labelled rows, those times labels, and times their squares."""
        for fold in np.unique(folds):
            self.moments[fold] += values[folds == fold].sum(0).reshape(3, -1)

    def seen(self, fold: int | None) -> tuple[Floats, Floats]:
        """Return the mean of each target in what a row of the fold may see, and its scale; None: all folds. [T]"""
        every = np.arange(self.folds.count)
        chosen = self.moments if fold is None else self.moments[self.folds.seen_by(fold, every)]
        counts, sums, squares = chosen.sum(0) if len(chosen) else np.zeros_like(self.moments[0])
        rate = (sums + 1) / (counts + 2)
        mean = sums / np.maximum(counts, 1e-300)
        spread = np.sqrt(np.maximum(squares / np.maximum(counts, 1e-300) - mean**2, 0))
        # Of labels that are nearly the same, rounding leaves no more than this of the spread.
        spread = np.maximum(spread, _NARROWEST * np.abs(mean))
        is_mean = ~_are_rates(self.targets)
        return np.where(is_mean, mean, rate), np.where(is_mean & (spread > 0), spread, 1.0)


def _numbers(sums: Floats, base: tuple[Floats, Floats], targets: Sequence[Target], prior: float) -> Floats:
    """Return the statistics of keys from their rows, labels and sums [m, 1 + 2T] -> [m, T + 1].

    ``base`` holds mean and scale of each target, the same for all keys [T] or one for each [m, T].
    """
    count = len(targets)
    rows, labelled, totals = sums[:, 0], sums[:, 1 : 1 + count], sums[:, 1 + count :]
    mean, spread = (np.broadcast_to(one, labelled.shape) for one in base)
    smooth = (totals + prior * mean) / (labelled + prior)  # [m, T]
    numbers = np.empty((len(sums), count + 1))
    numbers[:, :count] = (smooth - mean) / spread
    rates = _are_rates(targets)
    odds, usual = np.clip(smooth[:, rates], 1e-9, 1 - 1e-9), mean[:, rates]
    numbers[:, :count][:, rates] = np.log(odds / (1 - odds)) - np.log(usual / (1 - usual))
    numbers[:, :count][labelled == 0] = 0  # without the rounding of the prior
    numbers[:, count] = np.log1p(rows)
    return numbers


def _are_rates(targets: Sequence[Target]) -> NDArray[np.bool_]:
    return np.array([target.kind == "rate" for target in targets], bool)


class _SourceCount:
    """Rows, labelled weight and label sums of each (key, fold) of a source, chunk by chunk."""

    def __init__(self, width: int, folds: int, limit: int, second: int | None) -> None:
        """``second``: by what the first id of a pair is multiplied in its key; None: it is no pair."""
        self.folds, self.limit, self.second, self.buckets = folds, limit, second, None if limit > 0 else 1
        self.most_buckets = limit - limit % 64 if limit > 64 else limit  # can be halved six times
        self.codes: Ids = np.zeros(0, np.int64)  # key * folds + fold, sorted
        self.sums = np.zeros((0, width))
        self._waiting: list[tuple[Ids, Floats]] = []

    def begin(self, past: SourceSums) -> None:
        """Take the sums of earlier rows as those of fold 0."""
        self.codes, self.sums, self.buckets = past.keys * self.folds, past.sums, past.buckets

    def places(self, keys: Ids) -> Ids:
        """Return the buckets of keys, or the keys themselves if there are none."""
        if self.buckets is None:
            return keys
        return hashed(keys if self.second is None else recoded(keys, self.second, MOST_IDS), self.buckets)

    def add(self, keys: Ids, folds: Ids, values: Floats) -> None:
        self._waiting.append(_grouped(self.places(keys) * self.folds + folds, values))
        # Merging costs as much as what is already there, so it waits until as much has come in.
        if sum(len(codes) for codes, _ in self._waiting) > max(100_000, len(self.codes)):
            self.merge()

    def merge(self) -> None:
        if not self._waiting:
            return
        codes = np.concatenate([self.codes, *(codes for codes, _ in self._waiting)])
        values = np.concatenate([self.sums, *(values for _, values in self._waiting)])
        self.codes, self.sums = _grouped(codes, values)
        self._waiting = []
        keys = self.codes // self.folds
        if self.buckets is None and len(np.unique(keys)) > self.limit:
            self._hash(self.most_buckets)

    def shrink(self) -> bool:
        """Put the keys into fewer buckets than there are keys, or half of the buckets; return whether it helped."""
        self.merge()
        before = len(self.codes)
        most = len(np.unique(self.codes // self.folds)) if self.buckets is None else self.buckets
        buckets = self.most_buckets if self.buckets is None else self.buckets
        while buckets >= most and buckets % 2 == 0:
            buckets //= 2
        if buckets < most:
            self._hash(buckets)
        return len(self.codes) < before

    def _hash(self, buckets: int) -> None:
        keys, folds = np.divmod(self.codes, self.folds)
        before, self.buckets = self.buckets, buckets
        # Of a hash modulo twice as many, the hash modulo this many is what is left over.
        keys = self.places(keys) if before is None else keys % buckets
        self.codes, self.sums = _grouped(keys * self.folds + folds, self.sums)


def _grouped(codes: Ids, values: Floats) -> tuple[Ids, Floats]:
    """Return the different codes, sorted, and the sums of their values, always added up in the same order."""
    if len(codes) and (span := int(codes.max() - codes.min()) + 1) <= 4 * len(codes):  # no need to sort so few
        places = codes - codes.min()
        there = np.flatnonzero(np.bincount(places))
        sums = [np.bincount(places, weights=column, minlength=span)[there] for column in values.T]
        return there + codes.min(), np.stack(sums, 1)
    order = np.argsort(codes, kind="stable")
    codes = codes[order]
    first = np.flatnonzero(np.diff(codes, prepend=codes[:1] - 1))
    return codes[first], np.add.reduceat(values[order], first, axis=0) if len(first) else values[:0]


class Fitting:
    """Counts labels by the values of some sources, and makes statistics of the counts.

    Args:
        sources: columns and pairs of columns.
        sizes: the largest id of each column; ids run from 0, for a missing or unknown value.
        targets: what is estimated.
        folds: how training rows are kept from their own labels.
        prior: how many rows the rate of all rows counts for in each value's own.
        limit: more different keys of one source than this are hashed into so many buckets, or a few less.
        bytes: the memory that all counts together may take; beyond it the sources with most keys get fewer buckets.
        past: what is known of earlier rows. They are the first fold, fold 0, which every row may see and no row is of.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        sizes: Mapping[str, int],
        targets: Sequence[Target],
        folds: Folds,
        prior: float = 10.0,
        limit: int = 1_000_000,
        bytes: int = 1 << 30,
        past: Past | None = None,
    ) -> None:
        self.sources, self.sizes, self.targets, self.folds, self.prior = sources, sizes, targets, folds, prior
        self._base, self._has_past = _Base(targets, folds), past is not None
        self._most_codes = bytes // (8 * (2 + 2 * len(targets)))
        self._counts = {
            source: _SourceCount(
                1 + 2 * len(targets), folds.count, limit, sizes[source[1]] + 1 if len(source) > 1 else None
            )
            for source in sources
        }
        if past is not None:
            self._base.moments[0] = past.base
            for source, sums in past.sums.items():
                self._counts[source].begin(sums)

    def add(self, ids: IdsByColumn, folds: Ids, labels: Floats, weights: Floats | None = None) -> None:
        """Take training rows: ids of each column [n], their folds [n], labels [n, T] with nan where there is none."""
        there = ~np.isnan(labels)
        weighted = there * (1.0 if weights is None else weights[:, None])  # [n, T]
        filled = np.where(there, np.clip(labels, -_LARGEST, _LARGEST), 0.0)
        self._base.add(np.concatenate([weighted, weighted * filled, weighted * filled**2], 1), folds)
        values = np.concatenate([np.ones((len(labels), 1)), weighted, weighted * filled], 1)
        for source, count in self._counts.items():
            keys, rows = keys_of(source, ids, self.sizes), rows_of(source, ids)
            if isinstance(rows, slice):
                count.add(keys, folds, values)
                continue
            for first in range(0, len(keys), _TOGETHER):
                some = slice(first, first + _TOGETHER)
                count.add(keys[some], folds[rows[some]], values[rows[some]])
        while sum(len(count.codes) for count in self._counts.values()) > self._most_codes:
            if not max(self._counts.values(), key=lambda count: len(count.codes)).shrink():
                break

    @property
    def base(self) -> Floats:
        """The weights of labelled rows, those times labels, and times their squares, of each target. [3, T]"""
        return np.asarray(self._base.moments.sum(0))

    def sums(self) -> dict[Source, SourceSums]:
        """Return what was counted of each source in all rows."""
        sums = {}
        for source, count in self._counts.items():
            count.merge()
            keys, values = _grouped(count.codes // self.folds.count, count.sums)
            sums[source] = SourceSums(keys, values, count.buckets)
        return sums

    def tables(self, sums: Mapping[Source, SourceSums] | None = None) -> dict[Source, SourceTable]:
        """Return the statistics of each source from all rows; ``sums``: what `sums` gave, if it is at hand."""
        return {source: self._table(source, one) for source, one in (sums or self.sums()).items()}

    def _table(self, source: Source, sums: SourceSums) -> SourceTable:
        numbers = _numbers(sums.sums, self._base.seen(None), self.targets, self.prior).astype(np.float32)
        return SourceTable(sums.keys, numbers, sums.buckets, wide=sums.buckets is not None and len(source) > 1)

    def training_tables(self) -> dict[Source, SourceTable]:
        """Return the same for training rows, under the keys of `training_keys`, without what a row may not see."""
        tables = {}
        for source, count in self._counts.items():
            numbers = self._out_of_fold(count)
            of_rows = count.codes % self.folds.count >= self._has_past
            tables[source] = SourceTable(count.codes[of_rows], numbers[of_rows].astype(np.float32))
        return tables

    def _out_of_fold(self, count: _SourceCount) -> Floats:
        """Return the statistics of each code, without what rows with it may not see. [m, T + 1]"""
        count.merge()
        numbers = np.empty((len(count.codes), len(self.targets) + 1))
        for fold, own, sums in self._without_own(count):
            numbers[own] = _numbers(sums, self._base.seen(fold), self.targets, self.prior)
        return numbers

    def training_keys(self, source: Source, ids: IdsByColumn, folds: Ids) -> Ids:
        """Return the keys under which `training_tables` has the rows of these ids and folds."""
        keys = self._counts[source].places(keys_of(source, ids, self.sizes))
        return keys * self.folds.count + folds[rows_of(source, ids)]

    def forget(self) -> None:
        """Let go of the counts, when all tables are made; `training_keys` still works."""
        for count in self._counts.values():
            count.codes, count.sums = count.codes[:0], count.sums[:0]

    def gains(self, training: Mapping[Source, SourceTable] | None = None) -> dict[Source, Floats]:
        """Return by how much each source alone explains the labels of rows that it has not seen. [T]

        The share of a target's deviance (log loss, or squared error) that the statistics take away; below zero
        where they only repeat noise. ``training``: what `training_tables` gave, if it is at hand and there is no past.
        """
        return {
            source: self._gain(count, self._out_of_fold(count) if training is None else training[source].numbers)
            for source, count in self._counts.items()
        }

    def _without_own(self, count: _SourceCount) -> "list[tuple[int, NDArray[np.bool_], Floats]]":
        """Return for each fold which codes are of it, and the sums of what rows with those codes may see."""
        keys, folds = np.divmod(count.codes, self.folds.count)
        # The place of each code's key among the different keys. [m]
        places = np.cumsum(np.diff(keys, prepend=keys[:1]) > 0, dtype=np.int64)
        shape = (int(places.max(initial=-1)) + 1, self.folds.count, count.sums.shape[1])
        dense = None
        if np.prod(shape) <= _DENSE:
            dense = np.zeros(shape)
            dense[places, folds] = count.sums
        parts = []
        for fold in range(self.folds.count):
            own, seen = folds == fold, self.folds.seen_by(fold, folds)
            if dense is not None:
                of_key = dense[:, self.folds.seen_by(fold, np.arange(self.folds.count))].sum(1)
            else:
                there, sums = _grouped(places[seen], count.sums[seen])
                of_key = np.zeros(shape[::2])
                of_key[there] = sums
            parts.append((fold, own, of_key[places[own]]))
        return parts

    def _gain(self, count: _SourceCount, numbers: NDArray[np.floating[Any]]) -> Floats:
        """Return the gain of a source from the statistics of its codes [m, T + 1] -> [T]."""
        targets, rates = len(self.targets), _are_rates(self.targets)
        base = [self._base.seen(fold) for fold in range(self.folds.count)]
        means, spreads = (np.stack(one) for one in zip(*base, strict=True))  # [folds, T]
        folds = count.codes % self.folds.count
        mean, spread = means[folds], spreads[folds]  # [m, T]
        weight, label_sum = count.sums[:, 1 : 1 + targets], count.sums[:, 1 + targets :]
        number = numbers[:, :targets].astype(np.float64)
        # Σ (y - m)² - Σ (y - m - d)² = Σ d (2 (y - m) - d), over the rows of each key
        step = number * spread
        gain = (step * (2 * (label_sum - weight * mean) - weight * step)).sum(0)
        total = (self._base.moments[:, 2] - means**2 * self._base.moments[:, 0]).sum(0)
        usual = np.log(mean[:, rates] / (1 - mean[:, rates]))
        before, after = (
            (label_sum[:, rates] * x - weight[:, rates] * np.logaddexp(0, x)).sum(0)
            for x in (usual, usual + number[:, rates])
        )
        gain[rates], total[rates] = after - before, -before
        return np.asarray(gain / np.maximum(np.abs(total), 1e-300))


def keys_of(source: Source, ids: IdsByColumn, sizes: Mapping[str, int] | None) -> Ids:
    """Return one whole number for each combination of the source's ids. [n], of a sequence [m]

    ``sizes``: the largest id of each column; None: one below `MOST_IDS`.
    """
    first, *others = (ids[column] for column in source)
    if isinstance(first, SequenceIds):
        return first.ids
    keys = first.astype(np.int64)
    for column, each in zip(source[1:], others, strict=True):
        assert not isinstance(each, SequenceIds)  # sequences have no pairs
        keys = keys * (MOST_IDS if sizes is None else sizes[column] + 1) + each
    return keys


def rows_of(source: Source, ids: IdsByColumn) -> "Ids | slice":
    """Return the row of each of the source's keys, as an index into rows: all of them, or those of a sequence [m]."""
    first = ids[source[0]]
    return first.rows if isinstance(first, SequenceIds) else slice(None)


def by_row(source: Source, ids: IdsByColumn, numbers: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the numbers of rows from those of the source's keys: the same, or the means of a sequence's. [n, T + 1]"""
    first = ids[source[0]]
    return first.means(numbers) if isinstance(first, SequenceIds) else numbers
