"""The record of a run while it trains: lines of `metrics.jsonl`, and curves for TensorBoard."""

import json
import math
import os
import warnings
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

Line = dict[str, Any]
"""One line of `metrics.jsonl`: losses at a log time (kind "train"), or metrics of an evaluation (kind "evaluation")."""


class Record:
    """A writer that appends lines to `metrics.jsonl`, and their numbers to curves if there are any.

    Args:
        length: bytes of the file to keep: those of the checkpoint that a run resumes from.

    Attributes:
        lost: how many of these bytes are no longer there, since somebody cut or removed the file. The lines that are
            left are kept.
    """

    def __init__(self, path: Path, length: int, curves: "Curves | None") -> None:
        path.touch()
        kept = length if path.stat().st_size >= length else _whole_lines(path)
        os.truncate(path, kept)
        self.lost = length - kept
        self.file = path.open("ab")
        self.curves = curves

    def add(self, line: Line) -> None:
        self.file.write(json.dumps(finite(line), allow_nan=False, ensure_ascii=False).encode() + b"\n")
        self.file.flush()
        if self.curves is not None:
            self.curves.add(line)

    def to_disk(self) -> int:
        """Bring all lines to the disk, and return how many bytes they are."""
        os.fsync(self.file.fileno())
        return self.file.tell()

    def close(self) -> None:
        self.file.close()
        if self.curves is not None:
            self.curves.close()


def _whole_lines(path: Path) -> int:
    """Return the length of a file without a last line that was cut off."""
    return path.read_bytes().rfind(b"\n") + 1


class Curves:
    """Curves of the recorded numbers in TensorBoard; points from ``first_step`` on are replaced."""

    def __init__(self, folder: Path, first_step: int) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # tensorboard and what it imports warn about each other
            from tensorboard.compat.proto.summary_pb2 import Summary
            from torch.utils.tensorboard import SummaryWriter
            from torch.utils.tensorboard.summary import scalar

        self.writer: SummaryWriter = SummaryWriter(str(folder), purge_step=first_step)
        self._summary: Callable[..., Any] = Summary
        self._scalar: Callable[..., Any] = scalar

    def add(self, line: Line) -> None:
        """Add a line's points as one event: with many tasks an event each takes as long as some steps."""
        known = {name: value for name, value in points(line).items() if value is not None and math.isfinite(value)}
        values = [one for name, value in known.items() for one in self._scalar(name, value, new_style=True).value]
        assert self.writer.file_writer is not None
        self.writer.file_writer.add_summary(self._summary(value=values), line["step"])

    def close(self) -> None:
        self.writer.close()


def points(line: Line) -> dict[str, float | None]:
    """Return the points that a line of `metrics.jsonl` adds to the curves, by the curve's name."""
    return _evaluation_points(line) if line["kind"] == "evaluation" else _training_points(line)


def _evaluation_points(line: Line) -> dict[str, float | None]:
    part = line["part"]
    values = {f"{part}/mean_auc": line["mean_auc"]}
    for task, metrics in line["tasks"].items():
        for name in ("auc", "log_loss", "rmse", "mae", "accuracy"):
            if name in metrics:
                values[f"{part}/{name}/{task}"] = metrics[name]
    return values


def _training_points(line: Line) -> dict[str, float | None]:
    values = {"loss/sum": line["loss"], "lr": line["lr"]}
    values |= {f"loss/{task}": loss for task, loss in line["losses"].items()}
    if conflict := line["conflict"]:
        tasks = list(line["losses"])
        values |= {f"conflict/{name}": conflict[name] for name in ("energy_kept", "directions_kept")}
        values |= {f"conflict/length/{task}": norm for task, norm in zip(tasks, conflict["norms"], strict=True)}
        for (first, one), (second, other) in combinations(enumerate(tasks), 2):
            values[f"conflict/cosine/{one}-{other}"] = conflict["cosines"][first][second]
    return values


def finite(value: Any) -> Any:
    """Return a copy of nested dictionaries and lists with None for numbers that are not finite, which JSON lacks."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: finite(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [finite(one) for one in value]
    return value
