"""What a run is to do: one checked description, from a YAML or TOML file and from options."""

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator, model_validator

from gdod._checks import nearest
from gdod.errors import InputError
from gdod.yaml_toml import parse_toml, parse_yaml

Settings = dict[str, Any]
"""Settings as a file has them: names to values, or to more settings."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def _named(key: str) -> BeforeValidator:
    """`model: mmoe` is short for `model: {name: mmoe}`."""
    return BeforeValidator(lambda value: {key: value} if isinstance(value, str) else value)


class DataConfig(_Part):
    source: str
    """A named data set, a file, a folder of files or a pattern such as "log/*.parquet"."""
    schema_file: Path | None = Field(default=None, alias="schema")
    """What the columns are; named data sets bring their own, of other tables it is inferred."""
    labels: tuple[str, ...] = ()
    """The columns to predict, if the schema is inferred."""
    folder: Path | None = None
    """Where the files of a named data set are."""
    cache: Path | None = None
    """Where prepared data is kept; None: $GDOD_CACHE or ~/.cache/gdod."""
    stream: bool | None = None
    """Read from disk while training instead of from memory; None: if it is large."""
    options: dict[str, Any] = {}
    """What the named data set takes besides."""

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)

    @field_validator("options")
    @classmethod
    def _no_other_place(cls, options: dict[str, Any]) -> dict[str, Any]:
        for name in options:
            if name in ("source", "schema", "labels", "folder", "cache", "stream"):
                raise ValueError(f"{name!r} stands beside the options, not among them")
        return options


class ModelConfig(_Part):
    name: str = "shared-bottom"
    options: dict[str, Any] = {}
    """The fields of the model's config, such as `experts: 4`."""


class MethodConfig(_Part):
    name: str = "gdod"
    options: dict[str, Any] = {}
    """What the method takes, such as `groups: 16`."""


class OptimizerConfig(_Part):
    name: Literal["adam", "adamw", "sgd", "sparse-adam"] = "adam"
    """"sparse-adam": Adam, which for the tables only touches rows that occur in the batch."""
    lr: float = Field(default=1e-3, gt=0)
    weight_decay: float = Field(default=0.0, ge=0)
    """adamw takes it off the weights, the others add it to the gradient; tables with sparse gradients get none."""
    momentum: float = Field(default=0.0, ge=0, lt=1)
    """Of sgd."""

    @model_validator(mode="after")
    def _check(self) -> "OptimizerConfig":
        if self.momentum and self.name != "sgd":
            raise ValueError(f"momentum={self.momentum} is for sgd, not for {self.name}; leave it out")
        return self


class ScheduleConfig(_Part):
    name: Literal["constant", "cosine", "linear", "step"] = "constant"
    """How the learning rate goes on after the warm-up, to the end of training."""
    warmup: int = Field(default=0, ge=0)
    """Steps in which it rises in a straight line to its full value."""
    floor: float = Field(default=0.0, ge=0, le=1)
    """Share of the full value at which "cosine" and "linear" end, and below which "step" does not go."""
    every: int | None = Field(default=None, ge=1)
    """Of "step": after how many steps it is multiplied by ``factor``."""
    factor: float = Field(default=0.1, gt=0, lt=1)

    @model_validator(mode="after")
    def _check(self) -> "ScheduleConfig":
        if (self.every is None) == (self.name == "step"):
            raise ValueError("schedule 'step' needs `every`, the others do not take it")
        return self


class StoppingConfig(_Part):
    patience: int | None = Field(default=None, ge=1)
    """Evaluations without a better one after which training ends; None: it goes to its end."""
    monitor: str = "auto"
    """What is better: "mean_auc", "loss", the name of a task, or "auto": mean AUC if there is one, else loss."""
    least: float = Field(default=0.0, ge=0)
    """By how much better it must be to count."""


