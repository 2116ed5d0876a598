"""Parts that every page is made of, as HTML: the page around them, cards, tables in boxes, figures, lists."""

import base64
import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from html import escape
from importlib.resources import files
from typing import Any

from gdod.report.figures import Figure
from gdod.report.tables import TextTable, as_html


def whole_page(title: str, names: str, text: str, links: str, body: str) -> str:
    """Return a page with its style and script, which needs no network.

    Args:
        title: what made the page, such as "gdod report".
        names: the heading: the data sets.
        text: a line below the heading.
        links: to the sections, as HTML.
        body: the sections, as HTML.
    """
    style, script = _file("page.css"), _file("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    # Only our script may run, and nothing may be loaded, whatever a run folder holds.
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:"
    written = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">
<title>{escape(title)}: {escape(names)}</title>
<link rel="icon" href="data:,">
<style>
{style}</style>
</head>
<body>
<a class="skip" href="#main">Skip to the results</a>
<div class="wrap">
<header class="top"><div><p class="over">{escape(title)}</p><h1>{escape(names)}</h1>
<p>{escape(text)}</p></div>
<button class="theme" id="theme" type="button" hidden>Theme: auto</button></header>
<nav aria-label="Sections">{links}</nav>
<main id="main">
{body}
</main>
<footer>Written by <code>{escape(title)}</code>, {written}. The page is complete and needs no network.</footer>
</div>
<script>{script}</script>
</body>
</html>
"""


def _file(name: str) -> str:
    return files("gdod.report").joinpath(name).read_text(encoding="utf-8")


def counted(many: int, what: str) -> str:
    """Return a number with the word for what it counts, such as "3 runs"."""
    return f"{many} {what}{'' if many == 1 else 's'}"


def card(title: str, big: str, text: str) -> str:
    """Return a card: a title, one large figure or word, and a line below it."""
    return f'<div class="card"><h3>{escape(title)}</h3><div class="big">{escape(big)}</div><p>{escape(text)}</p></div>'


def table_box(table: TextTable, *, pinned: bool = False) -> str:
    """Return the table below its title, in a box that scrolls sideways; pinned: its first column stays."""
    caption = f'<p class="caption">{escape(table.caption)}</p>' if table.caption else ""
    return (
        f"<h3>{escape(table.title)}</h3>"
        f'<div class="{"scroll pinned" if pinned else "scroll"}" tabindex="0" role="region" '
        f'aria-label="{escape(table.title)}">{as_html(table)}</div>{caption}'
    )


def figure_box(figure: Figure) -> str:
    """Return a plot below its title, with its numbers to open."""
    numbers = as_html(figure.numbers, sortable=False)
    return (
        f"<figure><figcaption>{escape(figure.title)}</figcaption>{''.join(figure.drawings)}"
        f'<details class="figure-data"><summary>Numbers</summary><div class="scroll" tabindex="0" role="region" '
        f'aria-label="{escape(figure.title)}: numbers">{numbers}</div></details></figure>'
    )


def described_list(items: Mapping[str, Any], *, code: bool = False) -> str:
    """Return names with values; ``code``: values as they stand in a file, and those that are empty, too."""
    rows = []
    for name, value in items.items():
        if value not in (None, "") or code:
            text = escape(short_text(value))
            rows.append(f"<dt>{escape(name)}</dt><dd>{f'<code>{text}</code>' if code else text}</dd>")
    return f"<dl>{''.join(rows)}</dl>"


def short_text(value: object) -> str:
    """Return a value as text, cut if it is very long."""
    if value is None:
        return "–"
    text = value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 400 else text[:400] + " …"


def explanations(items: Mapping[str, str]) -> str:
    """Return the section on how to read a page: words, and what they mean there."""
    listed = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in items.items())
    return f'<h2 id="reading">How to read this page</h2><dl>{listed}</dl>'
