"""Tests of recipes: what they choose, that what is given is kept, and that a run stores what was used in full."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.training import tiny
from tests.training.test_loop import Interrupting, check_same
from typer.testing import CliRunner

import gdod.data
from gdod import InputError
from gdod.cli import app
from gdod.data.dataset import Dataset
from gdod.data.preparing.feature_options import FeatureOptions
from gdod.models import MODELS
from gdod.training import Interrupted, Silent, TrainConfig, check_config, load_run, name_of, read_config, train
from gdod.training.checkpoint import load
from gdod.training.config import DataConfig, OptimizerConfig, check_stored
from gdod.training.recipes import _FIXED, _MODEL, TableSize, apply_recipe
from gdod.training.train_run import load_data

SMALL, MEDIUM, LARGE = (TableSize(rows, rows // 10, 3, 20) for rows in (1_500, 200_000, 2_000_000))
FEATURES = {"statistics": False, "pairs": 1, "bins": 9, "rare": 7, "times": False}
OPTIONS = {
    "bottom": [3], "tower": [2], "dropout": 0.4, "activation": "tanh", "embedding": 3, "cross": 1,
}  # fmt: skip
# Every setting that the recipe may choose, as no recipe would choose it.
BY_HAND: dict[str, Any] = {
    "data": {"source": "ads", "features": FEATURES},
    "model": {"name": "shared-bottom", "options": OPTIONS},
    "method": "gdod",
    "optimizer": {"name": "adamw", "lr": 0.7, "weight_decay": 0.6, "id_decay": 0.5},
    "schedule": {"name": "linear", "warmup": 13},
    "stopping": {"patience": 17},
    "batch": 19,
    "epochs": 2.5,
    "average": 0.5,
}


def strong(**settings: Any) -> TrainConfig:
    return check_config({"recipe": "strong", "data": "ads", **settings})


def paper(**settings: Any) -> TrainConfig:
    return check_config({"recipe": "paper", "data": "ads", **settings})


def through_json(config: TrainConfig) -> TrainConfig:
    return check_config(json.loads(json.dumps(config.model_dump(mode="json"))))


def test_strong_is_the_default(tmp_path: Path) -> None:
    (tmp_path / "train.yaml").write_text("data: ads\n")
    for config in (
        check_config({"data": "ads"}),
        read_config(tmp_path / "train.yaml"),
        read_config(options={"data.source": "ads"}),
        TrainConfig(data=DataConfig(source="ads")),
    ):
        assert config == strong()
        assert config.recipe == "strong"


def test_the_paper_is_what_a_stored_configuration_without_a_recipe_is(tmp_path: Path) -> None:
    """The checkpoints of a run that names the recipe are those of one that does not, bit for bit."""
    named = tiny.config(steps=9, method="gdod")
    stored = named.model_dump(mode="json")
    del stored["recipe"]
    assert check_stored(stored) == named
    assert apply_recipe(paper(), SMALL) == (paper(), ())
    for name, config in (("without", check_stored(stored)), ("with", named)):
        train(config, tmp_path / name, dataset=tiny.dataset())
    check_same(tmp_path / "with", tmp_path / "without")
    last = load(tmp_path / "with" / "checkpoints" / "last.pt")
    assert set(last) == {"format", "settings", "model", "optimizers", "method", "random", "random_of_others", "state"}
    assert len(last["optimizers"][0]["param_groups"]) == 1
    assert "recipe" not in json.loads((tmp_path / "with" / "about.json").read_text())


def test_paper_weights_are_those_of_before(tmp_path: Path) -> None:
    """The sums of weights after 20 steps are those that the version without recipes came to."""
    config = tiny.config(steps=20, schedule={"name": "cosine", "warmup": 3})
    train(config, tmp_path / "run", dataset=tiny.dataset())
    weights = load(tmp_path / "run" / "checkpoints" / "last.pt")["model"]
    sums = {name: float(one.double().sum()) for name, one in weights.items()}
    assert sums == pytest.approx(FROZEN, abs=1e-4)


FROZEN = {
    "features.table.weight": 0.16576,
    "features.lists.0.weight": -1.24198,
    "bottom.0.weight": 1.40452,
    "bottom.0.bias": -0.47669,
    "towers.0.hidden.0.weight": -1.99355,
    "towers.0.hidden.0.bias": 0.29552,
    "towers.0.output.weight": 0.14473,
    "towers.0.output.bias": 0.06672,
    "towers.1.hidden.0.weight": -3.95160,
    "towers.1.hidden.0.bias": 0.02368,
    "towers.1.output.weight": 1.08799,
    "towers.1.output.bias": -0.09737,
}


def test_a_stored_configuration_without_a_recipe_opens_as_before(tmp_path: Path) -> None:
    data = tiny.dataset()
    train(tiny.config(steps=6), tmp_path / "run", dataset=data)
    path = tmp_path / "run" / "config.json"
    stored = json.loads(path.read_text())
    del (
        stored["recipe"],
        stored["filled"],
        stored["average"],
        stored["optimizer"]["id_decay"],
        stored["data"]["features"],
    )
    path.write_text(json.dumps(stored))
    run = load_run(tmp_path / "run")
    assert run.config == tiny.config(steps=6)
    assert run.predict(tiny.frame(20)).height == 20
    assert train(tiny.config(steps=6), tmp_path / "run", dataset=data, resume=True)["steps"] == 6


def test_a_run_of_before_goes_on_with_the_command_that_it_was_begun_with(tmp_path: Path) -> None:
    """Which named no recipe, as there was none."""
    data, begun = tiny.dataset(), tiny.config(steps=20)
    train(begun, tmp_path / "whole", dataset=data)
    with pytest.raises(Interrupted):
        train(begun, tmp_path / "run", dataset=data, progress=Interrupting(14))
    path = tmp_path / "run" / "config.json"
    stored = json.loads(path.read_text())
    given = {name: stored.pop(name) for name in ("recipe", "filled", "average")}
    path.write_text(json.dumps(stored))
    assert given["recipe"] == "paper"
    again = tiny.small_settings(steps=20)
    del again["recipe"]
    train(check_config(again), tmp_path / "run", dataset=data, resume=True)
    check_same(tmp_path / "run", tmp_path / "whole")


def test_what_strong_chooses_for_any_table() -> None:
    config = strong()
    assert config.method.name == "sum"
    assert config.data.features == FeatureOptions()
    optimizer = config.optimizer
    assert (optimizer.name, optimizer.lr, optimizer.weight_decay, optimizer.id_decay) == ("adamw", 3e-3, 0.1, 0.03)
    assert (config.schedule.name, config.average) == ("cosine", 0.995)
    assert name_of(config) == "ads-shared-bottom-sum-seed0"


@pytest.mark.parametrize(
    ("table", "batch", "passes", "cross"),
    [
        (SMALL, 64, 10, 0),
        (MEDIUM, 512, 6, 2),
        (LARGE, 1024, 3, 2),
        (TableSize(4_999, 1, 1, 1), 64, 10, 0),
        (TableSize(5_000, 1, 1, 1), 256, 6, 0),
        (TableSize(0, 1, 1, 1), 64, 10, 0),
        (TableSize(4_999, 1, 1, 1, statistics=1), 64, 10, 0),
        (TableSize(10_000, 1, 1, 1, statistics=1), 256, 6, 2),
        (TableSize(20_000, 1, 1, 1, statistics=1), 256, 4, 2),
        (TableSize(100_000, 1, 1, 1, statistics=1), 512, 2, 2),
    ],
)
def test_small_and_large_tables(table: TableSize, batch: int, passes: int, cross: int) -> None:
    config, chosen = apply_recipe(strong(), table)
    assert (config.batch, config.epochs, config.model.options["cross"]) == (batch, passes, cross)
    assert any("by heart" in one for one in chosen if "passes" in one) == bool(table.statistics)
    assert any("cross layer" in one for one in chosen) == bool(cross)
    steps = max(1, passes * -(-table.rows // batch))
    assert config.schedule.warmup == round(0.05 * steps)
    assert config.stopping.patience is not None
    words = "\n".join(chosen)
    for word in (
        f"{table.rows:,} training rows",
        f"batch size {batch}",
        f"{passes} passes",
        "dropout",
        "silu",
        "vectors of 16",
        "average",
        "adamw",
        "cosine",
        "sum",
    ):
        assert word in words


def test_without_a_validation_part_it_does_not_stop_early() -> None:
    config, chosen = apply_recipe(strong(), TableSize(1000, 0, 2, 5))
    assert config.stopping.patience is None
    assert not any("early" in sentence for sentence in chosen)


@pytest.mark.parametrize("table", [SMALL, LARGE])
def test_what_is_given_is_kept(table: TableSize) -> None:
    config, chosen = apply_recipe(strong(**BY_HAND), table)
    written = config.model_dump(mode="json")
    expected = paper(**BY_HAND).model_dump(mode="json")
    assert written == {**expected, "recipe": "strong", "filled": True}
    assert [sentence.split(":")[0].split(",")[0] for sentence in chosen] == ["recipe strong"]


@pytest.mark.parametrize(
    ("given", "said", "unsaid"),
    [
        ({"data.features.pairs": 0}, "target statistics of columns and of numbers that repeat, numbers in", "pair"),
        ({"data.features.repeated_numbers": False}, "target statistics of columns and of at most", "repeat"),
        ({"data.features.statistics": False}, "input: numbers in at most", "statistics"),
        (
            {"data.features.statistics": True},
            "input: target statistics of numbers that repeat and of at most",
            "of columns",
        ),
        ({"data.features.bins": 0, "data.features.rare": 1}, "pairs: less is left", "bins"),
        ({"data.features.rare": 7}, "bins: less is left", "share a vector"),
        ({"data.features": None}, "optimizer adamw", "input:"),
        ({"optimizer.lr": 0.7}, "optimizer adamw: weight decay", "learning rate 0"),
        ({"optimizer.weight_decay": 0.0}, "of id tables", "keeps weights"),
        ({"optimizer.id_decay": None}, "decay keeps weights", "id tables"),
        ({"optimizer.name": "sgd"}, "schedule", "optimizer"),
        ({"schedule.floor": 0.1}, "falls to 0.1 of its full value", "zero"),
        ({"schedule.name": "linear"}, "warm-up of", "cosine"),
        ({"schedule.warmup": 7}, "falls to zero", "warm-up"),
        ({"steps": 5}, "cosine", "warm-up"),
        ({"steps": 400}, "warm-up of 20 steps, 5% of all", "over the data"),
        ({"model.options.bottom": [3]}, "in each task's tower", "hidden layers"),
        ({"model.options.tower": [3]}, "hidden layers of", "tower"),
        ({"model.name": "mmoe"}, "dropout", "layer"),
        ({"model.options.dropout": 0.3}, "hidden layers", "dropout"),
        ({"average": None}, "dropout", "average"),
        ({"batch": 100}, "warm-up of", "batch size"),
        ({"epochs": 1, "batch": 75}, "warm-up of 1 step,", "over the data"),
        ({"stopping.patience": 3}, "batch size", "early stopping"),
        ({"method.name": "gdod"}, "batch size", "method"),
    ],
    ids=str,
)
def test_the_sentences_are_on_what_was_not_given(given: dict[str, Any], said: str, unsaid: str) -> None:
    """Also after the configuration went to another process as JSON."""
    config = read_config(options={"data.source": "ads", **given})
    sentences = apply_recipe(config, SMALL)[1]
    words = "\n".join(sentences[1:])
    assert said in words
    assert unsaid not in words
    assert sentences == apply_recipe(through_json(config), SMALL)[1]


@pytest.mark.parametrize("part", [part for part in BY_HAND if part != "data"])
def test_one_given_setting_does_not_hold_back_the_others(part: str) -> None:
    chosen = apply_recipe(strong(), SMALL)[0].model_dump(mode="json")
    config = apply_recipe(strong(**{part: BY_HAND[part]}), SMALL)[0].model_dump(mode="json")
    assert config[part] != chosen[part]
    others = set(config) - {part, *(("schedule",) if part in ("batch", "epochs") else ())}  # warm-up goes by the steps
    assert {name: config[name] for name in others} == {name: chosen[name] for name in others}


def test_single_options_beside_those_that_are_chosen() -> None:
    config, _ = apply_recipe(read_config(options={"recipe": "strong", "data.source": "ads", **SINGLE}), SMALL)
    own = apply_recipe(strong(), SMALL)[0].model.options
    assert config.model.options == {**own, "bottom": [8]}
    assert config.data.features == FeatureOptions(pairs=0)
    assert (config.optimizer.lr, config.optimizer.weight_decay) == (0.1, 0.1)
    assert (config.stopping.patience, config.stopping.least) == (10, 0.01)


SINGLE = {
    "model.options.bottom": [8],
    "data.features.pairs": 0,
    "optimizer.lr": 0.1,
    "stopping.least": 0.01,
}


def test_features_can_be_left_out() -> None:
    assert strong(data={"source": "ads", "features": None}).data.features is None
    with pytest.raises(InputError, match=r"data.features.pair is not a setting .*did you mean 'pairs'"):
        read_config(options={"data.source": "ads", "data.features.pair": 3})


def test_steps_take_the_place_of_passes() -> None:
    config, _ = apply_recipe(strong(steps=200), SMALL)
    assert (config.steps, config.epochs, config.schedule.warmup) == (200, None, 10)
    assert apply_recipe(strong(epochs=None), SMALL)[0].epochs == 10


def test_another_optimizer_keeps_its_own_defaults() -> None:
    assert strong(optimizer="sgd").optimizer == OptimizerConfig(name="sgd")
    with pytest.raises(InputError, match=r"id_decay=0\.1 is for adamw, not for adam"):
        paper(optimizer={"id_decay": 0.1})


@pytest.mark.parametrize("model", MODELS)
def test_every_model_takes_it(model: str) -> None:
    config, _ = apply_recipe(strong(model=model), SMALL)
    data = tiny.dataset()
    built = gdod.models.build(model, data.schema, data.tasks, **config.model.options)
    assert any(isinstance(module, torch.nn.Dropout) and module.p == 0.2 for module in built.modules())


def test_parts_made_in_python_count_as_given_where_they_are() -> None:
    config = TrainConfig(recipe="strong", data=DataConfig(source="ads"), optimizer=OptimizerConfig(lr=0.3))
    assert config == strong(optimizer={"lr": 0.3})
    assert (config.optimizer.name, config.optimizer.lr) == ("adamw", 0.3)


def test_what_is_left_to_the_recipe_is_still_left_after_json() -> None:
    """A configuration goes to other processes as JSON, before the data is known."""
    config = strong(stopping={"least": 0.1}, seed=3)
    assert apply_recipe(through_json(config), LARGE) == apply_recipe(config, LARGE)
    assert apply_recipe(config.model_copy(update={"threads": 2}), LARGE)[0].batch == 1024


def test_what_was_chosen_is_written_in_full_and_nothing_is_chosen_again() -> None:
    config, _ = apply_recipe(strong(), SMALL)
    whole = paper().model_dump(mode="json")
    assert config.model_dump(mode="json").keys() == whole.keys()
    assert config.model_dump(mode="json")["schedule"].keys() == whole["schedule"].keys()
    assert through_json(config) == config
    assert apply_recipe(through_json(config), LARGE) == (config, ())


def test_a_setting_that_a_stored_configuration_does_not_have_is_the_default_and_not_the_recipe_s() -> None:
    """Such as one that a later version adds."""
    stored = apply_recipe(strong(), SMALL)[0].model_dump(mode="json")
    del stored["average"], stored["model"]["options"]["dropout"], stored["optimizer"]["weight_decay"]
    opened = check_config(stored)
    assert (opened.average, opened.optimizer.weight_decay, opened.model.options.get("dropout")) == (None, 0.0, None)
    assert apply_recipe(opened, SMALL) == (opened, ())


# Runs


class Told(Silent):
    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)


QUICK: dict[str, Any] = {
    "data": {"source": "tiny", "features": None}, "device": "cpu", "threads": 1, "tensorboard": False,
}  # fmt: skip


def test_a_run_says_and_stores_what_was_used(tmp_path: Path) -> None:
    told = Told()
    config = strong(**QUICK, epochs=4)
    result = train(config, tmp_path / "run", dataset=tiny.dataset(), progress=told)
    assert result["test"]["mean_auc"] > 0.8
    stored = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (stored["batch"], stored["epochs"], stored["method"]["name"]) == (64, 4, "sum")
    about = json.loads((tmp_path / "run" / "about.json").read_text())
    assert about["recipe"]["name"] == "strong"
    assert [line for line in told.said if not line.startswith("data:")] == about["recipe"]["chosen"]
    run = load_run(tmp_path / "run")
    assert run.evaluate(tiny.frame(1800)[1500:])["mean_auc"] == pytest.approx(result["test"]["mean_auc"], abs=1e-9)
    averaged, last = load(tmp_path / "run" / "checkpoints" / "best.pt"), load(tmp_path / "run" / "checkpoints/last.pt")
    assert result["best_step"] == last["state"]["step"]
    assert tiny.same(averaged["model"], last["average"])
    assert not tiny.same(last["average"], last["model"])
    assert tiny.same(dict(load_run(tmp_path / "run", weights="last").model.state_dict()), averaged["model"])


def test_it_resumes_with_what_was_chosen_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same command again, after the recipe has changed."""
    data, given = tiny.dataset(), {**QUICK, "epochs": 2, "log_every": 7, "optimizer": {"lr": 0.01}}
    train(strong(**given), tmp_path / "whole", dataset=data)
    with pytest.raises(Interrupted):
        train(strong(**given), tmp_path / "run", dataset=data, progress=Interrupting(14))
    monkeypatch.setattr("gdod.training.recipes._BATCH", ((float("inf"), 8),))
    monkeypatch.setitem(_MODEL, "dropout", 0.9)
    monkeypatch.setitem(_FIXED, "average", 0.5)
    monkeypatch.setitem(_FIXED, "optimizer", {"name": "adamw", "weight_decay": 0.9})
    with pytest.raises(InputError, match="seed is 0, not 4"):
        train(strong(**given, seed=4), tmp_path / "run", dataset=data, resume=True)
    train(strong(**given), tmp_path / "run", dataset=data, resume=True)
    check_same(tmp_path / "run", tmp_path / "whole")


