"""The run of a rival: one model a task, in a run folder like those of networks."""

import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from gdod._files import make_folder, read_json, write_json, write_text
from gdod.experiments.compare import prepare_data
from gdod.experiments.predictions import write_predictions
from gdod.experiments.rivals.boosters import RIVALS, Booster, BoosterOptions, Fitted, Job, Predicted
from gdod.experiments.rivals.config import RivalConfig, rival_options
from gdod.experiments.rivals.inputs import RivalInput, Rows, load_input
from gdod.schema import Task
from gdod.training.evaluation import Predictions
from gdod.training.record import finite
from gdod.training.run import Folder, data_content, versions
from gdod.training.seeds import seed_for

if TYPE_CHECKING:
    from gdod.training.progress import Progress


def train_rival(
    config: RivalConfig,
    folder: Folder,
    *,
    progress: "Progress",
    test: bool = True,
    threads: int | None = None,
    command: Sequence[str] | None = None,
    predictions: bool = False,
) -> dict[str, Any]:
    """Train a rival's models, write a run folder, and return the content of its `result.json`.

    There is nothing to go on from in a run that was stopped: its models are trained anew.

    Args:
        config: what to do.
        folder: the folder of the run.
        progress: told after how many tasks the run is.
        test: whether the test part is looked at, at the end.
        threads: the number of threads; None: that of the configuration.
        command: what `about.json` says that the run was started with.
        predictions: whether the run keeps its predictions for the rows of the validation and the test part.
    """
    booster, options = RIVALS[config.method.name], rival_options(config.method)
    threads = threads or config.threads or torch.get_num_threads()
    import_module(booster.package)  # which is no part of the training time
    data = load_input(config.data, test=test)
    models = folder.path / "models"
    rmtree(models, ignore_errors=True)
    make_folder(models)
    write_json(folder.about, _about(config, booster, options, threads, command))
    write_json(folder.config, config.model_dump(mode="json"))
    progress.start(len(data.tasks), 0)
    fitted: dict[str, Trained] = {}
    started = time.perf_counter()
    for place, task in enumerate(data.tasks, 1):
        fitted[task.name] = train_task(booster, options, task, data, config, threads)
        progress.evaluated(place, {"mean_auc": None}, False)
    seconds = time.perf_counter() - started
    for place, (name, one) in enumerate(fitted.items()):
        one.model.save(models / f"{place}-{re.sub(r'[^A-Za-z0-9_-]+', '', name)[:40]}.{one.file_ending}")
    validation, tested = (_predictions(fitted, part, data.tasks) for part in (data.validation, data.test))
    if predictions:
        write_predictions(folder, {"validation": validation, "test": tested})
    calibrated = tested or validation
    result: dict[str, Any] = {
        "seconds": seconds,
        "bytes": sum(path.stat().st_size for path in models.iterdir()),
        "validation": None if validation is None else validation.metrics(weighted=config.weighted_metrics),
        "test": None if tested is None else tested.metrics(weighted=config.weighted_metrics),
        "calibration": {} if calibrated is None else calibrated.calibration(),
        "rounds": {name: one.model.rounds for name, one in fitted.items()},
        "notes": [f"{name}: {one.note}" for name, one in fitted.items() if one.note],
    }
    write_json(folder.result, finite(result))
    return read_json(folder.result, "the result of a run")


def describe(booster: Booster, options: BoosterOptions) -> str:
    """Return a sentence on how a rival is set."""
    own = ", ".join(f"{name}={value:g}" for name, value in options.given.items())
    return (
        f"{booster.title} {version(booster.package)}, one model a task: at most {options.rounds:,} rounds, early "
        f"stopping after {options.patience} rounds without a better AUC (of tasks that are not binary: loss) on the "
        f"validation part; {f'{own}; ' if own else ''}all else its defaults"
    )


@dataclass(frozen=True)
class _Constant(Fitted):
    """What stands in for a model where there is nothing to learn."""

    value: tuple[float, ...]
    """The prediction: a probability or a number, or the probability of each class."""
    rounds: int = 0

    def predict(self, rows: Rows) -> Predicted:
        values = np.array(self.value)
        return np.tile(values, (len(rows), 1)) if len(values) > 1 else np.full(len(rows), values[0])

    def save(self, path: Path) -> None:
        write_text(path, json.dumps(self.value) + "\n")


@dataclass(frozen=True)
class Trained:
    """A model of a task, and what was out of the ordinary."""

    model: Fitted
    file_ending: str
    note: str = ""


def train_task(
    booster: Booster, options: BoosterOptions, task: Task, data: RivalInput, config: RivalConfig, threads: int
) -> Trained:
    """Train the model of one task; where there is nothing to learn or to stop by, its note says what was done."""
    train = data.train.labelled(task.name, weighted=config.sample_weights)
    validation = data.validation.labelled(task.name, weighted=config.weighted_metrics)
    labels, seen = train.labels[task.name], validation.labels[task.name]
    weights = np.ones(len(labels)) if train.weights is None else train.weights.astype(np.float64)
    if len(np.unique(labels[weights > 0])) < 2 or train.tells_nothing:
        why = "all rows are alike" if train.tells_nothing else "all labels are the same"
        constant = _Constant(_rate(task, labels, weights))
        return Trained(constant, "json", f"{why} in training, so a constant is predicted")
    note, by_auc, rounds = "", task.kind == "binary", options.rounds
    if not len(seen):
        rounds = min(booster.unstopped, rounds)
        note = f"no validation row has a label, so training takes all of {rounds} rounds"
    elif by_auc and len(np.unique(seen)) < 2:
        note, by_auc = "validation has one class only and so no AUC; training goes by the log loss", False
    job = Job(
        task=task,
        train=train,
        validation=validation if len(seen) else None,
        by_auc=by_auc and len(seen) > 0,
        rounds=rounds,
        options=options,
        seed=seed_for("rival", config.seed),
        threads=threads,
    )
    return Trained(booster.fit(job), booster.file_ending, note)


def _rate(task: Task, labels: NDArray[np.float32], weights: NDArray[np.float64]) -> tuple[float, ...]:
    """Return the weighted mean of the labels, or the share of each class."""
    weights = weights if weights.sum() > 0 else np.ones(len(labels))
    if task.kind != "multiclass":
        return (float(np.average(labels, weights=weights)),)
    shares = np.bincount(labels.astype(np.int64), weights, minlength=task.classes or 0) / weights.sum()
    return tuple(shares.tolist())


def _predictions(fitted: dict[str, Trained], rows: Rows | None, tasks: tuple[Task, ...]) -> Predictions | None:
    if rows is None or not len(rows):
        return None
    return Predictions(
        tasks,
        {name: torch.from_numpy(labels) for name, labels in rows.labels.items()},
        {name: torch.from_numpy(one.model.predict(rows)) for name, one in fitted.items()},
        None if rows.weights is None else torch.from_numpy(rows.weights),
    )


def _about(
    config: RivalConfig, booster: Booster, options: BoosterOptions, threads: int, command: Sequence[str] | None
) -> dict[str, Any]:
    """Return the content of `about.json`: as that of a network on the comparison's data, and the rival's settings."""
    return {
        "command": list(command or ()),
        "versions": {**versions(), booster.package: version(booster.package)},
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        **data_content(prepare_data(config)),
        "model": {"name": config.model.name},
        "method": {"name": config.method.name, "options": config.method.options},
        "rival": {"settings": describe(booster, options)},
        "seed": config.seed,
        "ranks": 1,
        "threads": threads,
        "device": "cpu",
    }
