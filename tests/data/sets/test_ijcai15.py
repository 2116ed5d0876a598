"""IJCAI-15: examples from a log of events, labels along the funnel, and no look into the future."""

import gzip
import zipfile
from pathlib import Path

import polars as pl
import pytest
from tests.data.real import real

import gdod
from gdod.data.sets.ijcai15 import Ijcai15

LOG = "user_id,item_id,cat_id,seller_id,brand_id,time_stamp,action_type"
CLICK, CART, BUY, LIKE = range(4)
Event = tuple[int, int, str, int]  # shopper, item, date, action


def put(folder: Path, events: list[Event], shoppers: str = "1,3.0,0.0\n2,0.0,2.0\n3,,1\n") -> Path:
    rows = [f"{user},{item},{item % 5},7,{item}.0,{date},{action}" for user, item, date, action in events]
    (folder / "user_log_format1.csv").write_text("\n".join([LOG, *rows]) + "\n")
    (folder / "user_info_format1.csv").write_text("user_id,age_range,gender\n" + shoppers)
    return folder


def read(folder: Path, **options: object) -> pl.DataFrame:
    raw = Ijcai15().read(folder, options)
    assert isinstance(raw.train, pl.DataFrame)
    return raw.train


EVENTS: list[Event] = [
    (1, 10, "0511", CLICK),
    (1, 10, "0512", LIKE),
    (1, 10, "0513", BUY),  # liked, then bought
    (1, 11, "0511", CLICK),
    (1, 11, "0512", BUY),
    (1, 11, "0513", LIKE),  # bought before it was liked
    (1, 12, "0511", CLICK),
    (1, 12, "0512", BUY),  # bought, never liked
    (2, 10, "0520", CLICK),
    (2, 10, "0520", LIKE),
    (2, 10, "0520", BUY),  # all on one day
    (2, 13, "0520", LIKE),  # never clicked: no example
    (3, 10, "1111", CLICK),
    (3, 10, "1111", CART),
]


def test_labels_along_the_funnel(tmp_path: Path) -> None:
    made = read(put(tmp_path, EVENTS))
    pairs = made.select("user_id", "item_id", "favourite", "buy").rows()
    assert pairs == [(1, 10, 1, 1), (1, 11, 1, 0), (1, 12, 0, 0), (2, 10, 1, 1), (3, 10, 0, 0)]


def test_buying_can_be_known_of_favourites_only(tmp_path: Path) -> None:
    made = read(put(tmp_path, EVENTS), conditional=True)
    assert made["buy"].to_list() == [1, 0, None, 1, None]
    schema = Ijcai15().read(tmp_path, {"conditional": True}).schema
    assert schema.labels["buy"].when == "favourite"
    assert Ijcai15().read(tmp_path, {}).schema.labels["buy"].when is None


def test_shoppers_brands_and_missing_values(tmp_path: Path) -> None:
    made = read(put(tmp_path, EVENTS))
    assert made["brand_id"].to_list() == [10, 11, 12, 10, 10]  # "10.0" in the file
    assert made["age_range"].to_list() == [3, 3, 3, None, None]
    assert made["gender"].to_list() == [0, 0, 0, None, 1]
    assert made["date"].to_list() == [511, 511, 511, 520, 1111]


def test_features_hold_nothing_of_that_day_or_later(tmp_path: Path) -> None:
    before = read(put(tmp_path, EVENTS))
    assert before["user_clicks"].to_list() == [0, 0, 0, 0, 0]
    assert before["item_clicks"].to_list() == [0, 0, 0, 1, 2]
    features = [name for name in before.columns if name not in ("favourite", "buy")]
    later: list[Event] = [
        *[(user, item, "1111", CLICK) for user in (1, 2) for item in (10, 11, 12)] * 3,
        *[(user, item, "0510", action) for user in (1, 2, 3) for item in (10, 11) for action in (CART, BUY, LIKE)],
    ]
    after = read(put(tmp_path, EVENTS + later)).join(before.select("user_id", "item_id"), on=["user_id", "item_id"])
    # Neither clicks on a later day nor other events on any day change a feature.
    assert after.select(features).equals(before.select(features))


