"""BookCrossing: the dump's quirks, the join, and two labels."""

import zipfile
from pathlib import Path

import polars as pl
import pytest
from tests.data.real import real

import gdod
import gdod.data
from gdod.data.sets.bookcrossing import BookCrossing, read_records, table_schema

USERS = '"User-ID";"Location";"Age"\r\n'
BOOKS = (
    '"ISBN";"Book-Title";"Book-Author";"Year-Of-Publication";"Publisher";"Image-URL-S";"Image-URL-M";"Image-URL-L"\r\n'
)
RATINGS = '"User-ID";"ISBN";"Book-Rating"\r\n'


def book(isbn: str, title: str = "T", author: str = "A", year: str = "1999", publisher: str = "P") -> str:
    return f'"{isbn}";"{title}";"{author}";"{year}";"{publisher}";"";"";""\r\n'


def put(folder: Path, users: str, books: str, ratings: str) -> Path:
    for name, head, rows in (("Users", USERS, users), ("Books", BOOKS, books), ("Book-Ratings", RATINGS, ratings)):
        (folder / f"BX-{name}.csv").write_bytes((head + rows).encode("latin-1"))
    return folder


def read(folder: Path, **options: object) -> tuple[pl.DataFrame, tuple[str, ...]]:
    raw = BookCrossing().read(folder, options)
    assert isinstance(raw.train, pl.DataFrame)
    return raw.train, raw.notes


def test_labels_by_rating(tmp_path: Path) -> None:
    ratings = "".join(f'"1";"X";"{rating}"\r\n' for rating in (0, 1, 8, 9, 10))
    train, _ = read(put(tmp_path, "", book("X"), ratings))
    assert train["rated"].to_list() == [0, 1, 1, 1, 1]
    assert train["rated_high"].to_list() == [0, 0, 0, 1, 1]
    assert "rating" not in train.columns


def test_quirks_of_the_dump(tmp_path: Path) -> None:
    users = (
        '"1";"århus, \\"n/a\\", denmark";NULL\r\n'
        '"2";"st. louis, the old, town, missouri, usa";"34"\r\n'
        '"3";"oslo,\r\n, norway";"244"\r\n'  # a line break inside of a field
        '"4";"c:\\\\dos";"7"\r\n'
    )
    books = book("X", title='The \\"J. Peterman\\"; Catalog &amp; more', author="José", year="0")
    ratings = "".join(f'"{user}";"X";"5"\r\n' for user in (1, 2, 3, 4, 5)) + '"1";"Y";"5"\r\n'
    train, notes = read(put(tmp_path, users, books, ratings))
    assert train["country"].to_list() == ["denmark", "usa", "norway", "c:\\dos", None, "denmark"]
    assert train["region"].to_list() == [None, "missouri", None, None, None, None]
    assert train["city"].to_list() == ["århus", "st. louis, the old, town", "oslo", None, None, "århus"]
    assert train["age"].to_list() == [None, 34, None, 7, None, None]
    assert train["author"].to_list() == ["José"] * 5 + [None]
    assert train["year"].null_count() == 6
    said = "\n".join(notes)
    assert "1 ages outside" in said
    assert "1 years outside" in said
    assert "1 of 6 ratings are of books" in said
    assert "1 of 6 ratings are by readers that BX-Users.csv does not have" in said
    assert "6 rows; as published there are 1,149,780" in said
    assert "bad rows" not in said


def test_bad_rows_are_counted_and_cost_only_themselves(tmp_path: Path) -> None:
    # As in the dump: an escape where the title's quote should end, so that title and author are one.
    broken = '"B";"DK Readers (Level 4)\\";"Teitelbaum";"2000";"DK";"";"";""\r\n'
    open_quote = '"C;"Title";"Author";"2000";"P";"";"";""\r\n'
    books = book("A") + broken + open_quote + book("D") + book("E")
    ratings = "".join(f'"1";"{isbn}";"5"\r\n' for isbn in "ABCDE")
    train, notes = read(put(tmp_path, "", books, ratings))
    assert train["author"].to_list() == ["A", None, None, "A", "A"]
    assert "BX-Books.csv: left out 2 bad rows (not 8 fields; the first is line 3)" in notes


