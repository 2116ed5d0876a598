"""Tests that every example comes once if an epoch is begun by one number of ranks and finished by another."""

from pathlib import Path

import pytest
import torch
from tests.training import together

from gdod.data.dataset import Dataset
from gdod.training.resharding import lane_cuts, resharded_batches

RANKS = [(1, 2), (2, 1), (2, 3), (3, 2), (4, 6), (6, 4), (5, 5)]


@pytest.mark.parametrize(("lanes", "ranks"), RANKS)
@pytest.mark.parametrize("batch", [3, 64])
def test_batches_in_memory_stay_as_they_were(lanes: int, ranks: int, batch: int) -> None:
    part = together.data().train
    alone = [one.batch.numeric for one in part.batches(batch, seed=5, epoch=2, start=4)]
    resharded = [
        [
            one.batch.numeric
            for one in resharded_batches(part, batch, lanes, rank, ranks, seed=5, epoch=2, start=4)
        ]
        for rank in range(ranks)
    ]  # fmt: skip
    for at, whole in enumerate(alone):
        shares = [steps[at] for steps in resharded]
        assert torch.equal(torch.cat(shares), whole)
        assert max(map(len, shares)) - min(map(len, shares)) <= 2


@pytest.mark.parametrize(("lanes", "ranks"), RANKS)
def test_streamed_examples_come_once(tmp_path: Path, lanes: int, ranks: int) -> None:
    part = together.streamed(tmp_path, together.data()).train
    begun = [list(part.batches(64, seed=5, rank=lane, ranks=lanes)) for lane in range(lanes)]
    going_on = [
        list(resharded_batches(part, 64, lanes, rank, ranks, seed=5, epoch=0, start=6)) for rank in range(ranks)
    ]
    for at, shares in enumerate(zip(*going_on, strict=True), 6):
        before = torch.cat([lane[at].batch.numeric for lane in begun])
        assert torch.equal(torch.cat([one.batch.numeric for one in shares]), before)
        for name in ("click", "buy"):
            told = torch.cat([one.labels[name] for one in shares])
            torch.testing.assert_close(told, torch.cat([lane[at].labels[name] for lane in begun]), equal_nan=True)
        weights = [one.weights for one in shares if one.weights is not None]
        assert torch.equal(torch.cat(weights), torch.cat([lane[at].weights for lane in begun]))  # type: ignore[misc]
    seen = [one.batch.numeric for lane in begun for one in lane[:6]]
    seen += [one.batch.numeric for steps in going_on for one in steps]
    assert sorted(torch.cat(seen)[:, 0].tolist()) == sorted(ages(together.data()))


def ages(dataset: Dataset) -> list[float]:
    return [age for one in dataset.train.batches(100) for age in one.batch.numeric[:, 0].tolist()]


@pytest.mark.parametrize(("lanes", "ranks"), RANKS)
def test_lanes_are_dealt_out_whole(lanes: int, ranks: int) -> None:
    covered = dict.fromkeys(range(lanes), 0.0)
    for rank in range(ranks):
        own = list(lane_cuts(rank, ranks, lanes))
        assert float(sum(last - first for _, first, last in own)) == pytest.approx(lanes / ranks)
        for lane, first, last in own:
            assert float(first) == pytest.approx(covered[lane])
            covered[lane] = float(last)
    assert set(covered.values()) == {1.0}
