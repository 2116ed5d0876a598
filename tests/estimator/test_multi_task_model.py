"""The estimator against the command line, on tables of every library, with labels of every kind."""

import copy
import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from tests.test_import import run as run_python
from tests.training import tiny
from tests.training.test_run import Harmful
from typer.testing import CliRunner

from gdod import InputError, MultiTaskModel
from gdod.cli import app
from gdod.cli import options as cli_options
from gdod.cli import train as cli_train
from gdod.data import TableSchema
from gdod.data.tables.raw_table import CHUNK_ROWS
from gdod.estimator.multi_task_model import PATHS
from gdod.training import explain, load_run

LABELS = ["click", "buy"]
QUICK: dict[str, Any] = {
    "recipe": "paper",
    "method": "sum",
    "model_options": {"embedding": 4, "bottom": [8], "tower": [4]},
    "steps": 6,
    "batch": 64,
    "threads": 1,
    "verbose": False,
}
PERIODS = pd.DataFrame({"a": pd.period_range("2024-05", periods=3, freq="D")})


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GDOD_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def frame() -> pl.DataFrame:
    return tiny.frame(700).drop("id")


@pytest.fixture(scope="module")
def fitted(frame: pl.DataFrame) -> MultiTaskModel:
    return MultiTaskModel(**QUICK).fit(frame, labels=LABELS)


def rows(model: MultiTaskModel) -> dict[str, int]:
    about = json.loads(model.run_.folder.about.read_text())
    return dict(about["data"]["rows"])


@pytest.mark.parametrize("recipe", ["paper", "strong"])
def test_it_trains_to_the_bits_of_the_command_line(recipe: str, frame: pl.DataFrame, tmp_path: Path) -> None:
    frame.write_parquet(tmp_path / "clicks.parquet")
    given = ["--recipe", recipe, "--model", "mmoe", "--model-option", "experts=2", "--method", "gdod", "--seed", "3"]
    quick = ["--epochs", "1", "--batch", "64", "--threads", "1", "--task-weight", "buy=2", "--quiet"]
    command = ["train", "--data", str(tmp_path / "clicks.parquet"), "--label", "click", "--label", "buy"]
    done = CliRunner().invoke(app, [*command, *given, *quick, "--out", str(tmp_path / "run")])
    assert done.exit_code == 0, done.output
    model = MultiTaskModel(
        recipe=recipe,
        model="mmoe",
        model_options={"experts": 2},
        method="gdod",
        seed=3,
        epochs=1,
        batch=64,
        threads=1,
        task_weights={"buy": 2},
        verbose=False,
    ).fit(frame, labels=LABELS, out=tmp_path / "fitted")
    run = load_run(tmp_path / "run")
    assert model.predict_proba(frame).equals(run.predict(frame))
    assert run.result is not None
    assert model.result_ is not None
    for part in ("validation", "test", "best_step", "steps", "calibration", "bytes"):
        assert model.result_[part] == run.result[part]
    there = [{path.name for path in (tmp_path / one).iterdir()} for one in ("run", "fitted")]
    assert there[0] == there[1]
    mine, theirs = (json.loads((tmp_path / one / "config.json").read_text()) for one in ("fitted", "run"))
    for config in (mine, theirs):
        del config["data"]["source"]
    assert mine == theirs


def test_every_setting_of_the_command_line_is_a_parameter() -> None:
    options = {**cli_options._SETTINGS, **cli_train._SETTINGS}
    elsewhere = {name for name, path in options.items() if path.startswith(("data.", "update."))}  # of a call
    assert {name: path for name, path in options.items() if name not in elsewhere}.items() <= PATHS.items()
    pairs = {
        prefix[:-1].replace(".options", "_options").removeprefix("data.") for prefix in cli_options._PAIRS.values()
    } - {""}
    assert pairs - {"data_options"} == PATHS.keys() - options.keys()
    assert PATHS.keys() | {"schema", "settings"} <= MultiTaskModel().get_params().keys()


