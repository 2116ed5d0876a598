"""Runs as programs without this library: the predictions of the run, names, and what is refused."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime  # type: ignore[import-untyped]
import polars as pl
import pytest
import torch
from tests.training import tiny
from typer.testing import CliRunner

from gdod import InputError, MultiTaskModel
from gdod.cli import app
from gdod.training import Run, export, load_run
from gdod.training.calibration import Line, Steps

SCHEMA = """\
columns:
  city: categorical
  age: numeric
  seen: {type: sequence, separator: " ", longest: 4}
  click: label
  paid: {type: label, kind: regression}
  kind of buy: {type: label, kind: multiclass}
"""


def table(rows: int, seed: int = 0) -> pl.DataFrame:
    frame = tiny.frame(rows, seed)
    kinds = pl.Series("kind of buy", ["none", "one", "two"])
    return frame.with_columns(paid=pl.col("age") * 100, kind=kinds.gather(frame["buy"] + frame["click"])).rename(
        {"kind": "kind of buy"}
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    place = tmp_path_factory.mktemp("export")
    table(600).write_parquet(place / "table.parquet")
    (place / "schema.yaml").write_text(SCHEMA)
    given = ["--data", str(place / "table.parquet"), "--schema", str(place / "schema.yaml")]
    quick = ["--steps", "5", "--batch", "64", "--threads", "1", "--no-tensorboard", "--quiet"]
    kept = ["--set", f"data.cache={place / 'cache'}", "--out", str(place / "run")]
    done = CliRunner().invoke(app, ["train", *given, *quick, *kept])
    assert done.exit_code == 0, done.output
    return load_run(place / "run")


@pytest.mark.parametrize("ending", [".onnx", ".pt2"])
def test_the_program_predicts_what_the_run_does(run: Run, ending: str, tmp_path: Path) -> None:
    out = tmp_path / "new" / f"model{ending}"
    done = CliRunner().invoke(app, ["export", str(run.folder.path), str(out)])
    assert done.exit_code == 0, done.output
    assert "checked with 120 rows: the largest difference is" in done.output
    assert "1 row: " in done.output
    assert "1,000 rows: " in done.output
    sizes = {path.name: f"{path.stat().st_size / 1e3:,.1f} kB" for path in out.parent.iterdir()}
    assert sizes.keys() == {out.name, "model.encoder.json", "model.statistics.parquet"}
    assert all(f"{name}  {size}" in done.output for name, size in sizes.items())

    content = json.loads((out.parent / "model.encoder.json").read_text())
    names = [one["name"] for one in content["outputs"]]
    assert names == ["click", "paid", "kind of buy"]
    assert content["outputs"][2]["classes"] == ["none", "one", "two"]
    assert content["inputs"]["categorical"] == ["city"]
    assert content["inputs"]["sequences"] == [{"name": "seen", "input": "sequence_0"}]
    frame = table(90, seed=5)
    batch = next(run.encoder.encode(frame, labels=False).batches(90)).batch
    assert batch.numeric.shape[1] == len(content["inputs"]["numeric"])
    if ending == ".onnx":
        session = onnxruntime.InferenceSession(out)
        values = (batch.categorical, batch.numeric, *batch.sequences)
        inputs = {name: one.numpy() for name, one in zip(("categorical", "numeric", "sequence_0"), values, strict=True)}
        found = dict(zip(names, session.run(names, inputs), strict=True))
    else:
        found = {name: one.detach().numpy() for name, one in torch.export.load(out).module()(*batch).items()}
    columns = run.predict(frame)
    expected: list[pl.Series | pl.DataFrame] = [
        columns["click"],
        columns["paid"],
        columns.select(pl.col("^kind of buy:.*$")),
    ]
    for name, column in zip(names, expected, strict=True):
        np.testing.assert_allclose(found[name], column.to_numpy(), rtol=1e-4, atol=1e-6)


def test_a_program_that_predicts_something_else_is_not_written(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(export._LAST, "binary", torch.tanh)
    with pytest.raises(InputError, match=r"differ from those of the run by up to .*, more than rounding"):
        export.export_run(run, tmp_path / "model.pt2")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("ending", [".onnx", ".pt2"])
def test_steep_calibrations_are_told_from_wrong_programs(
    run: Run, ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounding moves a probability by 1e-7, and such a calibration makes 0.1 of it."""
    some = run.predict(table(90, seed=5))["click"].unique().sort().to_numpy()[5::16]
    points = (some[:, None] + np.linspace(-2e-8, 2e-8, 9)).flatten()  # closer to each other than float32 can tell
    rates = np.linspace(0.01, 0.99, len(points) + 2)
    steep = Steps((0.0, *points.tolist(), 1.0), tuple(rates.tolist()))
    table(90, seed=5).write_parquet(tmp_path / "rows.parquet")
    calibrated = replace(run, calibrators={"click": steep})
    written = export.export_run(calibrated, tmp_path / f"steep{ending}", table=tmp_path / "rows.parquet")
    assert (tmp_path / f"steep{ending}").stat().st_size in written.files.values()
    if ending == ".onnx":
        return
    falling = replace(run, calibrators={"click": Line(-0.5, 0.1)})
    assert export.export_run(falling, tmp_path / f"falling{ending}", table=tmp_path / "rows.parquet").difference < 2e-5
    monkeypatch.setattr(export, "_Predicting", _Uncalibrated)
    with pytest.raises(InputError, match="more than rounding"):
        export.export_run(falling, tmp_path / f"wrong{ending}", table=tmp_path / "rows.parquet")
    assert not (tmp_path / f"wrong{ending}").exists()


