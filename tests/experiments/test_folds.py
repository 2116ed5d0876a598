"""`gdod compare --folds`: real runs on real folds, what the tables say of them, and what is refused."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from tests.experiments.small import OPTIONS, make_place
from typer.testing import CliRunner

from gdod import InputError
from gdod.cli import app
from gdod.data import Fold, load
from gdod.experiments.compare import Outcome, compare
from gdod.experiments.plan import ComparisonPlan, read_plan
from gdod.experiments.pool import Job
from gdod.experiments.rivals.inputs import load_input
from gdod.experiments.summary import caption, figures
from gdod.experiments.watch import Watch
from gdod.report import load_studies
from gdod.statistics import paired_difference
from gdod.training import TrainConfig, load_run, train

MODEL = "shared-bottom_bottom=16,embedding=4"
RIVAL = "rival-lightgbm_rounds=5"


def plan(**options: Any) -> ComparisonPlan:
    own = {"methods": ["sum", "mgda"], "rivals": ["lightgbm:rounds=5"], "folds": 2, "steps": 4}
    return read_plan(options={**OPTIONS, **own, **options})


class Begun(Watch):
    """Notes which runs begin."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def told(self, job: Job, event: dict[str, Any]) -> None:
        if event["kind"] == "started":
            self.names.append(job.name)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    place = tmp_path_factory.mktemp("folds")
    with pytest.MonkeyPatch.context() as patch:
        make_place(place, patch)
        yield place


@pytest.fixture(scope="module")
def outcome(place: Path) -> Outcome:
    """A comparison over two folds, of which one run was removed and made again by the same command."""
    compare(plan(seeds=2), "out", processes=1)
    (place / "out/runs" / f"{RIVAL}-seed0-fold2/result.json").unlink()
    again = Begun()
    made = compare(plan(seeds=2), "out", processes=1, watch=again)
    assert again.names == [f"{RIVAL}-seed0-fold2"]
    assert made.failed == {}
    return made


def test_a_method_is_one_row_over_folds_and_seeds(outcome: Outcome) -> None:
    study = outcome.study
    assert [(one.method, len(one.finished)) for one in study.settings] == [
        ("sum", 4),
        ("mgda", 4),
        ("lightgbm (rounds=5)", 4),
    ]
    assert (study.folds, study.over) == (2, "folds and seeds")


def test_the_test_parts_are_the_folds_of_one_table_for_networks_and_rivals(outcome: Outcome) -> None:
    sizes, fingerprints = {}, {}
    for name in (f"{MODEL}-sum", f"{MODEL}-mgda", RIVAL):
        abouts = [
            json.loads((outcome.folder / "runs" / f"{name}-seed1-fold{fold}" / "about.json").read_text())
            for fold in (1, 2)
        ]
        sizes[name] = [about["data"]["rows"]["test"] for about in abouts]
        fingerprints[name] = [about["data"]["fingerprint"] for about in abouts]
    assert {tuple(each) for each in sizes.values()} == {(500, 500)}
    assert len({tuple(each) for each in fingerprints.values()}) == 1


def test_a_rival_is_given_the_rows_of_the_same_folds(place: Path) -> None:
    for number in (1, 2):
        config = plan().runs[3 * number - 1].config
        assert config.data.fold == Fold(number=number, of=2)
        theirs = load_input(config.data)
        ours = load("clicks.csv", schema="clicks.yaml", fold=config.data.fold)
        for part, rows in (("train", theirs.train), ("validation", theirs.validation), ("test", theirs.test)):
            assert rows is not None
            (labels,) = [step.labels["click"] for step in getattr(ours, part).batches(10_000)]
            np.testing.assert_array_equal(rows.labels["click"], labels)


def test_differences_are_taken_fold_by_fold_and_tested_as_folds(outcome: Outcome) -> None:
    def results(method: str) -> dict[int, float]:
        runs = outcome.folder / "runs"
        by_fold = {}
        for fold in (1, 2):
            files = [runs / f"{MODEL}-{method}-seed{seed}-fold{fold}" / "result.json" for seed in (0, 1)]
            by_fold[fold] = math.fsum(json.loads(file.read_text())["test"]["mean_auc"] for file in files) / 2
        return by_fold

    expected = paired_difference(results("mgda"), results("sum"), folds=2)
    difference = outcome.study.compare("auc")[None][1].difference
    assert difference is not None
    assert difference.n == 2
    assert (difference.mean, difference.low, difference.p) == pytest.approx(
        (expected.mean, expected.low, expected.p), rel=1e-9
    )


