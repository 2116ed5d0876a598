"""A run on disk: a folder that says everything about itself. And a finished one in memory, ready to predict."""

import platform
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from gdod._files import read_json, write_json
from gdod.errors import InputError
from gdod.models import Model, Task, build
from gdod.training import checkpoint
from gdod.training.config import TrainConfig, check_config
from gdod.training.device import find_device

if TYPE_CHECKING:
    import polars as pl

    from gdod.data.dataset import Dataset
    from gdod.data.preparing.encoder import Encoder

_PACKAGES = ("gdod", "torch", "torchjd", "numpy", "polars", "pyarrow", "pydantic")


@dataclass(frozen=True)
class Folder:
    """The files of a run, all under fixed names below one folder."""

    path: Path

    @property
    def config(self) -> Path:
        return self.path / "config.json"

    @property
    def about(self) -> Path:
        return self.path / "about.json"

    @property
    def encoder(self) -> Path:
        return self.path / "encoder.json"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def last(self) -> Path:
        return self.checkpoints / "last.pt"

    @property
    def best(self) -> Path:
        return self.checkpoints / "best.pt"

    @property
    def result(self) -> Path:
        return self.path / "result.json"

    @property
    def tensorboard(self) -> Path:
        return self.path / "tensorboard"

    @property
    def is_run(self) -> bool:
        return self.config.exists()

    @property
    def is_finished(self) -> bool:
        return self.result.exists()

    def read_config(self) -> TrainConfig:
        return check_config(read_json(self.config, "the configuration of a run"))

    def write_about(self, content: dict[str, Any]) -> None:
        write_json(self.about, content)


def name_of(config: TrainConfig) -> str:
    """A folder's name for a run that was given none."""
    data = re.sub(r"[^\w.-]+", "-", Path(config.data.source).stem).strip("-.") or "data"
    return f"{data}-{config.model.name}-{config.method.name}-seed{config.seed}"


def about(
    config: TrainConfig, dataset: "Dataset", model: nn.Module, device: torch.device, ranks: int, command: Sequence[str]
) -> dict[str, Any]:
    """What was run on what, and with which versions."""
    parts = {"train": dataset.train, "validation": dataset.validation, "test": dataset.test}
    return {
        "command": list(command),
        "versions": versions(),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "data": {
            "name": dataset.name,
            "fingerprint": dataset.fingerprint,
            "rows": {name: len(part) for name, part in parts.items()},
            "notes": list(dataset.notes),
        },
        "tasks": [{"name": task.name, "kind": task.kind} for task in dataset.tasks],
        "model": {
            "name": config.model.name,
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
        },
        "method": {"name": config.method.name, "options": config.method.options},
        "seed": config.seed,
        "ranks": ranks,
        "threads": torch.get_num_threads(),
        "device": str(device),
        "precision": config.precision,
    }


def versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "platform": f"{sys.platform} {platform.machine()}"}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


@dataclass(frozen=True)
class Run:
    """A trained model with all that is needed to use it."""

    folder: Folder
    config: TrainConfig
    model: Model
    encoder: "Encoder"
    step: int
    """The training step that the weights are from."""

    @property
    def tasks(self) -> tuple[Task, ...]:
        return self.model.tasks

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @cached_property
    def result(self) -> dict[str, Any] | None:
        """Metrics of the finished run; None if it has not finished."""
        return read_json(self.folder.result, "the result of a run") if self.folder.is_finished else None

    def predict(self, frame: "pl.DataFrame") -> "pl.DataFrame":
        """One column for each task: a probability, or a number; for several classes one column each."""
        from gdod.training.predict import predict_frame

        return predict_frame(self, frame)

    def evaluate(self, frame: "pl.DataFrame") -> dict[str, Any]:
        """Metrics on a table with labels."""
        from gdod.training.predict import evaluate_frame

        return evaluate_frame(self, frame)


def load_run(path: str | Path, *, weights: str = "best", device: str = "cpu") -> Run:
    """A run from its folder, ready to predict: `load_run("runs/ads").predict(frame)`.

    Args:
        path: the folder that `gdod train` wrote.
        weights: "best" on validation, or "last".
        device: where the model goes: "cpu", "cuda", … or "auto", a GPU if there is one.
    """
    from gdod.data.preparing.encoder import Encoder

    folder = Folder(Path(path))
    if weights not in ("best", "last"):
        raise InputError(f"weights={weights!r}; expected 'best' or 'last'")
    place = find_device(device)
    if not folder.is_run:
        raise InputError(f"{folder.path} is no run: it has no config.json; expected a folder that gdod train wrote")
    config = folder.read_config()
    try:
        encoder = Encoder.from_json(read_json(folder.encoder, "how the run's tables become ids"))
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{folder.encoder} is damaged: {type(error).__name__}: {error}") from error
    model = build(config.model.name, encoder.model_schema, encoder.tasks, seed=config.seed, **model_options(config))
    content = checkpoint.load(folder.best if weights == "best" else folder.last)
    try:
        model.load_state_dict(content["model"])
    except (KeyError, RuntimeError) as error:
        raise InputError(f"the checkpoint in {folder.path} does not fit its configuration: {error}") from error
    step = content["step"] if "step" in content else content["state"]["step"]
    return Run(folder, config, model.to(place).eval(), encoder, step)


def decay_note(config: TrainConfig) -> str | None:
    """What weight decay does not reach, if something."""
    if config.optimizer.weight_decay and model_options(config).get("sparse"):
        return "sparse-adam gives tables with sparse gradients no weight decay, only the other parameters; adam would"
    return None


def model_options(config: TrainConfig) -> dict[str, Any]:
    """The model's options; tables have sparse gradients for the optimizer that is made for them."""
    options = dict(config.model.options)
    if config.optimizer.name == "sparse-adam":
        options.setdefault("sparse", True)
    return options
