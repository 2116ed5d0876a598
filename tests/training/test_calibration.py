"""Calibration against scikit-learn's, what a run keeps of it, and probabilities for tables without all negatives."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from sklearn.calibration import _SigmoidCalibration
from sklearn.isotonic import IsotonicRegression
from tests.training import tiny
from typer.testing import CliRunner

from gdod import InputError, MultiTaskModel
from gdod.cli import app
from gdod.report import write_report
from gdod.training import Silent, export, load_run, train
from gdod.training.calibration import Line, Steps, fit_line, fit_steps, with_all_negatives


def drawn(rows: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Return labels, and probabilities that are too sure and too high."""
    random = np.random.default_rng(seed)
    logit = random.normal(-1, 1.5, rows)
    labels = random.random(rows) < 1 / (1 + np.exp(-logit))
    return torch.tensor(labels, dtype=torch.float32), torch.tensor(1 / (1 + np.exp(-(2 * logit + 1))))


@pytest.mark.parametrize("rows", [12, 500])
def test_the_line_is_that_of_scikit_learn(rows: int) -> None:
    labels, probabilities = drawn(rows)
    line = fit_line(labels, probabilities)
    theirs = _SigmoidCalibration().fit(torch.logit(probabilities).numpy(), labels.numpy())
    expected = theirs.predict(torch.logit(probabilities).numpy())
    np.testing.assert_allclose(line(probabilities).numpy(), expected, atol=1e-4)
    if rows == 500:  # it finds how the probabilities were spoiled
        assert 0.35 < line.slope < 0.65
        assert -0.8 < line.intercept < -0.2


def test_labels_that_are_told_apart_have_a_line() -> None:
    labels, probabilities = torch.tensor([0.0, 0, 0, 1, 1]), torch.tensor([0.1, 0.2, 0.3, 0.8, 0.9]).double()
    fitted = fit_line(labels, probabilities)(probabilities)
    assert bool(fitted.isfinite().all())
    assert bool((fitted.diff() > 0).all())
    assert float(fitted[0]) > 0.01


def test_the_steps_are_those_of_scikit_learn() -> None:
    labels, probabilities = drawn(400)
    probabilities = (probabilities * 200).round() / 200  # with ties
    steps = fit_steps(labels, probabilities)
    theirs = IsotonicRegression(out_of_bounds="clip").fit(probabilities.numpy(), labels.numpy())
    asked = torch.linspace(0, 1, 301, dtype=torch.float64)
    rates = theirs.y_thresholds_.clip(1 / 402, 1 - 1 / 402)  # none is 0 or 1
    expected = np.interp(asked.numpy(), theirs.X_thresholds_, rates)
    np.testing.assert_allclose(steps(asked).numpy(), expected, atol=1e-9)
    assert len(steps.rates) < 60
    constant = fit_steps(torch.tensor([0.0, 1, 0]), torch.tensor([0.5, 0.5, 0.5]))
    assert constant(torch.tensor([0.1, 0.9])).tolist() == pytest.approx([1 / 3, 1 / 3])


def test_all_negatives_are_made_up_for() -> None:
    (line,) = with_all_negatives({"click": 0.1}).values()
    # 1 of 11 examples positive, once nine in ten negatives were left out: 1 of 101 with all of them
    assert float(line(torch.tensor(1 / 11, dtype=torch.float64))) == pytest.approx(1 / 101)
    certain = torch.tensor([0.0, 1.0])
    assert line(certain).tolist() == pytest.approx([0, 1], abs=1e-6)


