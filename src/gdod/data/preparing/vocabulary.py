"""Which value of a column has which id."""

from collections.abc import Iterable
from functools import cached_property
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gdod.errors import InputError

# More values than this in one column are refused unless the schema says otherwise.
MOST = 10_000_000
# From this many rows on, a column in which nearly every value differs is taken for an id of the row.
ENOUGH = 1_000
NEARLY_ALL = 0.95


class Vocabulary:
    """Values in the order of their ids, from 1 on; 0 is for a missing or unknown value."""

    def __init__(self, values: Iterable[str]) -> None:
        self.values = values if isinstance(values, pl.Series) else pl.Series(list(values), dtype=pl.String)

    def __len__(self) -> int:
        return len(self.values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vocabulary) and self.values.equals(other.values)

    __hash__ = None  # type: ignore[assignment]

    @property
    def cardinality(self) -> int:
        """As a model wants it: at least 1, even if nothing but missing values was seen."""
        return max(1, len(self))

    @cached_property
    def _index(self) -> "_Index":
        return _Index.of(self.values)

    def ids(self, text: pl.Series) -> NDArray[np.int32]:
        """[n] text -> [n] ids.

        By hashes looked up in a sorted list of the vocabulary's, and compared with the value found
        there. A join or an Enum would go through the whole vocabulary for each chunk of rows.
        """
        if not len(self):
            return np.zeros(len(text), np.int32)
        hashes = text.hash(self._index.seed).to_numpy()  # [n]
        found = np.searchsorted(self._index.hashes, hashes)
        found = self._index.places[np.minimum(found, len(self) - 1)]  # [n], places in the vocabulary
        same = (self.values.gather(found) == text).fill_null(False).to_numpy()
        return np.where(same, found + 1, 0).astype(np.int32)


class _Index(NamedTuple):
    seed: int
    hashes: NDArray[np.uint64]  # [V], sorted
    places: NDArray[np.int64]  # [V], of the value that has the hash

    @classmethod
    def of(cls, values: pl.Series) -> "_Index":
        """With the first seed for which no two values have the same hash."""
        for seed in range(100):
            hashes = values.hash(seed).to_numpy()
            places = np.argsort(hashes)
            if (np.diff(hashes[places]) != 0).all():
                return cls(seed, hashes[places], places)
        raise InputError("the vocabulary holds a value twice")


class ValueCount:
    """Counts the values of a column, chunk by chunk, in memory that grows with distinct values only."""

    def __init__(self, name: str, limit: int | None) -> None:
        self.name, self.limit = name, limit
        self.rows = 0
        self._counted = pl.DataFrame(schema={"value": pl.String, "count": pl.UInt64})
        self._waiting: list[pl.DataFrame] = []

    def add(self, text: pl.Series) -> None:
        text = text.drop_nulls().rename("value")
        self.rows += len(text)
        counts = text.value_counts(name="count").with_columns(pl.col("count").cast(pl.UInt64))
        self._waiting.append(counts)
        # Merging costs as much as what is already counted, so it waits until as much has come in.
        if sum(map(len, self._waiting)) > max(100_000, len(self._counted)):
            self._merge()

    def _merge(self) -> None:
        together = pl.concat([self._counted, *self._waiting])
        self._counted, self._waiting = together.group_by("value").agg(pl.col("count").sum()), []
        self._check_size()

    def _check_size(self) -> None:
        limit = self.limit or MOST
        if len(self._counted) > limit:
            raise InputError(
                f"column {self.name!r} has more than {limit:,} different values; {_what_to_do(self.limit is not None)}"
            )

    def vocabulary(self, rare: int = 1) -> Vocabulary:
        """The most frequent value first; equally frequent ones by name, whatever the order of rows was."""
        self._merge()
        distinct = len(self._counted)
        if self.limit is None and rare == 1 and self.rows >= ENOUGH and distinct > NEARLY_ALL * self.rows:
            raise InputError(
                f"column {self.name!r} has {distinct:,} different values in {self.rows:,} training rows, so it "
                f"cannot tell one example about another; {_what_to_do(False)}"
            )
        kept = self._counted.filter(pl.col("count") >= rare).sort(["count", "value"], descending=[True, False])
        if distinct and not len(kept):
            raise InputError(
                f"column {self.name!r}: none of its {distinct:,} values occurs {rare} times in the "
                f"{self.rows:,} training rows, so `rare: {rare}` leaves nothing; lower it, or use `type: ignore`"
            )
        return Vocabulary(kept["value"])


def _what_to_do(limited: bool) -> str:
    first = "raise its `limit`" if limited else "if you want it all the same, give it a `limit`"
    return f"use `type: ignore` or `rare: 5`, or `numeric` for a number; {first} in the schema"
