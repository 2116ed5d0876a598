"""BookCrossing: whether a reader rates a book, and whether the rating is 9 or 10.

http://www2.informatik.uni-freiburg.de/~cziegler/BX/ (Ziegler et al., WWW 2005). Three tables from a
database's dump: fields separated by ";" and quoted, quotes inside escaped by a backslash, latin-1,
NULL for missing. A rating of 0 says that the reader has the book and did not rate it.
"""

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from gdod.data.sets.options import Options
from gdod.data.sets.published import BadRows, Published, PublishedSet, reading_notes
from gdod.data.sets.source import RawTables
from gdod.data.tables.table_schema import TableSchema
from gdod.errors import InputError

VERSION = 1
LONGEST_RECORD = 5
"""The most lines of one record. A quote that is never closed then costs one row, not the rest of the file."""
PLAIN_FIELD = r'(?:"[^"\\;]*"|[^"\\;]*)'


@dataclass(frozen=True)
class DumpTable:
    """A table of the dump."""

    file: str
    rows: int
    """The number of rows as published."""
    columns: dict[str, str]
    """The names of the columns in the file, each with its name here."""


RATINGS = DumpTable("BX-Book-Ratings.csv", 1_149_780, {"User-ID": "user", "ISBN": "isbn", "Book-Rating": "rating"})
USERS = DumpTable("BX-Users.csv", 278_858, {"User-ID": "user", "Location": "location", "Age": "age"})
BOOKS = DumpTable(
    "BX-Books.csv",
    271_379,
    {
        "ISBN": "isbn",
        "Book-Title": "title",
        "Book-Author": "author",
        "Year-Of-Publication": "year",
        "Publisher": "publisher",
        "Image-URL-S": "image_small",
        "Image-URL-M": "image_medium",
        "Image-URL-L": "image_large",
    },
)
TABLES = (RATINGS, USERS, BOOKS)

AGES = (5, 100)
YEARS = (1400, 2005)  # the readers' pages were read in 2004; some books were announced
"""Ages and years outside are typing errors (0, 244, 2050) and count as missing."""


class BookCrossing(PublishedSet):
    """The BookCrossing data set. Its options: ``seed`` of the split, ``test`` (share of the ratings)."""

    name = "bookcrossing"
    title = "BookCrossing"
    files = tuple(table.file for table in TABLES)
    archives = ("BX-CSV-Dump.zip",)

    def schema(self, options: Mapping[str, object]) -> TableSchema:
        return table_schema(*_options(options))

    def read(self, folder: Path | None, options: Mapping[str, object]) -> RawTables:
        seed, test = _options(options)
        files = self.find(folder)
        notes: list[str] = []
        frames: dict[str, pl.DataFrame] = {}
        for table in TABLES:
            frame, bad = parse(files[table.file], table)
            frames[table.file] = frame
            notes += reading_notes(files[table.file], len(frame) + bad.count, table.rows, bad)
        joined, more = join(frames[RATINGS.file], frames[USERS.file], frames[BOOKS.file])
        return RawTables(joined, None, table_schema(seed, test), (*notes, *more))

    def fingerprint(self, folder: Path | None, options: Mapping[str, object]) -> str:
        seed, test = _options(options)
        return f"bookcrossing {VERSION} seed={seed} test={test} {self.hashes(folder)}"


def parse(file: Published, table: DumpTable) -> tuple[pl.DataFrame, BadRows]:
    """Return all columns as text, NULL as null, and the rows left out: those without a value for each column."""
    lines = file.read().decode("latin-1").split("\n")
    if not lines[-1]:
        lines.pop()
    width = len(table.columns)
    header = next(read_records(lines[:1], width), (1, None))[1]
    if header != list(table.columns):
        raise InputError(f"{file} begins with {header}; expected the columns {list(table.columns)}")
    names = list(table.columns.values())
    numbered = pl.DataFrame({"text": lines[1:]}, schema={"text": pl.String}).with_row_index("line", 2)
    # Nearly all lines have neither escapes nor separators within fields, and are read at once.
    plain = numbered["text"].str.contains(f"^{';'.join([PLAIN_FIELD] * width)}\r?$")
    simple = _read_plain(numbered.filter(plain), names)
    others, bad = _read_others(numbered.filter(~plain), lines, names)
    frame = pl.concat([simple, others]).sort("line").drop("line").with_columns(pl.all().replace("NULL", None))
    return frame, BadRows(len(bad), bad[0] if bad else None, f"not {width} fields")


