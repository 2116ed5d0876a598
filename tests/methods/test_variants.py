"""Variants of GDOD: each option against its formula on dense rows, and what none of them may change."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.methods.samples import (
    ROWS,
    assert_continues,
    assert_near,
    gram_of,
    randn,
    saved_and_loaded,
    training,
    update,
)
from torch import Tensor

import gdod
from gdod import GDODVariant

AGREEMENTS = ("sign", "product", "majority", "soft", "lead")
OPTIONS: list[dict[str, Any]] = [
    *({"agreement": agreement} for agreement in AGREEMENTS),
    {"normalise": True},
    {"normalise": True, "agreement": "soft"},
    {"balance": True},
    {"balance": True, "agreement": "soft", "mix": 0.3},
    {"memory": 0.9},
    {"length": "sum"},
    {"mix": 0.3, "agreement": "lead"},
    {"rank": 2},
]
EVERY = pytest.mark.parametrize("options", OPTIONS, ids=str)
SAMPLES = pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)


def normalised(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Rows [n, K, D] with each task's divided by the length of its gradient, and the lengths [K]."""
    lengths = rows.mean(0).norm(dim=1)
    return rows / lengths[:, None], lengths


def factors_by_formula(agreement: str, projections: Tensor) -> Tensor:
    """One basis vector after the other. [r, K]"""
    found = []
    for p in projections.tolist():
        up, down = sum(x for x in p if x > 0), -sum(x for x in p if x < 0)
        if agreement == "soft":
            found.append([abs(sum(p)) / sum(map(abs, p))] * len(p))
        elif agreement == "lead" and abs(up - down) <= 1e-9 * (up + down):
            found.append([0.0] * len(p))
        elif agreement == "lead":
            found.append([float(x > 0) if up > down else float(x < 0) for x in p])
        else:
            found.append([float(up == 0 or down == 0)] * len(p))
    return torch.tensor(found, dtype=torch.float64)


@SAMPLES
def test_the_defaults_are_gdod(rows: Tensor) -> None:
    gram = gram_of(rows)
    for rank in (None, 2):
        found, wanted = GDODVariant(rank=rank).weigh(gram), gdod.GDOD(rank=rank).weigh(gram)
        assert torch.equal(found.rows, wanted.rows)
        assert (found.energy_kept, found.directions_kept) == (wanted.energy_kept, wanted.directions_kept)


@SAMPLES
def test_product_and_majority_are_those_of_gdod(rows: Tensor) -> None:
    gram = gram_of(rows)
    product, majority = GDODVariant(agreement="product"), GDODVariant(agreement="majority")
    assert torch.equal(product.weigh(gram).rows, gdod.GDOD(agreement="product").weigh(gram).rows)
    assert torch.equal(majority.weigh(gram).rows, gdod.WeightedGDOD().weigh(gram).rows)


@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize("agreement", ["sign", "soft", "lead"])
@given(st.integers(0, 10**6), st.integers(2, 5), st.integers(1, 4))
def test_agreement_by_its_formula(agreement: str, normalise: bool, seed: int, tasks: int, groups: int) -> None:
    rows = randn(groups, tasks, 40, seed=seed) * (1 + 9 * randn(1, tasks, 1, seed=seed + 1).abs())
    seen, lengths = normalised(rows) if normalise else (rows, torch.ones(tasks, dtype=torch.float64))
    parts = gdod.GDOD().decompose(seen)
    factors = factors_by_formula(agreement, parts.projections)
    wanted = (factors * parts.projections * lengths).sum(1) @ parts.basis
    found = GDODVariant(agreement=agreement, normalise=normalise).from_rows(rows)
    torch.testing.assert_close(found, wanted, rtol=1e-8, atol=1e-8)


