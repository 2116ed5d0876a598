"""Tables of any kind, from the raw file to predictions: each step gives a result, or refuses in words."""

from pathlib import Path
from shutil import rmtree
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fuzz.outcomes import attempt, content
from tests.fuzz.raw_tables import TableFile, parquet_tables, text_tables

from gdod.data import Dataset, Encoder, FeatureOptions, Inspection, TableSchema, inspect, load
from gdod.training import check_config, load_run, train
from gdod.training.predict import evaluate_file, predict_file


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tables")


def go_through(folder: Path, table: TableFile, stream: bool, split: str, features: FeatureOptions | None) -> str:
    """Return the step at which the table was refused, or how its predictions went."""
    work = folder / "work"
    rmtree(work, ignore_errors=True)
    work.mkdir()
    path = work / f"table{table.ending}"
    path.write_bytes(table.content)
    inspection = attempt(lambda: inspect(path, labels=table.labels))
    if inspection is None:
        return "not read"
    schema = schema_of(inspection, split)
    if schema is None:
        return "no schema"
    data = prepared(path, schema, work / "cache", stream, features)
    if data is None:
        return "not prepared"
    if not trained(work / "run", data):
        return "not trained"
    return predicted(work, path, data)


def schema_of(inspection: Inspection, split: str) -> TableSchema | None:
    """Return the inferred schema with the split; it is the same as in the file that a person would edit."""
    schema = attempt(inspection.schema)
    written = attempt(lambda: TableSchema.parse(inspection.to_yaml(), Path("schema.yaml")))
    if schema is None:
        return None
    assert written == schema
    if split == "random":
        return schema
    column = inspection.columns[0].name
    return attempt(lambda: TableSchema(**{**schema.to_json(), "split": {"by": split, "column": column}}))


def prepared(
    path: Path, schema: TableSchema, cache: Path, stream: bool, features: FeatureOptions | None
) -> Dataset | None:
    before = content(cache)
    data = attempt(lambda: load(path, schema=schema, cache=cache, stream=stream, features=features))
    if data is None:
        assert content(cache) == before
        assert not list((cache / "prepared").glob("*")) if cache.exists() else True
        return None
    again = load(path, schema=schema, cache=cache, stream=not stream, features=features)
    assert again.fingerprint == data.fingerprint
    assert again.schema == data.schema == Encoder.load(cache / "prepared" / data.fingerprint).model_schema
    for part in (data.train, data.validation, data.test):
        for step in part.batches(64):
            assert step.batch.numeric.isfinite().all()
    return data


def trained(out: Path, data: Dataset) -> bool:
    options: dict[str, Any] = {"name": "shared-bottom", "options": {"embedding": 2, "bottom": [4], "tower": [2]}}
    settings = {"data": "table", "model": options, "steps": 2, "batch": 8, "tensorboard": False, "threads": 1}
    config = check_config(settings)
    return attempt(lambda: train(config, out, dataset=data)) is not None


def predicted(work: Path, path: Path, data: Dataset) -> str:
    run = load_run(work / "run")
    out = work / "predictions.parquet"
    rows = len(data.train) + len(data.validation) + len(data.test)
    told = predict_file(run, path, out)
    assert told.rows == rows
    made = pl.read_parquet(out)
    assert len(made) == rows
    assert all(made[name].is_finite().all() for name in made.columns)
    attempt(lambda: evaluate_file(run, path))
    kept = attempt(lambda: predict_file(run, path, work / "kept.csv", keep=[data.encoder.table_schema.features[0]]))
    assert kept is None or kept.rows == rows
    return "predicted"


SPLITS = st.sampled_from(["random", "random", "random", "time", "group"])
FEATURES = st.none() | st.builds(
    FeatureOptions,
    statistics=st.booleans(),
    sequences=st.booleans(),
    repeated_numbers=st.booleans(),
    noise=st.booleans(),
    pairs=st.sampled_from([60, 1, 0]),
    columns=st.sampled_from([128, 5, 1]),
    prior=st.sampled_from([10.0, 1e-300, 1e300]),
    folds=st.sampled_from([10, 2, 64]),
    keys=st.sampled_from([10**6, 65, 3, 1]),
    rows_per_value=st.sampled_from([500, 1, 10**12]),
    bins=st.sampled_from([64, 3, 1, 0]),
    statistic_bins=st.sampled_from([4, 1, 0]),
    rare=st.sampled_from([20, 1, 10**12]),
    times=st.booleans(),
    missing_flags=st.booleans(),
)


@settings(max_examples=80)
@given(text_tables(), st.booleans(), SPLITS, FEATURES)
def test_any_text_becomes_predictions_or_is_refused(
    folder: Path, table: TableFile, stream: bool, split: str, features: FeatureOptions | None
) -> None:
    go_through(folder, table, stream, split, features)


@settings(max_examples=50)
@given(parquet_tables(), st.booleans(), SPLITS, FEATURES)
def test_any_parquet_becomes_predictions_or_is_refused(
    folder: Path, table: TableFile, stream: bool, split: str, features: FeatureOptions | None
) -> None:
    go_through(folder, table, stream, split, features)


@pytest.mark.slow
@settings(max_examples=800)
@given(text_tables() | parquet_tables(), st.booleans(), SPLITS, FEATURES)
def test_any_table_becomes_predictions_or_is_refused_at_length(
    folder: Path, table: TableFile, stream: bool, split: str, features: FeatureOptions | None
) -> None:
    go_through(folder, table, stream, split, features)


def test_every_option_of_features_is_drawn() -> None:
    names = {field for field in FeatureOptions.model_fields if field in str(FEATURES)}
    assert names == FeatureOptions.model_fields.keys()
