"""Prepared once: what is stored, what makes it anew, and that others can read it."""

import json
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pyarrow.parquet as pq
import pytest
from tests.data.clicks_table import SCHEMA, clicks, schema, write
from typer.testing import CliRunner

import gdod.data.loading
from gdod import InputError
from gdod.cli.data import app
from gdod.data import SOURCES, RawTables, TableSchema, load, prepare


def prepared(cache: Path) -> list[str]:
    return sorted(path.name for path in (cache / "prepared").iterdir())


def test_every_row_is_in_one_part(tmp_path: Path) -> None:
    table = clicks().with_columns(age=pl.col("id").cast(pl.Float64))
    data = load(write(tmp_path, table), schema=schema(age={"type": "numeric", "scale": "none"}), cache=tmp_path / "c")
    ages = [
        float(age)
        for part in (data.train, data.validation, data.test)
        for step in part.batches(50)
        for age in step.batch.numeric[:, 0]
    ]
    assert sorted(ages) == list(range(600))
    train = [float(age) for step in data.train.batches(50) for age in step.batch.numeric[:, 0]]
    assert train != sorted(train)  # the training part is stored in random order


def test_the_stored_form_is_open_to_others(tmp_path: Path) -> None:
    folder = prepare(write(tmp_path), schema=SCHEMA, cache=tmp_path / "c")
    files = sorted(path.name for path in folder.iterdir())
    assert files == [
        "about.json",
        "counts.parquet",
        "encoder.json",
        "test-00000.parquet",
        "train-00000.parquet",
        "validation-00000.parquet",
    ]
    stored = pq.read_table(folder / "test-00000.parquet")
    assert stored.column_names == ["user", "city", "age", "seen", "click", "buy"]
    vocabulary = json.loads((folder / "encoder.json").read_text())["vocabularies"]["user"]
    users = [vocabulary[at - 1] for at in stored["user"].to_pylist() if at]
    assert set(users) <= {str(user) for user in range(1, 40)}
    assert None in stored["buy"].to_pylist()  # no click, no label
    about = json.loads((folder / "about.json").read_text())
    assert about["rows"] == {"train": 432, "validation": 48, "test": 120}


def test_missing_and_unknown_values_are_counted(tmp_path: Path) -> None:
    table = clicks().with_columns(city=pl.when(pl.col("id") >= 590).then(pl.lit("new")).otherwise(pl.col("city")))
    split = {"by": "time", "column": "day"}
    data = load(write(tmp_path, table), schema=schema(split), cache=tmp_path / "c")
    about = json.loads(next((tmp_path / "c").glob("prepared/*/about.json")).read_text())["parts"]
    assert about["test"]["unknown"]["city"] == 10
    ages = sum(about[part]["missing"]["age"] for part in about)
    assert ages == table["age"].null_count()
    buys = sum(about[part]["labels"]["buy"]["labelled"] for part in about)
    assert buys == table["click"].sum()
    assert any(note.startswith("test: values that training has not seen") and "city 10" in note for note in data.notes)


def test_shares_of_sequences_are_of_their_values(tmp_path: Path) -> None:
    """A row has several, so that there may be more unknown values than rows."""
    rows = 100
    table = pl.DataFrame(
        {
            "city": ["rome"] * 50 + ["oslo"] * 50,
            "seen": [f"a u{at} v{at} w{at}" for at in range(rows)],  # three of four are seen once
            "click": [0, 1] * 50,
        }
    )
    columns = {"city": "categorical", "seen": {"type": "sequence", "rare": 2}, "click": "label"}
    split = {"by": "random", "validation": 0.0, "test": 0.2}
    data = load(write(tmp_path, table), schema=TableSchema(columns=columns, split=split), cache=tmp_path / "c")
    assert "train: rare values in seen 240 (75.0% of its values)" in data.notes
    assert any(note.startswith("test: ") and "seen 60 (75.0% of its values)" in note for note in data.notes)


def test_a_table_without_rows_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, clicks(0), "empty.csv")
    with pytest.raises(InputError, match=r"^empty\.csv: the table has no rows; expected .*"):
        load(path, schema=SCHEMA, cache=tmp_path / "c")
    with pytest.raises(InputError, match=r"^empty\.csv: the test table has no rows; expected .*"):
        load(write(tmp_path), schema=schema({"by": "files", "test": "empty.csv"}), cache=tmp_path / "c")


