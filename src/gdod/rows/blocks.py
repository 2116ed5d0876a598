"""A block holds the rows of one or more parameters: their Gram matrix, and their weighted sum.

Inner products are taken in the precision of the rows, or in float64 where that is asked for; sums of many in float64.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from functools import reduce

import torch
from torch import Tensor
from torch.autograd.graph import Node

from gdod.rows.cotangent import working
from gdod.rows.multiply import GRAM_ERROR, steady_gram
from gdod.rows.views import undo

Chain = Sequence[tuple[Node, int]]
Only = frozenset[int] | None  # ids of parameters; None: all


class Block(ABC):
    """The rows of one or more parameters."""

    @property
    @abstractmethod
    def parameters(self) -> tuple[Tensor, ...]:
        """The parameters whose rows these are."""

    @property
    @abstractmethod
    def like(self) -> Tensor:
        """A tensor of the type and on the device of the rows."""

    @property
    def gram_error(self) -> float:
        """How many times their last digit inner products are rounded to that are not precise."""
        return GRAM_ERROR

    @abstractmethod
    def gram(self, precise: bool, only: Only = None) -> Tensor:
        """Return the inner products of the rows, over all of the block's parameters or over some. [N, N]"""

    @abstractmethod
    def products_with(self, weights: Tensor) -> Tensor:
        """Return the inner products of all rows with weighted sums of them, from weights [s, N], float64. [s, N]"""

    @abstractmethod
    def combine(self, weights: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return each parameter with the weighted sum of its rows, from weights [N] of the rows' type."""


class Dense(Block):
    """The rows of one parameter as a matrix; of a complex one they hold real and imaginary parts side by side."""

    def __init__(self, parameter: Tensor, rows: Tensor, shape: Sequence[int], chain: Chain) -> None:
        self.parameter = parameter
        self.rows = rows  # [N, numel], or twice as many columns
        self.shape = shape  # of the viewed parameter
        self.chain = chain

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        return (self.parameter,)

    @property
    def like(self) -> Tensor:
        return self.rows

    def gram(self, precise: bool, only: Only = None) -> Tensor:
        rows = self.rows if only is None or id(self.parameter) in only else self.rows[:, :0]
        return symmetric_product(rows.double() if precise else rows)

    def products_with(self, weights: Tensor) -> Tensor:
        rows = self.rows.double()
        return weights @ rows @ rows.T

    def combine(self, weights: Tensor) -> list[tuple[Tensor, Tensor]]:
        grad = weights @ self.rows
        if self.parameter.is_complex():
            return [(self.parameter, torch.view_as_complex(grad.view(*self.shape, 2)))]
        return [(self.parameter, undo(self.chain, grad.view(self.shape)))]


def row_matrix(rows: Tensor) -> Tensor:
    """Return stacked gradients as the matrix that `Dense` takes. [N, *shape] -> [N, numel] or [N, 2 * numel]"""
    rows = working(rows)
    return (torch.view_as_real(rows) if rows.is_complex() else rows).reshape(len(rows), -1)


# Rows that are multiplied at once by all that follow: the fewer, the less is multiplied twice, but the slower. With so
# few rows it costs more than it saves; from so many on a strip is twice as wide.
_STRIP, _FEW_ROWS, _MANY_ROWS = 16, 48, 128
# Columns are cut into pieces of at least so many, whose products are summed in the rows' own precision.
_COLUMNS = 2048
_MOST_PIECES = 32


def symmetric_product(rows: Tensor, steady: bool = False) -> Tensor:
    """Return ``rows @ rows.T`` in float64, at little more than half the multiplications: strips of its upper triangle,
    then mirrored.

    Where it is to be differentiated again, it is the plain product. ``steady``: whether rows of this shape come in
    every step.
    """
    count = len(rows)
    if torch.is_grad_enabled():
        return rows @ rows.T
    if steady and (gram := steady_gram(rows)) is not None:
        return gram
    strip = _STRIP if count < _MANY_ROWS else 2 * _STRIP
    if count <= _FEW_ROWS:
        return _product(rows, rows)
    gram = rows.new_empty(count, count, dtype=torch.float64)
    for first in range(0, count, strip):
        last = min(first + strip, count)
        gram[first:last, first:] = _product(rows[first:last], rows[first:])
        gram[last:, first:last] = gram[first:last, last:].T
    return gram


def _product(some: Tensor, others: Tensor) -> Tensor:
    """Return ``some @ others.T``, multiplied in the rows' own precision and summed in float64, columns by columns.

    A sum of float32 numbers loses the more the longer it is; that of a few thousand loses a third of its last digit.
    """
    size = some.shape[1]
    pieces = min(size // _COLUMNS, _MOST_PIECES)
    if some.dtype == torch.float64 or pieces < 2:
        return (some @ others.T).double()
    whole = size - size % pieces
    left, right = (rows[:, :whole].unflatten(1, (pieces, -1)) for rows in (some, others))
    total = torch.bmm(left.transpose(0, 1), right.permute(1, 2, 0)).sum(0, dtype=torch.float64)
    return total if whole == size else total + some[:, whole:] @ others[:, whole:].T


def sum_of_products(parts: Iterable[Tensor], steady: bool = False) -> Tensor:
    """Return the Gram matrix of rows that come some columns at a time; ``steady`` as in `symmetric_product`."""
    return reduce(torch.add, (symmetric_product(part, steady) for part in parts))
