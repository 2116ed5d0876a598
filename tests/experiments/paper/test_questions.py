"""`gdod reproduce front-questions`: which ladders of fronts are made, and what their page says."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.report.made_front import make_front
from typer.testing import CliRunner

from gdod.cli import app
from gdod.experiments.front.plan import read_front
from gdod.experiments.paper.cases import Scale
from gdod.experiments.paper.questions import METHODS, QUESTIONS, QuestionStudy
from gdod.experiments.paper.reproduce import chosen, reproduce
from gdod.experiments.paper.sets import FRONT_SETS, find_sets

TINY = Scale(seeds=(0,), evaluations=1, steps=2, rows=4_000)
SCORES = {"1:1": [[0.7, 0.7]], "8:1": [[0.8, 0.6]], "gdod": [[0.75, 0.7]], "pcgrad": [[0.6, 0.6]]}
PLACES = {"gdod": "above", "pcgrad": "below"}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is downloaded, so that only simulated ads are there."""
    monkeypatch.setenv("GDOD_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def study(tmp_path: Path, cache: None) -> QuestionStudy:
    return QuestionStudy(tmp_path / "out", find_sets(None, FRONT_SETS), TINY, 1)


@pytest.fixture
def with_log(tmp_path: Path, cache: None) -> QuestionStudy:
    """A study that finds a folder of the shop log, whose content nothing here reads."""
    (tmp_path / "data/ijcai15").mkdir(parents=True)
    (tmp_path / "data/ijcai15/user_log_format1.csv").touch()
    return QuestionStudy(tmp_path / "out", find_sets(tmp_path / "data", FRONT_SETS), Scale(), 1)


def _made(study: QuestionStudy, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of the fronts that a study would make, in their order."""
    names: list[str] = []
    monkeypatch.setattr(study, "make_front", lambda name, settings: names.append(name))
    study.make()
    return names


def _table(page: str) -> list[str]:
    """Return the rows of the first table, without its head."""
    return [line for line in page.split("\n## ")[0].splitlines() if line.startswith("| ") and "| ---" not in line][1:]


def test_the_levels_of_a_question_differ_in_what_it_asks_and_in_nothing_else(with_log: QuestionStudy) -> None:
    changed = {"rarer": {"data"}, "smaller": {"model"}, "batch": {"batch"}, "sgd": {"optimizer"}, "stem": {"model"}}
    for question in QUESTIONS:
        levels = [with_log.settings(question, level) for level in question.levels]
        assert len(levels) > 1
        for other in levels[1:]:
            differ = {name for name in levels[0] | other if levels[0].get(name) != other.get(name)}
            assert differ == changed[question.name]


def test_everybody_has_the_same_budget_and_two_tasks_get_rarer(study: QuestionStudy) -> None:
    whole = QuestionStudy(study.folder, study.sets, Scale(rows=4_000), 1)
    (rarer,) = (question for question in QUESTIONS if question.name == "rarer")
    plans = [read_front(options=whole.settings(rarer, level)) for level in rarer.levels]
    rates = [_rate(plan.dataset.train) for plan in plans]
    assert rates == sorted(rates, reverse=True)
    assert rates[0] > 5 * rates[-1] > 0
    for plan in plans:
        assert plan.tasks == ("click", "visit")
        assert len({rate.text for rate in plan.rates}) == 3
        assert [one.method for one in plan.of("method")] == list(METHODS)
        assert plan.most_runs == 7 * (3 + 4)  # five weightings and two methods; learning rates, and four more seeds


def _rate(part: Any) -> float:
    from gdod.experiments.front.rows import PartRows
    from gdod.schema import Task

    labels = PartRows.read(part, (Task("visit", "binary"),)).labels["visit"]
    return float(labels.mean())


def test_questions_that_share_a_level_share_its_front(with_log: QuestionStudy, monkeypatch: pytest.MonkeyPatch) -> None:
    settings: dict[str, Mapping[str, Any]] = {}

    def note(name: str, given: Mapping[str, Any]) -> None:
        assert settings.setdefault(name, given) == given  # the same folder is never asked for another front

    monkeypatch.setattr(with_log, "make_front", note)
    with_log.make()
    ladders = [f"{one.data}/{level.folder}" for one in QUESTIONS for level in one.levels]
    assert ladders.count("ijcai15/recipe") == 4
    assert sorted(settings) == sorted({f"front-questions/{one}" for one in ladders})


def test_only_questions_that_are_named_and_whose_data_is_there_are_made(
    study: QuestionStudy, with_log: QuestionStudy, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert {name.split("/")[1] for name in _made(study, monkeypatch)} == {"ads"}
    with_log.only = ["batch"]
    assert _made(with_log, monkeypatch) == ["front-questions/ijcai15/recipe", "front-questions/ijcai15/batch=1024"]


def test_names_reach_their_questions(tmp_path: Path, cache: None, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(QuestionStudy, "make", lambda study: asked.append(tuple(study.only)))
    monkeypatch.setattr("gdod.experiments.paper.fronts.FrontStudy.make", lambda study: None)
    every = tuple(one.name for one in QUESTIONS)
    for name, only in {"front-sgd": [("sgd",)], "front-questions": [every], "front": [], "front-ads": []}.items():
        asked.clear()
        reproduce([name], tmp_path / "out", quick=True)
        assert asked == only
    assert chosen(["front-questions", "front-rarer"]) == []
    assert "front-questions Further questions" in CliRunner().invoke(app, ["reproduce", "--list"]).stdout


def test_the_page_has_a_row_for_each_level_and_corrects_for_distinct_cells(with_log: QuestionStudy) -> None:
    make_front(with_log.folder / "front-questions/ijcai15/recipe", SCORES, places=PLACES, warnings=["few", "sparse"])
    page = with_log.write(with_log.folder / "pages").read_text()
    rows = _table(page)
    assert len(rows) == 4  # of four questions
    # p is 0.02 for both methods. These are two cells, though four questions show them.
    assert all("−0.0123 [−0.0200, −0.0010], p 0.040: above the front |" in row for row in rows)
    assert (with_log.folder / "pages/front-questions.png").exists()
    below = page[page.index("## ijcai15, recipe") :]
    assert "| weights 8:1 |" in below  # and with it scores and learning rates of all that was trained
    assert "- few.\n- sparse." in below
    make_front(with_log.folder / "front-questions/ijcai15/batch=1024", SCORES, places=PLACES)
    rows = _table(with_log.write(with_log.folder / "pages").read_text())
    assert len(rows) == 5
    assert all("p 0.080" in row for row in rows)


def test_the_page_tells_runs_that_failed(with_log: QuestionStudy) -> None:
    place = with_log.folder / "front-questions/ijcai15/sgd"
    made = make_front(place, SCORES, places=PLACES)
    failed = {"gdod-lr=3-seed0": "step 36: the loss is not finite; the last good checkpoint is /home/me/last.pt"}
    (place / "front.json").write_text(json.dumps({**made.asked, "failed": failed}))
    page = with_log.write(with_log.folder / "pages").read_text()
    assert "- The run gdod-lr=3-seed0 failed: step 36: the loss is not finite.\n" in page
    assert "/home/me" not in page


def test_a_front_that_is_not_finished_is_left_out(with_log: QuestionStudy) -> None:
    assert "No front is finished yet" in with_log.write(with_log.folder / "pages").read_text()
    begun = with_log.folder / "front-questions/ijcai15/sgd"
    begun.mkdir(parents=True)
    (begun / "front.json").write_text('{"data": "ijcai15"}')
    make_front(with_log.folder / "front-questions/ijcai15/stem", SCORES, places=PLACES)
    (row,) = _table(with_log.write(with_log.folder / "pages").read_text())
    assert "| model: stem |" in row


@pytest.mark.slow
def test_it_runs(study: QuestionStudy, tmp_path: Path) -> None:
    study.only = ["rarer"]
    study.make()
    assert not study.failed
    page = study.write(study.folder / "pages").read_text()
    assert [row.split(" | ")[2] for row in _table(page)] == ["visits: 15.0%", "visits: 4.5%", "visits: 1.5%"]
    assert all(method.name in page for method in METHODS)