def test_all_tables_say_that_figures_are_over_folds(outcome: Outcome) -> None:
    assert "2 folds (4 runs)" in caption(outcome.study)
    assert "Nadeau and Bengio" in caption(outcome.study)
    for text in (outcome.report.read_text(), outcome.markdown.read_text()):
        assert "over 2 folds" in text
        assert "corrected resampled t-test (Nadeau and Bengio, 2003)" in text
        assert "over seeds" not in text.replace("means over seeds", "").split("How to read this page")[0]
    table = pl.read_csv(outcome.csv)
    assert table["folds"].unique().to_list() == [2]
    first = figures(outcome.study)[1]
    assert (first["seeds"], first["folds"], first["difference"]["common_folds"]) == ([0, 1], 2, 2)


def test_a_run_on_a_fold_is_the_run_that_gdod_train_makes(outcome: Outcome, tmp_path: Path) -> None:
    folder = outcome.folder / "runs" / f"{MODEL}-mgda-seed1-fold2"
    config = load_run(folder).config
    assert config.data.fold is not None
    assert config.data.fold.number == 2
    assert train(config, tmp_path / "alone")["test"] == json.loads((folder / "result.json").read_text())["test"]


def test_runs_on_folds_stand_apart_from_runs_on_the_split(outcome: Outcome, place: Path) -> None:
    config = plan(folds=None, seeds=1, rivals=[]).runs[0].config
    assert isinstance(config, TrainConfig)
    train(config, place / "alone")
    studies = load_studies([outcome.folder, place / "alone"])
    assert [(study.folds, len(study.runs)) for study in studies] == [(2, 12), (None, 1)]


@pytest.mark.slow
def test_what_the_recipe_chose_for_a_fold_makes_no_setting_of_its_own(place: Path) -> None:
    """Groups of different sizes make folds of different sizes, and the recipe goes by the number of rows."""
    frame = pl.read_csv(place / "clicks.csv")
    frame = frame.with_columns(city=pl.when(pl.int_range(pl.len()) < 700).then(pl.lit("large")).otherwise("city"))
    frame.write_csv(place / "uneven.csv")
    (place / "uneven.yaml").write_text(
        (place / "clicks.yaml").read_text().replace("by: random", "by: group, column: city")
    )
    settings = {name: value for name, value in OPTIONS.items() if name not in ("recipe", "batch")}
    settings |= {"data.source": "uneven.csv", "data.schema": "uneven.yaml", "methods": ["sum"], "folds": 3}
    made = compare(read_plan(options={**settings, "epochs": 1}), "uneven", processes=2)
    (setting,) = made.study.settings
    warmups = {run.config["schedule"]["warmup"] for run in setting.runs}
    assert len(warmups) > 1  # or this test says nothing
    assert len(setting.finished) == 3


def test_a_folder_is_for_one_number_of_folds(outcome: Outcome) -> None:
    with pytest.raises(InputError, match="has 2 folds, and now there are 4 folds"):
        compare(plan(folds=4, seeds=2), outcome.folder)
    with pytest.raises(InputError, match="has 2 folds, and now there are no folds"):
        compare(plan(folds=None, seeds=2), outcome.folder)


def test_with_folds_there_is_one_seed_unless_more_are_asked_for() -> None:
    assert [run.name for run in plan(methods=["sum"], rivals=[]).runs] == [
        f"{MODEL}-sum-seed0-fold{number}" for number in (1, 2)
    ]
    for wrong in (1, 2.5, True, 256):
        with pytest.raises(InputError, match=f"folds={wrong}; expected a whole number from 2 to 255"):
            plan(folds=wrong)
    with pytest.raises(InputError, match="both `folds` and `data"):
        plan(**{"data.fold": {"number": 1, "of": 3}})


def test_a_split_by_time_is_refused_in_words_before_any_run(place: Path) -> None:
    (place / "time.yaml").write_text((place / "clicks.yaml").read_text().replace("by: random", "by: time, column: age"))
    table = ("--data", "clicks.csv", "--schema", "time.yaml", "--method", "sum", "--folds", "3", "--out", "time")
    for more in (("--check", "--recipe", "paper"), ()):
        done = CliRunner().invoke(app, ["compare", *table, *more])
        assert done.exit_code == 2
        assert "rows of later times" in " ".join(done.stderr.split())
    assert not [*(place / "time").glob("runs/*")]
