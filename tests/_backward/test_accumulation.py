"""`gdod.Accumulation`: the update from micro-batches is that of the whole batch."""

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests._backward.grads import grad_of
from tests._backward.without_rule import times
from tests.reference import assert_private, assert_update, expected, flat
from tests.rows.distributed.cases import VARIETY, Everything, Mixing, Recurrent, Sequences, masks
from tests.rows.distributed.cases import everything_data as make_data
from tests.rows.distributed.cases import everything_losses as everything
from tests.rows.distributed.cases import sequence_losses as sequences
from tests.rows.distributed.steps import Data
from torch import Tensor, nn

import gdod
from gdod.rows import accumulated_rows
from gdod.rows.processes import LocalAccumulated

Losses = Callable[[nn.Module, Mapping[str, Tensor]], Any]
METHODS = {name: make for name, make in VARIETY.items() if name != "gradreg"}


def accumulate(
    model: nn.Module, losses: Losses, data: Data, sizes: Sequence[int], method: gdod.Method, **options: Any
) -> gdod.Info:
    update = gdod.Accumulation(method, examples=len(data), **options)
    start = 0
    for size in sizes:
        part = data.part(start, start + size)
        update.add(losses(model, part.inputs), mask=part.mask)
        start += size
    assert update.left == 0
    return update.backward()


def check_against_one_batch(
    model: nn.Module,
    losses: Losses,
    data: Data,
    sizes: Sequence[int],
    make: Callable[[], gdod.Method],
    whole: Losses | None = None,
) -> gdod.Info:
    """Two steps; ``whole``: the losses of all examples at once, where that is not what ``losses`` gives."""
    other, methods = copy.deepcopy(model), (make(), make())
    for _ in range(2):
        model.zero_grad()
        other.zero_grad()
        want = gdod.backward((whole or losses)(other, data.inputs), methods[1], mask=data.mask, diagnose=True)
        got = accumulate(model, losses, data, sizes, methods[0])
        for (name, one), two in zip(model.named_parameters(), other.parameters(), strict=True):
            assert (one.grad is None) == (two.grad is None), name
            assert one.grad is None or one.grad.is_sparse == grad_of(two).is_sparse, name
        ours, theirs = gradient(model), gradient(other)
        assert float((ours - theirs).norm()) <= 1e-9 * float(theirs.norm())
        torch.testing.assert_close(got.losses, want.losses, equal_nan=True)
        torch.testing.assert_close(got.norms, want.norms)
        torch.testing.assert_close(got.row_weights, want.row_weights, rtol=1e-6, atol=1e-8)
        with torch.no_grad():
            for one, two in zip(model.parameters(), other.parameters(), strict=True):
                if two.grad is not None:
                    step = 0.05 * (two.grad.to_dense() if two.grad.is_sparse else two.grad)
                    one.sub_(step)
                    two.sub_(step)
    return got


def gradient(model: nn.Module) -> Tensor:
    return flat(dict(model.named_parameters()), [n for n, p in model.named_parameters() if p.grad is not None])


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("name", METHODS)
def test_every_method_sees_the_whole_batch(name: str, sparse: bool) -> None:
    model = Everything(sparse=sparse).double()
    check_against_one_batch(model, everything, make_data(22), [1, 5, 16], METHODS[name])


@pytest.mark.parametrize("name", METHODS)
def test_missing_labels(name: str) -> None:
    """The second task has no label in the first micro-batch, the third none at all."""
    known = masks(22, slice(0, 8))
    known["t2"] = torch.zeros(22, dtype=torch.bool)
    check_against_one_batch(
        Everything().double(), everything, Data(make_data(22).inputs, known), [8, 7, 7], METHODS[name]
    )


@pytest.mark.parametrize("sizes", [[22], [1] * 22, [11, 11], [3, 19]], ids=str)
@pytest.mark.parametrize("groups", [1, 4, 7, None])
def test_micro_batches_of_any_size(groups: int | None, sizes: list[int]) -> None:
    check_against_one_batch(Everything().double(), everything, make_data(22), sizes, lambda: gdod.GDOD(groups=groups))


class Tied(nn.Module):
    """A table that is a layer, too; a weight used twice; parameters without a rule (`sin`), one for each task."""

    def __init__(self) -> None:
        super().__init__()
        self.item = nn.Embedding(9, 4)
        self.twice = nn.Linear(4, 4)
        self.angle = nn.Parameter(torch.randn(4))
        self.towers = nn.ModuleList(nn.Linear(4, 1) for _ in range(2))

    def forward(self, ids: Tensor) -> dict[str, Tensor]:
        x = torch.tanh(self.twice(torch.tanh(self.twice(self.item(ids)))))
        x = torch.softmax(x @ self.item.weight.t(), 1) @ self.item.weight
        x = times(x, self.angle)
        return {f"t{n}": tower(x).squeeze(1) for n, tower in enumerate(self.towers)}


