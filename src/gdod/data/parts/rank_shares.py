"""Share out the batches of an epoch between ranks that each have examples of their own."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]


def given_by_rank(rows: Sequence[int], rank: int, counts: Counts) -> Counts:
    """Return how many of the first ``counts`` [n] examples of an epoch are this rank's. [n]

    Ranks give one example in turn; one that has given all its ``rows`` is passed over. So what a rank has given
    never falls as the count grows, ranks are as even as can be, and in the end each has given everything.
    """
    levels = np.unique([0, *rows])  # [n], rounds after which a rank has given all, and 0
    held = np.array(rows, np.int64)
    given = np.minimum(held, levels[:, None]).sum(1)  # [n], examples that all have given after so many rounds
    at = np.minimum(np.searchsorted(given, counts, "right") - 1, max(0, len(levels) - 2))
    giving = np.maximum((held > levels[:, None]).sum(1), 1)[at]  # ranks that still take turns then
    before = (held[:rank] > levels[:, None]).sum(1)[at]  # of them those whose turn comes first
    rounds, turns = np.divmod(counts - given[at], giving)
    own: Counts = np.minimum(held[rank], levels[at] + rounds)
    own += (held[rank] > levels[at] + rounds) & (before < turns)
    return own