def test_the_second_time_it_comes_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path)
    first = load(path, schema=SCHEMA, cache=tmp_path / "c")
    monkeypatch.setattr(gdod.data.loading, "build_folder", None)  # calling it would fail
    assert load(path, schema=SCHEMA, cache=tmp_path / "c").fingerprint == first.fingerprint
    moved = path.rename(tmp_path / "moved.csv")
    assert load(moved, schema=SCHEMA, cache=tmp_path / "c").fingerprint == first.fingerprint


def test_a_change_of_content_or_schema_is_noticed(tmp_path: Path) -> None:
    path, cache = write(tmp_path), tmp_path / "c"
    prints = [load(path, schema=SCHEMA, cache=cache).fingerprint]
    prints.append(load(path, schema=schema({"seed": 1}), cache=cache).fingerprint)
    prints.append(load(path, schema=schema(city={"type": "categorical", "rare": 3}), cache=cache).fingerprint)
    text = path.read_bytes()
    path.write_bytes(text.replace(b"rome", b"roma", 1))  # same size
    prints.append(load(path, schema=SCHEMA, cache=cache).fingerprint)
    assert len(set(prints)) == 4
    assert sorted(prints) == prepared(cache)


def test_damaged_prepared_data_is_made_again(tmp_path: Path) -> None:
    path, cache = write(tmp_path), tmp_path / "c"
    folder = prepare(path, schema=SCHEMA, cache=cache)
    whole = (folder / "train-00000.parquet").read_bytes()
    (folder / "train-00000.parquet").write_bytes(whole[:-100])
    assert len(load(path, schema=SCHEMA, cache=cache).train) == 432
    assert (folder / "train-00000.parquet").read_bytes() == whole
    (folder / "about.json").unlink()
    assert len(load(path, schema=SCHEMA, cache=cache).train) == 432


