"""`train`: a run from its configuration to its result. It is checked first, then trained, then tested once."""

import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from gdod._files import check_space, check_writable, make_folder, read_json, remove_parts, write_json
from gdod.errors import InputError
from gdod.models import build
from gdod.ranks import Ranks
from gdod.ranks.processes import current, own_device
from gdod.training import checkpoint
from gdod.training.calibration import calibrated, calibrator_content, fit_calibrators
from gdod.training.config import TrainConfig, is_named
from gdod.training.device import find_device
from gdod.training.evaluation import Metrics, Predictions, predict_part
from gdod.training.label_scales import run_scales, with_label_scales
from gdod.training.lock import locked
from gdod.training.loop import Trainer
from gdod.training.preflight import absolute_paths, check, check_data, check_folder, check_labels, is_longer
from gdod.training.progress import Progress, Silent
from gdod.training.recipes import TableSize, apply_recipe, as_stored
from gdod.training.record import Curves, Record, finite
from gdod.training.run import Folder, about, decay_note, model_options
from gdod.training.seeds import seed_for, seeded_method
from gdod.training.updating import Parent, update_in_words

if TYPE_CHECKING:
    from gdod.data.dataset import Dataset
    from gdod.data.parts.part import Part

Result = dict[str, Any]
"""The content of a run's `result.json`."""

_RECORD_BYTES = 20_000_000  # room for metrics.jsonl and curves


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
    """Train a model, write a run folder, and return the content of its `result.json`.

    Args:
        config: what to do, e.g. from `read_config`.
        out: the folder of the run.
        dataset: the data if it is at hand; otherwise ``config.data`` says what to load.
        resume: resume the run in ``out`` if there is one. A finished run is left as it is, unless ``config`` has more
            epochs or steps than it had: then it goes on to these.
        progress: told how far the run is.
        command: the command that `about.json` says the run was started with.
        ranks: this process among others that call this function, too; None: those of the default process group, if
            there is one. All need to see the folder.

    Raises:
        InputError: something does not fit; raised before training.
        NonFiniteError: a loss is not finite, and the configuration does not say to skip that.
        Interrupted: by Ctrl-C, after a checkpoint was written.
    """
    ranks, folder = ranks or current(), Folder(Path(out))
    progress = progress if progress is not None and ranks.rank == 0 else Silent()
    if dataset is None:
        config = absolute_paths(config)
    config = ranks.agree(partial(_as_begun, config, folder))
    device = ranks.agree(lambda: _checked_device(config, ranks))
    if (result := ranks.first(lambda: _finished(config, folder, resume))) is not None:
        return result
    with ExitStack() as held:
        ranks.first(lambda: _hold(folder, held, progress), wait=True)
        # Until this one held it, another process may have worked on it.
        if (result := ranks.first(lambda: _finished(config, folder, resume))) is not None:
            return result
        return _train(config, folder, device, dataset, progress, command, ranks)


def _train(
    config: TrainConfig,
    folder: Folder,
    device: torch.device,
    dataset: "Dataset | None",
    progress: Progress,
    command: Sequence[str] | None,
    ranks: Ranks,
) -> Result:
    """Train in a folder that this process alone works in, and return the result."""
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    if dataset is None:
        dataset = ranks.in_turns(lambda: load_data(config))
        if config.data.schema_file is None and config.update is None and not is_named(config.data.source):
            tasks = ", ".join(f"{task.name} ({task.kind})" for task in dataset.tasks)
            progress.say(f"data: no schema is given, so these columns are predicted: {tasks}")
    for note in dataset.notes:
        progress.say(f"data: {note}")
    config, chosen = ranks.agree(partial(_with_recipe, config, dataset))
    dataset = with_label_scales(dataset, ranks.first(partial(run_scales, config, dataset, folder), wait=True))
    for sentence in chosen:
        progress.say(sentence)
    if (undecayed := decay_note(config)) is not None:
        progress.say(undecayed)
    trainer = ranks.agree(lambda: _trainer(config, dataset, folder, device, progress, ranks))
    update = {}
    if ranks.first(lambda: _prepare_folder(trainer)):
        ranks.agree(lambda: trainer.resume(_load(trainer, folder.last)))
        if trainer.state.best_step >= 0:  # needed at the very end, and better missed before the work than after it
            ranks.first(lambda: checkpoint.load(folder.best) and None)
        ranks.first(lambda: _lengthen(trainer))
    elif config.update is not None:
        update = ranks.agree(lambda: _begin_update(trainer))
    ranks.first(lambda: _describe(trainer, command, chosen, update))
    return _finish(trainer, _run(trainer))


def _begin_update(trainer: Trainer) -> Result:
    """Begin with the weights of the run to go on from, and return what `about.json` says of it."""
    assert trainer.config.update is not None
    parent = Parent.open(trainer.config.update)
    parent.begin(trainer)
    return {"update": parent.about(trainer.config, trainer.dataset)}


