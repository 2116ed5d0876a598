"""The same table from every kind of file gives the same examples."""

import gzip
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
import torch
from tests.data.tables import SCHEMA, WITHOUT_TEST, clicks, schema, write

from gdod import InputError
from gdod.data import TableSchema, load
from gdod.data.part import Examples, MemoryPart


def train(source: Path | str, cache: Path, table: TableSchema | None = None) -> Examples:
    part = load(source, schema=table or schema(WITHOUT_TEST), cache=cache).train
    assert isinstance(part, MemoryPart)
    return part.examples


def assert_same(one: Examples, other: Examples) -> None:
    assert torch.equal(one.categorical, other.categorical)
    assert torch.equal(one.numeric, other.numeric)
    assert all(map(torch.equal, one.sequences, other.sequences))
    torch.testing.assert_close(one.labels, other.labels, equal_nan=True, rtol=0, atol=0)


def zst(table: pl.DataFrame, path: Path) -> None:
    with pa.CompressedOutputStream(str(path), "zstd") as file:
        file.write(table.write_csv().encode())


KINDS: dict[str, Callable[[pl.DataFrame, Path], object]] = {
    "t.tsv": lambda table, path: table.write_csv(path, separator="\t"),
    "semicolon.csv": lambda table, path: table.write_csv(path, separator=";"),
    "quoted.csv": lambda table, path: table.write_csv(path, quote_style="always", line_terminator="\r\n"),
    "mark.csv": lambda table, path: table.write_csv(path, include_bom=True),
    "t.csv.gz": lambda table, path: path.write_bytes(gzip.compress(table.write_csv().encode())),
    "t.csv.zst": zst,
    "t.parquet": lambda table, path: table.write_parquet(path),
    "lists.parquet": lambda table, path: table.with_columns(pl.col("seen").str.split(" ")).write_parquet(path),
    "ids.parquet": lambda table, path: table.cast({"user": pl.Float64, "city": pl.Categorical}).write_parquet(path),
}


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_file(name: str, tmp_path: Path) -> None:
    KINDS[name](clicks(), tmp_path / name)
    assert_same(train(tmp_path / name, tmp_path / "c"), train(write(tmp_path / "plain"), tmp_path / "c"))


def test_a_folder_of_parts_and_a_pattern(tmp_path: Path) -> None:
    table = clicks()
    write(tmp_path / "parts", table[:250], "a.csv")
    # Columns in another order are the same columns.
    write(tmp_path / "parts", table[250:].select(reversed(table.columns)), "b.csv")
    (tmp_path / "parts" / "_SUCCESS").write_text("")
    whole = train(write(tmp_path), tmp_path / "c")
    assert_same(train(tmp_path / "parts", tmp_path / "c"), whole)
    assert_same(train(f"{tmp_path}/parts/?.csv", tmp_path / "c"), whole)


def test_a_file_without_header_in_another_encoding(tmp_path: Path) -> None:
    table = clicks().with_columns(pl.col("city").replace({"oslo": "Malmö"}))
    path = tmp_path / "t.csv"
    path.write_bytes(table.write_csv(include_header=False).encode("latin-1"))
    described = schema(WITHOUT_TEST).to_json()
    described["file"] = {"header": table.columns, "encoding": "latin-1"}
    data = load(path, schema=TableSchema(**described), cache=tmp_path / "c")
    assert len(data.train) == 600
    assert "Malmö" in data.encoder.to_json()["vocabularies"]["city"]


def test_a_value_may_span_lines(tmp_path: Path) -> None:
    table = clicks().with_columns(pl.col("city").replace({"rome": 'ro\nme, "it"'}))
    assert_same(train(write(tmp_path, table), tmp_path / "c"), train(write(tmp_path / "p"), tmp_path / "c"))


def test_files_that_are_not_there(tmp_path: Path) -> None:
    write(tmp_path)
    with pytest.raises(InputError, match=r"did you mean 'clicks\.csv'"):
        load(tmp_path / "click.csv", schema=SCHEMA, cache=tmp_path / "c")
    with pytest.raises(InputError, match="no file fits"):
        load(f"{tmp_path}/*.tsv", schema=SCHEMA, cache=tmp_path / "c")
    with pytest.raises(InputError, match="data sets with a name: census"):
        load("censuss", schema=SCHEMA, cache=tmp_path / "c")
    (tmp_path / "t.xlsx").write_text("x")
    with pytest.raises(InputError, match="unknown kind"):
        load(tmp_path / "t.xlsx", schema=SCHEMA, cache=tmp_path / "c")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="has no file"):
        load(tmp_path / "empty", schema=SCHEMA, cache=tmp_path / "c")
