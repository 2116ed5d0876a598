"""The configuration of a run: read from a YAML, TOML or JSON file and from options, and checked."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    SerializerFunctionWrapHandler,
    ValidationError,
    field_validator,
    model_serializer,
    model_validator,
)

from gdod._checks import nearest
from gdod.data.preparing.feature_options import FeatureOptions
from gdod.data.preparing.fold import Fold
from gdod.data.preparing.vector_options import VectorOptions
from gdod.errors import InputError
from gdod.yaml_toml import parse_toml, parse_yaml

Settings = dict[str, Any]
"""Settings as a file has them: names to values, or to more settings."""

_SHORT = {
    "update": "from",
    "data": "source",
    **dict.fromkeys(("model", "method", "optimizer", "schedule"), "name"),
}
HALF_LIFE = 10.0


IN_MEMORY = "<frame>"
"""The `data.source` of a run that was trained on a table in memory."""


def _spelled_out(name: str, value: Any) -> Any:
    """Return the value of a setting in its long form: `model: mmoe` is short for `model: {name: mmoe}`."""
    if name == "vectors" and isinstance(value, Mapping):
        return {column: {"file": one} if isinstance(one, str) else one for column, one in value.items()}
    return {_SHORT[name]: value} if name in _SHORT and isinstance(value, str) else value


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class DataConfig(_Part):
    """The data to train on."""

    source: str
    """A named data set, a file, a folder of files or a pattern such as "log/*.parquet"."""
    schema_file: Path | None = Field(default=None, alias="schema")
    """A file that says what the columns are; None: that of the named data set, or inferred from the table."""
    labels: tuple[str, ...] = ()
    """The columns to predict, for a table whose schema is inferred."""
    folder: Path | None = None
    """The folder with the files of a named data set."""
    cache: Path | None = None
    """The folder for prepared data; None: $GDOD_CACHE or ~/.cache/gdod."""
    stream: bool | None = None
    """Whether to read from disk while training instead of from memory; None: if the data is large."""
    options: dict[str, Any] = {}
    """Options of the named data set, such as `rows: 1000`."""
    features: FeatureOptions | None = None
    """What is made of the columns besides ids and numbers, such as target statistics; None: nothing."""
    vectors: dict[str, VectorOptions] = {}
    """Files with vectors of the values of categorical columns, by column: `item: items.parquet`, or
    `item: {file: items.parquet, frozen: true}`."""
    fold: Fold | None = None
    """The fold of a cross-validation that is the test part; None: the test part is as the schema says."""

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)

    @field_validator("options")
    @classmethod
    def _no_other_place(cls, options: dict[str, Any]) -> dict[str, Any]:
        for name in options:
            if name in ("source", "schema", "labels", "folder", "cache", "stream", "features", "vectors", "fold"):
                raise ValueError(f"{name!r} stands beside the options, not among them")
        return options


class ModelConfig(_Part):
    """The model to train."""

    name: str = "shared-bottom"
    options: dict[str, Any] = {}
    """Fields of the model's config, such as `experts: 4`."""


class MethodConfig(_Part):
    """The method that combines the tasks' gradients."""

    name: str = "gdod"
    options: dict[str, Any] = {}
    """Arguments of the method, such as `groups: 16`."""


class OptimizerConfig(_Part):
    """The optimizer and its learning rate."""

    name: Literal["adam", "adamw", "sgd", "sparse-adam"] = "adam"
    """"sparse-adam" is Adam that, in embedding tables, only updates rows that occur in the batch."""
    lr: float = Field(default=1e-3, gt=0)
    weight_decay: float = Field(default=0.0, ge=0)
    """Adamw subtracts it from the weights, the others add it to the gradient; sparse gradients of tables get none."""
    id_decay: float | None = Field(default=None, ge=0)
    """The weight decay of id tables, for adamw; biases and the like then have none. None: all have `weight_decay`."""
    momentum: float = Field(default=0.0, ge=0, lt=1)
    """The momentum of sgd; the others take none."""

    @model_validator(mode="after")
    def _check(self) -> "OptimizerConfig":
        if self.momentum and self.name != "sgd":
            raise ValueError(f"momentum={self.momentum} is for sgd, not for {self.name}; leave it out")
        if self.id_decay is not None and self.name != "adamw":
            raise ValueError(f"id_decay={self.id_decay} is for adamw, not for {self.name}; leave it out")
        return self