def as_pandas(frame: pl.DataFrame) -> pd.DataFrame:
    """Return the frame with categories and nullable types, and an index of its own."""
    table = frame.to_pandas()
    table.index = table.index * 3 + 5
    table["city"] = table["city"].astype("category")
    table["item"] = table["item"].astype("string")
    table["click"] = table["click"].astype("Int64")
    table["buy"] = table["buy"].astype("boolean")
    return table


def test_tables_of_every_library_give_the_same_model_and_predictions(
    frame: pl.DataFrame, fitted: MultiTaskModel
) -> None:
    expected = fitted.predict_proba(frame)
    assert expected.columns == LABELS
    pandas = as_pandas(frame)
    for table in (pandas, frame.to_arrow(), frame.lazy()):
        model = MultiTaskModel(**QUICK).fit(table, labels=LABELS)
        assert model.predict_proba(frame).equals(expected)
    of_pandas = fitted.predict_proba(pandas)
    assert isinstance(of_pandas, pd.DataFrame)
    assert of_pandas.index.equals(pandas.index)
    assert pl.from_pandas(of_pandas).equals(expected)
    of_arrow = fitted.predict_proba(frame.to_arrow())
    assert isinstance(of_arrow, pa.Table)
    assert pl.DataFrame(of_arrow).equals(expected)
    assert fitted.predict_proba(frame.lazy()).equals(expected)


def test_categories_that_are_numbers_are_names_of_things() -> None:
    random = np.random.default_rng(0)
    codes = random.integers(0, 60, 600)
    click = codes + random.integers(0, 60, 600) > 60
    table = pd.DataFrame({"band": pd.Categorical(codes), "size": codes, "click": click})
    model = MultiTaskModel(**QUICK).fit(table, labels="click")
    kinds = {name: column.type for name, column in model.run_.encoder.table_schema.columns.items()}
    assert kinds == {"band": "categorical", "size": "numeric", "click": "label"}
    plain = table.assign(band=table["band"].astype(int))
    assert model.predict_proba(plain).equals(model.predict_proba(table))


def test_labels_of_their_own_may_be_missing(frame: pl.DataFrame) -> None:
    buy = pl.when(pl.col("click") == 1).then("buy")
    together = MultiTaskModel(**QUICK).fit(frame.with_columns(buy), labels=LABELS)
    features = frame.drop(LABELS).to_pandas()
    labels = frame.select("click", buy).to_pandas().astype(float)  # NaN where there is no label
    assert labels["buy"].isna().any()
    apart = MultiTaskModel(**QUICK).fit(features, labels)
    assert apart.predict_proba(frame).equals(together.predict_proba(frame))
    metrics = apart.evaluate(features, labels)
    assert metrics == together.evaluate(frame.with_columns(buy))
    assert metrics["tasks"]["buy"]["labelled"] == int(frame["click"].sum())
    assert metrics["tasks"]["click"]["labelled"] == len(frame)


def test_matrices_have_numbered_columns(frame: pl.DataFrame) -> None:
    features = np.random.default_rng(0).normal(size=(300, 3))
    labels = (features[:, :2] > 0).astype(float)
    labels[::3, 1] = np.nan
    model = MultiTaskModel(**QUICK, test_fraction=0.0).fit(features, labels)
    probabilities = model.predict_proba(features)
    assert isinstance(probabilities, np.ndarray)
    assert probabilities.shape == model.predict(features).shape == (300, 2)
    assert model.evaluate(features, labels)["tasks"].keys() == {"y0", "y1"}
    assert model.n_features_in_ == 3
    one = MultiTaskModel(**QUICK, test_fraction=0.0).fit(features, labels[:, 0])
    assert one.predict(features).shape == (300,)
    with pytest.raises(InputError, match="X has 2 features, but MultiTaskModel is expecting 3"):
        model.predict(features[:, :2])


