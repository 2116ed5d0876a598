"""The command line. Each command imports what it needs when it runs, so that help stays quick."""

from typing import Annotated

try:
    import typer
except ModuleNotFoundError as error:
    raise SystemExit(
        f"The command line needs {error.name}, which is not installed. Install it with: pip install 'gdod[cli]'"
    ) from error

app = typer.Typer(
    no_args_is_help=True,
    help="Multi-task training without tasks fighting over shared parameters.",
)


@app.callback()
def main() -> None:
    # A callback keeps `demo` a named command while it is the only one.
    pass


@app.command()
def demo(
    steps: Annotated[int, typer.Option(min=1, help="Training steps for each method.")] = 600,
    seed: Annotated[int, typer.Option(help="Seed of the data, the models and the batches.")] = 0,
) -> None:
    """Train a two-task and a six-task model on made data with three methods; print a table each."""
    from gdod.demo import run

    run(steps=steps, seed=seed)
