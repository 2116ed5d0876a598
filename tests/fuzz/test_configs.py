"""Configurations of `gdod train`, by hand and by accident: each trains, or is refused in words."""

import inspect
import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel
from tests.fuzz.outcomes import attempt
from tests.fuzz.values import ANYTHING, NUMBERS, SCRAPS, WORDS, toml_file
from tests.training import tiny
from typer.testing import CliRunner

from gdod.cli import app
from gdod.data.dataset import Dataset
from gdod.methods import METHODS
from gdod.models import MODELS
from gdod.training import TrainConfig, check, check_config, read_config, train

OPTIONS = sorted(
    {field.name for model in MODELS.values() for field in fields(model.config_type)}
    | {name for method in METHODS.values() for name in inspect.signature(method).parameters}
)


def _paths(model: type[BaseModel], above: str = "") -> list[str]:
    paths = []
    for name, field in model.model_fields.items():
        path = above + (field.alias or name)
        below = field.annotation
        paths.append(path)
        if isinstance(below, type) and issubclass(below, BaseModel):
            paths += _paths(below, path + ".")
    return paths


PATHS = [*_paths(TrainConfig), *(f"{part}.options.{name}" for part in ("model", "method") for name in OPTIONS)]
CHOICES = st.sampled_from(
    (
        *(*MODELS, *METHODS, "adam", "adamw", "sgd", "sparse-adam", "constant", "cosine", "linear", "step"),
        *("float32", "bf16", "stop", "skip", "cpu", "cuda", "cuda:99", "meta", "mps", "loss", "mean_auc", "click"),
        *("relu", "svd", "qr", "random"),
    )
)
VALUES = st.one_of(NUMBERS, CHOICES, ANYTHING)
SETTINGS = st.dictionaries(st.sampled_from(PATHS) | WORDS, VALUES, max_size=5)


def nest(settings: dict[str, Any]) -> dict[str, Any]:
    """Return settings with paths as nested settings; where two want the same place, the later one has it."""
    nested: dict[str, Any] = {"data": {"source": "ads"}}
    for path, value in settings.items():
        *above, last = path.split(".")
        place = nested
        for name in above:
            if not isinstance(place.get(name), dict):
                place[name] = {}
            place = place[name]
        place[last] = value
    return nested


def read(folder: Path, text: str, ending: str, options: dict[str, Any]) -> TrainConfig | None:
    file = folder / f"train.{ending}"
    file.write_bytes(text.encode("utf-8", "surrogatepass"))

    def checked() -> TrainConfig:
        config = read_config(file, options)
        check(config)
        return config

    config = attempt(checked)
    if config is not None:
        again = check_config(json.loads(json.dumps(config.model_dump(mode="json"), allow_nan=False)))
        assert again == config
    return config


def written(settings: dict[str, Any], ending: str) -> str:
    if ending == "toml":
        return toml_file(settings)
    return json.dumps(settings) if ending == "json" else yaml.safe_dump(settings, allow_unicode=True)


@given(SETTINGS, SETTINGS, st.sampled_from(["yaml", "toml", "json"]))
def test_any_settings_are_read_or_refused(
    folder: Path, settings: dict[str, Any], options: dict[str, Any], ending: str
) -> None:
    read(folder, written(nest(settings), ending), ending, options)


@given(SCRAPS, st.sampled_from(["yaml", "toml", "json"]))
def test_any_text_is_read_or_refused(folder: Path, text: str, ending: str) -> None:
    read(folder, text, ending, {})


@given(st.lists(st.tuples(st.sampled_from(PATHS) | WORDS, st.one_of(WORDS, SCRAPS, VALUES.map(str))), max_size=4))
def test_any_option_of_the_command_is_checked_or_refused(pairs: list[tuple[str, str]]) -> None:
    told(pairs)


def told(pairs: list[tuple[str, str]]) -> None:
    options = [part for path, value in pairs for part in ("--set", f"{path}={value}")]
    # The other recipe would have the data prepared each time.
    result = CliRunner().invoke(app, ["train", "--data", "ads", "--recipe", "paper", "--check", *options])
    assert result.exit_code in (0, 2), result.exception
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    if result.exit_code == 0:
        json.loads(result.stdout)
    else:
        assert result.stderr


