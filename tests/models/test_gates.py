"""The weights of experts are those that the models' forward passes use, worked out by hand here."""

import pytest
import torch
from tests.models.cases import FORMS, TASKS, batch_of, build, shuffled
from torch import Tensor, nn

from gdod.models import PLE, SNR, STEM, CrossStitch, MMoE, Model, gate_weights
from gdod.models.cross_stitch import Stitch
from gdod.models.layers import Gate
from gdod.models.ple import Extraction
from gdod.models.snr import Routing

GATED = ("MMoEConfig", "PLEConfig", "STEMConfig", "SNRConfig", "CrossStitchConfig")
NAMES = tuple(task.name for task in TASKS)


def by_place(model: Model, size: int = 7) -> dict[tuple[int, str], tuple[tuple[str, ...], Tensor]]:
    return {(one.level, one.branch): (one.experts, one.weights) for one in gate_weights(model, batch_of(size))}


def gate_by_hand(gate: nn.Module, x: Tensor) -> Tensor:
    assert isinstance(gate, Gate)
    return torch.softmax(x @ gate.linear.weight.T, 1)


@torch.no_grad()
def test_mmoe_weighs_experts_by_its_gates() -> None:
    model = shuffled(build("mmoe")).eval()
    assert isinstance(model, MMoE)
    found = by_place(model)
    assert list(found) == [(1, name) for name in NAMES]
    x = model.features(batch_of(7))
    for name, gate in zip(NAMES, model.gates, strict=True):
        experts, weights = found[1, name]
        assert experts == ("expert 1", "expert 2", "expert 3", "expert 4")
        torch.testing.assert_close(weights, gate_by_hand(gate, x))
        torch.testing.assert_close(weights.sum(1), torch.ones(7))
    # The mixture with these weights is what the towers get.
    weighted = torch.einsum("be,beh->bh", found[1, "click"][1], model.experts(x))
    torch.testing.assert_close(model.towers[0](weighted), model(batch_of(7))["click"])


@torch.no_grad()
def test_ple_weighs_own_and_shared_experts_in_each_level() -> None:
    model = shuffled(build("ple, three levels")).eval()
    assert isinstance(model, PLE)
    found = by_place(model)
    x = model.features(batch_of(7))
    xs = [x] * len(TASKS)
    for number, level in enumerate(model.levels, 1):
        assert isinstance(level, Extraction)
        for name, gate, own in zip(NAMES, level.gates, xs, strict=True):
            experts, weights = found.pop((number, name))
            assert experts == (f"{name} 1", f"{name} 2", "shared 1", "shared 2")
            torch.testing.assert_close(weights, gate_by_hand(gate, own))
        if level.shared_gate is not None:
            experts, weights = found.pop((number, "shared branch"))
            assert experts[:3] == ("click 1", "click 2", "stay 1")
            assert experts[-2:] == ("shared 1", "shared 2")
            torch.testing.assert_close(weights, gate_by_hand(level.shared_gate, x))
        xs, x = level(xs, x)
    assert not found


@torch.no_grad()
def test_stem_weighs_the_experts_of_all_tasks() -> None:
    model = shuffled(build("stem, deep experts")).eval()
    assert isinstance(model, STEM)
    found = by_place(model)
    x = model.features(batch_of(7))
    for name, gate, features in zip(NAMES, model.gates, model.task_features, strict=True):
        experts, weights = found.pop((1, name))
        assert experts == ("click 1", "stay 1", "kind 1", "shared 1", "shared 2", "shared 3")
        torch.testing.assert_close(weights, gate_by_hand(gate, features(batch_of(7)) + x))
    assert not found


@torch.no_grad()
def test_snr_gives_the_switches_of_evaluation() -> None:
    model = shuffled(build("snr, three levels")).train()
    assert isinstance(model, SNR)
    found = by_place(model)
    assert model.training
    model.eval()
    for level, routing in enumerate(model.routings, 1):
        assert isinstance(routing, Routing)
        z = routing.coding(1)[0]  # [I, J]
        for target in range(3):
            experts, weights = found.pop((level, f"level {level + 1}, sub-network {target + 1}"))
            assert experts == tuple(f"level {level}, sub-network {number}" for number in (1, 2, 3))
            torch.testing.assert_close(weights, z[target].expand(7, -1))
    for name, routing in zip(NAMES, model.to_tasks, strict=True):
        assert isinstance(routing, Routing)
        torch.testing.assert_close(found.pop((3, name))[1], routing.coding(7)[:, 0])
    assert not found


def test_cross_stitch_gives_its_mixing_matrices() -> None:
    model = shuffled(build("cross-stitch without bottom"))
    assert isinstance(model, CrossStitch)
    found = by_place(model)
    for level, stitch in enumerate(model.stitches, 1):
        assert isinstance(stitch, Stitch)
        for name, row in zip(NAMES, stitch.rows, strict=True):
            experts, weights = found.pop((level, name))
            assert experts == ("tower of click", "tower of stay", "tower of kind")
            torch.testing.assert_close(weights, row.detach().expand(7, -1))
    assert not found


@torch.no_grad()
@pytest.mark.parametrize("form", ["mmoe", "ple", "snr"])
def test_in_an_ensemble_the_members_weights_are_averaged(form: str) -> None:
    model = shuffled(build(form, ensemble=3)).eval()
    first = model.gate_places()[-1].source
    assert isinstance(first, nn.Module)
    outputs: list[Tensor] = []
    hook = first.register_forward_hook(lambda module, given, weights: outputs.append(weights))
    model(batch_of(7))
    hook.remove()
    members = outputs[0].flatten(1)  # [B * k, E]: members of an example lie next to each other
    assert len(members) == 21
    expected = torch.stack([members[3 * at : 3 * at + 3].mean(0) for at in range(7)])
    torch.testing.assert_close(gate_weights(model, batch_of(7))[-1].weights, expected)


@pytest.mark.parametrize("form", FORMS)
def test_nothing_of_it_is_left_in_the_model(form: str) -> None:
    model = build(form)
    found = gate_weights(model, batch_of(5))
    assert bool(found) == (model.config_type.__name__ in GATED)
    assert model.training
    assert all(not module._forward_hooks for module in model.modules())
    assert all(one.weights.shape == (5, len(one.experts)) and not one.weights.requires_grad for one in found)
