"""Piecewise-linear encoding of numbers (Gorishniy, Rubachev, Babenko, "On Embeddings for Numerical Features in Tabular
Deep Learning", NeurIPS 2022, equation 1)."""

from collections.abc import Iterable, Iterator
from itertools import pairwise
from math import inf

import torch
from torch import Tensor, nn

from gdod.schema import Numeric

# How far a number of scale 1, and its place in the two outer bins, may go: an outlier must not drown everything else.
_NUMBER = (-5.0, 5.0)
_FIRST, _LAST = -3.0, 4.0


class PiecewiseLinear(nn.Module):
    """Encode numbers by their places in bins: [B, G] -> [B, width].

    A field with the edges b_0 < ... < b_T becomes T + 1 numbers: x itself, and for each bin

        (x - b_{t-1}) / (b_t - b_{t-1}),  cut off at 0 and 1,

    but at -3 on the left of the first bin and at 4 on the right of the last, so that numbers outside all bins differ.
    A field without bins stays one number, as it is. Nothing here is learned.
    """

    column: Tensor  # the field that each output comes from [width]
    scale: Tensor  # each output is scale * x + offset, cut off at low and high [width]
    offset: Tensor
    low: Tensor
    high: Tensor

    def __init__(self, fields: Iterable[Numeric]) -> None:
        super().__init__()
        outputs = [(number, *piece) for number, field in enumerate(fields) for piece in _pieces(field)]
        self.width = len(outputs)
        column, *lines = torch.tensor(outputs, dtype=torch.float64).T
        largest = torch.finfo(torch.float32).max  # the slope of a bin narrower than float32 can tell
        self.register_buffer("column", column.long(), persistent=False)
        for name, values in zip(("scale", "offset", "low", "high"), lines, strict=True):
            line = values if name in ("low", "high") else values.clamp(-largest, largest)
            self.register_buffer(name, line.float(), persistent=False)

    def forward(self, numbers: Tensor) -> Tensor:
        x = numbers.to(self.scale.dtype).index_select(1, self.column)  # [B, G] -> [B, width]
        return torch.addcmul(self.offset, x, self.scale).clamp(self.low, self.high)


def _pieces(field: Numeric) -> Iterator[tuple[float, float, float, float]]:
    """Yield the scale, the offset, the lowest and the highest value of each number that the field becomes."""
    yield 1.0, 0.0, *(_NUMBER if field.bins else (-inf, inf))
    last = len(field.bins) - 2
    for number, (left, right) in enumerate(pairwise(field.bins)):
        scale = 1 / (right - left)
        yield scale, -left * scale, 0.0 if number else _FIRST, 1.0 if number < last else _LAST