class ScheduleConfig(_Part):
    """How the learning rate changes from step to step."""

    name: Literal["constant", "cosine", "linear", "step"] = "constant"
    """The shape of the learning rate after the warm-up, up to the end of training."""
    warmup: int = Field(default=0, ge=0)
    """The number of steps in which the learning rate rises linearly to its full value."""
    floor: float = Field(default=0.0, ge=0, le=1)
    """The fraction of the full value at which "cosine" and "linear" end, and below which "step" does not fall."""
    every: int | None = Field(default=None, ge=1)
    """The number of steps after which "step" multiplies the learning rate by ``factor``."""
    factor: float = Field(default=0.1, gt=0, lt=1)

    @model_validator(mode="after")
    def _check(self) -> "ScheduleConfig":
        if (self.every is None) == (self.name == "step"):
            raise ValueError("schedule 'step' needs `every`, the others do not take it")
        return self


class StoppingConfig(_Part):
    """When training ends early, and which weights count as the best."""

    patience: int | None = Field(default=None, ge=1)
    """The number of evaluations without a better one after which training ends; None: it never ends early."""
    monitor: str = "auto"
    """The score to compare: "mean_auc", "loss", the name of a task, or "auto": mean AUC if there is one, else loss."""
    least: float = Field(default=0.0, ge=0)
    """The least improvement that counts as better."""


class UpdateConfig(_Part):
    """The earlier run that a run goes on from, with the rows of a new table."""

    previous: Path = Field(alias="from")
    """The folder of the earlier run."""
    half_life: float = Field(default=HALF_LIFE, gt=0)
    """After how many updates what was counted of a row, for target statistics and rare values, counts half."""
    validation: float | None = Field(default=None, ge=0, lt=1)
    """The share of the new table's rows for validation; None: as in the earlier run."""
    test: float = Field(default=0.0, ge=0, lt=1)
    """The share of the new table's rows for a test."""

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)


class TrainConfig(_Part):
    """All settings of a run."""

    recipe: Literal["paper", "strong"] = "strong"
    """What fills the settings that are not given: "strong", what measured well on tables of many kinds, see
    `gdod.training.recipes`; "paper", the defaults here."""
    filled: bool = False
    """Whether the recipe has filled all settings, as in a run's own configuration; it then chooses nothing more."""
    update: UpdateConfig | None = None
    """The run that this one goes on from; None: it begins anew. See `gdod.training.updating`."""
    data: DataConfig
    model: ModelConfig = ModelConfig()
    method: MethodConfig = MethodConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    stopping: StoppingConfig = StoppingConfig()

    batch: int = Field(default=256, ge=1)
    epochs: float | None = Field(default=None, gt=0)
    """The number of passes over the training data, which may be a fraction; 1 if `steps` is not given either."""
    steps: int | None = Field(default=None, ge=1)
    clip: float | None = Field(default=None, gt=0)
    """The largest norm of the gradient of all parameters together; a longer gradient is shortened to it."""
    task_weights: dict[str, Annotated[float, Field(ge=0)]] | None = None
    """Factors of the tasks' losses by task name; 1 for tasks that are left out."""
    positive_weights: dict[str, Annotated[float, Field(gt=0)]] | None = None
    """How often an example whose label is 1 counts in the loss, by the name of a binary task; 1 for those left out.
    Probabilities become too high by it, which `calibrate` undoes."""
    negatives_kept: dict[str, Annotated[float, Field(gt=0, le=1)]] | None = None
    """The share of the negative examples that the table still has, by the name of a binary task, if others were left
    out when it was made; predictions are then corrected to what they were with all of them."""
    calibrate: Literal["none", "platt", "isotonic"] = "none"
    """How the probabilities of binary tasks are fitted to the labels of the validation part after training: by a line
    through the logits ("platt"), by steps that rise ("isotonic", for a thousand positives or more), or not."""
    sample_weights: bool = True
    """Whether to multiply losses by the weight column, if the data has one."""
    average: float | None = Field(default=None, gt=0, lt=1)
    """The decay per step of a moving average of the weights, which is then what is evaluated and used; None: none."""
    seed: int = Field(default=0, ge=0, lt=2**63)

    device: str = "auto"
    """The device: "cpu", "cuda", "cuda:1" …, or "auto": a GPU if there is one."""
    precision: Literal["float32", "bf16"] = "float32"
    threads: int | None = Field(default=None, ge=1)
    """The number of threads of torch; None: torch's default, and for short steps or beside busy processes fewer."""

    evaluate_every: int | None = Field(default=None, ge=1)
    """The number of steps between evaluations on the validation part; None: those of an epoch."""
    test_curve: bool = False
    """Whether to evaluate on the test part as often, for the record alone: nothing is chosen by it."""
    evaluation_batch: int = Field(default=4096, ge=1)
    weighted_metrics: bool = False
    """Whether to weight examples by the weight column in evaluations, too."""
    log_every: int = Field(default=100, ge=1)
    """The number of steps between two recorded training losses."""
    conflict_every: int | None = Field(default=None, ge=0)
    """The number of steps between two recorded conflicts, at log times; None: at each of them, 0: never."""
    checkpoint_every: int | None = Field(default=None, ge=1)
    """The number of steps between checkpoints, besides those after evaluations (one a second at most)."""
    checkpoint_minutes: float = Field(default=5.0, gt=0)
    """The number of minutes after which a checkpoint is written in any case, at the next log time."""
    non_finite: Literal["stop", "skip"] = "stop"
    """What to do in a step whose loss or gradient is not finite."""
    tensorboard: bool = True

    @model_validator(mode="wrap")
    @classmethod
    def _fill(cls, settings: object, checked: "ModelWrapValidatorHandler[TrainConfig]") -> "TrainConfig":
        """Spell out short forms, and fill in what the recipe chooses, which does not count as given."""
        if not isinstance(settings, Mapping):
            return checked(settings)
        settings = {name: _spelled_out(name, value) for name, value in settings.items()}
        if settings.get("recipe", "strong") != "strong" or settings.get("filled"):
            return checked(settings)
        from gdod.training.recipes import fixed_settings  # it reads and makes configurations

        given = {name: _given(value) if isinstance(value, _Part) else value for name, value in settings.items()}
        chosen = fixed_settings(given)
        config = checked(merged(chosen, given))
        for name, value in chosen.items():
            part = getattr(config, name)
            if isinstance(part, _Part):
                part.model_fields_set.difference_update(value)
        config.model_fields_set.difference_update(chosen.keys() - given.keys())
        return config

    @model_serializer(mode="wrap")
    def _write_given(self, whole: SerializerFunctionWrapHandler) -> Settings:
        """Return the settings, without those that the recipe has yet to choose: it still can when they are read.

        The recipe is always among them: `check_stored` takes settings without one for those of an earlier version.
        """
        written = whole(self)
        given = written if self.recipe == "paper" or self.filled else _only_given(self, written)
        return {"recipe": self.recipe, **given}

    @field_validator("task_weights", "positive_weights", "negatives_kept", mode="before")
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


