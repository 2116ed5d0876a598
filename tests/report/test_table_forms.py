"""One table in four forms: what each of them shows, escapes and leaves out."""

import csv
import io
from typing import Literal

import pytest
from rich.console import Console

from gdod.report.tables import Cell, Column, TextTable, as_csv, as_html, as_markdown, as_terminal

TABLE = TextTable(
    [Column("method", numeric=False), Column("AUC [%]"), Column("low high", drawn=True)],
    [
        [Cell("sum", "sum", style=0, baseline=True), Cell("0.7000", 0.7), Cell("", drawing="<svg></svg>")],
        [Cell("a|b_<i>", "=1+1", "tuned*"), Cell("0.7123", 0.71234567, best=True), Cell("", -0.5)],
    ],
    "Results",
    "On *test* data.",
)


def terminal(table: TextTable, width: int = 60, frame: Literal["box", "rule", "none"] = "rule") -> str:
    out = io.StringIO()
    Console(file=out, width=width).print(as_terminal(table, frame))
    return out.getvalue()


def test_markdown_shows_texts_and_no_drawing() -> None:
    assert as_markdown(TABLE) == (
        "### Results\n\nOn \\*test\\* data.\n\n| method | AUC [%] |\n| --- | ---: |\n| sum | 0.7000 |\n"
        "| a\\|b\\_\\<i\\> (tuned\\*) | **0.7123** |"
    )
    assert as_markdown(TextTable.of_texts(["`x`"], [["1<br>2"]]), escaped=False) == "| `x` |\n| --- |\n| 1<br>2 |"


def test_csv_has_exact_values_and_no_formula() -> None:
    rows = list(csv.reader(io.StringIO(as_csv(TABLE))))
    assert rows == [["method", "AUC [%]", "low high"], ["sum", "0.7", ""], ["'=1+1", "0.71234567", "-0.5"]]


def test_html_escapes_texts_marks_the_baseline_and_may_be_sorted() -> None:
    text = as_html(TABLE)
    assert text.count('<tr class="base">') == 1
    assert "a|b_&lt;i&gt;" in text
    assert "<i>" not in text
    assert "<svg></svg>" in text
    assert text.count("<button") == 2  # not for drawings
    assert "<button" not in as_html(TABLE, sortable=False)


@pytest.mark.parametrize("frame", ["box", "rule", "none"])
def test_a_terminal_takes_nothing_for_markup(frame: Literal["box", "rule", "none"]) -> None:
    shown = terminal(TextTable.of_texts(["[b]x[/b]"], [["[red]1"]], "[i]t"), frame=frame)
    assert all(text in shown for text in ("[b]x[/b]", "[red]1", "[i]t"))
    assert ("│" in shown, "─" in shown or "━" in shown) == (frame == "box", frame != "none")


def test_a_terminal_that_is_too_narrow_cuts_nothing() -> None:
    numbers = TextTable([Column("mean")], [[Cell("0.712345 ± 0.000001")]])
    assert "".join(terminal(numbers, width=12).split()).endswith("0.712345±0.000001")
    titles = [f"a rather long task name {number}" for number in range(4)]
    names = [[Cell("weighted-gdod groups=16"), *[Cell("0.87654 ± 0.00012")] * 4]]
    shown = terminal(TextTable([Column("method", numeric=False), *map(Column, titles)], names), width=80)
    assert "…" not in shown
    words = shown.split()
    for word in ("method", "weighted-gdod", "groups=16", *"0123"):
        assert word in words, word
    assert words.count("0.00012") == 4


def test_sections_and_headings_in_a_terminal() -> None:
    rows = [[Cell("mmoe")], [Cell("sum"), Cell("1")], [Cell("ple")], [Cell("sum"), Cell("2")]]
    table = TextTable([Column("method", numeric=False), Column("n")], rows, sections=[0, 2])
    lines = [line.split() for line in terminal(table).splitlines()[3:7]]
    assert lines == [["mmoe"], ["sum", "1"], [], ["ple"]]


def test_no_name_moves_the_cursor_of_a_terminal() -> None:
    table = TextTable.of_texts(["a\x1b[2J"], [["b\x1b[31m\rc\u202e"]], "t\x1b]0;x\x07")
    console = Console(file=io.StringIO(), force_terminal=False, width=80)
    console.print(as_terminal(table))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert not set(shown) & set("\x1b\r\x07\u202e")
    assert "b\\x1b[31m\\rc\\u202e" in shown


def test_a_heading_is_no_markup_and_no_link() -> None:
    made = as_markdown(TextTable.of_texts(["a"], [["b"]], "x*y*\n# z [w](http://w)"))
    assert made.splitlines()[0] == r"### x\*y\* # z \[w](http://w)"
