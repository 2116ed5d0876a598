"""What GDOD promises, on sampled matrices of any rank and scale, with no model in sight."""

from dataclasses import dataclass, replace
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from tests._backward.grads import grad_of
from tests.reference import algorithm1, method
from torch import Tensor, nn

import gdod
from gdod._kernels import compiled
from gdod.methods import decompositions
from gdod.methods import gdod as estimates

SPANNING = ["svd", "qr", "randomized"]
DECOMPOSITIONS = [*SPANNING, "random"]
RULES = ["sign", "product", "weighted"]
SCALES = [1e-15, 1e-6, 1.0, 1e6, 1e15]


@dataclass(frozen=True)
class Sample:
    """A recipe for rows [n, K, D], short enough to be read when an example fails."""

    groups: int
    tasks: int
    size: int
    rank: int
    scale: float
    repeated: bool
    seed: int

    def rows(self) -> Tensor:
        generator = torch.Generator().manual_seed(self.seed)
        count = self.groups * self.tasks

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        rank = min(self.rank, count, self.size)
        matrix = normal(count, rank) @ normal(rank, self.size)
        if self.repeated:  # the last group repeats the first
            matrix[-self.tasks :] = matrix[: self.tasks]
        return self.scale * matrix.view(self.groups, self.tasks, self.size)


samples = st.builds(
    Sample,
    groups=st.integers(1, 5),
    tasks=st.integers(1, 5),
    size=st.integers(1, 30),
    rank=st.integers(0, 25),
    scale=st.sampled_from([0.0, *SCALES]),
    repeated=st.booleans(),
    seed=st.integers(0, 1000),
)
ZERO = Sample(groups=3, tasks=2, size=4, rank=0, scale=1.0, repeated=False, seed=0)
MORE_ROWS_THAN_COLUMNS = Sample(groups=5, tasks=4, size=3, rank=3, scale=1.0, repeated=False, seed=0)


def gradients(rows: Tensor) -> Tensor:
    return rows.mean(0)  # [K, D]


def gdod_with(decomposition: str, rule: str = "sign", **options: Any) -> Any:
    return method(rule, 16, decomposition=decomposition, **options)


def close(got: Tensor, want: Tensor, scale: Tensor, share: float = 1e-7) -> bool:
    return bool((got - want).norm() <= share * scale.norm())


# --- the two parts of a task gradient ------------------------------------------------------------


@pytest.mark.parametrize("decomposition", DECOMPOSITIONS)
@given(samples)
@example(ZERO)
@example(MORE_ROWS_THAN_COLUMNS)
def test_shared_parts_conflict_with_no_task(decomposition: str, sample: Sample) -> None:
    rows = sample.rows()
    g = gradients(rows)
    products = gdod_with(decomposition).decompose(rows).kept @ g.T  # [K, K]
    lengths = g.norm(dim=1)
    assert (products >= -1e-8 * torch.outer(lengths, lengths)).all()


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("decomposition", SPANNING)
@given(samples)
@example(ZERO)
def test_parts_make_up_the_gradient(decomposition: str, rule: str, sample: Sample) -> None:
    rows = sample.rows()
    g = gradients(rows)
    parts = gdod_with(decomposition, rule).decompose(rows)
    assert close(parts.kept + parts.conflict, g, scale=g)
    assert close(parts.update, parts.kept.sum(0), scale=g)


@pytest.mark.parametrize("agreement", ["sign", "product"])
@pytest.mark.parametrize("decomposition", DECOMPOSITIONS)
@given(samples)
def test_parts_are_orthogonal(decomposition: str, agreement: str, sample: Sample) -> None:
    """Between any two tasks, not only within one: the proof of Theorem 1 needs that."""
    rows = sample.rows()
    parts = gdod_with(decomposition, agreement).decompose(rows)
    lengths = gradients(rows).norm(dim=1)
    assert ((parts.kept @ parts.conflict.T).abs() <= 1e-7 * torch.outer(lengths, lengths)).all()


@pytest.mark.parametrize("rule", RULES)
@given(samples)
@example(ZERO)
def test_dense_rows_and_gram_matrix_agree(rule: str, sample: Sample) -> None:
    rows = sample.rows()
    flat = rows.flatten(0, 1)  # [N, D]
    dense = method(rule, 16).from_rows(rows)
    weights = method(rule, 16).from_gram(flat @ flat.T, tasks=sample.tasks).rows
    assert weights.shape == (len(flat),)
    assert close(flat.T @ weights, dense, scale=gradients(rows), share=1e-6)
    assert close(method(rule, 16).decompose(rows).update, dense, scale=gradients(rows), share=1e-6)


