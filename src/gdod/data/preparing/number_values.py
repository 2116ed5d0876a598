"""The exact values of numeric columns, where they repeat.

Some numbers stand for more than their size: a price tells the product, a survey weight the household, and a code is a
number by chance. Rows with the very same number then say more about each other than rows with a similar one, and such a
column has target statistics as a categorical one has.
"""

from functools import cached_property

import numpy as np
import polars as pl
from numpy.typing import NDArray

# Fewer training rows a value than this on average: the values hardly repeat, so there is nothing to count.
_FEWEST_ROWS_PER_VALUE = 1.25
# Similar numbers are those in the same of so many bins, or in fewer, so that each has as many rows as this.
_MOST_BINS, _ROWS_PER_BIN = 64, 250


class NumberValues:
    """Collects the different values of a numeric column chunk by chunk, until there are more than ``limit``."""

    def __init__(self, limit: int) -> None:
        self.limit, self.rows, self.too_many = limit, 0, False
        self._values: NDArray[np.float64] = np.zeros(0)
        self._waiting: list[NDArray[np.float64]] = []

    def add(self, known: pl.Series) -> None:
        """Take the numbers of some rows, null where there is none."""
        numbers = known.drop_nulls().to_numpy()
        self.rows += len(numbers)
        if self.too_many:
            return
        self._waiting.append(np.unique(numbers))
        # Merging costs as much as what is already there, so it waits until as much has come in.
        if sum(map(len, self._waiting)) > max(100_000, len(self._values)):
            self._merge()

    def repeated(self, rows_per_value: int) -> "NumberVocabulary | None":
        """Return the different values, sorted; None unless each has a few rows on average, but no more than these."""
        count = len(values := self.values())
        few, many = _FEWEST_ROWS_PER_VALUE * count, rows_per_value * count
        return NumberVocabulary(values) if count > 1 and few <= self.rows < many and not self.too_many else None

    def values(self) -> NDArray[np.float64]:
        """Return the different values, sorted; none if there are too many."""
        self._merge()
        return self._values

    def _merge(self) -> None:
        self._values, self._waiting = np.unique(np.concatenate([self._values, *self._waiting])), []
        if len(self._values) > self.limit:
            self.too_many, self._values = True, self._values[:0]


class NumberVocabulary:
    """The values of a numeric column in the order of their ids, from 1 on."""

    def __init__(self, values: NDArray[np.float64]) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NumberVocabulary) and np.array_equal(self.values, other.values)

    __hash__ = None  # type: ignore[assignment]

    @cached_property
    def _sorted(self) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """The values in rising order, and the id of each."""
        order = np.argsort(self.values)
        return self.values[order], order + 1

    def ids(self, numbers: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the ids of numbers; 0 for nan, one above all for a new one. [n]"""
        values, ids = self._sorted
        places = np.minimum(np.searchsorted(values, numbers), len(values) - 1)
        known = np.where(values[places] == numbers, ids[places], len(values) + 1)
        return np.where(np.isnan(numbers), 0, known).astype(np.int64)

    def with_new(self, numbers: NDArray[np.float64]) -> "NumberVocabulary":
        """Return the vocabulary with those of different numbers that are new, after all others."""
        new = numbers[self.ids(numbers) == len(self) + 1]
        return NumberVocabulary(np.concatenate([self.values, new]))


def similar_ids(count: int, sample: NDArray[np.int64], rows: int) -> NDArray[np.int64]:
    """Return for each id of sorted values that of a bin of similar numbers, of as many rows each. [largest id + 1]

    Args:
        count: the number of values.
        sample: ids of some training rows, which tell how the rows are spread.
        rows: the number of training rows.
    """
    bins = max(2, min(_MOST_BINS, rows // _ROWS_PER_BIN))
    there = sample[sample > 0]
    edges = np.unique(np.quantile(there, np.linspace(0, 1, bins + 1)[1:-1])) if len(there) else np.zeros(0)
    every = np.arange(count + 2)
    return np.where(every > 0, 1 + np.searchsorted(edges, every), 0).astype(np.int64)