def test_clicks_before_are_counted(tmp_path: Path) -> None:
    clicks: list[Event] = [
        (1, 10, "0511", CLICK),
        (1, 10, "0511", CLICK),
        (1, 11, "0512", CLICK),
        (2, 10, "0513", CLICK),
    ]
    made = read(put(tmp_path, clicks))
    assert made.select("user_id", "item_id", "user_clicks", "item_clicks").rows() == [
        (1, 10, 0, 0),
        (1, 11, 2, 0),
        (2, 10, 0, 2),
    ]


def test_features_do_not_give_the_labels_away(tmp_path: Path) -> None:
    """The same clicks with and without favourites and purchases have the same features."""
    with_events = read(put(tmp_path, EVENTS))
    without = read(put(tmp_path, [event for event in EVENTS if event[3] == CLICK]))
    assert with_events.drop("favourite", "buy").equals(without.drop("favourite", "buy"))
    assert without["favourite"].sum() == 0


def test_the_order_of_the_log_does_not_matter(tmp_path: Path) -> None:
    assert read(put(tmp_path, EVENTS)).equals(read(put(tmp_path, EVENTS[::-1])))


def test_bad_events_are_counted(tmp_path: Path) -> None:
    put(tmp_path, EVENTS)
    with (tmp_path / "user_log_format1.csv").open("a") as log:
        log.write("1,,1,7,3.0,0511,0\n1,20,1,7,3.0,1399,0\n1,20,1,7,,0511,9\n,20,1,7,,0511,0\n1,30,1,7,,0511,0\n")
    raw = Ijcai15().read(tmp_path, {})
    assert any("left out 4 events" in note for note in raw.notes)
    assert any("1 events without brand_id" in note for note in raw.notes)
    assert any("19 rows; as published there are 54,925,330" in note for note in raw.notes)


GOOD = b"1,30,1,7,2.0,0511,0"


@pytest.mark.parametrize(
    "bad",
    [
        b"1,20,1,7,3.0,0511,0,8,9",  # two fields more
        b"1,20,1,7,3.0,0511,0,",
        b"1,20,1,7,3.0",  # fewer
        b'1,20,"1,7,3.0,0511,0',  # a quote that does not close
        b"1,20,1,7,3\xff,0511,0",  # not UTF-8
        b"1.5,2.5,1,7,3.0,0511,0.9",
        b"1,20,1,7,inf,0511,0",
        b"1,20,shoes,7,3.0,0511,0",
        b"1,20,1,7,3.0,0511,0\x01",  # a byte that no text has, at the end
        b"1,20,1,7,3.0,0511,0\x01,5",
        b"1,20,1,7\x01,3.0,0511,0",
        b"\x01",
    ],
)
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_a_bad_line_costs_only_itself(bad: bytes, end: bytes, tmp_path: Path) -> None:
    put(tmp_path, EVENTS)
    log = tmp_path / "user_log_format1.csv"
    clean = log.read_bytes().replace(b"\n", end)
    log.write_bytes(clean + GOOD)
    expected = read(tmp_path)
    log.write_bytes(clean + bad + end + end + GOOD + end + bad + end + end)
    raw = Ijcai15().read(tmp_path, {})
    assert isinstance(raw.train, pl.DataFrame)
    assert raw.train.equals(expected)
    where = "user_log_format1.csv: left out 2 bad rows"
    assert f"{where} (not 7 fields, or no whole number where one belongs; the first is line 16)" in raw.notes
    assert "user_log_format1.csv: 17 rows; as published there are 54,925,330" in raw.notes
    assert not any("left out" in note and "2 bad rows" not in note for note in raw.notes)


def test_bad_rows_of_shoppers_are_counted(tmp_path: Path) -> None:
    raw = Ijcai15().read(put(tmp_path, EVENTS, "1,3.0,0.0\n2,4\n3,2.5,1\n2,5,1,1\n2,5,1\n3,5,\n"), {})
    assert isinstance(raw.train, pl.DataFrame)
    assert raw.train["age_range"].to_list() == [3, 3, 3, 5, 5]
    reason = "not 3 fields, or no whole number where one belongs; the first is line 3"
    assert f"user_info_format1.csv: left out 3 bad rows ({reason})" in raw.notes


