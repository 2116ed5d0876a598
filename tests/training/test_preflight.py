"""Tests that what can be told before any work is done is told then, and that notes say what the data lacks."""

import json
import re
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from typer.testing import CliRunner

import gdod
from gdod.cli import app
from gdod.data import TableSchema, load
from gdod.models import MODELS
from gdod.training import check, read_config, train
from gdod.training.preflight import rehearse

SCHEMA = """
columns:
  user: {type: categorical, rare: RARE}
  price: numeric
  click: {type: label, kind: binary}
split: SPLIT
"""


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rows = 400
    frame = pl.DataFrame(
        {
            "user": [f"u{row % 40}" if row % 2 else f"only{row}" for row in range(rows)],
            "price": [float("inf") if row == 7 else row / rows for row in range(rows)],
            "click": [None if row % 10 == 0 else row % 3 // 2 for row in range(rows)],
        }
    )
    (tmp_path / "data").mkdir()
    frame.write_parquet(tmp_path / "data" / "clicks.parquet")
    frame.write_parquet(tmp_path / "other.parquet")
    return tmp_path / "data" / "clicks.parquet"


def schema(table: Path, rare: int = 1, split: str = "{by: random, validation: 0.2, test: 0.2}") -> Path:
    path = table.with_name("schema.yaml")
    path.write_text(SCHEMA.replace("RARE", str(rare)).replace("SPLIT", split))
    return path


def test_missing_labels_and_rare_values_are_told(table: Path, tmp_path: Path) -> None:
    data = load(table, schema=schema(table, rare=2), cache=tmp_path / "cache")
    notes = "\n".join(data.notes)
    assert "train: missing values in" in notes
    assert "click" in notes
    assert "price" in notes  # infinity is no value
    assert "train: rare values in user" in notes
    assert "not seen, or too rarely, in user" in notes


def test_a_limit_that_leaves_no_value_is_refused(table: Path, tmp_path: Path) -> None:
    with pytest.raises(gdod.InputError, match="leaves nothing"):
        load(table, schema=schema(table, rare=300), cache=tmp_path / "cache")


@pytest.mark.parametrize("test", ["../other.parquet", "{tmp}/other.parquet"])
def test_a_split_does_not_leave_the_folder_of_the_data(table: Path, tmp_path: Path, test: str) -> None:
    split = f"{{by: files, validation: 0.2, test: {test.format(tmp=tmp_path)}}}"
    with pytest.raises(gdod.InputError, match="leads out of"):
        load(table, schema=schema(table, split=split), cache=tmp_path / "cache")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stopping.monitor": "clik"}, "did you mean 'click'"),
        ({"task_weights.clck": 2}, "did you mean 'click'"),
        ({"data.options.rows": 4}, "named data set"),
        ({"data.labels": ["click"]}, "beside a schema"),
        ({"method.name": "gdod", "method.options.grups": 4}, "did you mean 'groups'"),
    ],
    ids=str,
)
def test_names_are_checked_without_the_data(table: Path, options: dict[str, object], message: str) -> None:
    settings = {"data.source": str(table), "data.schema": str(schema(table)), **options}
    with pytest.raises(gdod.InputError, match=message):
        check(read_config(options=settings))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"data.source": "ads", "stopping.monitor": "purchse"}, "did you mean 'purchase'"),
        ({"data.source": "ads", "task_weights.clik": 2}, "did you mean 'click'"),
        ({"data.source": "census", "data.options.tasks": 2, "stopping.monitor": "college"}, "expected one of"),
        ({"data.source": "bookcrossing", "stopping.monitor": "rated_hi"}, "did you mean 'rated_high'"),
        ({"data.source": "ijcai15", "task_weights.by": 2}, "did you mean 'buy'"),
        ({"data.source": "ads", "data.options.row": 4}, "row"),
        ({"data.source": "ads", "data.labels": ["click"]}, "which has its own"),
    ],
    ids=str,
)
def test_names_of_tasks_of_a_named_data_set_are_known_without_its_files(
    options: dict[str, object], message: str
) -> None:
    with pytest.raises(gdod.InputError, match=message):
        check(read_config(options=options))


