"""Split a table into training, validation and test rows: at random, by time or by group."""

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gdod.data.preparing.vocabulary import ValueCounts, Vocabulary
from gdod.data.tables.raw_table import RawTable
from gdod.data.tables.table_schema import Split
from gdod.data.tables.times import formatted_moments, iso_moments, temporal_moments
from gdod.data.tables.values import Origin, numbers, refuse, text
from gdod.errors import InputError

PARTS: tuple[Literal["train"], Literal["validation"], Literal["test"]] = ("train", "validation", "test")
TRAIN, VALIDATION, TEST = range(3)
Parts = NDArray[np.uint8]

_BLOCK = 65_536


class Assigned(NamedTuple):
    """The part of each row, and sentences for a person about the split."""

    parts: Parts  # [n], one byte a row, so that tables larger than memory can be split
    notes: tuple[str, ...] = ()


def assign(table: RawTable, split: Split, missing: tuple[str, ...], *, test: float, validation: float) -> Assigned:
    """Return the part of each row. ``test`` is the share of all rows, ``validation`` that of the rows test leaves."""
    if not test and not validation:
        return Assigned(np.zeros(table.rows, np.uint8))
    if split.by == "time":
        return _by_time(table, split, missing, test, validation)
    if split.by == "group":
        return _by_group(table, split, missing, test, validation)
    return Assigned(_at_random(table.rows, split.seed, test, validation))


def _at_random(rows: int, seed: int, test: float, validation: float) -> Parts:
    """Return parts with exactly the wanted numbers of rows, each choice of rows equally likely. [rows]"""
    return deal(_sizes(rows, test, validation), np.random.default_rng([seed, 0x5917]))


def deal(sizes: NDArray[np.int64], draw: np.random.Generator) -> Parts:
    """Return a part for each of ``sizes.sum()`` rows, so that parts have these sizes; all ways are equally likely.

    Goes block by block, drawing first how many rows of each part fall into the block: a permutation of all rows would
    take eight bytes a row.
    """
    left, rows = sizes, int(sizes.sum())  # of each part, still to be placed
    parts = np.empty(rows, np.uint8)
    for first in range(0, rows, _BLOCK):
        size = min(_BLOCK, rows - first)
        here = draw.multivariate_hypergeometric(left, size, method="marginals")
        left = left - here
        parts[first : first + size] = draw.permutation(np.repeat(np.arange(len(sizes), dtype=np.uint8), here))
    return parts


def _sizes(rows: int, test: float, validation: float) -> NDArray[np.int64]:
    """Return the wanted numbers of training, validation and test rows. [3]"""
    tests = round(rows * test)
    validations = round((rows - tests) * validation)
    return np.array([rows - tests - validations, validations, tests])


def _by_time(table: RawTable, split: Split, missing: tuple[str, ...], test: float, validation: float) -> Assigned:
    """Take the latest rows for test. Rows of the same time stay together; rows without a time are trained on."""
    column = str(split.column)
    seen: FirstTimes = {}

    def times(values: pl.Series, origin: Origin) -> pl.Series:
        return read_times(values, split.format, missing, origin, seen)

    counted = count_values(table, column, times, pl.Float64)
    counts = counted.drop_nulls().sort("value", descending=True)
    if counts.is_empty():
        raise InputError(f"split by time: column {column!r} is missing in every row")
    sizes = counts["count"].to_numpy().astype(np.int64)
    parts = _fill(sizes, test, validation)  # by time
    # From which time on a row is test, or validation; +inf if there is none.
    bounds = [float(counts["value"].to_numpy()[parts == part].min(initial=np.inf)) for part in (TEST, VALIDATION)]

    def place(values: pl.Series, origin: Origin) -> Parts:
        moments = times(values, origin).fill_null(-np.inf).to_numpy()
        later = np.where(moments >= bounds[1], VALIDATION, TRAIN)
        return np.where(moments >= bounds[0], TEST, later).astype(np.uint8)

    notes = _without(counted, split, table.rows, "are all in the training part")
    return Assigned(place_rows(table, column, place), notes + _missed(parts, sizes, split, test, validation))


