"""`gdod reproduce`."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from gdod.cli.compare import EXIT_CODES, end, stopping_told
from gdod.cli.options import Quiet
from gdod.cli.train import explained

__all__ = ["EXAMPLES", "EXIT_CODES", "reproduce"]

EXAMPLES = """
Examples:

  gdod reproduce all --quick

  gdod reproduce table2 table5 --data-folder data

  gdod reproduce study --data-folder data --seeds 5 --jobs 4

  gdod reproduce front --data-folder data

  gdod reproduce front-drugs --data-folder data

  gdod reproduce front-questions --data-folder data
"""


def reproduce(
    what: Annotated[
        list[str] | None,
        typer.Argument(help="all, study, front, or names: table1 ... table5, figure3 ... figure6, parts of the study."),
    ] = None,
    data_folder: Annotated[
        Path | None, typer.Option(help="Folder with book-crossing/, ijcai15/ and census-income-kdd/.")
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="How many, from 0 on. (default: 5)")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A few steps of everything, in minutes.")] = False,
    jobs: Annotated[int | None, typer.Option(min=1, help="Runs at a time. (default: as many as cores)")] = None,
    pages_only: Annotated[bool, typer.Option("--pages-only", help="Write pages from the runs that are there.")] = False,
    out: Annotated[Path, typer.Option(help="Folder for runs and pages.")] = Path("reproduction"),
    names: Annotated[bool, typer.Option("--list", help="Only list what there is.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the pages' paths as JSON.")] = False,
    quiet: Quiet = False,
) -> None:
    """Run the paper's tables and figures, and lay the outcome beside the printed figures.

    Data sets that are not there are replaced by simulated ads, and the pages say so. Finished runs are never
    repeated: after an interruption, give the same command again.
    """
    with explained():
        from rich.console import Console

        from gdod.experiments.paper.fronts import FRONT, TITLE
        from gdod.experiments.paper.questions import QUESTIONS_NAME
        from gdod.experiments.paper.questions import TITLE as QUESTIONS_TITLE
        from gdod.experiments.paper.reproduce import EXPERIMENTS, chosen
        from gdod.experiments.paper.reproduce import reproduce as run
        from gdod.experiments.watch import ShownRuns, Watch

        if names:
            for one in EXPERIMENTS.values():
                typer.echo(f"{one.name:12} {one.title}")
            typer.echo(f"{FRONT:12} {TITLE}")
            typer.echo(f"{QUESTIONS_NAME} {QUESTIONS_TITLE}")
            return
        chosen(what or [])
        console = Console(stderr=as_json)
        with stopping_told():
            done = run(
                what or [],
                out,
                data_folder=data_folder,
                seeds=seeds,
                quick=quick,
                processes=jobs,
                watch=Watch() if quiet else ShownRuns(console),
                command=["gdod", *sys.argv[1:]],
                run=not pages_only,
            )
        if as_json:
            pages = {name: str(path) for name, path in done.pages.items()}
            typer.echo(json.dumps({"pages": pages, "failed": done.failed}))
        else:
            for path in done.pages.values():
                console.print(str(path), highlight=False, markup=False, soft_wrap=True)
        end(done.failed)
