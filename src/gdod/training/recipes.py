"""Recipes: what fills the settings of a run that were not given.

"paper" is the defaults of the settings, those of the paper. "strong", which is taken unless another is named, chooses
what measured well on tables of many kinds: some settings are the same for all tables and are filled in when a
configuration is read (`fixed_settings`), the others go by the size of the table and are filled in when the data is
known (`apply_recipe`). All its numbers are in the tables below. What is given, be it by a file, an option or a call, is
kept.
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
    "optimizer": {"name": "adamw", "lr": 3e-3, "weight_decay": 0.1, "id_decay": 0.03},
    "schedule": {"name": "cosine"},
    "average": 0.995,
}
_MODEL: Settings = {"activation": "silu", "dropout": 0.2, "embedding": 16}
_WARMUP = 0.05  # of all steps

# By the number of training rows: the value in the first line whose limit they stay below.
_BATCH = ((5_000, 64), (50_000, 256), (500_000, 512), (inf, 1024))
_PASSES = ((5_000, 10), (500_000, 6), (inf, 3))
# Columns of many values are learned by heart before long, but a handful of steps is too few.
_PASSES_WITH_STATISTICS = ((5_000, 10), (20_000, 6), (100_000, 4), (inf, 2))
_PATIENCE = ((5_000, 10), (500_000, 3), (inf, 2))  # evaluations, of which there is one a pass
_CROSS = ((10_000, 0), (inf, 2))  # cross layers, which learn few rows by heart
_HIDDEN = (256, 128)

# By model: hidden layers that end right at the output, which tasks share or, in a chain, each has, or which are those
# of experts. The others keep the sizes that they have.
_SHARED_LAYERS: Settings = {"bottom": _HIDDEN, "tower": ()}
_OWN_LAYERS: Settings = {"tower": _HIDDEN}
_SIZES = {
    "shared-bottom": _SHARED_LAYERS,
    "single-task": _SHARED_LAYERS,
    "esmm": _OWN_LAYERS,
    "aitm": _OWN_LAYERS,
    "stem": {"expert": _HIDDEN, "tower": (), "task_experts": 1, "shared_experts": 1},
}


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
    statistics: int = 0
    """How many columns and pairs of columns have target statistics."""

    @classmethod
    def of(cls, dataset: "Dataset") -> "TableSize":
        added = dataset.encoder.added
        return cls(
            len(dataset.train),
            len(dataset.validation),
            len(dataset.tasks),
            len(dataset.schema.names),
            len(added.statistics) if added is not None else 0,
        )


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
    return full, tuple(_sentences(full, chosen, _given_features(given), table))


def as_stored(config: TrainConfig, stored: TrainConfig) -> TrainConfig:
    """Return the configuration with the settings that were not given as a run has stored them.

    So a run resumes with what was chosen when it began, and not with what its recipe would choose today. A recipe that
    was not named is the run's own, too.
    """
    if config.recipe == "paper" or config.filled:
        return config
    given = config.model_dump()
    if "recipe" not in config.model_fields_set:
        del given["recipe"]
    return check_config(merged(stored.model_dump(), given))


def _settings_by_size(config: TrainConfig, given: Settings, table: TableSize) -> Settings:
    """Return the settings that are left to choose when the data is known, most of which go by its size."""
    rows, options = table.rows, Settings(_MODEL, cross=_by_rows(_CROSS, table.rows))
    sizes = _SIZES.get(config.model.name, {})
    options |= {name: list(size) if isinstance(size, tuple) else size for name, size in sizes.items()}
    passes = _PASSES_WITH_STATISTICS if table.statistics else _PASSES
    settings = {
        "model": {"options": options},
        "batch": _by_rows(_BATCH, rows),
        **({} if config.steps else {"epochs": _by_rows(passes, rows)}),
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


def _given_features(given: Settings) -> set[str]:
    features = given.get("data", {}).get("features", {})
    return set(FeatureOptions.model_fields if features is None else features)


def _sentences(config: TrainConfig, chosen: Settings, features_given: set[str], table: TableSize) -> list[str]:
    """Return what the recipe chose and why, a sentence each; nothing on settings that were given."""
    rows, tasks, fields = f"{table.rows:,} training rows", _count(table.tasks, "task"), _count(table.fields, "field")
    said = [f"recipe strong, for {rows}, {tasks} and {fields}; what you set yourself is kept"]
    if "method" in chosen:
        said.append("method sum: adds up the tasks' gradients; it measured best and is the fastest")
    if made := _made_of_columns(config.data.features, features_given):
        said.append(f"input: {', '.join(made)}: less is left to learn")
    if config.data.features is not None and config.data.features.times and "times" not in features_given:
        said.append("times: hour, weekday, month and age of dates and times, where the split allows it")
    if said_of_optimizer := _optimizer_in_words(chosen.get("optimizer", {})):
        said.append(said_of_optimizer)
    if "name" in chosen.get("schedule", {}):
        floor = f"{config.schedule.floor:g} of its full value" if config.schedule.floor else "zero"
        said.append(f"schedule cosine: the learning rate falls to {floor}, so that the weights settle")
    if chosen.get("schedule", {}).get("warmup"):
        said.append(f"warm-up of {_count(config.schedule.warmup, 'step')}, {_WARMUP:.0%} of all: for a steady start")
    if "average" in chosen:
        said.append(
            f"moving average of the weights, {config.average:g} a step: it is evaluated and used in their place, since "
            "it is steadier than the weights of one step"
        )
    options = chosen.get("model", {}).get("options", {})
    if "dropout" in options:
        said.append(f"dropout {options['dropout']:g}: against learning rows by heart")
    if "activation" in options:
        said.append(f"activation {options['activation']}: it is smooth and measured best")
    if "embedding" in options:
        said.append(f"id vectors of {options['embedding']}")
    if options.get("cross"):
        said.append(
            f"{_count(options['cross'], 'cross layer')}: products of features, which hidden layers learn slowly"
        )
    if "bottom" in options:
        said.append(f"hidden layers of {_and(options['bottom'])}")
    if "expert" in options:
        said.append(f"experts of {_and(options['expert'])}, one that all tasks share and one for each task")
    if "tower" in options:
        layers = f"layers of {_and(options['tower'])}" if options["tower"] else "no layer"
        reason = "" if options["tower"] else ": fewer weights to learn"
        said.append(f"{layers} in each task's tower, before its output{reason}")
    if "batch" in chosen:
        said.append(f"batch size {config.batch}: the fewer rows, the smaller, so that a pass has enough steps")
    if "epochs" in chosen:
        reason = "columns of many values are soon learned by heart" if table.statistics else "the fewer rows, the more"
        said.append(f"{_count(chosen['epochs'], 'pass', 'passes')} over the data: {reason}")
    if "stopping" in chosen:
        said.append(
            f"early stopping after {_count(chosen['stopping']['patience'], 'evaluation')} without a better one on the "
            "validation part: the weights that were best there are kept"
        )
    return said


def _made_of_columns(features: FeatureOptions | None, given: set[str]) -> list[str]:
    """Return what is made of the columns by options that were not given, in words."""
    if features is None:
        return []
    counted = {
        "statistics": "columns",
        "repeated_numbers": "numbers that repeat",
        "pairs": f"at most {_count(features.pairs, 'pair')}",
    }
    of = [text for name, text in counted.items() if getattr(features, name) and name not in given]
    made = [f"target statistics of {' and of '.join(of)}"] if of and features.statistics else []
    if features.bins and "bins" not in given:
        made.append(f"numbers in at most {_count(features.bins, 'bin')}")
    if features.rare > 1 and "rare" not in given:
        made.append(f"values with fewer than {_count(features.rare, 'row')} share a vector")
    return made


def _optimizer_in_words(chosen: Settings) -> str:
    """Return what was chosen of the optimizer; empty if nothing was."""
    parts = [f"learning rate {chosen['lr']:g}"] if "lr" in chosen else []
    parts += [f"weight decay {chosen['weight_decay']:g}"] if "weight_decay" in chosen else []
    parts += [f"decay {chosen['id_decay']:g} of id tables, none of biases"] if "id_decay" in chosen else []
    if not parts and "name" not in chosen:
        return ""
    reason = "; decay keeps weights of many inputs small" if chosen.get("weight_decay") else ""
    return f"optimizer adamw{': ' if parts else ''}{', '.join(parts)}{reason}"


def _and(sizes: Sequence[int]) -> str:
    return " and ".join(map(str, sizes))


def _count(number: int, what: str, several: str | None = None) -> str:
    return f"{number:,} {what if number == 1 else several or f'{what}s'}"
