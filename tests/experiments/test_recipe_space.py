"""The search space of the strong recipe: around what it chooses, without what is given, and on validation alone."""

import json
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import yaml
from tests.experiments.small import OPTIONS, make_place
from typer.testing import CliRunner

from gdod.cli import app
from gdod.experiments.recipe_space import own_point, recipe_space
from gdod.experiments.search import Grid, Range, Space, as_settings
from gdod.experiments.tune import RECIPE, Best, Search, read_search, tune
from gdod.training import TrainConfig, check, read_config
from gdod.training.config import merged, nested
from gdod.training.recipes import TableSize, apply_recipe

TABLE = TableSize(1_500, 150, 3, 20)
TRIALS = 4
FEATURES = ("statistics", "repeated_numbers", "pairs", "prior", "bins", "statistic_bins", "rare")
SETTINGS = {name: value for name, value in OPTIONS.items() if name not in ("recipe", "models", "optimizer.lr")}
# Of what is given none is searched; the smallest model, for one pass.
SMALL = {**SETTINGS, "model": "shared-bottom:bottom=[8],embedding=2", "epochs": 1}


def filled(**given: Any) -> tuple[TrainConfig, dict[str, Any]]:
    """A configuration as the recipe fills it in, and what is given of it."""
    config = read_config(
        options={"data.source": "ads", **{name.replace("__", "."): one for name, one in given.items()}}
    )
    return apply_recipe(config, TABLE)[0], config.model_dump()


def ends(space: Space) -> list[tuple[str, Any]]:
    return [
        (path, value)
        for path, one in space.items()
        for value in (one.values if isinstance(one, Grid) else (one.low, one.high))
    ]


@pytest.mark.parametrize("model", ["shared-bottom", "mmoe"])
def test_every_part_is_searched_around_the_recipe_s_own_value(model: str) -> None:
    full, given = filled(model__name=model)
    space = recipe_space(full, given)
    assert set(space) == {
        "optimizer.lr",
        "optimizer.weight_decay",
        "optimizer.id_decay",
        "average",
        "epochs",
        "model.options.dropout",
        "model.options.embedding",
        "model.options.cross",
        "model.options.ensemble",
        *(["model.options.bottom"] if model == "shared-bottom" else []),
        *(f"data.features.{name}" for name in FEATURES),
    }
    written = full.model_dump(mode="json")
    own = merged(written, nested(as_settings(own_point(space, full))))
    assert own["model"]["options"].items() >= written["model"]["options"].items()
    assert {**own, "model": None} == {**written, "model": None}
    start: Any = own_point(space, full)
    for path, one in space.items():
        assert len(one.values) > 1 if isinstance(one, Grid) else one.low < start[path] < one.high
    for path, value in ends(space):
        check(read_config(options={"data.source": "ads", "model.name": model, **as_settings({path: value})}))


@pytest.mark.parametrize(
    ("given", "left_out"),
    [
        ({"optimizer__lr": 0.1}, ("optimizer.lr",)),
        ({"optimizer__name": "sgd"}, ("optimizer.id_decay",)),
        ({"steps": 10}, ("epochs",)),
        ({"model__options__bottom": [8], "average": None}, ("model.options.bottom", "average")),
        ({"data__features__pairs": 0}, ("data.features.pairs",)),
        (
            {"data__features": None},
            tuple(f"data.features.{name}" for name in FEATURES),
        ),
    ],
    ids=str,
)
def test_what_is_given_is_not_searched(given: dict[str, Any], left_out: tuple[str, ...]) -> None:
    assert set(recipe_space(*filled())) - set(recipe_space(*filled(**given))) == set(left_out)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Any:
    place = tmp_path_factory.mktemp("space")
    with pytest.MonkeyPatch.context() as patch:
        make_place(place, patch)
        yield place


def search(**more: Any) -> Search:
    return read_search(options={**SMALL, **more}, trials=TRIALS)


@pytest.fixture(scope="module")
def best(place: Path) -> Best:
    return tune(search(), place / "tuned", processes=1)


def configs(folder: Path) -> dict[int, dict[str, Any]]:
    files = folder.glob("trials/*/seed0/config.json")
    return {int(path.parent.parent.name): json.loads(path.read_text()) for path in files}