def test_tasks_of_every_kind_are_predicted() -> None:
    random = np.random.default_rng(0)
    x = random.normal(size=400)
    bands = np.digitize(x, [-0.5, 0.5])
    table = pl.DataFrame(
        {
            "x": x,
            "paid": x * 3 + random.normal(size=400),
            "band": bands,
            "size": [("small", "medium", "large")[one] for one in bands],
            "kept": [("no", "yes")[one] for one in (x > 0).astype(int)],
        }
    )
    model = MultiTaskModel(**{**QUICK, "steps": 60}, lr=0.01, monitor="loss").fit(
        table, labels=["paid", "band", "size", "kept"]
    )
    probabilities, values = model.predict_proba(table), model.predict(table)
    classes = ["band:0", "band:1", "band:2", "size:large", "size:medium", "size:small"]
    assert probabilities.columns == ["paid", *classes, "kept"]
    assert (probabilities.select(classes[:3]).sum_horizontal() - 1).abs().max() < 1e-9
    assert values.schema == {"paid": pl.Float64, "band": pl.Int64, "size": pl.String, "kept": pl.Int64}
    assert values["paid"].equals(probabilities["paid"])
    assert (values["band"] == table["band"]).mean() > 0.7
    assert (values["size"] == table["size"]).mean() > 0.7
    assert (values["kept"] == (table["kept"] == "yes").cast(pl.Int64)).mean() > 0.9


def test_explanations_come_in_the_form_of_the_table(frame: pl.DataFrame, fitted: MultiTaskModel) -> None:
    of_polars = fitted.explain(frame[:200], repeats=2, batches=2)
    assert list(of_polars) == ["importance", "conflict"]  # shared-bottom has no experts
    run, settings = fitted.run_, explain.Settings(repeats=2, batches=2)
    for part, found in of_polars.items():
        assert found.equals(pl.DataFrame(explain.tell(part, run, frame[:200], settings)))
    of_pandas = fitted.explain(as_pandas(frame)[:200].drop(columns=LABELS), frame[:200][LABELS], repeats=2, batches=2)
    assert isinstance(of_pandas["conflict"], pd.DataFrame)
    for part, table in of_pandas.items():
        assert pl.from_pandas(table).equals(of_polars[part])
    features = np.random.default_rng(0).normal(size=(100, 2))
    model = MultiTaskModel(**QUICK, test_fraction=0.0).fit(features, features > 0)
    importance = model.explain(features, features > 0, repeats=2)["importance"]
    assert set(importance["column"]) == {"x0", "x1"}


def test_parts_of_their_own_are_not_cut_off_the_table(frame: pl.DataFrame) -> None:
    features, labels = frame.drop(LABELS), frame.select(LABELS)
    model = MultiTaskModel(**QUICK).fit(
        features[:500], labels[:500], validation=(features[500:600], labels[500:600]), test=frame[600:]
    )
    assert rows(model) == {"train": 500, "validation": 100, "test": 100}
    assert model.result_ is not None
    tested, found = model.result_["test"]["tasks"], model.evaluate(frame[600:])["tasks"]
    assert tested == {task: {name: found[task][name] for name in tested[task]} for task in LABELS}
    with pytest.raises(InputError, match="the test table has no column 'buy'"):
        MultiTaskModel(**QUICK).fit(frame, labels=LABELS, test=frame.drop("buy"))


