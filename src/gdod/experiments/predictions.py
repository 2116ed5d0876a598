"""The predictions of a run for each row of the validation and the test part, kept beside its result.

They cost 4 bytes a row and a task. With them, rows can be drawn again and again without predicting again.
"""

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray

from gdod._files import read_json, write, write_json
from gdod.errors import InputError
from gdod.schema import Task
from gdod.training.evaluation import Predictions, predict_part
from gdod.training.record import finite
from gdod.training.run import Folder, load_run

if TYPE_CHECKING:
    from gdod.data import Dataset

Columns = dict[str, NDArray[np.float32]]
"""One number a row [n], by task: see `row_values`."""

_NAME = "predictions.npz"
_LEAST = 2.0**-53  # what 1 - p is told apart from 0 by


def has_predictions(folder: Folder) -> bool:
    """Return whether the run in a folder keeps its predictions."""
    return (folder.path / _NAME).exists()


def predict_parts(folder: Folder, dataset: "Dataset") -> None:
    """Predict the validation and the test part with the best weights of a finished run, and keep that.

    A run that has not looked at the test part so far gets its metrics there, too.
    """
    if has_predictions(folder):
        return
    run = load_run(folder.path)
    size = run.config.evaluation_batch
    parts = {"validation": dataset.validation, "test": dataset.test}
    predicted = {name: predict_part(run.model, part, size, run.device) for name, part in parts.items() if len(part)}
    result, tested = read_json(folder.result, "the result of a run"), predicted.get("test")
    if result["test"] is None and tested is not None:
        metrics = tested.metrics(weighted=run.config.weighted_metrics)
        write_json(folder.result, finite({**result, "test": metrics, "calibration": tested.calibration()}))
    write_predictions(folder, predicted)


def write_predictions(folder: Folder, parts: Mapping[str, Predictions | None]) -> None:
    """Keep the predictions for parts, by their names, in the folder of a run."""
    columns = {
        f"{name}/{task}": values
        for name, part in parts.items()
        if part is not None
        for task, values in row_values(part).items()
    }

    def save(file: BinaryIO) -> None:
        np.savez(file, allow_pickle=False, **columns)

    write(folder.path / _NAME, save)


def read_predictions(folder: Path, part: str, tasks: tuple[Task, ...], rows: int) -> Columns:
    """Return what a run has predicted for the rows of a part, by task; raise if that is damaged or of other rows."""
    path = folder / _NAME
    try:
        with zipfile.ZipFile(path) as archive:
            if any(one.compress_type != zipfile.ZIP_STORED for one in archive.infolist()):
                raise ValueError("its columns are packed, which they never are, and may be of any length")
        with np.load(path, allow_pickle=False) as stored:
            columns = {task.name: stored[f"{part}/{task.name}"] for task in tasks}
    except (OSError, KeyError, ValueError, MemoryError, zipfile.BadZipFile) as error:
        raise InputError(f"{path} cannot be read ({error}); remove it, and give the same command again") from error
    if any(values.shape != (rows,) for values in columns.values()):
        raise InputError(f"{path} is not for the {rows:,} rows of the {part} part; choose another folder with --out")
    return columns


def row_values(predictions: Predictions) -> Columns:
    """Return one number a row and a task, as float32, that is all that its score needs.

    Of a binary task it is the log-odds, whose order float32 keeps where probabilities are near 1; of a regression the
    predicted number; of several classes 1 where the most probable one is right, else 0.
    """
    values = {}
    for task in predictions.tasks:
        predicted = predictions.predictions[task.name].double()
        if task.kind == "binary":
            predicted = torch.logit(predicted, eps=_LEAST)
        elif task.kind == "multiclass":
            predicted = predicted.argmax(1) == predictions.labels[task.name]
        values[task.name] = predicted.float().numpy()
    return values
