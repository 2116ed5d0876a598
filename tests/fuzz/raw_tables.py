"""Tables as they come: right, odd and damaged, as text and as Parquet."""

import bz2
import csv
import gzip
import io
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Literal

import polars as pl
import pyarrow as pa
from hypothesis import strategies as st

NAMES = st.sampled_from(
    (
        *(
            "click",
            "buy",
            "user",
            "city",
            "age",
            "weight",
            "time",
            "id",
            "",
            " ",
            "a b",
            "a,b",
            'say "x"',
            "a\nb",
            "ü",
            "日",
        ),
        *("click ", "Click", "type", "columns", "0", "1", "true", "null", "a: b", "#a", "[a]", "{a}", "a'b", "value"),
        *("count", "row", "x" * 200, "click_1", "\ufeff", "a.b", "a:b", "~", "-", "2024-01-01"),
        *("*", "^a.*$", "^.*$"),  # patterns to polars
    )
)
MISSING = st.sampled_from(["", "NA", "nan", "null", " "])
CELLS: dict[str, st.SearchStrategy[str]] = {
    "binary": st.sampled_from(["0", "1"]),
    "truth": st.sampled_from(["true", "False", "TRUE", "1", "0"]),
    "few": st.sampled_from(["a", "b", "c"]),
    "whole": st.integers(-50, 50).map(str),
    "number": st.floats(-1e3, 1e3).map(str),
    "huge": st.sampled_from(
        ("1e308", "-1e308", "1e-320", "9" * 30, "9" * 400, "inf", "-inf", "nan", "1e999", "0x1f", "1_0")
    ),
    "date": st.sampled_from(["2024-01-01", "2024-02-30", "1969-12-31T23:59:59", "9999-12-31", "20240101", "1.1.2024"]),
    "list": st.lists(st.integers(0, 9), max_size=5).map(lambda each: " ".join(map(str, each))),
    "odd": st.sampled_from(
        (
            *(
                '"',
                "'",
                '""',
                "a,b",
                "a;b",
                "a\tb",
                "a|b",
                "a\nb",
                "a\r\nb",
                "\\",
                "\\N",
                "#",
                "=1+1",
                "\0",
                "ä",
                "日本",
            ),
            *("\x7f", "\u2028", "\u202e", "a\x00b", " a ", "\u00a0", "é", "\ufeff", "x" * 3000, "1.0", "-0", "+1"),
            *("1,5", "½", "٣"),
        )
    ),
    "text": st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
}
PLAIN = ["binary", "few", "whole", "number", "list"]


@dataclass(frozen=True)
class TableFile:
    """A file, and the columns that are to be predicted."""

    content: bytes
    ending: str
    labels: tuple[str, ...]
    columns: tuple[tuple[str, str], ...]
    """The name and kind of each column, for whoever reads of a failure."""