def _only_given(part: BaseModel, settings: Settings) -> Settings:
    """Return the written settings of a part without those that were not given, also in the parts of it."""
    written: Settings = {}
    for name, field in type(part).model_fields.items():
        key = name if name in settings else field.alias
        if name in part.model_fields_set and key in settings:
            value = getattr(part, name)
            written[key] = _only_given(value, settings[key]) if isinstance(value, BaseModel) else settings[key]
    return written


def _given(part: BaseModel) -> Settings:
    return part.model_dump(exclude_unset=True, by_alias=True)


def read_config(file: Path | None = None, options: Mapping[str, Any] | None = None) -> TrainConfig:
    """Return the configuration in a file, with options that win over the file's settings.

    Options are settings like those of a file, nested or by a path with dots: `{"model.name": "ple"}`.
    Paths in a file are relative to the file's folder and may not lead out of it. With `update.from`, all other settings
    that are not given are those of the run there, or chosen for an update.
    """
    settings: Settings = {} if file is None else inside(read_settings(file), file.parent)
    settings = merged(settings, nested(options or {}))
    if settings.get("update") is None:
        return check_config(settings)
    from gdod.training.updating import update_config  # it reads configurations

    return update_config(settings)


def check_config(settings: Mapping[str, Any]) -> TrainConfig:
    """Return the configuration with these settings; raise an InputError that names all that are wrong."""
    try:
        return TrainConfig.model_validate(settings)
    except ValidationError as error:
        raise InputError(_explained(error)) from None


def check_stored(settings: Mapping[str, Any]) -> TrainConfig:
    """Return a configuration as it was stored; one without a recipe is of a version whose defaults were "paper"."""
    return check_config({"recipe": "paper", **settings})


# Settings that may differ between a checkpoint and the configuration beside it: where a run finds its data, which has a
# fingerprint of its own, how long it trains, where it works, and what it notes on the way.
_NOT_IN_CHECKSUM = {
    *("recipe", "filled", "data", "epochs", "steps", "stopping", "device", "threads", "evaluation_batch", "test_curve"),
    *("weighted_metrics", "log_every", "conflict_every", "checkpoint_every", "checkpoint_minutes", "tensorboard"),
}