def test_ids_may_be_large(tmp_path: Path) -> None:
    put(tmp_path, EVENTS)
    assert read(tmp_path)["brand_id"].dtype == pl.Int32, "half the memory"
    with (tmp_path / "user_log_format1.csv").open("a") as log:
        log.write("1,20,1,7,2200633953,0511,0\n1,22,1,-3000000000,3.0,0511,0\n1,21,1,7,3.0,99999,0\n")
    raw = Ijcai15().read(tmp_path, {})
    assert isinstance(raw.train, pl.DataFrame)
    large = raw.train.filter(pl.col("item_id") >= 20)
    assert large["brand_id"].to_list() == [2200633953, 3]
    assert large["seller_id"].to_list() == [7, -3000000000]
    assert not any("without brand_id" in note for note in raw.notes)
    assert any("left out 1 events" in note for note in raw.notes), "99999 is no date"
    assert not any("bad rows" in note for note in raw.notes)


def test_quotes_a_mark_at_the_start_and_words_for_missing(tmp_path: Path) -> None:
    plain = read(put(tmp_path, EVENTS))
    log = tmp_path / "user_log_format1.csv"
    quoted = [",".join(f'"{field}"' for field in line.split(",")) for line in log.read_text().splitlines()]
    log.write_text("\ufeff" + "\n".join(quoted), "utf-8")
    assert read(tmp_path).equals(plain)
    put(tmp_path, EVENTS, "1,3.0,0.0\n2,NULL,nan\n3,NA,1\n")
    assert read(tmp_path).equals(plain)


def test_other_columns_beside_the_known_ones(tmp_path: Path) -> None:
    plain = read(put(tmp_path, EVENTS))
    log = tmp_path / "user_log_format1.csv"
    head, *rows = log.read_text().splitlines()
    log.write_text("\n".join([f"note,{head},note", *[f"some text,{row},é" for row in rows]]), "utf-8")
    raw = Ijcai15().read(tmp_path, {})
    assert isinstance(raw.train, pl.DataFrame)
    assert raw.train.equals(plain)
    assert not any("bad rows" in note for note in raw.notes)


def test_files_without_rows(tmp_path: Path) -> None:
    assert read(put(tmp_path, EVENTS, ""))["age_range"].null_count() == 5
    (tmp_path / "user_log_format1.csv").write_text(LOG)
    with pytest.raises(gdod.InputError, match="no event that can be used"):
        read(tmp_path)
    (tmp_path / "user_log_format1.csv").write_text("")
    with pytest.raises(gdod.InputError, match=r"has the columns none; user_id, item_id, cat_id, .* missing"):
        read(tmp_path)


def test_compressed_and_in_the_zip(tmp_path: Path) -> None:
    loose = read(put(tmp_path, EVENTS))
    names = ("user_log_format1.csv", "user_info_format1.csv")
    packed = tmp_path / "packed"
    packed.mkdir()
    with zipfile.ZipFile(packed / "data_format1 .zip", "w") as archive:
        for name in names:
            archive.write(tmp_path / name, f"data_format1/{name}")
    assert loose.equals(read(packed))
    for name in names:
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress((tmp_path / name).read_bytes()))
        (tmp_path / name).unlink()
    (packed / "data_format1 .zip").unlink()
    assert loose.equals(read(tmp_path))


def test_wrong_columns_and_no_clicks_are_refused(tmp_path: Path) -> None:
    put(tmp_path, [(1, 10, "0511", BUY)])
    with pytest.raises(gdod.InputError, match="no click"):
        read(tmp_path)
    (tmp_path / "user_log_format1.csv").write_text("user_id,item_id\n1,2\n")
    with pytest.raises(gdod.InputError, match=r"user_log_format1\.csv has the columns user_id, item_id; cat_id"):
        read(tmp_path)


def test_the_official_sample_parses() -> None:
    raw = Ijcai15().read(real("ijcai15") / "official-sample", {})
    assert isinstance(raw.train, pl.DataFrame)
    assert len(raw.train) == 2_643
    assert not any("left out" in note for note in raw.notes)
    assert raw.train["brand_id"].null_count() < 5


def test_the_log_in_the_official_layout() -> None:
    raw = Ijcai15().read(real("ijcai15"), {})
    made = raw.train
    assert isinstance(made, pl.DataFrame)
    assert not any("left out" in note for note in raw.notes)
    if len(made) == 46_480:  # the log that is kept for development
        assert round(100 * float(made["favourite"].mean()), 1) == 10.0  # type: ignore[arg-type]
        assert int(made["buy"].sum()) == 990
