"""The stages of the quality benchmark on a small table: what they make, reuse and write."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
from tests.training import tiny

from benchmarks.quality import (
    PARTS,
    SETS,
    Bench,
    Figures,
    Measured,
    QualitySet,
    Stage,
    as_markdown,
    auc_table,
    kept_figures,
    own_table,
    with_kept,
    write,
)
from gdod.data import TableSchema
from gdod.experiments.plan import make_plan
from gdod.experiments.rivals.inputs import load_input
from gdod.report.study import flat
from gdod.training.config import DataConfig, Settings, TrainConfig, merged
from gdod.training.recipes import TableSize, apply_recipe


def tiny_table(data: Path, work: Path) -> Settings:
    tiny.frame(400).drop("seen").write_csv(work / "table.csv")
    schema = "".join(line for line in tiny.SCHEMA.splitlines(keepends=True) if "seen" not in line)
    (work / "schema.yaml").write_text(schema)
    return {"source": str(work / "table.csv"), "schema": str(work / "schema.yaml")}


def bench(place: Path, *, splits: bool = False, version: str = "first", seeds: int = 1) -> Bench:
    return Bench(
        "tiny",
        QualitySet("a tiny table", tiny_table),
        data=place,
        runs=place / "runs",
        version=version,
        seeds=seeds,
        splits=splits,
        jobs=1,
        parts={"average of the weights": {"average": None}},
        settings={"steps": 5, "device": "cpu", "threads": 1},
    )


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GDOD_CACHE", str(tmp_path / "cache"))
    return tmp_path


def times(place: Path) -> dict[str, int]:
    """Return when each result was written."""
    return {str(path.parent): path.stat().st_mtime_ns for path in place.rglob("result.json")}


def test_finished_runs_are_used_again_and_rivals_by_all_versions(place: Path) -> None:
    stages = (Stage.OURS, Stage.RIVALS)
    for stage in stages:
        bench(place).make(stage)
    before = times(place)
    for stage in stages:
        bench(place).make(stage)
    assert times(place) == before
    found = bench(place).read()
    assert found.runs.keys() == {"ours", "lightgbm", "catboost"}

    other = bench(place, version="second")
    other.make(Stage.RIVALS)
    assert times(place) == before  # they do not depend on our source
    assert other.read().runs["catboost"][0].commit == "first"
    assert "ours" not in other.read().runs


@pytest.mark.slow
def test_all_stages_give_all_tables(place: Path) -> None:
    one = bench(place)
    for stage in Stage:
        one.make(stage)
    write([one], place / "out")
    text = (place / "out" / "quality.md").read_text()
    for title in ("Mean test AUC", "Training time", "The parts of the recipe", "One network for all tasks", "LightGBM"):
        assert title in text
    assert "without average of the weights" in text
    found = json.loads((place / "out" / "quality.json").read_text())["sets"][0]
    assert found["runs"].keys() == {"ours", "single", "lightgbm", "catboost"}
    part = found["parts"]["average of the weights"]["0"]
    assert part["test"] is None
    assert part["validation"] != found["runs"]["ours"]["0"]["validation"]
    assert found["times"].keys() == {"ours", "lightgbm", "catboost"}
    assert found["preparing"].keys() == {"ours", "rivals"}


def test_splits_cut_the_table_anew_for_each_seed(place: Path) -> None:
    comparisons = bench(place, splits=True, seeds=2).comparisons("rivals")
    assert [list(seeds) for _, seeds, _ in comparisons] == [[0], [1]]
    assert len({folder for folder, _, _ in comparisons}) == 2
    first, second = (load_input(DataConfig(**data)).test for _, _, data in comparisons)
    assert first is not None
    assert second is not None
    assert len(first) == len(second)
    assert set(first.numbers[:, 0]) != set(second.numbers[:, 0])
    # A `rare` that the schema does not give is the recipe's to choose, also after the schema was written again.
    census = Bench(
        "census", SETS["census"], data=place, runs=place / "runs", version="first", seeds=2, splits=True
    ).comparisons("rivals")
    for _, _, data in (*comparisons, *census):
        columns = TableSchema.read(data["schema"]).columns
        assert not any("rare" in column.model_fields_set for column in columns.values())
    same = bench(place, seeds=2).comparisons("rivals")
    assert [list(seeds) for _, seeds, _ in same] == [[0, 1]]


@pytest.mark.parametrize("name", PARTS)
def test_a_part_that_is_taken_out_is_out_and_in_otherwise(name: str) -> None:
    def filled(settings: Settings) -> dict[str, Any]:
        given = merged({"recipe": "strong", "methods": ["sum"], "data": {"source": "ads"}}, settings)
        config = make_plan(given).config
        assert isinstance(config, TrainConfig)
        return flat(apply_recipe(config, TableSize(rows=10_000, validation=1_000, tasks=2, fields=9))[0].model_dump())

    whole, without = filled({}), filled(PARTS[name])
    (model,) = PARTS[name].get("models", [{"name": "shared-bottom"}])
    wanted = flat({**{path: value for path, value in PARTS[name].items() if path != "models"}, "model": model})
    assert {path: without[path] for path in wanted} == wanted
    assert any(whole[path] != value for path, value in wanted.items())


def made(**runs_of: tuple[float, list[float]]) -> Measured:
    """Return made-up figures: of each, the AUC on validation and those on test by seed."""
    runs = {
        name: {seed: Figures(validation, test, 1.0, 1, "abc", {}) for seed, test in enumerate(tests)}
        for name, (validation, tests) in runs_of.items()
    }
    return Measured("made", False, runs, {}, {}, {})


def test_the_difference_is_from_the_booster_that_is_better_on_validation() -> None:
    found = made(ours=(0.6, [0.8, 0.9]), lightgbm=(0.7, [0.82, 0.82]), catboost=(0.71, [0.75, 0.79]))
    assert found.best_rival == "catboost"
    assert "| CatBoost | +0.0800" in auc_table([found])
    assert "# The strong recipe" in as_markdown([made()], "command", {})


def test_figures_of_before_stay_until_they_are_measured_again(place: Path) -> None:
    one = bench(place)
    for stage in (Stage.OURS, Stage.RIVALS):
        one.make(stage)
    write([one], place / "out")
    kept = kept_figures(place / "out" / "quality.json")
    assert kept == [one.read()]
    (before,) = kept
    ours, rivals = before.runs["ours"], {name: runs for name, runs in before.runs.items() if name != "ours"}
    nothing = Measured(before.title, before.splits, {}, {}, {}, {})
    assert with_kept([nothing], kept) == kept == with_kept([], kept)
    other = {seed: replace(run, commit="other") for seed, run in ours.items()}
    (joined,) = with_kept([replace(nothing, runs={"ours": other})], [replace(before, parts={"dropout": ours})])
    assert joined.runs == {**rivals, "ours": other}
    assert not joined.parts


def test_a_table_of_ones_own(tmp_path: Path) -> None:
    settings = tiny_table(tmp_path, tmp_path)
    name, table = own_table(f"mine={settings['source']}:{settings['schema']}")
    assert (name, table.title, table.data(tmp_path, tmp_path)) == ("mine", "mine", settings)


@pytest.mark.parametrize(
    "text", ["mine", "mine=table.csv", "a/b=t.csv:t.yaml", "census=t.csv:t.yaml", "mine=no.csv:no.yaml"]
)
def test_what_is_no_table(text: str) -> None:
    with pytest.raises(typer.BadParameter, match=r"expected NAME=FILE:SCHEMA|there is no no\.csv"):
        own_table(text)
