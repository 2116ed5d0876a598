"""Several real processes give every rank the gradient of one process with the whole batch."""

import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from tests.rows.distributed.cases import CASES, TRAINING
from tests.rows.distributed.launch import torchrun

WORKER = Path(__file__).with_name("worker.py")
Found = list[dict[str, dict[str, object]]]


@cache
def results(ranks: int, names: tuple[str, ...]) -> Found:
    """What each rank says about each case; one launch for all."""
    with TemporaryDirectory() as folder:
        done = torchrun(WORKER, folder, *names, ranks=ranks)
        last = [file.read_text() for file in sorted(Path(folder).glob("case-*"))]
        assert done.returncode == 0, f"the ranks were at {last}\n{done.stderr[:8000]}\n...\n{done.stderr[-4000:]}"
        return [json.loads((Path(folder) / f"rank-{rank}.json").read_text()) for rank in range(ranks)]


def check(found: Found, name: str) -> None:
    problems = [f"rank {rank}: {cases[name]['problem']}" for rank, cases in enumerate(found) if cases[name]["problem"]]
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_as_in_one_process(ranks: int, name: str) -> None:
    check(results(ranks, tuple(CASES)), name)


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAINING)
@pytest.mark.parametrize("ranks", [2, 4])
def test_hundreds_of_steps_stay_together(ranks: int, name: str) -> None:
    check(results(ranks, tuple(TRAINING)), name)
