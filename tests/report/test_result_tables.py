"""The numbers in the tables are those of the run folders."""

import csv
import io
import json
from pathlib import Path

import pytest
from scipy import stats
from tests.report.made_runs import make_comparison, make_run, write_json

from gdod.experiments.summary import figures
from gdod.report import load_studies, markdown_tables, result_tables, run_table, to_csv
from gdod.report.numbers import duration, number, p_value, short, signed
from gdod.report.page import page
from gdod.report.result_tables import overview, trade_sentences
from gdod.report.runs import Repetition

SEEDS = (0, 1, 2)


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tables") / "c"
    models = ("shared-bottom", "mmoe", "single-task")
    return make_comparison(folder, models=models, methods=("sum", "pcgrad", "gdod"), seeds=SEEDS, evaluations=3)


def results(folder: Path, name: str, task: str | None = None, metric: str = "auc") -> list[float]:
    found = []
    for seed in SEEDS:
        result = json.loads((folder / "runs" / f"{name}-seed{seed}" / "result.json").read_text())
        found.append(result["test"]["mean_auc"] if task is None else result["test"]["tasks"][task][metric])
    return found


def test_csv_has_the_statistics(comparison: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(to_csv(load_studies([comparison])))))
    found = {(row["model"], row["method"], row["task"], row["metric"]): row for row in rows}
    for task, metric in ((None, "auc"), ("buy", "auc"), ("click", "log_loss")):
        ours = results(comparison, "mmoe-gdod", task, metric)
        base = results(comparison, "mmoe-sum", task, metric)
        row = found["mmoe", "gdod", task or "mean", metric]
        assert float(row["mean"]) == pytest.approx(sum(ours) / 3)
        expected = stats.ttest_rel(ours, base)
        assert float(row["p"]) == pytest.approx(expected.pvalue)
        low, high = expected.confidence_interval(0.95)
        assert (float(row["low"]), float(row["high"])) == pytest.approx((low, high))
        assert float(row["p_holm"]) >= float(row["p"])
    assert found["mmoe", "sum", "buy", "auc"]["difference"] == ""
    assert float(found["mmoe", "sum", "", "milliseconds_per_step"]["mean"]) == pytest.approx(4, rel=0.03)


def test_overview_has_ranks_gains_and_times(comparison: Path) -> None:
    (study,) = load_studies([comparison])
    table = result_tables(study)[0]
    titles = [column.title for column in table.columns]
    rows = {(row[0].text, row[1].text): dict(zip(titles, row, strict=True)) for row in table.rows}
    assert len(rows) == 7
    assert rows["mmoe", "sum"]["difference from sum"].text == "baseline"
    best = max(rows.values(), key=lambda row: row["mean AUC"].value or 0)
    assert [row["mean AUC"].best for row in rows.values()].count(True) == 1
    assert best["mean AUC"].best
    gains = []
    for seed in range(3):
        relative = [
            results(comparison, "mmoe-gdod", task)[seed] / results(comparison, "single-task-sum", task)[seed] - 1
            for task in ("click", "cart", "buy")
        ]
        gains.append(100 * sum(relative) / 3)
    assert rows["mmoe", "gdod"]["Δm %"].value == pytest.approx(sum(gains) / 3)
    assert rows["single-task", "sum"]["Δm %"].text == "–"
    ranks = [row["average rank"].value for row in rows.values()]
    assert sum(rank for rank in ranks if isinstance(rank, float)) == pytest.approx(7 * 8 / 2)
    assert rows["mmoe", "pcgrad"]["relative time"].value == pytest.approx(1.4, rel=0.03)
    assert rows["mmoe", "sum"]["relative time"].value == 1


def test_markdown_is_made_of_tables(comparison: Path) -> None:
    text = markdown_tables(load_studies([comparison]))
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert "| model | method | mean AUC | difference from sum | p |" in text
    assert len(lines) == 4 * 2 + 3 * 7 + 21  # heads and rules, three tables of settings, all runs
    assert "<svg" not in text


