"""A random basis of the whole parameter space, for the ablation of the paper's table 4 (`decomposition="random"`).

The update lies outside the rows' span: it is an `OwnUpdate`. Of independent normal vectors Z [r, D] it takes the
products with the task gradients, Z Zᵀ, and then one weighted sum Zᵀ w. None of this takes r vectors of length D. Let Q
be an orthonormal basis of the task gradients and Z = A Qᵀ + R. A is normal, R Rᵀ has a Wishart distribution, and given
the two, Rᵀ w has a known length and points anywhere orthogonal to the gradients with equal probability. So A, a
triangular factor of R Rᵀ (Bartlett's), and one random direction have exactly the distribution of the whole.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import Chi2

from gdod.errors import InputError
from gdod.methods.base import OwnUpdate, Weights
from gdod.methods.gram import Gradients, Gram

_NUMBERS_AT_ONCE = 2**22
# Eigenvalues of the task gradients' cosines below this are rounding.
_DEPENDENT = 1e-12


def weigh_on_random_basis(
    gram: Gram, rank: int | None, generator: torch.Generator, scale: Callable[[Tensor], Tensor]
) -> Weights:
    """Return an update along ``rank`` random vectors (by default as many as rows), projections on them scaled."""
    if gram.combine is None:
        raise InputError(
            "decomposition='random' draws vectors outside the rows' span, which a Gram matrix cannot tell; "
            "use from_rows or gdod.backward"
        )
    vectors = RandomVectors([gram.combine(share) for share in gram.averages])
    with_tasks, among = vectors.draw(rank or len(gram.matrix), generator)  # Z gᵢ [r, K], Z Zᵀ [r, r]
    factor = torch.linalg.cholesky(among)
    projections = torch.linalg.solve_triangular(factor, with_tasks, upper=False)
    factors = scale(gram.rounded(projections))
    along = (factors * projections).sum(1, keepdim=True)
    weights = torch.linalg.solve_triangular(factor.T, along, upper=True).squeeze(1)
    update = OwnUpdate(weights, vectors.combine)
    return Weights(torch.zeros_like(gram.averages[0]), update=update, projections=projections, factors=factors)


def random_basis(rank: int, size: int, generator: torch.Generator) -> Tensor:
    """Return random orthonormal vectors. [r, D], r at most D"""
    drawn = torch.randn(min(rank, size), size, dtype=torch.float64, generator=generator)
    basis: Tensor = torch.linalg.qr(drawn.T).Q.T
    return basis


@dataclass(frozen=True)
class _Span:
    """The task gradients in their own span: its basis Q is the orthonormal one that is nearest to them."""

    lengths: Tensor  # [K]
    root: Tensor  # of their cosines: gradients of length one are ``root`` times Q [K, K]
    inverse: Tensor  # its pseudoinverse
    within: Tensor  # the projection that takes dependent gradients into account
    rank: int

    @staticmethod
    def of(gram: Tensor) -> "_Span":
        lengths = gram.diagonal().sqrt()
        values, vectors = torch.linalg.eigh(gram * _reciprocal(lengths) * _reciprocal(lengths).unsqueeze(1))
        values = torch.where(values > _DEPENDENT, values, 0.0)
        roots = values.sqrt()
        root, inverse, within = (
            vectors * numbers @ vectors.T for numbers in (roots, _reciprocal(roots), (values > 0).double())
        )
        return _Span(lengths, root, inverse, within, int((values > 0).sum()))


class RandomVectors:
    """Independent normal vectors of the whole parameter space, of which only what is asked for is drawn."""

    def __init__(self, gradients: Sequence[Gradients]) -> None:
        """Take for each task the shared parameters with its gradient."""
        self.parameters = [(parameter, grad.is_sparse) for parameter, grad in gradients[0]]
        self.flat = [[_flat(grad) for _, grad in grads] for grads in zip(*gradients, strict=True)]
        nothing = torch.zeros(len(gradients), len(gradients), dtype=torch.float64)
        self.span = _Span.of(sum((grads @ grads.T for grads in self._gradients()), nothing))

    def draw(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw Z [r, D], r at most D, and return its products with the task gradients [r, K] and Z Zᵀ."""
        seed, squares, self.seed = torch.randint(2**62, (3,), generator=generator).tolist()
        size, span = sum(parameter.numel() for parameter, _ in self.parameters), self.span
        count, outside = min(count, size), size - span.rank
        own = torch.Generator().manual_seed(seed)
        self.along = torch.randn(count, len(span.lengths), dtype=torch.float64, generator=own) @ span.within  # A
        across = torch.randn(count, min(count, outside), dtype=torch.float64, generator=own)
        self.across = across if outside < count else _bartlett(across, outside, squares)
        with_tasks = self.along @ span.root * span.lengths
        return with_tasks, self.along @ self.along.T + self.across @ self.across.T

    def combine(self, weights: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return the weighted sum of the vectors drawn last, as gradients."""
        span, shorten = self.span, _reciprocal(self.span.lengths)
        dots, square = torch.zeros_like(span.lengths), torch.zeros((), dtype=torch.float64)
        for grads, normal in zip(self._gradients(), self._normal(), strict=True):
            dots += grads @ normal
            square += normal @ normal
        dots *= shorten
        shadow = span.inverse @ span.inverse @ dots  # of the random direction on gradients of length one
        far = (self.across.T @ weights).norm() * _reciprocal((square - shadow @ dots).clamp(min=0).sqrt())
        near = (span.inverse @ (self.along.T @ weights) - far * shadow) * shorten
        pieces = (near @ grads + far * normal for grads, normal in zip(self._gradients(), self._normal(), strict=True))
        update = []
        for parameter, sparse in self.parameters:
            parts = [next(pieces) for _ in _cuts(parameter.numel())]
            dense = torch.cat(parts).view(parameter.shape).to(parameter)
            update.append((parameter, dense.to_sparse(1) if sparse else dense))
        return update

    def _gradients(self) -> Iterator[Tensor]:
        """Yield the task gradients, some columns at a time. [K, columns]"""
        for flat in self.flat:
            for cut in _cuts(len(flat[0])):
                yield torch.stack([one[cut].to("cpu", torch.float64) for one in flat])

    def _normal(self) -> Iterator[Tensor]:
        """Yield the same columns of a random vector, drawn again each time and never stored. [columns]"""
        generator = torch.Generator().manual_seed(self.seed)
        for parameter, _ in self.parameters:
            for cut in _cuts(parameter.numel()):
                yield torch.randn(cut.stop - cut.start, generator=generator).double()


def _cuts(size: int) -> list[slice]:
    return [slice(first, min(first + _NUMBERS_AT_ONCE, size)) for first in range(0, size, _NUMBERS_AT_ONCE)]


def _bartlett(normal: Tensor, freedom: int, seed: int) -> Tensor:
    """Return a triangular factor of a Wishart matrix, from normal numbers [r, r]."""
    with torch.random.fork_rng(devices=[]):  # `Chi2` draws from the default generator only
        torch.default_generator.manual_seed(seed)
        squares = Chi2(freedom - torch.arange(len(normal), dtype=torch.float64)).sample()
    return normal.tril(-1) + squares.sqrt().diag()


def _reciprocal(numbers: Tensor) -> Tensor:
    """Return 1 / numbers, and zero for zero."""
    return torch.where(numbers > 0, 1 / numbers, 0.0)


def _flat(grad: Tensor) -> Tensor:
    return (grad.to_dense() if grad.is_sparse else grad).reshape(-1)
