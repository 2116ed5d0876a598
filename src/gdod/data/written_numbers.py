"""Tell how the numbers of a column are written, and which of its values are none."""

from dataclasses import dataclass
from typing import Any

import polars as pl

from gdod.data.tables.values import plain_numbers

# Of the rows, so many may hold something else: a column of numbers with a slip in it is still one.
_SLIPS = 0.05
_MOST_SLIPS = 20  # different ones

_FORMS: tuple[dict[str, str], ...] = ({}, {"thousands": ","}, {"decimal": ","}, {"decimal": ",", "thousands": "."})


@dataclass(frozen=True)
class WrittenNumbers:
    """The numbers among the different values of a column."""

    values: pl.Series
    """The numbers, finite or not; null for a value that is none. [values]"""
    form: dict[str, str]
    """The keys `decimal` and `thousands` of the schema, as far as they are needed."""
    slips: tuple[str, ...]
    """The values that are no numbers, the most frequent first."""
    slipped: int
    """The number of rows with such a value."""

    @property
    def known(self) -> pl.Series:
        return self.values.drop_nulls()

    @property
    def finite(self) -> pl.Series:
        return self.known.filter(self.known.is_finite())

    @property
    def options(self) -> dict[str, Any]:
        """The keys of a numeric column in the schema."""
        return {**self.form, **({"missing": list(self.slips)} if self.slips else {})}

    @property
    def note(self) -> str:
        """What does not fit, and in how many rows; nothing if all does."""
        if not self.slips:
            return ""
        others = f" and {len(self.slips) - 1} more" if len(self.slips) > 1 else ""
        return f"no number in {self.slipped:,} row{'s' * (self.slipped != 1)} ({self.slips[0]!r}{others})"


def written_numbers(counts: pl.DataFrame, few: int) -> WrittenNumbers | None:
    """Return the numbers of a column, in the form that fits most rows; None if it is no column of numbers.

    Args:
        counts: the columns "value" (text) and "count" (rows), the most frequent value first.
        few: with at most so many different numbers, any other value makes it a column of names.
    """
    best: WrittenNumbers | None = None
    for form in _FORMS:
        values = plain_numbers(counts["value"], **form)
        others = counts.filter(values.is_null())
        slipped = int(others["count"].sum())
        if best is None or slipped < best.slipped:
            best = WrittenNumbers(values, form, tuple(others["value"]), slipped)
        if not slipped:
            break
    if best is None or not len(best.known):
        return None
    rows = int(counts["count"].sum())
    fine = not best.slips or (
        best.slipped <= _SLIPS * rows and len(best.slips) <= _MOST_SLIPS and best.known.n_unique() > few
    )
    return best if fine else None
