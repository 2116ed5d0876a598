"""What a run writes down as it goes: `metrics.jsonl`, and curves for TensorBoard."""

import json
import math
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    pass

Line = dict[str, Any]


class Record:
    """Lines of `metrics.jsonl`, cut back to a checkpoint's length where a run goes on."""

    def __init__(self, path: Path, length: int, curves: "Curves | None") -> None:
        path.touch()
        os.truncate(path, length)
        self.file = path.open("ab")
        self.curves = curves

    def add(self, line: Line) -> None:
        self.file.write(json.dumps(finite(line), allow_nan=False, ensure_ascii=False).encode() + b"\n")
        self.file.flush()
        if self.curves is not None:
            self.curves.add(line)

    def to_disk(self) -> int:
        """Makes sure that all lines are on the disk; returns how many bytes they are."""
        os.fsync(self.file.fileno())
        return self.file.tell()

    def close(self) -> None:
        self.file.close()
        if self.curves is not None:
            self.curves.close()


class Curves:
    """The same numbers as curves in TensorBoard."""

    def __init__(self, folder: Path, first_step: int) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # tensorboard and what it imports warn about each other
            from torch.utils.tensorboard import SummaryWriter

            self.writer: SummaryWriter = SummaryWriter(str(folder), purge_step=first_step)

    def add(self, line: Line) -> None:
        for name, value in points(line).items():
            if value is not None and math.isfinite(value):
                self.writer.add_scalar(name, value, line["step"], new_style=True)

    def close(self) -> None:
        self.writer.close()


def points(line: Line) -> dict[str, float | None]:
    """The curves that a line adds a point to."""
    found: dict[str, float | None] = {}
    if line["kind"] == "evaluation":
        part = line["part"]
        found[f"{part}/mean_auc"] = line["mean_auc"]
        for task, metrics in line["tasks"].items():
            for name in ("auc", "log_loss", "rmse", "mae", "accuracy"):
                if name in metrics:
                    found[f"{part}/{name}/{task}"] = metrics[name]
        return found
    found |= {"loss/sum": line["loss"], "lr": line["lr"]}
    found |= {f"loss/{task}": value for task, value in line["losses"].items()}
    if conflict := line["conflict"]:
        tasks = list(line["losses"])
        found |= {f"conflict/{name}": conflict[name] for name in ("energy_kept", "directions_kept")}
        found |= {f"conflict/length/{task}": value for task, value in zip(tasks, conflict["norms"], strict=True)}
        found |= _pairs(tasks, conflict["cosines"])
    return found


def _pairs(tasks: Sequence[str], cosines: Sequence[Sequence[float]]) -> dict[str, float | None]:
    return {
        f"conflict/cosine/{one}-{other}": cosines[first][second]
        for first, one in enumerate(tasks)
        for second, other in enumerate(tasks)
        if first < second
    }


def finite(value: Any) -> Any:
    """The same with None for what JSON has no number for."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: finite(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [finite(one) for one in value]
    return value