def _hold(folder: Folder, held: ExitStack, progress: Progress) -> None:
    """Keep other processes out of the folder until ``held`` is closed; then one that nothing came into is removed."""
    new = [path for path in (folder.path, *folder.path.parents) if not path.exists()]
    make_folder(folder.path)
    held.callback(_remove_empty, new)
    held.enter_context(locked(folder.path, progress.say, remove=True))


def _remove_empty(folders: Sequence[Path]) -> None:
    with suppress(OSError):  # one is not empty
        for folder in folders:
            folder.rmdir()


def load_data(config: TrainConfig) -> "Dataset":
    """Load the data that the configuration names."""
    from gdod.data import load

    data, update = config.data, config.update
    return load(
        data.source,
        schema=data.schema_file,
        labels=data.labels,
        folder=data.folder,
        cache=data.cache,
        stream=data.stream,
        features=data.features,
        vectors=data.vectors,
        fold=data.fold,
        previous=None if update is None else Parent.open(update).previous(update),
        **data.options,
    )


def _as_begun(config: TrainConfig, folder: Folder) -> TrainConfig:
    """Return the configuration; what a recipe is to choose is as the run in the folder has it, if there is one."""
    return as_stored(config, folder.read_config()) if folder.is_run and config.recipe != "paper" else config


def preview(config: TrainConfig) -> tuple[TrainConfig, tuple[str, ...]]:
    """Return the configuration as a new run would use it, and sentences on what its recipe chose.

    A recipe that goes by the data needs it to be prepared, after which it is in the cache.
    """
    if config.recipe == "paper" and config.update is None:
        return config, ()
    return _with_recipe(config, load_data(config))


def _with_recipe(config: TrainConfig, dataset: "Dataset") -> tuple[TrainConfig, tuple[str, ...]]:
    if config.update is not None:
        return config, update_in_words(config)
    full, chosen = apply_recipe(config, TableSize.of(dataset))
    if chosen:
        check(full)
    return full, chosen


def _checked_device(config: TrainConfig, ranks: Ranks) -> torch.device:
    check(config)
    return own_device(find_device(config.device), ranks)


def _finished(config: TrainConfig, folder: Folder, resume: bool) -> Result | None:
    """Return the result of the run if it has finished; otherwise make sure that it can begin, or be resumed."""
    check_folder(config, folder, resume)
    if folder.is_finished and not is_longer(folder.read_config(), config):
        return read_json(folder.result, "the result of a run")
    check_writable(folder.checkpoints)
    return None


def _trainer(
    config: TrainConfig, dataset: "Dataset", folder: Folder, device: torch.device, progress: Progress, ranks: Ranks
) -> Trainer:
    check_data(config, dataset, folder)
    model = build(
        config.model.name, dataset.schema, dataset.tasks, seed=seed_for("model", config.seed), **model_options(config)
    )
    check_labels(model, dataset.train)
    if dataset.vectors:
        model.set_vectors({name: torch.tensor(vectors) for name, vectors in dataset.vectors.items()})
    method = seeded_method(config.method.name, config.method.options, config.seed)
    return Trainer(config, dataset, model, method, folder, device=device, progress=progress, ranks=ranks)


def _prepare_folder(trainer: Trainer) -> bool:
    """Make the folder ready to write to, and return whether it holds a checkpoint to resume from."""
    folder = trainer.folder
    # Weights in the best checkpoint; weights, their average if there is one, and two moments in the last one, and in
    # the one that is being written.
    weights = sum(one.numel() * one.element_size() for one in trainer.model.parameters())
    copies = 3 if trainer.average is None else 4
    check_space(folder.path, (1 + 2 * copies) * weights + _RECORD_BYTES)
    make_folder(folder.checkpoints)
    for place in (folder.path, folder.checkpoints):
        remove_parts(place)
    return folder.last.exists()


def _load(trainer: Trainer, path: Path) -> dict[str, Any]:
    """Read a checkpoint that rank 0 has written."""
    if trainer.ranks.rank and not path.exists():
        raise InputError(f"{path} is not to be seen here; put --out on a file system that all machines share")
    return checkpoint.load(path, trainer.device)


def _lengthen(trainer: Trainer) -> None:
    """Make a run that is to train for longer than it was begun with one that has not finished, if this is one."""
    folder, config, state = trainer.folder, trainer.config, trainer.state
    stored = folder.read_config()
    if not is_longer(stored, config):
        return
    if trainer.out_of_patience():
        raise InputError(
            f"the run in {folder.path} stopped early, at step {state.step}, after {state.waited} evaluations without a "
            f"better one; to go on, it needs more patience, too: --patience {2 * state.waited}"
        )
    trainer.progress.say(
        f"the run in {folder.path} goes on from step {state.step} to step {trainer.total}"
        + ("" if config.schedule.name == "constant" else ", with the learning rates of a run of that length")
    )
    known = read_json(folder.about, "a description of the run")
    before = {"epochs": stored.epochs, "steps": stored.steps, "to_step": state.step}
    write_json(folder.about, {**known, "lengthened": [*known.get("lengthened", ()), before]})
    folder.result.unlink(missing_ok=True)
    write_json(folder.config, config.model_dump(mode="json"))


