"""Recipes: what fills the settings of a run that were not given.

"paper" is the defaults of `TrainConfig`, those of the paper. "strong" chooses what measured well on tables of many
kinds: some settings are the same for all tables and are filled in when a configuration is read (`fixed_settings`), the
others go by the size of the table and are filled in when the data is known (`apply_recipe`). All its numbers are in the
tables below. What is given, be it by a file, an option or a call, is kept.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf
from typing import TYPE_CHECKING, Any, TypeVar

from gdod.data.preparing.feature_options import FeatureOptions
from gdod.training.config import Settings, TrainConfig, check_config, merged

if TYPE_CHECKING:
    from gdod.data.dataset import Dataset

T = TypeVar("T")

# The same for all tables.
_FIXED: Settings = {
    "method": {"name": "sum"},
    "optimizer": {"name": "adamw", "lr": 2e-3, "weight_decay": 3e-4, "id_decay": 0.0},
    "schedule": {"name": "cosine"},
    "average": 0.998,
}
_DROPOUT = 0.15
_WARMUP = 0.05  # of all steps

# By the number of training rows: the value in the first line whose limit they stay below.
_BATCH = ((5_000, 64), (50_000, 256), (500_000, 512), (inf, 1024))
_PASSES = ((5_000, 40), (500_000, 6), (inf, 3))
_PATIENCE = ((5_000, 10), (500_000, 3), (inf, 2))  # evaluations, of which there is one a pass
_HIDDEN = ((100_000, (256, 32)), (inf, (512, 256)))
_TOWER: tuple[int, ...] = ()  # right from the last hidden layer to the output

# Models that are hidden layers with a tower for each task; the others keep the sizes that they have.
_SIZED = ("shared-bottom", "single-task")


@dataclass(frozen=True)
class TableSize:
    """The size of a table, which the strong recipe goes by."""

    rows: int
    """The number of training rows."""
    validation: int
    """The number of validation rows."""
    tasks: int
    fields: int
    """The number of fields of the model's input."""

    @classmethod
    def of(cls, dataset: "Dataset") -> "TableSize":
        return cls(len(dataset.train), len(dataset.validation), len(dataset.tasks), len(dataset.schema.names))


def fixed_settings(given: Mapping[str, Any]) -> Settings:
    """Return those of the strong recipe's settings that no table changes and that are not among the given ones.

    Another optimizer than the recipe's keeps its own defaults, since a learning rate only suits the one it was chosen
    for.
    """
    settings = {**_FIXED, "data": {"features": FeatureOptions()}}
    optimizer = given.get("optimizer", {})
    if not isinstance(optimizer, Mapping) or optimizer.get("name", "adamw") != "adamw":
        del settings["optimizer"]
    if "data" not in given:
        del settings["data"]
    return _missing(settings, given)


def _missing(settings: Mapping[str, Any], given: Mapping[str, Any]) -> Settings:
    """Return the settings that are not given, also in parts of which some are."""
    missing: Settings = {}
    for name, value in settings.items():
        if name not in given:
            missing[name] = value
        elif isinstance(value, Mapping) and isinstance(given[name], Mapping):
            missing[name] = _missing(value, given[name])
    return {name: value for name, value in missing.items() if value != {}}


def apply_recipe(config: TrainConfig, table: TableSize) -> tuple[TrainConfig, tuple[str, ...]]:
    """Return the configuration with every setting that was not given filled in, and sentences on what was chosen.

    The result is marked as filled: it is written in full, and whoever reads it needs no recipe. With the recipe
    "paper", or if it is filled already, it is the configuration as it is, and no sentence.
    """
    if config.recipe == "paper" or config.filled:
        return config, ()
    given = {name: value for name, value in config.model_dump().items() if name != "epochs" or value is not None}
    chosen = merged(fixed_settings(given), _settings_by_size(config, given, table))
    full = check_config({**merged(chosen, given), "filled": True})
    return full, tuple(_sentences(full, chosen, table))


def as_stored(config: TrainConfig, stored: TrainConfig) -> TrainConfig:
    """Return the configuration with the settings that were not given as a run has stored them.

    So a run resumes with what was chosen when it began, and not with what its recipe would choose today.
    """
    if config.recipe == "paper" or config.filled:
        return config
    return check_config(merged(stored.model_dump(), config.model_dump()))


