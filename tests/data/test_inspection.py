"""What an unknown table is taken for, and the schema that is written of it."""

import json
from pathlib import Path

import polars as pl
import pytest
from tests.data.clicks_table import clicks, write
from typer.testing import CliRunner

from gdod import InputError
from gdod.cli.data import app
from gdod.data import TableSchema, inspect, load


def types(path: Path, **options: object) -> dict[str, str]:
    return {column.name: column.type for column in inspect(path, **options).columns}  # type: ignore[arg-type]


def test_columns_are_told_apart(tmp_path: Path) -> None:
    assert types(write(tmp_path, clicks(2000))) == {
        "id": "ignore",
        "user": "categorical",
        "city": "categorical",
        "age": "numeric",
        "seen": "sequence",
        "day": "time",
        "click": "label",
        "buy": "label",
    }


def test_counts_are_right(tmp_path: Path) -> None:
    table = clicks()
    columns = {column.name: column for column in inspect(write(tmp_path, table)).columns}
    assert columns["user"].values == table["user"].n_unique()
    assert columns["age"].missing == table["age"].null_count() > 0
    assert (columns["age"].low, columns["age"].high) == (table["age"].min(), table["age"].max())
    assert columns["click"].rate == pytest.approx(table["click"].mean())
    assert columns["seen"].values == 19


def test_the_same_from_parquet_with_lists_and_times(tmp_path: Path) -> None:
    table = clicks(2000).with_columns(
        pl.col("seen").str.split(" ").list.eval(pl.element().cast(pl.Int64, strict=False)),
        pl.col("day").str.to_date(),
        pl.col("click").cast(pl.Boolean),
    )
    table.write_parquet(tmp_path / "t.parquet")
    assert types(tmp_path / "t.parquet") == types(write(tmp_path, clicks(2000)))


def test_times_are_told_by_their_values(tmp_path: Path) -> None:
    table = pl.DataFrame(
        {
            "x": ["2024-01-01T10:00:00+02:00", "2024-05-01T11:30:00Z"] * 10,
            "date": ["1.1.2024", "2.1.2024"] * 10,
            "timestamp": [1_700_000_000, 1_700_000_001] * 10,
            "lasting": pl.Series([1, 2] * 10, dtype=pl.Duration("us")),
            "click": [0, 1] * 10,
        }
    )
    table.write_parquet(tmp_path / "t.parquet")
    assert types(tmp_path / "t.parquet") == {
        "x": "time",
        "date": "ignore",
        "timestamp": "ignore",
        "lasting": "ignore",
        "click": "label",
    }


def test_named_labels_of_every_kind(tmp_path: Path) -> None:
    table = pl.DataFrame(
        {
            "x": [0.5, 1.5, 2.5] * 20,
            "smoker": ["Yes", "no", "yes"] * 20,
            "stars": [1, 2, 5] * 20,
            "price": [float(k) / 3 for k in range(60)],
        }
    )
    labels = inspect(write(tmp_path, table), labels=["smoker", "stars", "price"]).schema().labels
    assert (labels["smoker"].kind, set(labels["smoker"].positive or ())) == ("binary", {"yes", "Yes"})
    assert (labels["stars"].kind, labels["price"].kind) == ("multiclass", "regression")


@pytest.mark.parametrize(
    ("negative", "positive"),
    [
        ("no", "yes"),
        ("N", "Y"),
        ("survived", "died"),
        ("negative", "positive"),
        ("FALSE", "TRUE"),
        ("-1", "1"),
        ("<=50K", ">50K"),
        ("not churned", "churned"),
        ("Non-Smoker", "smoker"),
    ],
)
@pytest.mark.parametrize("rarer", [False, True])
def test_words_say_which_value_counts_as_1_however_rare(
    negative: str, positive: str, rarer: bool, tmp_path: Path
) -> None:
    values = ([positive] + [negative] * 4 if rarer else [negative] + [positive] * 4) * 20
    path = write(tmp_path, pl.DataFrame({"x": [0.5, 1.5, 2.5, 3.5, 4.5] * 20, "y": values}))
    inspection = inspect(path, labels=["y"])
    assert inspection.columns[1].rate == pytest.approx(0.2 if rarer else 0.8)
    data = load(path, schema=inspection.schema(), cache=tmp_path / "c")
    assert data.train.examples.labels.mean() == pytest.approx(0.2 if rarer else 0.8, abs=0.1)  # type: ignore[attr-defined]
    if inspection.schema().labels["y"].positive:
        assert f"positive ({positive})" in inspection.to_yaml()
        assert f"the label 'y' is 1 where it is {positive!r}, and 0 for other values" in data.notes