def _describe(trainer: Trainer, command: Sequence[str] | None, chosen: Sequence[str], update: Result) -> None:
    """Write the files that describe the run; if they are there, add the number of ranks it is resumed with.

    ``update``: what they say of the run that this one goes on from.
    """
    folder, config, ranks = trainer.folder, trainer.config, trainer.ranks.size
    if not folder.is_run or not folder.about.exists():
        trainer.dataset.encoder.save(folder.path, indent=2)
        started_with = sys.argv if command is None else command
        description = about(config, trainer.dataset, trainer.model, trainer.device, ranks, started_with, chosen)
        write_json(folder.about, {**description, **update, "checksums": folder.described_files()})
        write_json(folder.config, config.model_dump(mode="json"))  # last: it makes the folder a run
        return
    known = read_json(folder.about, "a description of the run")
    before = known.get("ranks", 1)
    if before != ranks:
        changes = [*known.get("ranks_before", ()), {"ranks": before, "to_step": trainer.state.step}]
        write_json(folder.about, {**known, "ranks": ranks, "ranks_before": changes})


def _run(trainer: Trainer) -> str:
    """Train with a record and progress, and return why training ended."""
    folder, state, progress = trainer.folder, trainer.state, trainer.progress
    record = None
    if trainer.ranks.rank == 0:
        curves = Curves(folder.tensorboard, state.step + 1) if trainer.config.tensorboard else None
        record = Record(folder.metrics, state.recorded, curves)
        if record.lost:
            _tell_lost(trainer, record.lost)
    try:
        progress.start(trainer.total, state.step)
        return trainer.run(record)
    finally:
        if record is not None:
            record.close()
        progress.close()


def _model_bytes(folder: Folder) -> int:
    """Return the size of the trained model on disk: the best weights and the target statistics it is given."""
    return sum(path.stat().st_size for path in (folder.best, folder.statistics) if path.exists())


def _tell_lost(trainer: Trainer, lost: int) -> None:
    """Say that records up to the checkpoint are gone, and note it in about.json, where a report finds it."""
    folder, step = trainer.folder, trainer.state.step
    said = (
        f"{folder.metrics.name} was cut or removed: {lost:,} bytes of records up to step {step} are lost. Training "
        "goes on from its checkpoint, which is whole"
    )
    trainer.progress.say(f"{folder.path}: {said}")
    known = read_json(folder.about, "a description of the run")
    write_json(folder.about, {**known, "lost": [*known.get("lost", ()), said]})


def _finish(trainer: Trainer, stopped: str) -> Result:
    """Evaluate the best weights on the test part, once, and write the result."""
    state, dataset, config, ranks = trainer.state, trainer.dataset, trainer.config, trainer.ranks
    best = trainer.folder.best
    trainer.load_weights(ranks.agree(lambda: _load(trainer, best)).get("model"), best)

    def predict(part: "Part") -> Predictions | None:
        return predict_part(trainer.model, part, config.evaluation_batch, trainer.device, ranks=ranks)

    part = dataset.test if len(dataset.test) else dataset.validation
    predictions = predict(part) if len(part) else None
    validated = predict(dataset.validation) if config.calibrate != "none" else None

    def write() -> Result:
        result = {
            "best_step": state.best_step,
            "steps": state.step,
            "seconds": state.seconds,
            "bytes": _model_bytes(trainer.folder),
            "milliseconds_per_step": trainer.milliseconds,
            "validation": state.best,
            **_tested(trainer, predictions),
            "stopped": stopped,
            "skipped": state.skipped,
        }
        if validated is not None and predictions is not None:
            calibrators = fit_calibrators(config.calibrate, validated)
            before = {name: result[name] for name in ("test", "calibration")}
            result |= _tested(trainer, calibrated(predictions, calibrators))
            result |= calibrator_content(calibrators)
            result["before_calibration"] = before
            if before["test"] is not None:
                trainer.progress.say(_calibration_note(config.calibrate, before["test"], result["test"]))
        write_json(trainer.folder.result, finite(result))
        return read_json(trainer.folder.result, "the result of a run")

    return ranks.first(write)


def _tested(trainer: Trainer, predictions: Predictions | None) -> Result:
    """Return what the result says of predictions of the test part or, for calibration alone, of the validation part."""
    tested = predictions if len(trainer.dataset.test) else None
    return {
        "test": None if tested is None else tested.metrics(weighted=trainer.config.weighted_metrics),
        "calibration": {} if predictions is None else predictions.calibration(),
    }


def _calibration_note(kind: str, before: Metrics, after: Metrics) -> str:
    """Return what calibration did to the log losses of the test part, in words."""
    changes = [
        f"{task} {after['tasks'][task]['log_loss']:.4f}, before {values['log_loss']:.4f}"
        for task, values in before["tasks"].items()
        if "auc" in values and values["log_loss"] is not None
    ]
    return f"calibrated on the validation part ({kind}); log loss on the test part: {'; '.join(changes)}"
