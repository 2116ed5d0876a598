"""Turn rows of JSON into tables, so that they are predicted as those of a file are."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from gdod.data.tables.table_schema import NumericColumn
from gdod.data.tables.values import text
from gdod.errors import InputError
from gdod.training.predict import check_columns
from gdod.training.run import Run

WHERE = "the table"
"""What errors and notes call the rows of a request, as they do a table in memory."""
_FORM = 'expected {"rows": [{"column": value, ...}, ...]}'
_MOST_OTHERS = 100  # names of columns that are not used, among which the one that was meant is looked for
_EXACT = 2**53  # up to here float64 holds every whole number

Kind = type[pl.DataType] | pl.DataType
Row = dict[str, Any]


@dataclass(frozen=True)
class Column:
    """The values of a column in some rows, all of one type."""

    kind: Kind | None
    """The type; None: there is no value at all, so that it may be any."""
    values: list[Any]


@dataclass(frozen=True)
class Table:
    """The rows of one request: all columns that the run's model takes, those that were not given without values."""

    columns: dict[str, Column]
    rows: int
    notes: tuple[str, ...]
    """Remarks on columns that are missing, as `gdod predict` makes them."""


def rows_of(body: bytes) -> list[Row]:
    """Return the rows in the body of a request."""
    try:
        content = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InputError(f"the body is no JSON ({error}); {_FORM}") from error
    if not isinstance(content, dict):
        raise InputError(f"the body is {_named(content)}; {_FORM}")
    if "rows" not in content or len(content) > 1:
        others = ", ".join(repr(name) for name in list(content)[:5]) or "nothing"
        raise InputError(f"the body holds {others}; {_FORM}")
    rows = content["rows"]
    if not isinstance(rows, list):
        raise InputError(f"rows is {_named(rows)}; {_FORM}")
    for at, row in enumerate(rows):
        if not isinstance(row, dict):
            raise InputError(f"row {at + 1} is {_named(row)}; {_FORM}")
    return rows


def _named(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "a truth value", type(None): "null"}
    return names.get(type(value), "a number")


def table_of(run: Run, rows: Sequence[Row]) -> Table:
    """Return rows as a table; raise for what no table can hold, and if none of the run's columns is there."""
    inputs, columns = run.encoder.inputs, run.encoder.table_schema.columns
    given = dict.fromkeys(name for row in rows for name in row)
    others = [name for name in given if name not in inputs][:_MOST_OTHERS]
    notes = check_columns(run, [*(name for name in inputs if name in given), *others], WHERE) if rows else ()
    return Table(
        {name: _column(name, rows, numeric=isinstance(columns.get(name), NumericColumn)) for name in inputs},
        len(rows),
        notes,
    )


def _column(name: str, rows: Sequence[Row], *, numeric: bool) -> Column:
    values = [row.get(name) for row in rows]
    if not any(isinstance(value, list | dict) for value in values):
        return _scalars(values, numeric=numeric)
    for at, value in enumerate(values):
        inner = value if isinstance(value, list) else [value]
        if any(isinstance(one, list | dict) for one in inner):
            raise InputError(
                f"{WHERE}, row {at + 1}: column {name!r} is {json.dumps(value)[:100]}; expected text, a number, true, "
                "false or null, or a list of them"
            )
    return _lists(name, values)


def _lists(name: str, values: list[Any]) -> Column:
    if single := [value for value in values if value is not None and not isinstance(value, list)]:
        raise InputError(
            f"{WHERE}: column {name!r} holds lists, and in other rows {json.dumps(single[0])[:100]}; expected lists in "
            "all rows of a request, or in none"
        )
    inner = _scalars([one for value in values for one in value or ()])
    flat = iter(inner.values)
    lists = [None if value is None else [next(flat) for _ in value] for value in values]
    return Column(pl.List(inner.kind or pl.String), lists)


def _scalars(values: list[Any], *, numeric: bool = False) -> Column:
    """Return values as the type that a Parquet file would have for them, or as text, as in a CSV file, if they differ.

    Of a numeric column all numbers are of one type, so that 1 and 1.5 fit into one table.
    """
    types = {type(value) for value in values} - {type(None)}
    if numeric and types & {int, bool}:
        values = [_number(value) if isinstance(value, int) else value for value in values]
        types = types - {int, bool} | {float}
    if len(types) < 2 and int not in types:
        return Column(_KINDS[types.pop()] if types else None, values)
    if types == {int} and all(value is None or -(2**63) <= value < 2**63 for value in values):
        return Column(pl.Int64, values)
    if types == {int, float} and all(not isinstance(value, int) or abs(value) <= _EXACT for value in values):
        return Column(pl.Float64, [None if value is None else float(value) for value in values])
    return Column(pl.String, _texts(values))


_KINDS: dict[type, Kind] = {str: pl.String, float: pl.Float64, bool: pl.Boolean}


def _number(value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _texts(values: list[Any]) -> list[str | None]:
    """Return values of several types as text, each written as `text` writes a column of its type."""
    floats = iter(text(pl.Series([one for one in values if isinstance(one, float)], dtype=pl.Float64), ()))
    words = {None: None, True: "true", False: "false"}
    return [
        next(floats)
        if isinstance(value, float)
        else words[value]
        if value is None or isinstance(value, bool)
        else str(value)
        for value in values
    ]


def together(tables: Sequence[Table]) -> list[list[int]]:
    """Return which tables can be one, as lists of their places: those whose columns have the same types.

    So a request gets the same answer whatever others it is answered with.
    """
    groups: list[tuple[dict[str, Kind | None], list[int]]] = []
    for at, table in enumerate(tables):
        own = {name: column.kind for name, column in table.columns.items()}
        for kinds, places in groups:
            if all(kind is None or kinds[name] is None or kinds[name] == kind for name, kind in own.items()):
                kinds.update({name: kind for name, kind in own.items() if kind is not None})
                places.append(at)
                break
        else:
            groups.append((own, [at]))
    return [places for _, places in groups]


def frame_of(tables: Sequence[Table]) -> pl.DataFrame:
    """Return the rows of tables that `together` put together, one after the other."""
    columns = []
    for name in tables[0].columns:
        parts = [table.columns[name] for table in tables]
        kind = next((part.kind for part in parts if part.kind is not None), pl.String)
        try:
            columns.append(pl.Series(name, [value for part in parts for value in part.values], dtype=kind))
        except UnicodeError as error:
            raise InputError(f"column {name!r} of {WHERE} holds text that is no Unicode: {error}") from error
    return pl.DataFrame(columns)
