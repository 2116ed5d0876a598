"""GDOD and Weighted-GDOD (Dong et al., "GDOD: Effective Gradient Descent using Orthogonal
Decomposition for Multi-Task Learning", CIKM 2022, Algorithm 1 and section 4.7)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gdod._checks import check_choice, check_positive
from gdod._kernels import compiled
from gdod.errors import InputError
from gdod.methods import agreement as agreements
from gdod.methods import decompositions
from gdod.methods.base import Method, Weights, gram_of_rows
from gdod.methods.decompositions import DECOMPOSITIONS
from gdod.methods.generator import generator_of
from gdod.methods.gram import ZERO, Gram
from gdod.methods.random_basis import random_basis, weigh_on_random_basis

# How far rounding in the Gram matrix may move the update by the estimate below, relative to it and to
# the plain sum, before the matrix is asked for again in float64. The estimate is two to ten times the
# true error (measured at 2, 6 and 12 tasks).
_DRIFT_OF_UPDATE = 1e-4
_DRIFT_OF_SUM = 1e-6
# How many times its noise an eigenvalue has to be for its vector to count as a direction.
_TOLD_APART = 64
# How many times its expected error a projection may be and still have the other sign.
_DOUBT = 4
# Of how many eigenvectors at most it is found out what rounding did to them, before all is made again.
_REFINED = 16
# The agreements that the compiled estimate knows, and what it returns where there is no eigendecomposition.
_COMPILED_AGREEMENTS: dict[Callable[[Tensor], Tensor], int] = {
    agreements.sign: 0,
    agreements.product: 1,
    agreements.majority: 2,
}
_NOT_CONVERGED = -1
# The error of the eigendecomposition itself, in float64, relative to the largest eigenvalue.
_EIGH = 4 * torch.finfo(torch.float64).eps


@dataclass(frozen=True)
class GradientParts:
    """The parts of the task gradients that are kept and that conflict, on a basis of the rows' span."""

    basis: Tensor  # B, orthonormal rows [r, D]
    projections: Tensor  # of each task on each basis vector [r, K]
    kept: Tensor  # g_i^sh [K, D]
    conflict: Tensor  # g_i^con [K, D]

    @property
    def update(self) -> Tensor:
        """The sum of the kept parts. [D]"""
        return self.kept.sum(0)