class _Uncalibrated(export._Predicting):
    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.corrections = ({}, {})


def test_tasks_may_have_the_names_of_operations(tmp_path: Path) -> None:
    names = ["view", "add", "sigmoid", "linear", "val_1", "model.model.features.table.weight"]
    frame = table(300).select("city", "age", *(pl.col("click").alias(name) for name in names))
    model = MultiTaskModel(recipe="paper", steps=2, threads=1, verbose=False, settings={"data.cache": str(tmp_path)})
    model.fit(frame, labels=names)
    frame.head(20).write_parquet(tmp_path / "rows.parquet")
    export.export_run(model.run_, tmp_path / "model.onnx", table=tmp_path / "rows.parquet")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    assert [one.name for one in session.get_outputs()] == names
    inputs = frame.select("city", "age").with_columns(numeric=pl.col("age") > 0).cast({"numeric": pl.Int8})
    other = model.fit(inputs, labels=["numeric"])
    with pytest.raises(InputError, match="the task 'numeric' has the name of an input"):
        export.export_run(other.run_, tmp_path / "other.onnx", table=tmp_path / "rows.parquet")


def test_programs_of_both_forms_share_one_encoder(run: Run, tmp_path: Path) -> None:
    export.export_run(run, tmp_path / "model.pt2")
    with pytest.raises(InputError, match=r"model.pt2 is there already"):
        export.export_run(run, tmp_path / "model.pt2")
    (tmp_path / "model.pt2").unlink()  # as if the program beside the encoder were one of the other form
    assert set(export.export_run(run, tmp_path / "model.pt2").files) == {str(path) for path in tmp_path.iterdir()}
    (tmp_path / "model.pt2").unlink()
    (tmp_path / "model.encoder.json").write_text("{}")
    with pytest.raises(InputError, match=r"model.encoder.json is there already"):
        export.export_run(run, tmp_path / "model.pt2")


def test_rows_for_the_check_come_from_a_table_where_the_data_is_gone(run: Run, tmp_path: Path) -> None:
    model = MultiTaskModel(recipe="paper", steps=2, threads=1, verbose=False, settings={"data.cache": str(tmp_path)})
    model.fit(table(300), labels=["click"])
    out = tmp_path / "model.pt2"
    with pytest.raises(InputError, match=r"trained on a table in memory; give a table with rows .* --data TABLE"):
        export.export_run(model.run_, out)
    table(7).write_csv(tmp_path / "rows.csv")
    written = export.export_run(model.run_, out, table=tmp_path / "rows.csv")
    assert written.rows == 7
    assert written.files[str(out)] == out.stat().st_size
    assert set(written.milliseconds) == {1, 1000}
    with pytest.raises(InputError, match="there already"):
        export.export_run(model.run_, out, table=tmp_path / "rows.csv")
    export.export_run(model.run_, out, table=tmp_path / "rows.csv", overwrite=True)
    table(1).write_csv(tmp_path / "row.csv")
    with pytest.raises(InputError, match="a single row"):
        export.export_run(model.run_, out, table=tmp_path / "row.csv", overwrite=True)
    pl.DataFrame({"other": [1, 2]}).write_csv(tmp_path / "other.csv")
    with pytest.raises(InputError, match="none of the columns"):
        export.export_run(model.run_, out, table=tmp_path / "other.csv", overwrite=True)
    with pytest.raises(InputError, match=r"ends in '.h5'; expected .onnx or .pt2"):
        export.export_run(model.run_, tmp_path / "model.h5")


def test_changed_data_is_not_taken_for_the_check(run: Run, tmp_path: Path) -> None:
    source = Path(run.config.data.source)
    before = source.read_bytes()
    try:
        table(500).write_parquet(source)
        with pytest.raises(InputError, match="has changed since it was trained"):
            export.export_run(run, tmp_path / "model.pt2")
        source.unlink()
        with pytest.raises(InputError, match=r"cannot be read .* --data TABLE"):
            export.export_run(run, tmp_path / "model.pt2")
    finally:
        source.write_bytes(before)
    assert not list(tmp_path.iterdir())
