"""A run from its configuration to its result: checked first, then trained, then tested once."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from gdod.errors import InputError
from gdod.methods.checks import check_choice
from gdod.models import MODELS, Model, build
from gdod.models.config import configure
from gdod.training import checkpoint
from gdod.training.config import TrainConfig, is_named
from gdod.training.evaluation import check_monitor, score
from gdod.training.files import check_space, check_writable, make_folder, read_json, remove_parts, write_json
from gdod.training.loop import Trainer
from gdod.training.progress import Progress, Silent
from gdod.training.record import Curves, Record, finite
from gdod.training.run import Folder, about, model_options
from gdod.training.seeds import seed_for, seeded_method

if TYPE_CHECKING:
    from gdod.data.dataset import Dataset

Result = dict[str, Any]

_RECORDS = 20_000_000  # bytes that lines and curves may come to


def train(
    config: TrainConfig,
    out: str | Path,
    *,
    dataset: "Dataset | None" = None,
    resume: bool = False,
    progress: Progress | None = None,
    command: Sequence[str] | None = None,
) -> Result:
    """Trains a model and writes a run folder. Returns what its `result.json` holds.

    Args:
        config: what to do, e.g. from `read_config`.
        out: the folder of the run.
        dataset: the data if it is at hand; otherwise ``config.data`` says what to load.
        resume: go on with the run in ``out``, if there is one. A finished one is left as it is.
        progress: is told how far the run is.
        command: what the run's `about.json` says it was started with.

    Raises:
        InputError: before training, if something does not fit.
        NonFiniteError: a loss is not finite, and the configuration does not say to skip that.
        Interrupted: by Ctrl-C, after a checkpoint was written.
    """
    progress, folder = progress or Silent(), Folder(Path(out))
    if dataset is None:
        config = absolute(config)
    device = check(config)
    check_folder(config, folder, resume)
    if folder.is_finished:
        return read_json(folder.result, "the result of a run")
    check_writable(folder.checkpoints)
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    if dataset is None:
        dataset = load_data(config)
    for note in dataset.notes:
        progress.say(f"data: {note}")
    _check_data(config, dataset, folder)
    model = build(
        config.model.name, dataset.schema, dataset.tasks, seed=seed_for("model", config.seed), **model_options(config)
    )
    method = seeded_method(config.method.name, config.method.options, config.seed)
    check_space(folder.path, _needed(model))
    trainer = Trainer(config, dataset, model, method, folder, device=device, progress=progress)
    make_folder(folder.checkpoints)
    for place in (folder.path, folder.checkpoints):
        remove_parts(place)
    last = checkpoint.load(folder.last, device) if folder.last.exists() else None
    if last is not None:
        trainer.go_on(last)
    if not folder.is_run or not folder.about.exists():
        _describe(config, dataset, model, device, folder, command)
    return _run(trainer, folder)


def _run(trainer: Trainer, folder: Folder) -> Result:
    state, progress = trainer.state, trainer.progress
    curves = Curves(folder.tensorboard, state.step + 1) if trainer.config.tensorboard else None
    record = Record(folder.metrics, state.recorded, curves)
    try:
        progress.start(trainer.total, state.step)
        stopped = trainer.run(record)
    finally:
        record.close()
        progress.close()
    result = _finish(trainer, folder, stopped)
    write_json(folder.result, finite(result))
    return read_json(folder.result, "the result of a run")


def _finish(trainer: Trainer, folder: Folder, stopped: str) -> Result:
    """The best weights on the test part, once."""
    state, dataset, config = trainer.state, trainer.dataset, trainer.config
    trainer.model.load_state_dict(checkpoint.load(folder.best, trainer.device)["model"])
    part = dataset.test if len(dataset.test) else dataset.validation
    scored = score(trainer.model, part, config.evaluation_batch, trainer.device) if len(part) else None
    tested = scored.metrics(weighted=config.weighted_metrics) if scored is not None and len(dataset.test) else None
    return {
        "best_step": state.best_step,
        "steps": state.step,
        "seconds": state.seconds,
        "milliseconds_per_step": trainer.milliseconds,
        "validation": state.best,
        "test": tested,
        "calibration": {} if scored is None else scored.calibration(),
        "stopped": stopped,
        "skipped": state.skipped,
    }


def resume_command(folder: Path) -> str:
    """What continues a run, to be typed into a shell."""
    return f"gdod train --resume --out {shlex.quote(str(folder))}"


def check(config: TrainConfig) -> torch.device:
    """All that can be known without the data: names, options, the device."""
    check_choice("model", config.model.name, MODELS)
    configure(MODELS[config.model.name].config_type, model_options(config))
    seeded_method(config.method.name, config.method.options, config.seed)
    _check_table(config)
    return _device(config.device)


def _check_table(config: TrainConfig) -> None:
    """Of a table of one's own, what its schema tells before the data is read."""
    data = config.data
    if is_named(data.source):
        return
    if data.options:
        raise InputError(
            f"data.options={data.options!r} are for a named data set, and {data.source!r} is none; leave them out"
        )
    names = tuple(data.labels)
    if data.schema_file is not None:
        if names:
            raise InputError(f"labels {', '.join(names)} are given beside a schema; mark them there, as `type: label`")
        from gdod.data import TableSchema

        names = tuple(TableSchema.read(data.schema_file).labels)
    if names:
        check_choice("stopping.monitor", config.stopping.monitor, ("auto", "mean_auc", "loss", *names))
        for name in config.task_weights or ():
            check_choice("a task of task_weights", name, names)


