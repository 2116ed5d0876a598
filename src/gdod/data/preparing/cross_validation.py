"""Split a table for a cross-validation: one fold is the test part, the others are training and validation."""

import heapq

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gdod.data.preparing.fold import Fold
from gdod.data.preparing.split import (
    TEST,
    TRAIN,
    VALIDATION,
    Assigned,
    Parts,
    count_groups,
    deal,
    fit_groups,
    place_rows,
)
from gdod.data.preparing.vocabulary import Vocabulary
from gdod.data.tables.raw_table import RawTable
from gdod.data.tables.table_schema import Split
from gdod.data.tables.values import Origin, text
from gdod.errors import InputError


def assign_fold(table: RawTable, split: Split, missing: tuple[str, ...], fold: Fold, *, validation: float) -> Assigned:
    """Return the part of each row when a fold is the test part; ``validation`` is the share of the other rows.

    Which fold a row is in depends on the table, the seed of the split and the number of folds alone, so that each row
    is tested once. Folds are cut as the schema's split cuts parts: row by row at random, or in whole groups. There are
    none by time: all but the last fold would be tested by a model that has seen what came later.
    """
    check_split(split, fold)
    if split.by == "group":
        return _by_group(table, split, missing, fold, validation)
    return _at_random(table, split, fold, validation)


def check_split(split: Split, fold: Fold) -> None:
    """Raise if a table with this split cannot be cut into folds."""
    if split.by == "time":
        raise InputError(
            f"{fold}: the schema splits by time, and a model that is tested on a fold would have been trained on rows "
            "of later times. Leave the folds out: the split by time tests on the latest rows. Where time is no "
            "matter, write `by: random` or `by: group` into the schema"
        )


def _at_random(table: RawTable, split: Split, fold: Fold, validation: float) -> Assigned:
    if table.rows <= fold.of:
        raise InputError(f"{fold}: the table has {table.rows:,} rows; expected more rows than folds")
    sizes = np.full(fold.of, table.rows // fold.of)
    sizes[: table.rows % fold.of] += 1
    tested = deal(sizes, np.random.default_rng([split.seed, 0xF01D5])) == fold.number - 1
    others = int((~tested).sum())
    validations = round(others * validation)
    parts = np.full(table.rows, TEST, np.uint8)
    draw = np.random.default_rng([split.seed, 0xF01D5, fold.number])
    parts[~tested] = deal(np.array([others - validations, validations]), draw)  # TRAIN is 0, VALIDATION 1
    return Assigned(parts, (_note(fold, parts),))


def _by_group(table: RawTable, split: Split, missing: tuple[str, ...], fold: Fold, validation: float) -> Assigned:
    column = str(split.column)
    counts, notes = count_groups(table, split, missing)
    if len(counts) <= fold.of:
        raise InputError(
            f"{fold}: column {column!r}, by which the schema splits, has {len(counts):,} different values; expected "
            "more than folds, since rows with the same value stay together"
        )
    sizes = counts["count"].to_numpy().astype(np.int64)
    tested = _even_folds(sizes, fold.of, split.seed) == fold.number - 1
    others = np.random.default_rng([split.seed, 0xF01D5, fold.number]).permutation(np.flatnonzero(~tested))
    parts = np.full(len(counts), TEST, np.uint8)
    parts[others] = fit_groups(sizes[others], 0.0, validation)
    names = Vocabulary(counts["value"])

    def place(values: pl.Series, origin: Origin) -> Parts:
        return np.asarray(parts[names.ids(text(values, missing).fill_null("")) - 1], np.uint8)

    placed = place_rows(table, column, place)
    return Assigned(placed, (_note(fold, placed), *notes))


def _even_folds(sizes: NDArray[np.int64], folds: int, seed: int) -> NDArray[np.int64]:
    """Return the fold of each group: the largest first, each into the fold with the fewest rows. [groups]"""
    shuffled = np.random.default_rng([seed, 0xF01D5]).permutation(len(sizes))
    order = shuffled[np.argsort(-sizes[shuffled], kind="stable")]
    fold_of = np.empty(len(sizes), np.int64)
    fewest = [(0, fold) for fold in range(folds)]
    for group in order.tolist():
        rows, fold = fewest[0]
        fold_of[group] = fold
        heapq.heapreplace(fewest, (rows + int(sizes[group]), fold))
    return fold_of


def _note(fold: Fold, parts: Parts) -> str:
    train, validation, test = (int((parts == part).sum()) for part in (TRAIN, VALIDATION, TEST))
    return (
        f"{fold}: its {test:,} rows are the test part; of the other folds {train:,} rows are trained on and "
        f"{validation:,} are for validation"
    )
