"""Bad input ends in one clear message with the place, and leaves the cache as it was."""

import gzip
import os
import time
from pathlib import Path

import polars as pl
import pytest
from tests.data.clicks_table import SCHEMA, clicks, schema, write

from gdod import InputError
from gdod.data import TableSchema, load, prepare
from gdod.data.preparing import cache


def refusal(source: Path, table: TableSchema = SCHEMA) -> str:
    """Return the error's message; nothing may be left behind in the cache."""
    cache = source.parent / "cache"
    good = write(source.parent / "good", name="good.csv")
    load(good, schema=SCHEMA, cache=cache)
    before = {path: path.stat().st_size for path in cache.rglob("*") if path.is_file()}
    with pytest.raises(InputError) as error:
        load(source, schema=table, cache=cache)
    assert {path: path.stat().st_size for path in cache.rglob("*") if path.is_file()} == before
    assert len(list((cache / "prepared").iterdir())) == 1
    message = str(error.value)
    assert "\n" not in message
    return message


def put(folder: Path, content: bytes | str, name: str = "bad.csv") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def lines(rows: int = 600) -> list[str]:
    return clicks(rows).write_csv().splitlines()


def test_truncated_gzip(tmp_path: Path) -> None:
    whole = gzip.compress("\n".join(lines()).encode())
    for kept in (len(whole) - 5, len(whole) // 2, 30):
        message = refusal(put(tmp_path, whole[:kept], "bad.csv.gz"))
        assert "bad.csv.gz" in message
        assert "cut off" in message


def test_corrupt_gzip(tmp_path: Path) -> None:
    whole = bytearray(gzip.compress("\n".join(lines()).encode()))
    whole[len(whole) // 2] ^= 0xFF
    message = refusal(put(tmp_path, bytes(whole), "bad.csv.gz"))
    assert "bad.csv.gz" in message


def test_a_file_that_is_not_what_its_name_says(tmp_path: Path) -> None:
    for name in ("bad.csv.gz", "bad.parquet", "bad.csv.zst"):
        assert name in refusal(put(tmp_path, "\n".join(lines()), name))


def test_truncated_and_corrupt_parquet(tmp_path: Path) -> None:
    clicks().write_parquet(tmp_path / "t.parquet")
    whole = (tmp_path / "t.parquet").read_bytes()
    message = refusal(put(tmp_path, whole[: len(whole) // 2], "bad.parquet"))
    assert "bad.parquet" in message
    assert "cut off or damaged" in message
    middle = len(whole) // 2
    torn = whole[:middle] + bytes(400) + whole[middle + 400 :]
    assert "bad.parquet" in refusal(put(tmp_path, torn, "bad.parquet"))


def test_a_row_cut_short_is_named_by_its_line(tmp_path: Path) -> None:
    text = lines()
    text[300] = ",".join(text[300].split(",")[:3])
    message = refusal(put(tmp_path, "\n".join(text)))
    assert "bad.csv, line 301: Expected 8 columns, got 3" in message


def test_a_file_cut_in_its_last_row(tmp_path: Path) -> None:
    text = "\n".join(lines()).rsplit(",", 3)[0]
    assert "line 601" in refusal(put(tmp_path, text))


def test_a_quotation_mark_that_is_never_closed(tmp_path: Path) -> None:
    text = lines()
    text[5] = text[5].replace(",", ',"', 1)
    assert "bad.csv" in refusal(put(tmp_path, "\n".join(text)))


def test_empty_files(tmp_path: Path) -> None:
    assert "is empty" in refusal(put(tmp_path, ""))
    assert "no rows" in refusal(put(tmp_path, lines()[0] + "\n"))


def test_wrong_columns(tmp_path: Path) -> None:
    message = refusal(write(tmp_path, clicks().rename({"city": "ciity"}), "bad.csv"))
    assert "bad.csv has no column 'city' (did you mean 'ciity'?)" in message
    write(tmp_path / "parts", clicks(), "a.csv")
    write(tmp_path / "parts", clicks().drop("age"), "b.csv")
    message = refusal(tmp_path / "parts")
    assert "b.csv has other columns" in message
    assert "'age'" in message


def test_duplicate_columns(tmp_path: Path) -> None:
    text = "\n".join(lines()).replace("id,user,city", "user,user,city", 1)
    assert "more than one column has the name 'user'" in refusal(put(tmp_path, text))


def test_text_that_is_not_utf8(tmp_path: Path) -> None:
    text = "\n".join(lines()).encode().replace(b"rome", b"r\xf6me")
    message = refusal(put(tmp_path, text))
    first = next(at for at, line in enumerate(lines(), 1) if "rome" in line)
    assert f"bad.csv, line {first}: not UTF-8" in message
    assert "encoding: latin-1" in message
    header = ("ü" + "\n".join(lines())).encode("latin-1")
    assert "encoding" in refusal(put(tmp_path, header))
    assert "UTF-16" in refusal(put(tmp_path, "\n".join(lines()).encode("utf-16")))


def test_an_encoding_that_does_not_exist_or_does_not_fit(tmp_path: Path) -> None:
    for name in ("latin-99", "base64", "\0"):
        with pytest.raises(InputError, match="no encoding of text"):
            TableSchema(**{**SCHEMA.to_json(), "file": {"encoding": name}})
    table = TableSchema(**{**SCHEMA.to_json(), "file": {"encoding": "utf-16"}})
    assert "is not in the encoding that was expected" in refusal(write(tmp_path, name="bad.csv"), table)


def test_text_where_a_number_is_expected(tmp_path: Path) -> None:
    text = lines()
    cells = text[41].split(",")
    text[41] = ",".join([*cells[:3], "forty", *cells[4:]])
    message = refusal(put(tmp_path, "\n".join(text)))
    assert "bad.csv, line 42: column 'age' is 'forty'; expected a number" in message


@pytest.mark.parametrize("row", [3, 590])
def test_labels_outside_their_range(row: int, tmp_path: Path) -> None:
    table = clicks().with_columns(click=pl.when(pl.col("id") == row).then(2).otherwise("click"))
    message = refusal(write(tmp_path, table, "bad.csv"))
    assert f"bad.csv, line {row + 2}: column 'click' is '2'; a binary label is 0 or 1" in message
    table.write_parquet(tmp_path / "bad.parquet")
    assert f"bad.parquet, row {row + 1}: column 'click' is 2" in refusal(tmp_path / "bad.parquet")
    words = table.with_columns(pl.col("click").cast(pl.String).replace({"2": "maybe"}))
    assert f"line {row + 2}: column 'click' is 'maybe'; a binary" in refusal(write(tmp_path, words, "bad.csv"))


def test_classes_and_numbers_outside_their_range(tmp_path: Path) -> None:
    table = schema(click={"type": "label", "kind": "multiclass", "classes": ["0", "9"]}, buy="ignore")
    assert "expected one of the classes 0, 9" in refusal(write(tmp_path, name="bad.csv"), table)
    table = schema(click={"type": "label", "kind": "regression"}, buy="ignore")
    infinite = clicks().with_columns(click=pl.when(pl.col("id") == 7).then(pl.lit("inf")).otherwise(pl.lit("1")))
    assert "line 9: column 'click' is 'inf'; expected a finite number" in refusal(
        write(tmp_path, infinite, "bad.csv"), table
    )


def test_weights_outside_their_range(tmp_path: Path) -> None:
    table = schema(w="weight")
    frame = clicks().with_columns(w=pl.when(pl.col("id") == 10).then(-1.0).otherwise(1.0))
    assert "line 12: column 'w' is '-1.0'; expected a weight" in refusal(write(tmp_path, frame, "bad.csv"), table)
    frame = clicks().with_columns(w=0)
    assert "all 0 or missing" in refusal(write(tmp_path, frame, "bad.csv"), table)


def test_one_class_only(tmp_path: Path) -> None:
    message = refusal(write(tmp_path, clicks().with_columns(click=1), "bad.csv"))
    assert "the label 'click' is 1 in all 432 labelled training rows" in message
    message = refusal(write(tmp_path, clicks().with_columns(buy=0), "bad.csv"))
    assert "where 'click' is 1" in message
    no_label = clicks().with_columns(buy=pl.lit(None))
    assert "missing in every training row" in refusal(write(tmp_path, no_label, "bad.csv"))
    table = schema(click={"type": "label", "kind": "multiclass"}, buy="ignore")
    message = refusal(write(tmp_path, clicks().with_columns(click=3), "bad.csv"), table)
    assert "the label 'click' is '3' in all 432 labelled training rows (one class only)" in message
    assert message.endswith("use `type: ignore`, or split in another way")


def test_one_class_of_several(tmp_path: Path) -> None:
    """Listed in the schema, or in rows that `when` leaves out, they are still not there to be learnt."""
    grade = {"type": "label", "kind": "multiclass"}
    one = clicks().with_columns(buy=pl.lit("low"))
    path = write(tmp_path, one, "bad.csv")
    message = refusal(path, schema(buy={**grade, "classes": ["low", "high"]}))
    assert "the label 'buy' is 'low' in all 432 labelled training rows (one class only)" in message
    outside = one.with_columns(buy=pl.when(pl.col("click") == 0).then(pl.lit("high")).otherwise("buy"))
    path = write(tmp_path, outside, "bad.csv")
    for classes in (None, ["low", "high"]):
        message = refusal(path, schema(buy={**grade, "classes": classes, "when": "click"}))
        assert "the label 'buy' is 'low' in all" in message
        assert "where 'click' is 1 (one class only)" in message
        assert "check `when`" in message
    two = schema(buy=grade)
    assert load(path, schema=two, cache=tmp_path / "c").tasks[1].classes == 2


@pytest.mark.parametrize("kind", ["binary", "multiclass", "regression"])
def test_no_label_where_the_condition_is_met(kind: str, tmp_path: Path) -> None:
    never = clicks().with_columns(buy=pl.col("id") % 2, id=0)
    table = schema(buy={"type": "label", "kind": kind, "when": "id"})
    message = refusal(write(tmp_path, never, "bad.csv"), table)
    assert "the label 'buy' is missing in every training row where 'id' is 1, so there is nothing to learn" in message
    assert "check `when`" in message


def test_one_class_in_validation_or_test_is_a_note(tmp_path: Path) -> None:
    table = clicks().with_columns(click=pl.when(pl.col("id") > 470).then(0).otherwise("click")).drop("buy")
    described = schema({"by": "time", "column": "day"}, buy=None)
    data = load(write(tmp_path, table), schema=described, cache=tmp_path / "c")
    assert any("test: the label 'click' has one class only" in note for note in data.notes)


def test_empty_parts(tmp_path: Path) -> None:
    message = refusal(write(tmp_path, clicks(4), "bad.csv"))
    assert "leaves no row for validation: the table has 4 rows" in message
    same_day = clicks().with_columns(day=pl.lit("2024-01-01"))
    message = refusal(write(tmp_path, same_day, "bad.csv"), schema({"by": "time", "column": "day"}))
    assert "split by time leaves no row for train" in message
    one_user = clicks().with_columns(user=1)
    message = refusal(write(tmp_path, one_user, "bad.csv"), schema({"by": "group", "column": "user"}))
    assert "split by group leaves no row" in message
    write(tmp_path, clicks(0), "test.csv")
    message = refusal(write(tmp_path, name="bad.csv"), schema({"by": "files", "test": "test.csv"}))
    assert "the test table has no rows" in message


def test_absurd_cardinality(tmp_path: Path) -> None:
    path = write(tmp_path, clicks(3000), "bad.csv")
    message = refusal(path, schema(id="categorical"))
    assert "column 'id' has 2,160 different values in 2,160 training rows" in message
    message = refusal(path, schema(user={"type": "categorical", "limit": 10}))
    assert "column 'user' has more than 10 different values" in message
    # Whoever says how many it may be gets it.
    wanted = schema(id={"type": "categorical", "limit": 5000})
    assert load(path, schema=wanted, cache=tmp_path / "c").schema.categorical[0].cardinality == 2160
    assert "`rare: 2` leaves nothing" in refusal(path, schema(id={"type": "categorical", "rare": 2}))


def test_a_schema_without_labels(tmp_path: Path) -> None:
    assert "no label" in refusal(write(tmp_path, name="bad.csv"), schema(click="ignore", buy="ignore"))


def test_nested_and_binary_columns(tmp_path: Path) -> None:
    table = clicks().with_columns(city=pl.col("city").cast(pl.Binary))
    table.write_parquet(tmp_path / "bad.parquet")
    assert "column 'city' holds Binary" in refusal(tmp_path / "bad.parquet")
    table = clicks().with_columns(age=pl.concat_list("age"))
    table.write_parquet(tmp_path / "bad.parquet")
    assert "column 'age'" in refusal(tmp_path / "bad.parquet")


@pytest.mark.parametrize(
    "about", ["[]", "null", "3", "{}", '{"files": {}}', '{"files": {"encoder.json": "?"}}', "{", ""]
)
def test_a_cache_that_cannot_be_understood_is_made_again(about: str, tmp_path: Path) -> None:
    path = write(tmp_path)
    folder = prepare(path, schema=SCHEMA, cache=tmp_path / "c")
    whole = (folder / "about.json").read_text()
    (folder / "about.json").write_text(about)
    assert len(load(path, schema=SCHEMA, cache=tmp_path / "c").train) == 432
    assert (folder / "about.json").read_text() == whole


def test_a_large_file_that_changed_with_its_old_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its hash is kept, but not for another content of the same size and time of modification."""
    path = put(tmp_path, "a" * 100)
    monkeypatch.setattr(cache, "_LARGE", 50)
    hour_ago = time.time() - 3600
    os.utime(path, (hour_ago, hour_ago))
    monkeypatch.setattr(time, "time", lambda: hour_ago + 7200)  # nothing changed just now
    first = cache.hash_files([path], tmp_path)
    memos = list((tmp_path / "hashes").iterdir())
    assert cache.hash_files([path], tmp_path) == first
    assert list((tmp_path / "hashes").iterdir()) == memos
    path.write_text("b" * 100)
    os.utime(path, (hour_ago, hour_ago))
    assert cache.hash_files([path], tmp_path) != first


def test_the_hash_of_a_file_that_changed_just_now_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_LARGE", 50)
    path = put(tmp_path, "a" * 100)
    os.utime(path, (0, 0))
    cache.hash_files([path], tmp_path)
    assert not (tmp_path / "hashes").exists()
