"""`gdod tune`: chooses on validation, never sees the test part, goes on where it was, and others can use it."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.experiments.small import OPTIONS, make_place
from typer.testing import CliRunner

from gdod import InputError
from gdod.cli import app
from gdod.experiments.plan import read_plan
from gdod.experiments.pool import Job
from gdod.experiments.search import Grid, Range, Space, read_grid, read_range, read_space
from gdod.experiments.tune import Best, Search, read_search, tune
from gdod.experiments.watch import Watch
from gdod.training import read_config

SETTINGS = {name: value for name, value in OPTIONS.items() if name != "models"}
SETTINGS["model"] = OPTIONS["models"][0]


def search(method: str = "cagrad", **rest: Any) -> Search:
    return read_search(options={**SETTINGS, "method": method, "steps": 30}, **rest)


class Counting(Watch):
    """Notes which runs are made; kills the process of one of them."""

    def __init__(self, kill: str | None = None) -> None:
        self.made: list[str] = []
        self.said: list[str] = []
        self.kill = kill

    def say(self, text: str) -> None:
        self.said.append(text)

    def told(self, job: Job, event: dict[str, Any]) -> None:
        if event["kind"] == "started":
            self.made.append(job.name)
            if job.name == self.kill:
                os.kill(event["process"], signal.SIGKILL)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Any:
    place = tmp_path_factory.mktemp("tune")
    with pytest.MonkeyPatch.context() as patch:
        make_place(place, patch)
        yield place


@pytest.fixture(scope="module")
def best(place: Path) -> Best:
    """The first three points of the grid that CAGrad declares."""
    return tune(search(trials=3), place / "tuned", processes=1)


def values(folder: Path) -> dict[float, float]:
    """By c, from the runs themselves."""
    found = {}
    for path in folder.glob("trials/*/seed0/result.json"):
        config = json.loads((path.parent / "config.json").read_text())
        found[config["method"]["options"]["c"]] = json.loads(path.read_text())["validation"]["mean_auc"]
    return found


def test_the_best_on_validation_is_chosen(best: Best) -> None:
    found = values(best.folder)
    assert set(found) == {0.1, 0.3, 0.5}
    assert best.value == max(found.values())
    assert found[best.settings["method.options.c"]] == best.value


def test_the_test_part_is_never_looked_at(best: Best) -> None:
    for path in best.folder.glob("trials/*/seed0/*.json"):
        if path.name == "result.json":
            assert json.loads(path.read_text())["test"] is None
        if path.name == "about.json":
            assert json.loads(path.read_text())["data"]["rows"]["test"] == 0


def test_train_and_compare_can_use_what_was_found(best: Best) -> None:
    c = best.settings["method.options.c"]
    config = read_config(best.file, {"data.source": "ads"})
    assert (config.method.name, config.method.options) == ("cagrad", {"c": c})
    assert config.model.options == {"bottom": [16], "embedding": 4}
    options = {**OPTIONS, "methods": ["sum", "cagrad"], "tuned": [str(best.folder)]}
    plan = read_plan(options=options)
    assert {run.config.method.options.get("c") for run in plan.runs if run.method.name == "cagrad"} == {c}


def test_a_search_that_is_finished_is_left_as_it_is(best: Best) -> None:
    watch = Counting()
    again = tune(search(trials=3), best.folder, processes=1, watch=watch)
    assert watch.made == []
    assert watch.said == []
    assert again == best


def test_a_grid_has_no_more_trials_than_points_and_says_so(place: Path) -> None:
    watch, grid = Counting(), {"batch": Grid((64, 128))}
    wanted = read_search(options={**SETTINGS, "method": "sum", "steps": 2}, space=grid, trials=9)
    assert tune(wanted, place / "small", processes=1, watch=watch).trials == 2
    assert watch.said == ["the grid has 2 points: 2 trials, not 9"]


def test_another_search_is_refused_with_what_differs(best: Best) -> None:
    other = read_search(options={**SETTINGS, "method": "cagrad", "steps": 31}, trials=3)
    with pytest.raises(InputError, match=r"other settings: settings.steps is 30, not 31\..*--out"):
        tune(other, best.folder)


@pytest.mark.slow
def test_finished_trials_are_not_repeated_and_failed_ones_are_tried_again(best: Best) -> None:
    before = {path: path.stat().st_mtime_ns for path in best.folder.glob("trials/*/*/result.json")}
    killed = tune(search(), best.folder, processes=1, watch=Counting("3/seed0"))
    assert killed.failed == {"3/seed0": "its process was killed by signal 9"}
    assert set(values(best.folder)) == {0.1, 0.3, 0.5, 0.9}
    watch = Counting()
    again = tune(search(), best.folder, processes=1, watch=watch)
    assert watch.made == ["5/seed0"]
    assert set(values(best.folder)) == {0.1, 0.3, 0.5, 0.7, 0.9}
    assert (again.failed, again.trials) == ({}, 5)
    assert {path: path.stat().st_mtime_ns for path in before} == before

    done = Counting()
    tune(search(), best.folder, processes=1, watch=done)
    assert done.made == []
    with pytest.raises(InputError, match="other settings"):
        tune(search("gradnorm"), best.folder)


@pytest.mark.slow
def test_ranges_are_searched_over_seeds_and_more_trials_may_be_added(place: Path) -> None:
    lr: Space = {"optimizer.lr": Range(1e-3, 1e-1, log=True), "batch": Grid((64, 128))}
    options = {**SETTINGS, "method": "sum", "steps": 10, "seeds": 2}
    tune(read_search(options=options, space=lr, trials=2), place / "ranges", processes=1)
    watch = Counting()
    best = tune(read_search(options=options, space=lr, trials=3), place / "ranges", processes=1, watch=watch)
    assert watch.made == ["2/seed0", "2/seed1"]
    rates = {
        json.loads(path.read_text())["optimizer"]["lr"] for path in (place / "ranges").glob("trials/*/*/config.json")
    }
    assert len(rates) == 3
    assert all(1e-3 <= rate <= 1e-1 for rate in rates)
    written = yaml.safe_load(best.file.read_text())
    assert written["optimizer"]["lr"] == best.settings["optimizer.lr"]
    assert written["batch"] in (64, 128)


def test_the_search_space_is_read_and_checked() -> None:
    assert read_range("optimizer.lr=1e-4..1e-2:log") == ("optimizer.lr", Range(1e-4, 1e-2, log=True))
    assert read_range("model.options.experts=2..8") == ("model.options.experts", Range(2, 8))
    assert read_grid("batch=[64, 128]") == ("batch", Grid((64, 128)))
    assert read_space({"batch": [1, 2], "clip": {"low": 1, "high": 2.5}}) == {
        "batch": Grid((1, 2)),
        "clip": Range(1, 2.5),
    }
    for wrong in ("lr", "lr=1", "lr=2..1", "lr=0..1:log", "lr=a..b", "lr=1..inf"):
        with pytest.raises(InputError):
            read_range(wrong)
    assert read_grid("model.options.bottom=[[64], [64, 32]]")[1] == Grid(("[64]", "[64, 32]"))
    assert read_grid("average=[null, 0.9]")[1] == Grid((None, 0.9))
    for wrong in ("batch", "batch=3", "batch=[]", "batch=[[a]]", "batch=[{a: 1}]"):
        with pytest.raises(InputError):
            read_grid(wrong)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--method", "gdod", "--recipe", "paper"], "declares no grid"),
        (["--method", "cagrd"], "did you mean 'cagrad'"),
        (["--recipe", "paper"], "no method is given"),
        (["--recipe", "paper", "--method", "gdod", "--space", "recipe"], "is that of the recipe 'strong'"),
        (["--space", "recip"], "did you mean 'recipe'"),
        (["--grid", "recipe=[paper,strong]"], "cannot be searched"),
        (["--grid", "batch=[[1]]"], "batch=[1]"),
        (["--grid", "data.features.pars=[1]"], "did you mean 'pairs'"),
        (["--method", "cagrad", "--range", "method.options.c=-1..1"], "c=-1"),
        (["--method", "cagrad", "--range", "optimizer.speed=0.1..1"], "optimizer.speed is not a setting"),
        (["--method", "cagrad", "--grid", "data.source=[a,b]"], "cannot be searched"),
        (["--method", "cagrad", "--grid", "method.name=[sum,gdod]"], "cannot be searched"),
    ],
)
def test_wrong_input_is_refused_before_any_trial(place: Path, arguments: list[str], message: str) -> None:
    done = CliRunner().invoke(app, ["tune", "--data", "clicks.csv", "--out", "none", *arguments])
    assert done.exit_code == 2
    assert message in done.stderr
    assert not (place / "none").exists()


def test_the_command_only_checks_if_asked_to(place: Path) -> None:
    done = CliRunner().invoke(app, ["tune", "--data", "clicks.csv", "--method", "gradreg", "--check"])
    assert json.loads(done.stdout)["search"] == {"method.options.weight": [0.1, 0.01, 0.001, 0.0001]}
    assert json.loads(done.stdout)["trials"] == 4
