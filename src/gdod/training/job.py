"""A run from its configuration to its result: checked first, then trained, then tested once."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from gdod._checks import check_choice, nearest
from gdod._files import check_space, check_writable, make_folder, read_json, remove_parts, write_json
from gdod.errors import InputError
from gdod.models import MODELS, build
from gdod.models.config import configure
from gdod.ranks import Ranks
from gdod.ranks.processes import current, own_device
from gdod.training import checkpoint
from gdod.training.config import DataConfig, TrainConfig, is_named
from gdod.training.device import find_device
from gdod.training.evaluation import check_monitor, score
from gdod.training.loop import Trainer
from gdod.training.progress import Progress, Silent
from gdod.training.record import Curves, Record, finite
from gdod.training.run import Folder, about, decay_note, model_options
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
    ranks: Ranks | None = None,
) -> Result:
    """Trains a model and writes a run folder. Returns what its `result.json` holds.

    Args:
        config: what to do, e.g. from `read_config`.
        out: the folder of the run.
        dataset: the data if it is at hand; otherwise ``config.data`` says what to load.
        resume: go on with the run in ``out``, if there is one. A finished one is left as it is.
        progress: is told how far the run is.
        command: what the run's `about.json` says it was started with.
        ranks: this process among others that call this, too; None: those of the default process group, if there is
            one. All need to see the folder.

    Raises:
        InputError: before training, if something does not fit.
        NonFiniteError: a loss is not finite, and the configuration does not say to skip that.
        Interrupted: by Ctrl-C, after a checkpoint was written.
    """
    ranks, folder = ranks or current(), Folder(Path(out))
    progress = progress if progress is not None and ranks.rank == 0 else Silent()
    if dataset is None:
        config = absolute(config)
    device = ranks.agree(lambda: own_device(check(config), ranks))
    if (result := ranks.first(lambda: _finished(config, folder, resume))) is not None:
        return result
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    if dataset is None:
        dataset = ranks.in_turns(lambda: load_data(config))
    for note in dataset.notes:
        progress.say(f"data: {note}")
    if (undecayed := decay_note(config)) is not None:
        progress.say(undecayed)
    trainer = ranks.agree(lambda: _trainer(config, dataset, folder, device, progress, ranks))
    if ranks.first(lambda: _make_room(trainer)):
        ranks.agree(lambda: _go_on(trainer))
    ranks.first(lambda: _describe(trainer, command))
    return _run(trainer)


def _finished(config: TrainConfig, folder: Folder, resume: bool) -> Result | None:
    """What the run came to, if it has finished; otherwise makes sure that it can begin, or go on."""
    check_folder(config, folder, resume)
    if folder.is_finished:
        return read_json(folder.result, "the result of a run")
    check_writable(folder.checkpoints)
    return None


def _trainer(
    config: TrainConfig, dataset: "Dataset", folder: Folder, device: torch.device, progress: Progress, ranks: Ranks
) -> Trainer:
    _check_data(config, dataset, folder)
    model = build(
        config.model.name, dataset.schema, dataset.tasks, seed=seed_for("model", config.seed), **model_options(config)
    )
    method = seeded_method(config.method.name, config.method.options, config.seed)
    return Trainer(config, dataset, model, method, folder, device=device, progress=progress, ranks=ranks)


def _make_room(trainer: Trainer) -> bool:
    """Makes the folder ready. True if it holds a checkpoint to go on from."""
    folder = trainer.folder
    check_space(folder.path, _needed(trainer.model))
    make_folder(folder.checkpoints)
    for place in (folder.path, folder.checkpoints):
        remove_parts(place)
    return folder.last.exists()


def _go_on(trainer: Trainer) -> None:
    trainer.go_on(_load(trainer, trainer.folder.last))


def _load(trainer: Trainer, path: Path) -> dict[str, Any]:
    """A checkpoint that rank 0 has written."""
    if trainer.ranks.rank and not path.exists():
        raise InputError(f"{path} is not to be seen here; put --out on a file system that all machines share")
    return checkpoint.load(path, trainer.device)


def _run(trainer: Trainer) -> Result:
    folder, state, progress = trainer.folder, trainer.state, trainer.progress
    record = None
    if trainer.ranks.rank == 0:
        curves = Curves(folder.tensorboard, state.step + 1) if trainer.config.tensorboard else None
        record = Record(folder.metrics, state.recorded, curves)
    try:
        progress.start(trainer.total, state.step)
        stopped = trainer.run(record)
    finally:
        if record is not None:
            record.close()
        progress.close()
    return _finish(trainer, stopped)


def _finish(trainer: Trainer, stopped: str) -> Result:
    """The best weights on the test part, once."""
    state, dataset, config, ranks = trainer.state, trainer.dataset, trainer.config, trainer.ranks
    trainer.model.load_state_dict(ranks.agree(lambda: _load(trainer, trainer.folder.best))["model"])
    part = dataset.test if len(dataset.test) else dataset.validation
    scored = score(trainer.model, part, config.evaluation_batch, trainer.device, ranks=ranks) if len(part) else None

    def write() -> Result:
        tests, weighted = scored if len(dataset.test) else None, config.weighted_metrics
        result = {
            "best_step": state.best_step,
            "steps": state.step,
            "seconds": state.seconds,
            "milliseconds_per_step": trainer.milliseconds,
            "validation": state.best,
            "test": None if tests is None else tests.metrics(weighted=weighted),
            "calibration": {} if scored is None else scored.calibration(),
            "stopped": stopped,
            "skipped": state.skipped,
        }
        write_json(trainer.folder.result, finite(result))
        return read_json(trainer.folder.result, "the result of a run")

    return ranks.first(write)


def resume_command(folder: Path) -> str:
    """What continues a run, to be typed into a shell."""
    return f"gdod train --resume --out {shlex.quote(str(folder))}"


def check(config: TrainConfig) -> torch.device:
    """All that can be known without the data: names, options, the device."""
    check_choice("model", config.model.name, MODELS)
    configure(MODELS[config.model.name].config_type, model_options(config))
    seeded_method(config.method.name, config.method.options, config.seed)
    _check_table(config)
    return find_device(config.device)


def _check_table(config: TrainConfig) -> None:
    """What is known of the table before the data is read."""
    if names := _labels(config.data):
        check_choice("stopping.monitor", config.stopping.monitor, ("auto", "mean_auc", "loss", *names))
        for name in config.task_weights or ():
            check_choice("a task of task_weights", name, names)


def _labels(data: DataConfig) -> tuple[str, ...]:
    """The names of the tasks; none if they are to be found out."""
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
    if found := differences(folder.read_config().model_dump(mode="json"), config.model_dump(mode="json")):
        raise InputError(
            f"the run in {folder.path} has another configuration: {'; '.join(found)}. "
            f"Go on with its own with {resume_command(folder.path)}, or choose another folder with --out"
        )


def differences(stored: dict[str, Any], given: dict[str, Any], path: str = "") -> list[str]:
    """In what two configurations differ, in words."""
    found = []
    for name in stored.keys() | given.keys():
        one, other = stored.get(name), given.get(name)
        if isinstance(one, dict) and isinstance(other, dict):
            found += differences(one, other, f"{path}{name}.")
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


def _describe(trainer: Trainer, command: Sequence[str] | None) -> None:
    """What the run's files say of it, if they do not yet; and with how many ranks it goes on."""
    folder, config, ranks = trainer.folder, trainer.config, trainer.ranks.size
    if not folder.is_run or not folder.about.exists():
        write_json(folder.encoder, trainer.dataset.encoder.to_json())
        told = sys.argv if command is None else command
        folder.write_about(about(config, trainer.dataset, trainer.model, trainer.device, ranks, told))
        write_json(folder.config, config.model_dump(mode="json"))  # last: it makes the folder a run
        return
    known = read_json(folder.about, "a description of the run")
    before = known.get("ranks", 1)
    if before != ranks:
        changes = [*known.get("ranks_before", ()), {"ranks": before, "to_step": trainer.state.step}]
        folder.write_about({**known, "ranks": ranks, "ranks_before": changes})


def _needed(model: torch.nn.Module) -> int:
    """Bytes for both checkpoints and one that is being written: weights, and two more of each in the last."""
    weights = sum(one.numel() * one.element_size() for one in model.parameters())
    return (1 + 3 + 3) * weights + _RECORDS