class TrainConfig(_Part):
    data: Annotated[DataConfig, _named("source")]
    model: Annotated[ModelConfig, _named("name")] = ModelConfig()
    method: Annotated[MethodConfig, _named("name")] = MethodConfig()
    optimizer: Annotated[OptimizerConfig, _named("name")] = OptimizerConfig()
    schedule: Annotated[ScheduleConfig, _named("name")] = ScheduleConfig()
    stopping: StoppingConfig = StoppingConfig()

    batch: int = Field(default=256, ge=1)
    epochs: float | None = Field(default=None, gt=0)
    """Passes over the training data, 1 if `steps` is not given either; parts of one, too."""
    steps: int | None = Field(default=None, ge=1)
    clip: float | None = Field(default=None, gt=0)
    """Longest gradient (of all parameters together) with which a step is made; a longer one is shortened."""
    task_weights: dict[str, Annotated[float, Field(ge=0)]] | None = None
    """Factors of the tasks' losses by name; tasks that are not named have 1."""
    sample_weights: bool = True
    """Use the weight column, if the data has one."""
    seed: int = Field(default=0, ge=0, lt=2**63)

    device: str = "auto"
    """"cpu", "cuda", "cuda:1" …; "auto": a GPU if there is one."""
    precision: Literal["float32", "bf16"] = "float32"
    threads: int | None = Field(default=None, ge=1)
    """Threads of torch; None: what torch takes by itself."""

    evaluate_every: int | None = Field(default=None, ge=1)
    """Steps between evaluations on the validation part; None: after each epoch."""
    test_curve: bool = False
    """Evaluate on the test part as often, for the record alone: nothing is chosen by it."""
    evaluation_batch: int = Field(default=4096, ge=1)
    weighted_metrics: bool = False
    """Count examples by the weight column in evaluations, too."""
    log_every: int = Field(default=100, ge=1)
    """Steps between lines of training loss."""
    conflict_every: int | None = Field(default=None, ge=0)
    """Steps between records of conflict, at log times; None: at each, 0: never."""
    checkpoint_every: int | None = Field(default=None, ge=1)
    """Steps between checkpoints, besides those after each evaluation."""
    checkpoint_minutes: float = Field(default=5.0, gt=0)
    """Minutes after which one is written in any case (at the next log time)."""
    non_finite: Literal["stop", "skip"] = "stop"
    """What to do in a step whose loss or gradient is not finite."""
    tensorboard: bool = True

    @field_validator("task_weights", mode="before")
    @classmethod
    def _no_weights(cls, value: object) -> object:
        return None if value == {} else value

    @model_validator(mode="after")
    def _check(self) -> "TrainConfig":
        if self.epochs is not None and self.steps is not None:
            raise ValueError("both `epochs` and `steps` are given; expected one of them")
        if self.conflict_every and self.conflict_every % self.log_every:
            raise ValueError(
                f"conflict_every={self.conflict_every} is no multiple of log_every={self.log_every}; expected one, "
                "since conflict is recorded at log times"
            )
        return self


def read_config(file: Path | None = None, options: Mapping[str, Any] | None = None) -> TrainConfig:
    """The configuration in a file, with options over it.

    Options are settings like those of a file, nested or by a path with dots: `{"model.name": "ple"}`.
    Paths in a file start at the file's folder and stay in it.
    """
    settings: Settings = {} if file is None else inside(read_settings(file), file.parent)
    return check_config(merged(settings, nested(options or {})))


def check_config(settings: Mapping[str, Any]) -> TrainConfig:
    try:
        return TrainConfig.model_validate(settings)
    except ValidationError as error:
        raise InputError(_explained(error)) from None


