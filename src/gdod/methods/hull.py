"""Points of the task gradients' convex hull and cone, found exactly in Gram space by active sets.

Plain Python numbers: for the few tasks there are, a tensor operation costs more than its arithmetic.
Gradients are taken at unit length (correlations R, lengths n), so that tasks of very different
scale do not drown each other in rounding: a weight w of a gradient is an amount u = w n here.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import mul

Vector = list[float]
Matrix = list[Vector]

# A combination shorter than this share of the lengths it adds up is zero as far as a Gram matrix in
# float64 can tell: squared lengths have lost all their digits by then.
_NOTHING = 2e-7
# How far a condition on an inner product may be missed, in lengths multiplied.
_SLACK = 1e-13


@dataclass(frozen=True)
class Units:
    """The task gradients that are not zero, at unit length."""

    present: list[int]  # which tasks these are
    lengths: Vector  # of their gradients before
    correlations: Matrix  # inner products of the unit vectors

    @staticmethod
    def of(gram: Matrix) -> "Units":
        """Return the unit vectors of gradients that have these inner products."""
        present = [i for i in range(len(gram)) if gram[i][i] > 0]
        lengths = [math.sqrt(gram[i][i]) for i in present]
        correlations = [
            [gram[i][j] / n / m for j, m in zip(present, lengths, strict=True)]
            for i, n in zip(present, lengths, strict=True)
        ]
        return Units(present, lengths, correlations)


def dot(left: Iterable[float], right: Iterable[float]) -> float:
    total: float = sum(map(mul, left, right))
    return total


def norm(correlations: Matrix, amounts: Vector) -> float:
    """Return the length of a combination of unit vectors."""
    return math.sqrt(max(dot(amounts, [dot(row, amounts) for row in correlations]), 0.0))


def is_nothing(length: float, amounts: Vector) -> bool:
    """Return whether a combination of unit vectors is zero but for rounding."""
    return length <= _NOTHING * sum(map(abs, amounts))


def lowest_in_hull(
    units: Units,
    slope: Vector | None = None,
    *,
    noise: float = 0.0,
    start: Vector | None = None,
) -> Vector:
    """Return the amounts u of the point x of the hull of the gradients gᵢ where ⟨x, s⟩ + ‖x‖ is lowest.

    ``slope`` holds the inner products of s with the unit vectors, ``noise`` the size of the terms
    they were summed from; without them x is the shortest point of the hull. Wolfe's method ("Finding
    the nearest point in a polytope", 1976), where each step goes to the lowest point of the affine
    hull of some of the gradients, known in closed form for this objective too. It ends after finitely
    many steps with the point itself, not with an approximation that more steps would improve.

    The amounts are only determined up to a common factor. Where x is zero (see `is_nothing`) the
    search stops: with a slope, the objective has a kink there. ``start`` says where to begin.
    """
    problem = _Problem(units.correlations, [min(units.lengths) / n for n in units.lengths], slope)
    support, amounts = problem.begin(start)
    matrix, shares = problem.matrix, problem.shares
    for _ in range(10 * len(shares) + 10):
        full = spread(support, amounts, len(shares))
        along = [dot(row, full) for row in matrix]  # ⟨ĝᵢ, x⟩
        length = math.sqrt(max(dot(along, full), 0.0))
        if is_nothing(length, amounts):
            break
        rise = [p / length for p in along]  # derivative of the objective along each unit vector
        if slope is not None:
            rise = [r + t for r, t in zip(rise, slope, strict=True)]
        level = dot(rise, full)
        excess = [r - level * a for r, a in zip(rise, shares, strict=True)]  # 0 where u > 0, else ≥ 0
        slack = _SLACK * (1 + noise + sum(amounts) / length)
        worst = _worst(excess, slack, support, lambda trial: problem.bordered(trial)[0])
        if worst is None:
            break
        next_support, next_amounts = problem.descend([*support, worst], [*amounts, 0.0])
        if worst not in next_support:  # rounding: nothing is gained by it
            break
        support, amounts = next_support, next_amounts
    return spread(support, amounts, len(shares))


@dataclass(frozen=True)
class _Problem:
    """The search for the lowest point of a hull; x lies in it if its amounts times ``shares`` add up to 1."""

    matrix: Matrix
    shares: Vector
    slope: Vector | None

    def begin(self, start: Vector | None) -> tuple[list[int], Vector]:
        """Return a first support that has the lowest point of its affine hull inside, and the point's amounts."""
        count = len(self.shares)
        if start is not None:
            support = [i for i, u in enumerate(start) if u > 0]
            total = dot(start, self.shares)
            return self.descend(support, [start[i] / total for i in support])
        everything = list(range(count))
        if is_regular(cholesky(self.bordered(everything)[0])):
            # Most often all tasks, or nearly all, have a weight.
            return self.descend(everything, [1 / (count * a) for a in self.shares])
        slope = self.slope or [0.0] * count
        first = min(everything, key=lambda i: (slope[i] + 1) / self.shares[i])
        return [first], [1 / self.shares[first]]

    def descend(self, support: list[int], amounts: Vector) -> tuple[list[int], Vector]:
        """Go to the lowest point of the affine hull, leaving out gradients whose amounts would turn negative."""
        while len(support) > 1:
            aim, bounded = self.lowest_in_plane(support)
            way = [t - u for t, u in zip(aim, amounts, strict=True)] if bounded else aim
            limits = [(-u / d, k) for k, (u, d) in enumerate(zip(amounts, way, strict=True)) if d < 0]
            step, blocking = min(limits, default=(math.inf, -1))
            if blocking < 0 or (bounded and step > 1):
                return support, aim if bounded else amounts
            amounts = [max(u + step * d, 0.0) for u, d in zip(amounts, way, strict=True)]
            del support[blocking], amounts[blocking]
        return support, [1 / self.shares[support[0]]]

    def lowest_in_plane(self, support: list[int]) -> tuple[Vector, bool]:
        """Return the amounts of the lowest point of an affine hull and True, or of a way down without end and False.

        With p the plane's shortest point and h the projection of the slope s on its directions, the
        objective is ⟨p, s⟩ + ⟨y, h⟩ + √(‖p‖² + ‖y‖²) at x = p + y, lowest at y = -h ‖p‖ / √(1 - ‖h‖²).
        """
        bordered, unit, size = self.bordered(support)
        factor = cholesky(bordered)
        across = solve(factor, unit)
        scale = dot(unit, across)
        shortest = [z / (size * scale) for z in across]
        if self.slope is None:
            return shortest, True
        slopes = [self.slope[i] for i in support]
        through = solve(factor, slopes)
        ratio = dot(unit, through) / scale
        inside = [t - ratio * z for t, z in zip(through, across, strict=True)]  # amounts of h
        gap = 1 - dot(inside, slopes)
        if gap <= 1e-15:
            return [-y for y in inside], False
        length = norm([[self.matrix[i][j] for j in support] for i in support], shortest)
        push = 0.0 if is_nothing(length, shortest) else length / math.sqrt(gap)
        return [p - push * y for p, y in zip(shortest, inside, strict=True)], True

    def bordered(self, support: list[int]) -> tuple[Matrix, Vector, float]:
        """Return R + a aᵀ, regular if the gradients are affinely independent, a = shares / ‖shares‖, and ‖shares‖."""
        part = [self.shares[i] for i in support]
        size = math.sqrt(dot(part, part))
        unit = [a / size for a in part]
        rows = [self.matrix[i] for i in support]
        bordered = [
            [row[j] + a * b for j, b in zip(support, unit, strict=True)] for row, a in zip(rows, unit, strict=True)
        ]
        return bordered, unit, size