def test_tasks_of_named_data_sets_are_accepted() -> None:
    check(read_config(options={"data.source": "ads", "stopping.monitor": "visit", "task_weights.purchase": 2}))
    check(read_config(options={"data.source": "census", "stopping.monitor": "college"}))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"data.source": "nowhere.csv"}, "there is no file or folder"),
        ({"data.source": "nowhere/*.csv"}, "no file fits the pattern"),
        ({"model.name": "ple", "model.options.experts": 1}, "leaves none to share"),
        ({"model.name": "esmm"}, "the chain has one task, 'click'"),
        ({"model.name": "mmoe", "model.options.fm": True}, "the schema has 1 column"),
        (
            {"data.source": "ads", "data.options": {"conditional": True}, "model.name": "aitm", "data.schema": None},
            "'visit' has a label only where 'click' is 1",
        ),
        ({"data.schema": "{folder}/another.yaml"}, "has no column 'usr' .did you mean 'user'"),
        ({"data.schema": "{folder}/unlabelled.yaml"}, "has no label"),
        ({"data.schema": "{folder}/files.yaml"}, "there is no file or folder .*test.parquet"),
        ({"data.source": "census", "data.folder": "{folder}", "data.schema": None}, "census"),
    ],
    ids=str,
)
def test_check_refuses_what_training_would_refuse(
    table: Path, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    text = schema(table).read_text()
    (tmp_path / "another.yaml").write_text(text.replace("user:", "usr:"))
    (tmp_path / "unlabelled.yaml").write_text(text.replace("click: {type: label, kind: binary}", "click: ignore"))
    (tmp_path / "files.yaml").write_text(
        text.replace("by: random", "by: files").replace("test: 0.2", "test: test.parquet")
    )
    given = {
        name: value and value.replace("{folder}", str(tmp_path)) if isinstance(value, str) else value
        for name, value in options.items()
    }
    settings = {"recipe": "paper", "data.source": str(table), "data.schema": str(schema(table)), **given}
    arguments = [f"--set={name}={json.dumps(value)}" for name, value in settings.items() if name != "data.source"]
    done = CliRunner().invoke(app, ["train", "--data", str(settings["data.source"]), *arguments, "--check"])
    assert done.exit_code == 2, done.output
    assert re.search(message, done.stderr), done.stderr
    config = read_config(options={name: value for name, value in settings.items() if value is not None})
    check(config)
    with pytest.raises(gdod.InputError, match=message):
        train(config, tmp_path / "run")


def test_check_lets_pass_what_can_be_trained(table: Path) -> None:
    for model in set(MODELS) - {"esmm", "aitm"}:
        rehearse(
            read_config(options={"data.source": str(table), "model.name": model, "data.schema": str(schema(table))})
        )
    for model in ("esmm", "aitm"):
        rehearse(read_config(options={"data.source": "ads", "model.name": model}))
    rehearse(read_config(options={"data.source": str(table), "data.labels": ["click"]}))
    rehearse(read_config(options={"data.source": "ads"}))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("columns: {a: {type: numeric, scale: lgo}, y: label}", "columns.a.scale='lgo' is unknown .did you mean 'log'"),
        ("columns: {a: numeric, y: label}\nsplit: {by: randon}", "split.by='randon' is unknown .did you mean 'random'"),
        ("columns: {a: numeric, y: {type: label, kind: binari}}", "did you mean 'binary'"),
    ],
)
def test_words_of_a_schema_have_a_nearest_one(text: str, message: str) -> None:
    with pytest.raises(gdod.InputError, match=message):
        TableSchema.parse(text, Path("schema.yaml"))
