"""`gdod predict` and `gdod evaluate`: what a trained model says about a table, and how right it is."""

import json
from pathlib import Path
from typing import Annotated

import typer

from gdod.cli.options import AsJson
from gdod.cli.terminal import say, screen
from gdod.cli.train import explained, show_metrics

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The folder that gdod train wrote.")]
TableFile = Annotated[
    str, typer.Argument(metavar="TABLE", help="A CSV or Parquet file, a folder of them or a pattern.")
]
Device = Annotated[str, typer.Option(help="cpu, cuda, ...")]
Threads = Annotated[int | None, typer.Option(min=1, help="Threads of torch.")]
Batch = Annotated[int, typer.Option(min=1, help="Rows that go through the model at once.")]
Weights = Annotated[str, typer.Option(help="Which checkpoint: best (on validation) or last.")]

PREDICT_EXAMPLES = """
Examples:

  gdod predict runs/clicks new.csv --out scores.csv

  gdod predict runs/clicks new.parquet --out scores.parquet --keep user --keep item
"""
EVALUATE_EXAMPLES = """
Examples:

  gdod evaluate runs/clicks labelled.csv

  gdod evaluate runs/clicks labelled.parquet --json
"""


def predict(
    run: RunFolder,
    data: TableFile,
    out: Annotated[Path, typer.Option(help="Where predictions go: .csv, .tsv or .parquet.")],
    keep: Annotated[list[str] | None, typer.Option(help="A column of the table to copy, e.g. an id.")] = None,
    weights: Weights = "best",
    batch: Batch = 8192,
    device: Device = "cpu",
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Write a table with one probability a task for each row of a table, in its order.

    Values never seen in training count as unknown and columns that are not there as missing, as in training.
    """
    with explained():
        import torch

        from gdod.training import load_run
        from gdod.training.predict import predict_file

        if threads is not None:
            torch.set_num_threads(threads)
        console = screen(stderr=True)
        loaded = load_run(run, weights=weights, device=device)
        if console.is_terminal:
            with console.status("predicting") as status:
                written = predict_file(
                    loaded, data, out, keep=keep or (), batch=batch, told=lambda rows: status.update(f"{rows:,} rows")
                )
        else:
            written = predict_file(loaded, data, out, keep=keep or (), batch=batch)
        for note in written.notes:
            say(f"gdod: {note}", err=True)
        if as_json:
            about = {"out": str(out), "rows": written.rows, "columns": written.columns, "notes": written.notes}
            typer.echo(json.dumps(about, indent=2))
        else:
            say(f"{written.rows:,} rows in {out}")


def evaluate(
    run: RunFolder,
    data: TableFile,
    weights: Weights = "best",
    threshold: Annotated[float, typer.Option(help="The probability from which on F1 takes a row for a 1.")] = 0.5,
    group: Annotated[str | None, typer.Option(metavar="COLUMN", help="For the AUC within each user, say.")] = None,
    all_negatives: Annotated[
        bool, typer.Option("--all-negatives", help="The table has all negatives, unlike that of training.")
    ] = False,
    batch: Batch = 8192,
    device: Device = "cpu",
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Tell how good a run's model is on a table with labels."""
    with explained():
        import torch

        from gdod.training import load_run
        from gdod.training.predict import EvaluationOptions, evaluate_file

        if threads is not None:
            torch.set_num_threads(threads)
        loaded = load_run(run, weights=weights, device=device)
        wanted = EvaluationOptions(threshold, group, all_negatives)
        metrics = evaluate_file(loaded, data, batch=batch, options=wanted)
        if as_json:
            typer.echo(json.dumps(metrics, indent=2))
            return
        for note in metrics["notes"]:
            say(f"gdod: {note}", err=True)
        show_metrics(screen(), {"table": metrics})
