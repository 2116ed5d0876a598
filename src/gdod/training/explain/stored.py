"""`explanation.json`: what was worked out about a run, for its report if it lies in the run's folder."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from gdod._files import try_read_json, write_json
from gdod.training.explain.layers import Conflict
from gdod.training.explain.whole import PARTS, Entries, Settings
from gdod.training.run import Run

FILE = "explanation.json"


def keep(folder: Path, run: Run, table: str, rows: int, settings: Settings, part: str, entries: Entries) -> None:
    """Write a part of a run's explanation, beside the parts that are there already.

    Args:
        folder: where the file lies.
        run: the run.
        table: the name of the table.
        rows: how many of its rows were used.
        settings: how the run was explained.
        part: "importance", "experts" or "conflict".
        entries: what was found.
    """
    path = folder / FILE
    known = try_read_json(path)[0] or {}  # a damaged file is written anew
    whole = {name: known[name] for name in PARTS if name in known}
    how: dict[str, Any] = {"table": table, "rows": rows, "step": run.step}
    if part == "importance":
        how |= {"seed": settings.seed, "repeats": settings.repeats}
    elif part == "experts":
        how["members"] = run.model.config.ensemble
    else:
        batches = max(one.batches for one in entries if isinstance(one, Conflict))
        how |= {"seed": settings.seed, "batches": batches, "batch": min(run.config.batch, rows)}
    write_json(path, {**whole, part: {**how, "entries": [asdict(one) for one in entries]}})
