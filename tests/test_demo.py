"""The demo runs from the command line and its tables say what was measured."""

import io

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from gdod import demo
from gdod.cli import app


def test_the_command_prints_both_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    result = CliRunner().invoke(app, ["demo", "--steps", "2"])
    assert result.exit_code == 0, result.output
    for expected in ("Two tasks", "Six tasks", "plain sum", "GDOD", "Weighted-GDOD", "1.00×"):
        assert expected in result.output
    assert "\x1b" not in result.output


def test_the_command_refuses_no_steps() -> None:
    assert CliRunner().invoke(app, ["demo", "--steps", "0"]).exit_code == 2


def test_the_bar_is_drawn_in_a_terminal_and_the_tables_fit_it() -> None:
    screen = io.StringIO()
    demo.run(steps=2, console=Console(file=screen, force_terminal=True, width=80, no_color=True))
    assert "steps" in screen.getvalue()
    assert "…" not in screen.getvalue()


def test_training_learns_and_keeps_less_than_everything() -> None:
    problem = demo.PROBLEMS[0]
    plain, gdod_outcome, weighted = demo.train(problem, steps=150, seed=0, on_step=lambda: None)
    assert (plain.energy_kept, plain.slowdown) == (1.0, 1.0)
    for outcome in (plain, gdod_outcome, weighted):
        assert min(outcome.auc.values()) > 0.55
    for outcome in (gdod_outcome, weighted):
        assert 0 < outcome.energy_kept < 1


def test_the_same_seed_makes_the_same_data_and_tasks_differ() -> None:
    problem = demo.PROBLEMS[1]
    (first, _), (second, _) = (demo.make_data(problem, seed=3) for _ in range(2))
    assert torch.equal(first.ids, second.ids)
    assert torch.equal(first.labels, second.labels)
    rates = first.labels.mean(0)
    assert ((rates > 0.1) & (rates < 0.6)).all()
    correlation = torch.corrcoef(first.labels.T)
    assert correlation.triu(1).min() < 0  # some tasks pull apart