def test_a_run_of_another_recipe_is_not_gone_on_with(tmp_path: Path) -> None:
    data, given = tiny.dataset(), {**QUICK, "steps": 3}
    train(paper(**given), tmp_path / "run", dataset=data)
    with pytest.raises(InputError, match=r"another configuration: recipe is 'paper', not 'strong'\. Go on"):
        train(strong(**given), tmp_path / "run", dataset=data, resume=True)


def fake_load(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Make `gdod.data.load` return the tiny data set, and return a list of the options it is called with."""
    calls: list[dict[str, Any]] = []

    def loading(source: str, **options: Any) -> Dataset:
        calls.append(options)
        return tiny.dataset()

    monkeypatch.setattr(gdod.data, "load", loading)
    return calls


def test_features_go_to_the_data_only_if_there_are_any(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = fake_load(monkeypatch)
    for config in (paper(), strong(), strong(data={"source": "ads", "features": {"bins": 8}})):
        load_data(config)
    assert calls[0]["features"] is None
    assert [call["features"] for call in calls[1:]] == [FeatureOptions(), FeatureOptions(bins=8)]


def test_check_prints_what_was_chosen_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = fake_load(monkeypatch)
    command = ["train", "--data", "ads", "--check"]
    done = CliRunner().invoke(app, [*command, "--lr", "0.5", "--set", "data.features.pairs=0"])
    assert done.exit_code == 0, done.stderr
    assert "10 passes over the data: the fewer rows, the more" in done.stderr
    settings = json.loads(done.stdout)
    assert settings["optimizer"]["lr"] == 0.5
    assert (settings["epochs"], settings["batch"], settings["data"]["features"]["pairs"]) == (10, 64, 0)
    assert apply_recipe(check_config(settings), LARGE)[0].model_dump(mode="json") == settings
    assert len(calls) == 1
    done = CliRunner().invoke(app, [*command, "--recipe", "paper"])
    assert (done.exit_code, done.stderr, len(calls)) == (0, "", 1)
    assert "did you mean 'strong'" in CliRunner().invoke(app, [*command, "--recipe", "strogn"]).stderr