def onto_dual_cone(units: Units, slope: Vector, *, noise: float = 0.0) -> Vector:
    """Return the amounts z ≥ 0 for which s + Σ zᵢ ĝᵢ is the point nearest to s that has no negative inner
    product with any gradient.

    ``slope`` holds the inner products of s with the unit vectors, ``noise`` the size of the terms
    they were summed from. The method of Lawson and Hanson for least squares without negative numbers.
    """
    matrix, count = units.correlations, len(units.lengths)
    support: list[int] = []
    amounts: Vector = []
    for _ in range(10 * count + 10):
        full = spread(support, amounts, count)
        products = [t + dot(row, full) for t, row in zip(slope, matrix, strict=True)]
        slack = _SLACK * (noise + sum(amounts))
        worst = _worst(products, slack, support, lambda trial: [[matrix[i][j] for j in trial] for i in trial])
        if worst is None:
            break
        trial, reached = [*support, worst], [*amounts, 0.0]
        while trial:
            aim = solve(cholesky([[matrix[i][j] for j in trial] for i in trial]), [-slope[i] for i in trial])
            steps = [u / (u - t) if t < u else 0.0 for u, t in zip(reached, aim, strict=True)]
            limits = [(step, k) for k, (step, t) in enumerate(zip(steps, aim, strict=True)) if t <= 0]
            if not limits:
                reached = aim
                break
            step, blocking = min(limits)
            reached = [max(u + step * (t - u), 0.0) for u, t in zip(reached, aim, strict=True)]
            del trial[blocking], reached[blocking]
        if worst not in trial:  # rounding: nothing is gained by it
            break
        support, amounts = trial, reached
    return spread(support, amounts, count)


def _worst(values: Vector, slack: float, support: list[int], system: Callable[[list[int]], Matrix]) -> int | None:
    """Return the index of the lowest value that is below zero and whose gradient adds a direction to the support's.

    A gradient that does not, as far as float64 can tell, can miss its condition by no more than that.
    """
    for worst in sorted(range(len(values)), key=values.__getitem__):
        if values[worst] >= -slack or worst in support:
            return None
        if is_regular(cholesky(system([*support, worst]))):
            return worst
    return None


def spread(support: list[int], amounts: Vector, count: int) -> Vector:
    full = [0.0] * count
    for i, u in zip(support, amounts, strict=True):
        full[i] = u
    return full


def cholesky(matrix: Matrix) -> Matrix:
    """Return the lower triangle L of a positive definite matrix L Lᵀ."""
    lower: Matrix = []
    for i, row in enumerate(matrix):
        done: Vector = []
        for j in range(i):
            above = lower[j]
            done.append((row[j] - dot(done, above)) / above[j])
        done.append(math.sqrt(max(row[i] - dot(done, done), 1e-30)))
        lower.append(done)
    return lower


def is_regular(lower: Matrix) -> bool:
    return min(row[-1] for row in lower) > _NOTHING


def solve(lower: Matrix, right: Vector) -> Vector:
    """Return the solution x of L Lᵀ x = b."""
    forward: Vector = []
    for row, b in zip(lower, right, strict=True):
        forward.append((b - dot(forward, row)) / row[-1])
    back = [0.0] * len(forward)
    for i in reversed(range(len(forward))):
        row = lower[i]
        back[i] = x = forward[i] / row[i]
        for j in range(i):
            forward[j] -= row[j] * x
    return back
