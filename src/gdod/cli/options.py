"""Options that several commands have, and how options become settings."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gdod.cli.terminal import say

if TYPE_CHECKING:
    from gdod.experiments.run_config import RunConfig

Pairs = list[str] | None
Config = Annotated[Path | None, typer.Argument(help="A YAML or TOML file with settings; options win over it.")]
Data = Annotated[str | None, typer.Option(help="A named data set, a file, a folder or a pattern.")]
Recipe = Annotated[str | None, typer.Option(help="What fills settings that you do not give: strong (default), paper.")]
SchemaFile = Annotated[Path | None, typer.Option(help="What the columns of your own table are (YAML or TOML).")]
Label = Annotated[list[str] | None, typer.Option(help="A column to predict, if you give no schema.")]
DataFolder = Annotated[Path | None, typer.Option(help="Where the files of a named data set are.")]
Vectors = Annotated[
    Pairs, typer.Option(metavar="COLUMN=FILE", help="Begin with the vectors of a file for a column's values.")
]
DataOption = Annotated[Pairs, typer.Option(metavar="NAME=VALUE", help="Of a named data set.")]
Optimizer = Annotated[str | None, typer.Option(help="adam, adamw, sgd, sparse-adam.")]
Rate = Annotated[float | None, typer.Option(help="Learning rate.")]
Batch = Annotated[int | None, typer.Option(help="Examples of a step.")]
Epochs = Annotated[float | None, typer.Option(help="Passes over the training data.")]
Steps = Annotated[int | None, typer.Option(help="Steps, in place of epochs.")]
Patience = Annotated[int | None, typer.Option(help="Evaluations without a better one before a run stops.")]
Monitor = Annotated[str | None, typer.Option(help="What is better: mean_auc, loss or a task.")]
EvaluateEvery = Annotated[int | None, typer.Option(help="Steps; by default each epoch.")]
Set = Annotated[Pairs, typer.Option("--set", metavar="PATH=VALUE", help="Any setting of gdod train.")]
Jobs = Annotated[int | None, typer.Option(min=1, help="Runs at a time. (default: as many as cores, or GPUs)")]
RunThreads = Annotated[int | None, typer.Option(min=1, help="Of torch in each run. (default: cores / jobs)")]
Check = Annotated[bool, typer.Option("--check", help="Only check the settings, and print what would be run.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress.")]

_SETTINGS = {
    "data": "data.source",
    "schema": "data.schema",
    "label": "data.labels",
    "data_folder": "data.folder",
    "optimizer": "optimizer.name",
    "lr": "optimizer.lr",
    "patience": "stopping.patience",
    "monitor": "stopping.monitor",
    **{name: name for name in ("recipe", "batch", "epochs", "steps", "evaluate_every", "threads")},
}
# Of options of the form NAME=VALUE, what NAME is put behind. --set comes last: it wins over all others.
_PAIRS = {
    "data_option": "data.options.",
    "vectors": "data.vectors.",
    "model_option": "model.options.",
    "method_option": "method.options.",
    "task_weight": "task_weights.",
    "positive_weight": "positive_weights.",
    "negatives_kept": "negatives_kept.",
    "set_": "",
}


def given_settings(context: typer.Context, own: Mapping[str, str]) -> dict[str, Any]:
    """Return the options that were given as settings, by their paths: `--lr 0.1` is {"optimizer.lr": 0.1}.

    Args:
        context: the context of the command, which holds the values of its options.
        own: the paths of settings for options that are the command's own, by the option's name.
    """
    settings = {}
    for option, path in {**_SETTINGS, **own}.items():
        value = context.params.get(option)
        if value not in (None, ()):  # nothing was given
            several = isinstance(value, tuple)
            settings[path] = list(value) if several else str(value) if isinstance(value, Path) else value
    for option, prefix in _PAIRS.items():
        settings |= _pairs(context.params.get(option), f"--{option.strip('_').replace('_', '-')}", prefix)
    return settings


def tell_recipe(chosen: Iterable[str]) -> None:
    """Print what a recipe chose: not among the settings, which may go to a file."""
    for sentence in chosen:
        say(sentence, err=True)


def rehearse_all(configs: "Iterable[RunConfig]") -> None:
    """Raise if the data of some runs is not there or does not fit its schema, or one of their models cannot be made."""
    from gdod.training import TrainConfig
    from gdod.training.preflight import rehearse

    for config in {(str(config.data), str(config.model)): config for config in configs}.values():
        # A rival has no model to make, but the same data.
        rehearse(config if isinstance(config, TrainConfig) else TrainConfig(data=config.data, stopping=config.stopping))


def need_data(file: Path | None, settings: Mapping[str, Any]) -> None:
    """Raise unless a file or the options say what to train on."""
    from gdod.errors import InputError

    if file is None and "data.source" not in settings:
        raise InputError("no data is given; name it with --data, e.g. --data ads, or give a configuration file")


def _pairs(given: Sequence[str] | None, option: str, prefix: str) -> dict[str, Any]:
    """Return `name=value` as settings; values as YAML has them: numbers, true, lists such as [64, 32]."""
    from gdod.errors import InputError
    from gdod.yaml_toml import parse_value

    settings = {}
    for pair in given or ():
        name, sign, value = pair.partition("=")
        if not sign or not name.strip():
            raise InputError(f"{option} {pair!r}; expected a name and a value, e.g. {option} name=3")
        settings[prefix + name.strip()] = parse_value(value, f"{option} {pair!r}")
    return settings