def test_fractions_win_over_the_schema(frame: pl.DataFrame, fitted: MultiTaskModel) -> None:
    assert rows(fitted) == {"train": 504, "validation": 56, "test": 140}  # as the command line cuts it
    model = MultiTaskModel(**QUICK, test_fraction=0.0, validation_fraction=0.25).fit(frame, labels=LABELS)
    assert rows(model) == {"train": 525, "validation": 175, "test": 0}
    assert model.result_ is not None
    assert model.result_["test"] is None
    schema = TableSchema.parse(tiny.SCHEMA.replace("  id: ignore\n", ""), Path("schema.yaml"))
    assert rows(MultiTaskModel(**QUICK, schema=schema).fit(frame)) == {"train": 448, "validation": 112, "test": 140}
    given = MultiTaskModel(**QUICK, schema=schema, test_fraction=0.5).fit(frame)
    assert rows(given) == {"train": 280, "validation": 70, "test": 350}


@pytest.mark.parametrize("recipe", ["paper", "strong"])
def test_what_was_saved_loaded_pickled_and_copied_predicts_the_same(
    recipe: str, frame: pl.DataFrame, tmp_path: Path
) -> None:
    model = MultiTaskModel(**{**QUICK, "recipe": recipe}).fit(frame, labels=LABELS)
    expected, metrics = model.predict_proba(frame), model.evaluate(frame)
    model.save(tmp_path / "saved")
    content = pickle.dumps(model)
    folder = model.run_.folder.path
    others = [MultiTaskModel.load(tmp_path / "saved", verbose=False), pickle.loads(content), copy.deepcopy(model)]
    for other in others:
        assert other.predict_proba(frame).equals(expected)
        assert other.evaluate(frame) == metrics
        assert other.result_ == model.result_
    for copied in others[1:]:
        with pytest.raises(InputError, match=r"last.pt is missing.* save\(folder\) and load\(folder\)"):
            copied.update(tiny.frame(200, seed=1).drop("id"))
        assert copied.predict_proba(frame).equals(expected)
    del model
    assert not folder.exists()  # nobody has it any more
    # Parameters that were loaded train another one as that was trained, also what a recipe chose.
    again = MultiTaskModel(**others[0].get_params()).fit(frame)
    assert again.predict_proba(frame).equals(expected)
    done = CliRunner().invoke(app, ["evaluate", str(tmp_path / "saved"), str(tmp_path / "saved"), "--json"])
    assert done.exit_code == 2  # no table, but a run
    with pytest.raises(InputError, match="is there already"):
        again.save(tmp_path / "saved")


def test_the_folder_of_a_stranger_runs_nothing_and_a_pickle_stays_in_its_place(
    fitted: MultiTaskModel, tmp_path: Path
) -> None:
    fitted.save(tmp_path / "saved")
    torch.save({"format": 1, "model": Harmful(tmp_path / "executed")}, tmp_path / "saved/checkpoints/best.pt")
    with pytest.raises(InputError, match="something else than numbers"):
        MultiTaskModel.load(tmp_path / "saved")
    assert not (tmp_path / "executed").exists()
    state = fitted.__getstate__()
    state["_files"]["../../outside"] = b""
    with pytest.raises(InputError, match="outside of its run"):
        MultiTaskModel().__setstate__(state)


def test_long_tables_are_read_in_chunks(frame: pl.DataFrame, fitted: MultiTaskModel) -> None:
    table = tiny.frame(CHUNK_ROWS + 500, seed=1).drop("id")
    whole = fitted.predict_proba(table)
    sizes: list[int] = []
    encode = type(fitted.run_.encoder).encode_frame

    def counted(self: Any, rows: pl.DataFrame, *rest: Any, **named: Any) -> Any:
        sizes.append(len(rows))
        return encode(self, rows, *rest, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(fitted.run_.encoder), "encode_frame", counted)
        assert fitted.predict_proba(table.to_arrow()).num_rows == len(table)
        assert len(fitted.predict_proba(table.lazy())) == len(table)
        assert fitted.evaluate(table)["rows"] == len(table)
    assert max(sizes) <= CHUNK_ROWS
    assert sum(sizes) == 3 * len(table)
    for first in (0, CHUNK_ROWS):
        part = fitted.predict_proba(table[first : first + 500])
        assert ((whole[first : first + 500] - part).to_numpy() ** 2).max() < 1e-12
    assert fitted.predict_proba(table[:0]).shape == (0, 2)