class _OnBasis(Method):
    """A method that takes task gradients apart on a basis of their rows' span, scales projections and adds up."""

    accepts_float32_gram = True

    def __init__(self, groups: int | None, decomposition: str, rank: int | None, seed: int | torch.Generator) -> None:
        if groups is not None:
            check_positive("groups", groups)
        if rank is not None:
            check_positive("rank", rank)
        check_choice("decomposition", decomposition, DECOMPOSITIONS)
        self.groups = groups
        self.decomposition = decomposition
        self.rank = rank
        self.generator = generator_of(seed)
        self.scale: Callable[[Tensor], Tensor] = agreements.sign

    def weigh(self, gram: Gram) -> Weights:
        if gram.tasks == 1 and self.rank is None and self.decomposition != "random":
            return Weights(gram.averages.sum(0), all_kept=True)
        if self.decomposition == "svd":
            return self._weigh_svd(gram)
        if gram.error > 1e-12:  # the other bases have no estimate of what rounding did
            return Weights(gram.averages.sum(0), precise_enough=False)
        if self.decomposition == "random":
            return weigh_on_random_basis(gram, self.rank, self.generator, self.scale)
        return self._weigh_basis(gram, self._basis(gram))

    def state_dict(self) -> dict[str, Any]:
        """Return where the random decompositions are in their random numbers; nothing for the others."""
        return {"generator": self.generator.get_state()} if self.decomposition.startswith("random") else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if set(state) != set(self.state_dict()):
            raise InputError(
                f"the state holds {sorted(state)}; {self!r} expects {sorted(self.state_dict())}: "
                "load it into the method it was taken from"
            )
        if state:
            self.generator.set_state(state["generator"])

    def decompose(self, rows: Tensor, *, averages: Tensor | None = None) -> GradientParts:
        """Return the kept and the conflicting part of each task gradient, from rows [groups, tasks, D]."""
        gram, flat = gram_of_rows(rows, averages)
        if self.decomposition == "random":
            basis = random_basis(self.rank or len(flat), flat.shape[1], self.generator)
        else:
            basis = self._basis(gram) @ flat
        projections = basis @ (gram.averages @ flat).T  # [r, K]
        factors = self.scale(gram.rounded(projections))
        kept = (factors * projections).T @ basis
        conflict = ((1 - factors) * projections).T @ basis
        return GradientParts(basis, projections, kept, conflict)

    def from_rows(self, rows: Tensor, *, averages: Tensor | None = None) -> Tensor:
        if self.decomposition == "random":
            return self.decompose(rows, averages=averages).update.to(rows.dtype)
        return super().from_rows(rows, averages=averages)

    def _basis(self, gram: Gram) -> Tensor:
        """Return the basis as combinations of rows, A. [r, N]"""
        if self.decomposition == "qr":
            return decompositions.qr(gram.matrix, self.rank, gram.tolerance)
        if self.decomposition == "randomized":
            return decompositions.randomized(gram.matrix, self.rank, gram.tolerance, self.generator)
        return decompositions.svd(gram.matrix, self.rank, gram.tolerance)

    def _weigh_basis(self, gram: Gram, basis: Tensor) -> Weights:
        projections = basis @ gram.with_tasks  # p_i = A G c_i [r, K]
        factors = self.scale(gram.rounded(projections))
        rows = ((factors * projections).sum(1)) @ basis
        return Weights(rows, projections=projections, factors=factors)

    def _weigh_svd(self, gram: Gram) -> Weights:
        """Return weights on the basis of the SVD. Singular values cancel: with G = U Λ Uᵀ, w = U Σᵢ ωᵢ ∘ (Uᵀ cᵢ)."""
        if gram.error > 1e-12:
            return self._weigh_rounded(gram)
        spectrum = decompositions.spectrum(gram.matrix, self.rank, gram.tolerance)
        along, projections, rounded = _on_spectrum(gram, spectrum)
        factors = self.scale(rounded)
        return Weights(spectrum.vectors @ (factors * along).sum(1), projections=projections, factors=factors)

    def _weigh_rounded(self, gram: Gram) -> Weights:
        """Return the same from a rounded Gram matrix, and whether that is precise enough. Derived in docs/maths.md."""
        agreement = _COMPILED_AGREEMENTS.get(self.scale)
        if compiled is None or agreement is None or len(gram.matrix) > decompositions.SMALL:
            rounding = _Rounding.of(gram, self.rank)
        else:
            found = _weigh_compiled(gram, self.rank, agreement)
            if isinstance(found, Weights):
                return found
            rounding = found
        along, spread = rounding.along, rounding.spread * _DOUBT**2
        doubtful = along.square() < spread
        weights = self._judged(gram, rounding, along, doubtful)
        if weights.precise_enough:
            return weights
        some = doubtful.any(1) & rounding.inside
        if 0 < int(some.sum()) <= _REFINED and (refined := rounding.refined(gram, along, some)) is not None:
            left = (rounding.turn[some] @ rounding.noise / rounding.noise[some]).unsqueeze(1)
            doubtful[some] = refined.square() < spread[some] * left
            weights = self._judged(gram, rounding, along.index_put((some,), refined), doubtful)
        return weights

    def _judged(self, gram: Gram, rounding: "_Rounding", along: Tensor, doubtful: Tensor) -> Weights:
        """Return the weights from task gradients along eigenvectors, and whether rounding moves the update little."""
        values, vectors, inside = rounding.values, rounding.vectors, rounding.inside
        lengths = values.clamp(min=0)
        projections = lengths.sqrt().unsqueeze(1) * along
        rounded = _rounded_if_balanced(projections, gram)
        rounded = gram.rounded(projections) if rounded is None else rounded
        whole = bool(inside.all())
        factors = self.scale(rounded) if whole else self.scale(rounded) * inside.unsqueeze(1)
        kept = (factors * along).sum(1)
        lengths = lengths + rounding.noise
        moved = rounding.moved(lengths, kept, factors, along)
        # A projection close to zero may have the other sign, and then other factors.
        if bool(doubtful.any()):
            some = doubtful.any(1) & inside
            turned = self._turned(doubtful[some], projections[some], rounded[some], along[some])
            moved += float(lengths[some] @ turned)
        if not whole:
            if self.rank is None:
                moved += float((lengths + 3 * rounding.noise)[~inside] @ along[~inside].abs().sum(1).square())
            projections, factors = projections[inside], factors[inside]
        allowed = _DRIFT_OF_UPDATE**2 * float(values @ kept.square())
        enough = moved <= allowed or moved <= _DRIFT_OF_SUM**2 * float(gram.of_tasks.sum())
        return Weights(vectors @ kept, projections=projections, factors=factors, precise_enough=enough)

    def _turned(self, doubtful: Tensor, projections: Tensor, rounded: Tensor, along: Tensor) -> Tensor:
        """Return the square of what changes along each vector if doubtful projections have another sign. [r]"""
        before = self.scale(rounded)
        changes = [
            ((self.scale(torch.where(doubtful, sign * projections, rounded)) - before) * along).abs().sum(1).square()
            for sign in (-1, 1)  # the one that it has counts where it was taken for zero
        ]
        return torch.maximum(*changes)


