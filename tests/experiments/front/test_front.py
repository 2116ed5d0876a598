"""`gdod front` and `gdod choose`: real small trainings, gone on with, judged and chosen from."""

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from tests.experiments.small import OPTIONS, make_place, start
from tests.report.made_front import make_front
from tests.training import tiny
from typer.testing import CliRunner

from gdod import InputError
from gdod.cli import app
from gdod.experiments.front.choose import choose, link_choice, read_figures
from gdod.experiments.front.plan import FrontPlan, plan_front, read_front
from gdod.experiments.front.results import _warnings, sparse_warning
from gdod.experiments.front.rows import Scored
from gdod.experiments.front.run import FrontOutcome, front
from gdod.experiments.front.verdict import Interval, Judged, Verdict
from gdod.experiments.pool import Job
from gdod.experiments.watch import Watch
from gdod.report.front import PLACES, Front
from gdod.training import load_run

SCHEMA = tiny.SCHEMA.replace("{type: label, when: click}", "label")
SETTINGS: dict[str, Any] = {
    **{name: value for name, value in OPTIONS.items() if name != "models"},
    "model": "shared-bottom:bottom=[16],embedding=4",
    "steps": 4,
    "seeds": 2,
    "points": 3,
    "tune": 2,
    "methods": ["gdod:groups=4"],
    "single_task": True,
    "rivals": ["lightgbm:rounds=5"],
}


def make_front_place(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_place(place, monkeypatch)
    (place / "clicks.yaml").write_text(SCHEMA)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    make_front_place(tmp_path, monkeypatch)
    return tmp_path


def plan(**options: Any) -> FrontPlan:
    return read_front(options={**SETTINGS, **options})


def gdod(*arguments: str) -> Any:
    return CliRunner().invoke(app, arguments)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FrontOutcome]:
    place = tmp_path_factory.mktemp("front")
    with pytest.MonkeyPatch.context() as patch:
        make_front_place(place, patch)
        yield front(plan(), place / "out", processes=1, command=["gdod", "front"])


def test_everything_is_trained_with_every_seed(whole: FrontOutcome) -> None:
    assert not whole.failed
    assert [(one.name, one.kind) for one in whole.front.points] == [
        ("1:32", "front"),
        ("1:1", "front"),
        ("32:1", "front"),
        ("gdod (groups=4)", "method"),
        ("single-task", "single-task"),
        ("lightgbm (rounds=5)", "rival"),
    ]
    assert all(len(one.runs) == 2 for one in whole.front.points)
    # Five have tried two learning rates with the first seed; a rival has its own settings.
    assert len([*whole.folder.glob("runs/*/result.json")]) == 5 * (2 + 1) + 2
    for path in (whole.report, whole.picture, whole.markdown, whole.csv):
        assert path.stat().st_size > 500


def test_weightings_train_with_their_weights(whole: FrontOutcome) -> None:
    for point in whole.front.front:
        for name in point.runs:
            weights = load_run(whole.folder / "runs" / name).config.task_weights
            assert point.weights == pytest.approx(weights or {"click": 1, "buy": 1})


def test_scores_are_those_of_the_runs(whole: FrontOutcome) -> None:
    """Also of a rival, and of runs that had not looked at the test part while they were tuned."""
    for point in whole.front.points:
        results = [json.loads((whole.folder / f"runs/{name}/result.json").read_text()) for name in point.runs]
        for task in ("click", "buy"):
            for part, scores in (("validation", point.validation), ("test", point.test)):
                aucs = [result[part]["tasks"][task]["auc"] for result in results]
                # Trees in float64 give scores that float32 cannot tell apart.
                near = 1e-3 if point.kind == "rival" else 1e-9
                assert scores[task] == pytest.approx(sum(aucs) / 2, abs=near)


def test_only_what_is_shown_has_looked_at_the_test_part(whole: FrontOutcome) -> None:
    shown = {name for point in whole.front.points for name in point.runs}
    for path in whole.folder.glob("runs/*/result.json"):
        assert (json.loads(path.read_text())["test"] is not None) == (path.parent.name in shown)