@pytest.mark.parametrize("rule", RULES)
@given(samples)
@example(ZERO)
@example(MORE_ROWS_THAN_COLUMNS)
def test_from_rows_is_algorithm_1(rule: str, sample: Sample) -> None:
    rows = sample.rows()
    if not rows.any():
        assert not method(rule, 16).from_rows(rows).any()
        return
    want = algorithm1(rows, rule=rule)
    assert close(method(rule, 16).from_rows(rows), want.update, scale=want.gradients)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("scale", SCALES)
def test_float32_rows(rule: str, scale: float) -> None:
    rows = torch.randn(4, 3, 50) * scale
    got = method(rule, 16).from_rows(rows)
    assert got.dtype == torch.float32
    want = algorithm1(rows, rule=rule)
    assert close(got.double(), want.update, scale=want.gradients, share=1e-5)


# --- symmetries ----------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES)
@given(samples, st.randoms(use_true_random=False))
def test_order_of_tasks_does_not_matter(rule: str, sample: Sample, random: Random) -> None:
    rows = sample.rows()
    order = random.sample(range(sample.tasks), sample.tasks)
    way = method(rule, 16)
    assert close(way.from_rows(rows[:, order]), way.from_rows(rows), scale=gradients(rows))


@pytest.mark.parametrize("rule", RULES)
@given(samples, st.randoms(use_true_random=False))
def test_order_of_groups_does_not_matter(rule: str, sample: Sample, random: Random) -> None:
    rows = sample.rows()
    order = random.sample(range(sample.groups), sample.groups)
    way = method(rule, 16)
    assert close(way.from_rows(rows[order]), way.from_rows(rows), scale=gradients(rows))


@given(st.integers(0, 1000), st.randoms(use_true_random=False))
def test_order_of_examples_inside_a_group_does_not_matter(seed: int, random: Random) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(8, 4, generator=generator, dtype=torch.float64)
    targets = torch.randn(8, 2, generator=generator, dtype=torch.float64)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)).double()

    def update(order: list[int]) -> Tensor:
        model.zero_grad()
        gdod.backward((model(x[order]) - targets[order]) ** 2, gdod.GDOD(groups=2))
        return torch.cat([grad_of(p).reshape(-1) for p in model.parameters()])

    order = random.sample(range(4), 4) + random.sample(range(4, 8), 4)
    base = update(list(range(8)))
    assert close(update(order), base, scale=base)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("factor", [1e-15, 1e-3, 7.0, 1e15])
@given(samples)
def test_scaling_the_rows_scales_the_update(rule: str, factor: float, sample: Sample) -> None:
    rows = sample.rows()
    if sample.scale not in (0.0, 1.0):
        rows = rows / sample.scale
    way = method(rule, 16)
    got, want = way.from_rows(factor * rows), factor * way.from_rows(rows)
    assert close(got, want, scale=factor * gradients(rows))


# --- special cases -------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("decomposition", SPANNING)
@given(samples)
def test_one_task_gets_its_gradient(decomposition: str, rule: str, sample: Sample) -> None:
    rows = sample.rows()[:, :1]
    g = gradients(rows)
    assert close(gdod_with(decomposition, rule).from_rows(rows), g[0], scale=g)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("decomposition", SPANNING)
@given(samples)
def test_tasks_with_equal_gradients_get_their_sum(decomposition: str, rule: str, sample: Sample) -> None:
    rows = sample.rows()[:, :1].expand(-1, sample.tasks, -1).contiguous()
    g = gradients(rows)
    assert close(gdod_with(decomposition, rule).from_rows(rows), g.sum(0), scale=g)


@given(samples)
def test_a_task_without_gradient_vetoes_nothing(sample: Sample) -> None:
    rows = sample.rows()
    more = torch.cat([rows, torch.zeros_like(rows[:, :1])], dim=1)
    g = gradients(rows)
    assert close(gdod.GDOD().from_rows(more), gdod.GDOD().from_rows(rows), scale=g)
    # A zero makes every product zero, so line 4 of Algorithm 1 keeps everything.
    assert close(gdod.GDOD(agreement="product").from_rows(more), g.sum(0), scale=g)


