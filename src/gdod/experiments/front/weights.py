"""Task weights along which the plain sum is trained: ratios of two tasks, or draws from a simplex.

Weights add up to the number of tasks, so that equal ones are the plain sum itself.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gdod._checks import nearest
from gdod.errors import InputError

RATIOS = 11
DRAWS = 32
SPAN = 32.0
_SEED = 0  # of the draws: always the same, so that more points are those that were there and others


@dataclass(frozen=True)
class Weighting:
    """Weights of the tasks' losses."""

    name: str
    """Such as "8:1", the ratio of two tasks, or "w3", the third draw."""
    weights: Mapping[str, float]
    """By task; they add up to the number of tasks."""

    @property
    def is_equal(self) -> bool:
        return len(set(self.weights.values())) == 1


def default_count(tasks: int) -> int:
    """Return how many weightings a front of so many tasks has, unless another number is asked for."""
    return RATIOS if tasks == 2 else DRAWS


def spread_weights(tasks: Sequence[str], count: int, span: float = SPAN) -> tuple[Weighting, ...]:
    """Return ``count`` weightings, of which one is equal weights.

    Of two tasks the ratios of their weights are log-spaced from 1/span to span; of more, weights are uniform on the
    simplex, the same draws whatever the count.
    """
    if len(tasks) == 2:
        return tuple(_ratio(tasks, ratio) for ratio in np.geomspace(1 / span, span, count).tolist())
    equal = Weighting("equal", dict.fromkeys(tasks, 1.0))
    drawn = np.random.default_rng(_SEED).dirichlet(np.ones(len(tasks)), count - 1) * len(tasks)
    draws = (dict(zip(tasks, row, strict=True)) for row in drawn.tolist())
    return (equal, *(Weighting(f"w{place}", one) for place, one in enumerate(draws, 1)))


def finer(tasks: int, count: int) -> int:
    """Return a larger count of weightings that has all of those of ``count``, about twice as many."""
    return 2 * count - 1 if tasks == 2 else 2 * count


def given_weights(tasks: Sequence[str], given: Sequence[Mapping[str, float]]) -> tuple[Weighting, ...]:
    """Return the weightings that a person asks for, each a weight above 0 for every task."""
    made: dict[str, Weighting] = {}
    for one in given:
        text = ",".join(f"{name}={value}" for name, value in one.items())
        if unknown := next((name for name in one if name not in tasks), None):
            raise InputError(
                f"weights {text}: {unknown!r} is no task; they are {', '.join(tasks)}{nearest(unknown, tasks)}"
            )
        if missing := next((name for name in tasks if name not in one), None):
            raise InputError(
                f"weights {text}: there is none for {missing!r}; expected one for each of {', '.join(tasks)}"
            )
        for name, value in one.items():
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
                raise InputError(
                    f"weights {text}: that of {name!r} is {value!r}; expected a number above 0, since a task of weight "
                    "0 is not trained at all (--single-task trains each task alone)"
                )
        total = math.fsum(one.values())
        weights = {name: one[name] * len(tasks) / total for name in tasks}
        name = (
            _ratio_name(one[tasks[0]] / one[tasks[1]]) if len(tasks) == 2 else ":".join(f"{one[t]:.4g}" for t in tasks)
        )
        if name in made:
            raise InputError(f"weights {text}: these are given twice")
        made[name] = Weighting(name, dict.fromkeys(tasks, 1.0) if len(set(one.values())) == 1 else weights)
    if not any(one.is_equal for one in made.values()):
        raise InputError(
            "the weights that are given have no equal ones, which is the plain sum and what intervals are drawn "
            f"against; add --weights {','.join(f'{name}=1' for name in tasks)}"
        )
    return tuple(made.values())


def _ratio(tasks: Sequence[str], ratio: float) -> Weighting:
    ratio = float(f"{ratio:.12g}")  # or equal weights would not be quite equal
    return Weighting(_ratio_name(ratio), {tasks[0]: 2 * ratio / (1 + ratio), tasks[1]: 2 / (1 + ratio)})


def _ratio_name(ratio: float) -> str:
    return f"{ratio:.4g}:1" if ratio >= 1 else f"1:{1 / ratio:.4g}"
