"""What is checked before a run trains: its configuration, its folder, and whether both fit the data."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from gdod._checks import check_choice, nearest
from gdod._files import read_json
from gdod.errors import InputError
from gdod.models import MODELS, build
from gdod.models.config import configure
from gdod.schema import Categorical, Numeric, Schema, Sequence, Task
from gdod.training.config import DataConfig, TrainConfig, is_named
from gdod.training.device import find_device
from gdod.training.evaluation import check_monitor
from gdod.training.run import Folder, model_options, resume_command
from gdod.training.seeds import seeded_method

if TYPE_CHECKING:
    from gdod.data.dataset import Dataset


def check(config: TrainConfig) -> None:
    """Raise an InputError if names, options, tasks or the device are wrong, as far as that shows without the data."""
    check_choice("model", config.model.name, MODELS)
    configure(MODELS[config.model.name].config_type, model_options(config))
    seeded_method(config.method.name, config.method.options, config.seed)
    if tasks := _known_tasks(config.data):
        check_choice("stopping.monitor", config.stopping.monitor, ("auto", "mean_auc", "loss", *tasks))
        for name in config.task_weights or ():
            check_choice("a task of task_weights", name, tasks)
    find_device(config.device)


def rehearse(config: TrainConfig) -> None:
    """Raise an InputError if the data is not there, lacks a column, or no such model can be made for its tasks.

    Nothing is prepared or trained for that, and the configuration is one that `check` has let pass.
    """
    import torch

    from gdod.data.loading import find_schema
    from gdod.data.tables.table_schema import CategoricalColumn, NumericColumn, SequenceColumn

    data = absolute_paths(config).data
    table = find_schema(
        data.source, schema=data.schema_file, labels=data.labels, folder=data.folder, options=data.options
    )
    if not table.labels:
        raise InputError(f"the schema of {data.source} has no label; give at least one column `type: label`")
    # How many values a column has shows only when it is read; here one does as well.
    fields = Schema(
        [Categorical(name, 1) for name in table.of(CategoricalColumn)],
        [Numeric(name) for name in table.of(NumericColumn)],
        [Sequence(name, 1) for name in table.of(SequenceColumn)],
    )
    tasks = [
        Task(name, label.kind, len(label.classes or "01") if label.kind == "multiclass" else None)
        for name, label in table.labels.items()
    ]
    check_monitor(config.stopping.monitor, tasks)
    for name in config.task_weights or ():
        check_choice("a task of task_weights", name, table.labels)
    with torch.device("meta"):  # sizes alone
        build(config.model.name, fields, tasks, **model_options(config))


def _known_tasks(data: DataConfig) -> tuple[str, ...]:
    """Return the names of the tasks; none if only the data shows them."""
    named = is_named(data.source)
    if data.options and not named:
        raise InputError(
            f"data.options={data.options!r} are for a named data set, and {data.source!r} is none; leave them out"
        )
    if data.labels and (named or data.schema_file is not None):
        beside = (
            f"the data set {data.source!r}, which has its own"
            if named
            else "a schema; mark them there, as `type: label`"
        )
        raise InputError(f"labels {', '.join(data.labels)} are given beside {beside}")
    from gdod.data import SOURCES, TableSchema

    own = tuple(SOURCES[data.source].schema(data.options).labels) if named else data.labels
    return own if data.schema_file is None else tuple(TableSchema.read(data.schema_file).labels)


def absolute_paths(config: TrainConfig) -> TrainConfig:
    """Return the configuration with paths to the data that do not depend on the current folder."""
    from gdod.data import SOURCES

    data = config.data
    places = {"schema_file": data.schema_file, "folder": data.folder, "cache": data.cache}
    changed: dict[str, Any] = {name: None if place is None else place.absolute() for name, place in places.items()}
    if not is_named(data.source):
        place = Path(data.source).expanduser()
        if not place.exists() and (hint := nearest(data.source, SOURCES)):
            raise InputError(f"there is no file or folder {data.source!r}, and no data set of this name{hint}")
        changed["source"] = str(place.absolute())
    return config.model_copy(update={"data": data.model_copy(update=changed)})


def check_folder(config: TrainConfig, folder: Folder, resume: bool) -> None:
    """Raise an InputError if the folder holds other files, or a run that is not to be resumed with this configuration.

    So a run is never written over.
    """
    if folder.path.exists() and not folder.path.is_dir():
        raise InputError(f"{folder.path} is a file; expected a folder, or a name for a new one")
    if not folder.is_run:
        # A run that was killed as it began has some of its files, but not this last one of them, and no checkpoint.
        own = {folder.checkpoints, folder.statistics, folder.encoder, folder.about, folder.lock}
        there = [one for place in (folder.path, folder.checkpoints) if place.is_dir() for one in place.iterdir()]
        if any(one not in own and one.suffix != ".part" for one in there):
            raise InputError(f"the folder {folder.path} holds other files; choose a new one with --out")
        return
    if not resume:
        raise InputError(
            f"{folder.path} holds a run already; go on with it with {resume_command(folder.path)}, "
            "or choose another folder with --out"
        )
    if changes := differences(folder.read_config().model_dump(mode="json"), config.model_dump(mode="json")):
        raise InputError(
            f"the run in {folder.path} has another configuration: {'; '.join(changes)}. "
            f"Go on with its own with {resume_command(folder.path)}, or choose another folder with --out"
        )


def differences(stored: dict[str, Any], given: dict[str, Any], path: str = "") -> list[str]:
    """Return a sentence for each setting in which two configurations differ; ``path`` is that of both, with a dot."""
    changes = []
    for name in stored.keys() | given.keys():
        one, other = stored.get(name), given.get(name)
        if isinstance(one, dict) and isinstance(other, dict):
            changes += differences(one, other, f"{path}{name}.")
        elif one != other:
            changes.append(f"{path}{name} is {one!r}, not {other!r}")
    return sorted(changes)


def check_data(config: TrainConfig, dataset: "Dataset", folder: Folder) -> None:
    """Raise an InputError if the data cannot be trained on as configured, or is not that of the run in the folder."""
    if not len(dataset.train):
        raise InputError(f"the training part of {dataset.name} has no examples")
    if not len(dataset.validation) and config.stopping.patience is not None:
        raise InputError("stopping.patience needs a validation part, and the data has none; leave it out")
    check_monitor(config.stopping.monitor, dataset.tasks)
    if not folder.is_run or not folder.about.exists():
        return
    known = read_json(folder.about, "a description of the run").get("data", {}).get("fingerprint")
    if known != dataset.fingerprint:
        raise InputError(
            f"the data of the run in {folder.path} has changed (fingerprint {known}, now {dataset.fingerprint}); "
            "train anew in another folder, with --out"
        )