@st.composite
def text_tables(draw: st.DrawFn) -> TableFile:
    names = draw(st.lists(NAMES, min_size=1, max_size=5, unique=draw(st.integers(0, 15)) > 0))
    kinds = [draw(st.sampled_from([*PLAIN, *PLAIN, *CELLS])) for _ in names]
    # A label of two values is what most tables have; without one there is little to go on with.
    if draw(st.integers(0, 3)) > 0:
        names, kinds = [*names, "clicked"], [*kinds, "binary"]
    rows = draw(st.sampled_from([40, 40, 40, 12, 3, 1, 0]))
    gaps = draw(st.integers(0, 3)) == 0
    columns = []
    for kind in kinds:
        cells = CELLS[kind] | MISSING if gaps else CELLS[kind]
        # Few different values, drawn once each: cheap, and as tables are.
        values = draw(st.lists(cells, min_size=draw(st.sampled_from([4, 4, 1])), max_size=8))
        step = draw(st.integers(1, 7))
        columns.append([values[row * step // 3 % len(values)] for row in range(rows)])
    if names[-1] == "clicked":
        columns[-1] = [str(row * 7 % 10 // 5) for row in range(rows)]
    ending = draw(st.sampled_from([".csv", ".tsv", ".txt"]))
    separator = "\t" if ending == ".tsv" else draw(st.sampled_from([",", ",", ";", "|", "\t"]))
    out = io.StringIO()
    ways: list[Literal[0, 1]] = [csv.QUOTE_MINIMAL, csv.QUOTE_MINIMAL, csv.QUOTE_ALL]
    how = draw(st.sampled_from(ways))
    writer = csv.writer(out, delimiter=separator, quoting=how, lineterminator=draw(st.sampled_from(["\n", "\r\n"])))
    writer.writerow(names)
    writer.writerows(zip(*columns, strict=True))
    encoding = draw(st.sampled_from([*["utf-8"] * 9, "utf-8-sig", "latin-1", "utf-16"]))
    content = out.getvalue().encode(encoding, "replace")
    compressed = draw(st.sampled_from(["", "", "", "", *PACKED]))
    content = draw(damaged(PACKED[compressed](content) if compressed else content))
    return TableFile(content, ending + compressed, _labels(draw, names), tuple(zip(names, kinds, strict=True)))


def _zstd(content: bytes) -> bytes:
    out = pa.BufferOutputStream()
    with pa.CompressedOutputStream(out, "zstd") as stream:
        stream.write(content)
    return bytes(out.getvalue())


PACKED: dict[str, Callable[[bytes], bytes]] = {".gz": gzip.compress, ".bz2": bz2.compress, ".zst": _zstd}


def _labels(draw: st.DrawFn, names: list[str]) -> tuple[str, ...]:
    """Return labels to name; none of them: they are to be inferred."""
    wrong = ["absent"] if draw(st.integers(0, 15)) == 0 else []
    return () if draw(st.booleans()) else tuple(draw(st.lists(st.sampled_from([*names, *wrong]), max_size=2)))


def damaged(content: bytes) -> st.SearchStrategy[bytes]:
    """Mostly whole; sometimes cut, with bytes changed, put in or repeated."""

    def hurt(how: int, at: int, byte: int) -> bytes:
        at = at % (len(content) + 1)
        return {
            0: content[:at],
            1: content[:at] + bytes([byte]) + content[at + 1 :],
            2: content[:at] + bytes([byte]) + content[at:],
            3: content[:at] + content[at // 2 :],
        }.get(how, content)

    return st.builds(hurt, st.integers(0, 31), st.integers(0, 1 << 20), st.sampled_from([0, 10, 34, 44, 92, 128, 255]))


def _some(values: list[Any], dtype: Any) -> Callable[[int], pl.Series]:
    return lambda rows: pl.Series([values[row % len(values)] for row in range(rows)], dtype=dtype, strict=False)


TYPED: dict[str, Callable[[int], pl.Series]] = {
    "binary": _some([0, 1, 1], pl.Int8),
    "truth": _some([True, False, False], pl.Boolean),
    "gaps": _some([0, 1, None, 1], pl.Int64),
    "whole": _some([5, -3, 2, 7, 9], pl.Int64),
    "large": _some([2**64 - 1, 0, 1], pl.UInt64),
    "float": _some([0.5, float("nan"), float("inf"), -1e308, 1e308, None], pl.Float64),
    "float32": _some([0.5, 3e38, -3e38], pl.Float32),
    "text": _some(["a", "b", None, "", "1.0", "NA", "ä\0"], pl.String),
    "numbers": _some(["1", "2.5", "", "1e999"], pl.String),
    "categories": _some(["a", "b", None], pl.Categorical),
    "enum": _some(["a", "b", None], pl.Enum(["a", "b"])),
    "date": _some([date(2024, 1, 1), date(1, 1, 1), date(9999, 12, 31), None], pl.Date),
    "moment": _some([datetime(2024, 1, 1, 5), datetime(1970, 1, 1)], pl.Datetime("ns")),
    "zone": _some([datetime(2024, 1, 1, 5), datetime(1970, 1, 1)], pl.Datetime("us", "UTC")),
    "hour": _some([time(1, 2), time(3, 4), None], pl.Time),
    "span": _some([timedelta(1), timedelta(0), None], pl.Duration("us")),
    "decimal": _some([Decimal("1.5"), Decimal("2"), None], pl.Decimal(10, 2)),
    "bytes": _some([b"a", b"\xff"], pl.Binary),
    "lists": _some([[1, 2], [], None, [3, None]], pl.List(pl.Int64)),
    "texts": _some([["a"], ["b", "", None], []], pl.List(pl.String)),
    "nested": _some([[[1], []], [[2]]], pl.List(pl.List(pl.Int64))),
    "pairs": _some([[1.0, 2.0], [3.0, 4.0], None], pl.Array(pl.Float64, 2)),
    "record": _some([{"a": 1}, {"a": None}], pl.Struct({"a": pl.Int64})),
    "records": _some([[{"a": 1}], []], pl.List(pl.Struct({"a": pl.Int64}))),
    "nothing": _some([None], pl.Null),
    "absent": _some([None], pl.Float64),
}


@st.composite
def parquet_tables(draw: st.DrawFn) -> TableFile:
    names = draw(st.lists(NAMES, min_size=1, max_size=5, unique=True))
    rows = draw(st.sampled_from([40, 40, 40, 12, 1, 0]))
    kinds = [draw(st.sampled_from(list(TYPED))) for _ in names]
    if draw(st.integers(0, 3)) > 0:
        names, kinds = [*names, "clicked"], [*kinds, "binary"]
    frame = pl.DataFrame([TYPED[kind](rows).rename(name) for name, kind in zip(names, kinds, strict=True)])
    out = io.BytesIO()
    frame.write_parquet(out, row_group_size=draw(st.sampled_from([None, 7])))
    told = tuple(zip(names, kinds, strict=True))
    return TableFile(draw(damaged(out.getvalue())), ".parquet", _labels(draw, names), told)
