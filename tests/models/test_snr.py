"""SNR: its routing by hand, and the distribution of its coding variables."""

import copy
from math import log

import pytest
import torch
from tests.models.cases import TASKS, batch_of, build, losses_of, of_type, shuffled, total
from torch import Tensor
from torch.nn.functional import relu

from gdod.models import SNR, SNRConfig
from gdod.models.layers import Stack
from gdod.models.snr import Coding, Routing

LOG_ALPHA = torch.tensor([[-3.0, -1.0, -0.2], [0.0, 1.5, 4.0]])
SAMPLES = 40_000
EACH_EXAMPLE = SNRConfig(sampling="example")
OTHER_SHAPE = SNRConfig(sampling="example", temperature=0.4, low=-0.3, high=1.2)


def coding(config: SNRConfig) -> Coding:
    switches = Coding(2, 3, config)
    with torch.no_grad():
        switches.log_alpha.copy_(LOG_ALPHA)
    return switches


def routed(routing: Routing, u: Tensor) -> list[Tensor]:
    """v_i = Σ_j z_ij W_ij u_j, one pair of sub-networks at a time. I of [B, H]"""
    z = routing.coding(len(u))  # [B, I, J]
    width = u.shape[2]
    weight = routing.transform.weight.unflatten(1, (-1, width))  # [I, J, H, H']
    return [
        sum((z[:, i, j, None] * (u[:, j] @ weight[i, j]) for j in range(u.shape[1])), torch.zeros(()))
        for i in range(len(weight))
    ]


@pytest.mark.parametrize("form", ["snr", "snr, one level"])
def test_snr_by_hand(form: str) -> None:
    model = shuffled(build(form)).eval()
    assert isinstance(model, SNR)
    u = model.first(model.features(batch_of(10)))
    for routing, stack in zip(of_type(Routing, model.routings), of_type(Stack, model.subnetworks), strict=True):
        v = routed(routing, u)
        assert stack.bias is not None
        u = torch.stack([relu(v[i] @ stack.weight[i] + stack.bias[i]) for i in range(len(v))], 1)
    logits = model(batch_of(10))
    for task, routing, tower in zip(TASKS, of_type(Routing, model.to_tasks), model.towers, strict=True):
        torch.testing.assert_close(logits[task.name], tower(routed(routing, u)[0]))


@pytest.mark.parametrize("config", [EACH_EXAMPLE, OTHER_SHAPE])
def test_expected_l0_is_the_share_of_samples_that_are_open(config: SNRConfig) -> None:
    switches = coding(config)
    z = switches(SAMPLES).detach()  # [samples, 2, 3]
    shifted = LOG_ALPHA - config.temperature * log(-config.low / config.high)
    closed_form = 1 / (1 + (-shifted).exp())  # P(z > 0) of each
    torch.testing.assert_close(switches.expected_l0().detach(), closed_form.sum())
    deviation = (closed_form * (1 - closed_form) / SAMPLES).sqrt()
    assert bool((((z > 0).float().mean(0) - closed_form).abs() < 5 * deviation + 1e-9).all())


def test_samples_have_the_distribution_function_of_the_paper() -> None:
    """P(z <= t) = σ(β log(s / (1 - s)) - log α) with s = (t - γ) / (ζ - γ), inside (0, 1)."""
    switches, config = coding(EACH_EXAMPLE), EACH_EXAMPLE
    z = switches(SAMPLES).detach()
    assert float(z.min()) == 0
    assert float(z.max()) == 1
    for t in (0.1, 0.5, 0.9):
        s = (t - config.low) / (config.high - config.low)
        below = torch.sigmoid(config.temperature * log(s / (1 - s)) - LOG_ALPHA)
        torch.testing.assert_close((z <= t).float().mean(0), below, atol=0.015, rtol=0)


def test_evaluation_is_deterministic() -> None:
    switches = coding(EACH_EXAMPLE).eval()
    expected = (LOG_ALPHA.sigmoid() * 1.2 - 0.1).clamp(0, 1)
    torch.testing.assert_close(switches(4).detach(), expected.expand(4, -1, -1))
    assert float(expected.min()) == 0  # closed ones are exactly zero

    model, batch = build("snr"), batch_of(8)
    assert not torch.equal(model(batch)["click"], model(batch)["click"])
    model.eval()
    assert torch.equal(model(batch)["click"], model(batch)["click"])


def test_one_architecture_a_batch_or_an_example() -> None:
    a_batch = SNRConfig(sampling="batch")
    one = coding(a_batch)(50).detach()
    torch.testing.assert_close(one, one[:1].expand_as(one))  # equal but for how sigmoid is rounded
    assert not torch.allclose(one[0], coding(a_batch)(50)[0])
    each = coding(EACH_EXAMPLE)(50).detach()
    assert not torch.allclose(each, each[:1].expand_as(each))


def test_the_penalty_counts_all_connections_and_closes_them() -> None:
    model = build("snr", l0=0.25)
    assert isinstance(model, SNR)
    codings = [module for module in model.modules() if isinstance(module, Coding)]
    assert sum(one.log_alpha.numel() for one in codings) == 3 * 3 + 3 * 3  # inside, and to 3 tasks
    torch.testing.assert_close(model.penalty(), 0.25 * sum(one.expected_l0() for one in codings))
    before = model.expected_l0().detach()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    for _ in range(5):
        model.zero_grad()
        model.penalty().backward()
        assert all(one.log_alpha.grad is not None for one in codings)
        optimizer.step()
    assert bool(model.expected_l0() < before)


def test_a_strong_penalty_closes_connections_for_good() -> None:
    model = build("snr", l0=1.0)
    assert isinstance(model, SNR)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for _ in range(100):
        optimizer.zero_grad()
        (total(losses_of(model)) + model.penalty()).backward()
        optimizer.step()
    codings = [module for module in model.eval().modules() if isinstance(module, Coding)]
    assert all(not bool(one(1).any()) for one in codings)


def test_how_open_it_starts() -> None:
    models = of_type(SNR, (build("snr", open=share) for share in (0.1, 0.5, 0.9)))
    expected = [float(model.expected_l0().detach()) for model in models]
    assert expected == sorted(expected)
    half = build("snr", open=0.5).eval()
    z = next(module for module in half.modules() if isinstance(module, Coding))(1)
    torch.testing.assert_close(z.detach(), torch.full_like(z, 0.5), atol=0.02, rtol=0)


def test_other_models_have_no_penalty() -> None:
    assert build("mmoe").penalty() is None


def test_copies_sample_by_themselves() -> None:
    model = build("snr")
    twin = copy.deepcopy(model)
    torch.manual_seed(0)
    first = model(batch_of(4))["click"]
    torch.manual_seed(0)
    assert torch.equal(first, twin(batch_of(4))["click"])