@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(1, 4))
def test_soft_is_between_gdod_and_the_sum(seed: int, tasks: int, groups: int) -> None:
    rows = randn(groups, tasks, 30, seed=seed)
    basis = gdod.GDOD().decompose(rows).basis
    hard, soft, whole = (basis @ x for x in (
        GDODVariant().from_rows(rows), GDODVariant(agreement="soft").from_rows(rows), rows.mean(0).sum(0)
    ))  # fmt: skip
    assert bool((hard.abs() <= soft.abs() + 1e-9).all())
    assert bool((soft.abs() <= whole.abs() + 1e-9).all())


def test_lead_keeps_neither_of_two_equal_sides() -> None:
    for pulls in ([2.0, -2.0], [3.0, -1.0, -2.0], [0.1, 0.2, -0.3]):
        rows = torch.tensor(pulls, dtype=torch.float64).view(1, -1, 1)
        assert GDODVariant(agreement="lead").from_rows(rows).item() == 0
    rows = torch.tensor([[[2.0], [3.0], [-4.0]]], dtype=torch.float64)
    torch.testing.assert_close(GDODVariant(agreement="lead").from_rows(rows), torch.tensor([5.0]).double())


@pytest.mark.parametrize("agreement", AGREEMENTS)
def test_a_vector_that_concerns_no_task(agreement: str) -> None:
    """Groups differ along a vector on which all task gradients are zero."""
    along = torch.tensor([0.0, 3.0], dtype=torch.float64)
    rows = torch.tensor([[[1.0, 0.0], [2.0, 0.0]]], dtype=torch.float64) + torch.stack([along, -along]).unsqueeze(1)
    torch.testing.assert_close(GDODVariant(agreement=agreement).from_rows(rows), rows.mean(0).sum(0))


