"""The units in which regression labels are learned: their mean is 0 and their standard deviation is 1 in training.

A label such as an age in years would otherwise drown the log losses of other tasks. Nothing but the loss sees these
units: predictions, metrics and exported models are in those of the labels.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from typing import TYPE_CHECKING

from torch import Tensor

from gdod._files import read_json
from gdod.data.parts.part import Part
from gdod.schema import LabelScale, Task
from gdod.training.config import TrainConfig
from gdod.training.run import Folder

if TYPE_CHECKING:
    from gdod.data.dataset import Dataset

# Labels that are summed at once. It is the same for data in memory and for streamed data, so the sums are, too.
_BLOCK = 16_384


def run_scales(config: TrainConfig, dataset: "Dataset", folder: Folder) -> dict[str, LabelScale]:
    """Return the scales of the run in the folder, none if it is of a version without them; those of a new run.

    An update keeps those of the run that it goes on from, which are its encoder's.
    """
    from gdod.data.preparing.encoder import label_scales

    if folder.is_run and folder.encoder.exists():
        return label_scales(read_json(folder.encoder, "how the run's tables become ids"))
    if config.update is not None:
        return dict(dataset.encoder.label_scales)
    if not any(task.kind == "regression" for task in dataset.tasks):
        return {}
    return fit_label_scales(dataset.train, dataset.tasks, weighted=config.sample_weights)


def with_label_scales(dataset: "Dataset", scales: Mapping[str, LabelScale]) -> "Dataset":
    """Return the data with tasks that are learned in these units."""
    encoder = replace(dataset.encoder, label_scales=dict(scales))
    return replace(dataset, encoder=encoder, tasks=encoder.tasks) if scales else dataset


def fit_label_scales(part: Part, tasks: Sequence[Task], *, weighted: bool) -> dict[str, LabelScale]:
    """Return the mean and the deviation of the labels of each regression task in a part of the data.

    Args:
        part: the training part, which is gone through once.
        tasks: all tasks.
        weighted: whether examples count by their weights, if there are any, as they do in the loss.
    """
    moments = {number: _Moments() for number, task in enumerate(tasks) if task.kind == "regression"}
    for minibatch in part.batches(_BLOCK):
        weights = minibatch.weights if weighted else None  # [B], or [K, B] if a task has weights of its own
        for number, one in moments.items():
            own = weights if weights is None or weights.dim() == 1 else weights[number]
            one.add(minibatch.labels[tasks[number].name], own)
    return {tasks[number].name: one.scale() for number, one in moments.items()}


@dataclass
class _Moments:
    """The weight, the mean and the sum of squares around it of all labels so far (Chan, Golub and LeVeque 1979)."""

    weight: float = 0.0
    mean: float = 0.0
    squares: float = 0.0

    def add(self, labels: Tensor, weights: Tensor | None) -> None:
        known = ~labels.isnan()
        values = labels[known].double()
        factors = values.new_ones(len(values)) if weights is None else weights[known].double()
        added = float(factors.sum())
        if not added:
            return
        mean = float((factors * values).sum()) / added
        squares = float((factors * (values - mean) ** 2).sum())
        weight, apart = self.weight + added, mean - self.mean
        self.squares += squares + apart**2 * self.weight * added / weight
        self.mean += apart * added / weight
        self.weight = weight

    def scale(self) -> LabelScale:
        sd = sqrt(self.squares / self.weight) if self.weight else 0.0
        # Rounding leaves a constant label with a tiny spread.
        return LabelScale(self.mean, sd if sd > 1e-9 * abs(self.mean) else 1.0)
