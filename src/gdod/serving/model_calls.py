"""Predict the rows of several requests in one call of the model, each request as if it were alone."""

from collections.abc import Sequence

import polars as pl

from gdod.data.tables.read import Chunk
from gdod.data.tables.values import Origin
from gdod.serving.json_rows import WHERE, Table, frame_of, together
from gdod.training.predict import Observer, predict_chunk
from gdod.training.run import Run

Predictions = list[dict[str, float]]
"""One object a row: probabilities and numbers by the names of the columns that `gdod predict` writes."""


def predict_tables(
    run: Run, tables: Sequence[Table], observer: Observer | None = None
) -> list[Predictions | Exception]:
    """Return the predictions of each table, or why there are none: an InputError, or what a defect raised.

    Tables whose columns have the same types go through the model together. If that fails, each goes alone, so that the
    error is told to the request that it belongs to, with the numbers of its own rows.
    """
    answers: dict[int, Predictions | Exception] = {}
    for places in together(tables):
        some = [tables[at] for at in places]
        try:
            answers |= zip(places, _predict(run, some, observer), strict=True)
        except (Exception, pl.exceptions.PanicException) as error:
            if len(some) == 1:
                answers[places[0]] = error if isinstance(error, Exception) else RuntimeError(f"Polars: {error}")
            else:
                answers |= {at: predict_tables(run, [tables[at]], observer)[0] for at in places}
    return [answers[at] for at in range(len(tables))]


def _predict(run: Run, tables: Sequence[Table], observer: Observer | None = None) -> list[Predictions]:
    predicted = predict_chunk(run, Chunk(frame_of(tables), Origin(WHERE)), observer=observer)
    names, rows = predicted.columns, iter(predicted.rows())
    return [[dict(zip(names, next(rows), strict=True)) for _ in range(table.rows)] for table in tables]
