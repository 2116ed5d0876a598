"""Give the values of a column their ids, and count values chunk by chunk."""

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
    """The values of a column in the order of their ids, from 1 on; 0 is for a missing or unknown value."""

    def __init__(self, values: Iterable[str]) -> None:
        self.values = values if isinstance(values, pl.Series) else pl.Series(list(values), dtype=pl.String)

    def __len__(self) -> int:
        return len(self.values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vocabulary) and self.values.equals(other.values)

    __hash__ = None  # type: ignore[assignment]

    @property
    def cardinality(self) -> int:
        """The number of values, but at least 1, as a model needs it if nothing but missing values was seen."""
        return max(1, len(self))

    @cached_property
    def _index(self) -> "_Index":
        return _Index.of(self.values)

    def ids(self, text: pl.Series) -> NDArray[np.int32]:
        """Return the ids of values: [n] text -> [n] ids.

        Hashes are looked up in the sorted hashes of the vocabulary, and the value there is compared with the
        one given. A join or an Enum would go through the whole vocabulary for each chunk of rows.
        """
        if not len(self):
            return np.zeros(len(text), np.int32)
        hashes = text.hash(self._index.seed).to_numpy()  # [n]
        nearest = np.searchsorted(self._index.hashes, hashes)  # [n]
        places = self._index.places[np.minimum(nearest, len(self) - 1)]  # [n], in the vocabulary
        same = (self.values.gather(places) == text).fill_null(False).to_numpy()
        return np.where(same, places + 1, 0).astype(np.int32)


class _Index(NamedTuple):
    """The sorted hashes of a vocabulary, and the place of each hash's value in it."""

    seed: int
    hashes: NDArray[np.uint64]  # [V]
    places: NDArray[np.int64]  # [V]

    @classmethod
    def of(cls, values: pl.Series) -> "_Index":
        """Return the index with the first seed for which no two values have the same hash."""
        for seed in range(100):
            hashes = values.hash(seed).to_numpy()
            places = np.argsort(hashes)
            if (np.diff(hashes[places]) != 0).all():
                return cls(seed, hashes[places], places)
        raise InputError("the vocabulary holds a value twice")


class ValueCounts:
    """Counts the values of a column, chunk by chunk, in memory that grows with distinct values only."""

    def __init__(self, kind: type[pl.DataType] = pl.String) -> None:
        self._counted = pl.DataFrame(schema={"value": kind, "count": pl.UInt64})
        self._waiting: list[pl.DataFrame] = []

    def add(self, values: pl.Series) -> None:
        counts = values.rename("value").value_counts(name="count")
        self._waiting.append(counts.with_columns(pl.col("count").cast(pl.UInt64)))
        # Merging costs as much as what is already counted, so it waits until as much has come in.
        if sum(map(len, self._waiting)) > max(100_000, len(self._counted)):
            self.merged()

    def merged(self) -> pl.DataFrame:
        """Return the columns "value" and "count", a row for each value in no particular order; null is a value, too."""
        together = pl.concat([self._counted, *self._waiting])
        self._counted, self._waiting = together.group_by("value").agg(pl.col("count").sum()), []
        return self._counted


class VocabularyCounts(ValueCounts):
    """Counts the values of a column for its vocabulary; more than ``limit`` different ones are refused."""

    def __init__(self, name: str, limit: int | None) -> None:
        super().__init__()
        self.name, self.limit = name, limit
        self.rows = 0

    def add(self, values: pl.Series) -> None:
        values = values.drop_nulls()
        self.rows += len(values)
        super().add(values)

    def merged(self) -> pl.DataFrame:
        counted, limit = super().merged(), self.limit or MOST
        if len(counted) > limit:
            raise InputError(
                f"column {self.name!r} has more than {limit:,} different values; {_what_to_do(self.limit is not None)}"
            )
        return counted

    def vocabulary(self, rare: int = 1) -> Vocabulary:
        """Return the values, the most frequent first; equally frequent ones by name, whatever the order of rows was."""
        counted = self.merged()
        distinct = len(counted)
        if self.limit is None and rare == 1 and self.rows >= ENOUGH and distinct > NEARLY_ALL * self.rows:
            raise InputError(
                f"column {self.name!r} has {distinct:,} different values in {self.rows:,} training rows, so it "
                f"cannot tell one example about another; {_what_to_do(False)}"
            )
        kept = self.frequent(rare)
        if distinct and not kept:
            raise InputError(
                f"column {self.name!r}: none of its {distinct:,} values occurs {rare} times in the "
                f"{self.rows:,} training rows, so `rare: {rare}` leaves nothing; lower it, or use `type: ignore`"
            )
        return Vocabulary(self.values()[:kept])

    def values(self) -> pl.Series:
        """Return all values in the order of their ids, rare ones too."""
        return self.merged().sort(["count", "value"], descending=[True, False])["value"]

    def frequent(self, rare: int) -> int:
        """Return how many values occur at least ``rare`` times; their ids are the first ones."""
        return int((self.merged()["count"] >= rare).sum())


def _what_to_do(limited: bool) -> str:
    first = "raise its `limit`" if limited else "if you want it all the same, give it a `limit`"
    return f"use `type: ignore` or `rare: 5`, or `numeric` for a number; {first} in the schema"
