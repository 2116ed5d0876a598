"""Drug consumption: its file as it is published, twelve labels, and nothing of a label among the features."""

from pathlib import Path

import polars as pl
import pytest
from tests.data.real import real

import gdod
from gdod.data.sets.drugs import PERSON, SUBSTANCES, TASKS, DrugConsumption


def line(number: int, use: str = "CL0", first: str = "0.5") -> str:
    return ",".join([str(number), first, *["-0.25"] * 11, *[use] * len(SUBSTANCES)])


def put(folder: Path, *lines: str) -> Path:
    (folder / "drug_consumption.data").write_text("\n".join(lines) + "\n")
    return folder


def test_labels_are_use_within_the_last_year(tmp_path: Path) -> None:
    raw = DrugConsumption().read(put(tmp_path, *(line(at, f"CL{at}") for at in range(7))), {})
    assert isinstance(raw.train, pl.DataFrame)
    assert raw.test is None
    assert raw.train.columns == [*PERSON, *TASKS]
    assert len(PERSON) == len(TASKS) == 12
    for task in TASKS:
        assert raw.train[task].to_list() == [0, 0, 0, 1, 1, 1, 1]
    assert any("as published there are 1,885" in note for note in raw.notes)


def test_bad_rows_are_counted(tmp_path: Path) -> None:
    lines = [line(1), line(2, first="?"), line(3, use="CL9"), line(4, use="CL4")]
    raw = DrugConsumption().read(put(tmp_path, *lines), {})
    assert isinstance(raw.train, pl.DataFrame)
    assert len(raw.train) == 2
    assert "left out 2 bad rows" in raw.notes[0]
    assert "the first is line 2" in raw.notes[0]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["1,2,3"], "has 3 fields a line; expected 32 fields"),
        ([line(1, "CL7")], "no sound row among its 1 lines"),
        ([], "has 1 fields a line; expected 32"),
    ],
)
def test_another_file_is_refused(lines: list[str], said: str, tmp_path: Path) -> None:
    with pytest.raises(gdod.InputError, match=said):
        DrugConsumption().read(put(tmp_path, *lines), {})


def test_it_has_no_options(tmp_path: Path) -> None:
    with pytest.raises(gdod.InputError, match="tasks"):
        DrugConsumption().schema({"tasks": 3})


def test_the_real_file() -> None:
    raw = DrugConsumption().read(real("drug-consumption"), {})
    assert isinstance(raw.train, pl.DataFrame)
    assert len(raw.train) == 1885
    assert raw.notes == ()
    assert raw.train["Cannabis"].sum() == 999
