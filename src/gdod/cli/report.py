"""`gdod report`: runs and comparisons as one page."""

import json
from pathlib import Path
from typing import Annotated

import typer

from gdod.cli.train import explained

EXAMPLES = """
Examples:

  gdod report runs/clicks

  gdod report comparison --out report.html --markdown tables.md --csv figures.csv
"""


def report(
    paths: Annotated[
        list[Path], typer.Argument(metavar="PATH...", help="Run folders, comparison folders, or folders of these.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Where the page goes.")] = Path("report.html"),
    markdown: Annotated[Path | None, typer.Option(help="Write the tables as Markdown, too.")] = None,
    csv: Annotated[
        Path | None, typer.Option(help="Write the figures as CSV, too: a line for each method, task and metric.")
    ] = None,
    baseline: Annotated[
        str | None, typer.Option(help="Method that others are compared with; else the comparison's, or sum.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was written as JSON.")] = False,
) -> None:
    """Make one HTML page of one or many runs: tables, learning curves, conflict, calibration.

    The page opens from disk and needs no network.
    """
    with explained():
        from gdod.report import write_report

        write_report(paths, out, markdown=markdown, csv=csv, baseline=baseline)
        written = {"html": out, "markdown": markdown, "csv": csv}
        places = {kind: str(path.resolve()) for kind, path in written.items() if path is not None}
        typer.echo(json.dumps(places) if as_json else "\n".join(places.values()))