def test_a_column_that_is_not_there_is_told(frame: pl.DataFrame, fitted: MultiTaskModel) -> None:
    with pytest.warns(UserWarning, match="the table has no column 'city'"):
        fitted.predict_proba(frame.drop("city"))
    with pytest.warns(UserWarning, match="training has seen no value of the column 'city'"):
        fitted.evaluate(frame.with_columns(pl.lit("Atlantis").alias("city")))
    with pytest.raises(InputError, match="has no label"):
        fitted.evaluate(frame.drop(LABELS))


def test_progress_is_that_of_the_command_line_and_quiet_on_request(
    frame: pl.DataFrame, capsys: pytest.CaptureFixture[str]
) -> None:
    MultiTaskModel(**QUICK).fit(frame)
    assert capsys.readouterr() == ("", "")
    MultiTaskModel(**{**QUICK, "verbose": True}).fit(frame)
    said = capsys.readouterr().out
    assert "these columns are predicted, by their names: click, buy" in " ".join(said.split())
    assert "step 6/6" in said


def test_a_fit_leaves_torch_as_it_was(frame: pl.DataFrame) -> None:
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    threads = torch.get_num_threads()
    MultiTaskModel(**{**QUICK, "threads": threads + 1}).fit(frame)
    assert torch.equal(torch.rand(3), expected)
    assert torch.get_num_threads() == threads


def test_a_run_in_a_folder_is_not_written_over_and_goes_on(frame: pl.DataFrame, tmp_path: Path) -> None:
    out = tmp_path / "run"
    first = MultiTaskModel(**QUICK).fit(frame, labels=LABELS, out=out)
    with pytest.raises(InputError, match="holds a run already"):
        MultiTaskModel(**QUICK).fit(frame, labels=LABELS, out=out)
    (out / "result.json").unlink()
    expected = first.predict_proba(frame)
    again = MultiTaskModel(**QUICK).fit(frame, labels=LABELS, out=out, resume=True)
    assert again.predict_proba(frame).equals(expected)
    shutil.copytree(out, tmp_path / "other")
    (tmp_path / "other" / "result.json").unlink()
    with pytest.raises(InputError, match=r"the data of the run in .* has changed"):
        MultiTaskModel(**QUICK).fit(frame[:600], labels=LABELS, out=tmp_path / "other", resume=True)
    done = CliRunner().invoke(app, ["train", "--resume", "--out", str(out)])
    assert done.exit_code == 2
    assert "was trained on a table in memory" in done.output