def test_other_words_are_asked_about(tmp_path: Path) -> None:
    out = tmp_path / "s.yaml"
    path = write(tmp_path, pl.DataFrame({"x": [0.5, 1.5, 2.5] * 20, "sex": ["m", "f", "m"] * 20}))
    with pytest.raises(InputError, match="the label 'sex': which value counts as 1 has to be said"):
        load(path, labels=["sex"], cache=tmp_path / "c")
    inspection = inspect(path, labels=["sex"])
    assert inspection.columns[1].rate is None
    out.write_text(inspection.to_yaml())
    assert "`positive: [m]` or [f]" in out.read_text()
    # As it is, the schema is refused with the same request; an answer is all that it needs.
    with pytest.raises(InputError, match=r"column 'sex' is '[mf]'; .* `positive: \[...\]`"):
        load(path, schema=out, cache=tmp_path / "c")
    out.write_text(out.read_text().replace("kind: binary}", "kind: binary, positive: f}"))
    assert load(path, schema=out, cache=tmp_path / "c").encoder.table_schema.labels["sex"].positive == ("f",)


def test_no_label_and_an_unknown_label(tmp_path: Path) -> None:
    path = write(tmp_path, clicks().drop("click", "buy"))
    with pytest.raises(InputError, match="no column looks like a label"):
        inspect(path).schema()
    with pytest.raises(InputError, match="did you mean 'user'"):
        inspect(path, labels=["usr"])


def test_only_the_first_rows_are_looked_at(tmp_path: Path) -> None:
    inspection = inspect(write(tmp_path), most_rows=100)
    assert (inspection.rows, inspection.whole) == (100, False)
    assert "the first 100 rows" in inspection.to_yaml()
    assert inspect(write(tmp_path)).whole


def test_awkward_names_survive_the_yaml(tmp_path: Path) -> None:
    names = ["a: b", "yes", "12", "ü", "#x", "'q'", "null", "-", "a b"]
    table = pl.DataFrame({name: ["yes", "no"] * 10 for name in names} | {"click": [0, 1] * 10})
    inspection = inspect(write(tmp_path, table), labels=["click", "yes"])
    (tmp_path / "s.yaml").write_text(inspection.to_yaml())
    assert TableSchema.read(tmp_path / "s.yaml") == inspection.schema()


@pytest.mark.parametrize("sign", ["\x7f", "\x85", "\u2028", "\u2029", "\ufffe", "\x1b", "\n", "\U000e0001", "😀"])
def test_signs_that_yaml_has_no_place_for_survive_it(tmp_path: Path, sign: str) -> None:
    """In names, in values, and in comments: what a file is called, and what an odd column holds."""
    name = f"a{sign}b"
    table = pl.DataFrame({name: ["u", "v"] * 10, "sign": [f"not {name}", name] * 10, "odd": [{name: 1}] * 20})
    table.write_parquet(tmp_path / f"{name}.parquet")
    inspection = inspect(tmp_path / f"{name}.parquet", labels=["sign"])
    (tmp_path / "s.yaml").write_text(inspection.to_yaml(), "utf-8")
    assert TableSchema.read(tmp_path / "s.yaml") == inspection.schema()


def test_names_in_other_scripts_stay_readable(tmp_path: Path) -> None:
    table = pl.DataFrame({"größe (€)": ["u", "v"] * 10, "年齢, 歳": ["u", "v"] * 10, "click": [0, 1] * 10})
    written = inspect(write(tmp_path, table)).to_yaml()
    assert '"größe (€)": categorical' in written
    assert '"年齢, 歳": categorical' in written