def test_the_learning_rate_is_the_best_on_validation(whole: FrontOutcome) -> None:
    for point in whole.front.points:
        if point.kind != "rival":
            (first,) = (name for name in point.runs if name.endswith("seed0"))
            stem = first.removesuffix("-seed0").split("-lr=")[0]
            tried = {
                path.parent.name: json.loads(path.read_text())["validation"]["mean_auc"]
                for path in whole.folder.glob(f"runs/{stem}*-seed0/result.json")
                if path.parent.name.removesuffix("-seed0").split("-lr=")[0] == stem
            }
            assert len(tried) == 2
            assert tried[first] == max(tried.values())


def test_the_verdict_is_on_the_method(whole: FrontOutcome) -> None:
    (verdict,) = whole.front.verdicts
    assert verdict["method"] == "gdod (groups=4)"
    by_name = {one.name: one for one in whole.front.points}
    method, nearest = by_name[verdict["method"]], by_name[verdict["weighting"]]
    leads = [nearest.test[task] - method.test[task] for task in ("click", "buy")]
    assert verdict["d"]["value"] == pytest.approx(min(leads))
    assert verdict["d"]["low"] <= verdict["d"]["value"] <= verdict["d"]["high"]
    least = {
        one.name: min(one.validation[t] - method.validation[t] for t in one.validation) for one in whole.front.front
    }
    assert verdict["validation"] == pytest.approx(max(least.values()))
    assert any("2 seeds: intervals are wide" in warning for warning in whole.front.warnings)


def test_the_page_the_tables_and_the_csv_hold_it_all(whole: FrontOutcome) -> None:
    page, text = whole.report.read_text(), whole.markdown.read_text()
    (verdict,) = whole.front.verdicts
    for word in (PLACES[verdict["place"]], "gdod (groups=4)", "single-task", "lightgbm", "32:1", "AUC of click"):
        assert word in page
    for word in (PLACES[verdict["place"]], "gdod (groups=4)", "weights 32:1"):
        assert word in text
    frame = pl.read_csv(whole.csv)
    assert len(frame) == 6 * 2
    assert frame.filter(kind="front")["weight"].null_count() == 0


