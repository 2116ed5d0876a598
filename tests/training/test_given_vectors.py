"""Runs that begin with vectors of a file: through every command, resumed, and without the file."""

import json
import re
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from tests.training import tiny
from typer.testing import CliRunner

import gdod
from gdod import MultiTaskModel
from gdod.cli import app
from gdod.training import load_run, read_config, train
from gdod.training.checkpoint import load

QUICK = ["--recipe", "paper", "--model-option", "embedding=4", "--batch", "64", "--threads", "1"]


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GDOD_CACHE", str(tmp_path_factory.getbasetemp() / "vectors-cache"))


@pytest.fixture
def table(tmp_path: Path) -> Path:
    tiny.frame(800).write_csv(tmp_path / "tiny.csv")
    (tmp_path / "tiny.yaml").write_text(tiny.SCHEMA)
    return tmp_path / "tiny.csv"


@pytest.fixture
def items(tmp_path: Path) -> Path:
    """Vectors of every second item, of which some do not occur in the table: their first number decides purchases."""
    numbers = range(0, 60, 2)
    vectors = [[number / 6 - 1.6, 1.0, 0.0] for number in numbers]
    pl.DataFrame({"id": [f"item{number}" for number in numbers], "v": vectors}).write_parquet(
        tmp_path / "items.parquet"
    )
    return tmp_path / "items.parquet"


def invoke(*arguments: object) -> str:
    done = CliRunner().invoke(app, [str(one) for one in arguments])
    assert done.exit_code == 0, done.output
    return done.output


def gdod_train(table: Path, items: Path, out: Path, *more: object) -> str:
    given = ["--data", table, "--schema", table.with_suffix(".yaml"), "--vectors", f"item={items}"]
    return invoke("train", *given, *QUICK, "--method", "sum", "--out", out, *more)