def load_data(config: TrainConfig) -> "Dataset":
    from gdod.data import load

    data = config.data
    return load(
        data.source,
        schema=data.schema_file,
        labels=data.labels,
        folder=data.folder,
        cache=data.cache,
        stream=data.stream,
        **data.options,
    )


def absolute(config: TrainConfig) -> TrainConfig:
    """The same with paths that do not depend on the folder a person is in."""
    data = config.data
    places = {"schema_file": data.schema_file, "folder": data.folder, "cache": data.cache}
    changed: dict[str, Any] = {name: None if place is None else place.absolute() for name, place in places.items()}
    if not is_named(data.source):
        changed["source"] = str(Path(data.source).expanduser().absolute())
    return config.model_copy(update={"data": data.model_copy(update=changed)})


def check_folder(config: TrainConfig, folder: Folder, resume: bool) -> None:
    """A run is never written over: it goes on, with the configuration it has, or it is left alone."""
    if folder.path.exists() and not folder.path.is_dir():
        raise InputError(f"{folder.path} is a file; expected a folder, or a name for a new one")
    if not folder.is_run:
        # A run that was killed as it began has some of its files, but not this last one of them, and no checkpoint.
        own = {folder.checkpoints, folder.encoder, folder.about}
        there = [one for place in (folder.path, folder.checkpoints) if place.is_dir() for one in place.iterdir()]
        if any(one not in own and one.suffix != ".part" for one in there):
            raise InputError(f"the folder {folder.path} holds other files; choose a new one with --out")
        return
    if not resume:
        raise InputError(
            f"{folder.path} holds a run already; go on with it with {resume_command(folder.path)}, "
            "or choose another folder with --out"
        )
    differences = _differences(folder.read_config().model_dump(mode="json"), config.model_dump(mode="json"))
    if differences:
        raise InputError(
            f"the run in {folder.path} has another configuration: {'; '.join(differences)}. "
            f"Go on with its own with {resume_command(folder.path)}, or choose another folder with --out"
        )


def _differences(stored: dict[str, Any], given: dict[str, Any], path: str = "") -> list[str]:
    found = []
    for name in stored.keys() | given.keys():
        one, other = stored.get(name), given.get(name)
        if isinstance(one, dict) and isinstance(other, dict):
            found += _differences(one, other, f"{path}{name}.")
        elif one != other:
            found.append(f"{path}{name} is {one!r}, not {other!r}")
    return sorted(found)


def _check_data(config: TrainConfig, dataset: "Dataset", folder: Folder) -> None:
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


def _describe(
    config: TrainConfig,
    dataset: "Dataset",
    model: Model,
    device: torch.device,
    folder: Folder,
    command: Sequence[str] | None,
) -> None:
    write_json(folder.encoder, dataset.encoder.to_json())
    folder.write_about(about(config, dataset, model, device, sys.argv if command is None else command))
    write_json(folder.config, config.model_dump(mode="json"))  # last: it makes the folder a run


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"device={name!r} cannot be used: {reason}; expected 'auto', 'cpu' or e.g. 'cuda'") from error
    return device


def _needed(model: torch.nn.Module) -> int:
    """Bytes for both checkpoints and one that is being written: weights, and two more of each in the last."""
    weights = sum(one.numel() * one.element_size() for one in model.parameters())
    return (1 + 3 + 3) * weights + _RECORDS