def read_settings(file: Path) -> Settings:
    """What a YAML, TOML or JSON file holds."""
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        hint = "" if file.suffix else f"; expected a YAML or TOML file of settings: if it is data, say --data {file}"
        raise InputError(f"the configuration {file} cannot be read: {error.strerror}{hint}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"the configuration {file} is not UTF-8: {error}") from error
    parse = parse_toml if file.suffix.lower() == ".toml" else parse_yaml
    found = parse(text, f"the configuration {file}")
    if found is None:
        return {}
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        raise InputError(f"the configuration {file} holds a {type(found).__name__}; expected names with values")
    return found


def nested(options: Mapping[str, Any]) -> Settings:
    """`{"model.options.experts": 4}` -> `{"model": {"options": {"experts": 4}}}`."""
    settings: Settings = {}
    for path, value in options.items():
        for name in reversed(path.split(".")):
            value = {name: value}
        settings = merged(settings, value)
    return settings


def merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> Settings:
    """Settings of both; where both have one, that of ``over``."""
    result = {**under}
    for name, value in over.items():
        below = result.get(name)
        if isinstance(below, str) and isinstance(value, Mapping) and name in _SHORT:
            below = {_SHORT[name]: below}
        if isinstance(below, Mapping) and isinstance(value, Mapping):
            changes = name in ("model", "method") and value.get("name", below.get("name")) != below.get("name")
            # The options in the file are those of another model or method.
            below = {key: kept for key, kept in below.items() if not (changes and key == "options")}
            value = merged(below, value)
        result[name] = value
    return result


_SHORT = {"data": "source", "model": "name", "method": "name", "optimizer": "name", "schedule": "name"}


_OPTIONS = {"source": "data", "schema": "schema", "folder": "data-folder", "cache": "set data.cache"}


def inside(settings: Settings, folder: Path) -> Settings:
    """The settings of a file with its paths made absolute; none may leave the file's folder."""
    data = settings.get("data")
    data = {"source": data} if isinstance(data, str) else data
    if not isinstance(data, dict):
        return settings
    data = {**data}
    for name in ("source", "schema", "folder", "cache"):
        if isinstance(data.get(name), str) and not (name == "source" and is_named(data[name])):
            data[name] = str(contained(data[name], folder, f"data.{name}", _OPTIONS[name]))
    return {**settings, "data": data}


def is_named(source: str) -> bool:
    """Whether it is the name of a data set, which is no path."""
    from gdod.data.sets import SOURCES

    return source in SOURCES


def contained(path: str, folder: Path, what: str, option: str) -> Path:
    """A path in a file that is in this folder; it may not leave it."""
    root = folder.resolve()
    found = (root / path).resolve()
    if not found.is_relative_to(root):
        raise InputError(
            f"{what}={path!r} leads out of the folder {root} of the configuration file; "
            f"put it below that folder, or name the place on the command line, with --{option}"
        )
    return found


def _explained(error: ValidationError) -> str:
    lines = []
    for one in error.errors():
        path = [str(name) for name in one["loc"]]
        where = ".".join(path)
        if one["type"] == "extra_forbidden":
            known = _fields(path[:-1])
            near = get_close_matches(path[-1], known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(map(repr, known))}"
            lines.append(f"{where} is not a setting; {hint}")
        elif one["type"] == "missing":
            lines.append(f"{where} is missing; it has no default")
        else:
            message = one["msg"].removeprefix("Value error, ")
            if one["type"] == "model_type":
                message = f"expected names with values, of {', '.join(map(repr, _fields(path)))}"
            given = "" if isinstance(one["input"], dict) else f"={one['input']!r}"
            known = re.findall(r"'(.*?)'", one["ctx"]["expected"]) if one["type"] == "literal_error" else []
            message = f"{message[:1].lower()}{message[1:]}{nearest(one['input'], known)}"
            lines.append(f"{where}{given}: {message}" if where else message)
    return "the configuration is not valid: " + "; ".join(lines)


def _fields(path: Sequence[str]) -> list[str]:
    """Names of settings at a path."""
    model: type[BaseModel] = TrainConfig
    for name in path:
        field = model.model_fields.get(name)
        annotation = None if field is None else field.annotation
        if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            return []
        model = annotation
    return [field.alias or name for name, field in model.model_fields.items()]