SIZES = st.sampled_from([[], [1], [8], [8, 4], [0], 3])
TRAINABLE: dict[str, st.SearchStrategy[Any]] = {
    "recipe": st.sampled_from(["paper", "strong"]),
    "model.options.embedding": st.sampled_from([1, 4, 10**12, -1]),
    "model.options.bottom": SIZES,
    "model.options.tower": SIZES,
    "model.options.expert": SIZES,
    "model.options.experts": st.sampled_from([1, 2, 0]),
    "model.options.dropout": st.sampled_from([0, 0.5, 0.999, 1]),
    "model.options.sparse": st.booleans(),
    "method.options.groups": st.sampled_from([1, 3, 64, 10**9, 0]),
    "method.options.decomposition": st.sampled_from(["svd", "qr", "randomized", "random"]),
    "method.options.rank": st.sampled_from([1, 4, 10**6]),
    "method.options.alpha": st.sampled_from([0, 0.5, 1e30, -1]),
    "optimizer.name": st.sampled_from(["adam", "adamw", "sgd", "sparse-adam"]),
    "optimizer.lr": st.sampled_from([1e-300, 1e-3, 1.0, 1e30, 1e300]),
    "optimizer.weight_decay": st.sampled_from([0, 0.1, 1e30]),
    "optimizer.momentum": st.sampled_from([0, 0.9]),
    "schedule.name": st.sampled_from(["constant", "cosine", "linear", "step"]),
    "schedule.warmup": st.sampled_from([0, 1, 10**9]),
    "schedule.every": st.sampled_from([1, 10**30]),
    "clip": st.sampled_from([1e-300, 1.0, 1e300]),
    "batch": st.sampled_from([1, 7, 64, 10**12]),
    "task_weights": st.sampled_from([{"click": 0.0}, {"click": 1e300}, {"buy": -1.0}, {"other": 1.0}]),
    "seed": st.sampled_from([1, 2**63 - 1]),
    "precision": st.sampled_from(["float32", "bf16"]),
    "evaluate_every": st.sampled_from([1, 10**12]),
    "evaluation_batch": st.sampled_from([1, 64, 10**12]),
    "log_every": st.sampled_from([1, 2, 10**30]),
    "conflict_every": st.sampled_from([0, 2, None]),
    "checkpoint_every": st.sampled_from([1, 2]),
    "checkpoint_minutes": st.sampled_from([1e-300, 1e300]),
    "non_finite": st.sampled_from(["stop", "skip"]),
    "stopping.patience": st.sampled_from([1, 10**12]),
    "stopping.monitor": st.sampled_from(["auto", "loss", "mean_auc", "click", "buy"]),
    "stopping.least": st.sampled_from([0.0, 1e300]),
    "weighted_metrics": st.booleans(),
    "sample_weights": st.booleans(),
    "test_curve": st.booleans(),
    "device": st.sampled_from(["cpu", "auto", "cuda:7"]),
}


@st.composite
def trainable(draw: st.DrawFn) -> dict[str, Any]:
    """Settings of the right kind, some of them extreme; nearly all options are those of the model and the method."""
    model, method = draw(st.sampled_from(list(MODELS))), draw(st.sampled_from(list(METHODS)))
    known = {f"model.options.{field.name}" for field in fields(MODELS[model].config_type)}
    known |= {f"method.options.{name}" for name in inspect.signature(METHODS[method]).parameters}
    strict = draw(st.integers(0, 9)) > 0
    names = [name for name in TRAINABLE if ".options." not in name or name in known or not strict]
    chosen = draw(st.lists(st.sampled_from(names), unique=True, max_size=6))
    return {"model.name": model, "method.name": method, **{name: draw(TRAINABLE[name]) for name in chosen}}


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    return tiny.dataset(rows=90, validation=30, test=30)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("configs")


def run(folder: Path, dataset: Dataset, settings: dict[str, Any]) -> bool:
    """Three steps, all evaluations and checkpoints that are asked for, and the result."""
    small = {"data": "tiny", "steps": 3, "tensorboard": False, "threads": 1}
    config = attempt(lambda: read_config(options={**small, **settings}))
    if config is None:
        return False
    out = folder / str(len(list(folder.iterdir())))
    result = attempt(lambda: train(config, out, dataset=dataset))
    assert result is None or result["steps"] == 3 or result["stopped"] == "early"
    return result is not None


@settings(max_examples=40)
@given(trainable())
def test_any_valid_settings_train_or_are_refused(folder: Path, dataset: Dataset, settings: dict[str, Any]) -> None:
    run(folder, dataset, settings)


@pytest.mark.slow
@settings(max_examples=400)
@given(trainable())
def test_any_valid_settings_train_or_are_refused_at_length(
    folder: Path, dataset: Dataset, settings: dict[str, Any]
) -> None:
    run(folder, dataset, settings)
