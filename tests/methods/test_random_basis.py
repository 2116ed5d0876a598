"""Random vectors of the whole parameter space, of which only what is asked for is drawn."""

import pytest
import torch
from torch import Tensor, nn

from gdod.methods.random_basis import RandomVectors


def gradients(*factors: float, size: int) -> Tensor:
    """Gradients [K, D]; a factor of 0 makes one zero, and a negative one makes it parallel to the first."""
    made = torch.randn(len(factors), size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for row, factor in zip(made, factors, strict=True):
        row.copy_(factor * (made[0] if factor < 0 else row))
    return made


def rows_of(grads: Tensor, *, sparse: bool = False) -> RandomVectors:
    """Two parameters, a vector and a table with two columns."""
    size = grads.shape[1] // 3
    vector = nn.Parameter(torch.zeros(grads.shape[1] - 2 * size, dtype=torch.float64))
    table = nn.Parameter(torch.zeros(size, 2, dtype=torch.float64))

    def parts(grad: Tensor) -> list[tuple[Tensor, Tensor]]:
        first, second = grad.split([vector.numel(), table.numel()])
        second = second.view(table.shape)
        return [(vector, first), (table, second.to_sparse(1) if sparse else second)]

    return RandomVectors([parts(grad) for grad in grads])


def combined(rows: RandomVectors, weights: Tensor) -> Tensor:
    return torch.cat([(grad.to_dense() if grad.is_sparse else grad).flatten() for _, grad in rows.combine(weights)])


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("count", [1, 5, 100])
@pytest.mark.parametrize("size", [6, 7, 40])
@pytest.mark.parametrize("factors", [(1,), (1, 1), (1e6, 1e-6), (1, 0, 1), (1, -2, 1, -1e-4), (0, 0)])
def test_what_is_told_of_the_vectors_is_true_of_their_sum(
    factors: tuple[float, ...], size: int, count: int, sparse: bool
) -> None:
    grads = gradients(*factors, size=size)
    rows = rows_of(grads, sparse=sparse)
    with_tasks, among = rows.draw(count, torch.Generator().manual_seed(1))
    assert with_tasks.shape == (min(count, size), len(factors))
    weights = torch.randn(len(among), dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    summed = combined(rows, weights)
    length = grads.norm(dim=1) * summed.norm()
    assert ((grads @ summed - weights @ with_tasks).abs() <= 1e-9 * length).all()
    torch.testing.assert_close(summed @ summed, weights @ among @ weights)
    torch.testing.assert_close(combined(rows, weights), summed)  # drawn again, it is the same vector


@pytest.mark.parametrize(("size", "count"), [(8, 3), (6, 6)])
def test_they_are_distributed_as_independent_normal_vectors(size: int, count: int) -> None:
    """First and second moments, all of which are known, within five standard errors."""
    grads = gradients(2, 1, size=size)
    rows, generator, draws = rows_of(grads), torch.Generator().manual_seed(3), 3000
    weights = torch.linspace(-1, 2, count, dtype=torch.float64)
    sums, with_tasks, among = [], [], []
    for _ in range(draws):
        products, squares = rows.draw(count, generator)
        sums.append(combined(rows, weights))
        with_tasks.append(products)
        among.append(squares)

    def check(drawn: Tensor, expected: Tensor) -> None:
        error = drawn.std(0) / draws**0.5
        assert ((drawn.mean(0) - expected).abs() <= 5 * error).all()

    u, z, w = torch.stack(sums), torch.stack(with_tasks), torch.stack(among)
    check(u, torch.zeros(size))
    check(u.unsqueeze(2) * u.unsqueeze(1), weights @ weights * torch.eye(size))
    check(z.mT @ z, count * grads @ grads.T)
    check(u.unsqueeze(2) * z[:, -1:], grads.T * weights[-1])  # E[u (Z g)_r] = w_r g
    check(w, size * torch.eye(count))
    check((w - size * torch.eye(count)).square(), size * (1 + torch.eye(count)))
    # Lengths of vectors and what is known of them inside the gradients' span are not independent.
    check(w.diagonal(dim1=1, dim2=2) * z[:, :, 0].square(), (size + 2) * grads[0].square().sum() * torch.ones(count))
