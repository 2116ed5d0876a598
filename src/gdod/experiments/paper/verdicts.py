"""What our figures say about the paper's."""

from collections.abc import Iterable, Mapping
from enum import StrEnum

from gdod.statistics import Difference


class Verdict(StrEnum):
    """What our figures say about a printed one."""

    CONFIRMED = "confirmed"
    NOT_CONFIRMED = "not confirmed"
    CONTRADICTED = "contradicted"
    CANNOT = "cannot be tested here"


def of_gain(printed: float | None, ours: Difference) -> Verdict:
    """Return what our difference says about a printed gain.

    It is confirmed if our interval (95 %, paired over seeds) lies on its side of zero, contradicted if it lies on the
    other one, and not confirmed if zero is inside. Its size does not matter.
    """
    if printed is None or ours.low is None or ours.high is None:
        return Verdict.CANNOT
    if printed == 0:
        return Verdict.CONFIRMED if ours.low <= 0 <= ours.high else Verdict.CONTRADICTED
    if ours.low <= 0 <= ours.high:
        return Verdict.NOT_CONFIRMED
    return Verdict.CONFIRMED if (printed > 0) == (ours.low > 0) else Verdict.CONTRADICTED


def counted(verdicts: Iterable[Verdict]) -> str:
    """Return how many there are of each verdict, such as "confirmed 3, not confirmed 1"."""
    listed = list(verdicts)
    counts: Mapping[Verdict, int] = {verdict: listed.count(verdict) for verdict in Verdict}
    return ", ".join(f"{verdict} {count}" for verdict, count in counts.items() if count) or "nothing to compare"