def test_the_same_command_repeats_nothing_and_a_larger_one_only_adds(
    whole: FrontOutcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(whole.folder.parent)
    monkeypatch.setenv("GDOD_CACHE", str(whole.folder.parent / "cache"))

    def times() -> dict[str, int]:
        return {path.parent.name: path.stat().st_mtime_ns for path in whole.folder.glob("runs/*/result.json")}

    before, results = times(), whole.front.results
    assert front(plan(), whole.folder, processes=1).front.results == results
    assert times() == before
    grown = front(plan(methods=["gdod:groups=4", "mgda"]), whole.folder, processes=1)
    assert before.items() < times().items()
    assert len(times()) == len(before) + 3
    assert [one["method"] for one in grown.front.verdicts] == ["gdod (groups=4)", "mgda"]
    with pytest.raises(InputError, match="batch is 64, not 32"):
        front(plan(batch=32), whole.folder)


class Killer(Watch):
    """Kills the process of a run as soon as it has begun."""

    def told(self, job: Job, event: dict[str, Any]) -> None:
        if "mgda" in job.name and event["kind"] == "started":
            os.kill(event["process"], signal.SIGKILL)


def test_a_run_that_fails_leaves_its_method_out(place: Path) -> None:
    small = plan(tune=1, seeds=1, rivals=[], single_task=False, methods=["mgda"])
    outcome = front(small, "out", processes=1, watch=Killer())
    assert [*outcome.failed] == ["shared-bottom_bottom=16,embedding=4-mgda-seed0"]
    assert [one.kind for one in outcome.front.points] == ["front"] * 3
    assert not outcome.front.verdicts
    assert "mgda-seed0</strong> failed" in outcome.report.read_text()
    assert any("one seed" in warning for warning in outcome.front.warnings)


@pytest.mark.slow
def test_after_ctrl_c_the_same_command_goes_on(place: Path) -> None:
    table = ("--data", "clicks.csv", "--schema", "clicks.yaml", "--recipe", "paper", "--set", "device=cpu")
    small = ("--points", "3", "--seeds", "2", "--tune", "2", "--steps", "120", "--jobs", "1", "--threads", "1")
    command = ("front", *table, *small, "--method", "mgda", "--out", "out", "--json")
    begun = start(*command)
    until = time.monotonic() + 180
    while not [*place.glob("out/runs/*/result.json")]:
        assert begun.poll() is None
        assert time.monotonic() < until
        time.sleep(0.05)
    begun.send_signal(signal.SIGINT)
    _, errors = begun.communicate(timeout=120)
    assert (begun.returncode, "give the same command again" in errors) == (130, True)
    with pytest.raises(InputError, match="is not finished"):
        Front.read(place / "out")
    finished = {path: path.stat().st_mtime_ns for path in place.glob("out/runs/*/result.json")}
    assert 0 < len(finished) < 4 * (2 + 1)
    again = gdod(*command)
    assert again.exit_code == 0, again.stderr
    assert len(json.loads(again.stdout)["results"]["candidates"]) == 4
    # A run of which the test part was not looked at while it was tuned may have got that since.
    untouched = {path for path, at in finished.items() if path.stat().st_mtime_ns == at}
    assert finished.keys() - untouched <= {path for path in finished if "seed0" in path.parent.name}
    assert len([*place.glob("out/runs/*/result.json")]) == 4 * (2 + 1)


# Choosing


SCORES = {
    "4:1": [(0.84, 0.70), (0.80, 0.72)],
    "1:1": [(0.79, 0.78), (0.77, 0.80)],
    "1:4": [(0.70, 0.82), (0.72, 0.84)],
    "gdod": [(0.60, 0.60), (0.60, 0.60)],
    "lightgbm": [(0.99, 0.99), (0.99, 0.99)],
}


def test_what_is_preferred_is_chosen(tmp_path: Path) -> None:
    front = make_front(tmp_path / "f", SCORES)
    assert choose(front).point.name == "1:1"
    assert choose(front, {"click": 1}).run.name == "4:1-seed0"
    assert choose(front, {"buy": 2, "click": 0}).run.name == "1:4-seed1"
    # Rivals predict with other tools, and 0.7 to 0.3 is the same as 7 to 3.
    assert choose(front, {"buy": 0.7, "click": 0.3}) == choose(front, {"buy": 7, "click": 3})


def test_limits_are_kept_by_the_mean_and_by_the_run(tmp_path: Path) -> None:
    front = make_front(tmp_path / "f", SCORES)
    assert choose(front, {"buy": 1}, {"click": 0.75}).run.name == "1:1-seed1"
    assert choose(front, {"buy": 1}, {"click": 0.78}).run.name == "1:1-seed0"
    assert choose(front, {"buy": 1}, {"click": 0.81}).run.name == "4:1-seed0"
    with pytest.raises(InputError, match=r"nothing on the front reaches click 0.9 .*click 0.8200"):
        choose(front, None, {"click": 0.9})
    with pytest.raises(InputError, match=r"click 0\.83"):  # one of two seeds has 0.84
        choose(front, None, {"click": 0.83})
    with pytest.raises(InputError, match="at once"):
        choose(front, None, {"click": 0.8, "buy": 0.8})


@pytest.mark.parametrize(
    ("prefer", "at_least", "said"),
    [
        ({"bye": 1}, {}, "prefer names 'bye'.*did you mean 'buy'"),
        ({}, {"bye": 1}, "at_least names 'bye'"),
        ({"buy": -1}, {}, "at least 0"),
        ({"buy": 0}, {}, "all numbers are 0"),
    ],
)
def test_wrong_preferences_are_told(
    tmp_path: Path, prefer: dict[str, float], at_least: dict[str, float], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        choose(make_front(tmp_path / "f", SCORES), prefer, at_least)


def test_figures_of_tasks_are_read() -> None:
    assert read_figures("buy=0.7, click=.3", "--prefer") == {"buy": 0.7, "click": 0.3}
    for wrong in ("buy", "buy=", "=1", "buy=x", "buy=nan"):
        with pytest.raises(InputError, match="expected tasks with numbers"):
            read_figures(wrong, "--prefer")
    with pytest.raises(InputError, match="twice"):
        read_figures("buy=1,buy=2", "--prefer")


def test_the_link_leads_to_the_last_choice(tmp_path: Path) -> None:
    front = make_front(tmp_path / "f", SCORES)
    for prefer, run in (({"click": 1.0}, "4:1-seed0"), ({"buy": 1.0}, "1:4-seed1")):
        link = link_choice(choose(front, prefer), front)
        assert link == tmp_path / "f/chosen"
        assert link.resolve().name == run
    link.unlink()
    link.mkdir()
    with pytest.raises(InputError, match="no link"):
        link_choice(choose(front), front)


def test_a_chosen_run_predicts(whole: FrontOutcome, tmp_path: Path) -> None:
    done = gdod("choose", str(whole.folder), "--prefer", "buy=0.7,click=0.3", "--json")
    assert done.exit_code == 0, done.stderr
    told = json.loads(done.stdout)
    assert Path(told["chosen"]).resolve() == Path(told["run"]).resolve()
    tiny.frame(20, seed=1).write_csv(tmp_path / "new.csv")
    done = gdod("predict", told["chosen"], str(tmp_path / "new.csv"), "--out", str(tmp_path / "scores.csv"))
    assert done.exit_code == 0, done.stderr
    assert pl.read_csv(tmp_path / "scores.csv").columns == ["click", "buy"]
    words = gdod("choose", str(whole.folder))
    assert "gdod predict" in words.stdout
    nothing = gdod("choose", str(tmp_path))
    assert nothing.exit_code == 2
    assert "gdod front" in nothing.stderr


# What is wrong is told before any run


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"methods": ["gdod", "gdod"]}, "methods: 'gdod' is given twice"),
        ({"methods": ["sum"]}, "'sum' is the front itself"),
        ({"methods": ["gdodd"]}, "did you mean 'gdod'"),
        ({"rivals": ["lightgbm", "lightgbm"]}, "given twice"),
        ({"points": 2}, "at least 3 weightings"),
        ({"points": 4}, "an odd number for two tasks"),
        ({"span": 1}, "span=1; expected a number above 1"),
        ({"tune": 0}, "tune=0"),
        ({"tune": 10}, "at most 9"),
        ({"task_weights": {"click": 2}}, "task_weights are what a front varies"),
        ({"model": "single-task"}, "a front is of one model"),
        ({"weights": [{"click": 1, "buy": 0}]}, "both weights and points"),
    ],
)
def test_wrong_settings_are_told(place: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        plan(**options)
    assert not [path for path in place.iterdir() if path.name in ("runs", "out")]


def test_weights_of_zero_are_told(place: Path) -> None:
    settings = {name: value for name, value in SETTINGS.items() if name != "points"}
    with pytest.raises(InputError, match="expected a number above 0"):
        read_front(options={**settings, "weights": [{"click": 1, "buy": 0}]})
    table = ("--data", "clicks.csv", "--schema", "clicks.yaml", "--recipe", "paper")
    done = gdod("front", *table, "--weights", "click=0,buy=1")
    assert (done.exit_code, "above 0" in done.stderr) == (2, True)
    few = gdod("front", *table, "--weights", "click=1,buy=1")
    assert "at least 3" in few.stderr


def test_one_task_is_told(place: Path) -> None:
    (place / "clicks.yaml").write_text(SCHEMA.replace("buy: label", "buy: ignore"))
    with pytest.raises(InputError, match=r"has one task \(click\); a front needs two"):
        plan()


def test_a_task_that_a_part_lacks_is_told(place: Path) -> None:
    """By time, so that purchases end before the test part begins."""
    frame = tiny.frame(1000).with_columns(day=pl.int_range(1000), buy=pl.when(pl.int_range(1000) < 700).then("buy"))
    split = "split: {by: time, column: day, validation: 0.2, test: 0.2}"
    (place / "clicks.yaml").write_text(SCHEMA[: SCHEMA.index("split:")] + "  day: ignore\n" + split + "\n")
    for change, said in (
        (pl.col("buy"), "the test part of .* has no label of the task 'buy'"),
        (pl.col("buy").fill_null(1), "the test part of .* has no label but 1 of the task 'buy'"),
    ):
        frame.with_columns(buy=change).write_csv(place / "clicks.csv")
        with pytest.raises(InputError, match=said):
            plan()


def test_a_part_that_is_not_there_is_told(place: Path) -> None:
    (place / "clicks.yaml").write_text(SCHEMA.replace("test: 0.2", "test: 0"))
    with pytest.raises(InputError, match="has no test part"):
        plan()


def test_check_says_what_would_be_run(place: Path) -> None:
    done = gdod("front", "--data", "clicks.csv", "--schema", "clicks.yaml", "--method", "gdod", "--check")
    assert done.exit_code == 0, done.stderr
    told = json.loads(done.stdout)
    assert len(told["weights"]) == 11
    assert len(told["tune"]) == 5
    assert told["runs"] == 12 * (5 + 2)
    assert done.stderr.startswith("recipe strong, for 640 training rows")
    assert not (place / "runs").exists()


def test_a_budget_of_rates_begins_with_the_recipe_and_drops_decays_of_nothing(place: Path) -> None:
    assert [rate.text for rate in plan(tune=5).rates] == ["", "lr=0.00333", "lr=0.03"]
    rates = plan_front({"data": {"source": "clicks.csv", "schema": "clicks.yaml"}, "tune": 9}).rates
    assert len(rates) == 9
    assert rates[0].settings == {}
    assert len({str(rate.settings) for rate in rates}) == 9


def test_few_weightings_of_many_tasks_are_warned_of(place: Path) -> None:
    table = {"data.source": "ads", "data.options": {"rows": 600, "users": 60}, "recipe": "paper"}
    assert sparse_warning(read_front(options={**table, "points": 4})) is None
    warning = sparse_warning(read_front(options={**table, "points": 3}))
    assert warning is not None
    assert "3 weightings of 3 tasks are too few" in warning


def test_warnings_say_what_more_weightings_would_cost(place: Path) -> None:
    """Twice as many, of which those that were trained are not trained again, at the time that they took."""
    small = plan(points=5, tune=2, seeds=5, rivals=[], single_task=False)
    nothing = Interval(0.0, 0.0, 0.0)
    front = {name: Judged(np.zeros(2), Scored(np.zeros(2), np.zeros((2, 2)))) for name in ("1:32", "1:1")}
    seconds = {"1:32": 10.0, "1:1": 20.0}

    def said(weighting: str, d: float, gap: float) -> list[str]:
        verdict = Verdict(weighting, 0.0, Interval(d, d, d), (nothing, nothing), gap, 0.01, 0.01)
        return _warnings(small, {"gdod": verdict}, front, seconds)

    (gaps,) = said("1:1", -0.1, 0.2)
    # 9 points have the 5; each new one tries two rates and has four further seeds: 4 x 6 runs of 15 s.
    assert "gdod: no weighting is better on every task, but the front has gaps" in gaps
    assert "With --points 9 there are 4 more: 24 runs, about 6 min 00 s of training" in gaps
    assert said("1:1", -0.3, 0.2) == []
    (end,) = said("1:32", -0.3, 0.2)
    assert "give a larger --span" in end
