"""Compare runs over several seeds or folds: means, paired differences from a baseline, ranks.

Methods are compared seed by seed, because a seed fixes the split, the first weights and the order of
examples, and these move the results more than the methods do. Only seeds that both sides finished count. In a
cross-validation they are compared fold by fold.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeGuard, TypeVar

from scipy.special import stdtr, stdtrit

from gdod._checks import check_number
from gdod.errors import InputError

Name = TypeVar("Name", bound=Hashable)
Case = TypeVar("Case", bound=Hashable)


@dataclass(frozen=True)
class Summary:
    """Mean and spread of the results of one setting over its seeds."""

    n: int
    """The number of results."""
    mean: float | None
    sd: float | None
    """The standard deviation of the sample (n - 1); None below two results."""


@dataclass(frozen=True)
class Difference:
    """The mean difference between a setting and the baseline, over the seeds that both finished."""

    n: int
    """The number of common seeds or folds."""
    mean: float | None
    sd: float | None
    """The standard deviation of the differences (n - 1); None below two common seeds."""
    low: float | None
    high: float | None
    """The ends of the confidence interval of the mean, by Student's t; None below two common seeds."""
    p: float | None
    """The two-sided p-value of the paired t-test."""
    note: str | None = None
    """The reason why there is no interval or no p-value, or why they mean little."""


def summarise(values: Sequence[float | None]) -> Summary:
    """Return the mean and standard deviation of the results that are numbers; None and nan are left out."""
    results = [value for value in values if _is_number(value)]
    if not results:
        return Summary(0, None, None)
    return Summary(len(results), _mean(results), _sd(results))


def paired_difference(
    values: Mapping[Case, float | None],
    baseline: Mapping[Case, float | None],
    *,
    confidence: float = 0.95,
    folds: int | None = None,
) -> Difference:
    """Return the mean of `values` minus `baseline` seed by seed, with the paired t-test and its interval.

    With ``folds`` it is the corrected resampled t-test of Nadeau and Bengio (2003, Inference for the generalization
    error, Machine Learning 52). The folds' models share training rows, so their results vary together, and the plain
    test would find differences where there are none. The variance of the mean of n differences is therefore taken as
    (1/n + test rows / training rows) times theirs, in place of 1/n; of k folds, that share is 1/(k - 1).

    Args:
        values: results by seed (or any other name of a repetition); missing ones may be None or nan.
        baseline: results of the setting to compare with, by seed.
        confidence: the confidence of the interval, between 0 and 1.
        folds: the number of folds, if the results are those of the folds of a cross-validation.
    """
    check_number("confidence", confidence, above=0)
    if confidence >= 1:
        raise InputError(f"confidence={confidence!r}; expected a number below 1, such as 0.95")
    what, shared = ("seed", 0.0) if folds is None else ("fold", 1 / (folds - 1))
    common = [
        (value, base) for seed, value in values.items() if _is_number(value) and _is_number(base := baseline.get(seed))
    ]
    differences = [value - base for value, base in common]
    n = len(differences)
    if n == 0:
        return Difference(0, None, None, None, None, None, f"no {what} in common with the baseline")
    mean, sd = _mean(differences), _sd(differences)
    if sd is None:
        return Difference(1, mean, None, None, None, None, f"one common {what}: no interval and no test")
    if sd <= 1e-15 * max(abs(value) for pair in common for value in pair):
        # Equal differences (but for rounding) tell nothing about the spread; zero ones are the same results.
        same = mean == 0
        note = "the same results as the baseline" if same else f"the same difference with every {what}: no test"
        return Difference(n, mean, sd, mean, mean, 1.0 if same else None, note)
    error = sd * math.sqrt(1 / n + shared)
    reach = float(stdtrit(n - 1, (1 + confidence) / 2)) * error
    p = 2 * float(stdtr(n - 1, -abs(mean / error)))
    return Difference(n, mean, sd, mean - reach, mean + reach, p)


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Return p-values corrected for their number (Holm 1979), which bounds the chance of any false alarm.

    None stays None and does not count as a comparison.
    """
    for p in p_values:
        if p is not None and not 0 <= p <= 1:
            raise InputError(f"p-value {p!r}; expected a number from 0 to 1, or None")
    tested = sorted((p, place) for place, p in enumerate(p_values) if p is not None)
    corrected: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (p, place) in enumerate(tested):
        largest = max(largest, min(1.0, p * (len(tested) - rank)))
        corrected[place] = largest
    return corrected


def average_ranks(
    results: Mapping[Name, Mapping[Case, float | None]], higher_is_better: Mapping[Case, bool] | bool = True
) -> dict[Name, float | None]:
    """Return the mean place of each setting over the cases: 1 is best, and equal results share their places' mean.

    Only cases in which every setting with any result has one count, so that places mean the same for
    all. The place is None for a setting without results, and for all if no such case is left.

    Args:
        results: results by setting and case; a case is whatever is compared at once, such as (task, seed).
        higher_is_better: whether higher results are better, for all cases or by case.
    """
    known = {
        name: {case: value for case, value in cases.items() if _is_number(value)} for name, cases in results.items()
    }
    taking_part = [name for name, cases in known.items() if cases]
    some = known[taking_part[0]] if taking_part else {}
    common = [case for case in some if all(case in known[name] for name in taking_part)]
    places: dict[Name, list[float]] = {name: [] for name in results}
    for case in common:
        higher = higher_is_better if isinstance(higher_is_better, bool) else higher_is_better[case]
        losses = {name: -known[name][case] if higher else known[name][case] for name in taking_part}
        for name, loss in losses.items():
            better = sum(other < loss for other in losses.values())
            equal = sum(other == loss for other in losses.values())
            places[name].append(better + (equal + 1) / 2)
    return {name: _mean(own) if own else None for name, own in places.items()}


def delta_m(
    values: Mapping[Case, float | None],
    single_task: Mapping[Case, float | None],
    higher_is_better: Mapping[Case, bool] | bool = True,
) -> float | None:
    """Return Δm in per cent (Maninis et al. 2019): the mean relative gain over single-task models.

    Above 0 is better than single-task models. (Some papers print the loss, with the other sign.) None if
    a task lacks either figure, or a single-task figure is 0.

    Args:
        values: one metric for each task.
        single_task: the same metrics of models trained on that task alone.
        higher_is_better: for all tasks, or by task; where lower is better, a decrease is a gain.
    """
    if set(values) != set(single_task) or not values:
        return None
    gains = []
    for task, value in values.items():
        base = single_task[task]
        if not _is_number(value) or not _is_number(base) or base == 0:
            return None
        higher = higher_is_better if isinstance(higher_is_better, bool) else higher_is_better[task]
        gains.append((1 if higher else -1) * (value - base) / abs(base))
    return 100 * _mean(gains)


def _is_number(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _sd(values: Sequence[float]) -> float | None:
    if len(values) < 2:
        return None
    mean = _mean(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))