def test_the_commands_begin_with_them_and_need_the_file_no_more(table: Path, items: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    said = gdod_train(table, items, run, "--steps", 20)
    assert "item: vectors of 3 numbers for 30 of 40 values" in said
    stored = json.loads((run / "config.json").read_text())["data"]["vectors"]
    assert stored == {"item": {"file": str(items), "frozen": False}}
    content = load(run / "checkpoints" / "last.pt")["model"]
    assert int((content["features.pretrained.1.known"] == 1).sum()) == 30
    items.unlink()
    new = pl.DataFrame({"city": "city1", "age": 40.0, "seen": None, "item": ["item40", "item58", "item41", "item1001"]})
    new.write_csv(tmp_path / "new.csv")
    invoke("predict", run, tmp_path / "new.csv", "--out", tmp_path / "out.csv")
    forty, last, unknown, other = pl.read_csv(tmp_path / "out.csv")["buy"]
    assert unknown == other  # no item, and no vector either
    assert len({forty, last, unknown}) == 3  # never seen in training, but the file had their vectors
    invoke("export", run, tmp_path / "run.pt2", "--data", table)


def test_a_run_goes_on_and_not_with_another_file(table: Path, items: Path, tmp_path: Path) -> None:
    gdod_train(table, items, tmp_path / "whole", "--steps", 12)
    gdod_train(table, items, tmp_path / "parts", "--steps", 5)
    gdod_train(table, items, tmp_path / "parts", "--steps", 12, "--resume")
    whole, parts = (load(tmp_path / name / "checkpoints" / "last.pt")["model"] for name in ("whole", "parts"))
    torch.testing.assert_close(whole, parts, rtol=1e-5, atol=1e-6)
    pl.read_parquet(items)[:20].write_parquet(items)
    options = {
        "data": {"source": str(table), "schema": str(table.with_suffix(".yaml")), "vectors": {"item": str(items)}}
    }
    small: dict[str, Any] = {"recipe": "paper", "model.options.embedding": 4, "batch": 64, "threads": 1}
    config = read_config(options={**options, **small, "method.name": "sum", "steps": 20})
    with pytest.raises(gdod.InputError, match=r"the data of the run .* has changed"):
        train(config, tmp_path / "parts", resume=True)


def test_frozen_vectors_stay_and_have_nothing_beside_them(table: Path, items: Path, tmp_path: Path) -> None:
    gdod_train(table, items, tmp_path / "run", "--steps", 5, "--set", "data.vectors.item.frozen=true")
    content = load(tmp_path / "run" / "checkpoints" / "last.pt")["model"]
    run = load_run(tmp_path / "run")
    (place,) = [at for at, field in enumerate(run.model.schema.categorical) if field.frozen]
    first = sum(field.cardinality + 1 for field in run.model.schema.categorical[:place])
    known = content[f"features.pretrained.{place}.known"].squeeze(1) == 1
    own = content["features.table.weight"][first : first + len(known)]
    assert bool((own[known] == 0).all())
    assert bool((own[~known] != 0).any())
    given = torch.tensor(pl.read_parquet(items)["v"].to_list())
    scaled = given / given.square().mean().sqrt()
    vectors = content[f"features.pretrained.{place}.vectors"][known]
    torch.testing.assert_close(vectors.sort(0).values, scaled.sort(0).values)


@pytest.mark.parametrize("recipe", ["paper", "strong"])
@pytest.mark.parametrize("frozen", [False, True])
def test_an_update_keeps_them_and_new_items_learn_their_own(
    recipe: str, frozen: bool, table: Path, items: Path, tmp_path: Path
) -> None:
    """Before the first step all rows are predicted as by the run it goes on from, new items among them."""
    more = ["--steps", 12, "--recipe", recipe, "--set", f"data.vectors.item.frozen={str(frozen).lower()}"]
    gdod_train(table, items, tmp_path / "first", *more)
    kept = items.read_bytes()
    items.unlink()  # it is needed no more
    new = tiny.frame(800, seed=1).with_columns(pl.col("item").str.replace("item1", "new"))
    new.write_csv(tmp_path / "second.csv")
    given = ["--from", tmp_path / "first", "--data", tmp_path / "second.csv", "--threads", "1", "--out"]
    invoke("train", *given, tmp_path / "still", "--steps", 1, "--lr", 1e-30)
    invoke("train", *given, tmp_path / "second", "--epochs", 3, "--lr", 0.01, "--monitor", "loss")
    first, still, second = (load_run(tmp_path / name) for name in ("first", "still", "second"))
    at = next(at for at, field in enumerate(first.model.schema.categorical) if field.vectors)
    before, after = (run.model.state_dict() for run in (first, second))
    for name in ("vectors", "known"):
        old, now = (content[f"features.pretrained.{at}.{name}"] for content in (before, after))
        assert len(now) > len(old)
        assert torch.equal(now[: len(old)], old)  # those of the file, to the bit
        assert not now[len(old) :].any()
    field = second.model.schema.categorical[at]
    assert (field.vectors, field.frozen) == (3, frozen)
    alike = new[:4].with_columns(pl.lit("city1").alias("city"), pl.lit(40.0).alias("age"), pl.lit(None).alias("seen"))
    alike = alike.with_columns(item=pl.Series(["new0", "item40", "item2", "nothing"]))
    assert new["item"].eq("new0").any()
    if recipe == "paper":  # target statistics that were brought forward are another input
        torch.testing.assert_close(
            torch.tensor(still.predict(alike).to_numpy()), torch.tensor(first.predict(alike).to_numpy())
        )
        assert abs(first.predict(alike)["buy"][0] - first.predict(alike)["buy"][3]) < 1e-6
    assert second.step > 0
    learned = second.predict(alike)["buy"]
    assert abs(learned[0] - learned[3]) > 1e-6  # an item of the update, and one that nobody knows
    invoke("export", tmp_path / "second", tmp_path / "run.pt2", "--data", table)
    items.write_bytes(kept)
    refused = CliRunner().invoke(
        app, ["train", *map(str, given), str(tmp_path / "third"), "--vectors", f"item={items}"]
    )
    assert refused.exit_code == 2
    assert "values that are new learn their own" in refused.output
    assert not (tmp_path / "third").exists()


def test_the_estimator_takes_them_too(items: Path) -> None:
    frame = tiny.frame(800).drop("id")
    quick: dict[str, Any] = {"recipe": "paper", "steps": 5, "threads": 1, "verbose": False}
    model = MultiTaskModel(settings={"data.vectors.item": str(items)}, **quick).fit(frame, labels=["click", "buy"])
    alike = frame[:3].with_columns(city=pl.lit("city1"), age=pl.lit(40.0), seen=pl.lit("item3"))
    alike = alike.with_columns(item=pl.Series(["item40", "item41", "item43"]), w=pl.lit(1.0))
    first, second, third = model.predict_proba(alike)["buy"]
    assert abs(first - second) > 1e-5  # the file has a vector of item40, which training has not seen
    assert second == pytest.approx(third, abs=1e-7)  # rows are rounded by their place in a batch


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("itme={items}", "a column of data.vectors='itme' is unknown; .*did you mean 'item'"),
        ("age={items}", "a column of data.vectors='age' is unknown"),
        ("item={items}.gone.parquet", "there is no file"),
    ],
)
def test_check_says_what_is_wrong(table: Path, items: Path, given: str, message: str) -> None:
    arguments = ["--data", table, "--schema", table.with_suffix(".yaml"), "--vectors", given.format(items=items)]
    done = CliRunner().invoke(app, ["train", *map(str, arguments), "--check"])
    assert done.exit_code == 2
    assert re.search(message, done.stderr), done.stderr


def test_a_file_in_a_configuration_lies_beside_it(table: Path, items: Path, tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(f"data: {{source: {table.name}, vectors: {{item: items.parquet}}}}\n")
    assert read_config(file).data.vectors["item"].file == items
    file.write_text(f"data: {{source: {table.name}, vectors: {{item: {{file: ../items.parquet}}}}}}\n")
    with pytest.raises(gdod.InputError, match="leads out of the folder"):
        read_config(file)
