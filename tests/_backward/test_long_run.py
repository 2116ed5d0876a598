"""A long run in short: nothing is left behind from step to step, and the last update is exact (benchmarks/soak.py)."""

import pytest
import torch
from benchmarks.soak import EXACT, Soak, deviation

import gdod
from gdod.rows import plan, workspace


def test_steps_of_all_kinds_leave_nothing_behind() -> None:
    soak = Soak(sizes=(1, 5, 16))

    def go_on(steps: int) -> None:
        soak.model.train()
        for _ in range(steps):
            soak.step()

    go_on(150)
    first = soak.sample()
    go_on(150)
    last = soak.sample()
    assert soak.refused >= 2
    # What is seldom met may come for the first time; but a tensor a step would be 150 more.
    assert last.tensors <= first.tensors + 15
    assert last.objects <= first.objects + 450
    assert last.kept <= 2 * first.kept
    assert deviation(soak) < EXACT


@torch.no_grad()
def test_batches_of_changing_sizes_do_not_leave_memory_of_each() -> None:
    workspace.release()
    before = workspace.kept_bytes()
    for size in range(1, 1001):
        workspace.take((size, 100), torch.zeros(()))
        workspace.release()
    assert workspace.kept_bytes() - before < 3 * 64 * 1000 * 100 * 4  # the last few, not all thousand


def test_sequences_of_changing_lengths_do_not_leave_a_plan_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "_PLANS", type(plan._PLANS)())
    monkeypatch.setattr(plan, "_KEPT", 8)
    layer, towers = torch.nn.Linear(3, 3), torch.nn.Linear(3, 2)
    for length in range(1, 21):
        losses = towers(layer(torch.randn(4, length, 3)).tanh()).square().mean(1)  # [4, 2]
        gdod.backward(losses, gdod.GDOD(groups=2))
    assert len(plan._PLANS) == 8
    assert sum(len(one.assignments) for one in plan._PLANS.values()) == 8
