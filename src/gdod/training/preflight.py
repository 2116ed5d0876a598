"""What is checked before a run trains: its configuration, its folder, and whether both fit the data."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gdod._checks import check_choice, nearest
from gdod._files import read_json
from gdod.errors import InputError
from gdod.models import MODELS, Model, build
from gdod.models.config import configure
from gdod.schema import Categorical, Numeric, Schema, Sequence, Task
from gdod.training.config import IN_MEMORY, DataConfig, TrainConfig, is_named
from gdod.training.device import find_device
from gdod.training.evaluation import check_monitor
from gdod.training.run import Folder, model_options, resume_command
from gdod.training.seeds import seeded_method

if TYPE_CHECKING:
    from gdod.data.dataset import Dataset
    from gdod.data.parts.part import Part
    from gdod.data.preparing.vector_options import VectorOptions

_FIRST_ROWS = 10_000  # of a part on disk, whose labels are looked at


def check(config: TrainConfig) -> None:
    """Raise an InputError if names, options, tasks or the device are wrong, as far as that shows without the data."""
    check_choice("model", config.model.name, MODELS)
    configure(MODELS[config.model.name].config_type, model_options(config))
    seeded_method(config.method.name, config.method.options, config.seed)
    if tasks := _known_tasks(config.data):
        check_choice("stopping.monitor", config.stopping.monitor, ("auto", "mean_auc", "loss", *tasks))
        _check_names(config, tasks)
    find_device(config.device)


def rehearse(config: TrainConfig) -> None:
    """Raise an InputError if the data is not there, lacks a column, or no such model can be made for its tasks.

    Nothing is prepared or trained for that, and the configuration is one that `check` has let pass.
    """
    import torch

    from gdod.data.loading import find_schema
    from gdod.data.preparing.cross_validation import check_split
    from gdod.data.preparing.vectors import read_all
    from gdod.data.tables.table_schema import CategoricalColumn, NumericColumn, SequenceColumn

    data = absolute_paths(config).data
    table = find_schema(
        data.source, schema=data.schema_file, labels=data.labels, folder=data.folder, options=data.options
    )
    if data.fold is not None:
        check_split(table.split, data.fold)
    if not table.labels:
        raise InputError(f"the schema of {data.source} has no label; give at least one column `type: label`")
    read_all(data.vectors, table)
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
    _check_names(config, table.labels)
    check_binary(config, tasks)
    with torch.device("meta"):  # sizes alone
        model = build(config.model.name, fields, tasks, **model_options(config))
    # Of two rows, one where everything happened and one where nothing did; there a label on a condition is missing.
    without = {name: torch.nan if label.when in table.labels else 0.0 for name, label in table.labels.items()}
    model.check_labels({name: torch.tensor([1.0, value]) for name, value in without.items()})


def _check_names(config: TrainConfig, tasks: Iterable[str]) -> None:
    """Raise if settings by task name one that is not there."""
    for setting in ("task_weights", "positive_weights", "negatives_kept"):
        for name in getattr(config, setting) or ():
            check_choice(f"a task of {setting}", name, tasks)


def check_binary(config: TrainConfig, tasks: Iterable[Task]) -> None:
    """Raise if settings of binary tasks name a task of another kind, or calibration has nothing to calibrate."""
    kinds = {task.name: task.kind for task in tasks}
    for setting in ("positive_weights", "negatives_kept"):
        for name in getattr(config, setting) or ():
            check_choice(f"a task of {setting}", name, kinds)
            if kinds[name] != "binary":
                raise InputError(f"{setting} names {name!r}, a task of kind {kinds[name]}; expected binary tasks")
    if config.calibrate != "none" and "binary" not in kinds.values():
        raise InputError(f"calibrate={config.calibrate!r}, but no task is binary; leave it out")


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
    changed["vectors"] = absolute_vectors(data.vectors)
    if data.source == IN_MEMORY:
        raise InputError(
            "the run was trained on a table in memory, which only the program that trained it has; there it goes on "
            "with MultiTaskModel.fit(frame, ..., out=..., resume=True)"
        )
    if not is_named(data.source):
        place = Path(data.source).expanduser()
        if not place.exists() and (hint := nearest(data.source, SOURCES)):
            raise InputError(f"there is no file or folder {data.source!r}, and no data set of this name{hint}")
        changed["source"] = str(place.absolute())
    settings: dict[str, Any] = {"data": data.model_copy(update=changed)}
    if config.update is not None:
        settings["update"] = config.update.model_copy(update={"previous": config.update.previous.absolute()})
    return config.model_copy(update=settings)


def absolute_vectors(vectors: Mapping[str, "VectorOptions"]) -> dict[str, "VectorOptions"]:
    """Return the files of vectors with absolute paths."""
    places = {name: one.file.expanduser().absolute() for name, one in vectors.items()}
    return {name: one.model_copy(update={"file": places[name]}) for name, one in vectors.items()}


def check_folder(config: TrainConfig, folder: Folder, resume: bool) -> None:
    """Raise an InputError if the folder holds other files, or a run that is not to be resumed with this configuration.

    So a run is never written over.
    """
    if folder.path.exists() and not folder.path.is_dir():
        raise InputError(f"{folder.path} is a file; expected a folder, or a name for a new one")
    if not folder.is_run:
        # A run that was killed as it began has some of its files, but not this last one of them, and no checkpoint.
        own = {folder.checkpoints, folder.statistics, folder.counts, folder.encoder, folder.about, folder.lock}
        there = [one for place in (folder.path, folder.checkpoints) if place.is_dir() for one in place.iterdir()]
        if any(one not in own and one.suffix != ".part" for one in there):
            raise InputError(f"the folder {folder.path} holds other files; choose a new one with --out")
        return
    if not resume:
        raise InputError(
            f"{folder.path} holds a run already; go on with it with {resume_command(folder.path)}, "
            "or choose another folder with --out"
        )
    stored, given = folder.read_config(), config
    if is_longer(stored, given):
        given = given.model_copy(update=_length(stored))
    if changes := differences(stored.model_dump(mode="json"), given.model_dump(mode="json")):
        raise InputError(
            f"the run in {folder.path} has another configuration: {'; '.join(changes)}. "
            f"Go on with its own with {resume_command(folder.path)}, or choose another folder with --out"
        )


def _length(config: TrainConfig) -> dict[str, Any]:
    """Return the settings that say how long a run trains."""
    return {"epochs": config.epochs, "steps": config.steps, "stopping": config.stopping}


def is_longer(stored: TrainConfig, given: TrainConfig) -> bool:
    """Return whether a configuration asks for more epochs or steps than that of a run, in the same unit.

    It may also ask for more patience, without which a run that has stopped early would stop again.
    """
    if stored.steps is not None:
        more = given.steps is not None and given.steps > stored.steps
    else:
        more = given.epochs is not None and given.epochs > (stored.epochs or 1)
    same = stored.stopping.model_copy(update={"patience": given.stopping.patience}) == given.stopping
    return more and same


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


def check_labels(model: Model, part: "Part") -> None:
    """Raise an InputError if the model cannot learn from the labels of a part; of one on disk the first rows tell."""
    from gdod.data.parts.part import MemoryPart

    if type(model).check_labels is Model.check_labels:
        return  # any labels will do: nothing is read
    if isinstance(part, MemoryPart):
        model.check_labels(dict(zip(part.tasks, part.examples.labels, strict=True)))
    elif (first := next(part.batches(_FIRST_ROWS), None)) is not None:
        model.check_labels(first.labels)


def check_data(config: TrainConfig, dataset: "Dataset", folder: Folder) -> None:
    """Raise an InputError if the data cannot be trained on as configured, or is not that of the run in the folder."""
    if not len(dataset.train):
        raise InputError(f"the training part of {dataset.name} has no examples")
    if not len(dataset.validation) and config.stopping.patience is not None:
        raise InputError("stopping.patience needs a validation part, and the data has none; leave it out")
    if not len(dataset.validation) and config.calibrate != "none":
        raise InputError(f"calibrate={config.calibrate!r} needs a validation part, and the data has none; leave it out")
    check_monitor(config.stopping.monitor, dataset.tasks)
    check_binary(config, dataset.tasks)
    if not folder.is_run or not folder.about.exists():
        return
    known = read_json(folder.about, "a description of the run").get("data", {}).get("fingerprint")
    if known != dataset.fingerprint:
        raise InputError(
            f"the data of the run in {folder.path} has changed (fingerprint {known}, now {dataset.fingerprint}); "
            "train anew in another folder, with --out"
        )