def _by_group(table: RawTable, split: Split, missing: tuple[str, ...], test: float, validation: float) -> Assigned:
    """Put all rows of a group into one part. Rows without a group are one group."""
    column = str(split.column)
    counts, notes = count_groups(table, split, missing)
    shuffled = np.random.default_rng([split.seed, 0x6C0B]).permutation(len(counts))
    sizes = counts["count"].to_numpy().astype(np.int64)
    parts = np.empty(len(counts), np.uint8)
    parts[shuffled] = fit_groups(sizes[shuffled], test, validation)
    names = Vocabulary(counts["value"])

    def place(values: pl.Series, origin: Origin) -> Parts:
        return np.asarray(parts[names.ids(text(values, missing).fill_null("")) - 1], np.uint8)

    return Assigned(place_rows(table, column, place), notes + _missed(parts, sizes, split, test, validation))


def count_groups(table: RawTable, split: Split, missing: tuple[str, ...]) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """Return how many rows each group has, by its value ("" where it is missing), and a note on rows without one."""
    counted = count_values(table, str(split.column), lambda values, _: text(values, missing), pl.String)
    counts = counted.group_by(pl.col("value").fill_null("")).agg(pl.col("count").sum()).sort("value")
    return counts, _without(counted, split, table.rows, "count as one group")


def _without(counted: pl.DataFrame, split: Split, rows: int, become: str) -> tuple[str, ...]:
    """Return a note on rows without a time or group, if there are any."""
    missing = int(counted.filter(pl.col("value").is_null())["count"].sum())
    if not missing:
        return ()
    return (f"split by {split.by}: {missing:,} rows ({missing / rows:.1%}) have no {split.column!r}; they {become}",)


def _missed(parts: Parts, counts: NDArray[np.int64], split: Split, test: float, validation: float) -> tuple[str, ...]:
    """Return a note on parts that are more than a quarter larger or smaller than wanted, if there are any."""
    wanted = _sizes(int(counts.sum()), test, validation)
    sizes = [int(counts[parts == part].sum()) for part in range(len(PARTS))]
    off = [
        f"{name} has {sizes[part]:,} rows instead of {wanted[part]:,}"
        for part, name in enumerate(PARTS)
        if abs(sizes[part] - wanted[part]) > wanted[part] / 4
    ]
    if not off:
        return ()
    together = f"rows with the same {split.column!r} stay together, and there are up to {counts.max():,} of them"
    return (f"split by {split.by}: {', '.join(off)}; {together}",)


def _fill(counts: NDArray[np.int64], test: float, validation: float) -> Parts:
    """Return the parts of bunches of rows in order: test until it is full, then validation, the rest train.

    A bunch goes where its middle lies, so that a part is as near to its share as bunches allow; a share
    above zero gets at least one bunch.
    """
    middles = counts.cumsum() - counts / 2
    _, validations, tests = _sizes(int(counts.sum()), test, validation)
    parts = np.full(len(counts), TRAIN, np.uint8)
    parts[middles < tests + validations] = VALIDATION
    parts[middles < tests] = TEST
    at = 0
    for part, share in ((TEST, test), (VALIDATION, validation)):
        if share and at < len(parts) and not (parts == part).any():
            parts[at] = part
        at += int((parts == part).sum())
    return parts


def fit_groups(counts: NDArray[np.int64], test: float, validation: float) -> Parts:
    """Return the parts of bunches in any order: test if it has room for the bunch, else validation, else train.

    So a bunch that is too large for the room that is left is trained on, and smaller ones fill the room. If all
    that are small enough are fewer rows than wanted, test and validation share them. A share above zero gets at
    least one bunch, and so does train.
    """
    _, validations, tests = _sizes(int(counts.sum()), test, validation)
    wanted = {TEST: tests, VALIDATION: validations}
    small = counts[counts <= max(tests, validations)].sum()
    room = {part: int(size * min(1.0, small / (tests + validations))) for part, size in wanted.items() if size}
    parts = np.full(len(counts), TRAIN, np.uint8)
    for at, count in enumerate(counts.tolist()):
        for part in room:
            if count <= room[part]:
                parts[at] = part
                room[part] -= count
                break
    for part, share in ((TEST, test), (VALIDATION, validation)):
        if share and not (parts == part).any():
            _move(parts, counts, part, np.inf)
    for part, size in wanted.items():
        # A bunch of less than twice the room brings a part nearer to its share.
        _move(parts, counts, part, 2 * float(size - counts[parts == part].sum()))
    return parts


