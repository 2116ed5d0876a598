"""Rivals in a comparison: real boosted trees on every kind of task, killed, resumed, tuned, and in the report."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import yaml
from tests.experiments.small import result
from tests.training import tiny
from typer.testing import CliRunner

import gdod
from gdod import InputError
from gdod.cli import app
from gdod.data import load
from gdod.experiments.compare import Outcome, compare
from gdod.experiments.plan import ComparisonPlan, read_plan
from gdod.experiments.pool import Job
from gdod.experiments.rivals.boosters import RIVALS
from gdod.experiments.rivals.config import RivalConfig, rival_options
from gdod.experiments.rivals.inputs import RivalInput, Rows, load_input
from gdod.experiments.rivals.run import Trained, train_task
from gdod.experiments.summary import figures
from gdod.experiments.tune import read_search, tune
from gdod.experiments.watch import Watch
from gdod.schema import Task
from gdod.training.config import DataConfig, MethodConfig
from gdod.training.metrics import auc

SCHEMA = tiny.SCHEMA.replace(
    "  id: ignore\n",
    "  id: ignore\n  amount: {type: label, kind: regression}\n  kind: {type: label, kind: multiclass}\n",
)
QUICK = ("lightgbm:rounds=25", "catboost:rounds=25")
RUNS = {"lightgbm": "rival-lightgbm_rounds=25", "catboost": "rival-catboost_rounds=25"}


def make_place(place: Path, patch: pytest.MonkeyPatch) -> None:
    """Go to a folder with a table of all kinds of tasks, in which numbers and labels are missing."""
    patch.chdir(place)
    patch.setenv("GDOD_CACHE", str(place / "cache"))
    table = tiny.frame(900)
    row = pl.int_range(pl.len())
    kind = (pl.col("city").str.slice(4).cast(pl.Int8) // 3).cast(pl.String)
    table = table.with_columns(
        amount=pl.when(row % 4 > 0).then(pl.col("age") * 2 + 100),
        kind=pl.lit("kind") + kind,
        age=pl.when(row % 5 > 0).then(pl.col("age")),
    )
    table.write_csv(place / "table.csv")
    (place / "table.yaml").write_text(SCHEMA)


def plan(*methods: str, rivals: tuple[str, ...] = QUICK, **options: Any) -> ComparisonPlan:
    small = {
        "data": {"source": "table.csv", "schema": "table.yaml"},
        "models": ["shared-bottom:bottom=[16],embedding=4"],
        "methods": list(methods),
        "rivals": list(rivals),
        "recipe": "strong",
        "steps": 20,
        "device": "cpu",
        "threads": 1,
        "seeds": 2,
    }
    return read_plan(options={**small, **options})


class Killer(Watch):
    """Kills the process of a run as soon as it has begun, and notes which runs begin."""

    def __init__(self, run: str = "") -> None:
        self.run = run
        self.begun: list[str] = []

    def told(self, job: Job, event: dict[str, Any]) -> None:
        if event["kind"] == "started":
            self.begun.append(job.name)
            if job.name == self.run:
                os.kill(event["process"], signal.SIGKILL)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    place = tmp_path_factory.mktemp("rivals")
    with pytest.MonkeyPatch.context() as patch:
        make_place(place, patch)
        yield place


@pytest.fixture(scope="module")
def killed(place: Path) -> Outcome:
    """A comparison of the plain sum with two rivals, in which the last run was killed."""
    return compare(plan("sum"), "out", processes=1, watch=Killer(f"{RUNS['catboost']}-seed1"))


@pytest.fixture(scope="module")
def whole(killed: Outcome) -> tuple[Outcome, list[str]]:
    """The same comparison after the same command was given again, and the runs that this made."""
    watch = Killer()
    return compare(plan("sum"), "out", processes=1, watch=watch), watch.begun


def test_a_rival_that_is_killed_begins_again_and_finished_ones_are_kept(
    killed: Outcome, whole: tuple[Outcome, list[str]]
) -> None:
    name = f"{RUNS['catboost']}-seed1"
    assert killed.failed == {name: "its process was killed by signal 9"}
    outcome, begun = whole
    assert begun == [name]
    assert outcome.failed == {}
    assert all({seed for seed, _ in setting.finished} == {0, 1} for setting in outcome.study.settings)


def test_rivals_learn_every_kind_of_task(whole: tuple[Outcome, list[str]]) -> None:
    for run in RUNS.values():
        found = result(whole[0].folder / "runs" / f"{run}-seed0")
        tasks = found["test"]["tasks"]
        assert tasks["click"]["auc"] > 0.75
        assert tasks["buy"]["auc"] > 0.55  # of few rows
        assert tasks["amount"]["rmse"] < 20  # the spread of the labels is 24
        assert tasks["kind"]["accuracy"] > 0.95
        assert found["validation"]["tasks"].keys() == tasks.keys()
        assert all(0 < rounds <= 25 for rounds in found["rounds"].values())
        files = sorted((whole[0].folder / "runs" / f"{run}-seed0" / "models").iterdir())
        assert len(files) == 4
        assert found["bytes"] == sum(file.stat().st_size for file in files)


def test_rivals_are_tested_on_the_rows_of_the_networks(whole: tuple[Outcome, list[str]], place: Path) -> None:
    runs = whole[0].folder / "runs"
    ours = result(runs / "shared-bottom_bottom=16,embedding=4-sum-seed0")
    for run in RUNS.values():
        theirs = result(runs / f"{run}-seed0")
        for part in ("validation", "test"):
            for task, own in ours[part]["tasks"].items():
                assert theirs[part]["tasks"][task]["labelled"] == own["labelled"]
                assert theirs[part]["tasks"][task].get("positives") == own.get("positives")
    data = DataConfig(source="table.csv", schema=Path("table.yaml"))
    given = load_input(data)
    dataset = load("table.csv", schema="table.yaml")
    for rows, one in ((given.train, dataset.train), (given.validation, dataset.validation), (given.test, dataset.test)):
        assert rows is not None
        (batch,) = one.batches(len(one))
        for task, labels in batch.labels.items():
            np.testing.assert_array_equal(rows.labels[task], labels.numpy())
        assert rows.weights is not None
        assert batch.weights is not None
        np.testing.assert_array_equal(rows.weights, batch.weights.numpy())


def test_rivals_are_rows_of_the_tables_and_of_the_page(whole: tuple[Outcome, list[str]]) -> None:
    outcome = whole[0]
    rows = {(one["model"], one["method"]): one for one in figures(outcome.study)}
    assert [one["rival"] for one in rows.values()] == [False, True, True]
    for method in ("lightgbm (rounds=25)", "catboost (rounds=25)"):
        one = rows["rival", method]
        assert one["training_seconds"] > 0
        assert one["bytes"] > 1000
        assert one["milliseconds_per_step"] is None
        assert one["difference"]["common_seeds"] == 2
        assert one["tasks"].keys() == {"click", "buy", "amount", "kind"}
    assert rows["shared-bottom", "sum"]["bytes"] > 1000
    page, markdown, csv = outcome.report.read_text(), outcome.markdown.read_text(), outcome.csv.read_text()
    table = re.search(r"<table.*?</table>", page, re.DOTALL)
    assert table is not None
    assert ["rival" in row and "lightgbm" in row for row in table[0].split("<tr")].count(True) == 1
    assert "training time" in table[0]
    assert "at most 25 rounds, early stopping after 50 rounds" in page
    assert "1 model × 1 method × 2 seeds, beside 2 rivals" in page
    assert "| rival | catboost (rounds=25) |" in markdown
    for metric in ("auc", "log_loss", "rmse", "accuracy", "training_seconds", "bytes"):
        assert re.search(rf"rival,lightgbm \(rounds=25\),\w*,{metric},2,\d", csv)
    assert outcome.study.baseline == "sum"


def test_a_comparison_may_have_rivals_alone(place: Path) -> None:
    rivals = ("lightgbm:rounds=3", "lightgbm:rounds=4")
    outcome = compare(plan(rivals=rivals, seeds=1), "alone", processes=1, test=False)
    assert [setting.method for setting in outcome.study.settings] == ["lightgbm (rounds=3)", "lightgbm (rounds=4)"]
    assert outcome.study.baseline == "lightgbm (rounds=3)"
    assert outcome.study.part == "validation"
    assert result(place / "alone/runs/rival-lightgbm_rounds=3-seed0")["test"] is None


def test_a_search_finds_options_that_a_comparison_uses_and_sees_no_test_rows(place: Path) -> None:
    options = {"data": {"source": "table.csv", "schema": "table.yaml"}, "rival": "lightgbm:rounds=5", "threads": 1}
    best = tune(read_search(options=options, trials=2), "tuned", processes=1)
    found = yaml.safe_load(best.file.read_text())
    assert (found["model"]["name"], found["method"]["name"]) == ("rival", "lightgbm")
    assert found["method"]["options"].keys() == {"rounds", *RIVALS["lightgbm"].space}
    assert result(place / "tuned/trials/0/seed0")["test"] is None
    config = plan("sum", rivals=("lightgbm",), tuned=["tuned"], seeds=1).runs[-1].config
    assert isinstance(config, RivalConfig)
    assert config.method.options == found["method"]["options"]
    with pytest.raises(InputError, match="both a rival and a method"):
        read_search(options={**options, "method": "sum"})


# What they are given


def test_columns_are_given_as_categories_and_plain_numbers(tmp_path: Path) -> None:
    rows = 40
    table = pl.DataFrame(
        {
            "city": ["a", "b", None, "rare", *["a", "b"] * 18],
            "age": [None, 30.0, 10.0, 20.0, *range(36)],
            "seen": ["x y", "y", "", "z x", *["x"] * 36],
            "click": [0, 1] * 20,
        }
    )
    assert len(table) == rows
    table.write_parquet(tmp_path / "train.parquet")
    table[:4].with_columns(city=pl.Series(["b", "new", "a", "a"])).write_parquet(tmp_path / "test.parquet")
    (tmp_path / "table.yaml").write_text(
        "columns: {city: categorical, age: numeric, seen: {type: sequence, separator: ' '}, click: label}\n"
        "split: {by: files, test: test.parquet, validation: 0}\n"
    )
    data = DataConfig(source=str(tmp_path), schema=tmp_path / "table.yaml", cache=tmp_path / "cache")
    given = load_input(data)
    assert given.train.categories.shape == (rows, 2)  # the city and the last thing seen
    assert given.train.numbers.shape == (rows, 2)  # the age and how many things were seen
    assert len(np.unique(given.train.categories[:, 0])) == 4  # a value that occurs once is a value
    assert int(np.isnan(given.train.numbers).sum()) == 1
    assert given.test is not None
    city, last = given.test.categories.T
    assert city[1] == 0  # training has not seen it
    assert city[2] == city[3] != city[0]
    assert last[0] == last[1] != last[3] > last[2] == 0
    assert given.test.numbers[:, 1].tolist() == [2, 1, 0, 2]
    age = given.test.numbers[:, 0]
    assert np.isnan(age[0])
    assert age[2] < age[3] < age[1]
    assert load_input(data, test=False).test is None


# Where there is little to learn or to stop by


def made(task: Task, rows: int = 300, seed: int = 0) -> Rows:
    random = np.random.default_rng(seed)
    number = random.normal(size=(rows, 1)).astype(np.float32)
    label = (number[:, 0] + 0.1 * random.normal(size=rows) > 0).astype(np.float32)
    return Rows(random.integers(0, 5, (rows, 1), np.int32), number, {task.name: label}, None)


def trained(name: str, task: Task, train: Rows, validation: Rows, **config: Any) -> Trained:
    method = MethodConfig(name=name, options={"rounds": 20})
    settings = RivalConfig(data=DataConfig(source="made"), method=method, **config)
    data = RivalInput((task,), train, validation, None)
    return train_task(RIVALS[name], rival_options(method), task, data, settings, threads=1)


@pytest.mark.parametrize("name", RIVALS)
def test_a_task_without_validation_labels_takes_all_rounds(name: str) -> None:
    task = Task("click")
    train, nothing = made(task), made(task, rows=0)
    one = trained(name, task, train, nothing)
    assert one.model.rounds == 20
    assert one.note == "no validation row has a label, so training takes all of 20 rounds"
    assert (auc(train.labels["click"], one.model.predict(train)) or 0) > 0.9


@pytest.mark.parametrize("name", RIVALS)
def test_a_task_with_one_class_in_validation_goes_by_the_loss(name: str) -> None:
    task = Task("click")
    train, validation = made(task), made(task, seed=1)
    one = trained(name, task, train, replace(validation, labels={"click": np.ones(300, np.float32)}))
    assert one.note.startswith("validation has one class only")
    assert one.model.rounds > 0


@pytest.mark.parametrize("name", RIVALS)
def test_nothing_to_learn_gives_a_constant(name: str, tmp_path: Path) -> None:
    task = Task("amount", "regression")
    rows = made(task)
    same = replace(rows, labels={"amount": np.full(300, 7.0, np.float32)})
    one = trained(name, task, same, same)
    assert one.note == "all labels are the same in training, so a constant is predicted"
    assert one.model.predict(rows).tolist() == [7.0] * 300
    one.model.save(tmp_path / "model.json")
    assert json.loads((tmp_path / "model.json").read_text()) == [7.0]

    several = Task("kind", "multiclass", 3)
    alike = Rows(np.ones((4, 1), np.int32), np.full((4, 1), np.nan, np.float32), {"kind": np.array([0, 1, 1, 1])}, None)
    one = trained(name, several, alike, alike)
    assert one.note.startswith("all rows are alike in training")
    assert one.model.predict(alike)[0].tolist() == [0.25, 0.75, 0.0]


@pytest.mark.parametrize("name", RIVALS)
def test_a_class_that_training_lacks_is_a_class(name: str) -> None:
    task = Task("kind", "multiclass", 3)
    rows = made(task)
    predicted = trained(name, task, rows, rows).model.predict(rows)
    assert predicted.shape == (300, 3)
    np.testing.assert_allclose(predicted.sum(1), 1, rtol=1e-6)
    assert (predicted.argmax(1) == rows.labels["kind"]).mean() > 0.9


@pytest.mark.parametrize("name", RIVALS)
def test_sample_weights_count(name: str) -> None:
    """Rows with wrong labels and next to no weight do no harm, unless weights are left out."""
    task = Task("click")
    rows, test = made(task, rows=600), made(task, seed=1)
    wrong = np.arange(600) < 400
    label = np.where(wrong, 1 - rows.labels["click"], rows.labels["click"])
    rows = replace(rows, labels={"click": label}, weights=np.where(wrong, 1e-3, 1).astype(np.float32))
    for weighted, low, high in ((True, 0.9, 1), (False, 0, 0.1)):
        one = trained(name, task, rows, made(task, rows=0), sample_weights=weighted)
        assert low <= (auc(test.labels["click"], one.model.predict(test)) or 0) <= high


# What is asked for is checked before any work


@pytest.mark.parametrize(
    ("rival", "message"),
    [
        ("lightgmb", "rival='lightgmb' is unknown; expected one of 'lightgbm', 'catboost' (did you mean 'lightgbm'?)"),
        ("lightgbm:num_leafs=3", "the option 'num_leafs' is unknown"),
        ("lightgbm:num_leafs=3", "did you mean 'num_leaves'?"),
        ("catboost:depth=40", "rival 'catboost': depth=40"),
        ("catboost:rounds=many", "rounds='many'"),
    ],
)
def test_wrong_rivals_are_refused(place: Path, rival: str, message: str) -> None:
    arguments = ["compare", "--data", "table.csv", "--schema", "table.yaml", "--rival", rival, "--out", "wrong"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 2
    assert message in done.stderr.replace("\n", " ")
    assert not (place / "wrong").exists()


def test_without_the_extra_one_line_says_what_to_install(place: Path) -> None:
    arguments = ["compare", "--data", "table.csv", "--schema", "table.yaml", "--rival", "lightgbm", "--out", "missing"]
    code = f"""
import sys
sys.modules["lightgbm"] = sys.modules["catboost"] = None  # as if they were not there
from gdod.cli import app
app({arguments!r})
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(gdod.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "gdod: the rival 'lightgbm' needs LightGBM, which is not installed. Install it with: "
        "pip install 'gdod[rivals]'",
    ]
    assert not (place / "missing").exists()
