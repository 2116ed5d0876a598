"""The page, the tables and the picture of a front: from `front.json` alone."""

import csv
import io
import json
import re
from itertools import combinations
from pathlib import Path

import pytest
from tests.report.made_front import make_front

from gdod import InputError
from gdod.experiments.front.picture import draw_front
from gdod.report.front import (
    MEANINGS,
    PLACES,
    Front,
    front_csv,
    front_figures,
    front_markdown,
    front_page,
    point_table,
    verdict_sentences,
    verdict_table,
)

SCORES = {
    "1:4": [(0.70, 0.82), (0.72, 0.84)],
    "1:1": [(0.79, 0.78), (0.77, 0.80)],
    "2:1": [(0.77, 0.75), (0.77, 0.75)],
    "4:1": [(0.84, 0.70), (0.80, 0.72)],
    "gdod": [(0.80, 0.80), (0.80, 0.80)],
    "single-task": [(0.75, 0.75), (0.75, 0.75)],
    "lightgbm": [(0.60, 0.60), (0.60, 0.60)],
}


@pytest.fixture
def front(tmp_path: Path) -> Front:
    return make_front(tmp_path / "f", SCORES, places={"gdod": "above"}, warnings=["few seeds"])


def test_the_line_joins_what_no_weighting_is_better_than_on_both_tasks(front: Front) -> None:
    for pair, line in {("click", "buy"): [71, 83, 78, 79, 82, 71], ("buy", "click"): [71, 82, 79, 78, 83, 71]}.items():
        assert [round(100 * value) for point in front.undominated(*pair) for value in point] == line


def test_the_page_says_where_methods_lie_and_draws_everything(front: Front) -> None:
    page = front_page(front)
    for text in (PLACES["above"], MEANINGS["above"], "few seeds", "−0.0123", "weights 4:1", "AUC of click"):
        assert text in page
    (chart,) = re.findall(r'<svg class="chart.*?</svg>', page, re.DOTALL)
    assert len(re.findall(r'class="series', chart)) == len(SCORES)
    assert chart.count('class="reach"') == 2  # the cross of the method alone
    assert "http://" not in page.replace("http://www.w3.org", "")


def test_what_a_folder_holds_is_escaped(tmp_path: Path) -> None:
    front = make_front(tmp_path / "f", SCORES, ("<b>", "a&b"), {"gdod": "on"}, ["<script>alert(1)</script>"])
    page = front_page(front)
    assert "<b>" not in page
    assert "<script>alert" not in page
    assert "a&amp;b" in page


def test_more_tasks_have_a_picture_for_each_pair(tmp_path: Path) -> None:
    tasks = tuple("abcdefg")
    scores = {name: [[0.7 + place / 100] * len(tasks)] for place, name in enumerate(("equal", "w1", "gdod"))}
    front = make_front(tmp_path / "f", scores, tasks, {"gdod": "gap"})
    titles = [figure.title for figure in front_figures(front)]
    assert titles == [f"{first} and {second}" for first, second in combinations(tasks, 2)]
    page = front_page(front)
    assert "6 more pairs of tasks" in page
    draw_front(front, tmp_path / "front.png")
    assert (tmp_path / "front.png").read_bytes().startswith(b"\x89PNG")


def test_the_tables_hold_the_figures(front: Front) -> None:
    (row,) = verdict_table(front).rows
    assert [cell.text for cell in row[:3]] == ["gdod", "above the front", "−0.0123"]
    assert row[2].detail == "[−0.0200, −0.0010]"
    best = {row[0].text: [cell.best for cell in row[1:3]] for row in point_table(front).rows}
    assert best["weights 4:1"] == [True, False]
    assert best["weights 1:4"] == [False, True]
    text = front_markdown(front)
    assert "gdod: above the front" in text
    assert "- few seeds" in text
    lines = list(csv.DictReader(io.StringIO(front_csv(front))))
    assert len(lines) == 2 * len(SCORES)
    assert lines[0] == {
        **{"data": "made", "name": "1:4", "kind": "front", "task": "click", "metric": "AUC", "weight": "1.0"},
        **{"validation": "0.71", "test": "0.71", "difference": "0.0", "low": "-0.01", "high": "0.02", "seconds": "1.0"},
    }


@pytest.mark.parametrize("place", PLACES)
def test_every_place_has_a_sentence(tmp_path: Path, place: str) -> None:
    front = make_front(tmp_path / "f", SCORES, places={"gdod": place})
    (sentence,) = verdict_sentences(front)
    assert sentence.startswith(f"gdod: {PLACES[place]}; {MEANINGS[place]} (d −0.0123 ")


def test_a_front_without_methods_is_a_picture_to_choose_by(tmp_path: Path) -> None:
    front = make_front(tmp_path / "f", {name: SCORES[name] for name in ("1:4", "1:1", "4:1")})
    assert "give --method" in front_page(front)
    assert not verdict_sentences(front)


def test_what_is_not_finished_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"front\.json is missing; expected a front"):
        Front.read(tmp_path)
    (tmp_path / "front.json").write_text(json.dumps({"data": "made"}))
    with pytest.raises(InputError, match="is not finished"):
        Front.read(tmp_path)
    (tmp_path / "front.json").write_text(json.dumps({"data": "made", "results": {"candidates": [{"kind": "front"}]}}))
    with pytest.raises(InputError, match="is damaged"):
        Front.read(tmp_path)


@pytest.mark.parametrize(("score", "drawn"), [(0.4, False), (0.695, True)])
def test_a_rival_far_below_leaves_room_for_the_rest(tmp_path: Path, score: float, drawn: bool) -> None:
    """It is not drawn, and the legend says so; one nearby is drawn as all else is."""
    scores = {"1:1": [[0.70, 0.72]], "4:1": [[0.71, 0.71]], "1:4": [[0.69, 0.73]], "lightgbm": [[score, score]]}
    front = make_front(tmp_path, scores)
    (rival,) = front.of("rival")
    for task in front.tasks:
        assert (front.axis(task).low <= score) == drawn
    assert ("outside" in front.legend(rival)) == (not drawn)
    assert ("outside" in front_page(front)) == (not drawn)