@pytest.mark.filterwarnings("ignore::gdod.SlowPathWarning")
@settings(max_examples=25)
@given(data=st.data())
def test_as_the_dense_reference(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=5))
    examples, groups = sum(sizes), data.draw(st.integers(1, 6))
    torch.manual_seed(examples)
    model, ids = Tied().double(), torch.randint(0, 9, (examples,))
    label = torch.randn(examples, 2).double()
    known = torch.tensor(data.draw(st.lists(st.booleans(), min_size=2 * examples, max_size=2 * examples)))
    mask = None if data.draw(st.booleans()) else dict(zip(("t0", "t1"), known.view(2, -1), strict=True))
    weights = data.draw(st.sampled_from([None, [0.5, 3.0]]))

    def losses(model: nn.Module, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: (v - inputs["y"][:, n]) ** 2 for n, (name, v) in enumerate(model(inputs["ids"]).items())}

    batch = Data({"ids": ids, "y": label}, mask)
    target = expected(model, losses(model, batch.inputs), groups=groups, mask=mask, task_weights=weights)
    info = accumulate(model, losses, batch, sizes, gdod.GDOD(groups=groups), task_weights=weights)
    named = dict(model.named_parameters())
    assert {id(p) for p in info.shared or ()} == {id(named[name]) for name in target.shared}
    assert any(slow.parameter is model.angle for slow in info.slow)
    assert_update(named, target)
    labelled = [True, True] if mask is None else [bool(one.any()) for one in mask.values()]
    for task, some in enumerate(labelled):  # a task without labels leaves its own parameters alone
        if not some:
            for name in [n for n in target.private if n.startswith(f"towers.{task}")]:
                del target.private[name]
    assert_private(named, target)


