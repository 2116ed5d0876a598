"""Cut numeric fields into bins of as many training rows each, for their piecewise-linear encoding."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

# The training part is stored in random order, so its beginning tells enough.
_ROWS = 200_000
# Numbers of rows of the same value differ a little from fold to fold; bins between them would only tell folds apart.
_NARROWEST_STATISTIC = 0.01


def fit_bins(
    path: Path, columns: tuple[str, ...], statistics: tuple[str, ...], most: int
) -> dict[str, tuple[float, ...]]:
    """Return the edges of the bins of each numeric field, those of no more than two values left out.

    Args:
        path: the stored training part.
        columns: the fields that are numbers of the table.
        statistics: the fields that are target statistics.
        most: the most bins of a field.
    """
    bins = {}
    with pq.ParquetFile(path) as file:
        rows, groups = 0, []
        for group in range(file.metadata.num_row_groups):
            if rows < _ROWS:
                groups.append(group)
                rows += file.metadata.row_group(group).num_rows
        for name in (*columns, *statistics):  # one by one, so that memory does not grow with them
            values = file.read_row_groups(groups, columns=[name], use_threads=False)[name].to_numpy()[:_ROWS]
            cut = edges(values, most, _NARROWEST_STATISTIC if name in statistics else 0.0)
            if cut:
                bins[name] = cut
    return bins


def edges(values: NDArray[np.float32], most: int, narrowest: float = 0.0) -> tuple[float, ...]:
    """Return rising edges of at most ``most`` bins, with as many values in each as ties allow.

    None of at most two different values: there the number itself says everything. Up to ``most`` + 1 different
    values are the edges themselves. No bin is narrower than ``narrowest``.
    """
    different = np.unique(values)
    if len(different) <= 2:
        return ()
    if len(different) > most + 1:
        quantiles = np.quantile(values.astype(np.float64), np.linspace(0, 1, most + 1))
        different = np.unique(quantiles.astype(np.float32))  # as the model compares them
    kept: list[float] = []
    for edge in different.tolist():
        if not kept or edge - kept[-1] > narrowest:
            kept.append(edge)
    return tuple(kept) if len(kept) > 1 else ()
