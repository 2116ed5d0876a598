"""Cut numeric fields into bins of as many training rows each, for their piecewise-linear encoding."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from gdod.data.preparing.feature_options import FeatureOptions

# The training part is stored in random order, so its beginning tells enough.
_ROWS = 200_000
# A bin with fewer rows would mostly learn their chance.
_ROWS_PER_BIN = 250
# Numbers of rows of the same value differ a little from fold to fold; bins between them would only tell folds apart.
_NARROWEST_STATISTIC = 0.01


def fit_bins(
    path: Path, columns: tuple[str, ...], statistics: tuple[str, ...], options: FeatureOptions
) -> dict[str, tuple[float, ...]]:
    """Return the edges of the bins of each numeric field, those of no more than two values left out.

    Args:
        path: the stored training part.
        columns: the fields that are numbers of the table.
        statistics: the fields that are target statistics.
        options: the most bins of each.
    """
    bins = {}
    with pq.ParquetFile(path) as file:
        enough = max(2, file.metadata.num_rows // _ROWS_PER_BIN)
        rows, groups = 0, []
        for group in range(file.metadata.num_row_groups):
            if rows < _ROWS:
                groups.append(group)
                rows += file.metadata.row_group(group).num_rows
        for name in (*columns, *statistics):  # one by one, so that memory does not grow with them
            values = file.read_row_groups(groups, columns=[name], use_threads=False)[name].to_numpy()[:_ROWS]
            if name in statistics:
                cut = edges(values, min(options.statistic_bins, enough), _NARROWEST_STATISTIC)
            else:
                cut = edges_beside_common(values, min(options.bins, enough))
            if cut:
                bins[name] = cut
    return bins


def edges(values: NDArray[np.float32], most: int, narrowest: float = 0.0) -> tuple[float, ...]:
    """Return rising edges of at most ``most`` bins, with as many values in each as ties allow.

    None if ``most`` is 0, and none of at most two different values: there the number itself says everything. Up to
    ``most`` + 1 different values are the edges themselves. No bin is narrower than ``narrowest``.
    """
    different = np.unique(values)
    if not most or len(different) <= 2:
        return ()
    if len(different) > most + 1:
        quantiles = np.quantile(values.astype(np.float64), np.linspace(0, 1, most + 1))
        different = np.unique(quantiles.astype(np.float32))  # as the model compares them
    kept: list[float] = []
    for edge in different.tolist():
        if not kept or edge - kept[-1] > narrowest:
            kept.append(edge)
    return tuple(kept) if len(kept) > 1 else ()


def edges_beside_common(values: NDArray[np.float32], most: int) -> tuple[float, ...]:
    """Return rising edges of at most ``most`` bins, where values that would fill a bin by themselves do not count.

    Most sums of money are zero in most rows. Such a value is an edge, and the others share the bins that are left as if
    there were only they.
    """
    different, counts = np.unique(values, return_counts=True)
    common = different[counts * most > len(values)]
    if len(different) <= most + 1 or not len(common):
        return edges(values, most)
    others = values[~np.isin(values, common)]
    cut = edges(others, min(most - len(common), max(2, len(others) // _ROWS_PER_BIN)))
    return tuple(sorted({*cut, *common.tolist(), float(others.min()), float(others.max())}))
