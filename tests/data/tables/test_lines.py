"""Every line of a text file is accounted for: no quotation mark takes rows for a part of a value unnoticed."""

import gzip
import re
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from gdod import InputError
from gdod.cli.data import app
from gdod.data.tables.lines import CountedLines
from gdod.data.tables.read import columns_of, read_chunks
from gdod.data.tables.table_schema import FileFormat

HEADER = "a,b,c"
ROWS = [f"{at},x{at},{at % 2}" for at in range(400)]


def rows_read(path: Path, columns: tuple[str, ...] | None = None, format: FileFormat | None = None) -> int:
    format = format or FileFormat()
    return sum(len(chunk.frame) for chunk in read_chunks([path], format, columns or columns_of([path], format)))


def with_lines(path: Path, **changed: str) -> Path:
    """Write the table with other lines, such as ``line7="..."``; the header is line 1."""
    lines = [HEADER, *ROWS]
    for name, text in changed.items():
        lines[int(name.removeprefix("line")) - 1] = text
    content = "\n".join(lines).encode() + b"\n"
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


STRAY = {
    "in the last column": ({"line100": '98,x,"1'}, "100: .* never closed"),
    "in the middle": ({"line100": '98,"x,1'}, "100: .* never closed"),
    "in the last line but one": ({"line400": '398,x,"1'}, "400: .* never closed"),
    "in the header": ({"line1": 'a,"b,c'}, "1: .* never closed"),
    "in the header, closed by another": ({"line1": 'a,"b,c', "line50": '48,x",0'}, "1: .* line 50"),
    "twice in one column": ({"line100": '98,"x,1', "line200": '198,"x,1'}, "100: .* line 200"),
    "before values in quotation marks": ({"line100": '98,"x,1', "line200": '198,"y",1'}, "100: .* line 200"),
    "alone in a cell, twice": ({"line100": '98,",1', "line200": '198,",1'}, "100: .* line 200"),
    "at a start and at an end": ({"line100": '98,"x,1', "line104": '102,x",1'}, "100: .* line 104"),
}


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz"])
@pytest.mark.parametrize("case", STRAY)
def test_a_stray_quotation_mark_is_refused_with_its_line(case: str, name: str, tmp_path: Path) -> None:
    changed, says = STRAY[case]
    with pytest.raises(InputError, match=rf"{re.escape(name)}, line {says}"):
        rows_read(with_lines(tmp_path / name, **changed))


@pytest.mark.parametrize("case", ["in the last column", "alone in a cell, twice"])
def test_also_in_a_column_that_is_not_read(case: str, tmp_path: Path) -> None:
    path = with_lines(tmp_path / "t.csv", **STRAY[case][0])
    with pytest.raises(InputError, match=r"line 100: the quotation mark"):
        rows_read(path, ("a",))


FINE = {
    "marks within values": {"line5": '3,5" disc,0', "line6": '4,12"" pipe,0'},
    "marks around values": {"line5": '"3","x, y","0"', "line6": '"4","say ""so""",0'},
    "a mark after the closing one": {"line5": '3,"x" or "y",0'},
    "a value of several lines": {"line5": '3,"one\ntwo, three\n\nfour ""five""",0', "line7": '5,"6\r\n7" ,0'},
    "a value of one line more": {"line5": '3,"Dear X,\nyours, Y",0'},
    "empty lines": {"line5": f"\n\r\n{ROWS[3]}\n\n"},
    "carriage returns": {"line5": f"{ROWS[3]}\r{ROWS[4]}\r\n{ROWS[5]}", "line6": "", "line7": ""},
}


@pytest.mark.parametrize("case", FINE)
def test_other_marks_and_quoted_line_breaks_are_read(case: str, tmp_path: Path) -> None:
    assert rows_read(with_lines(tmp_path / "t.csv", **FINE[case])) == len(ROWS)


def test_an_escaped_mark_or_line_end_is_no_stray_one(tmp_path: Path) -> None:
    path = with_lines(tmp_path / "t.csv", line5='3,"one \\" two",0', line6='4,"one\ntwo \\"",0', line7="5,x\\\ny,0")
    assert rows_read(path, format=FileFormat(escape="\\")) == len(ROWS)


def test_other_encodings_and_ordinary_marks(tmp_path: Path) -> None:
    path = with_lines(tmp_path / "t.csv", **STRAY["twice in one column"][0])
    assert rows_read(path, format=FileFormat(quote="")) == len(ROWS)
    # The second byte of each of these signs, or the first, is that of a line's end.
    text = path.read_text().replace("x5,", "ऊ\u0a0a,")
    path.write_bytes(text.encode("utf-16"))
    assert rows_read(path, format=FileFormat(encoding="utf-16", quote="")) == len(ROWS)
    with pytest.raises(InputError, match=r"line 100: the quotation mark"):
        rows_read(path, format=FileFormat(encoding="utf-16"))


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_lines_are_counted_whatever_the_blocks(size: int) -> None:
    text = b"\n\na,b\r\n\r\nc\rd\n\n\nlast"
    lines = CountedLines(pa.BufferReader(text))
    while lines.read(size):
        pass
    assert lines.count == 4


def test_inspect_says_it_and_reads_the_file_without_quotation_marks(tmp_path: Path) -> None:
    path = with_lines(tmp_path / "t.csv", **STRAY["in the last column"][0])
    refused = CliRunner().invoke(app, ["inspect", str(path)])
    assert refused.exit_code == 2
    assert "line 100: the quotation mark" in refused.stderr
    out = tmp_path / "s.yaml"
    done = CliRunner().invoke(app, ["inspect", str(path), "--quote", "", "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert 'file: {quote: ""}' in out.read_text()
