"""A schema from Python, YAML and TOML; what is misspelled is refused with the nearest name."""

from pathlib import Path

import pytest

from gdod import InputError
from gdod.data import TableSchema
from gdod.data.tables.table_schema import CategoricalColumn, LabelColumn, SequenceColumn

YAML = """
columns:
  age:     numeric
  city:    {type: categorical, rare: 5}
  history: {type: sequence, separator: "|", longest: 7}
  weight:  weight
  click:   {type: label, kind: binary}
  buy:     {type: label, kind: binary, when: click}
  id:      ignore
split: {by: time, column: day, validation: 0.05, test: 0.1}
file: {missing: ["?", ""]}
"""
TOML = """
[columns]
age = "numeric"
city = {type = "categorical", rare = 5}
history = {type = "sequence", separator = "|", longest = 7}
weight = "weight"
click = {type = "label", kind = "binary"}
buy = {type = "label", kind = "binary", when = "click"}
id = "ignore"
[split]
by = "time"
column = "day"
validation = 0.05
test = 0.1
[file]
missing = ["?", ""]
"""


def read(folder: Path, text: str, name: str = "s.yaml") -> TableSchema:
    (folder / name).write_text(text)
    return TableSchema.read(folder / name)


def test_yaml_and_toml_say_the_same(tmp_path: Path) -> None:
    schema = read(tmp_path, YAML)
    assert schema == read(tmp_path, TOML, "s.toml")
    assert schema.columns["city"] == CategoricalColumn(rare=5)
    assert schema.columns["history"] == SequenceColumn(separator="|", longest=7)
    assert schema.labels == {"click": LabelColumn(), "buy": LabelColumn(when="click")}
    assert schema.features == ("age", "city", "history")
    assert schema.weight == "weight"
    assert schema.split.column == "day"
    assert set(schema.needed) == {"age", "city", "history", "weight", "click", "buy", "day"}


def test_json_brings_it_back(tmp_path: Path) -> None:
    schema = read(tmp_path, YAML)
    assert TableSchema(**schema.to_json()) == schema


def test_yes_and_no_are_text(tmp_path: Path) -> None:
    schema = read(tmp_path, "columns: {a: numeric, no: {type: label, positive: yes}, 1: numeric}")
    assert schema.labels["no"].positive == ("yes",)
    assert "1" in schema.columns


def test_values_are_written_as_cells_are(tmp_path: Path) -> None:
    """Without spaces around them, and a whole number without a fraction: so they are compared with cells."""
    text = "columns: {a: numeric, b: {type: label, positive: [2.0, ' yes ', '-3.0', 2.5, '1.0.0']}, "
    text += "c: {type: label, kind: multiclass, classes: [1.0, 2, 'x ']}}\nfile: {missing: [-9.0, ' ? ']}"
    schema = read(tmp_path, text)
    assert schema.labels["b"].positive == ("2", "yes", "-3", "2.5", "1.0.0")
    assert schema.labels["c"].classes == ("1", "2", "x")
    assert schema.file.missing == ("-9", "?")
    assert TableSchema(**schema.to_json()) == schema


def test_columns_that_have_numbers_for_names(tmp_path: Path) -> None:
    text = "columns: {1: numeric, 2: {type: label, when: 3}}\n"
    text += "split: {by: group, column: 4}\nfile: {header: [1, 2, 3, 4]}"
    schema = read(tmp_path, text)
    assert schema.file.header == ("1", "2", "3", "4")
    assert schema.needed == ("1", "2", "3", "4")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("columns: {age: numerc}", "did you mean 'numeric'"),
        ("columns: {age: {type: categorical, rar: 2}}", "did you mean 'rare'"),
        ("colums: {age: numeric}", "did you mean 'columns'"),
        ("columns: {age: numeric}\nsplit: {bye: time}", "did you mean 'by'"),
        ("columns: {age: numeric}\nfile: {seperator: ';'}", "did you mean 'separator'"),
        ("columns: {age: {rare: 2}}", "no `type`"),
        ("columns: {age: numeric}\nsplit: {by: time}", "needs `column`"),
        ("columns: {age: numeric}\nsplit: {by: hour}", "'random', 'time', 'group', 'files'"),
        ("columns: {age: numeric}\nsplit: {test: 1.5}", "share from 0"),
        ("columns: {age: numeric}\nsplit: {test: x.csv}", "by: files"),
        ("columns: {age: numeric, age: ignore}", "stands there twice"),
        ("columns: {click: label}", "no column is categorical"),
        ("columns: {a: numeric, u: weight, v: weight}", "more than one weight"),
        ("columns: {a: numeric, y: {type: label, kind: regression, positive: 1}}", "`positive` is for kind: binary"),
        ("columns: {a: numeric, y: {type: label, kind: multiclass, classes: [1]}}", "at least two"),
        ("columns: {a: numeric, y: {type: label, when: y}}", "names the column itself"),
        ("columns: {a: numeric, y: {type: label, kind: multiclass, classes: [1, 1.0]}}", "all different"),
        ("columns: {a: numeric}\nfile: {header: [a, null]}", "header"),
        ("columns: [a", "not valid YAML"),
        ("just text", "holds no keys"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InputError) as error:
        read(tmp_path, text)
    assert said in str(error.value)
    assert "s.yaml" in str(error.value)


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"expected \.yaml"):
        read(tmp_path, "columns: {a: numeric}", "s.ini")
    with pytest.raises(InputError, match="No such file"):
        TableSchema.read(tmp_path / "none.yaml")


def test_an_unknown_column_is_refused_with_the_nearest_name() -> None:
    schema = TableSchema(columns={"age": "numeric", "buy": {"type": "label", "when": "clik"}})
    with pytest.raises(InputError, match=r"no column 'clik' \(did you mean 'click'"):
        schema.check_columns(["age", "buy", "click"], "t.csv")


def test_a_numeric_column_is_stored_as_it_was_before_it_had_more_options() -> None:
    """The fingerprint of prepared data is made of it."""
    plain = TableSchema(columns={"x": "numeric", "y": "label"}).to_json()["columns"]["x"]
    assert plain == {"type": "numeric", "scale": "standard"}
    given = {"type": "numeric", "scale": "log", "decimal": ",", "thousands": ".", "missing": ["?"]}
    described = TableSchema(columns={"x": given, "y": "label"})
    assert described.to_json()["columns"]["x"] == given
    assert TableSchema(**described.to_json()) == described
    with pytest.raises(InputError, match="they must differ"):
        TableSchema(columns={"x": {"type": "numeric", "decimal": ",", "thousands": ","}, "y": "label"})


def test_words_that_yaml_takes_for_values_are_those_of_the_table(tmp_path: Path) -> None:
    text = "columns: {a: numeric, b: {type: label, positive: [True]}, c: {type: label, positive: false}}\n"
    described = read(tmp_path, text + "file: {missing: [null, '?']}")
    assert described.labels["b"].positive == ("true", "True", "TRUE")
    assert described.labels["c"].positive == ("false", "False", "FALSE")
    assert described.file.missing == ("null", "?")


def test_what_is_wrong_with_yaml_is_said_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not valid YAML") as refused:
        read(tmp_path, "columns: {a: [numeric\nb: }")
    assert "\n" not in str(refused.value)
