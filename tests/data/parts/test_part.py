"""Batches: every example once an epoch, the same for the same seed, from any position, for any number of ranks."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.data.clicks_table import clicks, schema, write

from gdod import InputError
from gdod.data import Minibatch, Part, load
from gdod.data.parts.rank_shares import given_by_rank
from gdod.data.preparing.stored import PartWriter
from gdod.data.stream import StreamPart


@pytest.fixture(scope="module", params=["memory", "stream"])
def part(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Part:
    folder, table = tmp_path_factory.mktemp("batches"), clicks(3000)
    table = table.with_columns(age=table["id"].cast(pl.Float64), w=table["id"] % 3)
    split = {"by": "random", "validation": 0, "test": 0}
    described = schema(split, age={"type": "numeric", "scale": "none"}, w="weight")
    data = load(write(folder, table), schema=described, cache=folder / "c", stream=request.param == "stream")
    if isinstance(data.train, StreamPart):
        # Many row groups and windows, so that batches lie across their borders.
        writer = PartWriter(folder / "small.parquet", row_group=70)
        writer.write(pl.read_parquet(data.train.path))
        writer.close()
        return StreamPart(writer.path, data.train.encoder, window=4)
    return data.train


def ids(steps: list[Minibatch]) -> list[int]:
    return [int(age) for step in steps for age in step.batch.numeric[:, 0]]


@pytest.mark.parametrize("size", [1000, 256, 7, 3000, 5000])
@pytest.mark.parametrize("seed", [None, 3])
def test_every_example_once(part: Part, size: int, seed: int | None) -> None:
    steps = list(part.batches(size, seed=seed))
    assert sorted(ids(steps)) == list(range(3000))
    assert len(steps) == part.steps(size)
    assert {step.batch.size for step in steps[:-1]} <= {size}


def test_a_step_has_all_of_its_example(part: Part) -> None:
    table = clicks(3000)
    step = next(part.batches(64, seed=1))
    rows = ids([step])
    assert step.labels["click"].tolist() == table["click"].gather(rows).to_list()
    expected = [buy if click else None for click, buy in zip(table["click"][rows], table["buy"][rows], strict=True)]
    assert [None if buy != buy else buy for buy in step.labels["buy"].tolist()] == expected
    assert step.weights is not None
    torch.testing.assert_close(step.weights, torch.tensor([float(row % 3) for row in rows]))  # mean 1 already
    seen = table["seen"].gather(rows).to_list()
    counts = [min(4, len(text.split())) for text in seen]
    assert (step.batch.sequences[0] > 0).sum(1).tolist() == counts
    assert step.batch.categorical.dtype == torch.int64
    assert step.batch.numeric.dtype == step.labels["click"].dtype == torch.float32


def test_the_order_depends_on_seed_and_epoch_alone(part: Part) -> None:
    first = ids(list(part.batches(100, seed=5, epoch=2)))
    torch.rand(3)
    assert ids(list(part.batches(100, seed=5, epoch=2))) == first
    assert ids(list(part.batches(300, seed=5, epoch=2))) == first
    assert ids(list(part.batches(100, seed=5, epoch=3))) != first
    assert ids(list(part.batches(100, seed=6, epoch=2))) != first


@pytest.mark.parametrize("start", [0, 1, 5, 29, 30, 31, 100])
@pytest.mark.parametrize("seed", [None, 3])
def test_an_epoch_goes_on_from_its_middle(part: Part, start: int, seed: int | None) -> None:
    whole = [ids([step]) for step in part.batches(100, seed=seed, epoch=1)]
    rest = [ids([step]) for step in part.batches(100, seed=seed, epoch=1, start=start)]
    assert rest == whole[start:]


@pytest.mark.parametrize("ranks", [2, 3, 7])
def test_ranks_share_the_batches_of_one(part: Part, ranks: int) -> None:
    if isinstance(part, StreamPart):
        pytest.skip("streamed, each rank has row groups of its own")
    alone = [step.batch.numeric[:, 0] for step in part.batches(128, seed=3)]
    shared = [list(part.batches(128, seed=3, rank=rank, ranks=ranks)) for rank in range(ranks)]
    assert {len(steps) for steps in shared} == {len(alone)} == {part.steps(128, ranks=ranks)}
    for at, whole in enumerate(alone):
        for rank, slice in enumerate(torch.tensor_split(whole, ranks)):
            step = shared[rank][at]
            assert torch.equal(step.batch.numeric[:, 0], slice)
            assert len(step.labels["click"]) == len(slice)


@pytest.mark.parametrize("size", [1, 5, 128, 2999, 4000])
@pytest.mark.parametrize("ranks", [2, 3, 7, 60])
def test_ranks_together_see_every_example_once(part: Part, ranks: int, size: int) -> None:
    """Also more ranks than row groups, or than examples of a batch; and from the middle of an epoch."""
    if size == 1 and ranks == 60:
        pytest.skip("many batches of one example")
    shared = [list(part.batches(size, seed=3, epoch=1, rank=rank, ranks=ranks)) for rank in range(ranks)]
    assert sorted(ids([step for steps in shared for step in steps])) == list(range(3000))
    whole = [sum(step.batch.size for step in steps) for steps in zip(*shared, strict=True)]
    assert len(whole) == part.steps(size)
    assert set(whole[:-1]) <= {size}
    start = len(whole) // 2
    for rank in {0, 1, ranks - 1}:
        rest = list(part.batches(size, seed=3, epoch=1, start=start, rank=rank, ranks=ranks))
        assert [ids([step]) for step in rest] == [ids([step]) for step in shared[rank][start:]]


def test_ranks_that_stream_read_row_groups_of_their_own(part: Part) -> None:
    if not isinstance(part, StreamPart):
        pytest.skip("in memory")
    stored = [int(age) for age in pl.read_parquet(part.path, columns=["age"])["age"]]
    group = {row: at // 70 for at, row in enumerate(stored)}
    groups = [{group[row] for row in ids(list(part.batches(64, seed=1, rank=rank, ranks=4)))} for rank in range(4)]
    assert sum(map(len, groups)) == len(set().union(*groups)) == 43
    assert max(map(len, groups)) - min(map(len, groups)) == 1


@given(st.lists(st.integers(0, 12), min_size=1, max_size=6))
def test_ranks_give_their_examples_in_turn(rows: list[int]) -> None:
    order = sorted((at, rank) for rank, count in enumerate(rows) for at in range(count))
    for rank in range(len(rows)):
        expected = [sum(one == rank for _, one in order[:count]) for count in range(len(order) + 1)]
        assert given_by_rank(rows, rank, np.arange(len(order) + 1)).tolist() == expected


def test_wrong_positions_are_refused(part: Part) -> None:
    for wrong in ({"size": 0}, {"size": 8, "start": -1}, {"size": 8, "rank": 2, "ranks": 2}, {"size": 8, "seed": -1}):
        with pytest.raises(InputError):
            part.batches(**wrong)


@pytest.mark.parametrize("epoch", [-1, 1.5, "1", None, True])
def test_wrong_epochs_are_refused(part: Part, epoch: int) -> None:
    with pytest.raises(InputError, match=r"epoch=.*; expected the number of an epoch, from 0 on"):
        part.batches(8, seed=1, epoch=epoch)


def test_an_empty_part_has_no_batches(tmp_path: Path) -> None:
    for stream in (False, True):
        table = schema({"by": "random", "test": 0})
        data = load(write(tmp_path), schema=table, cache=tmp_path / "c", stream=stream)
        assert len(data.test) == data.test.steps(10) == 0
        assert list(data.test.batches(10)) == list(data.test.batches(10, seed=1)) == []