class GDOD(_OnBasis):
    """Keep of every task gradient only what lies along basis vectors on which the tasks agree.

    Args:
        groups: into how many groups of consecutive examples a batch is cut; each gives one row a
            task. None: one group for each example. More groups than examples: one for each.
        decomposition: the basis: "svd" (the paper's), "qr", "randomized", or "random" (vectors of
            the whole parameter space; an ablation, whose update is never sparse).
        agreement: "sign": the tasks' projections have no opposite signs (the paper's definition);
            "product": their product is not negative (its Algorithm 1 as printed). The two differ
            from three tasks on. "soft" is ours: every projection on a vector is scaled by |Σ p| / Σ |p|, so
            that kept parts may still point against each other.
        rank: use at most this many basis vectors.
        seed: where the random decompositions start; a number or a `torch.Generator`.
    """

    def __init__(
        self,
        groups: int | None = 16,
        decomposition: str = "svd",
        agreement: str = "sign",
        rank: int | None = None,
        seed: int | torch.Generator = 0,
    ) -> None:
        super().__init__(groups, decomposition, rank, seed)
        check_choice("agreement", agreement, tuple(agreements.AGREEMENTS))
        self.agreement = agreement
        self.scale = agreements.AGREEMENTS[agreement]
        # The estimate of what rounding does takes factors for constant where no sign is in doubt; soft ones are not.
        self.accepts_float32_gram = agreement != "soft"

    def __repr__(self) -> str:
        return (
            f"GDOD(groups={self.groups}, decomposition={self.decomposition!r}, agreement={self.agreement!r}, "
            f"rank={self.rank})"
        )


class WeightedGDOD(_OnBasis):
    """Keep along each basis vector the side that more tasks are on, weighted by its lead.

    With a tasks on the positive and b on the negative side of K, the larger side's projections get
    the weight |a - b| / K, the others zero. Options as in `GDOD`.
    """

    def __init__(
        self,
        groups: int | None = 16,
        decomposition: str = "svd",
        rank: int | None = None,
        seed: int | torch.Generator = 0,
    ) -> None:
        super().__init__(groups, decomposition, rank, seed)
        self.scale = agreements.majority

    def __repr__(self) -> str:
        return f"WeightedGDOD(groups={self.groups}, decomposition={self.decomposition!r}, rank={self.rank})"


@dataclass(frozen=True)
class _Rounding:
    """The eigenvectors of a rounded Gram matrix, and how far rounding may have turned them."""

    values: Tensor  # smallest first [N]
    vectors: Tensor  # columns [N, N]
    noise: Tensor  # the size of what rounding adds to a value; between two vectors it is the mean of theirs, √(ab) [N]
    inside: Tensor  # which vectors count as directions [N]
    turn: Tensor  # the squares of the angles by which two vectors may have turned towards each other [N, N]
    along: Tensor  # the task gradients along the vectors, Uᵀ cᵢ [N, K]
    spread: Tensor  # by how much their squares may have changed [N, K]

    @staticmethod
    def of(gram: Gram, rank: int | None) -> "_Rounding":
        values, vectors = decompositions.eigh(gram.matrix)
        least = (_EIGH * float(values[-1])) ** 2
        noise, along, turn, spread = _turned(gram, values, vectors, least)
        return _Rounding(values, vectors, noise, _inside(gram, values, noise, rank), turn, along, spread)

    def moved(self, lengths: Tensor, kept: Tensor, factors: Tensor, along: Tensor) -> float:
        """Return the square of how far the update moves where two vectors turn and are scaled differently:

        Σ_a λ_a Σ_b turn_ab (Σᵢ (ω_bᵢ - ω_aᵢ) along_bᵢ)², from the lengths λ [N], Σᵢ ωᵢ ∘ alongᵢ [N], and both [N, K].
        """
        if compiled is None:
            return float(lengths @ (kept - factors @ along.T).square_().mul_(self.turn).sum(1))
        pointers = [x.contiguous() for x in (self.turn, lengths, kept, factors, along)]
        return float(compiled.moved(*[x.data_ptr() for x in pointers], *along.shape))

    def refined(self, gram: Gram, along: Tensor, some: Tensor) -> Tensor | None:
        """Return the task gradients along some eigenvectors, turned back to where they are without rounding. [s, K]

        What rounding did to these vectors is known once the exact matrix is applied to them, G u - (G + E) u.
        None where that cannot be done.
        """
        if gram.products_with is None:
            return None
        chosen = self.vectors[:, some]  # [N, s]
        exact = gram.products_with(chosen.T.contiguous())
        if exact is None:
            return None
        change = self.vectors.T @ (exact.T - gram.matrix @ chosen)  # [N, s]
        gaps = self.values[some] - self.values.unsqueeze(1)
        angles = torch.where(gaps == 0, 0.0, change / gaps)  # towards each of all vectors
        return along[some] + angles.T @ along