def test_one_seed_says_so(tmp_path: Path) -> None:
    for method in ("sum", "gdod"):
        make_run(tmp_path / method, method=method, evaluations=2)
    (study,) = load_studies([tmp_path])
    text = markdown_tables([study])
    assert "one common seed: no interval and no test" in text
    assert not [line for line in text.splitlines() if line.startswith("|") and "±" in line]


def test_a_task_without_auc_is_left_out_of_the_mean_for_all(tmp_path: Path) -> None:
    for method in ("sum", "gdod"):
        path = make_run(tmp_path / method, method=method, evaluations=2)
        result = json.loads((path / "result.json").read_text())
        result["test"]["tasks"]["buy"] |= {"auc": None, "note": "no AUC: all 9 labels are 0"}
        write_json(path / "result.json", result)
    (study,) = load_studies([tmp_path])
    tasks = json.loads((tmp_path / "gdod" / "result.json").read_text())["test"]["tasks"]
    mean = (tasks["click"]["auc"] + tasks["cart"]["auc"]) / 2
    setting = study.settings[1]
    assert study.values(setting, "auc")[Repetition(0)] == pytest.approx(mean)
    assert study.values(setting, "auc", "buy") == {Repetition(0): None}


def test_other_kinds_of_tasks(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run", tasks=("price", "colour"), evaluations=2)
    about = json.loads((path / "about.json").read_text())
    about["tasks"] = [{"name": "price", "kind": "regression"}, {"name": "colour", "kind": "multiclass"}]
    write_json(path / "about.json", about)
    metrics = {"price": {"rmse": 2.0, "mae": 1.5}, "colour": {"accuracy": 0.7, "log_loss": 0.9}}
    result = json.loads((path / "result.json").read_text())
    write_json(path / "result.json", {**result, "test": None, "validation": {"tasks": metrics, "mean_auc": None}})
    (study,) = load_studies([tmp_path])
    assert study.part == "validation"
    assert [table.name for table in result_tables(study)] == ["overview", "log_loss", "rmse", "mae", "accuracy"]
    assert study.headline_title == "RMSE"
    assert run_table(study).rows[0][4].text == "2.0000"
    # The overview, the page and the figures have a headline for each kind of task.
    table = overview(study)
    cells = dict(zip([column.title for column in table.columns], table.rows[0], strict=True))
    assert (cells["RMSE"].text, cells["accuracy"].text) == ("2.0000", "0.7000")
    assert "RMSE is the figure of price" in table.caption
    assert "Accuracy is the figure of colour" in table.caption
    shown = page([study])
    assert "Lowest RMSE (validation)" in shown
    assert "Highest accuracy (validation)" in shown


def test_the_means_of_several_kinds_of_tasks(tmp_path: Path) -> None:
    """Each is over the tasks of its kind, and compared with the baseline."""
    kinds = {"price": "regression", "click": "binary", "size": "regression", "buy": "binary"}
    for method, gain in (("sum", 0.0), ("gdod", 0.25)):
        path = make_run(tmp_path / method, method=method, tasks=tuple(kinds), evaluations=2)
        about = json.loads((path / "about.json").read_text())
        about["tasks"] = [{"name": name, "kind": kind} for name, kind in kinds.items()]
        write_json(path / "about.json", about)
        numbers = {"price": {"rmse": 2.0 - gain}, "size": {"rmse": 4.0}}
        binary = {"click": {"auc": 0.5 + gain}, "buy": {"auc": 0.5 + gain}}
        result = json.loads((path / "result.json").read_text())
        write_json(path / "result.json", {**result, "test": {"tasks": numbers | binary, "mean_auc": None}})
    (study,) = load_studies([tmp_path])
    assert study.headlines == {"rmse": ("price", "size"), "auc": ("click", "buy")}
    rows = csv.DictReader(io.StringIO(to_csv([study])))
    means = {(row["method"], row["metric"]): float(row["mean"]) for row in rows if row["task"] == "mean"}
    assert means == {("sum", "rmse"): 3.0, ("gdod", "rmse"): 2.875, ("sum", "auc"): 0.5, ("gdod", "auc"): 0.75}
    table = overview(study)
    cells = dict(zip([column.title for column in table.columns], table.rows[1], strict=True))
    assert (cells["mean RMSE"].text, cells["mean AUC"].text, cells["mean AUC"].detail) == (
        "2.8750",
        "0.7500",
        "+0.2500",
    )
    assert cells["mean AUC"].best


def test_a_spreadsheet_runs_no_formula(tmp_path: Path) -> None:
    make_run(tmp_path / "run", method="=1+1", tasks=("@click", "buy"), evaluations=2)
    rows = list(csv.DictReader(io.StringIO(to_csv(load_studies([tmp_path])))))
    assert {row["method"] for row in rows} == {"'=1+1"}
    assert "'@click" in {row["task"] for row in rows}


def test_numbers_as_text() -> None:
    assert number(-0.00001) == "0.0000"
    assert signed(-0.5, 1) == "−0.5"
    assert signed(0.00001) == "0.0000"
    assert number(None) == number(float("nan")) == "–"
    assert [short(value) for value in (0, 0.25, 5000, 20_000, 1_500_000)] == ["0", "0.25", "5000", "20k", "1.5M"]
    assert [p_value(p) for p in (0.0004, 0.25, None)] == ["< 0.001", "0.250", "–"]
    assert [duration(s) for s in (3.21, 75, 3725)] == ["3.2 s", "1 min 15 s", "1 h 02 min"]


def make_trade(folder: Path, gains: dict[str, float], seeds: int = 4) -> Path:
    """A comparison of sum and gdod in which each task differs by so much, with a little noise."""
    make_comparison(folder, methods=("sum", "gdod"), seeds=range(seeds), tasks=tuple(gains), evaluations=2)
    for seed in range(seeds):
        for method in ("sum", "gdod"):
            path = folder / f"runs/shared-bottom-{method}-seed{seed}/result.json"
            result = json.loads(path.read_text())
            for task, gain in gains.items():
                noise = 0.0003 * ((seed * 7 + len(task)) % 5 - 2)
                result["test"]["tasks"][task]["auc"] = 0.7 + (gain + noise if method == "gdod" else 0.0)
            path.write_text(json.dumps(result))
    return folder


def test_a_gain_with_a_loss_is_called_a_trade(tmp_path: Path) -> None:
    (study,) = load_studies([make_trade(tmp_path / "trade", {"click": -0.004, "cart": 0.0, "purchase": 0.004})])
    base, trade = study.trades()
    assert base is None
    assert trade is not None
    assert [*trade.gains] == ["purchase"]
    assert [*trade.losses] == ["click"]
    sentence, hint = trade_sentences(study)
    assert sentence.startswith("gdod is a trade: better on ")
    assert "worse on click (−0.004" in sentence
    assert "gdod front" in hint
    assert sentence in overview(study).caption
    assert "<h3>Trades</h3>" in page([study])
    assert figures(study)[1]["trade"] == {"gains": ["purchase"], "losses": ["click"]}


@pytest.mark.parametrize("gains", [{"click": 0.004, "buy": 0.004}, {"click": -0.004, "buy": -0.004}])
def test_a_gain_or_a_loss_alone_is_no_trade(tmp_path: Path, gains: dict[str, float]) -> None:
    (study,) = load_studies([make_trade(tmp_path / "one", gains)])
    assert study.trades() == [None, None]
    assert not trade_sentences(study)
    assert "<h3>Trades</h3>" not in page([study])


def test_what_may_be_chance_is_no_trade(tmp_path: Path) -> None:
    (study,) = load_studies([make_trade(tmp_path / "one", {"click": -0.004, "buy": 0.004}, seeds=1)])
    assert study.trades() == [None, None]
