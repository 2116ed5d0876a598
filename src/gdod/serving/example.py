"""A row that a run's model takes, to try a server with."""

from datetime import UTC, datetime
from math import expm1
from typing import Any

from gdod.data.preparing.scaling import Scaling
from gdod.data.preparing.time_fields import TimeFields
from gdod.data.tables.table_schema import NumericColumn, SequenceColumn
from gdod.training.run import Run

_MICROSECONDS = {"s": 1_000_000, "ms": 1_000, "us": 1}


def example_row(run: Run) -> dict[str, Any]:
    """Return a row with the most frequent value, the mean or the first time of each column, as JSON has them."""
    encoder = run.encoder
    row: dict[str, Any] = {}
    for name in encoder.table_schema.features:
        column = encoder.table_schema.columns[name]
        if isinstance(column, NumericColumn):
            row[name] = _usual(encoder.scalings[name])
        else:
            values = encoder.vocabularies[name].values
            row[name] = values[:1].to_list() if isinstance(column, SequenceColumn) else next(iter(values), None)
    for fields in encoder.added.times if encoder.added is not None else ():
        row[fields.column] = _first(fields)
    return row


def _usual(scaling: Scaling) -> float:
    mean = expm1(scaling.mean) if scaling.scale == "log" and 0 < scaling.mean < 100 else scaling.mean
    return float(f"{mean:.4g}")


def _first(fields: TimeFields) -> str | int:
    if fields.unit is not None:
        return fields.first // _MICROSECONDS[fields.unit]
    moment = datetime.fromtimestamp(fields.first // 1_000_000, UTC)
    return moment.strftime(fields.format or "%Y-%m-%d %H:%M:%S")
