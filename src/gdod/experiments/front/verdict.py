"""Where a method lies relative to the front: is some weighting better on every task?

For a method m and weightings p, d = max over p of min over tasks k of (score of p - score of m on k). Above 0, some
weighting is better on every task; below 0, none is. The weighting is chosen on validation, and d is shown on test.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gdod.experiments.front.rows import Floats, Scored
from gdod.statistics import holm

Place = Literal["below", "on", "gap", "above"]

_LEVEL = 0.975  # of each side of an interval
_CLEAR = 0.05


@dataclass(frozen=True)
class Judged:
    """A candidate as it is judged: its scores on validation, and those on test with their draws."""

    validation: Floats  # [K]
    test: Scored


@dataclass(frozen=True)
class Interval:
    """A figure with the ends of its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Verdict:
    """A method against the weighting that comes nearest to being better on every task."""

    weighting: str
    """The weighting that was chosen on validation."""
    validation: float
    """The d on validation, by which it was chosen."""
    d: Interval
    """The d on test."""
    tasks: tuple[Interval, ...]
    """The weighting minus the method, on test, each task by itself."""
    gap: float
    """How far the weighting itself would lie above the others, if it were left out; 0 if it would not."""
    p: float
    """The chance to see such a d, of either sign, if it were 0."""
    p_holm: float | None = None
    """The same, corrected for the number of methods."""

    @property
    def place(self) -> Place:
        """Below the front, on it as far as one can tell, above it by no more than its gaps, or above it."""
        if (self.p if self.p_holm is None else self.p_holm) >= _CLEAR:
            return "on"
        if self.d.value > 0:
            return "below"
        return "above" if -self.d.value > self.gap else "gap"


def judge(methods: Mapping[str, Judged], front: Mapping[str, Judged]) -> dict[str, Verdict]:
    """Return the verdict on each method; the p-values of all are corrected together (Holm)."""
    verdicts = {name: _verdict(method, front) for name, method in methods.items()}
    corrected = holm([one.p for one in verdicts.values()])
    return {name: replace(one, p_holm=p) for (name, one), p in zip(verdicts.items(), corrected, strict=True)}


def nearest_weighting(method: Floats, front: NDArray[np.float64]) -> tuple[int, float]:
    """Return which of the weightings [P, K] has the largest least lead over a method [K], and that lead, its d."""
    leads = (front - method).min(1)  # [P]
    place = int(leads.argmax())
    return place, float(leads[place])


def gap_at(name: str, front: Mapping[str, Judged]) -> float:
    """Return how far a weighting lies above the others, as if it were a method; 0 if it does not, or is alone."""
    others = {other: one for other, one in front.items() if other != name}
    if not others:
        return 0.0
    place, _ = nearest_weighting(front[name].validation, np.stack([one.validation for one in others.values()]))
    nearest = list(others.values())[place]
    return max(0.0, -float((nearest.test.scores - front[name].test.scores).min()))


def _verdict(method: Judged, front: Mapping[str, Judged]) -> Verdict:
    place, lead = nearest_weighting(method.validation, np.stack([one.validation for one in front.values()]))
    name = list(front)[place]
    leads = difference(front[name].test, method.test)
    d, p = least_lead(leads)
    return Verdict(name, lead, d, tuple(task_intervals(leads)), gap_at(name, front), p)


def difference(ours: Scored, theirs: Scored) -> Scored:
    """Return the scores of one minus those of another, on the same draws of rows and seeds."""
    return Scored(ours.scores - theirs.scores, ours.drawn - theirs.drawn)


def task_intervals(leads: Scored) -> list[Interval]:
    """Return each task's lead with its own interval."""
    deviations = leads.drawn - leads.scores  # [B, K]
    down, up = np.quantile(deviations, (_LEVEL, 1 - _LEVEL), axis=0)
    return [
        Interval(float(value), float(value - high), float(value - low))
        for value, high, low in zip(leads.scores, down, up, strict=True)
    ]


def least_lead(leads: Scored) -> tuple[Interval, float]:
    """Return the least lead over all tasks with its interval, and the p-value of its being 0.

    The least of several noisy leads is lower than the least of the true ones, so its own draws would tell that no
    weighting is better even if all tasks are equal. Therefore the lower end is the least of the tasks' lower ends,
    which is right since the true least is one of them; and the upper end is the least of upper ends that hold for all
    tasks at once (by the largest deviation in units of its spread).
    """
    value = float(leads.scores.min())
    deviations = leads.drawn - leads.scores
    # Not the standard deviation, which Student's t has none of with three seeds.
    spread = np.maximum(np.diff(np.quantile(deviations, (0.16, 0.84), axis=0), axis=0)[0] / 2, 1e-12)
    largest = (-deviations / spread).max(1)  # [B]
    low = float((leads.scores - np.quantile(deviations, _LEVEL, axis=0)).min())
    high = float((leads.scores + np.quantile(largest, _LEVEL) * spread).min())
    draws = len(deviations)
    below = ((deviations >= leads.scores).sum(0).max() + 1) / (draws + 1)
    above = ((largest >= (-leads.scores / spread).max()).sum() + 1) / (draws + 1)
    return Interval(value, min(low, value), max(high, value)), float(min(1.0, 2 * min(below, above)))