def test_truths_are_no_features(tmp_path: Path) -> None:
    """A column true_... says what cannot be known; it is ignored, and the schema says why."""
    table = pl.DataFrame({"x": [0.5, 1.5, 2.5, 3.5] * 5, "true_click": [0.1, 0.9] * 10, "click": [0, 1] * 10})
    inspection = inspect(write(tmp_path, table))
    assert inspection.schema().features == ("x",)
    assert "true_click: ignore" in inspection.to_yaml()
    assert "named as a truth" in inspection.to_yaml()
    named = inspect(write(tmp_path, table), labels=["true_click"]).schema()
    assert tuple(named.labels) == ("true_click",)


@pytest.mark.parametrize("name", ["visit", "visited", "is_follow", "order", "add_to_cart", "subscribed", "shared"])
def test_what_people_do_is_a_label(tmp_path: Path, name: str) -> None:
    table = pl.DataFrame({"x": [0.5, 1.5, 2.5, 3.5] * 5, name: [0, 1] * 10})
    assert types(write(tmp_path, table)) == {"x": "numeric", name: "label"}


NUMBERS = [float(number) for number in (1500, 2, 31234, 7, 88, 123456, 9, 1000000, 6, 5.5)] + [
    number / 4 for number in range(30)
]
WAYS = {
    "plain": ({}, "{:f}"),
    "thousands": ({"thousands": ","}, "{:,f}"),
    "decimal comma": ({"decimal": ","}, "{:f}"),
    "both": ({"decimal": ",", "thousands": "."}, "{:,f}"),
}


@pytest.mark.parametrize("way", WAYS)
def test_numbers_are_numbers_however_they_are_written(tmp_path: Path, way: str) -> None:
    options, form = WAYS[way]
    written = [form.format(number) for number in NUMBERS * 5]
    if "decimal" in options:
        written = [one.translate({44: 46, 46: 44}) for one in written]
    table = pl.DataFrame({"x": written, "same": NUMBERS * 5, "click": [0, 1] * 100})
    inspection = inspect(write(tmp_path, table))
    assert (inspection.columns[0].type, inspection.columns[0].options) == ("numeric", options)
    assert (inspection.columns[0].low, inspection.columns[0].high) == (0, 1_000_000)
    (tmp_path / "s.yaml").write_text(inspection.to_yaml())
    examples = load(tmp_path / "clicks.csv", schema=tmp_path / "s.yaml", cache=tmp_path / "c").train.examples  # type: ignore[attr-defined]
    assert examples.numeric.shape[1] == 2
    assert examples.numeric[:, 0].equal(examples.numeric[:, 1])


def test_lists_of_numbers_are_still_lists(tmp_path: Path) -> None:
    table = pl.DataFrame({"x": ["1,234", "1,5,7", "2,3", "12,7,40,3", "4"] * 20, "click": [0, 1] * 50})
    assert types(write(tmp_path, table)) == {"x": "sequence", "click": "label"}


def test_a_slip_makes_a_column_of_numbers_no_other(tmp_path: Path) -> None:
    values = [str(number / 7) for number in range(2000)]
    values[5], values[7], values[9] = "oops", "oops", "-?-"
    path = write(tmp_path, pl.DataFrame({"x": values, "y": [0.5, 1.5] * 1000, "click": [0, 1] * 1000}))
    inspection = inspect(path)
    assert inspection.columns[0].type == "numeric"
    assert "no number in 3 rows ('oops' and 1 more)" in inspection.to_yaml()
    data = load(path, cache=tmp_path / "c")
    assert "column 'x' counts as missing where it is 'oops', '-?-'" in data.notes
    assert data.schema.numeric[0].name == "x"


def test_names_alone_make_no_times(tmp_path: Path) -> None:
    table = pl.DataFrame(
        {
            "full_time": [0, 1] * 50,
            "delivery_time": [number / 10 for number in range(100)],
            "part_of_time": ["morning", "noon"] * 50,
            "timestamp": range(1_700_000_000, 1_700_000_100),
            "date": ["3/4/2024", "5/6/2024"] * 50,
            "click": [0, 1] * 50,
        }
    )
    assert types(write(tmp_path, table)) == {
        "full_time": "categorical",
        "delivery_time": "numeric",
        "part_of_time": "categorical",
        "timestamp": "ignore",
        "date": "ignore",
        "click": "label",
    }


