"""What `gdod explain` found out about a run, on its page: pictures with their numbers, and nothing of it is markup."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.report.made_runs import make_comparison, make_run, write_json
from tests.report.test_page import Outline

from gdod.report import write_report

EVIL = "<img src=x onerror=alert(1)>\"'&</script><script>alert(2)</script>"


def explanation(name: str = "city", tasks: tuple[str, ...] = ("click", "buy"), members: int = 1) -> dict[str, Any]:
    """Return the content of an explanation.json; ``name`` is the first column, branch, expert and layer."""
    how = {"table": f"{name}.csv", "rows": 1234, "step": 150}
    columns = [
        {"task": task, "column": column, "metric": "auc", "value": 0.8, "importance": drop, "low": drop - 0.01}
        | {"high": drop + 0.02}
        for task in tasks
        for column, drop in ((name, 0.25), ("age", -0.0625))
    ]
    experts = [
        {"level": level, "branch": branch, "expert": expert, "weight": weight, "deviation": 0.125}
        for level in (1, 2)
        for branch in (name, "shared branch")
        for expert, weight in ((f"{name} 1", 0.75), ("shared 1", 0.25))
    ]
    pairs = [(first, second) for at, first in enumerate(tasks) for second in tasks[at + 1 :]]
    conflict = [
        {"layer": layer, "parameters": 4321, "task": first, "other": second, "cosine": cosine, "low": cosine - 0.1}
        | {"high": cosine + 0.1, "energy_kept": 0.375, "directions_kept": 0.5, "batches": 9}
        for layer, cosine in ((name, -0.5), ("bottom.0", 0.125))
        for first, second in pairs
    ]
    return {
        "importance": {**how, "seed": 0, "repeats": 5, "entries": columns},
        "experts": {**how, "members": members, "entries": experts},
        "conflict": {**how, "seed": 0, "batches": 9, "batch": 64, "entries": conflict},
    }


def page_of(folder: Path, content: object, **options: Any) -> str:
    run = make_run(folder / "run", evaluations=3, **options)
    write_json(run / "explanation.json", content)
    text = write_report([run], folder / "r.html").read_text(encoding="utf-8")
    Outline(text)
    return text


def test_all_three_parts_are_shown_with_their_numbers(tmp_path: Path) -> None:
    text = page_of(tmp_path, explanation(members=8))
    assert 'href="#explained0"' in text
    for title in ("Which columns matter", "Which experts the tasks use", "Where the tasks conflict"):
        assert f"<h3>{title}</h3>" in text
    assert text.count('<svg class="bars"') == 2
    assert text.count('<svg class="heat wide"') == 3
    assert "From 1,234 rows of city.csv." in text
    assert "mean over the ensemble&#x27;s 8 members" in text
    assert "9 batches of 64 rows" in text
    assert "<td>0.2500</td><td>0.2400 to 0.2700</td>" in text  # importance and its interval
    assert "<td>0.7500</td><td>0.1250</td>" in text  # weight and its spread
    assert 'data-value="0.375"' in text  # energy kept
    assert text.count('text-anchor="middle">−0.50</text>') == 1
    assert "trained on since" not in text


def test_runs_without_explanations_have_no_such_section(tmp_path: Path) -> None:
    text = write_report([make_run(tmp_path / "run", evaluations=2)], tmp_path / "r.html").read_text(encoding="utf-8")
    assert "explained0" not in text
    assert "Explanations" not in text


def test_names_are_never_markup(tmp_path: Path) -> None:
    text = page_of(tmp_path, explanation(EVIL, (EVIL, "buy")), tasks=(EVIL, "buy"))
    assert "<img" not in text
    assert text.count("<script>") == 1
    assert "&lt;img src=x" in text
    for _, attributes in Outline(text).attributes:
        assert not any(name.startswith("on") for name in attributes)


def test_what_is_damaged_is_left_out(tmp_path: Path) -> None:
    whole = explanation()
    whole["importance"]["entries"] = [5, {"task": "click"}, {**whole["importance"]["entries"][0], "low": None}]
    whole["experts"] = {"entries": {"not": "a list"}}
    whole["conflict"]["entries"][0]["cosine"] = "much"
    whole["conflict"]["batch"] = []
    text = page_of(tmp_path, whole)
    assert "Which columns matter" not in text
    assert "Which experts" not in text
    assert "bottom.0" in text
    run = tmp_path / "run"
    (run / "explanation.json").write_text(json.dumps(whole)[:-9])
    text = write_report([run], tmp_path / "r.html").read_text(encoding="utf-8")
    assert "explanation.json cannot be read" in text
    assert "Where the tasks conflict" not in text


def test_weights_that_are_no_longer_the_best_are_told(tmp_path: Path) -> None:
    whole = explanation()
    whole["importance"]["step"] = 50
    text = page_of(tmp_path, whole)
    assert text.count("The run has trained on since then, and its best weights are those of step 150.") == 1


@pytest.mark.parametrize(("tasks", "columns"), [(6, 15), (7, 7)])
def test_of_many_tasks_each_is_shown_with_all_others(tmp_path: Path, tasks: int, columns: int) -> None:
    names = tuple(f"task{number}" for number in range(tasks))
    text = page_of(tmp_path, explanation(tasks=names), tasks=names)
    grid = re.findall(r'<svg class="heat wide".*?</svg>', text)[-1]
    assert grid.count('class="value"') == 2 * columns
    assert grid.count(">−0.50<") == columns  # all cosines of that layer are equal, and so is their mean


def test_runs_of_a_comparison_are_told_apart(tmp_path: Path) -> None:
    folder = make_comparison(tmp_path / "c", methods=["sum", "gdod"], seeds=(0,), evaluations=2)
    runs = sorted((folder / "runs").iterdir())
    for run in runs[:2]:
        write_json(run / "explanation.json", explanation())
    text = write_report([folder], tmp_path / "r.html").read_text(encoding="utf-8")
    Outline(text)
    assert text.count("<h3>Which columns matter</h3>") == 2
    for run in runs[:2]:
        assert f"<summary>{run.name}</summary>" in text
