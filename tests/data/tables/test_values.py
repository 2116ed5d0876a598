"""Cells become text and numbers, with null for "no value", however a column is stored."""

import polars as pl
import pytest

from gdod import InputError
from gdod.data.tables.values import Origin, finite_numbers, numbers, plain_numbers, text

MISSING = ("", "NA", "-1")


def test_text_is_the_same_however_a_number_was_written() -> None:
    cells = pl.Series("x", [" a ", "1.0", "-1.0", " -1", "NA", "", None, "2.50", "x.0"])
    assert text(cells, MISSING).to_list() == ["a", "1", None, None, None, None, None, "2.50", "x.0"]
    assert text(cells, MISSING).name == "x"
    without_a_dot = pl.Series("x", [" a ", "-1 ", None])
    assert text(without_a_dot, MISSING).to_list() == ["a", None, None]
    assert text(pl.Series("x", [1.0, 2.5, None, float("nan")]), MISSING).to_list() == ["1", "2.5", None, None]


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["1", "2.5", None], [1.0, 2.5, None]),
        (["1", "-1", "-1.0"], [1.0, None, None]),  # what means "no value" may be a number itself
        ([" 1 ", "NA", ""], [1.0, None, None]),
        (["1", "nan", "inf"], [1.0, None, float("inf")]),
        ([None, None], [None, None]),
    ],
    ids=str,
)
def test_numbers_from_text(cells: list[str | None], expected: list[float | None]) -> None:
    column = pl.Series("x", cells, dtype=pl.String)
    assert numbers(column, MISSING, Origin()).to_list() == expected
    finite = [None if value == float("inf") else value for value in expected]
    assert finite_numbers(column, MISSING, Origin()).to_list() == finite


def test_numbers_from_numbers() -> None:
    column = pl.Series("x", [1.0, float("nan"), float("-inf"), None])
    assert numbers(column, MISSING, Origin()).to_list() == [1.0, None, float("-inf"), None]
    assert finite_numbers(column, MISSING, Origin()).to_list() == [1.0, None, None, None]
    assert finite_numbers(pl.Series("x", [3, None]), MISSING, Origin()).to_list() == [3.0, None]


def test_other_text_is_refused_with_its_row() -> None:
    with pytest.raises(InputError, match=r"row 2: column 'x' is 'b'; expected a number \(and 1 more such rows\)"):
        numbers(pl.Series("x", ["1", "b", "c"]), MISSING, Origin())


@pytest.mark.parametrize(
    ("options", "cells", "expected"),
    [
        (
            {"thousands": ","},
            ["1,234", "1,234,567.5", "12", "1,23", "1,2345", ",123"],
            [1234, 1234567.5, 12, *[None] * 3],
        ),
        ({"decimal": ","}, ["1,5", "-2", "1.5", "1,5,5"], [1.5, -2, None, None]),
        ({"decimal": ",", "thousands": "."}, ["1.234,5", "1.234", "1.23"], [1234.5, 1234, None]),
        ({"thousands": " "}, ["1 234", "1 23"], [1234, None]),
    ],
    ids=str,
)
def test_forms_of_numbers(options: dict[str, str], cells: list[str], expected: list[float | None]) -> None:
    assert plain_numbers(pl.Series(cells), **options).to_list() == expected
