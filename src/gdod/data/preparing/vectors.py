"""Vectors that a file has for values of a column, such as those of items that another model has learned."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gdod._checks import check_choice, listed
from gdod.data.preparing.cache import hash_files
from gdod.data.preparing.vector_options import VectorOptions
from gdod.data.preparing.vocabulary import Vocabulary
from gdod.data.tables.table_schema import CategoricalColumn, TableSchema
from gdod.data.tables.values import text
from gdod.errors import InputError

_ENDINGS = (".parquet", ".csv", ".tsv", ".npz")
_MOST_NUMBERS = 4096  # of a vector


class Vectors(NamedTuple):
    """Values of a column, as texts, and a vector of each."""

    values: pl.Series  # [n]
    vectors: NDArray[np.float32]  # [n, p]
    frozen: bool

    @property
    def size(self) -> int:
        """The length of a vector."""
        return int(self.vectors.shape[1])

    def by_id(self, vocabulary: Vocabulary, largest: int) -> NDArray[np.float32]:
        """Return the vector of each id up to ``largest``; nan where the file has none, and for 0. [largest + 1, p]"""
        table = np.full((largest + 1, self.size), np.nan, np.float32)
        ids = vocabulary.ids(self.values)  # [n]
        known = (ids > 0) & (ids <= largest)
        table[ids[known]] = self.vectors[known]
        return table


def read_all(options: Mapping[str, VectorOptions], schema: TableSchema) -> dict[str, Vectors]:
    """Return the vectors of each column; raise if one is no categorical column, or its file does not fit it."""
    columns = schema.of(CategoricalColumn)
    for name in options:
        check_choice("a column of data.vectors", name, columns)
    missing = schema.file.missing
    return {name: read_vectors(one.file, name, missing, frozen=one.frozen) for name, one in options.items()}


def fingerprint_values(options: Mapping[str, VectorOptions], cache: Path) -> dict[str, Any]:
    """Return what the fingerprint of prepared data depends on; nothing without vectors."""
    if not options:
        return {}
    hashes = hash_files([one.file for one in options.values()], cache)
    each = zip(options.items(), hashes, strict=True)
    return {"vectors": {name: [value, one.file.suffix, one.frozen] for (name, one), value in each}}


def read_vectors(path: Path, column: str, missing: tuple[str, ...] = (), *, frozen: bool = False) -> Vectors:
    """Return the vectors of a column's values in a file.

    A table (.parquet, .csv, .tsv) has the values in a column of the same name, or "id", and beside it either one column
    of lists or a column for each number. An .npz file has the arrays "ids" [n] and "vectors" [n, p].

    Args:
        path: the file.
        column: the name of the column.
        missing: texts that mean "no value", as in the table.
        frozen: see `VectorOptions`.
    """
    if path.suffix not in _ENDINGS:
        raise InputError(f"the vectors of {column!r} are in {path}; expected a file that ends in {', '.join(_ENDINGS)}")
    if not path.is_file():
        raise InputError(f"the vectors of {column!r}: there is no file {path}")
    try:
        ids, numbers = (_from_npz if path.suffix == ".npz" else _from_table)(path, column)
    except (OSError, ValueError, pl.exceptions.PolarsError) as error:
        raise InputError(f"the vectors of {column!r}: {path} cannot be read: {error}") from error
    values = text(ids, missing)
    _check(values, numbers, f"the vectors of {column!r} in {path}")
    return Vectors(values, numbers.astype(np.float32), frozen)


def _from_npz(path: Path, column: str) -> tuple[pl.Series, NDArray[np.floating[Any]]]:
    with np.load(path, allow_pickle=False) as arrays:
        if not {"ids", "vectors"} <= set(arrays):
            raise InputError(f"{path} has the arrays {listed(arrays)}; expected 'ids' [n] and 'vectors' [n, p]")
        ids, vectors = arrays["ids"], arrays["vectors"]
    if ids.ndim != 1 or vectors.ndim != 2 or len(ids) != len(vectors) or vectors.dtype.kind not in "fiu":
        raise InputError(
            f"{path} has ids of shape {list(ids.shape)} and vectors of shape {list(vectors.shape)} and type "
            f"{vectors.dtype}; expected [n] and [n, p], of numbers"
        )
    return pl.Series(column, ids), vectors


def _from_table(path: Path, column: str) -> tuple[pl.Series, NDArray[np.floating[Any]]]:
    if path.suffix == ".parquet":
        frame = pl.read_parquet(path)
    else:
        frame = pl.read_csv(path, separator="\t" if path.suffix == ".tsv" else ",", infer_schema_length=None)
    own = next((name for name in (column, "id") if name in frame.columns), None)
    if own is None:
        raise InputError(f"{path} has the columns {listed(frame.columns)}; expected one named {column!r} or 'id'")
    rest = frame.drop(own)
    lists = [name for name, kind in rest.schema.items() if isinstance(kind, pl.List | pl.Array)]
    others = [name for name, kind in rest.schema.items() if name not in lists and not kind.is_numeric()]
    if others or len(lists) > 1 or (lists and rest.width > 1) or not rest.width:
        raise InputError(
            f"{path} has the columns {listed(frame.columns)}; expected, beside {own!r}, one column of lists or one for "
            f"each number of a vector{f'; {others[0]!r} has no numbers' if others else ''}"
        )
    return frame[own], _from_lists(rest[lists[0]], path) if lists else rest.cast(pl.Float64).to_numpy()


def _from_lists(lists: pl.Series, path: Path) -> NDArray[np.floating[Any]]:
    lists = lists.cast(pl.List(pl.Float64))
    lengths = lists.list.len().fill_null(0)
    if lengths.n_unique() > 1:
        raise InputError(
            f"{path} has vectors of {lengths.min()!r} to {lengths.max()!r} numbers; expected the same number for all"
        )
    numbers = lists.explode(empty_as_null=False).fill_null(np.nan).to_numpy()
    return numbers.reshape(len(lists), len(numbers) // max(1, len(lists)))


def _check(values: pl.Series, numbers: NDArray[np.floating[Any]], what: str) -> None:
    """Raise if a value is missing or there twice, or a number is missing or not finite in float32."""
    if not 1 <= numbers.shape[1] <= _MOST_NUMBERS or not len(numbers):
        raise InputError(
            f"{what}: {len(numbers)} vectors of {numbers.shape[1]} numbers; expected at least one, of 1 to "
            f"{_MOST_NUMBERS:,} numbers"
        )
    if values.null_count():
        raise InputError(f"{what}: {values.null_count():,} have no id; expected one for each, or leave such rows out")
    twice = values.filter(values.is_duplicated())
    if len(twice):
        raise InputError(f"{what}: {twice[0]!r} is there more than once ({twice.n_unique():,} such ids); expected once")
    with np.errstate(over="ignore"):
        finite = np.isfinite(numbers.astype(np.float32)).all(1)
    if not finite.all():
        first = values[int(np.flatnonzero(~finite)[0])]
        raise InputError(
            f"{what}: {int((~finite).sum()):,} have numbers that are missing or not finite, that of {first!r} first; "
            "leave such rows out, so that these ids begin as all others"
        )