def _move(parts: Parts, counts: NDArray[np.int64], part: int, below: float) -> None:
    """Move the smallest bunch of train to a part, if it has fewer rows than ``below`` and is not the only one."""
    train = np.flatnonzero(parts == TRAIN)
    if len(train) > 1:
        smallest = train[counts[train].argmin()]
        if counts[smallest] < below:
            parts[smallest] = part


def count_values(
    table: RawTable,
    column: str,
    read: Callable[[pl.Series, Origin], pl.Series],
    kind: type[pl.DataType],
    chosen: NDArray[np.bool_] | None = None,
) -> pl.DataFrame:
    """Return how often each value of a column occurs, as ``read`` makes them; ``chosen``: in which rows, if not all."""
    counts, first = ValueCounts(kind), 0
    for chunk in table.chunks([column]):
        values = read(chunk.frame[column], chunk.origin)
        counts.add(values if chosen is None else values.filter(pl.Series(chosen[first : first + len(values)])))
        first += len(values)
    return counts.merged()


def place_rows(table: RawTable, column: str, place: Callable[[pl.Series, Origin], Parts]) -> Parts:
    """Return a byte for each row of the table, its part or fold, as ``place`` tells from the values of a column."""
    parts = np.empty(table.rows, np.uint8)
    first = 0
    for chunk in table.chunks([column]):
        parts[first : first + len(chunk.frame)] = place(chunk.frame[column], chunk.origin)
        first += len(chunk.frame)
    return parts


FirstTimes = dict[str, tuple[str, Origin, int]]  # the first of the numbers and of the dates, and where it stands


def read_times(
    column: pl.Series, format: str | None, missing: tuple[str, ...], origin: Origin, seen: FirstTimes
) -> pl.Series:
    """Return times as float64: as they are if they are numbers or spans, otherwise microseconds.

    ``seen`` is kept for all rows of a table: written times are either numbers everywhere or dates everywhere.
    """
    if column.dtype in (pl.Duration, pl.Time):
        return column.to_physical().cast(pl.Float64)
    if column.dtype.is_temporal():
        return temporal_moments(column).cast(pl.Int64).cast(pl.Float64)
    if column.dtype.is_numeric():
        return numbers(column, missing, origin)
    written = text(column, missing)
    if format is None:
        times = _plain(written, origin, seen)
        expected = "expected a number or an ISO date"
    else:
        times = formatted_moments(written, format).cast(pl.Int64).cast(pl.Float64)
        expected = f"expected a time in the format {format!r}"
    refuse(times.is_null() & written.is_not_null(), column, origin, f"{expected}; see `format` of the split")
    return times


def _plain(written: pl.Series, origin: Origin, seen: FirstTimes) -> pl.Series:
    """Return numbers as they are, or ISO dates as microseconds; null for text that is neither."""
    plain = written.cast(pl.Float64, strict=False)
    dates = plain.clear(len(plain))  # all null
    if plain.null_count() > written.null_count():
        dates = iso_moments(written.set(plain.is_not_null(), None)).cast(pl.Int64).cast(pl.Float64)
    for kind, times in (("numbers", plain), ("dates", dates)):
        at = times.is_not_null().arg_max()
        if kind not in seen and at is not None and times[at] is not None:
            seen[kind] = (written[at], origin, at)
    if len(seen) == 2:
        examples = [f"{where.row(at)} is {value!r}" for value, where, at in seen.values()]
        raise InputError(
            f"split by time: column {written.name!r} holds numbers and dates, which cannot be compared: "
            f"{' but '.join(examples)}; write all times the same way"
        )
    return dates if "dates" in seen else plain
