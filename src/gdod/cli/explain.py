"""`gdod explain`: which columns of a table matter to a run, which experts its tasks use, and where they conflict."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gdod.cli.options import AsJson, Quiet
from gdod.cli.predict import Device, RunFolder, TableFile, Threads
from gdod.cli.terminal import say, screen
from gdod.cli.train import explained

if TYPE_CHECKING:
    from gdod.report.tables import TextTable
    from gdod.training.explain import Conflict, Entries, ExpertUse, Importance

EXAMPLES = """
Examples:

  gdod explain runs/clicks labelled.csv

  gdod explain runs/clicks labelled.parquet --rows 50000 --repeats 10 --out why

  gdod explain runs/clicks new.csv --only experts
"""
_SHOWN = 10  # columns of each task on the screen; the files have all


def explain(
    run: RunFolder,
    data: TableFile,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of tables and pictures. (default: the run's, where gdod report finds them)"),
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="importance, experts or conflict; all that the run has without it.")
    ] = None,
    rows: Annotated[int, typer.Option(min=2, help="The first so many rows of the table.")] = 10_000,
    repeats: Annotated[int, typer.Option(min=2, help="How often each column is shuffled.")] = 5,
    batches: Annotated[int, typer.Option(min=1, help="Of how many batches gradients are compared.")] = 20,
    seed: Annotated[int, typer.Option(min=0, help="Seed of shuffles and batches.")] = 0,
    device: Device = "cpu",
    threads: Threads = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Tell which columns matter to a run's tasks, which experts they use, and in which layers their gradients conflict.

    Writes tables (CSV), pictures (PNG), and explanation.json, from which gdod report makes its page.
    """
    with explained():
        import torch

        from gdod._checks import check_choice
        from gdod._files import check_writable, make_folder
        from gdod.errors import InputError
        from gdod.training import load_run
        from gdod.training.explain import PARTS, Settings, keep, read_rows, tell, tellable

        for name in only or ():
            check_choice("--only", name, PARTS)
        if out is not None and (out.is_file() or out.suffix in (".csv", ".png", ".json")):
            raise InputError(f"--out {out} is a file; expected a folder, for tables and pictures")
        if threads is not None:
            torch.set_num_threads(threads)
        loaded, folder = load_run(run, device=device), out or run
        check_writable(folder)
        frame, settings = read_rows(loaded, data, rows), Settings(repeats, batches, seed)
        parts, notes = tellable(loaded, frame, only or ())
        make_folder(folder)
        files: dict[str, list[str]] = {}
        found: dict[str, Entries] = {}
        for part in parts:
            with _progress(quiet) as told:
                found[part] = tell(part, loaded, frame, settings, told)
            # Each part at once: what is worked out already stays if the rest is stopped.
            files[part] = _write(folder, part, found[part])
            keep(folder, loaded, data, len(frame), settings, part, found[part])
            if not as_json:
                screen().print(_shown(part, found[part]))
        if as_json:
            entries = {part: [asdict(one) for one in several] for part, several in found.items()}
            typer.echo(json.dumps({"rows": len(frame), "files": files, **entries, "notes": notes}, indent=2))
            return
        say("\n".join([*notes, f"{len(frame):,} rows", *(name for two in files.values() for name in two)]))


@contextmanager
def _progress(quiet: bool) -> Iterator[Callable[[str], object]]:
    console = screen(stderr=True)
    if quiet or not console.is_terminal:
        yield lambda text: None
        return
    from rich.text import Text

    from gdod._checks import visible

    with console.status("explaining") as status:
        yield lambda text: status.update(Text(visible(text)))  # names of columns are no markup


def _write(folder: Path, part: str, found: "Entries") -> list[str]:
    """Write the table and the picture of a part, and return where they are."""
    from gdod._files import write_text
    from gdod.experiments.explanation_plots import draw_explanation
    from gdod.report.tables import TextTable, as_csv

    table, picture = folder / f"{part}.csv", folder / f"{part}.png"
    lines = [asdict(one) for one in found]
    write_text(table, as_csv(TextTable.of_values(lines[0], [line.values() for line in lines])))
    draw_explanation(found, picture)
    return [str(table), str(picture)]


def _shown(part: str, found: "Entries") -> Any:
    from gdod.report.tables import as_terminal

    tables: dict[str, Callable[[Any], TextTable]] = {
        "importance": _importance_table,
        "experts": _experts_table,
        "conflict": _conflict_table,
    }
    return as_terminal(tables[part](found), frame="box")


def _importance_table(found: "Sequence[Importance]") -> "TextTable":
    from gdod.report.tables import Cell, Column, TextTable

    columns = [Column("task", numeric=False), Column("column", numeric=False)]
    columns += [Column("loses"), Column("95 % interval"), Column("of", numeric=False)]
    lines = []
    for task in dict.fromkeys(one.task for one in found):
        for one in [each for each in found if each.task == task][:_SHOWN]:
            metric = f"{one.metric.replace('_', ' ')} {one.value:.4f}"
            texts = (one.task, one.column, f"{one.importance:.4f}", f"{one.low:.4f} to {one.high:.4f}", metric)
            lines.append([Cell(text) for text in texts])
    return TextTable(columns, lines)


def _experts_table(found: "Sequence[ExpertUse]") -> "TextTable":
    from gdod.report.tables import Cell, Column, TextTable

    columns = [Column("level"), Column("branch", numeric=False), Column("uses most", numeric=False), Column("weight")]
    columns += [Column("± over rows")]
    lines = []
    for level, branch in dict.fromkeys((one.level, one.branch) for one in found):
        own = [one for one in found if (one.level, one.branch) == (level, branch)]
        for one in sorted(own, key=lambda one: -abs(one.weight))[:3]:
            texts = (str(level), branch, one.expert, f"{one.weight:.3f}", f"{one.deviation:.3f}")
            lines.append([Cell(text) for text in texts])
    return TextTable(columns, lines)


def _conflict_table(found: "Sequence[Conflict]") -> "TextTable":
    from gdod.report.tables import Cell, Column, TextTable

    columns = [Column("layer", numeric=False), Column("most conflict", numeric=False), Column("cosine, 95 %")]
    columns += [Column("energy kept"), Column("directions kept")]
    lines = []
    for layer in dict.fromkeys(one.layer for one in found):
        one = min((each for each in found if each.layer == layer), key=lambda each: each.cosine)
        cosine = f"{one.cosine:.3f} ± {(one.high - one.low) / 2:.3f}"
        texts = (layer, f"{one.task}, {one.other}", cosine, f"{one.energy_kept:.3f}", f"{one.directions_kept:.3f}")
        lines.append([Cell(text) for text in texts])
    return TextTable(columns, lines)