def checksum(config: TrainConfig) -> str:
    """Return a checksum of the settings that weights and predictions depend on, which a checkpoint keeps.

    Settings that are at their defaults have no part in it, so that it stays when a later version has more of them.
    """
    values = config.model_dump(mode="json", exclude=_NOT_IN_CHECKSUM, exclude_defaults=True)
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def read_settings(file: Path) -> Settings:
    """Return the settings in a YAML, TOML or JSON file, unchecked."""
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        hint = "" if file.suffix else f"; expected a YAML or TOML file of settings: if it is data, say --data {file}"
        raise InputError(f"the configuration {file} cannot be read: {error.strerror}{hint}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"the configuration {file} is not UTF-8: {error}") from error
    parse = parse_toml if file.suffix.lower() == ".toml" else parse_yaml
    settings = parse(text, f"the configuration {file}")
    if settings is None:
        return {}
    if not isinstance(settings, dict) or not all(isinstance(key, str) for key in settings):
        raise InputError(f"the configuration {file} holds a {type(settings).__name__}; expected names with values")
    return settings


def nested(options: Mapping[str, Any]) -> Settings:
    """Return settings without dots in names: `{"model.name": "ple"}` becomes `{"model": {"name": "ple"}}`."""
    settings: Settings = {}
    for path, value in options.items():
        for name in reversed(path.split(".")):
            value = {name: value}
        settings = merged(settings, value)
    return settings


def merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> Settings:
    """Return the settings of both; where both have one, that of ``over``."""
    result = {**under}
    for name, value in over.items():
        below = _spelled_out(name, result.get(name))
        if isinstance(below, Mapping) and isinstance(value, Mapping):
            changes = name in ("model", "method") and value.get("name", below.get("name")) != below.get("name")
            # The options in the file are those of another model or method.
            below = {key: kept for key, kept in below.items() if not (changes and key == "options")}
            value = merged(below, value)
        result[name] = value
    return result


# What each path is called on the command line.
_OPTIONS = {"source": "data", "schema": "schema", "folder": "data-folder", "cache": "set data.cache"}


def inside(settings: Settings, folder: Path) -> Settings:
    """Return the settings of a file in ``folder`` with absolute paths, none of which may lead out of that folder."""
    update = _spelled_out("update", settings.get("update"))
    if isinstance(update, dict) and isinstance(update.get("from"), str):
        place = contained(update["from"], folder, "update.from", "from")
        settings = {**settings, "update": {**update, "from": str(place)}}
    data = _spelled_out("data", settings.get("data"))
    if not isinstance(data, dict):
        return settings
    data = {**data}
    for name in ("source", "schema", "folder", "cache"):
        if isinstance(data.get(name), str) and not (name == "source" and is_named(data[name])):
            data[name] = str(contained(data[name], folder, f"data.{name}", _OPTIONS[name]))
    if isinstance(data.get("vectors"), dict):
        data["vectors"] = {name: _inside(one, folder, name) for name, one in data["vectors"].items()}
    return {**settings, "data": data}


def _inside(vectors: Any, folder: Path, column: str) -> Any:
    """Return the options of a file with vectors with an absolute path that does not lead out of the folder."""
    options = {"file": vectors} if isinstance(vectors, str) else vectors
    if not isinstance(options, dict) or not isinstance(options.get("file"), str):
        return vectors
    return {**options, "file": str(contained(options["file"], folder, f"data.vectors.{column}", "vectors"))}


def is_named(source: str) -> bool:
    """Return whether the source is the name of a data set, and not a path."""
    from gdod.data.sets import SOURCES

    return source in SOURCES


def contained(path: str, folder: Path, what: str, option: str) -> Path:
    """Return the absolute path of ``path`` in ``folder``; raise an InputError if it leads out of it.

    The error names the setting, ``what``, and the command line's option that may name any place.
    """
    root = folder.resolve()
    place = (root / path).resolve()
    if not place.is_relative_to(root):
        raise InputError(
            f"{what}={path!r} leads out of the folder {root} of the configuration file; "
            f"put it below that folder, or name the place on the command line, with --{option}"
        )
    return place


def _explained(error: ValidationError) -> str:
    lines = []
    for one in error.errors():
        path = [str(name) for name in one["loc"]]
        where = ".".join(path)
        if one["type"] == "extra_forbidden":
            known = _fields(path[:-1])
            hint = nearest(path[-1], known) or f"; expected one of {', '.join(map(repr, known))}"
            lines.append(f"{where} is not a setting{hint}")
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
    """Return the names of the settings at a path; none if it leads to a single value."""
    model: type[BaseModel] = TrainConfig
    for name in path:
        field = model.model_fields.get(name)
        annotation = None if field is None else field.annotation
        models = [one for one in (annotation, *get_args(annotation)) if isinstance(one, type)]
        models = [one for one in models if issubclass(one, BaseModel)]
        if not models:
            return []
        model = models[0]
    return [field.alias or name for name, field in model.model_fields.items()]
