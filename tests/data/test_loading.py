"""Which files become which part, however they are named; and what is no file at all."""

from pathlib import Path

import polars as pl
import pytest
import torch
from tests.data.clicks_table import clicks, schema

from gdod import InputError
from gdod.data import Dataset, FeatureOptions, load

SCHEMA = "columns: {{age: numeric, click: label}}\nsplit: {{by: files, {parts}}}\n"


def table(path: Path, rows: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pl.DataFrame({"age": range(rows), "click": [row % 2 for row in range(rows)]}).write_csv(path)


def loaded(source: str | Path, parts: str, tmp_path: Path) -> Dataset:
    file = tmp_path / "schema.yaml"
    file.write_text(SCHEMA.format(parts=parts))
    return load(source, schema=file, cache=tmp_path / "cache")


def sizes(dataset: Dataset) -> tuple[int, int, int]:
    return len(dataset.train), len(dataset.validation), len(dataset.test)


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    table(tmp_path / "logs" / "train.csv", 200)
    table(tmp_path / "logs" / "test.csv", 100)
    return tmp_path / "logs"


@pytest.mark.parametrize("name", ["test.csv", "./test.csv", "../logs/test.csv", "ABSOLUTE"])
@pytest.mark.parametrize("source", ["folder", "pattern", "relative"])
def test_a_test_file_is_never_trained_on(
    logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, source: str
) -> None:
    monkeypatch.chdir(tmp_path)
    given: dict[str, str | Path] = {"folder": logs, "pattern": f"{logs}/*.csv", "relative": "logs"}
    name = str(logs / "test.csv") if name == "ABSOLUTE" else name
    assert sizes(loaded(given[source], f"test: {name}", tmp_path)) == (180, 20, 100)


def test_nor_is_one_that_is_there_under_another_name(logs: Path, tmp_path: Path) -> None:
    (logs / "again.csv").symlink_to(logs / "test.csv")
    assert sizes(loaded(logs, "test: test.csv", tmp_path)) == (180, 20, 100)


def test_one_file_cannot_be_two_parts(logs: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"test.csv is in both `validation` and `test`"):
        loaded(logs, f"validation: test.csv, test: {logs / 'test.csv'}", tmp_path)


def test_parts_in_folders_of_their_own(tmp_path: Path) -> None:
    for part, rows in (("train", 200), ("test", 100), ("validation", 50)):
        table(tmp_path / "data" / part / "a.csv", rows)
    data = loaded(f"{tmp_path}/data/*/*.csv", "test: test, validation: validation/a.csv", tmp_path)
    assert sizes(data) == (200, 50, 100)
    with pytest.raises(InputError, match=r"leads out of .* with a pattern"):
        loaded(tmp_path / "data" / "train", "test: ../test", tmp_path)


def test_a_folder_with_the_name_of_a_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    table(tmp_path / "ads" / "a.csv", 100)
    for source in ("./ads", Path("ads"), Path("./ads")):
        assert set(load(source, cache="cache").encoder.table_schema.columns) == {"age", "click"}


def test_what_would_be_ignored_is_refused(logs: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"labels=.*'click'.* data set 'ads' has its own"):
        load("ads", labels=["click"], cache=tmp_path)
    with pytest.raises(InputError, match="folder='somewhere' is for a data set with a name"):
        load(logs, folder="somewhere", cache=tmp_path)


def test_what_is_no_path_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="source is a int; expected a path"):
        load(123, cache=tmp_path)


def test_a_table_in_memory_is_loaded_as_its_file_is(tmp_path: Path) -> None:
    frame = clicks(900)
    frame.write_parquet(tmp_path / "clicks.parquet")
    of_file = load(tmp_path / "clicks.parquet", cache=tmp_path / "cache", features=FeatureOptions())
    of_frame = load(frame, cache=tmp_path / "cache", features=FeatureOptions())
    assert of_frame.encoder.to_json() == of_file.encoder.to_json()
    assert sizes(of_frame) == sizes(of_file)
    for part in ("train", "validation", "test"):
        for one, other in zip(
            getattr(of_frame, part).batches(200, seed=1), getattr(of_file, part).batches(200, seed=1), strict=True
        ):
            assert all(torch.equal(*pair) for pair in zip(one.batch[:2], other.batch[:2], strict=True))
            assert all(torch.equal(*pair) for pair in zip(one.labels.values(), other.labels.values(), strict=True))
    assert load(frame.clone(), cache=tmp_path / "cache", features=FeatureOptions()).fingerprint == of_frame.fingerprint
    assert len(list((tmp_path / "cache" / "prepared").iterdir())) == 2  # the second time it was there
    changed = frame.with_columns(pl.col("age") + pl.Series([0.1] + [0.0] * 899))
    assert load(changed, cache=tmp_path / "cache").fingerprint != load(frame, cache=tmp_path / "cache").fingerprint


def test_parts_in_memory_are_tables_of_their_own(tmp_path: Path) -> None:
    frame = clicks(300)
    parts = load(frame[:200], validation=frame[200:250], test=frame[250:], cache=tmp_path)
    assert sizes(parts) == (200, 50, 50)
    assert (
        parts.fingerprint != load(frame[:200], validation=frame[200:249], test=frame[250:], cache=tmp_path).fingerprint
    )
    by_files = schema({"by": "files", "test": "test.csv", "validation": 0.5})
    with pytest.raises(InputError, match=r"test='test.csv', a file.*give that part as a table"):
        load(frame, schema=by_files, cache=tmp_path)
    assert sizes(load(frame[:200], schema=by_files, test=frame[200:], cache=tmp_path)) == (100, 100, 100)
    with pytest.raises(InputError, match=r"test=\.\.\. is for a table in memory"):
        load("clicks.csv", test=frame, cache=tmp_path)
    with pytest.raises(InputError, match="the validation table has no rows"):
        load(frame, validation=frame[:0], cache=tmp_path)


def test_the_share_of_the_test_part_of_a_named_data_set_can_be_chosen(tmp_path: Path) -> None:
    assert sizes(load("ads", rows=1_000, test=0.4, cache=tmp_path)) == (540, 60, 400)
    with pytest.raises(InputError, match=r"test=0\.95; expected a number from 0 to 0\.9"):
        load("ads", rows=1_000, test=0.95, cache=tmp_path)
    with pytest.raises(InputError, match="test"):
        load("clicks.csv", test=0.4, cache=tmp_path)