@given(st.integers(0, 10**6), st.floats(1e-3, 1e3))
def test_normalised_tasks_agree_whatever_their_length(seed: int, factor: float) -> None:
    rows = randn(4, 3, 40, seed=seed)
    longer = rows * torch.tensor([[[1.0], [factor], [1.0]]], dtype=torch.float64)
    method = GDODVariant(agreement="soft", normalise=True)
    one, other = (method.weigh(gram_of(x.flatten(0, 1), groups=4)) for x in (rows, longer))
    torch.testing.assert_close(other.factors, one.factors, rtol=1e-6, atol=1e-6)
    assert one.projections is not None
    scale = torch.tensor([1.0, factor, 1.0], dtype=torch.float64)
    torch.testing.assert_close(other.projections, one.projections * scale, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("options", [{}, {"agreement": "soft"}, {"mix": 1.0}, {"length": "sum"}], ids=str)
@given(st.integers(0, 10**6))
def test_balanced_tasks_are_tasks_of_equal_length(options: dict[str, Any], seed: int) -> None:
    rows = randn(4, 3, 30, seed=seed) * torch.tensor([1.0, 30.0, 0.01], dtype=torch.float64)[:, None]
    unit, lengths = normalised(rows)
    found = GDODVariant(balance=True, **options).from_rows(rows)
    torch.testing.assert_close(found, GDODVariant(**options).from_rows(unit * lengths.mean()), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("memory", [0.5, 0.9])
def test_the_basis_of_a_running_average(memory: float) -> None:
    method, seen = GDODVariant(memory=memory), []
    for gram in training(groups=3, missing=False):
        found = method.weigh(gram)
        seen.append(gram.matrix)
        ages = torch.arange(len(seen) - 1, -1, -1, dtype=torch.float64)
        shares = memory**ages / (memory**ages).sum()
        values, vectors = torch.linalg.eigh((torch.stack(seen) * shares[:, None, None]).sum(0))
        vectors = vectors[:, values > gram.tolerance * values[-1]]
        along = vectors.T @ gram.averages.T
        wanted = vectors @ ((along.amin(1) >= 0) | (along.amax(1) <= 0)).double().mul(along.sum(1))
        torch.testing.assert_close(found.rows, wanted)
        assert found.projections is not None
        lengths = (gram.averages @ (torch.stack(seen) * shares[:, None, None]).sum(0) @ gram.averages.T).diagonal()
        torch.testing.assert_close(found.projections.square().sum(0), lengths)


def test_equal_steps_have_their_own_basis() -> None:
    rows = randn(12, 20)
    method = GDODVariant(memory=0.9)
    for _ in range(3):
        torch.testing.assert_close(
            method.weigh(gram_of(rows, groups=4)).rows, gdod.GDOD().weigh(gram_of(rows, groups=4)).rows
        )


def test_the_average_starts_again_with_another_number_of_rows() -> None:
    method = GDODVariant(memory=0.9)
    for seed in range(3):
        method.weigh(gram_of(randn(12, 20, seed=seed), groups=4))
    gram = gram_of(randn(9, 20), groups=3)
    torch.testing.assert_close(method.weigh(gram).rows, gdod.GDOD().weigh(gram).rows)


@SAMPLES
def test_the_length_of_the_plain_sum(rows: Tensor) -> None:
    kept, found = update(GDODVariant(), rows), update(GDODVariant(length="sum"), rows)
    if float(kept.norm()) <= 1e-6 * float(rows.norm(dim=1).max()):
        assert_near(found, kept, rows)
    else:
        torch.testing.assert_close(found.norm(), rows.sum(0).norm())
        torch.testing.assert_close(found / found.norm(), kept / kept.norm())


def test_nothing_kept_has_no_length() -> None:
    rows = ROWS["opposite of other length"]
    assert bool((update(GDODVariant(length="sum"), rows) == 0).all())
    # The groups of a task differ along a second basis vector, on which both gradients are zero but for rounding.
    first, second = torch.linalg.qr(randn(9, 2)).Q.T
    one, two = [first + 0.1 * second, first - 0.1 * second], [-0.3 * first + second, -0.3 * first - second]
    rows = torch.stack([torch.stack(pair) for pair in zip(one, two, strict=True)])
    assert float(GDODVariant().from_rows(rows).norm()) < 1e-12
    assert bool((GDODVariant(length="sum").from_rows(rows) == 0).all())


@SAMPLES
def test_a_mix_with_the_plain_sum(rows: Tensor) -> None:
    wanted = 0.75 * update(GDODVariant(), rows) + 0.25 * rows.sum(0)
    assert_near(update(GDODVariant(mix=0.25), rows), wanted, rows)
    assert_near(update(GDODVariant(mix=1.0), rows), rows.sum(0), rows)


def test_energy_kept_of_a_mix() -> None:
    weights = GDODVariant(mix=1.0).weigh(gram_of(randn(3, 9)))
    assert weights.energy_kept == pytest.approx(1)


def test_the_plain_sum_before_the_beginning_and_from_the_end_on() -> None:
    method, steps = GDODVariant(begin=2, end=5, memory=0.5), training(groups=2)
    always = GDODVariant(memory=0.5)
    for step, gram in enumerate(steps):
        found, inside = method.weigh(gram).rows, always.weigh(gram).rows
        plain = gram.averages.sum(0)
        assert not torch.equal(inside, plain)
        assert torch.equal(found, inside if 2 <= step < 5 else plain)


@EVERY
@given(st.integers(0, 10**6), st.permutations(range(3)))
def test_the_order_of_tasks_does_not_matter(options: dict[str, Any], seed: int, order: list[int]) -> None:
    one, other = GDODVariant(**options), GDODVariant(**options)
    for step in range(2):
        rows = randn(4, 3, 30, seed=seed + step)
        found, permuted = one.from_rows(rows), other.from_rows(rows[:, order])
        torch.testing.assert_close(permuted, found, rtol=1e-6, atol=1e-8)


@EVERY
@SAMPLES
def test_degenerate_rows(rows: Tensor, options: dict[str, Any]) -> None:
    method = GDODVariant(**options)
    for _ in range(2):
        found = update(method, rows)
        assert bool(found.isfinite().all())
    if bool((rows == 0).all()):
        assert bool((found == 0).all())
    if len(rows) == 1:
        assert_near(found, rows[0], rows)


@pytest.mark.parametrize("options", [o for o in OPTIONS if o.get("agreement") not in ("product", "majority")], ids=str)
@given(st.integers(0, 10**6))
def test_a_task_without_gradient_is_in_nobodys_way(options: dict[str, Any], seed: int) -> None:
    one, other = GDODVariant(**options), GDODVariant(**options)
    for step in range(2):
        rows = randn(4, 2, 30, seed=seed + step)
        with_zero = torch.cat([rows, torch.zeros(4, 1, 30, dtype=torch.float64)], 1)
        torch.testing.assert_close(other.from_rows(with_zero), one.from_rows(rows), rtol=1e-6, atol=1e-8)


@given(st.integers(0, 10**6))
def test_rows_that_cancel_have_no_direction_when_normalised(seed: int) -> None:
    cancels, others = randn(5, 1, 20, seed=seed), randn(5, 2, 20, seed=seed + 1)
    cancels[4] = -cancels[:4].sum(0)
    found = GDODVariant(normalise=True).from_rows(torch.cat([others, cancels], 1))
    torch.testing.assert_close(found, GDODVariant(normalise=True).from_rows(others))


@EVERY
def test_goes_on_where_it_was_saved(options: dict[str, Any]) -> None:
    assert_continues(lambda: GDODVariant(begin=3, end=10, **options), training(groups=3))


def test_parts_remember_apart() -> None:
    def rows(part: int, step: int) -> gdod.Gram:
        gram = gram_of(randn(12, 20, seed=10 * step + part), groups=4)
        return gdod.Gram(gram.matrix, gram.averages, part=part)

    together, alone = GDODVariant(memory=0.8, begin=1), [GDODVariant(memory=0.8, begin=1) for _ in range(3)]
    for step in range(6):
        if step == 3:
            saved, together = together, GDODVariant(memory=0.8, begin=1)
            together.load_state_dict(saved_and_loaded(saved.state_dict()))
        for part in (2, 0, 1):
            found = together.weigh(rows(part, step)).rows
            assert torch.equal(found, alone[part].weigh(rows(part, step)).rows)


def test_a_saved_state_does_not_change_afterwards() -> None:
    method = GDODVariant(memory=0.5)
    first, second = training()[:2]
    method.weigh(first)
    state = method.state_dict()
    before = saved_and_loaded(state)
    method.weigh(second)
    assert torch.equal(state["parts"][0]["average"], before["parts"][0]["average"])  # type: ignore[index]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"agreement": "sofd"}, "did you mean 'soft'"),
        ({"length": "all"}, "length='all' is unknown"),
        ({"scope": "layers"}, "did you mean 'layer'"),
        ({"normalise": "yes"}, "expected True or False"),
        ({"balance": 1}, "balance=1; expected True or False"),
        ({"memory": 1.0}, "below 1"),
        ({"memory": -0.1}, "at least 0"),
        ({"mix": 1.5}, "at most 1"),
        ({"begin": -1}, "begin=-1"),
        ({"end": 2.5}, "end=2.5"),
        ({"begin": 5, "end": 3}, "before begin"),
        ({"groups": 0}, "groups=0"),
        ({"rank": 0}, "rank=0"),
        ({"decomposition": "qr"}, "decomposition"),
    ],
    ids=str,
)
def test_wrong_options(options: dict[str, Any], words: str) -> None:
    with pytest.raises(gdod.InputError, match=words):
        gdod.method("gdod-variant", **options)


def test_a_state_of_another_method() -> None:
    with pytest.raises(gdod.InputError, match="expected"):
        GDODVariant().load_state_dict({"generator": 1})


def test_by_name() -> None:
    made = gdod.method("gdod-variant", agreement="soft", scope="layer")
    assert isinstance(made, GDODVariant)
    assert repr(made) == (
        "GDODVariant(groups=16, rank=None, agreement='soft', normalise=False, balance=False, memory=0.0, "
        "length='kept', mix=0.0, begin=0, end=None, scope='layer')"
    )
