"""Census-Income (KDD): its files as they are published, six labels, nothing of a label among the features."""

import gzip
import io
import tarfile
import zipfile
from pathlib import Path

import polars as pl
import pytest
from tests.data.real import real

import gdod
from gdod.data.sets.census import COLUMNS, LABELS, CensusIncome

ROW = (
    "73, Not in universe, 0, 0, High school graduate, 0, Not in universe, Widowed, Not in universe or children, "
    "Not in universe, White, All other, Female, Not in universe, Not in universe, Not in labor force, 0, 0, 0, "
    "Nonfiler, Not in universe, Not in universe, Other Rel 18+ ever marr not in subfamily, "
    "Other relative of householder, 1700.09, ?, ?, ?, Not in universe under 1 year old, ?, 0, Not in universe, "
    "United-States, United-States, ?, Foreign born- Not a citizen of U S , 0, Not in universe, 2, 0, 95, - 50000."
)
OTHER = (
    ROW.replace("- 50000.", "50000+.")
    .replace("High school graduate", "Bachelors degree(BA AB BS)")
    .replace("Widowed", "Never married")
    .replace("Not in labor force", "Full-time schedules")
    .replace("Female", "Male")
    .replace("White", "Black")
)
SOME_COLLEGE = ROW.replace("High school graduate", "Some college but no degree")


def text(*rows: str) -> bytes:
    return ("\n".join(rows) + "\n").encode()


def put(folder: Path, train: bytes, test: bytes) -> Path:
    (folder / "census-income.data").write_bytes(train)
    (folder / "census-income.test").write_bytes(test)
    return folder


def test_labels_are_as_defined(tmp_path: Path) -> None:
    raw = CensusIncome().read(put(tmp_path, text(ROW, OTHER, SOME_COLLEGE), text(OTHER)), {})
    assert isinstance(raw.train, pl.DataFrame)
    names = [label.task for label in LABELS]
    assert names == ["income_over_50k", "never_married", "college", "full_time", "male", "white"]
    assert raw.train.select(names).rows() == [(0, 0, 0, 0, 0, 1), (1, 1, 1, 1, 1, 0), (0, 0, 0, 0, 0, 1)]
    assert raw.test is not None
    assert raw.test.select(names).rows() == [(1, 1, 1, 1, 1, 0)]


def test_college_can_mean_to_have_been_there(tmp_path: Path) -> None:
    raw = CensusIncome().read(put(tmp_path, text(ROW, OTHER, SOME_COLLEGE), text(ROW)), {"college": "attended"})
    assert isinstance(raw.train, pl.DataFrame)
    assert raw.train["college"].to_list() == [0, 1, 1]


def test_columns_that_define_a_label_are_no_features(tmp_path: Path) -> None:
    raw = CensusIncome().read(put(tmp_path, text(ROW), text(ROW)), {})
    gone = {"income", "marital_stat", "education", "full_or_part_time_employment_stat", "sex", "race"}
    assert gone.isdisjoint(raw.schema.columns)
    assert gone.isdisjoint(raw.train.collect_schema().names())
    assert len(raw.schema.columns) == len(COLUMNS)  # 36 features and 6 labels
    two = CensusIncome().read(tmp_path, {"tasks": 2})
    assert {"income", "marital_stat"}.isdisjoint(two.schema.columns)
    assert {"education", "sex", "race"} <= set(two.schema.columns)


def test_missing_values_and_spaces(tmp_path: Path) -> None:
    raw = CensusIncome().read(put(tmp_path, text(ROW), text(ROW)), {})
    assert isinstance(raw.train, pl.DataFrame)
    assert raw.train["country_of_birth_self"].to_list() == [None]
    assert raw.train["citizenship"].to_list() == ["Foreign born- Not a citizen of U S"]
    assert raw.train["instance_weight"].to_list() == [1700.09]


@pytest.mark.parametrize(("use", "kind"), [("feature", "numeric"), ("weight", "weight"), ("ignore", "ignore")])
def test_use_of_the_instance_weight(tmp_path: Path, use: str, kind: str) -> None:
    raw = CensusIncome().read(put(tmp_path, text(ROW), text(ROW)), {"instance_weight": use})
    assert raw.schema.columns["instance_weight"].type == kind


