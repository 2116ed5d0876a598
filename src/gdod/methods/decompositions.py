"""Orthonormal bases of the span of M's rows, from the rows' Gram matrix G = M Mᵀ alone.

A basis is B = A M with A G Aᵀ = I, so a decomposition is a way to choose A [r, N]: one row for
each basis vector, one column for each row of M. All of it is small float64 algebra; the dimension
of the parameters never appears.
"""

from bisect import bisect_right
from dataclasses import dataclass

import torch
from torch import Tensor

from gdod._kernels import compiled

# Sketch columns beyond the rank asked for, and rounds of power iteration (Halko et al. 2011, 4.4).
_OVERSAMPLING = 8
_POWER_ROUNDS = 2
# Rows of a matrix up to which the compiled eigendecomposition is the quicker one.
SMALL = 256


@dataclass(frozen=True)
class Spectrum:
    """Eigenvalues (smallest first) and eigenvectors (columns) of G that count as its span."""

    values: Tensor  # [r]
    vectors: Tensor  # [N, r]


def eigh(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return the eigenvalues (smallest first) and eigenvectors (columns) of a symmetric float64 matrix on the CPU."""
    if compiled is not None and 0 < len(matrix) <= SMALL:
        matrix = matrix.contiguous()
        values, vectors = matrix.new_empty(len(matrix)), torch.empty_like(matrix)
        if compiled.eigh(matrix.data_ptr(), len(matrix), values.data_ptr(), vectors.data_ptr()):
            return values, vectors.T
    values, vectors = torch.linalg.eigh(matrix)
    return values, vectors


def spectrum(gram: Tensor, rank: int | None = None, tolerance: float = 0.0) -> Spectrum:
    """Return the eigenpairs above ``tolerance`` times the largest eigenvalue, at most ``rank`` of them."""
    values, vectors = eigh(gram)
    numbers: list[float] = values.tolist()
    outside = bisect_right(numbers, tolerance * max(numbers[-1], 0.0))
    if rank is not None:
        outside = max(outside, len(numbers) - rank)
    if outside:
        values, vectors = values[outside:], vectors[:, outside:]
    return Spectrum(values, vectors)


def svd(gram: Tensor, rank: int | None = None, tolerance: float = 1e-15) -> Tensor:
    """Return the right singular vectors of M, largest singular value first: A = Λ^(-1/2) Uᵀ."""
    inside = spectrum(gram, rank, tolerance)
    return (inside.vectors / inside.values.sqrt()).T.flip(0)


def qr(gram: Tensor, rank: int | None = None, tolerance: float = 1e-15) -> Tensor:
    """Return the basis of Gram-Schmidt on the rows, always the one next whose remainder is longest (pivoted QR).

    Without pivoting the basis would depend on the order of tasks, and a row that depends on earlier
    ones would have to be noticed at any place. In Gram space this is the pivoted Cholesky factor.
    """
    count = len(gram)
    residual = gram.diagonal().clone()
    factor = gram.new_zeros(count, 0)  # columns of L, rows in M's order
    pivots: list[int] = []
    floor = tolerance * float(residual.max()) if count else 0.0
    while len(pivots) < min(count, rank or count):
        pivot = int(residual.argmax())
        if not residual[pivot] > floor:
            break
        column = (gram[:, pivot] - factor @ factor[pivot]) / residual[pivot].sqrt()
        column[pivots] = 0.0
        factor = torch.cat([factor, column.unsqueeze(1)], 1)
        residual = residual - column**2
        residual[pivot] = 0.0
        pivots.append(pivot)
    basis = gram.new_zeros(len(pivots), count)
    if pivots:
        eye = torch.eye(len(pivots), dtype=gram.dtype)
        basis[:, pivots] = torch.linalg.solve_triangular(factor[pivots], eye, upper=False)
    return basis


def randomized(
    gram: Tensor,
    rank: int | None = None,
    tolerance: float = 1e-15,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Return the basis of a random sketch of the row space, orthonormalised, then an SVD inside it (Halko et al. 2011).

    With ``rank=None`` the sketch is as large as the row space, and the basis that of `svd`.
    """
    count = len(gram)
    size = count if rank is None else min(count, rank + _OVERSAMPLING)
    sketch = torch.randn(count, size, dtype=gram.dtype, generator=generator)
    for _ in range(_POWER_ROUNDS):
        sketch = torch.linalg.qr(gram @ sketch).Q
    inside = svd(sketch.T @ gram @ sketch, None, tolerance) @ sketch.T  # orthonormal rows Q = inside @ M
    across = inside @ gram  # Q Mᵀ [s, N]
    left, sizes, _ = torch.linalg.svd(across, full_matrices=False)
    if rank is not None:
        left = left[:, :rank]
    elif len(sizes):
        left = left[:, sizes > tolerance**0.5 * sizes[0]]
    basis: Tensor = left.T @ inside
    return basis


DECOMPOSITIONS = ("svd", "qr", "randomized", "random")
