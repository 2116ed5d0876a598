"""Hypervolume: how much of the space between a reference and the best possible some points dominate."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def hypervolume(points: Floats, reference: Floats) -> float:
    """Return the volume of all that some point [P, K] is at least as good as on every task, above a reference [K].

    Higher is better on every task. By the algorithm of While, Bradstreet and Barone (2012), exact for any number of
    tasks.
    """
    above = points[(points > reference).all(1)] - reference
    return _volume(undominated(above)) if len(above) else 0.0


def added_volume(point: Floats, points: Floats, reference: Floats) -> float:
    """Return by how much a point [K] increases the hypervolume of others [P, K]."""
    if not (point > reference).all():
        return 0.0
    return _alone(point - reference, points[(points > reference).all(1)] - reference)


def undominated(points: Floats) -> Floats:
    """Return the points [P, K] that no other is better than on one task and as good as on all; equal ones once."""
    points = np.unique(points, axis=0)
    at_least = (points[:, None] >= points[None]).all(2)  # [P, P]: the first is as good as the second
    kept: Floats = points[at_least.sum(0) == 1]  # as good as it is itself alone
    return kept


def _volume(points: Floats) -> float:
    """Return the volume of undominated points above zero."""
    if points.shape[1] == 2:
        ordered = points[np.argsort(-points[:, 0])]  # so the second rises
        return float((ordered[:, 0] * np.diff(ordered[:, 1], prepend=0.0)).sum())
    ordered = points[np.argsort(points[:, 0])]  # the later ones are limited least, so most of those drop out
    return float(sum(_alone(point, ordered[place + 1 :]) for place, point in enumerate(ordered)))


def _alone(point: Floats, others: Floats) -> float:
    """Return the volume that a point dominates and the others do not."""
    taken = _volume(undominated(np.minimum(others, point))) if len(others) else 0.0
    return float(point.prod()) - taken
