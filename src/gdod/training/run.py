"""A run on disk, a folder that describes itself completely; and a trained model read from it, ready to predict."""

import platform
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property, partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from gdod._files import digest, read_json
from gdod.errors import InputError
from gdod.models import Model, Task, build
from gdod.training import checkpoint, lock
from gdod.training.config import TrainConfig, check_stored, checksum
from gdod.training.device import find_device

if TYPE_CHECKING:
    import polars as pl

    from gdod.data.dataset import Dataset
    from gdod.data.preparing.encoder import Encoder
    from gdod.training.calibration import Calibrator

_PACKAGES = ("gdod", "torch", "torchjd", "numpy", "polars", "pyarrow", "pydantic")


class Folder:
    """The paths of a run's files, all under fixed names below one folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.json"
        self.about = path / "about.json"
        self.encoder = path / "encoder.json"
        self.statistics = path / "statistics.parquet"
        self.counts = path / "counts.parquet"
        self.metrics = path / "metrics.jsonl"
        self.checkpoints = path / "checkpoints"
        self.last = self.checkpoints / "last.pt"
        self.best = self.checkpoints / "best.pt"
        self.result = path / "result.json"
        self.tensorboard = path / "tensorboard"
        self.lock = path / lock.NAME

    @property
    def is_run(self) -> bool:
        return self.config.exists()

    @property
    def is_finished(self) -> bool:
        return self.result.exists()

    def described_files(self) -> dict[str, str]:
        """Return the checksums of the files that say how tables become ids, by name."""
        return {path.name: digest(path) for path in (self.encoder, self.statistics) if path.exists()}

    def check_unchanged(self) -> None:
        """Raise if a file that says how tables become ids is not as the run wrote it; old runs do not tell."""
        known = read_json(self.about, "a description of the run").get("checksums") if self.about.exists() else None
        here = self.described_files()
        for name, value in known.items() if isinstance(known, dict) else ():
            if name in here and here[name] != value:
                raise InputError(
                    f"{self.path / name} is damaged or was changed since the run wrote it; put a copy in its place, or "
                    "train again in another folder with --out"
                )

    def read_config(self) -> TrainConfig:
        return check_stored(read_json(self.config, "the configuration of a run"))


def name_of(config: TrainConfig) -> str:
    """Return the name of the folder for a run that was given none."""
    data = re.sub(r"[^\w.-]+", "-", Path(config.data.source).stem).strip("-.") or "data"
    return f"{data}-{config.model.name}-{config.method.name}-seed{config.seed}"


def resume_command(folder: Path) -> str:
    """Return the shell command that resumes the run in this folder."""
    return f"gdod train --resume --out {shlex.quote(str(folder))}"


def about(
    config: TrainConfig,
    dataset: "Dataset",
    model: nn.Module,
    device: torch.device,
    ranks: int,
    command: Sequence[str],
    chosen: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the content of `about.json`: what is run on which data, with which versions, and what a recipe chose."""
    return {
        "command": list(command),
        "versions": versions(),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        **data_content(dataset),
        "model": {"name": config.model.name, "parameters": sum(one.numel() for one in model.parameters())},
        "method": {"name": config.method.name, "options": config.method.options},
        "seed": config.seed,
        "ranks": ranks,
        "threads": torch.get_num_threads(),
        "device": str(device),
        "precision": config.precision,
        **({"recipe": {"name": config.recipe, "chosen": list(chosen)}} if chosen else {}),
    }


def data_content(dataset: "Dataset") -> dict[str, Any]:
    """Return what `about.json` says of the data and the tasks."""
    parts = {"train": dataset.train, "validation": dataset.validation, "test": dataset.test}
    fold = {} if dataset.fold is None else {"fold": dataset.fold.model_dump(), "whole": dataset.whole}
    return {
        "data": {
            "name": dataset.name,
            "fingerprint": dataset.fingerprint,
            **fold,
            "rows": {name: len(part) for name, part in parts.items()},
            "notes": list(dataset.notes),
        },
        "tasks": [{"name": task.name, "kind": task.kind} for task in dataset.tasks],
    }