def test_named_shared_parameters() -> None:
    model, data = Everything().double(), make_data(12)
    other = copy.deepcopy(model)
    gdod.backward(everything(other, data.inputs), gdod.GDOD(groups=3), shared=other.first.parameters())
    accumulate(model, everything, data, [5, 7], gdod.GDOD(groups=3), shared=model.first.parameters())
    torch.testing.assert_close(gradient(model), gradient(other), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("groups", [3, None])
def test_sequences_of_other_lengths(groups: int | None) -> None:
    ids = torch.randint(1, 50, (16, 7))
    ids[torch.arange(7) >= torch.arange(16).unsqueeze(1) // 3 + 1] = 0
    data = Data({"ids": ids, "y": torch.randn(16).double()})
    for model in (Sequences(), Recurrent()):  # other sizes; other graphs
        check_against_one_batch(model.double(), sequences, data, [4, 9, 3], lambda: gdod.GDOD(groups=groups))


def test_examples_that_mix_within_a_micro_batch() -> None:
    def losses(model: nn.Module, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: (value - 0.1 * inputs["user"]) ** 2 for name, value in model(inputs["user"]).items()}

    def whole(model: nn.Module, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        parts = [losses(model, {"user": part}) for part in inputs["user"].split([4, 6])]
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

    data = Data({"user": torch.randint(0, 30, (10,))})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", gdod.SlowPathWarning)
        info = check_against_one_batch(Mixing().double(), losses, data, [4, 6], lambda: gdod.GDOD(groups=3), whole)
    assert info.slow


def test_examples_that_mix_in_one_micro_batch_only() -> None:
    """Rows of one parameter are found in different ways."""

    def mixed(size: int, at: int) -> Tensor:
        matrix = torch.eye(size).double()
        matrix[at, at + 1] = 0.5
        return matrix

    def losses(model: nn.Module, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        out, ids = model(inputs["ids"]), inputs["ids"]
        matrix = mixed(len(ids), 0) if bool(inputs["first"].any()) else torch.eye(len(ids)).double()
        return {name: (matrix @ value - 0.3) ** 2 for name, value in out.items()}

    def whole(model: nn.Module, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        at = int(inputs["first"].nonzero()[0])
        return {name: (mixed(12, at) @ value - 0.3) ** 2 for name, value in model(inputs["ids"]).items()}

    for place in (0, 7):  # the layout changes in the second micro-batch, or back in the second
        first = torch.zeros(12, dtype=torch.bool)
        first[place] = True
        data = Data({"ids": torch.randint(1, 50, (12, 4)), "first": first})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", gdod.SlowPathWarning)
            check_against_one_batch(Sequences().double(), losses, data, [7, 5], lambda: gdod.GDOD(groups=3), whole)


def kept_of(update: gdod.Accumulation) -> list[accumulated_rows._Kept]:
    assert update._update is not None
    accumulated = update._update.accumulated
    assert isinstance(accumulated, LocalAccumulated)
    return list(accumulated._sum.kept.values())


def held(update: gdod.Accumulation) -> int:
    """Numbers that are kept for rows."""
    total = 0
    for kept in kept_of(update):
        if isinstance(kept, accumulated_rows._Sum):
            total += kept.rows.numel()
        elif isinstance(kept, accumulated_rows._Factors):
            total += sum(x.numel() + d.numel() for _, x, d in kept.runs)
        else:
            assert isinstance(kept, accumulated_rows._Entries)
            total += sum(some.keys.numel() + some.values.numel() for some in kept.merged)
    return total


@pytest.mark.parametrize(("groups", "width"), [(1, 12), (2, 12), (12, 96)])
def test_what_is_kept_is_the_smaller_of_rows_and_factors(groups: int, width: int) -> None:
    model = Everything(width=width).double()
    data = make_data(24)
    update = gdod.Accumulation(gdod.GDOD(groups=groups), examples=24)
    sizes = []
    for start in range(0, 24, 2):
        losses = everything(model, data.part(start, start + 2).inputs)
        update.add(losses)
        sizes.append(held(update))
        with pytest.raises(RuntimeError, match="second time"):  # the graph is freed
            torch.stack([loss.sum() for loss in losses.values()]).sum().backward()
    kinds = {type(kept).__name__ for kept in kept_of(update)}
    assert ("_Factors" in kinds) == (width == 96)
    rows = groups * 3 * sum(p.numel() for p in (*model.first.parameters(), *model.again.parameters()))
    entries = 24 * 5 * (1 + 3 * 6)
    others = groups * 3 * (3 * width + 8)
    assert sizes[-1] <= rows + entries + others
    if width == 12:  # rows are added to rows: only entries of tables come in addition
        assert sizes[-1] - sizes[0] <= entries


def test_entries_of_ids_that_come_again_are_merged() -> None:
    model = Everything().double()
    one = make_data(2).inputs
    update = gdod.Accumulation(gdod.PCGrad(), examples=64)
    sizes = []
    for _ in range(32):
        update.add(everything(model, one))
        sizes.append(held(update))
    assert max(sizes[4:]) <= max(sizes[:4])


def test_the_next_update_starts_anew_and_gradients_accumulate() -> None:
    model, data = Everything().double(), make_data(12)
    update = gdod.Accumulation(gdod.GDOD(groups=3), examples=12)
    for _ in range(2):
        for part in (data.part(0, 7), data.part(7, 12)):
            update.add(everything(model, part.inputs))
        update.backward()
        assert update.left == 12
    twice = gradient(model)
    model.zero_grad()
    gdod.backward(everything(model, data.inputs), gdod.GDOD(groups=3))
    torch.testing.assert_close(twice, 2 * gradient(model), rtol=1e-9, atol=1e-12)


def test_refusals_say_what_to_do_and_change_nothing() -> None:
    model, data = Everything().double(), make_data(12)

    def losses(start: int, end: int) -> dict[str, Tensor]:
        return everything(model, data.part(start, end).inputs)

    with pytest.raises(gdod.InputError, match=r"GradReg.*gdod.backward for each micro-batch"):
        gdod.Accumulation(gdod.GradReg(), examples=12)
    for wrong in (0, -1, 2.0, True, None):
        with pytest.raises(gdod.InputError, match="examples="):
            gdod.Accumulation(examples=wrong)  # type: ignore[arg-type]
    update = gdod.Accumulation(gdod.GDOD(groups=3), examples=12)
    with pytest.raises(gdod.InputError, match="0 of examples=12"):
        update.backward()
    update.add(losses(0, 5))
    with pytest.raises(gdod.InputError, match="5 of examples=12"):
        update.backward()
    with pytest.raises(gdod.InputError, match="8 examples after 5 of examples=12"):
        update.add(losses(0, 8))
    with pytest.raises(gdod.InputError, match=r"tasks 't0', 't1' .* first one"):
        update.add({name: loss for name, loss in losses(5, 12).items() if name != "t2"})
    with pytest.raises(gdod.NonFiniteInputError, match="'t0'"):
        update.add({name: loss / 0 if name == "t0" else loss for name, loss in losses(5, 12).items()})
    with pytest.raises(gdod.InputError, match="parameters are shared"):
        update.add(everything(Everything().double(), data.part(5, 12).inputs))
    assert update.left == 7
    assert all(parameter.grad is None for parameter in model.parameters())
    update.add(losses(5, 12))
    update.backward()
    got = gradient(model)
    model.zero_grad()
    gdod.backward(losses(0, 12), gdod.GDOD(groups=3))
    torch.testing.assert_close(got, gradient(model), rtol=1e-9, atol=1e-12)
    update.add(losses(0, 5))
    update.clear()
    assert update.left == 12