def test_bad_rows_and_other_row_counts_are_told(tmp_path: Path) -> None:
    short, no_number = ROW.split(", ", 1)[1], ROW.replace("73,", "old,", 1)
    raw = CensusIncome().read(put(tmp_path, text(ROW, short, no_number, OTHER), text(ROW)), {})
    assert isinstance(raw.train, pl.DataFrame)
    assert len(raw.train) == 2
    assert "census-income.data: left out 2 bad rows" in raw.notes[0]
    assert "line 2" in raw.notes[0]
    assert raw.notes[1] == "census-income.data: 2 rows; as published there are 199,523"


def test_the_archive_as_published(tmp_path: Path) -> None:
    inner = io.BytesIO()
    with tarfile.open(fileobj=inner, mode="w:gz") as tar:
        for name, rows in (("census-income.data", text(ROW, OTHER)), ("census-income.test", text(OTHER))):
            member = tarfile.TarInfo(name)
            member.size = len(rows)
            tar.addfile(member, io.BytesIO(rows))
    with zipfile.ZipFile(tmp_path / "census+income+kdd.zip", "w") as archive:
        archive.writestr("census.tar.gz", inner.getvalue())
    raw = CensusIncome().read(tmp_path, {})
    assert isinstance(raw.train, pl.DataFrame)
    assert raw.train["male"].to_list() == [0, 1]


def test_a_truncated_file_is_named(tmp_path: Path) -> None:
    put(tmp_path, text(ROW), text(ROW))
    (tmp_path / "census-income.data").unlink()
    (tmp_path / "census-income.data.gz").write_bytes(gzip.compress(text(*[ROW] * 50))[:-20])
    with pytest.raises(gdod.InputError, match=r"census-income\.data\.gz is cut short or corrupt"):
        CensusIncome().read(tmp_path, {})


def test_another_file_of_that_name_is_refused(tmp_path: Path) -> None:
    put(tmp_path, b"<html>not found</html>\n", text(ROW))
    with pytest.raises(gdod.InputError, match="no row of Census-Income among its 1 lines"):
        CensusIncome().read(tmp_path, {})


def test_wrong_options_and_folders_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = CensusIncome()
    put(tmp_path, text(ROW), text(ROW))
    with pytest.raises(gdod.InputError, match="did you mean 'instance_weight'"):
        source.read(tmp_path, {"instance_weigth": "feature"})
    with pytest.raises(gdod.InputError, match="expected 6, or 2"):
        source.read(tmp_path, {"tasks": 3})
    (tmp_path / "census-income.test").unlink()
    with pytest.raises(gdod.InputError, match=r"census-income\.test\.gz or the archive"):
        source.read(tmp_path, {})
    monkeypatch.setenv("GDOD_CACHE", str(tmp_path / "empty"))
    with pytest.raises(gdod.InputError, match="gdod data download census"):
        source.read(None, {})


def test_the_fingerprint_follows_files_and_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GDOD_CACHE", str(tmp_path / "cache"))
    source = CensusIncome()
    first = source.fingerprint(put(tmp_path, text(ROW), text(ROW)), {})
    assert first == source.fingerprint(tmp_path, {"tasks": 6})
    assert first != source.fingerprint(tmp_path, {"tasks": 2})
    assert first != source.fingerprint(tmp_path, {"college": "attended"})
    assert first != source.fingerprint(put(tmp_path, text(ROW), text(OTHER)), {})


def test_the_published_files() -> None:
    raw = CensusIncome().read(real("census-income-kdd"), {})
    assert isinstance(raw.train, pl.DataFrame)
    assert raw.test is not None
    assert (len(raw.train), len(raw.test)) == (199_523, 99_762)
    assert raw.notes == ()
    # Counted in the file with standard tools.
    assert [int(raw.train[label.task].sum()) for label in LABELS] == [12_382, 86_485, 29_462, 40_736, 95_539, 167_365]