def test_names_of_things_in_several_languages(tmp_path: Path) -> None:
    names = ["user", "пользователь", "kunde", "usuario", "用户"]
    table = pl.DataFrame({name: list(range(50)) * 4 for name in [*names, "size"]} | {"click": [0, 1] * 100})
    found = inspect(write(tmp_path, table))
    assert [column.type for column in found.columns] == ["categorical"] * 5 + ["numeric", "label"]
    assert "if they are names of things, write categorical" in found.to_yaml()


@pytest.mark.parametrize("odd", ["inf", "2"])
@pytest.mark.parametrize("named", [True, False])
def test_one_odd_value_makes_a_binary_label_no_other(tmp_path: Path, odd: str, named: bool) -> None:
    table = pl.DataFrame({"x": [0.5, 1.5] * 100, "click": ["0", "1"] * 99 + ["0", odd]})
    path = write(tmp_path, table)
    column = inspect(path, labels=["click"] if named else ()).columns[1]
    assert (column.type, column.options["kind"]) == ("label", "binary")
    assert f"'{odd}' does not fit, in 1 row: refused" in column.summary(200)
    with pytest.raises(InputError, match=rf"line 201: column 'click' is '{odd}'"):
        load(path, labels=["click"] if named else (), cache=tmp_path / "c")


def test_a_label_that_is_not_named_is_no_feature(tmp_path: Path) -> None:
    inspection = inspect(write(tmp_path, clicks(2000)), labels=["buy"])
    assert {column.name: column.type for column in inspection.columns}["click"] == "ignore"
    assert "may give the answer away" in inspection.to_yaml()


def test_names_and_values_in_brackets_are_shown(tmp_path: Path) -> None:
    table = pl.DataFrame({"[red]": ["[/b]", "[x]"] * 10, "click": [0, 1] * 10})
    path = write(tmp_path, table)
    result = CliRunner().invoke(app, ["inspect", str(path)], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    assert "[red]" in result.stdout
    assert "[/b]" in result.stdout


def test_the_command_writes_a_schema_that_prepares_the_table(tmp_path: Path) -> None:
    path, out = write(tmp_path), tmp_path / "s.yaml"
    result = CliRunner().invoke(app, ["inspect", str(path), "--out", str(out), "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["rows"] == 600
    assert len(load(path, schema=out, cache=tmp_path / "cache").train) == 432
    again = CliRunner().invoke(app, ["inspect", str(path), "--out", str(out)])
    assert again.exit_code == 2
    result = CliRunner().invoke(app, ["prepare", str(path), "--schema", str(out), "--cache", str(tmp_path / "cache")])
    assert result.exit_code == 0, result.output
    assert "432" in result.stdout


def test_very_long_names_survive_the_yaml(tmp_path: Path) -> None:
    table = pl.DataFrame({"x" * 999: ["u", "v"] * 10, "y z" * 1000: ["u", "v"] * 10, "click": [0, 1] * 10})
    inspection = inspect(write(tmp_path, table))
    (tmp_path / "s.yaml").write_text(inspection.to_yaml())
    assert TableSchema.read(tmp_path / "s.yaml") == inspection.schema()


def test_a_table_in_memory_is_taken_for_what_its_file_is(tmp_path: Path) -> None:
    users = pl.Enum([str(number) for number in range(60)])
    table = clicks(300).with_columns(pl.col("city").cast(pl.Categorical), pl.col("user").cast(pl.String).cast(users))
    table.write_parquet(tmp_path / "clicks.parquet")
    of_file, of_frame = inspect(tmp_path / "clicks.parquet"), inspect(table)
    assert of_frame.columns == of_file.columns
    assert of_frame.schema() == of_file.schema()
    assert inspect(table.to_arrow()).columns == inspect(table.to_pandas()).columns == of_file.columns
    assert of_frame.source == "the table"
    with pytest.raises(InputError, match="the table has no column 'clik' "):
        inspect(table, labels=["clik"])
    with pytest.raises(InputError, match="the table is a list; expected a polars or pandas DataFrame"):
        inspect([1, 2])


def test_categories_that_look_like_numbers_stay_categories() -> None:
    codes = pl.Series("band", [str(row % 50) for row in range(500)])
    table = pl.DataFrame({"band": codes.cast(pl.Categorical), "size": codes, "click": [row % 2 for row in range(500)]})
    assert {column.name: column.type for column in inspect(table).columns} == {
        "band": "categorical",
        "size": "numeric",
        "click": "label",
    }
