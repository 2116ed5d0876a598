"""Scores of predictions on the rows of a part, and what they would be on rows drawn again (the bootstrap).

The score of a binary task is its AUC, of a regression R², of several classes accuracy: higher is better, and it has no
unit. An AUC on drawn rows is that of its first-order expansion (DeLong et al. 1988): each positive's share of negatives
below it, and each negative's share of positives above it, averaged over the drawn rows. So a run costs a sort and
a matrix product, not a sort for each draw.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gdod.schema import Task

if TYPE_CHECKING:
    from gdod.data import Part

Floats = NDArray[np.float64]
Numbers = NDArray[np.float32] | Floats

METRICS = {"binary": "AUC", "regression": "R²", "multiclass": "accuracy"}
"""What the score of each kind of task is called."""
_TOGETHER = 65_536  # rows that are read at once
_DRAWS, _FEWEST, _MOST_COUNTS = 1000, 200, 200_000_000  # draws of all rows, at least, and bytes to keep them in
_BLOCK = 64  # draws that are multiplied at once


@dataclass(frozen=True)
class Scored:
    """Scores of one run, or means of several."""

    scores: Floats
    """By task, [K]."""
    drawn: Floats
    """By draw and task, [B, K]; B is 0 if no rows were drawn."""


@dataclass(frozen=True)
class PartRows:
    """The labels of a part, and how much its rows count."""

    tasks: tuple[Task, ...]
    labels: Mapping[str, NDArray[np.float32]]
    """By task, [n], nan where missing."""
    weights: NDArray[np.float32] | None = None
    """[n]; None: all rows count alike."""
    counts: NDArray[np.uint8] | None = None
    """[B, n]: how often each row is in each draw; None: no rows are drawn."""

    @classmethod
    def read(cls, part: "Part", tasks: Sequence[Task], *, weighted: bool = False) -> "PartRows":
        """Read the labels of a part; ``weighted``: and its weights, if it has some."""
        labels: dict[str, list[NDArray[np.float32]]] = {task.name: [np.zeros(0, np.float32)] for task in tasks}
        weights: list[NDArray[np.float32]] = []
        for batch in part.batches(_TOGETHER):  # one after the other: the input of all may not fit into memory
            for name, read in labels.items():
                read.append(batch.labels[name].numpy())
            if weighted and batch.weights is not None:
                weights.append(batch.weights.numpy())
        joined = {name: np.concatenate(read) for name, read in labels.items()}
        return cls(tuple(tasks), joined, np.concatenate(weights) if weights else None)

    def __len__(self) -> int:
        return len(next(iter(self.labels.values())))

    def draw(self, random: np.random.Generator, draws: int | None = None) -> "PartRows":
        """Return the rows with draws of as many of them, with replacement; fewer draws if there are very many rows."""
        rows = len(self)
        draws = draws or max(_FEWEST, min(_DRAWS, _MOST_COUNTS // rows))
        counts = np.empty((draws, rows), np.uint8)
        for draw in range(draws):
            counts[draw] = np.minimum(np.bincount(random.integers(0, rows, rows), minlength=rows), 255)
        return PartRows(self.tasks, self.labels, self.weights, counts)

    def score(self, predicted: Mapping[str, Numbers]) -> Scored:
        """Return the scores of predictions [n] by task, as `gdod.experiments.predictions` keeps them."""
        asked = [_SCORES[task.kind](self, task.name, predicted[task.name].astype(np.float64)) for task in self.tasks]
        widths = np.cumsum([one.columns.shape[1] for one in asked])[:-1]
        sums = np.split(self._drawn_sums(np.concatenate([one.columns for one in asked], 1)), widths, 1)
        drawn = [one.drawn(own) for one, own in zip(asked, sums, strict=True)]
        return Scored(np.array([one.score for one in asked]), np.stack(drawn, 1))

    def chance(self) -> Floats:
        """Return what predictions that know nothing score: by task, [K]."""
        least = {"binary": lambda task: 0.5, "regression": lambda task: 0.0}
        return np.array([least.get(task.kind, lambda task: 1 / (task.classes or 2))(task) for task in self.tasks])

    @cached_property
    def _known(self) -> dict[str, NDArray[np.bool_]]:
        """Which rows have a label of each task, [n]."""
        known = {task.name: ~np.isnan(self.labels[task.name]) for task in self.tasks}
        for task in self.tasks:
            if task.kind == "multiclass":
                known[task.name] &= self.labels[task.name] >= 0
        return known

    @cached_property
    def _row_weights(self) -> Floats:
        return np.ones(len(self)) if self.weights is None else self.weights.astype(np.float64)

    def _drawn_sums(self, columns: Floats) -> Floats:
        """Return the sums over the rows of each draw, [B, C], of columns [n, C]."""
        counts = np.zeros((0, len(self)), np.uint8) if self.counts is None else self.counts
        sums = np.empty((len(counts), columns.shape[1]))
        for first in range(0, len(counts), _BLOCK):
            sums[first : first + _BLOCK] = counts[first : first + _BLOCK].astype(np.float64) @ columns
        return sums

    @cached_property
    def _totals(self) -> dict[str, Floats]:
        """The drawn weights of positives and of negatives of each binary task, [B, 2]."""
        totals = {}
        for task in self.tasks:
            if task.kind == "binary":
                label, known = self.labels[task.name], self._known[task.name]
                sides = np.stack([known & (label > 0.5), known & (label <= 0.5)], 1)
                totals[task.name] = self._drawn_sums(sides * self._row_weights[:, None])
        return totals

    def _auc(self, task: str, score: Floats) -> "_TaskScore":
        label, known = self.labels[task], self._known[task]
        positive, negative = known & (label > 0.5), known & (label <= 0.5)
        weights = self._row_weights
        below = _share_below(score[positive], score[negative], weights[negative])
        above = 1 - _share_below(score[negative], score[positive], weights[positive])
        auc = float(np.average(below, weights=weights[positive]))
        columns = np.zeros((len(self), 2))
        columns[positive, 0], columns[negative, 1] = below - auc, above - auc
        totals = self._totals[task]
        # A draw without a positive, or without a negative, tells nothing.
        return _TaskScore(auc, columns * weights[:, None], lambda sums: auc + _ratio(sums, totals, 0).sum(1))

    def _accuracy(self, task: str, right: Floats) -> "_TaskScore":
        known = self._known[task]
        weights = self._row_weights * known
        accuracy = float(np.average(right[known], weights=weights[known]))
        columns = np.stack([weights * np.where(known, right, 0), weights], 1)
        return _TaskScore(accuracy, columns, lambda sums: _ratio(sums[:, 0], sums[:, 1], accuracy))

    def _r_squared(self, task: str, predicted: Floats) -> "_TaskScore":
        known = self._known[task]
        weights, label = self._row_weights * known, np.where(known, self.labels[task], 0).astype(np.float64)
        label -= np.average(label[known], weights=weights[known])  # or squares of large labels lose their digits
        error = np.where(known, self.labels[task] - predicted, 0) ** 2
        left = float((weights * error).sum() / (weights * label**2).sum())  # of the variance

        def drawn(sums: Floats) -> Floats:
            spread = sums[:, 1] - _ratio(sums[:, 2], sums[:, 3], 0) * sums[:, 2]
            return 1 - _ratio(sums[:, 0], spread, left)

        columns = np.stack([weights * error, weights * label**2, weights * label, weights], 1)
        return _TaskScore(1 - left, columns, drawn)


@dataclass(frozen=True)
class _TaskScore:
    """The score of a task, and how its drawn ones come from sums over drawn rows."""

    score: float
    columns: Floats
    """What is summed over the rows of each draw, [n, C]."""
    drawn: Callable[[Floats], Floats]
    """The scores [B] of sums [B, C]."""


_SCORES: dict[str, Callable[[PartRows, str, Floats], _TaskScore]] = {
    "binary": PartRows._auc,
    "multiclass": PartRows._accuracy,
    "regression": PartRows._r_squared,
}


def over_seeds(runs: Sequence[Scored], seeds: Floats) -> Scored:
    """Return the mean over runs with different seeds, with draws of rows and of seeds, whose deviations are added.

    Args:
        runs: the S runs.
        seeds: [B, S], from `draw_seeds`.
    """
    scores = np.stack([run.scores for run in runs])  # [S, K]
    mean = scores.mean(0)
    rows = np.mean([run.drawn for run in runs], axis=0)  # [B, K]
    return Scored(mean, rows + seeds @ (scores - mean))  # [B, S] x [S, K] -> [B, K]


def draw_seeds(random: np.random.Generator, draws: int, seeds: int) -> Floats:
    """Return factors [B, S] that make of the deviations of S seeds those of their mean in each draw.

    So few seeds cannot be drawn with replacement: of three, every ninth draw would have the same one three times,
    and the others too little spread. Deviations of a mean over S seeds are as those of Student's t with S - 1 degrees
    of freedom, the same as in `gdod.statistics.paired_difference`. With one seed there is nothing to draw.
    """
    if seeds == 1:
        return np.zeros((draws, 1))
    normal = random.normal(size=(draws, seeds)) / np.sqrt(seeds * (seeds - 1))
    drawn: Floats = normal * np.sqrt((seeds - 1) / random.chisquare(seeds - 1, (draws, 1)))
    return drawn


def _share_below(scores: Floats, others: Floats, weights: Floats) -> Floats:
    """Return for each score the weighted share of the others below it, [n]; equal ones count half."""
    order = np.argsort(others)
    sums = np.append(0, np.cumsum(weights[order]))
    sides: list[Floats] = [sums[np.searchsorted(others[order], scores, side)] for side in ("left", "right")]
    shares: Floats = (sides[0] + sides[1]) / (2 * sums[-1])
    return shares


def _ratio(above: Floats, below: Floats, otherwise: float) -> Floats:
    return np.divide(above, below, out=np.full_like(above, otherwise), where=below > 0)