def _read_plain(numbered: pl.DataFrame, names: list[str]) -> pl.DataFrame:
    kinds = dict.fromkeys(names, pl.String)
    if not len(numbered):
        return pl.DataFrame(schema={**kinds, "line": pl.UInt32})
    text = numbered["text"].str.strip_chars_end("\r").str.join("\n").item().encode()
    read = pl.read_csv(io.BytesIO(text), separator=";", has_header=False, schema=kinds)
    return read.with_columns(numbered["line"])


def _read_others(numbered: pl.DataFrame, lines: Sequence[str], names: list[str]) -> tuple[pl.DataFrame, list[int]]:
    """Read lines with escapes or separators within fields, and return the records and the numbers of bad lines."""
    kept: list[tuple[object, ...]] = []
    bad: list[int] = []
    for first, last in _runs(numbered["line"].to_list()):
        for line, record in read_records(lines[first - 1 : last], len(names)):
            if record is None:
                bad.append(first + line - 1)
            else:
                kept.append((*record, first + line - 1))
    schema = {**dict.fromkeys(names, pl.String), "line": pl.UInt32}
    return pl.DataFrame(kept, schema=schema, orient="row"), bad


def _runs(numbers: list[int]) -> Iterator[tuple[int, int]]:
    """Yield the first and the last of each run of consecutive numbers."""
    start = 0
    for at in range(1, len(numbers) + 1):
        if at == len(numbers) or numbers[at] != numbers[at - 1] + 1:
            yield numbers[start], numbers[at - 1]
            start = at


def read_records(lines: Sequence[str], width: int) -> Iterator[tuple[int, list[str] | None]]:
    """Yield the number of each record's first line, and its fields; None for a line that is no record."""
    start = 0
    while start < len(lines):
        # A reader of its own from here on; after a bad line there is a new one, from the line after it.
        supply = _Lines(lines, start)
        reader = csv.reader(supply, delimiter=";", quotechar='"', escapechar="\\", doublequote=False, strict=True)
        while True:
            supply.limit = start + LONGEST_RECORD
            try:
                record = next(reader, None)
            except csv.Error:  # a quote that does not close, or text after one that did
                record = []
            if record is None:
                return
            if len(record) != width:
                if record or supply.next - start > 1 or lines[start].strip():
                    yield start + 1, None
                start += 1
                break
            yield start + 1, record
            start = supply.next


class _Lines:
    """An iterator over lines up to a limit, which its owner moves on with the records."""

    def __init__(self, lines: Sequence[str], start: int) -> None:
        self.lines, self.next, self.limit = lines, start, start

    def __iter__(self) -> "_Lines":
        return self

    def __next__(self) -> str:
        if self.next >= min(self.limit, len(self.lines)):
            raise StopIteration
        self.next += 1
        return self.lines[self.next - 1]


