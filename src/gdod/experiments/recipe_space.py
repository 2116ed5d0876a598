"""Where `gdod tune` looks for better settings than the strong recipe's own: around what it chooses for a table."""

from collections.abc import Mapping
from typing import Any

from gdod.experiments.search import Grid, Point, Range, Space, Value
from gdod.training.config import Settings, TrainConfig


def recipe_space(full: TrainConfig, given: Settings) -> Space:
    """Return where to look, by the path of a setting. The recipe's own value comes first in every list.

    Args:
        full: the configuration as the recipe has filled it in.
        given: the settings that were given, which are not searched.
    """
    optimizer, options, features = full.optimizer, full.model.options, full.data.features
    space: Space = {
        "optimizer.lr": Range(optimizer.lr / 5, optimizer.lr * 5, log=True),
        "optimizer.weight_decay": _list(optimizer.weight_decay, 0.0, 1e-3, 1e-2, 1.0),
        "average": _list(full.average, None, 0.99, 0.999),
        "model.options.dropout": Range(0.0, 0.5),
        "model.options.embedding": _list(options.get("embedding", 8), 4, 8, 16, 32),
        "model.options.cross": _list(options.get("cross", 0), 0, 1, 2),
        "model.options.ensemble": _list(options.get("ensemble", 1), 1, 4, 8),
    }
    if optimizer.name == "adamw":
        space["optimizer.id_decay"] = _list(optimizer.id_decay, 0.0, 1e-3, 1e-2, 1e-1)
    if full.epochs is not None:
        space["epochs"] = _list(full.epochs, max(1, round(full.epochs / 2)), 2 * full.epochs)
    for layers in ("bottom", "tower", "expert"):
        if own := options.get(layers):
            hidden = [[max(1, round(size * by)) for size in own] for by in (1, 0.5, 2)]
            space[f"model.options.{layers}"] = _list(*map(str, hidden))
    if features is not None:
        space["data.features.statistics"] = _list(features.statistics, True, False)
        space["data.features.repeated_numbers"] = _list(features.repeated_numbers, True, False)
        space["data.features.pairs"] = _list(features.pairs, 0, 20, 60)
        space["data.features.prior"] = _list(features.prior, 3.0, 10.0, 30.0, 100.0)
        space["data.features.bins"] = _list(features.bins, 0, 8, 32)
        space["data.features.statistic_bins"] = _list(features.statistic_bins, 0, 4, 16)
        space["data.features.rare"] = _list(features.rare, 1, 5, 20, 50)
    return {path: one for path, one in space.items() if not _is_given(path, given)}


def own_point(space: Space, full: TrainConfig) -> Point:
    """Return the point of the space that is the recipe itself."""
    return {path: one.values[0] if isinstance(one, Grid) else _at(path, full) for path, one in space.items()}


def _list(own: Value, *others: Value) -> Grid:
    return Grid(tuple(dict.fromkeys((own, *others))))


def _is_given(path: str, given: Settings) -> bool:
    value: Any = given
    for name in path.split("."):
        if not isinstance(value, Mapping):
            return True  # something that holds no settings was given in their place
        if name not in value:
            return False
        value = value[name]
    return True


def _at(path: str, config: TrainConfig) -> Any:
    value: Any = config.model_dump()
    for name in path.split("."):
        value = value[name]
    return value
