import pytest
import torch
from tests.methods.samples import ROWS, SMALL, assert_continues, assert_near, randn, training, update
from torch import Tensor
from torchjd.aggregation import PCGrad as TorchJDPCGrad

from gdod.errors import InputError
from gdod.methods.pcgrad import PCGrad


def dense(rows: Tensor, orders: list[list[int]]) -> Tensor:
    """Algorithm 1 on the gradients themselves."""
    total = torch.zeros_like(rows[0])
    for i, order in enumerate(orders):
        gradient = rows[i].clone()
        for j in order:
            if j != i and float(rows[j] @ rows[j]) > 0 and float(gradient @ rows[j]) < 0:
                gradient -= (gradient @ rows[j]) / (rows[j] @ rows[j]) * rows[j]
        total += gradient
    return total


@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
def test_is_algorithm_1(rows: Tensor) -> None:
    tasks = len(rows)
    for seed in range(3):
        orders = torch.rand(tasks, tasks, generator=torch.Generator().manual_seed(seed)).argsort(1).tolist()
        assert_near(update(PCGrad(seed), rows), dense(rows, orders), rows)


@pytest.mark.parametrize("seed", range(5))
def test_two_tasks_are_torchjds(seed: int) -> None:
    rows = randn(2, 7, seed=seed)
    assert_near(update(PCGrad(), rows), TorchJDPCGrad()(rows), rows)


@pytest.mark.parametrize("seed", range(8))
def test_two_tasks_in_closed_form(seed: int) -> None:
    one, two = rows = randn(2, 3, seed=seed)
    product = float(one @ two)
    expected = one + two
    if product < 0:
        expected = expected - product / (two @ two) * two - product / (one @ one) * one
    assert_near(update(PCGrad(), rows), expected, rows, 1e-13)


def test_frozen_values() -> None:
    expected = torch.tensor([-0.3134920634920635, 2.888888888888889, 2.892857142857143], dtype=torch.float64)
    torch.testing.assert_close(update(PCGrad(0), SMALL), expected, rtol=0, atol=1e-12)


def test_without_conflict_it_is_the_plain_sum() -> None:
    rows = randn(5, 20).abs()
    torch.testing.assert_close(update(PCGrad(), rows), rows.sum(0))


def test_the_order_is_random_and_seeded() -> None:
    rows = randn(5, 6, seed=4)
    updates = {tuple(update(PCGrad(seed), rows).tolist()) for seed in range(6)}
    assert len(updates) > 1
    assert torch.equal(update(PCGrad(3), rows), update(PCGrad(torch.Generator().manual_seed(3)), rows))


def test_all_orders_are_as_likely() -> None:
    """On average over seeds, tasks may be given in any order."""
    rows = randn(3, 4, seed=5) - 0.3
    places = torch.tensor([2, 0, 1])
    means = []
    for given in (rows, rows[places]):
        method = PCGrad()
        means.append(torch.stack([update(method, given) for _ in range(2000)]).mean(0))
    assert_near(means[0], means[1], rows, 0.05)


def test_continues_where_it_was_saved() -> None:
    assert_continues(PCGrad, training(tasks=5))


@pytest.mark.parametrize("seed", [1.5, "0", None, True])
def test_refuses_seeds(seed: object) -> None:
    with pytest.raises(InputError, match="seed"):
        PCGrad(seed)  # type: ignore[arg-type]


def test_refuses_another_methods_state() -> None:
    with pytest.raises(InputError, match="generator"):
        PCGrad().load_state_dict({"weights": torch.ones(2)})
