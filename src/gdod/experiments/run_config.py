"""The configuration of any run of a comparison or a search: a network's, or a rival's."""

from collections.abc import Mapping
from typing import Any, TypeVar

from gdod._files import read_json
from gdod.experiments.rivals.config import RivalConfig, check_rival
from gdod.report.runs import RIVAL
from gdod.training.config import TrainConfig, check_config, check_stored
from gdod.training.preflight import absolute_paths, check
from gdod.training.run import Folder

RunConfig = TrainConfig | RivalConfig
C = TypeVar("C", TrainConfig, RivalConfig)


def run_config(settings: Mapping[str, Any]) -> RunConfig:
    """Return the configuration that settings of `gdod train` give, with absolute paths.

    With the model "rival", whose method is the name of a rival, it is that rival's.
    """
    config = absolute_paths(check_config(settings))
    return RivalConfig.of(config) if config.model.name == RIVAL else config


def stored_config(settings: Mapping[str, Any]) -> RunConfig:
    """Return the configuration that was written out as these settings."""
    return RivalConfig(**settings) if settings["model"]["name"] == RIVAL else check_stored(settings)


def folder_config(folder: Folder) -> RunConfig:
    """Return the configuration of the run in a folder."""
    return stored_config(read_json(folder.config, "the configuration of a run"))


def check_run(config: RunConfig) -> None:
    """Raise an InputError for what is wrong in a configuration, as far as that shows without the data."""
    if isinstance(config, RivalConfig):
        check_rival(config)
    else:
        check(config)


def with_threads(config: RunConfig, threads: int) -> RunConfig:
    """Return the configuration with this number of threads, unless it has one."""
    return config if config.threads is not None else config.model_copy(update={"threads": threads})
