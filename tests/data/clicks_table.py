"""A small table of clicks that the tests of the data room share."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import polars as pl

from gdod.data import TableSchema

COLUMNS = {
    "id": "ignore",
    "user": "categorical",
    "city": {"type": "categorical", "rare": 2},
    "age": "numeric",
    "seen": {"type": "sequence", "longest": 4},
    "day": "ignore",
    "click": "label",
    "buy": {"type": "label", "when": "click"},
}
SCHEMA = TableSchema(columns=COLUMNS)
WITHOUT_TEST = {"by": "random", "validation": 0, "test": 0}


def clicks(rows: int = 600, seed: int = 0) -> pl.DataFrame:
    draw = np.random.default_rng(seed)
    click = draw.integers(0, 2, rows)
    return pl.DataFrame(
        {
            "id": np.arange(rows),
            "user": draw.integers(1, 40, rows),
            "city": [("rome", "oslo", None)[at] for at in draw.integers(0, 3, rows)],
            "age": pl.Series(draw.normal(40, 12, rows).round(1)).set(pl.Series(draw.random(rows) < 0.1), None),
            "seen": [" ".join(map(str, draw.integers(1, 20, draw.integers(0, 7)))) for _ in range(rows)],
            "day": [f"2024-03-{1 + 30 * at // rows:02d}" for at in range(rows)],
            "click": click,
            "buy": click * draw.integers(0, 2, rows),
        }
    )


def write(folder: Path, frame: pl.DataFrame | None = None, name: str = "clicks.csv") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    (clicks() if frame is None else frame).write_csv(path)
    return path


def schema(split: Mapping[str, object] | None = None, **columns: object) -> TableSchema:
    """Return the schema of the clicks, with some columns or the split changed; None takes a column out."""
    changed = {name: kind for name, kind in {**COLUMNS, **columns}.items() if kind is not None}
    return TableSchema(columns=changed, split=split or {"by": "random"})
