"""MMoE and PLE against their formulas, one expert at a time."""

from itertools import chain, islice

import pytest
import torch
from tests.models.cases import SCHEMA, TASKS, batch_of, build, of_type, shuffled, weights_and_biases
from torch import Tensor, nn
from torch.nn.functional import relu

from gdod.models import PLE, MMoE, MMoEConfig, PLEConfig
from gdod.models.layers import Experts, Gate, mix
from gdod.models.ple import Extraction

ONE = -1  # the last feature is the number "one", which is 1 in every example


def force(gate: Gate, expert: int) -> None:
    """A weight so large on the constant feature that softmax is 1 for one expert, 0 for others."""
    with torch.no_grad():
        gate.linear.weight.zero_()
        gate.linear.weight[expert, ONE] = 1e4


def one_at_a_time(experts: Experts, x: Tensor) -> list[Tensor]:
    """The outputs of the experts, each computed as a network of its own. E of [B, H]"""
    width = experts.first.out_features // experts.count
    outputs = []
    for e in range(experts.count):
        own = slice(e * width, (e + 1) * width)
        h = relu(x @ experts.first.weight[own].T + experts.first.bias[own])
        for weight, bias in weights_and_biases(experts.stacks, e):
            h = relu(h @ weight + bias)
        outputs.append(h)
    return outputs


def gated(gate: Gate, x: Tensor, experts: list[Tensor]) -> Tensor:
    """Σ_e softmax(W x)_e expert_e"""
    weights = (x @ gate.linear.weight.T).softmax(1)  # [B, E]
    return sum((weights[:, e, None] * expert for e, expert in enumerate(experts)), start=torch.zeros(()))


def test_mmoe_by_hand() -> None:
    model = MMoE(SCHEMA, TASKS, MMoEConfig(experts=3, expert=(7, 6)))
    shuffled(model)
    batch = batch_of(10)
    x = model.features(batch)
    experts = one_at_a_time(model.experts, x)
    logits = model(batch)
    for task, gate, tower in zip(TASKS, of_type(Gate, model.gates), model.towers, strict=True):
        torch.testing.assert_close(logits[task.name], tower(gated(gate, x, experts)))


def test_a_gate_forced_to_one_expert_returns_that_expert() -> None:
    model = shuffled(build("mmoe"))
    assert isinstance(model, MMoE)
    batch = batch_of(10)
    experts = one_at_a_time(model.experts, model.features(batch))
    for chosen in range(4):
        for number, gate in enumerate(of_type(Gate, model.gates)):
            force(gate, (chosen + number) % 4)
        logits = model(batch)
        for number, (task, tower) in enumerate(zip(TASKS, model.towers, strict=True)):
            torch.testing.assert_close(logits[task.name], tower(experts[(chosen + number) % 4]))


def test_mix_weighs_experts() -> None:
    gate, experts = torch.tensor([[0.25, 0.75]]), torch.tensor([[[4.0, 0.0], [8.0, 4.0]]])
    assert mix(gate, experts).tolist() == [[7.0, 3.0]]


def branches(level: Extraction, xs: list[Tensor], x: Tensor) -> list[list[Tensor]]:
    """The outputs of the experts of each task, and of the shared ones."""
    experts = of_type(Experts, level.experts)
    if len(experts) > 1:
        return [one_at_a_time(own, x_i) for own, x_i in zip(experts, [*xs, x], strict=True)]
    outputs = iter(one_at_a_time(experts[0], x))  # the first level: all have one input
    return [list(islice(outputs, count)) for count in level.counts]


def cgc(level: Extraction, xs: list[Tensor], x: Tensor) -> tuple[list[Tensor], Tensor | None]:
    """Customized Gate Control: task k's gate over its own and the shared experts; and the shared
    gate over all experts."""
    *own, shared = branches(level, xs, x)
    gates = of_type(Gate, level.gates)
    of_tasks = [gated(gates[k], xs[k], own[k] + shared) for k in range(len(xs))]
    if level.shared_gate is None:
        return of_tasks, None
    return of_tasks, gated(level.shared_gate, x, [*chain(*own), *shared])


def ple(levels: int) -> PLE:
    model = PLE(SCHEMA, TASKS, PLEConfig(experts=8, task_experts=2, expert=(6,), levels=levels))
    shuffled(model)
    return model


def test_ple_with_one_level_is_cgc() -> None:
    model, batch = ple(levels=1), batch_of(10)
    x = model.features(batch)
    (level,) = of_type(Extraction, model.levels)
    outputs, _ = cgc(level, [x] * 3, x)
    logits = model(batch)
    for task, tower, h in zip(TASKS, model.towers, outputs, strict=True):
        torch.testing.assert_close(logits[task.name], tower(h))


def test_ple_is_cgc_level_upon_level() -> None:
    model, batch = ple(levels=3), batch_of(10)
    x = model.features(batch)
    xs = [x] * 3
    *levels, last = of_type(Extraction, model.levels)
    for level in levels:
        xs, shared = cgc(level, xs, x)
        assert shared is not None
        x = shared
    xs, shared = cgc(last, xs, x)
    assert shared is None  # the last level has no shared gate, whose output nothing would take
    logits = model(batch)
    for task, tower, h in zip(TASKS, model.towers, xs, strict=True):
        torch.testing.assert_close(logits[task.name], tower(h))


@pytest.mark.parametrize("first", [True, False])
def test_ple_gates_forced_to_one_expert(first: bool) -> None:
    """Task gates see their own experts first, then the shared ones; the shared gate sees all."""
    config = PLEConfig(experts=8, task_experts=2, expert=(6,))
    level = Extraction(5, 3, first=first, last=False, config=config)
    *xs, x = (torch.cat([torch.randn(4, 4), torch.ones(4, 1)], 1) for _ in range(4))
    xs = [x] * 3 if first else xs
    *own, shared = branches(level, xs, x)
    for chosen in range(8):
        assert level.shared_gate is not None
        force(level.shared_gate, chosen)
        for gate in of_type(Gate, level.gates):
            force(gate, chosen % 4)
        outputs, common = level(xs, x)
        torch.testing.assert_close(common, [*chain(*own), *shared][chosen])
        for k, output in enumerate(outputs):
            torch.testing.assert_close(output, [*own[k], *shared][chosen % 4])


def test_the_default_has_eight_experts_of_32_a_level() -> None:
    assert sum(1 for _ in PLE(SCHEMA, TASKS).levels) == 2
    for level in PLE(SCHEMA, TASKS).levels:
        experts = [module for module in level.modules() if isinstance(module, Experts)]
        assert sum(module.count for module in experts) == 8
        assert {module.outputs for module in experts} == {32}
    assert isinstance(MMoE(SCHEMA, TASKS).experts.first, nn.Linear)
    assert MMoE(SCHEMA, TASKS).experts.first.out_features == 8 * 32
