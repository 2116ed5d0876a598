"""`gdod data download`, `gdod data ads` and `gdod data sets`."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gdod.cli.terminal import say, screen
from gdod.cli.train import explained

if TYPE_CHECKING:
    from gdod.data.sets.download import ByHand, Progress

EXAMPLES = """
Examples:

  gdod data download census

  gdod data download bookcrossing --folder data/book-crossing
"""
ADS_EXAMPLES = """
Examples:

  gdod data ads ads.parquet --conflict 0.8

  gdod data ads ads.csv --rows 1000000 --users 100000 --seed 1 --truth
"""


def register(app: typer.Typer) -> None:
    """Add the commands to `gdod data`."""
    app.command(epilog=EXAMPLES)(download)
    app.command(epilog=ADS_EXAMPLES)(ads)
    app.command()(sets)


def download(
    name: Annotated[str, typer.Argument(help="census, bookcrossing or ijcai15.")],
    folder: Annotated[
        Path | None, typer.Option(help="Where the files go. (default: downloads/NAME in $GDOD_CACHE or ~/.cache/gdod)")
    ] = None,
    sha256: Annotated[str | None, typer.Option(help="Take a file with this sha256, whatever is expected.")] = None,
) -> None:
    """Fetch a data set from its owner's address; go on with what a broken connection left.

    Where the owner asks for a login, say which files to put where.
    """
    with explained():
        from gdod._checks import check_choice
        from gdod._files import digest
        from gdod.data.sets.download import BY_HAND, PUBLIC, fetch, other
        from gdod.data.sets.published import downloads_folder

        check_choice("name", name, [*PUBLIC, *BY_HAND])
        target = folder or downloads_folder(name)
        if name in BY_HAND:
            _say_what_to_do(name, BY_HAND[name], target)
            return
        wanted = PUBLIC[name] if sha256 is None else other(PUBLIC[name], sha256)
        with _bar(wanted.name) as progress:
            path = fetch(wanted, target, progress, say=lambda text: say(f"gdod: {text}", err=True))
        say(f"{path}  sha256 {digest(path)}")
        say(f"Use it with: gdod train --data {name}" + (f" --data-folder {folder}" if folder else ""))


def _say_what_to_do(name: str, wanted: "ByHand", folder: Path) -> None:
    from gdod.data.sets import SOURCES

    say(f"{name} is given to people who log in at {wanted.page}. Put these files there yourself:")
    for file in wanted.files:
        say(f"  {folder / file}" + ("  (is there)" if SOURCES[name].is_here(folder, file) else ""))
    say(f"Each may be compressed ({wanted.files[0]}.gz); {wanted.hint}.")


def ads(
    out: Annotated[Path, typer.Argument(help="A .parquet or .csv file.")],
    rows: Annotated[int, typer.Option(help="Impressions.")] = 200_000,
    users: Annotated[int, typer.Option(help="Users.")] = 20_000,
    ads: Annotated[int, typer.Option(help="Ads.")] = 1_098,
    conflict: Annotated[float, typer.Option(help="0: what draws clicks sells; 1: it keeps from buying.")] = 0.5,
    click_rate: Annotated[float, typer.Option(help="Clicks among impressions.")] = 0.3,
    visit_rate: Annotated[float, typer.Option(help="Visits among clicks.")] = 0.25,
    purchase_rate: Annotated[float, typer.Option(help="Purchases among visits.")] = 0.3,
    noise: Annotated[float, typer.Option(help="What nobody can predict, in logits.")] = 0.5,
    conditional: Annotated[bool, typer.Option(help="No label where the step before did not happen.")] = False,
    truth: Annotated[bool, typer.Option(help="Write each row's true probabilities, too.")] = False,
    seed: Annotated[int, typer.Option(help="The same rows for the same seed.")] = 0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Write over files that are there.")] = False,
) -> None:
    """Simulate ads with known task conflict; print the labels' rates and the best AUC that can be reached.

    Beside the table goes its schema, with the same name and .yaml at the end: what is a label, and what no feature.
    """
    with explained():
        import polars as pl

        from gdod.data.sets.ads import AdsOptions, describe, schema_yaml, simulate, true_name
        from gdod.errors import InputError

        if out.suffix not in (".parquet", ".csv"):
            raise InputError(f"{out} ends in {out.suffix!r}; expected a name that ends in .parquet or .csv")
        schema = out.with_suffix(".yaml")
        for path in (out, schema):
            if path.exists() and not overwrite:
                raise InputError(f"{path} is there already; take another name, or --overwrite")
        options = AdsOptions.of(
            {
                "rows": rows,
                "users": users,
                "ads": ads,
                "conflict": conflict,
                "click_rate": click_rate,
                "visit_rate": visit_rate,
                "purchase_rate": purchase_rate,
                "noise": noise,
                "conditional": conditional,
                "seed": seed,
            }
        )
        made = simulate(options)
        table = made.table
        if truth:
            table = pl.concat([table, made.truth.rename(true_name)], how="horizontal")
        _write(out, table.write_parquet if out.suffix == ".parquet" else table.write_csv)
        _write(schema, lambda part: part.write_text(schema_yaml(options, truth=truth), "utf-8"))
        say(f"{out}: {len(table):,} rows")
        for line in describe(made.table, made.truth):
            say(f"  {line}")
        say(f"Use it with: gdod train --data {out} --schema {schema}")


def sets() -> None:
    """List the data sets that have a name, and where they come from."""
    from gdod.data.sets import SOURCES
    from gdod.data.sets.download import BY_HAND, PUBLIC
    from gdod.report.tables import TextTable, as_terminal

    rows = []
    for name, source in SOURCES.items():
        origin = PUBLIC[name].url if name in PUBLIC else f"{BY_HAND[name].page} (login)" if name in BY_HAND else "made"
        rows.append([name, source.title, origin, "yes" if source.is_here() else "no"])
    screen().print(as_terminal(TextTable.of_texts(("name", "what", "from", "here"), rows), frame="none"))


def _write(out: Path, write: Callable[[Path], object]) -> None:
    """Write a file whole or not at all."""
    from gdod._files import whole
    from gdod.errors import InputError

    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with whole(out) as part:
            write(part)
    except OSError as error:  # polars gives one without `strerror`
        raise InputError(f"{out} cannot be written: {error.strerror or error}; choose another name") from error


@contextmanager
def _bar(name: str) -> "Iterator[Progress]":
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    # A bar redrawn into a file or a pipe would be rubbish there.
    bar = Progress(*columns, TimeRemainingColumn(), console=console, transient=True, disable=not console.is_terminal)
    with bar:
        task = bar.add_task(name, total=None)
        yield lambda here, total: bar.update(task, completed=here, total=total)