@pytest.mark.parametrize("agreement", ["sign", "product"])
@given(samples)
def test_a_gradient_that_cancels_vetoes_nothing(agreement: str, sample: Sample) -> None:
    """A task whose rows are not zero but whose gradient is: what is left of it is rounding."""
    first = sample.rows()[:1, :2]  # [1, K, D]
    second = torch.cat([-first[:, :1], first[:, 1:]], dim=1)
    rows = torch.cat([first, second])
    g = gradients(rows)
    assert not g[0].any()
    assert close(gdod.GDOD(agreement=agreement).from_rows(rows), g.sum(0), scale=g)


@given(samples)
def test_two_tasks_agree_by_sign_as_by_product(sample: Sample) -> None:
    rows = sample.rows()[:, :2]
    sign, product = gdod.GDOD().from_rows(rows), gdod.GDOD(agreement="product").from_rows(rows)
    assert close(sign, product, scale=gradients(rows))


@given(samples)
def test_sum_is_the_sum(sample: Sample) -> None:
    rows = sample.rows()
    g = gradients(rows)
    assert close(gdod.Sum().from_rows(rows), g.sum(0), scale=g, share=1e-12)


# --- bases ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("decomposition", DECOMPOSITIONS)
@given(samples)
@example(ZERO)
@example(MORE_ROWS_THAN_COLUMNS)
def test_basis_is_orthonormal(decomposition: str, sample: Sample) -> None:
    basis = gdod_with(decomposition).decompose(sample.rows()).basis
    assert basis.shape[1] == sample.size
    assert close(basis @ basis.T, torch.eye(len(basis)).double(), scale=torch.ones(1).double())


@pytest.mark.parametrize("decomposition", SPANNING)
@given(samples)
@example(ZERO)
@example(MORE_ROWS_THAN_COLUMNS)
def test_basis_spans_the_rows(decomposition: str, sample: Sample) -> None:
    rows = sample.rows()
    flat = rows.flatten(0, 1)
    parts = gdod_with(decomposition).decompose(rows)
    rank = 0 if not rows.any() else int(torch.linalg.matrix_rank(flat))
    assert len(parts.basis) == rank
    assert close(flat @ parts.basis.T @ parts.basis, flat, scale=flat)
    assert close(parts.projections, parts.basis @ gradients(rows).T, scale=gradients(rows))


@pytest.mark.parametrize("decomposition", SPANNING)
@given(samples)
def test_coefficients_make_an_orthonormal_basis(decomposition: str, sample: Sample) -> None:
    """`gdod.methods.decompositions`: A from G, with A G A^T = I."""
    flat = sample.rows().flatten(0, 1)
    gram = flat @ flat.T
    options = {"generator": torch.Generator()} if decomposition == "randomized" else {}
    a = getattr(gdod.methods.decompositions, decomposition)(gram, **options)
    assert close(a @ gram @ a.T, torch.eye(len(a)).double(), scale=torch.ones(1).double())


@pytest.mark.parametrize("decomposition", DECOMPOSITIONS)
@pytest.mark.parametrize("rank", [1, 4, 100])
def test_rank_is_a_cap(decomposition: str, rank: int) -> None:
    rows = torch.randn(4, 3, 50, dtype=torch.float64)
    basis = gdod_with(decomposition, rank=rank).decompose(rows).basis
    most = 50 if decomposition == "random" else 12  # those vectors are not of the rows' span
    assert len(basis) == min(rank, most)


def test_capped_svd_keeps_the_largest_singular_vectors() -> None:
    rows = torch.randn(4, 3, 50, dtype=torch.float64)
    flat = rows.flatten(0, 1)
    basis = gdod.GDOD(rank=4).decompose(rows).basis
    lost = (flat - flat @ basis.T @ basis).norm()
    torch.testing.assert_close(lost, torch.linalg.svdvals(flat)[4:].norm())


@pytest.mark.parametrize("decomposition", ["randomized", "random"])
def test_seed_decides_every_random_choice(decomposition: str) -> None:
    rows = torch.randn(20, 3, 100, dtype=torch.float64)

    def update(seed: int | torch.Generator) -> Tensor:
        made: Tensor = gdod_with(decomposition, rank=4, seed=seed).from_rows(rows)
        return made

    assert torch.equal(update(1), update(1))
    assert not torch.allclose(update(1), update(2))
    first, second = (torch.Generator().manual_seed(5) for _ in range(2))
    assert torch.equal(update(first), update(second))


