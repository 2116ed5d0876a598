"""Tests of predictions and metrics of a run for tables of all kinds."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from rich.console import Console
from tests.training import tiny
from typer.testing import CliRunner

import gdod
from gdod import InputError
from gdod.cli import app
from gdod.cli.train import show_metrics
from gdod.data.preparing.encoder import Encoder
from gdod.data.preparing.scaling import Scaling
from gdod.data.preparing.vocabulary import Vocabulary
from gdod.data.tables.table_schema import TableSchema
from gdod.training import Run, load_run, metrics, train
from gdod.training.predict import EvaluationOptions, evaluate_file, predict_file, prediction_columns
from gdod.training.run import Folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("runs") / "run"
    train(tiny.config(epochs=2), folder, dataset=tiny.dataset())
    return load_run(folder)


def read(path: Path) -> pl.DataFrame:
    if path.suffix == ".parquet":
        return pl.read_parquet(path)
    return pl.read_csv(path, separator="\t" if path.suffix == ".tsv" else ",")


@pytest.mark.parametrize("source", ["table.csv", "table.parquet"])
@pytest.mark.parametrize("out", ["scores.csv", "scores.tsv", "scores.parquet"])
def test_files_of_every_kind_give_what_the_frame_gives(run: Run, tmp_path: Path, source: str, out: str) -> None:
    frame = tiny.frame(300, seed=3)
    frame.write_parquet(tmp_path / source) if source.endswith("parquet") else frame.write_csv(tmp_path / source)
    predicted = predict_file(run, tmp_path / source, tmp_path / out)
    assert (predicted.rows, predicted.columns, predicted.notes) == (300, ("click", "buy"), ())
    expected = run.predict(frame)
    written = read(tmp_path / out)
    assert written.columns == expected.columns
    # A CSV file may hold one digit less of a number than the frame it came from.
    assert ((written - expected).to_numpy() ** 2).max() < 1e-14
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([source, out])


def test_chunks_and_folders_keep_the_order_of_rows(run: Run, tmp_path: Path) -> None:
    frame = tiny.frame(150_000, seed=3)  # more than two chunks
    (tmp_path / "parts").mkdir()
    frame[:100_000].write_parquet(tmp_path / "parts" / "a.parquet")
    frame[100_000:].write_parquet(tmp_path / "parts" / "b.parquet")
    counts: list[int] = []
    predict_file(run, tmp_path / "parts", tmp_path / "out.parquet", keep=["id", "age"], told=counts.append)
    written = read(tmp_path / "out.parquet")
    assert written.columns == ["id", "age", "click", "buy"]
    assert written["id"].to_list() == list(range(150_000))
    assert written["age"].equals(frame["age"])
    assert ((written["click"] - run.predict(frame)["click"]).abs() < 1e-7).all()
    assert counts == sorted(counts)
    assert counts[-1] == 150_000
    assert len(counts) > 2


def test_unseen_values_and_missing_columns_are_handled_as_in_training(run: Run, tmp_path: Path) -> None:
    frame = tiny.frame(20, seed=3)
    blank = frame.with_columns(pl.lit(None, pl.String).alias("city"))
    unseen = frame.with_columns(pl.lit("Atlantis").alias("city"))
    assert run.predict(unseen).equals(run.predict(blank))
    assert run.predict(frame.drop("city")).equals(run.predict(blank))
    assert not run.predict(frame).equals(run.predict(blank))

    frame.drop("city", "click", "buy", "w").write_csv(tmp_path / "table.csv")
    predicted = predict_file(run, tmp_path / "table.csv", tmp_path / "out.parquet")
    assert predicted.notes == (f"{tmp_path / 'table.csv'} has no column 'city'; it counts as missing in every row",)
    assert ((read(tmp_path / "out.parquet") - run.predict(blank)).to_numpy() ** 2).max() < 1e-14


def test_a_column_without_a_known_value_is_told_once(run: Run, tmp_path: Path) -> None:
    frame = tiny.frame(40, seed=3)
    strange = frame.with_columns(
        pl.col("city").str.to_uppercase(),
        pl.Series("item", [None] * 40, dtype=pl.String),  # missing, and no mistake
        pl.lit("a b").alias("seen"),
    )
    table = tmp_path / "table.parquet"
    strange.write_parquet(table)
    told = tuple(
        f"{table}: training has seen no value of the column {name!r} (the first is {first!r}); it counts as unknown "
        "in every row"
        for name, first in (("city", strange["city"][0]), ("seen", "a b"))
    )
    assert predict_file(run, table, tmp_path / "out.csv", batch=7).notes == told
    assert tuple(evaluate_file(run, table)["notes"]) == told
    one = pl.concat([strange, frame[:1].with_columns(pl.lit("").alias("seen"))])
    one.write_parquet(table)
    assert [note.split("'")[1] for note in predict_file(run, table, tmp_path / "out.csv").notes] == ["seen"]


def test_a_column_of_another_name_is_pointed_out(run: Run, tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    tiny.frame(5).rename({"city": "City"}).write_csv(table)
    (note,) = predict_file(run, table, tmp_path / "out.csv").notes
    assert note == f"{table} has no column 'city' (did you mean 'City'?); it counts as missing in every row"
    with pytest.raises(InputError, match="did you mean 'City'"):
        predict_file(run, table, tmp_path / "out.csv", keep=["Cty"])
    with pytest.raises(InputError, match="did you mean 'id'"):
        predict_file(run, table, tmp_path / "out.csv", keep=["ID"])
    tiny.frame(5).rename({"city": "town"}).write_csv(table)
    (note,) = predict_file(run, table, tmp_path / "out.csv").notes
    assert note == f"{table} has no column 'city' (not used: 'town'); it counts as missing in every row"


def test_a_device_that_is_not_there_is_refused(run: Run) -> None:
    for name in ("toaster", "cuda:99"):
        with pytest.raises(InputError, match=f"device='{name}' cannot be used"):
            load_run(run.folder.path, device=name)
    assert load_run(run.folder.path, device="auto").step == run.step


def test_an_empty_table_gives_an_empty_table(run: Run, tmp_path: Path) -> None:
    tiny.frame(0).write_parquet(tmp_path / "table.parquet")
    for out in ("out.csv", "out.parquet"):
        assert predict_file(run, tmp_path / "table.parquet", tmp_path / out, keep=["id"]).rows == 0
        assert read(tmp_path / out).columns == ["id", "click", "buy"]
    assert len(run.predict(tiny.frame(0))) == 0
    with pytest.raises(InputError, match="no rows"):
        evaluate_file(run, tmp_path / "table.parquet")


@pytest.mark.parametrize(
    ("change", "options", "says"),
    [
        (lambda frame: frame.select("id", "click"), {}, "has none of the columns"),
        (lambda frame: frame, {"keep": ["name"]}, "no such column"),
        (lambda frame: frame, {"keep": ["click"]}, "has the name of a task"),
        (lambda frame: frame, {"out": "out.xlsx"}, "expected a name that ends in"),
        (lambda frame: frame, {"out": "out.csv.gz"}, "expected a name that ends in"),
        (lambda frame: frame, {"out": "table.csv"}, "is the table itself"),
        (lambda frame: frame.with_columns(pl.lit("old").alias("age")), {}, "table.csv, line 2: column 'age' is 'old'"),
        (lambda frame: frame, {"table": "nothing.csv"}, "there is no file"),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_is_left(
    run: Run, tmp_path: Path, change: Any, options: dict[str, Any], says: str
) -> None:
    change(tiny.frame(5)).write_csv(tmp_path / "table.csv")
    table, out = tmp_path / options.get("table", "table.csv"), tmp_path / options.get("out", "out.csv")
    with pytest.raises(InputError) as caught:
        predict_file(run, table, out, keep=options.get("keep", ()))
    assert says in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["table.csv"]


def test_an_error_in_the_middle_keeps_the_predictions_of_before(run: Run, tmp_path: Path) -> None:
    frame = tiny.frame(70_000).with_columns(pl.col("age").cast(pl.String))
    bad = frame.with_columns(pl.when(pl.col("id") == 69_999).then(pl.lit("?!")).otherwise("age").alias("age"))
    bad.write_parquet(tmp_path / "bad.parquet")
    (tmp_path / "out.csv").write_text("before\n")
    with pytest.raises(InputError, match="row 70000"):
        predict_file(run, tmp_path / "bad.parquet", tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_text() == "before\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.parquet", "out.csv"]


def test_evaluation_of_a_file(run: Run, tmp_path: Path) -> None:
    frame = tiny.frame(2000, seed=4)
    frame.write_parquet(tmp_path / "table.parquet")
    metrics = evaluate_file(run, tmp_path / "table.parquet", batch=100)
    assert metrics["rows"] == 2000
    assert metrics["tasks"]["buy"]["labelled"] == int(frame["click"].sum())  # a purchase is known after a click only
    scores = run.predict(frame)
    expected = gdod.training.metrics.auc(frame["click"].to_numpy(), scores["click"].to_numpy())
    assert metrics["tasks"]["click"]["auc"] == pytest.approx(expected, abs=1e-6)

    frame.drop("buy").write_csv(tmp_path / "table.csv")
    metrics = evaluate_file(run, tmp_path / "table.csv")
    assert metrics["tasks"]["buy"]["auc"] is None
    assert metrics["tasks"]["buy"]["note"] == "no example has a label"
    assert metrics["mean_auc"] == metrics["tasks"]["click"]["auc"]
    frame.drop("buy", "click").write_csv(tmp_path / "table.csv")
    with pytest.raises(InputError, match="has no label"):
        evaluate_file(run, tmp_path / "table.csv")


def test_tasks_of_other_kinds() -> None:
    """A regression task has a column of numbers, and a task with several classes a column for each class."""
    table = TableSchema(
        columns={
            "x": "numeric",
            "c": "categorical",
            "price": {"type": "label", "kind": "regression"},
            "size": {"type": "label", "kind": "multiclass", "classes": ["S", "M", "L"]},
        }
    )
    encoder = Encoder(table, {"c": Vocabulary(["a"])}, {"x": Scaling()}, {"size": ("S", "M", "L")})
    model = gdod.models.build("shared-bottom", encoder.model_schema, encoder.tasks)
    run = Run(Folder(Path("nowhere")), tiny.config(), model, encoder, 0)
    frame = pl.DataFrame({"x": [0.0, 1.0], "c": ["a", "b"], "price": [1.0, 2.0], "size": ["S", "L"]})
    predicted = run.predict(frame)
    assert predicted.columns == list(prediction_columns(run)) == ["price", "size:S", "size:M", "size:L"]
    assert predicted.select(pl.sum_horizontal("size:S", "size:M", "size:L")).to_series().to_list() == pytest.approx(
        [1, 1]
    )
    metrics = run.evaluate(frame)["tasks"]
    assert set(metrics["price"]) == {"rmse", "mae", "labelled"}
    assert set(metrics["size"]) == {"accuracy", "log_loss", "labelled", "auc_one_vs_rest"}


def test_a_table_is_evaluated_by_more_metrics_than_training_goes_by(run: Run, tmp_path: Path) -> None:
    frame = tiny.frame(500, seed=3)
    table = tmp_path / "table.csv"
    frame.write_csv(table)
    found = evaluate_file(run, table, batch=64, options=EvaluationOptions(threshold=0.3, group="item"))
    labels, scores = frame["click"].to_numpy(), run.predict(frame)["click"].to_numpy()
    click = found["tasks"]["click"]
    assert found["threshold"] == 0.3
    assert click["f1"] == pytest.approx(metrics.f1(labels, scores, 0.3))
    assert click["pr_auc"] == pytest.approx(metrics.pr_auc(labels, scores))
    assert click["group_auc"] == pytest.approx(metrics.group_auc(labels, scores, frame["item"].to_numpy()))
    assert "group_auc" not in evaluate_file(run, table)["tasks"]["click"]
    done = CliRunner().invoke(app, ["evaluate", str(run.folder.path), str(table), "--group", "item"])
    assert done.exit_code == 0, done.output
    assert all(title in done.output for title in ("PR-AUC", "group AUC", "F1", f"{click['group_auc']:.4f}"))
    with pytest.raises(InputError, match=r"no column 'itme' for the group AUC \(did you mean 'item'"):
        evaluate_file(run, table, options=EvaluationOptions(group="itme"))
    with pytest.raises(InputError, match=r"threshold=2; expected a number of at least 0 and of at most 1"):
        evaluate_file(run, table, options=EvaluationOptions(threshold=2))


def test_metrics_of_tasks_of_several_kinds_are_shown_whole(capsys: pytest.CaptureFixture[str]) -> None:
    binary = {"auc": 0.81, "log_loss": 0.41, "pr_auc": 0.31, "f1": 0.51, "positives": 1, "labelled": 900}
    tasks = {
        "click": binary,
        "paid": {"rmse": 1.61, "mae": 1.21, "labelled": 900},
        "size": {"accuracy": 0.71, "log_loss": 1.01, "auc_one_vs_rest": 0.61, "labelled": 900},
        "buy": {**binary, "auc": 0.82},
    }
    console = Console(width=80, markup=False, highlight=False)
    show_metrics(console, {"table": {"tasks": tasks}})
    shown = capsys.readouterr().out
    assert "…" not in shown
    for values in tasks.values():
        assert all(f"{value:.4f}" in shown for value in values.values() if isinstance(value, float))
    assert shown.count("PR-AUC") == 1
    assert shown.count("labels") == 3
