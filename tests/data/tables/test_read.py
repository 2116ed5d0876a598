"""The same table from every kind of file gives the same examples."""

import bz2
import gzip
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
import torch
from tests.data.clicks_table import SCHEMA, WITHOUT_TEST, clicks, schema, write

from gdod import InputError
from gdod.data import TableSchema, inspect, load
from gdod.data.parts.part import Examples, MemoryPart


def train(source: Path | str, cache: Path, table: TableSchema | None = None) -> Examples:
    part = load(source, schema=table or schema(WITHOUT_TEST), cache=cache).train
    assert isinstance(part, MemoryPart)
    return part.examples


def assert_same(one: Examples, other: Examples) -> None:
    assert torch.equal(one.categorical, other.categorical)
    assert torch.equal(one.numeric, other.numeric)
    assert all(map(torch.equal, one.sequences, other.sequences))
    torch.testing.assert_close(one.labels, other.labels, equal_nan=True, rtol=0, atol=0)


def zst(table: pl.DataFrame, path: Path, separator: str = ",") -> None:
    with pa.CompressedOutputStream(str(path), "zstd") as file:
        file.write(table.write_csv(separator=separator).encode())


KINDS: dict[str, Callable[[pl.DataFrame, Path], object]] = {
    "t.tsv": lambda table, path: table.write_csv(path, separator="\t"),
    "semicolon.csv": lambda table, path: table.write_csv(path, separator=";"),
    "quoted.csv": lambda table, path: table.write_csv(path, quote_style="always", line_terminator="\r\n"),
    "mark.csv": lambda table, path: table.write_csv(path, include_bom=True),
    "t.csv.gz": lambda table, path: path.write_bytes(gzip.compress(table.write_csv().encode())),
    "t.csv.zst": zst,
    "T.CSV.GZ": lambda table, path: path.write_bytes(gzip.compress(table.write_csv().encode())),
    "t.csv.BZ2": lambda table, path: path.write_bytes(bz2.compress(table.write_csv().encode())),
    "t.TSV.Zst": lambda table, path: zst(table, path, "\t"),
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


def parquet(folder: Path, **parts: pl.DataFrame) -> Path:
    folder.mkdir()
    for name, part in parts.items():
        part.write_parquet(folder / f"{name}.parquet")
    return folder


FIRST_PARTS = {
    "null then fractions": pl.lit(None).alias("age"),
    "whole then fractions": pl.col("age").floor().cast(pl.Int64),
    "small then large": pl.col("id").cast(pl.Int16),
    "names then text": pl.col("city").cast(pl.Categorical),
    "null then text": pl.lit(None).alias("city"),
    "numbers then text": pl.col("seen").cast(pl.Float64, strict=False),
    "null then lists": pl.lit(None).alias("seen"),
}


@pytest.mark.parametrize("name", FIRST_PARTS)
def test_parts_of_a_parquet_table_may_differ_in_types(name: str, tmp_path: Path) -> None:
    table = clicks().with_columns(id=pl.when(pl.col("id") < 250).then("id").otherwise(pl.lit(2**40)))
    described = schema(WITHOUT_TEST, id={"type": "categorical", "limit": 600})
    first, second = table[:250].with_columns(FIRST_PARTS[name]), table[250:]
    whole = pl.concat([first.cast(table.schema), second])
    if name == "null then lists":
        second = second.with_columns(pl.col("seen").str.split(" "))
    expected = train(write(tmp_path, whole), tmp_path / "c", described)
    # Neither the order of the parts nor one without rows makes a difference to the types.
    empty = table[:0].with_columns(pl.all().cast(pl.Boolean))
    assert_same(train(parquet(tmp_path / "p", a=first, b=empty, c=second), tmp_path / "c", described), expected)
    turned = pl.concat([whole[250:], whole[:250]])
    expected = train(write(tmp_path, turned, "turned.csv"), tmp_path / "c", described)
    assert_same(train(parquet(tmp_path / "q", a=second, b=empty, c=first), tmp_path / "c", described), expected)


def test_parts_of_a_parquet_table_that_do_not_fit_together_are_refused(tmp_path: Path) -> None:
    table = clicks()
    lists = table.with_columns(pl.col("seen").str.split(" "))
    with pytest.raises(InputError, match=r"column 'seen' is of type .*string in .*/a\.parquet but .*list.* in .*/b"):
        load(parquet(tmp_path / "p", a=table, b=lists), schema=SCHEMA, cache=tmp_path / "c")
    # A fraction cannot hold each whole number that is this large, and two users would become one.
    large = table.with_columns(pl.col("user") + 2**60)
    fractions = table.with_columns(pl.col("user").cast(pl.Float64))
    with pytest.raises(InputError, match=r"a\.parquet: column 'user' .* double.*same type in all parts"):
        load(parquet(tmp_path / "q", a=large, b=fractions), schema=SCHEMA, cache=tmp_path / "c")


BEFORE = {
    "plain": "",
    "blank lines": "\n\r\n\n",
    "a value of two lines": '0,1,"ro\nme",,,,0,0\n',
    "stray marks": '0,1,5" disc,30,"1\n2",,0,0\n',
    "carriage returns": "0,1,oslo,,,,0,0\r0,1,oslo,,,,0,0\r\n",
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("header", [False, True])
@pytest.mark.parametrize("before", BEFORE)
def test_the_line_of_a_message_is_that_of_an_editor(before: str, header: bool, packed: bool, tmp_path: Path) -> None:
    names, rows = clicks().write_csv().split("\n", 1)
    described = schema(WITHOUT_TEST).to_json()
    if not header:
        described["file"] = {"header": clicks().columns}
    start = f"{names}\n" * header + BEFORE[before] + rows
    for wrong, says in (("0,1,oslo,forty,,,0,0", "column 'age' is 'forty'"), ("0,1", "Expected 8 columns, got 2")):
        path = tmp_path / ("t.csv.gz" if packed else "t.csv")
        text = f"{start}{wrong}\n{rows}".encode()
        path.write_bytes(gzip.compress(text) if packed else text)
        with pytest.raises(InputError) as refused:
            load(path, schema=TableSchema(**described), cache=tmp_path / "c")
        assert f"{path.name}, line {len(start.splitlines()) + 1}: {says}" in str(refused.value)


def test_a_line_that_cannot_be_found_is_not_made_up(tmp_path: Path) -> None:
    lines = clicks().write_csv().splitlines()
    lines[1] = f"0,1,{'x' * 200_000},,,,0,0"  # longer than what is looked for lines
    lines[41] = "0,1,oslo,forty,,,0,0"
    (tmp_path / "t.csv").write_text("\n".join(lines))
    with pytest.raises(InputError, match=r"t\.csv, row 41 \(not counting the header and blank lines\): column 'age'"):
        load(tmp_path / "t.csv", schema=SCHEMA, cache=tmp_path / "c")


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


@pytest.mark.parametrize("name", ["*", "^.*$", "^click$"])
def test_names_that_are_patterns_to_polars_can_be_ignored(tmp_path: Path, name: str) -> None:
    expected = load(write(tmp_path), schema=inspect(write(tmp_path)).schema(), cache=tmp_path / "c").schema
    table, path = clicks().with_columns(pl.Series(name, [1, 2] * 300)), tmp_path / "t.parquet"
    table.write_parquet(path)
    for file in (path, write(tmp_path, table)):
        found = inspect(file)
        assert {column.name: column.type for column in found.columns}[name] == "ignore"
        assert load(file, schema=found.schema(), cache=tmp_path / "c").schema == expected
        with pytest.raises(InputError, match="has a name that polars takes for a pattern"):
            inspect(file, labels=[name])
    with pytest.raises(InputError, match="can only be ignored, since polars takes its name for a pattern"):
        TableSchema(columns={**found.schema().to_json()["columns"], name: "numeric"})