@pytest.fixture(scope="module")
def spoiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose positives of `click` count five times."""
    folder = tmp_path_factory.mktemp("runs") / "spoiled"
    train(tiny.config(epochs=2, positive_weights={"click": 5}), folder, dataset=tiny.dataset())
    return folder


@pytest.mark.parametrize("kind", ["platt", "isotonic"])
def test_a_run_keeps_its_calibration(kind: str, spoiled: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    said: list[str] = []

    class Heard(Silent):
        def say(self, text: str) -> None:
            said.append(text)

    config = tiny.config(epochs=2, positive_weights={"click": 5}, calibrate=kind)
    result = train(config, folder, dataset=tiny.dataset(), progress=Heard())
    raw, fitted = load_run(spoiled), load_run(folder)
    assert fitted.calibrators.keys() == result["calibrators"].keys() == {"click", "buy"}
    assert isinstance(fitted.calibrators["click"], Line if kind == "platt" else Steps)
    assert raw.result is not None
    assert result["before_calibration"] == {name: raw.result[name] for name in ("test", "calibration")}
    frame = tiny.frame(400, seed=9)
    before, after = raw.predict(frame), fitted.predict(frame)
    assert float(before["click"].mean()) > float(frame["click"].mean()) + 0.1  # type: ignore[arg-type]
    assert abs(float(after["click"].mean()) - float(frame["click"].mean())) < 0.05  # type: ignore[arg-type]
    expected = fitted.calibrators["click"](before["click"].to_torch())
    assert torch.equal(after["click"].to_torch(), expected)
    losses = [run.evaluate(frame)["tasks"]["click"]["log_loss"] for run in (raw, fitted)]
    assert losses[1] < losses[0] - 0.05
    assert (
        result["test"]["tasks"]["click"]["log_loss"]
        < result["before_calibration"]["test"]["tasks"]["click"]["log_loss"]
    )
    assert any(f"calibrated on the validation part ({kind}); log loss on the test part: click " in one for one in said)
    # Only the best weights were calibrated.
    assert not load_run(folder, weights="last").calibrators


def test_the_report_shows_calibration_before_and_after(tmp_path: Path) -> None:
    train(tiny.config(steps=5, calibrate="platt"), tmp_path / "run", dataset=tiny.dataset())
    write_report([tmp_path / "run"], tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "click, before calibration" in page
    assert "click: calibration" in page
    train(tiny.config(steps=5), tmp_path / "plain", dataset=tiny.dataset())
    write_report([tmp_path / "plain"], tmp_path / "plain.html")
    assert "before calibration" not in (tmp_path / "plain.html").read_text()


@pytest.mark.parametrize("kind", ["platt", "isotonic"])
def test_programs_give_calibrated_and_corrected_probabilities(kind: str, tmp_path: Path) -> None:
    config = tiny.config(steps=20, calibrate=kind, negatives_kept={"buy": 0.25})
    train(config, tmp_path / "run", dataset=tiny.dataset())
    tiny.frame(200, seed=2).write_csv(tmp_path / "rows.csv")
    run = load_run(tmp_path / "run")
    for ending in (".onnx", ".pt2"):  # which check themselves against the run
        written = export.export_run(run, tmp_path / f"model{ending}", table=tmp_path / "rows.csv", overwrite=True)
        assert written.rows == 200


def test_predictions_are_those_of_the_table_with_all_negatives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GDOD_CACHE", str(tmp_path / "cache"))
    whole = tiny.frame(8000).drop("id", "w", "buy")
    draw = pl.Series(np.random.default_rng(1).random(len(whole)))
    few = whole.filter((pl.col("click") == 1) | (draw < 0.2))
    model = MultiTaskModel(steps=150, threads=1, verbose=False, negatives_kept={"click": 0.2}).fit(few)
    new = tiny.frame(3000, seed=4).drop("id", "w", "buy")
    rate = float(new["click"].mean())  # type: ignore[arg-type]
    assert abs(float(model.predict_proba(new)["click"].mean()) - rate) < 0.05
    model.save(tmp_path / "run")
    new.write_parquet(tmp_path / "new.parquet")

    def loss(*options: str) -> float:
        command = ["evaluate", str(tmp_path / "run"), str(tmp_path / "new.parquet"), "--json"]
        done = CliRunner().invoke(app, [*command, *options])
        assert done.exit_code == 0, done.output
        return float(json.loads(done.stdout)["tasks"]["click"]["log_loss"])

    assert loss("--all-negatives") < loss() - 0.1
    # Labels as those of training: uncorrected, as the run's own test.
    assert model.result_ is not None
    tasks = model.evaluate(few)["tasks"], model.result_["test"]["tasks"]
    assert abs(tasks[0]["click"]["log_loss"] - tasks[1]["click"]["log_loss"]) < 0.1


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"calibrate": "plat"}, "did you mean 'platt'"),
        ({"positive_weights": {"klick": 2}}, "did you mean 'click'"),
        ({"positive_weights": {"click": 0}}, "greater than 0"),
        ({"negatives_kept": {"click": 1.5}}, "less than or equal to 1"),
        ({"negatives_kept": {"bye": 0.5}}, "did you mean 'buy'"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], problem: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=problem):
        train(tiny.config(steps=1, **settings), tmp_path / "run", dataset=tiny.dataset(60, 20, 20))
    assert not (tmp_path / "run").exists()


def test_calibration_needs_a_validation_part(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="calibrate='platt' needs a validation part"):
        train(tiny.config(steps=1, calibrate="platt"), tmp_path / "run", dataset=tiny.dataset(60, 0, 20))
