"""Rows of JSON as tables, and requests that are answered together, in this process."""

import asyncio
import json
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import Any

import polars as pl
import pytest
import torch
from tests.serving.running import COLUMNS, table, trained

from gdod import InputError
from gdod.schema import Batch
from gdod.serving.application import Application, Limits
from gdod.serving.example import example_row
from gdod.serving.json_rows import Table, frame_of, table_of, together
from gdod.serving.model_calls import predict_tables
from gdod.training import Run, load_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return load_run(trained(tmp_path_factory.mktemp("calls")))


def tables(run: Run, *requests: list[dict[str, Any]]) -> list[Table]:
    return [table_of(run, rows) for rows in requests]


def test_a_request_gets_the_same_answer_whatever_it_is_answered_with(run: Run) -> None:
    whole = table(3, seed=9).select(COLUMNS).to_dicts()
    given = tables(
        run,
        whole,
        [{"age": 30, "city": "city1"}],
        [{"age": "31.5", "city": 7}],
        [{"age": None, "city": 7.5}],
        [{"age": "old", "city": "city1"}],
        [{"seen": ["item1", "item2", None]}, {"seen": []}],
        [{"seen": [1, 2]}, {"age": 1.5}],
        [{"age": [1.0]}],
        [{"city": "city1"}, {"city": 3}, {"city": True}, {"city": 2.0}, {"city": 1e-7}],
        [{"city": 2**60}, {"city": 1.5}],
        [{"at": "2024-05-03 12:00"}, {"at": None}],
        [{"at": 5}],
    )
    alone = [predict_tables(run, [one])[0] for one in given]
    assert [at for at, one in enumerate(alone) if isinstance(one, InputError)] == [4, 7, 11]
    for order in (range(len(given)), range(len(given) - 1, -1, -1)):
        answers = predict_tables(run, [given[at] for at in order])
        for at, got in zip(order, answers, strict=True):
            expected = alone[at]
            if isinstance(expected, Exception) or isinstance(got, Exception):
                assert str(got) == str(expected)
            else:
                assert list(got) == [pytest.approx(row, rel=1e-5) for row in expected]


def test_values_of_several_types_are_those_of_a_text_file(run: Run) -> None:
    mixed = ["city1", 3, True, 2.0, 1e-7, 0.5, None]
    texts = frame_of(tables(run, [{"city": value} for value in mixed]))["city"].to_list()
    assert texts == ["city1", "3", "true", "2", "1e-7", "0.5", None]
    assert frame_of(tables(run, [{"city": 2**60}, {"city": 1.5}]))["city"].to_list() == [str(2**60), "1.5"]
    numbers = frame_of(tables(run, [{"age": value} for value in (1, True, 2.5)]))["age"]
    assert numbers.equals(pl.Series([1.0, 1.0, 2.5]))
    assert frame_of(tables(run, [{"age": value} for value in (1, "2")]))["age"].to_list() == ["1", "2"]


def test_requests_of_the_usual_kinds_are_one_table(run: Run) -> None:
    usual = tables(run, [{"age": 1, "city": "a"}], [{"age": 1.5}], [{"city": None, "item": "b"}], [{"age": True}])
    assert together(usual) == [[0, 1, 2, 3]]
    odd = tables(run, [{"age": 1, "city": "a"}], [{"age": "1"}], [{"city": 3}], [{"age": 2, "city": "b"}])
    assert together(odd) == [[0, 3], [1, 2]]


def test_the_example_has_every_column_and_known_values(run: Run) -> None:
    row = example_row(run)
    assert list(row) == COLUMNS
    encoded = run.encoder.encode(frame_of(tables(run, [row])), labels=False)
    assert encoded.notes == ()
    assert (encoded.examples.categorical[:, :2] > 0).all()  # others are made of the time
    assert (encoded.examples.sequences[0][:, 0] > 0).all()


def test_a_request_that_takes_too_long_is_told_so(run: Run) -> None:
    status, content = asyncio.run(asked(run, [{"age": 1}], working=False, seconds=0.05))
    assert (status, content) == (504, {"error": "there was no answer within 0.05 s; send fewer rows"})


class Breaks(torch.nn.Module):
    """A model with a defect: it fails for some rows, and has no number for others."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model, self.tasks = model, model.tasks

    def forward(self, batch: Batch) -> dict[str, torch.Tensor]:
        if bool((batch.categorical[:, 0] == 1).any()):
            raise RuntimeError("broken")
        return {name: one * float("nan") for name, one in self.model(batch).items()}


def test_a_defect_harms_only_the_request_that_meets_it(run: Run) -> None:
    first = run.encoder.vocabularies["city"].values[0]
    broken = replace(run, model=Breaks(run.model))  # type: ignore[arg-type]
    got = predict_tables(broken, tables(run, [{"city": "Atlantis"}], [{"city": first}], [{"age": 1}]))
    assert isinstance(got[1], RuntimeError)
    assert [len(one) for one in (got[0], got[2]) if isinstance(one, list)] == [1, 1]
    status, content = asyncio.run(asked(broken, [{"city": first}]))
    assert (status, content) == (500, {"error": "a defect of the program: RuntimeError: broken"})
    status, content = asyncio.run(asked(broken, [{"age": 1}]))
    assert (status, content["predictions"][0]["paid"]) == (200, None)


async def asked(run: Run, rows: list[dict[str, Any]], *, working: bool = True, seconds: float = 10) -> tuple[int, Any]:
    """Return the answer of an application without a server; ``working``: with its model's thread."""
    application = Application(run, Limits(seconds=seconds))
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": json.dumps({"rows": rows}).encode(), "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/predict", "headers": [], "query_string": b""}
    async with application.batching.working() if working else nullcontext():
        with suppress(RuntimeError):  # a defect goes on to the server, after the answer
            await application.asgi()(scope, receive, send)
    return sent[0]["status"], json.loads(sent[1]["body"])
