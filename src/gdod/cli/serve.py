"""`gdod serve`: what a trained model says about rows that come over HTTP."""

import json
import shlex
from typing import TYPE_CHECKING, Annotated

import typer

from gdod.cli.options import AsJson
from gdod.cli.predict import Device, RunFolder, Threads, Weights
from gdod.cli.train import explained

if TYPE_CHECKING:
    from gdod.serving.server import Place
    from gdod.training import Run

EXAMPLES = """
Examples:

  gdod serve runs/clicks

  gdod serve runs/clicks --port 0 --json

  curl http://127.0.0.1:8000/predict -d '{"rows": [{"user": "u1", "item": "i7"}]}'
"""
EXIT_CODES = (
    "Exit codes: 2 wrong input (a run that is damaged, a port that is taken), 130 ended by Ctrl-C and 143 by a request "
    "to terminate, both after the requests under way were answered."
)


def serve(
    run: RunFolder,
    host: Annotated[str, typer.Option(help="Address to listen at; others than 127.0.0.1 may be open to all.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen at; 0: any that is free.")] = 8000,
    weights: Weights = "best",
    max_body: Annotated[int, typer.Option(min=1, help="Most bytes of a request's body; more: 413.")] = 8_000_000,
    max_rows: Annotated[int, typer.Option(min=1, help="Most rows of a request; more: 413.")] = 10_000,
    timeout: Annotated[float, typer.Option(help="Seconds that a request may take; more: 408 or 504.")] = 10.0,
    max_requests: Annotated[int, typer.Option(min=1, help="Most requests under way at once; more: 503.")] = 128,
    device: Device = "cpu",
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Answer rows of JSON over HTTP with one probability a task, as gdod predict does for tables.

    POST /predict takes {"rows": [{"column": value, ...}, ...]}; requests that come together are one call of the model.
    GET /health and GET /metrics (for Prometheus) are for those who watch it.
    """
    with explained():
        import torch

        from gdod._checks import check_number
        from gdod.training import load_run

        try:
            from gdod.serving.application import Limits
            from gdod.serving.server import Place, serve
        except ModuleNotFoundError as error:
            raise ImportError(
                f"gdod serve needs {error.name}, which is not installed. Install it with: pip install 'gdod[serve]'"
            ) from error

        check_number("--timeout", timeout, above=0)
        if threads is not None:
            torch.set_num_threads(threads)
        with Place(host, port) as place:
            if not place.is_local:
                typer.echo(
                    f"gdod: {place.address} can be reached from other machines, and there is neither a password nor "
                    "encryption; leave --host out, or put a proxy that has them in front of it",
                    err=True,
                )
            loaded = load_run(run, weights=weights, device=device)
            limits = Limits(max_body, max_rows, timeout, max_requests)
            ended = serve(loaded, place, limits, lambda: _tell(loaded, place, as_json))
        typer.echo(f"gdod: ended after {ended.requests:,} requests", err=True)
        raise typer.Exit(128 + ended.signal)


def _tell(run: "Run", place: "Place", as_json: bool) -> None:
    """Print where the server is, what it predicts and what it takes; at once, also into a file or pipe."""
    from gdod._checks import visible
    from gdod.serving.application import about
    from gdod.serving.example import example_row

    if as_json:
        lines = json.dumps({"url": place.url, **about(run)})  # one line: there is no end to wait for
    else:
        example = json.dumps({"rows": [example_row(run)]}, ensure_ascii=False)
        lines = visible(
            f"{run.folder.path} (step {run.step:,}) answers at {place.url}; Ctrl-C ends it\n"
            f"tasks: {', '.join(task.name for task in run.tasks)}\n"
            f"columns: {', '.join(run.encoder.inputs)}\n"
            f"try it: curl {place.url}/predict -d {shlex.quote(example)}"
        )
    typer.echo(lines)
