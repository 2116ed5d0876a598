"""`gdod data`: look at a table, prepare it, see what is prepared."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gdod.cli import download
from gdod.cli.options import AsJson
from gdod.cli.terminal import say, screen
from gdod.cli.train import explained

if TYPE_CHECKING:
    from gdod.data import Inspection

INSPECT_EXAMPLES = """
Examples:

  gdod data inspect ads.csv

  gdod data inspect 'logs/*.csv.gz' --label click --label buy --out logs.yaml
"""
PREPARE_EXAMPLES = """
Examples:

  gdod data prepare ads.csv --schema ads.yaml

  gdod data prepare census --folder downloads/census
"""
CLEAN_EXAMPLES = """
Examples:

  gdod data clean --days 30
"""
Cache = Annotated[Path | None, typer.Option(help="Folder of prepared data. (default: $GDOD_CACHE or ~/.cache/gdod)")]
Label = Annotated[list[str] | None, typer.Option(help="A column to predict. May be given several times.")]

app = typer.Typer(no_args_is_help=True, help="Your own tables, and data sets with a name.")


@app.command(epilog=INSPECT_EXAMPLES)
def inspect(
    source: Annotated[str, typer.Argument(metavar="FILE", help="A file, a folder of parts, or a pattern.")],
    label: Label = None,
    out: Annotated[Path | None, typer.Option(help="Write a schema to edit to this .yaml file.")] = None,
    encoding: Annotated[str, typer.Option(help="Of a text file.")] = "utf-8",
    separator: Annotated[str | None, typer.Option(help="Of a text file; by default it is guessed.")] = None,
    quote: Annotated[str, typer.Option(help="Sign around values; '' if quotation marks are ordinary signs.")] = '"',
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Write over a schema that is there.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show columns, types, numbers of values, missing values and label rates; write a schema to edit."""
    with explained():
        from gdod._files import write_text
        from gdod.data import inspect
        from gdod.data.tables.table_schema import FileFormat
        from gdod.errors import InputError

        if out is not None and out.suffix not in (".yaml", ".yml"):
            raise InputError(f"--out {out} ends in {out.suffix!r}; expected .yaml")
        if out is not None and out.exists() and not overwrite:
            raise InputError(f"{out} is there already; take another name, or --overwrite")
        format = FileFormat(encoding=encoding, separator=separator, quote=quote)
        inspection = inspect(source, labels=label or (), format=format)
        if as_json:
            typer.echo(json.dumps(inspection.to_json(), ensure_ascii=False))
        else:
            _print_inspection(inspection)
        if out is not None:
            write_text(out, inspection.to_yaml())
            say(f"Wrote {out}. Edit it, then: gdod data prepare {source} --schema {out}", err=True)


def _print_inspection(inspection: "Inspection") -> None:
    looked = "rows" if inspection.whole else "rows looked at (there are more)"
    rows = []
    for column in inspection.columns:
        options = ", ".join(f"{name}: {value}" for name, value in column.options.items())
        kind = f"{column.type} ({options})" if options else column.type
        rows.append([column.name, kind, column.summary(inspection.rows), ", ".join(column.examples)])
    titles = ("column", "taken for", "found", "for example")
    _print_table(titles, rows, f"{inspection.source}: {inspection.rows:,} {looked}")
    if not any(column.type == "label" for column in inspection.columns):
        say("No column looks like a label. Name what is to be predicted: --label NAME", err=True)


@app.command(epilog=PREPARE_EXAMPLES)
def prepare(
    source: Annotated[str, typer.Argument(metavar="FILE", help="A file, folder or pattern; or a data set's name.")],
    schema: Annotated[Path | None, typer.Option(help="What the columns are: a .yaml or .toml file.")] = None,
    label: Label = None,
    folder: Annotated[Path | None, typer.Option(help="Where the files of a data set with a name are.")] = None,
    cache: Cache = None,
    as_json: AsJson = False,
) -> None:
    """Turn a table into training data, once; `gdod train` finds it in the cache.

    Prints how many rows each part has, label rates, and what is missing or unknown.
    """
    with explained():
        from gdod.data import prepare

        prepared = prepare(source, schema=schema, labels=label or (), folder=folder, cache=cache)
        _print_prepared(prepared, as_json)


@app.command()
def show(
    folder: Annotated[Path, typer.Argument(help="A folder that `gdod data prepare` has made.")], as_json: AsJson = False
) -> None:
    """Show what a folder of prepared data holds."""
    with explained():
        _print_prepared(folder, as_json)


@app.command(epilog=CLEAN_EXAMPLES)
def clean(
    days: Annotated[float, typer.Option(min=0, help="Only what was not used for so many days.")] = 0,
    cache: Cache = None,
) -> None:
    """Remove prepared data from the cache. It is made again when a command needs it; runs and tables stay."""
    with explained():
        from gdod.data.preparing.cache import cache_folder, clean

        removed, size = clean(cache_folder(cache), days)
        say(f"{removed} folder{'s' * (removed != 1)} removed from {cache_folder(cache)}, {size / 1e6:,.1f} MB")


def _print_prepared(folder: Path, as_json: bool) -> None:
    from gdod.data.loading import read_about

    about = read_about(folder)
    if as_json:
        typer.echo(json.dumps({"folder": str(folder), **about}, ensure_ascii=False))
        return
    labels = list(about["parts"]["train"]["labels"])
    rows = []
    for part, held in about["parts"].items():
        cells = []
        for name in labels:
            label = held["labels"].get(name, {"labelled": 0, "mean": None})
            cells.append("" if label["mean"] is None else f"{label['mean']:.4f}, {label['labelled']:,}")
        rows.append([part, f"{held['rows']:,}", *cells])
    _print_table(("part", "rows", *(f"{name} (mean, labelled)" for name in labels)), rows, about["name"])
    for note in about["notes"]:
        say(f"- {note}")
    say(f"Prepared: {folder}")


def _print_table(titles: Sequence[str], rows: Sequence[Sequence[str]], title: str) -> None:
    from gdod.report.tables import TextTable, as_terminal

    screen().print(as_terminal(TextTable.of_texts(titles, rows, title), frame="box"))


download.register(app)
