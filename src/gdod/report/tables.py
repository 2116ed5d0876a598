"""A table of cells, and the four forms it is shown in: terminal, Markdown, CSV and HTML."""

import csv
import io
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Literal

from gdod._checks import visible
from gdod.report import svg

if TYPE_CHECKING:
    from rich.table import Table as RichTable

Value = float | str | None


@dataclass(frozen=True)
class Cell:
    """One cell: its text, and what some of the forms show besides."""

    text: str
    value: Value = None
    """The exact value: what CSV holds and what the page sorts the column by, None last."""
    detail: str = ""
    """A second, smaller line."""
    best: bool = False
    """Whether it holds the best value of its column."""
    drawing: str = ""
    """An SVG picture, which the page alone shows."""
    style: int | None = None
    """The number of the method's line style in the plots, if the cell names a method."""
    baseline: bool = False
    """Whether it names the method that others are compared with; the page marks its row."""


@dataclass(frozen=True)
class Column:
    """The heading of a column, and how its cells are set."""

    title: str
    hint: str = ""
    """An explanation, which the page shows on hover."""
    numeric: bool = True
    """Whether cells are set to the right."""
    drawn: bool = False
    """Whether it holds pictures only, and is left out of Markdown."""
    badges: bool = False
    """Whether the page shows texts as badges, coloured by their first word."""


@dataclass(frozen=True)
class TextTable:
    """A table that can be shown in every form; see `as_terminal`, `as_markdown`, `as_csv` and `as_html`."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    """Cells in the order of the columns. In a terminal, a row of one cell is a heading."""
    title: str = ""
    caption: str = ""
    name: str = ""
    sections: Collection[int] = ()
    """The numbers of the rows that a terminal sets apart from the row above."""

    @classmethod
    def of_texts(cls, titles: Iterable[str], rows: Iterable[Iterable[str]], title: str = "") -> "TextTable":
        """Return a table of plain texts, set to the left."""
        cells = [[Cell(text) for text in row] for row in rows]
        return cls([Column(name, numeric=False) for name in titles], cells, title)

    @classmethod
    def of_values(cls, titles: Iterable[str], rows: Iterable[Iterable[Value]]) -> "TextTable":
        """Return a table of exact values without texts, for `as_csv`."""
        return cls([Column(name) for name in titles], [[Cell("", value) for value in row] for row in rows])


def as_terminal(table: TextTable, frame: Literal["box", "rule", "none"] = "rule") -> "RichTable":
    """Return the table for a rich console: with lines around all cells, one below the headings, or none.

    No text in it is taken for markup.
    """
    from rich.box import HEAVY_HEAD, SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    boxes = {"box": HEAVY_HEAD, "rule": SIMPLE_HEAD, "none": None}
    right = {"box": 1, "rule": 1, "none": 2}[frame]
    padding = (0, right, 0, 1 if frame == "box" else 0)
    shown = Table(title=table.title and Text(visible(table.title)), box=boxes[frame], padding=padding)
    if frame == "rule":
        shown.title_justify, shown.title_style = "left", ""
    for column in table.columns:
        justify: Literal["left", "right"] = "right" if column.numeric else "left"
        # A cell that does not fit goes on in the next line: what is cut could be the end that tells names apart.
        shown.add_column(Text(visible(column.title)), justify=justify, overflow="fold")
    for number, row in enumerate(table.rows):
        if number in table.sections:
            shown.add_section()
        bold = "bold" if len(row) == 1 < len(table.columns) else ""
        shown.add_row(*(Text(visible(cell.text), style=bold) for cell in row))
    return shown


def as_markdown(table: TextTable, *, escaped: bool = True) -> str:
    """Return the table in Markdown, below its title and caption; not ``escaped``: its texts are Markdown themselves."""
    plain = _no_markup if escaped else str
    kept = [place for place, column in enumerate(table.columns) if not column.drawn]
    lines = [f"### {heading(table.title) if escaped else table.title}", ""] if table.title else []
    lines += [plain(table.caption), ""] if table.caption else []
    lines.append(_line(plain(table.columns[place].title) for place in kept))
    lines.append(_line("---:" if table.columns[place].numeric else "---" for place in kept))
    for row in table.rows:
        texts = []
        for cell in (row[place] for place in kept):
            text = f"**{plain(cell.text)}**" if cell.best else plain(cell.text)
            texts.append(f"{text} ({plain(cell.detail)})" if cell.detail else text)
        lines.append(_line(texts))
    return "\n".join(lines)


def as_csv(table: TextTable) -> str:
    """Return the exact values of the table as CSV; empty where there is none."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([column.title for column in table.columns])
    writer.writerows([_no_formula(cell.value) for cell in row] for row in table.rows)
    return out.getvalue()


def as_html(table: TextTable, *, sortable: bool = True) -> str:
    """Return the `<table>` element with escaped texts; ``sortable``: headings are buttons for the page's script."""
    heading = _heading if sortable else _plain_heading
    head = "".join(heading(column) for column in table.columns)
    rows = []
    for row in table.rows:
        cells = "".join(_html_cell(cell, column) for cell, column in zip(row, table.columns, strict=True))
        rows.append(f'<tr class="base">{cells}</tr>' if any(cell.baseline for cell in row) else f"<tr>{cells}</tr>")
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _line(texts: Iterable[str]) -> str:
    return f"| {' | '.join(texts)} |"


def _no_markup(text: str) -> str:
    """Return text that no Markdown reader takes for markup."""
    text = " ".join(text.split())
    for sign in "\\`*_|<>":
        text = text.replace(sign, f"\\{sign}")
    return text


def heading(text: str) -> str:
    """Return text for a heading in Markdown, which holds no link either."""
    return _no_markup(text).replace("[", "\\[")


def _no_formula(value: Value) -> Value:
    """Return the value, as text that a spreadsheet does not take for a formula."""
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value


def _plain_heading(column: Column) -> str:
    return f'<th scope="col">{escape(column.title)}</th>'


def _heading(column: Column) -> str:
    if column.drawn:
        ends = "".join(f"<span>{word}</span>" for word in column.title.split())
        return f'<th scope="col" class="drawn"><span class="ends">{ends}</span></th>'
    hint = f' title="{escape(column.hint)}"' if column.hint else ""
    # The first press on a column shows the best first, as far as the page can tell.
    low = any(word in column.hint for word in ("lower", "1 is best", "t-test", "per step", "median"))
    first = ' data-low="1"' if low else ""
    numeric = ' class="n"' if column.numeric else ""
    return f'<th scope="col"{numeric}{first}><button type="button"{hint}>{escape(column.title)}</button></th>'


def _html_cell(cell: Cell, column: Column) -> str:
    value = "" if cell.value is None else f' data-value="{escape(str(cell.value))}"'
    text = escape(cell.text)
    classes = ["drawn"] if column.drawn else ["n"] if column.numeric else []
    if column.badges:
        text = f'<span class="state {escape(cell.text.split()[0])}">{text}</span>'
        classes.append("wrapped")
    if cell.best:
        text = f'<span class="best" title="best of the column">{text}</span>'
    if cell.style is not None:
        text = f'<span class="named">{svg.swatch(cell.style)}{text}</span>'
        classes.append("method")
    tight = ' class="tight"' if cell.detail.endswith(("]", "*")) else ""
    detail = f"<small{tight}>{escape(cell.detail)}</small>" if cell.detail else ""
    named = f' class="{" ".join(classes)}"' if classes else ""
    return f"<td{named}{value}>{text}{detail}{cell.drawing}</td>"
