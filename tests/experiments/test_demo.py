"""The demo runs from the command line, and its tables and report say what was measured."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from gdod.cli import app
from gdod.experiments import demo
from gdod.experiments.plan import PAPER
from gdod.training import TrainConfig


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """What `gdod demo --quick` prints without a terminal, and its folder."""
    place = tmp_path_factory.mktemp("demo")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GDOD_CACHE", str(place / "cache"))
        patch.setenv("COLUMNS", "80")
        result = CliRunner().invoke(app, ["demo", "--quick", "--out", str(place / "out")])
    assert result.exit_code == 0, result.output
    return result.output, place / "out"


def test_the_command_prints_both_tables_and_where_the_report_is(done: tuple[str, Path]) -> None:
    output, folder = done
    for expected in (
        *PAPER,
        "lightgbm",
        "AUC on test data",
        "Log loss on test data",
        "best reachable",
        "1.00×",
        "[20/20]",
    ):
        assert expected in output
    assert f"Report: {folder / 'report.html'}" in output
    assert "\x1b" not in output  # no terminal, no colours, no bars
    assert "…" not in output  # the tables fit into 80 columns
    assert "<script src" not in (folder / "report.html").read_text()


def test_the_table_has_the_means_of_the_runs(done: tuple[str, Path]) -> None:
    output, folder = done
    results = [json.loads(path.read_text()) for path in folder.glob("runs/shared-bottom-gdod-seed*/result.json")]
    assert len(results) == demo.SEEDS
    tasks = [sum(one["test"]["tasks"][task]["auc"] for one in results) / len(results) for task in ("click", "visit")]
    row = next(line for line in output.splitlines() if line.split()[:1] == ["gdod"])
    assert row.split()[1:3] == [f"{value:.4f}" for value in tasks]


def test_the_best_reachable_auc_is_the_simulators(done: tuple[str, Path]) -> None:
    output, folder = done
    best = demo.best_reachable(demo.demo_plan(quick=True))
    notes = json.loads((folder / "runs/shared-bottom-sum-seed0/about.json").read_text())["data"]["notes"]
    for task, value in best.items():
        assert value is not None
        assert any(note.startswith(f"{task}:") and note.endswith(f"{value:.4f}") for note in notes)
        assert f"{value:.4f}" in output


def test_again_nothing_is_trained_and_a_terminal_gets_the_same_tables(
    done: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    output, folder = done
    monkeypatch.setenv("GDOD_CACHE", str(folder.parent / "cache"))
    screen = io.StringIO()
    outcome = demo.run(folder, quick=True, console=Console(file=screen, force_terminal=True, width=80, no_color=True))
    assert outcome.failed == {}
    assert "20 of 20 runs are finished already" in screen.getvalue()
    rows = [line.split() for line in output.splitlines() if line.startswith(" gdod")]
    assert [line.split() for line in screen.getvalue().splitlines() if line.startswith(" gdod")] == rows


def test_without_its_library_there_is_no_rival_and_a_line_says_how_to_install_it(
    done: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    output, folder = done
    assert "lightgbm: one model a task" in output
    assert "pip install" not in output
    monkeypatch.setenv("GDOD_CACHE", str(folder.parent / "cache"))
    monkeypatch.setattr(demo, "has_rival", lambda: False)
    screen = io.StringIO()
    demo.run(folder, quick=True, console=Console(file=screen, width=100))
    assert "18 of 18 runs are finished already" in screen.getvalue()
    assert "pip install 'gdod[rivals]'" in screen.getvalue()


def test_all_runs_have_the_recipe_that_is_asked_for(done: tuple[str, Path]) -> None:
    _, folder = done
    stored = [json.loads(path.read_text()) for path in folder.glob("runs/shared-bottom-*/config.json")]
    assert {(one["recipe"], one["filled"]) for one in stored} == {("strong", True)}
    plan = demo.demo_plan(recipe="paper", quick=True)
    configs = [run.config for run in plan.runs if isinstance(run.config, TrainConfig)]
    assert {(config.recipe, config.data.features) for config in configs} == {("paper", None)}


def test_the_plan_is_the_papers_methods_with_two_seeds() -> None:
    plan = demo.demo_plan(seed=5)
    assert [method.name for method in plan.methods] == list(PAPER)
    assert plan.seeds == (5, 6)
    assert plan.config.data.options["conflict"] > 0
    assert plan.config.data.options["seed"] == 5