def _inside(gram: Gram, values: Tensor, noise: Tensor, rank: int | None) -> Tensor:
    """Return which vectors count as directions. [N]"""
    count = len(values)
    inside = values > (noise * _TOLD_APART).clamp_(min=count * gram.row_error**2 * float(values[-1]))
    if rank is not None:
        inside[: max(count - rank, 0)] = False
    return inside


def _weigh_compiled(gram: Gram, rank: int | None, agreement: int) -> "Weights | _Rounding":
    """Return the weights in one call, or where that is not precise enough what `_weigh_rounded` goes on with."""
    assert compiled is not None
    count, tasks = len(gram.matrix), gram.tasks
    matrix, averages = gram.matrix.contiguous(), gram.averages.contiguous()  # names keep them alive during the call
    rows, projections = matrix.new_empty(count), matrix.new_empty(2, count, tasks)
    values, noise = matrix.new_empty(2, count)
    along, spread = matrix.new_empty(2, count, tasks)
    turn, vectors = matrix.new_empty(2, count, count)
    outputs = [x.data_ptr() for x in (rows, projections, values, noise, along, spread, turn, vectors)]
    found = compiled.weigh(
        matrix.data_ptr(), averages.data_ptr(), count, tasks, rank or 0, agreement, gram.error, gram.row_error,
        gram.balanced, _EIGH, _TOLD_APART, _DOUBT, ZERO, _DRIFT_OF_UPDATE, _DRIFT_OF_SUM, *outputs,
    )  # fmt: skip
    if found >= 0:
        projections = projections[:, :found]
        return Weights(rows, projections=projections[0], factors=projections[1])
    if found == _NOT_CONVERGED:
        return _Rounding.of(gram, rank)
    return _Rounding(values, vectors.T, noise, _inside(gram, values, noise, rank), turn, along, spread)


def _turned(gram: Gram, values: Tensor, vectors: Tensor, least: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return `_Rounding`'s noise, along, turn and spread. ``least``: the square of what the decomposition adds itself.

    Rounding adds about e‖r_k‖‖r_l‖ to the inner product of two rows.
    """
    if compiled is None:
        noise = (gram.matrix.diagonal() * gram.error) @ vectors.square()
        noises = torch.outer(noise, noise).add_(least)
        turn = noises / (values.unsqueeze(1) - values).square_().clamp_(min=noises)
        along = (gram.averages @ vectors).T
        return noise, along, turn.fill_diagonal_(0), turn @ along.square()
    count, tasks = len(values), gram.tasks
    inputs = [x.contiguous() for x in (gram.matrix, values, vectors.T, gram.averages)]
    noise, turn = torch.empty_like(values), torch.empty_like(gram.matrix, memory_format=torch.contiguous_format)
    along, spread = values.new_empty(2, count, tasks)
    outputs = [x.data_ptr() for x in (noise, along, turn, spread)]
    compiled.rounding(*(x.data_ptr() for x in inputs), count, tasks, gram.error, least, *outputs)
    return noise, along, turn, spread


def _on_spectrum(gram: Gram, spectrum: decompositions.Spectrum) -> tuple[Tensor, Tensor, Tensor]:
    """Return the task gradients on the eigenvectors of the Gram matrix: Uᵀ cᵢ, their projections Λ^(1/2) Uᵀ cᵢ, and
    these with exact zeros where one counts as zero. [r, K] each"""
    values, vectors = spectrum.values.unsqueeze(1), spectrum.vectors
    along = (gram.averages @ vectors).T
    projections = values.sqrt() * along
    rounded = _rounded_if_balanced(projections, gram)
    if rounded is None:
        # The same from G cᵢ. That is the more exact one for a task much smaller than others, whose
        # places in U are lost in rounding; for small eigenvalues it is the less exact one.
        through = (vectors.T @ gram.with_tasks) / values
        along = torch.where(gram.norms**2 < values * gram.squares.sum(1), through, along)
        projections = values.sqrt() * along
        rounded = gram.rounded(projections)
    return along, projections, rounded


def _rounded_if_balanced(projections: Tensor, gram: Gram) -> Tensor | None:
    """Return `Gram.rounded` from the projections alone; None where some task is much smaller than rows are."""
    energy = projections.square()
    lengths = energy.sum(0)  # of the task gradients, squared [K]
    return projections * (energy > ZERO**2 * lengths) if min(lengths.tolist()) > gram.balanced else None