@pytest.mark.parametrize("name", ["train-00000.parquet", "test-00000.parquet", "encoder.json"])
def test_prepared_data_of_which_a_bit_changed_is_made_again(tmp_path: Path, name: str) -> None:
    path, cache = write(tmp_path), tmp_path / "c"
    folder = prepare(path, schema=SCHEMA, cache=cache)
    whole = (folder / name).read_bytes()
    for at in (10, len(whole) // 2, len(whole) - 10):
        changed = bytearray(whole)
        changed[at] ^= 1
        (folder / name).write_bytes(changed)
        load(path, schema=SCHEMA, cache=cache)
        assert (folder / name).read_bytes() == whole


def test_prepared_data_of_an_earlier_version_has_no_checksums_and_still_opens(tmp_path: Path) -> None:
    path, cache = write(tmp_path), tmp_path / "c"
    folder = prepare(path, schema=SCHEMA, cache=cache)
    about = json.loads((folder / "about.json").read_text())
    del about["checksums"]
    (folder / "about.json").write_text(json.dumps(about))
    assert len(load(path, schema=SCHEMA, cache=cache).train) == 432
    assert "checksums" not in (folder / "about.json").read_text()  # it was not made again


def test_preparing_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    path = write(tmp_path)
    one, other = (prepare(path, schema=SCHEMA, cache=tmp_path / name) for name in ("a", "b"))
    assert one.name == other.name
    for file in one.iterdir():
        assert file.read_bytes() == (other / file.name).read_bytes()


def test_a_failure_leaves_the_cache_as_it_was(tmp_path: Path) -> None:
    path, cache = write(tmp_path), tmp_path / "c"
    load(path, schema=SCHEMA, cache=cache)
    before = sorted(cache.rglob("*"))
    write(tmp_path, clicks().with_columns(click=pl.lit(7)))
    with pytest.raises(InputError):
        load(path, schema=SCHEMA, cache=cache)
    assert sorted(cache.rglob("*")) == before


def test_several_at_once(tmp_path: Path) -> None:
    path, cache = write(tmp_path), tmp_path / "c"
    with ThreadPoolExecutor(4) as pool:
        names = [made.name for made in pool.map(lambda _: prepare(path, schema=SCHEMA, cache=cache), range(4))]
    assert len(set(names)) == 1
    assert prepared(cache) == names[:1]


def test_the_cache_folder_comes_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GDOD_CACHE", str(tmp_path / "mine"))
    assert prepare(write(tmp_path), schema=SCHEMA).parent == tmp_path / "mine" / "prepared"


@dataclass(frozen=True)
class Named:
    name: str = "clicks"
    title: str = "Clicks"
    lazy: bool = False
    with_test: bool = False

    def read(self, folder: Path | None, options: Mapping[str, object]) -> RawTables:
        table = clicks(int(str(options.get("rows", 600))))
        test = table[500:] if self.with_test else None
        train = table[:500] if self.with_test else table
        return RawTables(train.lazy() if self.lazy else train, test, SCHEMA, ("a note",))

    def fingerprint(self, folder: Path | None, options: Mapping[str, object]) -> str:
        return json.dumps([self.with_test, dict(options)])


@pytest.mark.parametrize("lazy", [False, True])
def test_a_data_set_with_a_name(lazy: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SOURCES, "clicks", Named(lazy=lazy))
    data = load("clicks", cache=tmp_path)
    assert [len(part) for part in (data.train, data.validation, data.test)] == [432, 48, 120]
    assert data.name == "clicks"
    assert data.notes[0] == "a note"
    assert len(load("clicks", cache=tmp_path, rows=300).train) == 216
    monkeypatch.setitem(SOURCES, "clicks", Named(lazy=lazy, with_test=True))
    data = load("clicks", cache=tmp_path)
    assert [len(part) for part in (data.train, data.validation, data.test)] == [450, 50, 100]


def test_options_are_for_named_data_sets_only(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="option 'rows' is unknown"):
        load(write(tmp_path), schema=SCHEMA, cache=tmp_path, rows=3)
    with pytest.raises(InputError, match="mark them there"):
        load(write(tmp_path), schema=SCHEMA, labels=["click"], cache=tmp_path)


def test_the_cache_is_cleaned_of_what_was_not_used_for_a_while(tmp_path: Path) -> None:
    path, cache = write(tmp_path), tmp_path / "c"
    old, new = (prepare(path, schema=schema({"seed": seed}), cache=cache) for seed in (0, 1))
    for folder in (old, new):
        os.utime(folder / "about.json", (0, 0))
    load(path, schema=schema({"seed": 1}), cache=cache)
    done = CliRunner().invoke(app, ["clean", "--days", "30", "--cache", str(cache)])
    assert done.exit_code == 0, done.output
    assert "1 folder removed" in done.output
    assert prepared(cache) == [new.name]
    assert CliRunner().invoke(app, ["clean", "--cache", str(cache)]).exit_code == 0
    assert prepared(cache) == []
    assert CliRunner().invoke(app, ["clean", "--cache", str(tmp_path / "none")]).output.startswith("0 folders removed")


def test_cleaning_keeps_to_what_is_prepared(tmp_path: Path) -> None:
    """Not what another process is making, nor what a link leads to."""
    cache, own = tmp_path / "c", tmp_path / "own"
    (cache / "prepared" / ".making-now").mkdir(parents=True)
    own.mkdir()
    (own / "kept").touch()
    (cache / "prepared" / "link").symlink_to(own)
    (cache / "prepared" / "file").touch()
    (cache / "prepared" / "done").mkdir()
    done = CliRunner().invoke(app, ["clean", "--days", "0", "--cache", str(cache)])
    assert done.exit_code == 0, done.output
    assert "1 folder removed" in done.output
    assert {path.name for path in (cache / "prepared").iterdir()} == {".making-now", "link", "file"}
    assert (own / "kept").exists()


def test_a_full_disk_names_the_cache_and_leaves_nothing(tmp_path: Path) -> None:
    """No file may grow beyond a limit, which is as real as a full disk; the library that writes names no file."""
    resource = pytest.importorskip("resource")
    table, schema = tmp_path / "t.csv", tmp_path / "s.yaml"
    table.write_text("a,y\n" + "".join(f"{hash((row, 1)) % 10**9},{row % 2}\n" for row in range(5_000)))
    schema.write_text("columns: {a: numeric, y: label}\n")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4_000, before[1]))
    try:
        with pytest.raises(OSError, match=r"cannot be kept in .*cache.*: File too large; make room, or .* GDOD_CACHE"):
            load(table, schema=schema, cache=tmp_path / "cache")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert len(load(table, schema=schema, cache=tmp_path / "cache").train) > 0