# --- Weighted-GDOD on cases whose basis is known -------------------------------------------------

# Orthogonal rows of distinct lengths are their own basis, so `averages` times the lengths are the
# projections, and every pattern of signs can be written down.
PATTERNS = {
    "three against none": ([1.0, 2.0, 3.0], 6.0),
    "two against one": ([1.0, 2.0, -5.0], (1 + 2) / 3),
    "one against two": ([1.0, -2.0, -5.0], -(2 + 5) / 3),
    "none against three": ([-1.0, -2.0, -3.0], -6.0),
    "one against one, one zero": ([4.0, -2.0, 0.0], 0.0),
    "two and a zero": ([4.0, 2.0, 0.0], (4 + 2) * 2 / 3),
    "one alone": ([0.0, 0.0, -3.0], -3 / 3),
    "two against one, by count and not by size": ([0.1, 0.1, -50.0], 0.2 / 3),
    "all zero": ([0.0, 0.0, 0.0], 0.0),
}


def test_weighted_gdod_is_the_formula_on_every_pattern_of_signs() -> None:
    averages = torch.tensor([pattern for pattern, _ in PATTERNS.values()], dtype=torch.float64).T
    want = torch.tensor([value for _, value in PATTERNS.values()], dtype=torch.float64)
    lengths = torch.arange(1, len(PATTERNS) + 1, dtype=torch.float64)
    rows = torch.diag(lengths).view(3, 3, 9)  # 9 rows: 3 groups of 3 tasks
    torch.testing.assert_close(gdod.WeightedGDOD().from_rows(rows, averages=averages), lengths * want)
    weights = gdod.WeightedGDOD().from_gram(torch.diag(lengths**2), tasks=3, averages=averages)
    torch.testing.assert_close(weights.rows, want)


@pytest.mark.parametrize(
    ("signs", "weight"),
    [([1.0, 1.0], 1.0), ([1.0, -1.0], 0.0), ([1.0, 0.0], 0.5), ([0.0, 0.0], 0.0)],
)
def test_weighted_gdod_of_two_tasks(signs: list[float], weight: float) -> None:
    averages = torch.tensor([[signs[0], 0.0], [signs[1], 0.0]], dtype=torch.float64)
    rows = torch.diag(torch.tensor([3.0, 2.0], dtype=torch.float64)).view(1, 2, 2)
    want = torch.tensor([3.0 * weight * sum(signs), 0.0], dtype=torch.float64)
    torch.testing.assert_close(gdod.WeightedGDOD().from_rows(rows, averages=averages), want)


def test_weighted_gdod_of_one_task_is_the_gradient() -> None:
    rows = torch.tensor([[[3.0, -4.0]]], dtype=torch.float64)
    torch.testing.assert_close(gdod.WeightedGDOD().from_rows(rows), rows[0, 0])


# --- rounded Gram matrices -----------------------------------------------------------------------


