"""Files with vectors of a column's values: every form is read alike, and what is wrong with one is said."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import gdod
from gdod.data import load
from gdod.data.preparing.vector_options import VectorOptions
from gdod.data.preparing.vectors import read_vectors
from gdod.data.tables.table_schema import CategoricalColumn

IDS = [3, 11, 7]
NUMBERS = np.array([[1.0, 2.5], [-3.0, 0.25], [0.0, 4.0]])
LISTS = pl.DataFrame({"id": IDS, "vector": NUMBERS.tolist()})
WIDE = pl.DataFrame({"item": IDS, "a": NUMBERS[:, 0], "b": NUMBERS[:, 1]})


def npz(path: Path, ids: object = IDS, vectors: object = NUMBERS) -> Path:
    np.savez(path / "v.npz", ids=np.array(ids), vectors=np.array(vectors))
    return path / "v.npz"


def parquet(path: Path, frame: pl.DataFrame) -> Path:
    frame.write_parquet(path / "v.parquet")
    return path / "v.parquet"


def text(path: Path, ending: str, separator: str) -> Path:
    WIDE.write_csv(path / f"v{ending}", separator=separator)
    return path / f"v{ending}"


@pytest.mark.parametrize(
    "write",
    [
        npz,
        lambda path: parquet(path, LISTS),
        lambda path: parquet(path, LISTS.with_columns(pl.col("vector").cast(pl.Array(pl.Float32, 2)))),
        lambda path: parquet(path, WIDE),
        lambda path: parquet(path, WIDE.with_columns(pl.col("item").cast(pl.String))),
        lambda path: text(path, ".csv", ","),
        lambda path: text(path, ".tsv", "\t"),
    ],
)
def test_every_form_is_read_alike(tmp_path: Path, write: Callable[[Path], Path]) -> None:
    vectors = read_vectors(write(tmp_path), "item")
    assert vectors.values.to_list() == ["3", "11", "7"]
    assert vectors.vectors.dtype == np.float32
    assert vectors.vectors.tolist() == NUMBERS.tolist()
    assert vectors.size == 2


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda path: path / "v.parquet", "there is no file"),
        (lambda path: path / "v.txt", "expected a file that ends in .parquet, .csv, .tsv, .npz"),
        (lambda path: parquet(path, LISTS.rename({"id": "name"})), "expected one named 'item' or 'id'"),
        (lambda path: parquet(path, LISTS[["id"]]), "one column of lists or one for each number"),
        (lambda path: parquet(path, WIDE.with_columns(b=pl.lit("x"))), "'b' has no numbers"),
        (lambda path: parquet(path, pl.concat([LISTS, LISTS[:1]])), "'3' is there more than once"),
        (lambda path: parquet(path, WIDE.with_columns(item=pl.lit(None, pl.Int64))), "3 have no id"),
        (lambda path: parquet(path, WIDE.with_columns(b=pl.lit(None, pl.Float64))), "missing or not finite"),
        (lambda path: parquet(path, WIDE.with_columns(b=pl.lit(1e300))), "that of '3' first"),
        (
            lambda path: parquet(path, pl.DataFrame({"id": [1, 2], "v": [[1.0], [1.0, 2.0]]})),
            "has vectors of 1 to 2 numbers",
        ),
        (lambda path: parquet(path, LISTS[:0]), "0 vectors"),
        (lambda path: npz(path, ids=[1, 2]), r"ids of shape \[2\] and vectors of shape \[3, 2\]"),
        (lambda path: npz(path, vectors=[["a"] * 2] * 3), "of numbers"),
    ],
)
def test_files_that_do_not_fit_are_refused(tmp_path: Path, write: Callable[[Path], Path], message: str) -> None:
    with pytest.raises(gdod.InputError, match=message):
        read_vectors(write(tmp_path), "item")


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    for ending in (".parquet", ".npz"):
        (tmp_path / f"v{ending}").write_bytes(b"no such thing")
        with pytest.raises(gdod.InputError, match="cannot be read"):
            read_vectors(tmp_path / f"v{ending}", "item")


def frame() -> pl.DataFrame:
    """Items 0 to 9, of which 9 occurs twice only."""
    rows = range(200)
    return pl.DataFrame(
        {"item": [9 if n in (5, 60) else n % 9 for n in rows], "n": rows, "y": [n % 3 // 2 for n in rows]}
    )


SCHEMA = gdod.data.TableSchema(
    columns={"item": {"type": "categorical", "rare": 5}, "n": "numeric", "y": "label"},
    split={"validation": 0.0, "test": 0.0},
)


def test_values_with_vectors_are_never_rare_and_are_known_even_if_they_do_not_occur(tmp_path: Path) -> None:
    file = parquet(tmp_path, pl.DataFrame({"id": [9, 77, 0], "v": [[9.0, 1.0], [77.0, 1.0], [0.5, 1.0]]}))
    plain = load(frame(), schema=SCHEMA, cache=tmp_path / "cache")
    data = load(frame(), schema=SCHEMA, cache=tmp_path / "cache", vectors={"item": VectorOptions(file=file)})
    assert data.fingerprint != plain.fingerprint
    assert "9" not in plain.encoder.vocabularies["item"].values
    vocabulary = data.encoder.vocabularies["item"]
    assert set(vocabulary.values) == {*map(str, range(10)), "77"}
    table = data.vectors["item"]
    (field,) = data.schema.categorical
    assert (field.vectors, field.frozen) == (2, False)
    assert table.shape == (field.cardinality + 1, 2) == (12, 2)
    for name, first in (("9", 9.0), ("77", 77.0), ("0", 0.5)):
        assert table[vocabulary.values.to_list().index(name) + 1].tolist() == [first, 1.0]
    assert int(np.isnan(table[:, 0]).sum()) == 9
    assert any("item: vectors of 2 numbers for 3 of 11 values" in note for note in data.notes)


@pytest.mark.parametrize("rare", [5, 60])
def test_with_target_statistics_they_come_before_rare_ones(tmp_path: Path, rare: int) -> None:
    file = parquet(tmp_path, pl.DataFrame({"id": [9, 77], "v": [[9.0], [77.0]]}))
    features = gdod.data.FeatureOptions(rare=rare)
    schema = SCHEMA.model_copy(update={"columns": {**SCHEMA.columns, "item": CategoricalColumn()}})
    options = {"item": VectorOptions(file=file, frozen=True)}
    data = load(frame(), schema=schema, cache=tmp_path / "cache", vectors=options, features=features)
    (field,) = data.schema.categorical
    assert field.frozen
    assert field.cardinality == (11 if rare == 5 else 2)
    (batch,) = data.encoder.encode(pl.DataFrame({"item": [9, 77, 1, 5000], "n": [1.0] * 4})).batches(4)
    ids = batch.batch.categorical[:, 0]
    assert data.vectors["item"][ids[:2], 0].tolist() == [9.0, 77.0]
    assert (int(ids[2]) > 0) == (rare == 5)
    assert int(ids[3]) == 0


def test_a_file_of_other_ids_and_columns_that_are_not_there_are_refused(tmp_path: Path) -> None:
    file = parquet(tmp_path, pl.DataFrame({"id": ["a", "b"], "v": [[9.0], [77.0]]}))
    with pytest.raises(gdod.InputError, match="none of the 2 ids that have vectors occurs in the training rows"):
        load(frame(), schema=SCHEMA, cache=tmp_path / "cache", vectors={"item": VectorOptions(file=file)})
    for name in ("itme", "n"):
        with pytest.raises(
            gdod.InputError, match=f"a column of data.vectors='{name}' is unknown; expected one of 'item'"
        ):
            load(frame(), schema=SCHEMA, cache=tmp_path / "cache", vectors={name: VectorOptions(file=file)})