def test_it_is_searched_unless_told_otherwise(place: Path) -> None:
    wanted = search()
    assert wanted.settings["method"] == {"name": "sum", "options": {}}
    assert "epochs" not in wanted.space
    assert "model.options.bottom" not in wanted.space
    assert search(method="gdod").space == wanted.space  # which declares no grid
    assert set(search(method="cagrad").space) == {"method.options.c"}
    named = read_search(
        options={**SMALL, "method": "cagrad", "search": RECIPE}, space={"optimizer.lr": Range(0.1, 1.0)}
    )
    assert named.space == {**wanted.space, "optimizer.lr": Range(0.1, 1.0)}


def test_the_first_trial_is_the_recipe_itself(best: Best) -> None:
    found = configs(best.folder)
    assert len(found) == TRIALS
    table = TableSize(640, 160, 2, 0)
    own = apply_recipe(read_config(options={**SMALL, "model": "shared-bottom"}), table)[0].model_dump(mode="json")
    assert found[0]["optimizer"] == own["optimizer"]
    assert (found[0]["average"], found[0]["data"]["features"]) == (own["average"], own["data"]["features"])
    assert len({json.dumps(one["optimizer"]) for one in found.values()}) == TRIALS


def test_data_is_prepared_once_for_each_choice_of_features(best: Best, place: Path) -> None:
    features = {json.dumps(one["data"]["features"], sort_keys=True) for one in configs(best.folder).values()}
    assert len(features) > 1
    assert len([*(place / "cache").rglob("encoder.json")]) == len(features)


def test_no_trial_is_given_the_test_part(best: Best) -> None:
    results = [json.loads(path.read_text()) for path in best.folder.glob("trials/*/seed0/result.json")]
    assert [one["test"] for one in results] == [None] * TRIALS
    assert best.value == max(one["validation"]["mean_auc"] for one in results)


def test_train_uses_what_was_found(best: Best) -> None:
    written = yaml.safe_load(best.file.read_text())
    assert written["recipe"] == "strong"
    config = read_config(best.file, {"data.source": "clicks.csv", "epochs": 1})
    found = configs(best.folder)[best.trial]
    assert config.data.features is not None
    assert config.data.features.model_dump(mode="json") == found["data"]["features"]
    assert config.optimizer.model_dump(mode="json") == found["optimizer"]
    assert config.model.options == {name: found["model"]["options"][name] for name in config.model.options}


def test_a_search_goes_on_where_it_was(best: Best, tmp_path: Path) -> None:
    folder = copytree(best.folder, tmp_path / "tuned")
    times = {path: path.stat().st_mtime_ns for path in folder.glob("trials/*/*/result.json")}
    more = tune(read_search(options=SMALL, trials=TRIALS + 1), folder, processes=1)
    assert more.trials == TRIALS + 1
    assert {path: path.stat().st_mtime_ns for path in times} == times


def test_a_search_of_before_goes_on_with_its_recipe(place: Path, tmp_path: Path) -> None:
    """By the same command, which named no recipe, as there was none."""
    options, grid = {**SMALL, "method": "sum", "steps": 2}, {"batch": Grid((64, 128))}
    del options["epochs"]
    tune(read_search(options={**options, "recipe": "paper"}, space=grid), place / "old", processes=1)
    copytree(place / "old", tmp_path / "old")
    for path in [tmp_path / "old/tuning.json", *tmp_path.glob("old/trials/*/*/config.json")]:
        stored = json.loads(path.read_text())
        for name in ("recipe", "filled", "average"):
            stored.get("settings", stored).pop(name)
        path.write_text(json.dumps(stored))
    (tmp_path / "old/trials/1/seed0/result.json").unlink()
    again = tune(read_search(options=options, space=grid), tmp_path / "old", processes=1)
    assert (again.trials, again.failed) == (2, {})
    assert yaml.safe_load(again.file.read_text())["recipe"] == "paper"


def test_check_says_what_the_recipe_chose_in_all_trials(place: Path) -> None:
    command = ["tune", "--data", "clicks.csv", "--schema", "clicks.yaml", "--check"]
    done = CliRunner().invoke(app, [*command, "--batch", "50"])
    assert done.exit_code == 0, done.stderr
    assert set(json.loads(done.stdout)["search"]) > {"optimizer.lr", "epochs", "data.features.pairs"}
    said = [line.split(":")[0].split(",")[0] for line in done.stderr.splitlines()]
    assert said[0] == "recipe strong"
    assert "schedule cosine" in said
    for searched in ("input:", "learning rate 0", "decay", "dropout", "hidden layers", "passes", "warm-up"):
        assert searched not in done.stderr
    fewer = CliRunner().invoke(app, [*command, "--grid", "optimizer.lr=[0.1,0.2]"])
    assert "optimizer adamw: weight decay" in fewer.stderr
    assert "batch size" in fewer.stderr