def join(ratings: pl.DataFrame, users: pl.DataFrame, books: pl.DataFrame) -> tuple[pl.DataFrame, list[str]]:
    """Return one row a rating, with what is known of its reader and its book and both labels, and notes."""
    notes: list[str] = []
    scores = ratings["rating"].cast(pl.Int8, strict=False)
    usable = (scores.is_between(0, 10) & ratings["user"].is_not_null() & ratings["isbn"].is_not_null()).fill_null(False)
    if not usable.any():
        raise InputError(f"{RATINGS.file} has no row with a reader, a book and a rating from 0 to 10")
    if wrong := len(ratings) - int(usable.sum()):
        notes.append(f"{RATINGS.file}: left out {wrong:,} rows without a reader, a book or a rating from 0 to 10")
    users, same_reader = _first_of_each(users, "user")
    books, same_book = _first_of_each(books, "isbn")
    if same_reader:
        notes.append(f"{USERS.file}: left out {same_reader:,} rows without a reader, or of one who was there before")
    if same_book:
        notes.append(f"{BOOKS.file}: left out {same_book:,} rows without a book, or of one that was there before")
    readers, strange_ages = _readers(users)
    volumes, strange_years = _volumes(books)
    notes += [
        f"{USERS.file}: {strange_ages:,} ages outside {AGES[0]} to {AGES[1]} count as missing",
        f"{BOOKS.file}: {strange_years:,} years outside {YEARS[0]} to {YEARS[1]} count as missing",
    ]
    score = pl.col("rating").cast(pl.Int8)
    joined = (
        ratings.filter(usable)
        .with_columns(rated=(score > 0).cast(pl.Int8), rated_high=(score >= 9).cast(pl.Int8))
        .drop("rating")
        .join(readers, on="user", how="left", maintain_order="left")
        .join(volumes, on="isbn", how="left", maintain_order="left")
    )
    if unknown := joined["known_reader"].null_count():
        notes.append(
            f"{unknown:,} of {len(joined):,} ratings are by readers that {USERS.file} does not have; "
            "age, city, region and country count as missing there"
        )
    if unknown := joined["known_book"].null_count():
        notes.append(
            f"{unknown:,} of {len(joined):,} ratings are of books that {BOOKS.file} does not have; "
            "author, year and publisher count as missing there"
        )
    return joined.drop("known_reader", "known_book"), notes


def _first_of_each(table: pl.DataFrame, key: str) -> tuple[pl.DataFrame, int]:
    """Return the first row with each key, and how many rows are left out."""
    kept = table.filter(pl.col(key).is_not_null()).unique(key, keep="first", maintain_order=True)
    return kept, len(table) - len(kept)


def _readers(users: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    # "seattle, washington, usa": the country comes last, and a city may itself have commas.
    places = pl.col("location").str.replace_all('"', "").str.split(",")
    place = [
        places.list.get(-1, null_on_oob=True).alias("country"),
        places.list.get(-2, null_on_oob=True).alias("region"),
        places.list.head(pl.max_horizontal(places.list.len().cast(pl.Int64) - 2, 0)).list.join(",").alias("city"),
    ]
    age = pl.col("age").cast(pl.Float64, strict=False)
    made = users.select(
        "user",
        *[each.str.strip_chars().replace({"": None, "n/a": None}) for each in place],
        age=pl.when(age.is_between(*AGES)).then(age),
        known_reader=pl.lit(True),
    )
    return made, int(users["age"].is_not_null().sum()) - int(made["age"].is_not_null().sum())


def _volumes(books: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    year = pl.col("year").cast(pl.Float64, strict=False)
    made = books.select(
        "isbn",
        pl.col("author", "publisher").str.strip_chars().replace("", None),
        year=pl.when(year.is_between(*YEARS)).then(year),
        known_book=pl.lit(True),
    )
    return made, len(made) - int(made["year"].is_not_null().sum())


def table_schema(seed: int, test: float) -> TableSchema:
    categorical = ("user", "isbn", "city", "region", "country", "author", "publisher")
    columns: dict[str, object] = dict.fromkeys(categorical, "categorical")
    columns |= {"age": "numeric", "year": "numeric"}
    columns |= {task: {"type": "label", "kind": "binary"} for task in ("rated", "rated_high")}
    split = {"by": "random", "seed": seed, "validation": 0.1, "test": test}
    return TableSchema.model_validate({"columns": columns, "split": split})


def _options(options: Mapping[str, object]) -> tuple[int, float]:
    given = Options("bookcrossing", options)
    seed = given.whole("seed", 0, at_least=0)
    test = given.number("test", 0.2, low=0.0, high=0.9)
    given.done()
    return seed, test