@pytest.mark.parametrize(
    ("parameters", "arguments", "problem"),
    [
        ({}, {"y": [0], "labels": ["click"]}, "both y and labels"),
        ({}, {"labels": ["clik"]}, "no column 'clik'"),
        ({}, {"labels": []}, "labels=\\[\\] names no column"),
        ({}, {"labels": 3}, "labels=3; expected the names of columns"),
        ({}, {"labels": ["click", 1]}, "expected the names of columns"),
        ({}, {"labels": ["click", "buy", "click"]}, "name 'click' more than once"),
        ({}, {"y": pl.DataFrame({"click": [0, 1]})}, "X has columns of the names of y's, 'click'"),
        ({}, {"y": pl.DataFrame({"other": [0, 1]})}, "X has 700 rows and y 2"),
        ({}, {"resume": True}, "resume=True needs out"),
        ({}, {"test": (1, 2, 3)}, "a tuple of 3"),
        ({"settings": {"data.fold": {"number": 1, "of": 3}}}, {}, "settings name the data \\('data.fold'\\)"),
        ({"settings": {"data.source": "a.csv"}}, {}, "settings name the data \\('data.source'\\)"),
        ({"settings": {"data": "a.csv"}}, {}, "settings name the data"),
        ({"settings": {"stoping.least": 1}}, {}, "did you mean 'stopping'"),
        ({"model": "mmeo"}, {}, "did you mean 'mmoe'"),
        ({"method": "gdood"}, {}, "did you mean 'gdod'"),
        ({"lr": -1}, {}, "optimizer.lr=-1"),
        ({"monitor": "bye"}, {}, "did you mean 'buy'"),
        ({"test_fraction": 1.5}, {}, "test_fraction=1.5"),
        ({"schema": {"columns": {"age": "numeric"}}}, {"labels": ["click"]}, "does not mark 'click' as labels"),
        ({"schema": {"columns": {"age": "numeric", "klick": "label"}}}, {}, "did you mean 'click'"),
        ({"schema": "nowhere.yaml"}, {}, "nowhere.yaml cannot be read"),
    ],
)
def test_what_is_wrong_is_said_before_any_work(
    frame: pl.DataFrame,
    parameters: dict[str, Any],
    arguments: dict[str, Any],
    problem: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GDOD_CACHE", str(tmp_path / "cache"))
    with pytest.raises(InputError, match=problem):
        MultiTaskModel(**{**QUICK, **parameters}).fit(frame, **arguments)
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ({"x": [1.0, 2.0]}, "pl.DataFrame"),
        ([1.0, 2.0], "Reshape your data"),
        ("clicks.csv", "X is 'clicks.csv'; .* Read a file first"),
        (None, "X is None; expected a polars or pandas DataFrame"),
        ([{"x": 1.0, "click": 1}], "a list of dictionaries; .*pl.DataFrame"),
        (pa.table({"x": [1.0]}).to_reader(), "X is a RecordBatchReader; expected"),
        (PERIODS, r"period\[D\], cannot be read.*astype"),
        (pa.Table.from_pandas(PERIODS), "the pyarrow table cannot be read: 'a' is of the extension type pandas.period"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), "more than one column has the name 'a'"),
        (pd.DataFrame({"a": [1, "b", None]}), "column 'a' of the pandas frame"),
        (pl.DataFrame({"x": [1.0], "click": [1]}), "n_samples = 1"),
        (np.zeros((4, 2), complex), "Complex data"),
    ],
)
def test_a_table_that_cannot_be_read_is_refused(table: Any, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        MultiTaskModel(**QUICK).fit(table, labels=["click"])


def test_parameters_are_checked_and_shown() -> None:
    model = MultiTaskModel(model="mmoe", lr=0.5)
    assert repr(model) == "MultiTaskModel(model='mmoe', lr=0.5)"
    assert model.set_params(lr=0.1) is model
    assert model.get_params()["lr"] == 0.1
    with pytest.raises(InputError, match="did you mean 'epochs'"):
        model.set_params(lr=0.2, epoch=3)
    assert model.lr == 0.1


def test_it_needs_neither_scikit_learn_nor_pandas(tmp_path: Path) -> None:
    code = """
import sys
from importlib.machinery import ModuleSpec

class Hidden:
    def find_spec(self, name, path=None, target=None):
        return ModuleSpec(name, self) if name in ("sklearn", "pandas") else None

    def create_module(self, spec):
        raise ModuleNotFoundError(f"No module named {spec.name!r}", name=spec.name)

    def exec_module(self, module): ...

sys.meta_path.insert(0, Hidden())
import gdod
assert "polars" not in sys.modules and "torch" not in sys.modules
import polars as pl
frame = pl.DataFrame({"x": [float(x) for x in range(40)], "click": [x % 2 for x in range(40)]})
model = gdod.MultiTaskModel(steps=1, threads=1, verbose=False)
try:
    model.predict(frame)
except gdod.InputError as error:
    print("not fitted yet" in str(error))
print(model.fit(frame).predict_proba(frame).shape, model.score(frame) > 0)
"""
    assert run_python(code) == "True\n(40, 1) True\n"
