"""A rank that fails, dies or hangs ends the whole job, with an error that says so."""

from pathlib import Path

import pytest
from tests.rows.distributed.launch import torchrun

FAILING = Path(__file__).with_name("failing.py")


@pytest.mark.parametrize(
    ("way", "words"),
    [
        pytest.param("raises", ["ValueError: this rank had enough"], marks=pytest.mark.slow),
        pytest.param("dies", ["exitcode  : 17"], marks=pytest.mark.slow),
        ("breaks", ["the backward pass broke", "gdod.backward failed on another rank: rank 1: RuntimeError"]),
        pytest.param("leaves", ["lost the others in gdod.backward"], marks=pytest.mark.slow),
        pytest.param("hangs", ["lost the others in gdod.backward", "hangs"], marks=pytest.mark.slow),
    ],
)
def test_the_job_ends_with_the_error_of_the_rank(way: str, words: list[str]) -> None:
    done = torchrun(FAILING, way, ranks=2, timeout=120)
    assert done.returncode != 0
    for word in words:
        assert word in done.stderr, done.stderr[-4000:]
