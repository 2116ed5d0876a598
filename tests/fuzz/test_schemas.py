"""Schemas, by hand and by accident: each is read and can be used, or is refused in words."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.data.clicks_table import clicks
from tests.fuzz.outcomes import attempt, content
from tests.fuzz.values import ANYTHING, LEAVES, SCRAPS, toml_file

from gdod.data import FeatureOptions, TableSchema, load
from gdod.data.tables.table_schema import COLUMN_TYPES, FileFormat, Split

NAMES = list(clicks(1).columns)


def _mostly(right: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.integers(0, 15).flatmap(lambda roll: ANYTHING if roll == 15 else right)


def _keys(model: type[Any], values: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[dict[str, Any]]:
    """Some keys of a part of the schema, nearly all with values of the right kind."""
    known = {name: _mostly(values[name]) for name in model.model_fields if name != "type"}
    names = st.lists(st.sampled_from([*known, "other"]), max_size=3, unique=True) if known else st.just([])
    return names.flatmap(lambda some: st.fixed_dictionaries({name: known.get(name, ANYTHING) for name in some}))


VALUES: dict[str, st.SearchStrategy[Any]] = {
    "rare": st.sampled_from([1, 2, 5, 10**9]),
    "limit": st.sampled_from([None, 1, 10, 10**6]),
    "scale": st.sampled_from(["standard", "log", "none"]),
    "decimal": st.sampled_from([".", ",", "", ";"]),
    "thousands": st.sampled_from([None, ",", ".", " ", "'", "x"]),
    "separator": st.sampled_from([" ", "|", ", ", "a", "é", "\0", "1", ""]),
    "longest": st.sampled_from([1, 2, 50, 10**12]),
    "kind": st.sampled_from(["binary", "regression", "multiclass"]),
    "when": st.sampled_from([None, *NAMES]),
    "of": st.sampled_from([None, *NAMES, "nobody"]),
    "positive": st.sampled_from([None, ["1"], [1, True], "0", []]),
    "classes": st.sampled_from([None, ["0", "1"], [0, 1], ["1", "1"], [""]]),
    "by": st.sampled_from(["random", "time", "group", "files"]),
    "column": st.sampled_from([None, *NAMES]),
    "format": st.sampled_from([None, "%Y-%m-%d", "%Y", "%", "%Q", "", "%H:%M"]),
    "unit": st.sampled_from([None, "s", "ms", "us", "h"]),
    "seed": st.sampled_from([0, 1, 2**63, 10**30]),
    "validation": st.sampled_from([0, 0.1, 0.5, 0.999, 1e-300, "clicks.parquet", "*.csv", "."]),
    "test": st.sampled_from([0, 0.1, 0.5, 0.999, 1e-300, "clicks.parquet", "*.csv", "."]),
    "quote": st.sampled_from([None, '"', "'", "", "é", ",", "\n"]),
    "escape": st.sampled_from([None, "\\", '"', "", "é", ","]),
    "encoding": st.sampled_from(["utf-8", "latin-1", "utf-16", "ascii", "cp037", "base64", "idna", "", "\0", "utf-7"]),
    "header": st.sampled_from([None, NAMES, [*NAMES[1:], "id"], ["a"], ["a", "a"], []]),
    "missing": st.sampled_from([[], ["", "NA"], ["1"], [0, None]]),
}
FILE = {**VALUES, "separator": st.sampled_from([None, ",", ";", "\t", "é", "\n", '"', "\0"])}


@st.composite
def columns(draw: st.DrawFn) -> dict[str, Any]:
    """A column each for most names of the clicks; a few have a wrong type, or a name that is not there."""
    fitting = {
        "id": ["ignore"],
        "user": ["categorical"],
        "city": ["categorical"],
        "age": ["numeric"],
        "seen": ["sequence"],
        "day": ["ignore", "categorical", "time"],
        "click": ["label"],
        "buy": ["label"],
    }
    chosen: dict[Any, Any] = {}
    for name in draw(st.lists(st.sampled_from(NAMES[:-2]), unique=True, min_size=2)) + NAMES[-2:]:
        right = draw(st.integers(0, 9)) > 0
        kind = draw(st.sampled_from(fitting[name] if right else [*COLUMN_TYPES, "lable"]))
        options = (
            draw(_keys(COLUMN_TYPES[kind], VALUES)) if kind in COLUMN_TYPES and draw(st.integers(0, 2)) == 0 else {}
        )
        chosen[name] = {"type": kind, **options} if options else kind
    if draw(st.integers(0, 9)) == 0:
        chosen |= draw(st.dictionaries(LEAVES, ANYTHING, max_size=2))
    return chosen


SCHEMAS = st.fixed_dictionaries(
    {"columns": _mostly(columns())},
    optional={"split": _mostly(_keys(Split, VALUES)), "file": _mostly(_keys(FileFormat, FILE))},
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("clicks")
    clicks(80).write_csv(place / "clicks.csv")
    clicks(80).write_parquet(place / "clicks.parquet")
    return place


def use(folder: Path, text: str, kind: str, table: str, stream: bool, features: FeatureOptions | None = None) -> bool:
    """Reads a schema, prepares a table with it and takes a batch. After an error the cache is as it was."""
    path = folder / f"schema.{kind}"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    schema = attempt(lambda: TableSchema.read(path))
    if schema is None:
        return False
    assert TableSchema(**json.loads(json.dumps(schema.to_json()))) == schema
    before = content(folder / "cache")
    data = attempt(
        lambda: load(folder / table, schema=schema, cache=folder / "cache", stream=stream, features=features)
    )
    if data is None:
        assert content(folder / "cache") == before
        return False
    for part in (data.train, data.validation, data.test):
        assert sum(step.batch.size for step in part.batches(16, seed=0)) == len(part)
    assert len(data.train)
    return True


TABLES = st.sampled_from(["clicks.csv", "clicks.parquet"])
FEATURES = st.sampled_from([None, FeatureOptions(), FeatureOptions(rare=1, keys=10, folds=3)])


def written(schema: dict[str, Any], kind: str) -> str:
    return toml_file(schema) if kind == "toml" else yaml.safe_dump(schema, allow_unicode=True)


@given(SCHEMAS, st.sampled_from(["yaml", "toml"]), TABLES, st.booleans(), FEATURES)
def test_any_schema_is_used_or_refused(
    folder: Path, schema: dict[str, Any], kind: str, table: str, stream: bool, features: FeatureOptions | None
) -> None:
    use(folder, written(schema, kind), kind, table, stream, features)


@given(SCRAPS, st.sampled_from(["yaml", "toml"]))
def test_any_text_is_a_schema_or_refused(folder: Path, text: str, kind: str) -> None:
    use(folder, text, kind, "clicks.csv", stream=False)


@pytest.mark.slow
@settings(max_examples=800)
@given(SCHEMAS, st.sampled_from(["yaml", "toml"]), TABLES, st.booleans(), FEATURES)
def test_any_schema_is_used_or_refused_at_length(
    folder: Path, schema: dict[str, Any], kind: str, table: str, stream: bool, features: FeatureOptions | None
) -> None:
    use(folder, written(schema, kind), kind, table, stream, features)