def versions() -> dict[str, str]:
    """Return the versions of Python, of the platform, and of the packages that results may depend on."""
    installed = {"python": platform.python_version(), "platform": f"{sys.platform} {platform.machine()}"}
    for name in _PACKAGES:
        try:
            installed[name] = version(name)
        except PackageNotFoundError:
            continue
    return installed


@dataclass(frozen=True)
class Run:
    """A trained model, with all that is needed to use it on tables."""

    folder: Folder
    config: TrainConfig
    model: Model
    encoder: "Encoder"
    step: int
    """The training step after which the weights were saved."""
    calibrators: "Mapping[str, Calibrator]" = field(default_factory=dict)
    """What fits the probabilities of tasks to the validation part, if the run was to be calibrated."""

    @property
    def tasks(self) -> tuple[Task, ...]:
        return self.model.tasks

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @cached_property
    def result(self) -> dict[str, Any] | None:
        """The content of `result.json`; None if the run has not finished."""
        return read_json(self.folder.result, "the result of a run") if self.folder.is_finished else None

    def predict(self, frame: "pl.DataFrame") -> "pl.DataFrame":
        """Return a column of probabilities or numbers for each task; for several classes, a column for each class."""
        from gdod.training.predict import predict_frame

        return predict_frame(self, frame)

    def evaluate(self, frame: "pl.DataFrame") -> dict[str, Any]:
        """Return the metrics on a table with labels: {"rows", "tasks", "mean_auc"}."""
        from gdod.training.predict import evaluate_frame

        return evaluate_frame(self, frame)


def load_run(path: str | Path, *, weights: str = "best", device: str = "cpu") -> Run:
    """Read a run from its folder, ready to predict: `load_run("runs/ads").predict(frame)`.

    Args:
        path: the folder that `gdod train` wrote, of a finished run or not.
        weights: "best", those that were best on validation, or "last".
        device: "cpu", "cuda", … or "auto", a GPU if there is one.
    """
    from gdod.data.preparing.encoder import Encoder

    folder = Folder(Path(path))
    if weights not in ("best", "last"):
        raise InputError(f"weights={weights!r}; expected 'best' or 'last'")
    place = find_device(device)
    if not folder.is_run:
        raise InputError(f"{folder.path} is no run: it has no config.json; expected a folder that gdod train wrote")
    config = folder.read_config()
    folder.check_unchanged()
    try:
        encoder = Encoder.load(folder.path, "how the run's tables become ids")
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{folder.encoder} is damaged: {type(error).__name__}: {error}") from error
    path = folder.best if weights == "best" else folder.last
    content = checkpoint.load(path)
    checkpoint.check_settings(content, checksum(config), path)
    state = content.get("average", content.get("model"))  # "last" as it was evaluated, too
    make = partial(build, config.model.name, encoder.model_schema, encoder.tasks, **model_options(config))
    with torch.device("meta"):  # sizes alone, which cost nothing however large they are
        expected = make().state_dict()
    state = checkpoint.check_weights(state, expected, path)
    model = make(seed=config.seed)
    model.load_state_dict(state)
    step = content["step"] if "step" in content else content.get("state", {}).get("step")
    calibrators = {}
    if weights == "best" and folder.is_finished:
        from gdod.training.calibration import read_calibrators

        binary = [task.name for task in encoder.tasks if task.kind == "binary"]
        calibrators = read_calibrators(read_json(folder.result, "the result of a run"), binary)
    return Run(folder, config, model.to(place).eval(), encoder, step, calibrators)


def decay_note(config: TrainConfig) -> str | None:
    """Return a note if weight decay does not reach all parameters, else None."""
    if config.optimizer.weight_decay and model_options(config).get("sparse"):
        return "sparse-adam gives tables with sparse gradients no weight decay, only the other parameters; adam would"
    return None


def model_options(config: TrainConfig) -> dict[str, Any]:
    """Return the model's options; with the optimizer "sparse-adam", ``sparse`` is on unless it is given."""
    options = dict(config.model.options)
    if config.optimizer.name == "sparse-adam":
        options.setdefault("sparse", True)
    return options
