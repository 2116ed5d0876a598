"""The command line. Each command imports what it needs when it runs, so that help stays quick."""

try:
    import typer
except ModuleNotFoundError as error:
    raise SystemExit(
        f"The command line needs {error.name}, which is not installed. Install it with: pip install 'gdod[cli]'"
    ) from error

from gdod.cli import demo

app = typer.Typer(
    no_args_is_help=True,
    help="Multi-task training without tasks fighting over shared parameters.",
)


@app.callback()
def main() -> None:
    # A callback keeps `demo` a named command while it is the only one.
    pass


app.command()(demo.demo)