def awkward_rows(kind: str, seed: int) -> Tensor:
    """Return float32 rows [8, 4, 300] of tasks of different sizes, with a common part, and something awkward."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(8, 4, 300, generator=generator) + torch.randn(4, 300, generator=generator)
    rows *= torch.tensor([1.0, 0.3, 0.05, 0.01]).unsqueeze(1)
    if kind == "repeated":
        rows[1] = rows[0]
    elif kind == "nearly dependent":
        rows[1] = rows[0] * (1 + 1e-4 * torch.randn(rows[0].shape, generator=generator))
    elif kind == "a task without a gradient":
        rows[4:, 2] = -rows[:4, 2]
    elif kind == "a tiny task":
        rows[:, 3] *= 1e-5
    elif kind == "zero rows":
        rows[2:4, 1] = 0
    elif kind == "large":
        rows *= 1e6
    return rows


AWKWARD = ["nothing", "repeated", "nearly dependent", "a task without a gradient", "a tiny task", "zero rows", "large"]


def rounded_gram(rows: Tensor, refine: bool = False) -> gdod.Gram:
    """Return inner products in float32. ``refine``: some can be had exactly."""
    flat, eps = rows.flatten(0, 1), torch.finfo(torch.float32).eps
    averages = torch.eye(rows.shape[1], dtype=torch.float64).repeat(1, len(rows)) / len(rows)
    exact = flat.double() @ flat.double().T
    return gdod.Gram(
        (flat @ flat.T).double(),
        averages,
        row_error=eps,
        error=eps / 2,
        products_with=(lambda weights: weights @ exact) if refine else None,
    )


def from_rounded(rule: str, rows: Tensor, refine: bool = False) -> tuple[gdod.Weights, Tensor]:
    """Return what the inner products in float32 give, and the update of it."""
    weights = method(rule, 16).weigh(rounded_gram(rows, refine))
    return weights, weights.rows @ rows.flatten(0, 1).double()


@pytest.mark.parametrize("refine", [False, True])
@pytest.mark.parametrize("kind", AWKWARD)
@pytest.mark.parametrize("rule", RULES)
def test_a_rounded_gram_matrix_is_taken_only_where_it_is_precise_enough(rule: str, kind: str, refine: bool) -> None:
    for seed in range(20):
        rows = awkward_rows(kind, seed)
        weights, update = from_rounded(rule, rows, refine)
        want = algorithm1(rows.double(), rule=rule)
        allowed = max(1e-4 * want.update.norm(), 1e-6 * want.gradients.sum(0).norm())
        assert not weights.precise_enough or (update - want.update).norm() <= allowed


@pytest.mark.skipif(compiled is None, reason="gdod was installed without a C compiler, or GDOD_KERNELS=0")
@pytest.mark.parametrize("kind", AWKWARD)
def test_the_estimate_is_the_same_without_compiled_kernels(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    for seed in range(3):
        rows = awkward_rows(kind, seed)
        gram = rounded_gram(rows)
        values, vectors = decompositions.eigh(gram.matrix)
        ours = estimates._turned(gram, values, vectors, 1e-12)
        rounding = estimates._Rounding(values, vectors, ours[0], values > 0, ours[2], ours[1], ours[3])
        factors = torch.rand_like(rounding.along).sub(0.5).relu()
        numbers = rounding.moved(values.abs(), (factors * rounding.along).sum(1), factors, rounding.along)
        with monkeypatch.context() as without:
            without.setattr(estimates, "compiled", None)
            theirs = estimates._turned(gram, values, vectors, 1e-12)
            others = rounding.moved(values.abs(), (factors * rounding.along).sum(1), factors, rounding.along)
        for one, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9 * float(other.abs().max()))
        assert numbers == pytest.approx(others, rel=1e-9)


@pytest.mark.skipif(compiled is None, reason="gdod was installed without a C compiler, or GDOD_KERNELS=0")
@pytest.mark.parametrize("rank", [None, 1, 3, 100])
@pytest.mark.parametrize("kind", AWKWARD)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("wide", [True, False])
def test_weights_are_the_same_without_compiled_kernels(
    monkeypatch: pytest.MonkeyPatch, wide: bool, rule: str, kind: str, rank: int | None
) -> None:
    assert compiled is not None
    compiled.use_wide(wide)
    for seed in range(3):
        gram, way = rounded_gram(awkward_rows(kind, seed), refine=True), method(rule, 16)
        way.rank = rank
        ours = way.weigh(gram)
        with monkeypatch.context() as without:
            without.setattr(estimates, "compiled", None)
            without.setattr(decompositions, "compiled", None)
            theirs = way.weigh(gram)
        assert ours.precise_enough == theirs.precise_enough
        if not ours.precise_enough:  # then it is the float64 matrix that counts
            continue
        lengths = gram.matrix.diagonal().sqrt()
        torch.testing.assert_close(
            lengths * ours.rows, lengths * theirs.rows, rtol=1e-6, atol=1e-6 * float(lengths.max())
        )
        assert ours.rank == theirs.rank
        torch.testing.assert_close(ours.energy_kept, theirs.energy_kept)
        torch.testing.assert_close(ours.directions_kept, theirs.directions_kept)
    compiled.use_wide(True)


@pytest.mark.skipif(compiled is None, reason="gdod was installed without a C compiler, or GDOD_KERNELS=0")
@pytest.mark.parametrize("kind", AWKWARD)
@pytest.mark.parametrize("rule", RULES)
def test_the_error_from_which_on_a_matrix_is_not_enough_is_the_same_without_compiled_kernels(
    monkeypatch: pytest.MonkeyPatch, rule: str, kind: str
) -> None:
    rows, enough = awkward_rows(kind, seed=0), []
    grams = [replace(rounded_gram(rows), error=2.0 ** (exponent / 16)) for exponent in range(-480, -160, 2)]
    for name in ("compiled", "torch"):
        with monkeypatch.context() as without:
            if name == "torch":
                without.setattr(estimates, "compiled", None)
                without.setattr(decompositions, "compiled", None)
            found = [method(rule, 16).weigh(gram) for gram in grams]
            enough.append([(weights.precise_enough, weights.rank) for weights in found])
    assert enough[0] == enough[1]
    assert kind != "nothing" or {precise for precise, _ in enough[0]} == {True, False}


@pytest.mark.parametrize(("rank", "enough"), [(None, False), (1, True)])
@pytest.mark.parametrize("with_kernels", [True, False])
def test_a_gradient_along_a_direction_that_is_too_short_to_count_is_a_doubt(
    monkeypatch: pytest.MonkeyPatch, with_kernels: bool, rank: int | None, enough: bool
) -> None:
    if not with_kernels:
        monkeypatch.setattr(estimates, "compiled", None)
    ones = torch.ones(2, 2, dtype=torch.float64)
    gram = gdod.Gram(torch.tensor([1.0, 1e-6], dtype=torch.float64).diag(), ones, row_error=1e-3, error=1e-9)
    assert gdod.GDOD(rank=rank).weigh(gram).precise_enough == enough


@pytest.mark.parametrize("rule", RULES)
def test_a_rounded_gram_matrix_of_tasks_of_different_sizes_is_mostly_enough(rule: str) -> None:
    """Rounding is relative to the rows that a direction is made of, not to the longest rows there are."""
    enough = [from_rounded(rule, awkward_rows("nothing", seed))[0].precise_enough for seed in range(20)]
    assert sum(enough) >= 16


def almost_agreeing_rows(share: float) -> Tensor:
    """Return float32 rows [3, 2, 40] of tasks of which one, but for that share of it, has no part along a direction."""
    generator = torch.Generator().manual_seed(0)
    basis = torch.linalg.qr(torch.randn(40, 6, generator=generator, dtype=torch.float64)).Q.T  # orthonormal [6, D]
    left = torch.linalg.qr(torch.randn(6, 6, generator=generator, dtype=torch.float64)).Q  # rows by directions
    average = torch.eye(2, dtype=torch.float64).repeat(1, 3)[0]
    direction = left[:, 0] - average * (left[:, 0] @ average) / (average @ average) + share * average
    left = torch.linalg.qr(torch.cat([direction.unsqueeze(1), left[:, 1:]], 1)).Q
    sizes = torch.tensor([6.0, 5.0, 4.0, 3.0, 2.0, 1.0], dtype=torch.float64)
    rows: Tensor = (left * sizes @ basis).float().view(3, 2, 40)
    return rows


@pytest.mark.parametrize("rule", ["sign", "weighted"])
@pytest.mark.parametrize("share", [1e-8, -1e-8])
def test_the_sign_of_a_projection_close_to_zero_is_found_out_without_a_precise_gram_matrix(
    rule: str, share: float
) -> None:
    rows, eps = almost_agreeing_rows(share).double(), torch.finfo(torch.float32).eps
    flat, generator = rows.flatten(0, 1), torch.Generator().manual_seed(0)
    exact, averages = flat @ flat.T, torch.eye(2, dtype=torch.float64).repeat(1, 3) / 3
    lengths = exact.diagonal().sqrt()
    want = algorithm1(rows, rule=rule).update
    wrong = 0
    for _ in range(20):
        noise = torch.randn(6, 6, generator=generator, dtype=torch.float64).tril()
        rounded = exact + eps / 4 * (noise + noise.tril(-1).T) * torch.outer(lengths, lengths)
        gram = gdod.Gram(rounded, averages, row_error=eps, error=eps / 2)
        weights = method(rule, 16).weigh(gram)
        assert not weights.precise_enough
        wrong += bool((weights.rows @ flat - want).norm() > 1e-4 * want.norm())
        weights = method(rule, 16).weigh(replace(gram, products_with=lambda weights: weights @ exact))
        assert weights.precise_enough
        assert (weights.rows @ flat - want).norm() <= 1e-4 * want.norm()
    assert 2 < wrong < 18  # or there is nothing to find out
