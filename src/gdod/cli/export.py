"""`gdod export`: a run as a program that runs without this library."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from gdod.cli.options import AsJson
from gdod.cli.predict import RunFolder, Threads, Weights
from gdod.cli.terminal import say
from gdod.cli.train import explained

EXAMPLES = """
Examples:

  gdod export runs/clicks clicks.onnx

  gdod export runs/clicks clicks.pt2 --data new.parquet
"""


def export(
    run: RunFolder,
    out: Annotated[Path, typer.Argument(metavar="FILE", help="The program: a name that ends in .onnx or .pt2.")],
    data: Annotated[
        str | None, typer.Option(metavar="TABLE", help="Rows to check it with. (default: those of the run)")
    ] = None,
    weights: Weights = "best",
    threads: Threads = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Write over files that are there.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write a run's model as one program, and its encoder beside it as JSON and Parquet.

    The program is checked against the run on real rows before anything is written. It takes ids and numbers as the
    encoder gives them, and gives probabilities by task.
    """
    with explained():
        import torch

        from gdod.training import load_run
        from gdod.training.export import export_run

        if threads is not None:
            torch.set_num_threads(threads)
        exported = export_run(load_run(run, weights=weights), out, table=data, overwrite=overwrite)
        if as_json:
            typer.echo(json.dumps(asdict(exported), indent=2))
            return
        for path, size in exported.files.items():
            say(f"{path}  {size / 1e3:,.1f} kB")
        say(f"checked with {exported.rows:,} rows: the largest difference is {exported.difference:.1g}")
        for rows, took in exported.milliseconds.items():
            say(f"{rows:,} row{'s' * (rows != 1)}: {took:.2f} ms")
