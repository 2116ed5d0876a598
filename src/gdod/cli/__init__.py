"""The command line. Each command imports what it needs when it runs, so that help stays quick."""

import os
from typing import Annotated

try:
    import typer
except ModuleNotFoundError as error:
    raise SystemExit(
        f"The command line needs {error.name}, which is not installed. Install it with: pip install 'gdod[cli]'"
    ) from error

from gdod._checks import short_waits
from gdod.cli import (
    choose,
    compare,
    data,
    demo,
    explain,
    export,
    front,
    predict,
    report,
    reproduce,
    serve,
    train,
    tune,
)

app = typer.Typer(
    no_args_is_help=True,
    help="Multi-task training without tasks fighting over shared parameters.",
)


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"gdod {version('gdod')}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    os.environ.update(short_waits(os.environ))


app.command()(demo.demo)
app.add_typer(data.app, name="data")
app.command(epilog=train.EXAMPLES + train.EXIT_CODES)(train.train)
app.command(epilog=compare.EXAMPLES + compare.EXIT_CODES)(compare.compare)
app.command(epilog=front.EXAMPLES + front.EXIT_CODES)(front.front)
app.command(epilog=choose.EXAMPLES + choose.EXIT_CODES)(choose.choose)
app.command(epilog=tune.EXAMPLES + tune.EXIT_CODES)(tune.tune)
app.command(epilog=predict.PREDICT_EXAMPLES + train.EXIT_CODES)(predict.predict)
app.command(epilog=predict.EVALUATE_EXAMPLES + train.EXIT_CODES)(predict.evaluate)
app.command(epilog=explain.EXAMPLES + train.EXIT_CODES)(explain.explain)
app.command(epilog=export.EXAMPLES + train.EXIT_CODES)(export.export)
app.command(epilog=serve.EXAMPLES + serve.EXIT_CODES)(serve.serve)
app.command(epilog=report.EXAMPLES + train.EXIT_CODES)(report.report)
app.command(epilog=reproduce.EXAMPLES + reproduce.EXIT_CODES)(reproduce.reproduce)
