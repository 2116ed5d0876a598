"""Cut the training rows into folds for target statistics, in the way that the table is split."""

import numpy as np
import polars as pl

from gdod.data.preparing.split import TRAIN, FirstTimes, Parts, count_values, place_rows, read_times
from gdod.data.preparing.vocabulary import Vocabulary
from gdod.data.tables.raw_table import RawTable
from gdod.data.tables.table_schema import Split
from gdod.data.tables.values import Origin, text


def assign_folds(table: RawTable, parts: Parts, split: Split, missing: tuple[str, ...], count: int) -> Parts:
    """Return the fold of each row of the table, from 0 to ``count`` - 1; only those of training rows count.

    Folds are cut as the parts are, so that a training row sees as much of its own time or group as a test row will:
    at random, row by row; whole groups; or blocks of time, in order, where rows of the same time stay together and
    rows without a time are in the first block.
    """
    if split.by == "time":
        return _by_time(table, parts, split, missing, count)
    if split.by == "group":
        return _by_group(table, parts, split, missing, count)
    return np.random.default_rng([split.seed, 0xF01D]).integers(0, count, table.rows, dtype=np.uint8)


def _by_time(table: RawTable, parts: Parts, split: Split, missing: tuple[str, ...], count: int) -> Parts:
    column = str(split.column)
    seen: FirstTimes = {}

    def times(values: pl.Series, origin: Origin) -> pl.Series:
        return read_times(values, split.format, missing, origin, seen)

    counted = count_values(table, column, times, pl.Float64, parts == TRAIN).drop_nulls().sort("value")
    rows = counted["count"].to_numpy().astype(np.int64)
    before = rows.cumsum() - rows  # [m], training rows before each time
    starts = np.searchsorted(before, rows.sum() * np.arange(1, count) / count)
    moments = np.append(counted["value"].to_numpy(), np.inf)
    bounds = moments[starts]  # [count - 1], where each block but the first begins

    def place(values: pl.Series, origin: Origin) -> Parts:
        moments = times(values, origin).fill_null(-np.inf).to_numpy()
        return np.searchsorted(bounds, moments, "right").astype(np.uint8)

    return place_rows(table, column, place)


def _by_group(table: RawTable, parts: Parts, split: Split, missing: tuple[str, ...], count: int) -> Parts:
    column = str(split.column)

    def groups(values: pl.Series, origin: Origin) -> pl.Series:
        return text(values, missing).fill_null("")

    names = Vocabulary(count_values(table, column, groups, pl.String, parts == TRAIN)["value"].sort())
    folds = np.random.default_rng([split.seed, 0xF01D]).permutation(len(names)) % count
    of_id = np.append(0, folds).astype(np.uint8)  # [groups + 1], 0 is a group without training rows

    def place(values: pl.Series, origin: Origin) -> Parts:
        return np.asarray(of_id[names.ids(groups(values, origin))], np.uint8)

    return place_rows(table, column, place)
