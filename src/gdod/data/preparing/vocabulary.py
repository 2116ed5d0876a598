"""Give the values of a column their ids, and count values chunk by chunk."""

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gdod._checks import listed
from gdod.errors import InputError

# More values than this in one column are refused unless the schema says otherwise.
MOST = 10_000_000
# From this many rows on, a column in which nearly every value differs is taken for an id of the row.
ENOUGH = 1_000
NEARLY_ALL = 0.95
_FEW = 100  # values, which are compared one by one


class Vocabulary:
    """The values of a column in the order of their ids, from 1 on; 0 is for a missing or unknown value."""

    def __init__(self, values: Iterable[str]) -> None:
        self.values = values if isinstance(values, pl.Series) else pl.Series(list(values), dtype=pl.String)

    def __len__(self) -> int:
        return len(self.values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vocabulary) and self.values.equals(other.values)

    __hash__ = None  # type: ignore[assignment]

    @cached_property
    def _index(self) -> "_Index":
        return _Index.of(self.values)

    def ids(self, text: pl.Series, hashes: NDArray[np.uint64] | None = None) -> NDArray[np.int32]:
        """Return the ids of values: [n] text -> [n] ids.

        Hashes are looked up in the sorted hashes of the vocabulary, and the value there is compared with the
        one given. A join or an Enum would go through the whole vocabulary for each chunk of rows.

        Args:
            text: the values.
            hashes: their hashes with the seed 0, if they are known already.
        """
        if not len(self):
            return np.zeros(len(text), np.int32)
        if hashes is None or self._index.seed:
            hashes = text.hash(self._index.seed).to_numpy()  # [n]
        nearest = np.searchsorted(self._index.hashes, hashes)  # [n]
        places = self._index.places[np.minimum(nearest, len(self) - 1)]  # [n], in the vocabulary
        return np.where(self._same(text, places), places + 1, 0).astype(np.int32)

    def _same(self, text: pl.Series, places: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return where values are those at some places of the vocabulary. A call of Polars costs as much as 100."""
        if len(text) > _FEW:
            return (self.values.gather(places) == text).fill_null(False).to_numpy()
        pairs = zip(text.to_list(), places.tolist(), strict=True)
        return np.array([value is not None and self.values[place] == value for value, place in pairs], bool)


def ids_of_columns(vocabularies: Sequence[Vocabulary], texts: Sequence[pl.Series]) -> list[NDArray[np.int32]]:
    """Return `Vocabulary.ids` of each of some columns of the same length, whose hashes are made in one call."""
    if not texts:
        return []
    hashes = pl.concat(texts, rechunk=True).hash(0).to_numpy().reshape(len(texts), -1)  # [columns, n]
    return [one.ids(text, known) for one, text, known in zip(vocabularies, texts, hashes, strict=True)]


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

    def __init__(self, name: str, limit: int | None, known: pl.Series | None = None) -> None:
        """``known``: values that are never rare, whether they occur or not, since something is known about them."""
        super().__init__()
        self.name, self.limit, self.known = name, limit, known
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
        if (
            self.limit is None
            and rare == 1
            and self.known is None
            and self.rows >= ENOUGH
            and distinct > NEARLY_ALL * self.rows
        ):
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
        return Vocabulary(self.values(rare)[:kept])

    def values(self, rare: int) -> pl.Series:
        """Return all values in the order of their ids, rare ones last."""
        return self.in_order(rare)["value"]

    def in_order(self, rare: int) -> pl.DataFrame:
        """Return the columns "value" and "count" in the order of ids.

        Values that occur at least ``rare`` times or are known come first, then the more frequent ones, then by name.
        """
        every = self._with_kept(rare).sort(["kept", "count", "value"], descending=[True, True, False])
        return every.select("value", "count")

    def frequent(self, rare: int) -> int:
        """Return how many values occur at least ``rare`` times or are known; their ids are the first ones."""
        return int(self._with_kept(rare)["kept"].sum())

    def _with_kept(self, rare: int) -> pl.DataFrame:
        """Return all values, known ones that do not occur too, with their counts and whether they are kept."""
        counted = self.merged()
        if self.known is None:
            return counted.with_columns(kept=pl.col("count") >= rare)
        known = pl.DataFrame({"value": self.known, "known": True})
        every = counted.join(known, on="value", how="full", coalesce=True)
        return every.select(
            "value",
            pl.col("count").fill_null(0),
            kept=pl.col("known").fill_null(False) | (pl.col("count").fill_null(0) >= rare),
        )

    def check_known(self) -> None:
        """Raise if none of the known values occurs."""
        if self.known is None or len(self.known.filter(self.known.is_in(self.merged()["value"].implode()))):
            return
        some = listed(self.merged().sort("count", descending=True)["value"][:3])
        raise InputError(
            f"column {self.name!r}: none of the {len(self.known):,} ids that have vectors occurs in the training rows; "
            f"its values are {some}, ..., and ids with vectors {listed(self.known[:3])}, ...; are they written alike?"
        )


def _what_to_do(limited: bool) -> str:
    first = "raise its `limit`" if limited else "if you want it all the same, give it a `limit`"
    return f"use `type: ignore` or `rare: 5`, or `numeric` for a number; {first} in the schema"