def _settings_by_size(config: TrainConfig, given: Settings, table: TableSize) -> Settings:
    """Return the settings that are left to choose when the data is known, most of which go by its size."""
    rows, options = table.rows, Settings(dropout=_DROPOUT)
    if config.model.name in _SIZED:
        options |= {"bottom": list(_by_rows(_HIDDEN, rows)), "tower": list(_TOWER)}
    settings = {
        "model": {"options": options},
        "batch": _by_rows(_BATCH, rows),
        **({} if config.steps else {"epochs": _by_rows(_PASSES, rows)}),
        **({"stopping": {"patience": _by_rows(_PATIENCE, rows)}} if table.validation else {}),
    }
    warmup = round(_WARMUP * _steps(merged(settings, given), rows))
    missing = _missing({**settings, "schedule": {"warmup": warmup}}, given)
    if "model" in missing:
        missing["model"]["name"] = config.model.name  # whose options they are
    return missing


def _by_rows(table: Sequence[tuple[float, T]], rows: int) -> T:
    return next(value for limit, value in table if rows < limit)


def _steps(settings: Settings, rows: int) -> int:
    """Return how many steps there will be; with streamed data on several ranks it may be a few more."""
    steps: int | None = settings.get("steps")
    return steps or max(1, round(settings["epochs"] * ceil(rows / settings["batch"])))


def _sentences(config: TrainConfig, chosen: Settings, table: TableSize) -> list[str]:
    """Return what the recipe chose and why, a sentence each; nothing on settings that were given."""
    rows, tasks, fields = f"{table.rows:,} training rows", _count(table.tasks, "task"), _count(table.fields, "field")
    said = [f"recipe strong, for {rows}, {tasks} and {fields}; what you set yourself is kept"]
    if "method" in chosen:
        said.append("method sum: adds up the tasks' gradients; it measured best and is the fastest")
    if features := chosen.get("data", {}).get("features"):
        said.append(
            f"input: target statistics of columns and of at most {features.pairs} pairs, numbers in at most "
            f"{features.bins} bins, values with fewer than {features.rare} rows share a vector: less is left to learn"
        )
        said.append("times: hour, weekday, month and age of columns of dates and times, where the split allows it")
    if "optimizer" in chosen:
        optimizer = config.optimizer
        said.append(
            f"optimizer adamw: learning rate {optimizer.lr:g}, weight decay {optimizer.weight_decay:g} of matrices, "
            f"{optimizer.id_decay or 0:g} of id tables, none of biases; it keeps weights of many inputs small"
        )
    if "name" in chosen.get("schedule", {}):
        said.append("schedule cosine: the learning rate falls to zero, so that the weights settle")
    if "warmup" in chosen.get("schedule", {}):
        said.append(f"warm-up of {_count(config.schedule.warmup, 'step')}, {_WARMUP:.0%} of all: for a steady start")
    if "average" in chosen:
        said.append(
            f"moving average of the weights, {config.average:g} a step: it is evaluated and used in their place, since "
            "it is steadier than the weights of one step"
        )
    options = chosen.get("model", {}).get("options", {})
    if "dropout" in options:
        said.append(f"dropout {options['dropout']:g}: against learning rows by heart")
    if sizes := [f"{name} {options[name]}" for name in ("bottom", "tower") if name in options]:
        said.append(f"model sizes {', '.join(sizes)}: the more rows, the larger")
    if "batch" in chosen:
        said.append(f"batch size {config.batch}: the fewer rows, the smaller, so that a pass has enough steps")
    if "epochs" in chosen:
        said.append(f"{_count(chosen['epochs'], 'pass', 'passes')} over the data: the fewer rows, the more")
    if "stopping" in chosen:
        said.append(
            f"early stopping after {_count(chosen['stopping']['patience'], 'evaluation')} without a better one on the "
            "validation part: the weights that were best there are kept"
        )
    return said


def _count(number: int, what: str, several: str | None = None) -> str:
    return f"{number:,} {what if number == 1 else several or f'{what}s'}"
