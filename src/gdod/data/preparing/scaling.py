"""Scale numeric columns to mean 0 and standard deviation 1."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

Scale = Literal["standard", "log", "none"]
# So that one absurd number cannot become an infinite one in float32.
_FARTHEST = 1e6
# Nor may it make the sum of all squares infinite.
_LARGEST = 1e140


@dataclass(frozen=True)
class Scaling:
    """The map (x - mean) / sd, of x itself or of its logarithm; a missing number becomes the mean, 0."""

    scale: Scale = "standard"
    mean: float = 0.0
    sd: float = 1.0

    def apply(self, numbers: NDArray[np.float64]) -> NDArray[np.float32]:
        """Return the scaled numbers: [n] float64, nan where missing -> [n] float32 without."""
        values = _curve(self.scale, numbers)
        with np.errstate(over="ignore"):  # infinite here, and cut back below
            values = (values - self.mean) / self.sd if self.sd else values * 0
        values = np.where(np.isnan(values), 0.0, np.clip(values, -_FARTHEST, _FARTHEST))
        return values.astype(np.float32)


class Moments:
    """Works out the mean and spread of a column, chunk by chunk (Chan, Golub and LeVeque 1979)."""

    def __init__(self, scale: Scale) -> None:
        self.scale = scale
        self.count, self.mean, self.squares = 0, 0.0, 0.0

    def add(self, numbers: pl.Series) -> None:
        values = _curve(self.scale, numbers.drop_nulls().to_numpy())
        values = values[np.isfinite(values)]
        if not len(values):
            return
        mean = float(values.mean())
        squares = float(((values - mean) ** 2).sum())
        count = self.count + len(values)
        apart = mean - self.mean
        self.squares += squares + apart**2 * self.count * len(values) / count
        self.mean += apart * len(values) / count
        self.count = count

    def scaling(self) -> Scaling:
        """Return the scaling with the mean and standard deviation of all numbers so far."""
        if self.scale == "none" or not self.count:
            return Scaling(self.scale)
        sd = math.sqrt(self.squares / self.count)
        # Rounding leaves a constant column with a tiny spread, which would blow up other values.
        constant = sd <= 1e-9 * max(abs(self.mean), 1e-300)
        return Scaling(self.scale, self.mean, 0.0 if constant else sd)


def _curve(scale: Scale, values: NDArray[np.float64]) -> NDArray[np.float64]:
    values = np.clip(values, -_LARGEST, _LARGEST)
    if scale != "log":
        return values
    return np.asarray(np.sign(values) * np.log1p(np.abs(values)), np.float64)
