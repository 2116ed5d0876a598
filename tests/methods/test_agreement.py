"""Which projections tasks agree on: each kind of agreement against its formula on dense rows."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.methods.samples import ROWS, assert_near, randn, update
from torch import Tensor

import gdod
from gdod.methods.agreement import AGREEMENTS

EVERY = pytest.mark.parametrize("agreement", AGREEMENTS)
SAMPLES = pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)


def factors_by_formula(agreement: str, projections: Tensor) -> Tensor:
    """Return the factor of each projection, one basis vector after the other. [r, K]"""
    factors = []
    for p in projections.tolist():
        together = abs(sum(p)) / sum(map(abs, p))
        factors.append([together if agreement == "soft" else float(together == pytest.approx(1))] * len(p))
    return torch.tensor(factors, dtype=torch.float64)


@pytest.mark.parametrize("agreement", ["sign", "soft"])
@given(st.integers(0, 10**6), st.integers(2, 5), st.integers(1, 4))
def test_by_the_formula(agreement: str, seed: int, tasks: int, groups: int) -> None:
    rows = randn(groups, tasks, 40, seed=seed) * (1 + 9 * randn(1, tasks, 1, seed=seed + 1).abs())
    parts = gdod.GDOD().decompose(rows)
    factors = factors_by_formula(agreement, parts.projections)
    expected = (factors * parts.projections).sum(1) @ parts.basis
    torch.testing.assert_close(gdod.GDOD(agreement=agreement).from_rows(rows), expected, rtol=1e-8, atol=1e-8)


@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(1, 4))
def test_soft_is_between_sign_and_the_sum(seed: int, tasks: int, groups: int) -> None:
    rows = randn(groups, tasks, 30, seed=seed)
    basis = gdod.GDOD().decompose(rows).basis
    sign, soft = (basis @ gdod.GDOD(agreement=kind).from_rows(rows) for kind in ("sign", "soft"))
    whole = basis @ rows.mean(0).sum(0)
    assert bool((sign.abs() <= soft.abs() + 1e-9).all())
    assert bool((soft.abs() <= whole.abs() + 1e-9).all())


@EVERY
def test_a_vector_that_concerns_no_task(agreement: str) -> None:
    """Groups differ along a vector on which all task gradients are zero."""
    along = torch.tensor([0.0, 3.0], dtype=torch.float64)
    rows = torch.tensor([[[1.0, 0.0], [2.0, 0.0]]], dtype=torch.float64) + torch.stack([along, -along]).unsqueeze(1)
    torch.testing.assert_close(gdod.GDOD(agreement=agreement).from_rows(rows), rows.mean(0).sum(0))


@EVERY
@given(st.integers(0, 10**6), st.permutations(range(3)))
def test_the_order_of_tasks_does_not_matter(agreement: str, seed: int, order: list[int]) -> None:
    method, rows = gdod.GDOD(agreement=agreement), randn(4, 3, 30, seed=seed)
    torch.testing.assert_close(method.from_rows(rows[:, order]), method.from_rows(rows), rtol=1e-6, atol=1e-8)


@EVERY
@SAMPLES
def test_degenerate_rows(rows: Tensor, agreement: str) -> None:
    combined = update(gdod.GDOD(agreement=agreement), rows)
    assert bool(combined.isfinite().all())
    if bool((rows == 0).all()):
        assert bool((combined == 0).all())
    if len(rows) == 1:
        assert_near(combined, rows[0], rows)


@pytest.mark.parametrize("agreement", ["sign", "soft"])
@given(st.integers(0, 10**6))
def test_a_task_without_gradient_is_in_nobodys_way(agreement: str, seed: int) -> None:
    method, rows = gdod.GDOD(agreement=agreement), randn(4, 2, 30, seed=seed)
    with_zero = torch.cat([rows, torch.zeros(4, 1, 30, dtype=torch.float64)], 1)
    torch.testing.assert_close(method.from_rows(with_zero), method.from_rows(rows), rtol=1e-6, atol=1e-8)


def test_soft_agreement_of_a_model_is_that_of_its_rows() -> None:
    """`gdod.backward` in float32 against rows that autograd made in float64."""
    weight = torch.nn.Parameter(randn(6, 3, seed=1).float())
    inputs, labels = randn(8, 6, seed=2), randn(8, 3, seed=3)
    gdod.backward((inputs.float() @ weight - labels.float()) ** 2, gdod.GDOD(groups=4, agreement="soft"))
    exact = weight.detach().double().requires_grad_()
    losses = (inputs @ exact - labels) ** 2  # [8, 3]
    rows = [
        torch.autograd.grad(losses[2 * group : 2 * group + 2, task].mean(), exact, retain_graph=True)[0].flatten()
        for group in range(4)
        for task in range(3)
    ]
    expected = gdod.GDOD(agreement="soft").from_rows(torch.stack(rows).view(4, 3, -1)).view(6, 3)
    assert weight.grad is not None
    torch.testing.assert_close(weight.grad.double(), expected, rtol=1e-4, atol=1e-5)


def test_a_method_that_is_no_longer_there_says_what_to_use() -> None:
    with pytest.raises(gdod.InputError, match="agreement='soft'"):
        gdod.method("gdod-variant", agreement="soft")
    with pytest.raises(gdod.InputError, match="did you mean 'soft'"):
        gdod.GDOD(agreement="sofd")
