"""What boosted trees are given: the columns of the table as categories and plain numbers, in the comparison's parts."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gdod.data import Dataset, FeatureOptions, Minibatch, Part, open_prepared, prepare
from gdod.schema import Task

if TYPE_CHECKING:
    from gdod.training.config import DataConfig

# Nothing that is made from labels or for networks: every value has an id of its own, and a flag says which numbers
# are missing.
_FEATURES = FeatureOptions(statistics=False, pairs=0, bins=0, rare=1, missing_flags=True)
_TOGETHER = 65_536  # rows that are read at once


@dataclass(frozen=True)
class Rows:
    """Rows of a table as boosted trees take them."""

    categories: NDArray[np.int32]
    """The ids of values, [n, C]; 0 where a value is missing or does not occur in the training part."""
    numbers: NDArray[np.float32]
    """[n, G], nan where missing. Each column is scaled, which is no matter to trees: the order stays."""
    labels: Mapping[str, NDArray[np.float32]]
    """By task, [n], nan where missing."""
    weights: NDArray[np.float32] | None
    """[n]; None: all rows count alike."""

    def __len__(self) -> int:
        return len(self.categories)

    @property
    def tells_nothing(self) -> bool:
        """Whether all rows are alike, but for their labels."""
        if not len(self):
            return True
        same_number = (self.numbers == self.numbers[0]) | (np.isnan(self.numbers) & np.isnan(self.numbers[0]))
        return bool((self.categories == self.categories[0]).all() and same_number.all())

    def labelled(self, task: str, *, weighted: bool) -> "Rows":
        """Return the rows that have the label of a task, with their weights or all alike."""
        known = ~np.isnan(self.labels[task])
        weights = self.weights if weighted else None
        if weights is not None:
            own = weights if weights.ndim == 1 else weights[list(self.labels).index(task)]
            weights = own[known]
        return Rows(self.categories[known], self.numbers[known], {task: self.labels[task][known]}, weights)


@dataclass(frozen=True)
class RivalInput:
    """The parts of a table for rivals, with the same rows as those that our models are given."""

    tasks: tuple[Task, ...]
    train: Rows
    validation: Rows
    test: Rows | None
    """None if it may not be looked at."""


def prepare_input(data: "DataConfig") -> Dataset:
    """Put the rivals' form of the data into the cache, and return it unread."""
    folder = prepare(
        data.source,
        schema=data.schema_file,
        labels=data.labels,
        folder=data.folder,
        cache=data.cache,
        features=_FEATURES,
        fold=data.fold,
        **data.options,
    )
    return open_prepared(folder, stream=True)


def load_input(data: "DataConfig", *, test: bool = True) -> RivalInput:
    """Return the parts for rivals, all in memory, since boosted trees need them there.

    A sequence, for which boosted trees have no handling, becomes its last value, a category, and its length, a number.

    Args:
        data: the data of the comparison.
        test: whether the test part is read, too.
    """
    dataset = prepare_input(data)
    return RivalInput(
        dataset.tasks,
        _read(dataset, dataset.train),
        _read(dataset, dataset.validation),
        _read(dataset, dataset.test) if test else None,
    )


def _read(dataset: Dataset, part: Part) -> Rows:
    blocks = [_rows(dataset, minibatch) for minibatch in part.batches(_TOGETHER)]
    categories, numbers = _widths(dataset)
    weights = [block.weights for block in blocks if block.weights is not None]
    return Rows(
        np.concatenate([np.zeros((0, categories), np.int32), *(block.categories for block in blocks)]),
        np.concatenate([np.zeros((0, numbers), np.float32), *(block.numbers for block in blocks)]),
        {
            task.name: np.concatenate([np.zeros(0, np.float32), *(block.labels[task.name] for block in blocks)])
            for task in dataset.tasks
        },
        np.concatenate(weights, -1) if weights else None,
    )


def _widths(dataset: Dataset) -> tuple[int, int]:
    """Return the number of columns of categories and of numbers."""
    schema, encoder = dataset.schema, dataset.encoder
    lists = len(schema.sequences)
    return len(schema.categorical) + lists, len(encoder.numeric) - len(encoder.added_names) + lists


def _rows(dataset: Dataset, minibatch: Minibatch) -> Rows:
    encoder, batch = dataset.encoder, minibatch.batch
    columns = len(encoder.numeric) - len(encoder.added_names)
    values: NDArray[np.float32] = batch.numeric.numpy()
    numbers = values[:, :columns].copy()
    for at, name in enumerate(encoder.added.flags if encoder.added is not None else ()):
        # The flags are the first of the added fields.
        numbers[values[:, columns + at] == 1, encoder.numeric.index(name)] = np.nan
    categories = [batch.categorical.numpy()]
    lengths = []
    for sequence in batch.sequences:
        ids = sequence.numpy()
        rows, last = np.arange(len(ids)), ids.shape[1] - 1 - np.argmax(ids[:, ::-1] > 0, axis=1)
        categories.append(ids[rows, last][:, None])
        lengths.append((ids > 0).sum(1, keepdims=True))
    return Rows(
        np.concatenate(categories, 1).astype(np.int32),
        np.concatenate([numbers, *lengths], 1).astype(np.float32),
        {name: labels.numpy() for name, labels in minibatch.labels.items()},
        None if minibatch.weights is None else minibatch.weights.numpy(),
    )
