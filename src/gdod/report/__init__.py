"""Runs and comparisons as one HTML page, Markdown and CSV. Reads the JSON of run folders and nothing else.

write_report([Path("runs/first"), Path("comparison")], Path("report.html"))
"""

from collections.abc import Sequence
from pathlib import Path

from gdod._checks import nearest
from gdod._files import write_text
from gdod.errors import InputError
from gdod.report.page import page
from gdod.report.result_tables import result_tables, run_table, to_csv, to_markdown
from gdod.report.runs import Collection, RunRecord, collect, read_run
from gdod.report.study import Setting, Study, of_method, studies
from gdod.report.tables import Cell, Column, TextTable, heading


def write_report(
    paths: Sequence[Path],
    out: Path,
    *,
    markdown: Path | None = None,
    csv: Path | None = None,
    baseline: str | None = None,
) -> Path:
    """Read run or comparison folders, write the page, and return where it is.

    Args:
        paths: run folders, comparison folders, or folders of these.
        markdown: where to write the tables as Markdown, too.
        csv: where to write every figure as CSV, too.
        baseline: the method that others are compared with; else that of the comparison, or "sum".
    """
    loaded = load_studies(paths, baseline=baseline)
    texts = {out: page(loaded)}
    if markdown is not None:
        texts[markdown] = markdown_tables(loaded)
    if csv is not None:
        texts[csv] = to_csv(loaded)
    if len(texts) < 1 + (markdown is not None) + (csv is not None):
        raise InputError("the page, the Markdown and the CSV have the same path; expected different ones")
    for path, text in texts.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_text(path, text)
        except OSError as error:
            raise InputError(f"{path} cannot be written: {error.strerror}; choose another place") from error
    return out


def load_studies(paths: Sequence[Path], *, baseline: str | None = None) -> tuple[Study, ...]:
    """Return the runs in these folders, put together by data set."""
    loaded = studies(collect([Path(path) for path in paths]), baseline)
    if baseline is not None and not any(of_method(study.settings, baseline) for study in loaded):
        methods = sorted({setting.method for study in loaded for setting in study.settings})
        raise InputError(
            f"baseline={baseline!r} is not among the methods that were run: {', '.join(methods)}"
            f"{nearest(baseline, methods)}"
        )
    return loaded


def markdown_tables(studies: Sequence[Study]) -> str:
    """Return all tables of the studies in Markdown."""
    parts = []
    for study in studies:
        parts += [f"## {heading(study.name)}\n", to_markdown([*result_tables(study), run_table(study)])]
    return "\n".join(parts)


__all__ = [
    "Cell",
    "Collection",
    "Column",
    "RunRecord",
    "Setting",
    "Study",
    "TextTable",
    "collect",
    "load_studies",
    "markdown_tables",
    "read_run",
    "result_tables",
    "run_table",
    "studies",
    "to_csv",
    "to_markdown",
    "write_report",
]
