"""Theorem 1 of the paper: with a small enough step the total loss never increases under GDOD.

The proof bounds the total loss by the Lipschitz constant L of the *total* gradient, sum_i g_i. The
theorem's text gives L to the single tasks; then the total gradient is only K L-Lipschitz, and a
step of 1/L may be up to K times too long (the last test has a case where it diverges). So here L
is always the constant of the sum. What the proof needs besides is that the update is an orthogonal
projection of the total gradient, which holds for both agreements and for every orthonormal basis,
but not for Weighted-GDOD.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests._backward.grads import grad_of
from torch import Tensor, nn

import gdod

STEPS = 60
METHODS = [
    pytest.param(gdod.GDOD(groups=3, agreement=agreement, decomposition=name), id=f"{agreement}-{name}")
    for agreement in ["sign", "product"]
    for name in ["svd", "qr", "randomized"]
]


def descend(
    theta: nn.Parameter,
    losses: Callable[[Tensor], Tensor],
    method: gdod.GDOD,
    step: float,
) -> tuple[Tensor, Tensor]:
    """Total losses at theta^0 ... theta^T, and |g_t^sh|^2 for t < T."""
    totals, squares = [], []
    for _ in range(STEPS):
        theta.grad = None
        each = losses(theta)  # [examples, K]
        gdod.backward(each, method)
        totals.append(each.detach().mean(0).sum())
        squares.append(grad_of(theta).square().sum())
        with torch.no_grad():
            theta.sub_(step * grad_of(theta))
    totals.append(losses(theta).detach().mean(0).sum())
    return torch.stack(totals), torch.stack(squares)


def assert_theorem(totals: Tensor, squares: Tensor, step: float, lowest: float) -> None:
    slack = 1e-12 * totals[0].abs()
    assert (totals[1:] <= totals[:-1] + slack).all()
    assert (totals[1:] <= totals[:-1] - step / 2 * squares + slack).all()
    assert squares.min() <= squares.mean() <= 2 * (totals[0] - lowest) / (step * STEPS) + slack


def quadratics(seed: int) -> tuple[nn.Parameter, Callable[[Tensor], Tensor], float, float]:
    """3 tasks of 6 examples, (theta - c)^T A (theta - c) / 2 each; L and the minimum are exact."""
    torch.manual_seed(seed)
    roots = torch.randn(6, 3, 5, 5, dtype=torch.float64)
    a = roots @ roots.mT  # [examples, K, D, D]
    centres = torch.randn(6, 3, 5, dtype=torch.float64)

    def losses(theta: Tensor) -> Tensor:
        away = theta - centres  # [examples, K, D]
        return (away * (a @ away.unsqueeze(-1)).squeeze(-1)).sum(-1) / 2

    hessian = a.mean(0).sum(0)
    best = torch.linalg.solve(hessian, (a @ centres.unsqueeze(-1)).squeeze(-1).mean(0).sum(0))
    lipschitz = float(torch.linalg.eigvalsh(hessian)[-1])
    theta = nn.Parameter(3 * torch.randn(5, dtype=torch.float64))
    return theta, losses, lipschitz, float(losses(best).mean(0).sum())


def cosines(seed: int) -> tuple[nn.Parameter, Callable[[Tensor], Tensor], float, float]:
    """1 - cos(a . theta - b): its Hessian is cos(...) a a^T, so L is at most that of the a a^T."""
    torch.manual_seed(seed)
    a = torch.randn(6, 3, 5, dtype=torch.float64)
    b = torch.randn(6, 3, dtype=torch.float64)
    outer = torch.einsum("eki,ekj->eij", a, a).mean(0)  # mean over examples, sum over tasks
    lipschitz = float(torch.linalg.eigvalsh(outer)[-1])
    theta = nn.Parameter(torch.randn(5, dtype=torch.float64))
    return theta, lambda theta: 1 - torch.cos(a @ theta - b), lipschitz, 0.0


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("share", [1.0, 0.3])
@pytest.mark.parametrize("problem", [quadratics, cosines], ids=["convex", "not convex"])
def test_theorem_1(problem: Callable[..., Any], method: gdod.GDOD, share: float) -> None:
    gained = 0.0
    for seed in range(4):
        theta, losses, lipschitz, lowest = problem(seed)
        step = share / lipschitz
        totals, squares = descend(theta, losses, method, step)
        assert_theorem(totals, squares, step, lowest)
        gained += float((totals[0] - totals[-1]) / (totals[0] - lowest))
    assert gained > 0.1  # where no direction is shared nothing moves; that is not so everywhere


def test_constant_of_a_single_task_is_not_enough() -> None:
    """Three tasks theta^2 / 2, each with L = 1: a step of 1 goes from theta to -2 theta."""
    theta = nn.Parameter(torch.ones(1, dtype=torch.float64))
    totals, _ = descend(theta, lambda t: (t**2 / 2).expand(1, 3), gdod.GDOD(), step=1.0)
    assert (totals[1:] > totals[:-1]).all()