def test_readers_and_books_that_come_twice_are_counted(tmp_path: Path) -> None:
    users = '"1";"a, b, c";"20"\r\n' * 3 + 'NULL;"a, b, c";"20"\r\n"2";"a, b, c";"30"\r\n'
    books = book("X") + book("Y") + book("X", author="other") * 2
    train, notes = read(put(tmp_path, users, books, '"1";"X";"9"\r\n"2";"Y";"0"\r\n'))
    assert train["age"].to_list() == [20, 30]
    assert train["author"].to_list() == ["A", "A"]  # the first one counts
    assert "BX-Users.csv: left out 3 rows without a reader, or of one who was there before" in notes
    assert "BX-Books.csv: left out 2 rows without a book, or of one that was there before" in notes
    assert "BX-Users.csv: 0 ages outside 5 to 100 count as missing" in notes
    assert not any("does not have" in note for note in notes)
    assert sorted(train.columns) == sorted([*table_schema(0, 0.2).columns])


def test_a_quote_that_never_closes() -> None:
    lines = ['"1";"a"\n', '"2";"never closed\n', *[f'"{n}";"b"\n' for n in range(3, 30)]]
    records = list(read_records(lines, 2))
    assert [line for line, record in records if record is None] == [2]
    assert [record[0] for _, record in records if record] == ["1", *map(str, range(3, 30))]


def test_a_quote_that_never_closes_before_lines_without_quotes() -> None:
    lines = ['"2";"never closed\n', *[f"{n};b\n" for n in range(3, 30)]]
    records = list(read_records(lines, 2))
    assert [line for line, record in records if record is None] == [1]
    assert len(records) == 28


def test_the_order_of_the_file_is_kept(tmp_path: Path) -> None:
    ratings = '"3";"X";"5"\r\n"1";"Y\\"Z";"5"\r\n2;X;5\r\n"9";"A;B";"5"\r\n"0";"X";"5"'
    train, _ = read(put(tmp_path, "", book("X"), ratings))
    assert train["user"].to_list() == ["3", "1", "2", "9", "0"]
    assert train["isbn"].to_list() == ["X", 'Y"Z', "X", "A;B", "X"]


def test_ratings_out_of_range_are_counted(tmp_path: Path) -> None:
    train, notes = read(put(tmp_path, "", book("X"), '"1";"X";"5"\r\n"1";"X";"11"\r\n"1";"X";"?"\r\n'))
    assert len(train) == 1
    assert any("left out 2 rows" in note for note in notes)


def test_the_zip_as_published(tmp_path: Path) -> None:
    loose = tmp_path / "loose"
    loose.mkdir()
    put(loose, '"1";"a, b, c";"20"\r\n', book("X"), '"1";"X";"9"\r\n')
    packed = tmp_path / "packed"
    packed.mkdir()
    with zipfile.ZipFile(packed / "BX-CSV-Dump.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for path in loose.iterdir():
            archive.write(path, path.name)
    assert read(loose)[0].equals(read(packed)[0])
    (packed / "BX-CSV-Dump.zip").write_bytes((packed / "BX-CSV-Dump.zip").read_bytes()[:-30])
    with pytest.raises(gdod.InputError, match=r"BX-CSV-Dump\.zip is cut short or corrupt"):
        read(packed)


def test_other_columns_are_refused(tmp_path: Path) -> None:
    put(tmp_path, "", book("X"), "")
    (tmp_path / "BX-Book-Ratings.csv").write_text("user,isbn,rating\n")
    with pytest.raises(gdod.InputError, match=r"begins with .*; expected the columns \['User-ID'"):
        read(tmp_path)


def test_the_split_is_80_to_20_and_follows_the_seed(tmp_path: Path) -> None:
    ratings = "".join(f'"{n % 7}";"B{n % 11}";"{n % 11}"\r\n' for n in range(100))
    put(tmp_path, "", book("B1"), ratings)
    cache = tmp_path / "cache"

    def labels(seed: int) -> list[float]:
        data = gdod.data.load("bookcrossing", folder=tmp_path, cache=cache, seed=seed)
        assert (len(data.train) + len(data.validation), len(data.test)) == (80, 20)
        return next(iter(data.test.batches(20))).labels["rated_high"].tolist()

    assert labels(0) == labels(0)
    assert labels(0) != labels(1)


def test_the_published_files() -> None:
    train, notes = read(real("book-crossing"))
    assert len(train) >= 199_999
    assert not any("bad rows" in note for note in notes)
    if len(train) == 199_999:  # the part that is kept for development
        assert int(train["rated"].sum()) == 79_269
