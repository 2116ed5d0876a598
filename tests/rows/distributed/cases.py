"""What is compared between several processes and one. Each case runs on all ranks at once."""

import copy
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from tests._backward.grads import grad_of, tensor
from tests._backward.test_own_update import Decayed
from tests.models.cases import SMALL, TASKS, batch_of, build, labels_of, shuffled
from tests.reference import algorithm1
from tests.rows.distributed.steps import Data, Step, flat, same_everywhere
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import gdod
from gdod.errors import NonFiniteInputError
from gdod.methods import METHODS
from gdod.models import Batch, per_example_losses

Case = Callable[[], None]
CASES: dict[str, Case] = {}


def case(name: str) -> Callable[[Case], Case]:
    def keep(function: Case) -> Case:
        CASES[name] = function
        return function

    return keep


# Models of the project: every model with GDOD, every method on one model.


def table_data(size: int, seed: int = 0) -> Data:
    batch, labels = batch_of(size, seed), labels_of(size, seed)
    fields = {"categorical": batch.categorical, "numeric": batch.numeric, "seen": batch.sequences[0]}
    return Data({**fields, **{f"label {name}": value for name, value in labels.items()}})


def table_losses(model: nn.Module, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    labels = {task.name: inputs[f"label {task.name}"] for task in TASKS}
    batch = Batch(inputs["categorical"], inputs["numeric"], (inputs["seen"],))
    return per_example_losses(model(batch), labels, TASKS).losses


def small(form: str, dtype: torch.dtype, **options: Any) -> nn.Module:
    return shuffled(build(form, **options)).to(dtype).eval()


def as_type(data: Data, dtype: torch.dtype) -> Data:
    return Data({n: v.to(dtype) if v.is_floating_point() else v for n, v in data.inputs.items()}, data.mask)


def check_model(form: str, dtype: torch.dtype) -> None:
    data = as_type(table_data(24), dtype)
    Step(small(form, dtype), table_losses, lambda: gdod.GDOD(groups=5), data).check()


for form in SMALL:
    for dtype in (torch.float32, torch.float64):
        CASES[f"model {form} {str(dtype).removeprefix('torch.')}"] = partial(check_model, form, dtype)


def check_method(name: str) -> None:
    data = as_type(table_data(21), torch.float64)
    try:
        gdod.method(name)
    except ImportError:
        return
    step = Step(small("mmoe", torch.float64), table_losses, lambda: gdod.method(name), data, steps=3)
    # Solvers with a stopping rule of their own, and a Gram matrix rounded in another order.
    step.check((1e-6, 1e-8) if name in ("nash-mtl", "cagrad", "fairgrad") else None)


for name in METHODS:
    CASES[f"method {name}"] = partial(check_method, name)


# A model with everything that travels in its own way.


class Everything(nn.Module):
    """Tables (large and small, sparse and dense, bags, reused), linear layers, convolution, norms, towers."""

    def __init__(self, rows: int = 700, sparse: bool = False, width: int = 12) -> None:
        super().__init__()
        self.user = nn.Embedding(rows, 6, padding_idx=0, sparse=sparse)
        self.kind = nn.Embedding(5, 6)
        self.words = nn.EmbeddingBag(rows, 4, mode="mean", sparse=sparse)
        self.first = nn.Linear(16, width)
        self.norm = nn.LayerNorm(width)
        self.again = nn.Linear(width, width, bias=False)
        self.filter = nn.Conv1d(1, 2, 3, padding=1)
        self.scale = nn.Parameter(torch.randn(width))
        self.towers = nn.ModuleList(nn.Linear(width, 1) for _ in range(3))
        self.private = nn.Embedding(rows * 4, 3, sparse=sparse)  # of the first task alone, and not small
        self.unused = nn.Linear(2, 2)

    def forward(self, user: Tensor, kind: Tensor, words: Tensor) -> dict[str, Tensor]:
        x = torch.cat([self.user(user), self.kind(kind), self.words(words)], 1)
        x = self.norm(torch.tanh(self.first(x)))
        x = torch.tanh(self.again(self.again(x))) * self.scale
        x = x + self.filter(x.unsqueeze(1)).mean(1)
        out = [tower(x).squeeze(1) for tower in self.towers]
        out[0] = out[0] + self.private(user).sum(1)
        return {f"t{number}": value for number, value in enumerate(out)}


def everything_data(size: int, rows: int = 700, dtype: torch.dtype = torch.float64) -> Data:
    generator = torch.Generator().manual_seed(size)
    user = torch.randint(0, rows, (size,), generator=generator)
    user[size // 2 :] = user[: size - size // 2].clone()  # ids that several ranks look up
    inputs = {
        "user": user,
        "kind": torch.randint(0, 5, (size,), generator=generator),
        "words": torch.randint(0, rows, (size, 3), generator=generator),
        "label": torch.randn(size, 3, generator=generator, dtype=dtype),
    }
    return Data(inputs)


def everything_losses(model: nn.Module, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    out = model(inputs["user"], inputs["kind"], inputs["words"])
    return {name: (value - inputs["label"][:, n]) ** 2 for n, (name, value) in enumerate(out.items())}


def everything(make: Callable[[], gdod.Method], **options: Any) -> Step:
    dtype = options.pop("dtype", torch.float64)
    torch.manual_seed(0)  # ranks may have drawn differently before
    model = Everything(**options.pop("model", {})).to(dtype)
    data = options.pop("data", None) or everything_data(options.pop("size", 22), dtype=dtype)
    return Step(model, everything_losses, make, data, **options)


def model_of(step: Step) -> Everything:
    assert isinstance(step.model, Everything)
    return step.model


VARIETY: dict[str, Callable[[], gdod.Method]] = {
    "gdod": lambda: gdod.GDOD(groups=5),
    "gdod by example": lambda: gdod.GDOD(groups=None),
    "gdod in one group": lambda: gdod.GDOD(groups=1),
    "gdod qr": lambda: gdod.GDOD(groups=3, decomposition="qr"),
    "gdod randomized": lambda: gdod.GDOD(groups=3, decomposition="randomized", rank=4),
    "gdod random": lambda: gdod.GDOD(groups=3, decomposition="random", rank=4),
    "weighted-gdod": lambda: gdod.WeightedGDOD(groups=7),
    "gradnorm": lambda: gdod.GradNorm(),
    "gradreg": lambda: gdod.GradReg(weight=0.5),
    "sum": lambda: gdod.Sum(),
    "uncertainty": lambda: gdod.Uncertainty("regression", lr=0.1),
    "pcgrad": lambda: gdod.PCGrad(),
    "modo": lambda: gdod.method("modo"),
}
OWN: dict[str, Callable[[], gdod.Method]] = {"its own update": lambda: Decayed()}


def check_everything(make: Callable[[], gdod.Method], **options: Any) -> None:
    everything(make, **options).check()


for name, make in {**VARIETY, **OWN}.items():
    CASES[f"everything {name}"] = partial(check_everything, make)
    if name not in OWN:  # decay is dense
        CASES[f"everything sparse {name}"] = partial(check_everything, make, model={"sparse": True})


@case("float32")
def _() -> None:
    everything(lambda: gdod.GDOD(groups=5), dtype=torch.float32, size=40).check()
    everything(lambda: gdod.GradReg(weight=0.5), dtype=torch.float32, size=40).check()


@case("half precision: autocast, and parameters of bfloat16")
def _() -> None:
    def cast(model: nn.Module, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        with torch.autocast("cpu", torch.bfloat16):
            return {name: loss.float() for name, loss in everything_losses(model, inputs).items()}

    for name in ("weighted-gdod", "sum"):
        step = everything(VARIETY[name], dtype=torch.float32)
        Step(step.model, cast, VARIETY[name], step.data, steps=1).check((5e-2, 5e-2))
    model = Sequences().bfloat16()
    data = Data({"ids": torch.randint(1, 50, (16, 7)), "y": torch.randn(16).bfloat16()})
    Step(model, sequence_losses, lambda: gdod.GDOD(groups=1), data, steps=1).check((5e-2, 5e-2))


@case("factors travel where rows are larger")
def _() -> None:
    for make in (lambda: gdod.GDOD(groups=None), lambda: gdod.GDOD(groups=9), lambda: gdod.GradReg(weight=0.5)):
        everything(make, model={"width": 96}, size=19, steps=1).check()


def uneven(size: int) -> list[int]:
    ranks = dist.get_world_size()
    sizes = [1] * (ranks - 1)
    return [*sizes, size - sum(sizes)]


@case("uneven batches")
def _() -> None:
    for name in ("gdod", "gdod by example", "gradreg", "sum", "gradnorm"):
        everything(VARIETY[name], sizes=uneven(22)).check()
        everything(VARIETY[name], sizes=uneven(22)[::-1]).check()


@case("a rank without examples")
def _() -> None:
    ranks = dist.get_world_size()
    for name in ("gdod", "weighted-gdod", "gdod random", "gradnorm", "gradreg", "sum", "uncertainty"):
        for empty in (0, ranks - 1):
            others = [len(part) for part in torch.arange(18).tensor_split(ranks - 1)]
            sizes = [*others[:empty], 0, *others[empty:]]
            everything(VARIETY[name], size=18, sizes=sizes, model={"sparse": empty == 0}).check()


def masks(size: int, own: slice) -> dict[str, Tensor]:
    """Some labels are missing; all of the second task on the examples ``own``; all of the third."""
    known = {f"t{n}": torch.rand(size, generator=torch.Generator().manual_seed(n)) < 0.6 for n in range(3)}
    known["t1"][own] = False
    known["t1"][-1] = True
    return known


@case("missing labels")
def _() -> None:
    first = slice(0, -(-22 // dist.get_world_size()))
    for name in VARIETY:
        data = Data(everything_data(22).inputs, masks(22, first))
        everything(VARIETY[name], data=data).check()


@case("a task without any label")
def _() -> None:
    for name in ("gdod", "gradnorm", "gradreg", "sum", "uncertainty", "pcgrad"):
        known = masks(22, slice(0, 3))
        known["t2"] = torch.zeros(22, dtype=torch.bool)
        everything(VARIETY[name], data=Data(everything_data(22).inputs, known)).check()


@case("labels missing on one rank only, which alone passes a mask")
def _() -> None:
    data = everything_data(20)
    step = everything(lambda: gdod.GDOD(groups=4), data=data)
    part = step.own()
    mask = torch.ones(20, 3, dtype=torch.bool)
    mask[:4, 1] = False
    alone = Everything().double()
    alone.load_state_dict(step.model.state_dict())
    want = torch.stack(list(everything_losses(alone, data.inputs).values()), 1)
    gdod.backward(want, gdod.GDOD(groups=4), mask=mask, process_group=None)
    got = torch.stack(list(everything_losses(step.model, part.inputs).values()), 1)
    own = mask[: len(part)] if dist.get_rank() == 0 else None
    gdod.backward(got, gdod.GDOD(groups=4), mask=own)
    torch.testing.assert_close(flat(step.model), flat(alone), rtol=1e-9, atol=1e-11)


@case("task weights, one of them zero")
def _() -> None:
    options = {"options": {"task_weights": {"t0": 0.5, "t1": 0.0, "t2": 3.0}}}
    for name in ("gdod", "gradreg", "sum", "gradnorm"):
        everything(VARIETY[name], **options).check()


@case("named shared parameters")
def _() -> None:
    for name in ("gdod", "sum", "gradreg", "gradnorm"):
        step = everything(VARIETY[name])
        chosen = list(model_of(step).first.parameters())
        alone = Everything().double()
        alone.load_state_dict(step.model.state_dict())
        gdod.backward(
            everything_losses(alone, step.data.inputs),
            VARIETY[name](),
            shared=alone.first.parameters(),
            process_group=None,
        )
        part = step.own()
        gdod.backward(everything_losses(step.model, part.inputs), VARIETY[name](), shared=iter(chosen))
        torch.testing.assert_close(flat(step.model), flat(alone), rtol=1e-8, atol=1e-10)


@case("one task; diagnose; gradients at named parameters")
def _() -> None:
    def one(model: nn.Module, inputs: Mapping[str, Tensor]) -> list[Tensor]:
        return [everything_losses(model, inputs)["t0"]]

    Step(Everything().double(), one, lambda: gdod.GDOD(groups=4), everything_data(14)).check()
    everything(lambda: gdod.Sum(), options={"diagnose": True}).check()
    everything(lambda: gdod.Uncertainty(), options={"diagnose": True}).check()
    step = everything(lambda: gdod.Sum())
    layer = model_of(step).again
    alone = Everything().double()
    alone.load_state_dict(step.model.state_dict())
    methods = gdod.GradNorm(parameters=layer.parameters()), gdod.GradNorm(parameters=alone.again.parameters())
    got = gdod.backward(everything_losses(step.model, step.own().inputs), methods[0])
    want = gdod.backward(everything_losses(alone, step.data.inputs), methods[1], process_group=None)
    assert got.gram is not None
    assert want.gram is not None
    torch.testing.assert_close(got.gram.norm_gram, want.gram.norm_gram)
    torch.testing.assert_close(methods[0].task_weights, methods[1].task_weights)


@case("columns of one tensor, no shared parameter")
def _() -> None:
    def columns(model: nn.Module, inputs: Mapping[str, Tensor]) -> Tensor:
        losses: Tensor = (model(inputs["x"]) - inputs["y"]) ** 2
        return losses

    class Apart(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.towers = nn.ModuleList(nn.Linear(3, 1) for _ in range(2))

        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([tower(x) for tower in self.towers], 1)

    data = Data({"x": torch.randn(9, 3).double(), "y": torch.randn(9, 2).double()})
    Step(Apart().double(), columns, lambda: gdod.GDOD(groups=4), data).check()
    Step(nn.Linear(3, 2).double(), columns, lambda: gdod.GDOD(groups=4), data).check()


# Sequences that each rank pads to its own longest; a rank whose examples mix.


class Sequences(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.item = nn.Embedding(50, 8, padding_idx=0)
        self.deep = nn.Linear(8, 40)
        self.towers = nn.ModuleList(nn.Linear(40, 1) for _ in range(2))

    def forward(self, ids: Tensor) -> dict[str, Tensor]:
        there = (ids != 0).unsqueeze(2)
        x = (torch.tanh(self.deep(self.item(ids))) * there).sum(1)
        return {f"t{n}": tower(x).squeeze(1) for n, tower in enumerate(self.towers)}


def sequence_losses(model: nn.Module, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    ids = inputs["ids"]
    ids = ids[:, : int((ids != 0).sum(1).max())]  # padded to the longest here
    return {name: (value - inputs["y"]) ** 2 for name, value in model(ids).items()}


@case("sequences of other lengths on other ranks")
def _() -> None:
    ids = torch.randint(1, 50, (16, 7))
    ids[torch.arange(7) >= torch.arange(16).unsqueeze(1) // 3 + 1] = 0
    data = Data({"ids": ids, "y": torch.randn(16).double()})
    for groups in (None, 3):
        Step(Sequences().double(), sequence_losses, partial(gdod.GDOD, groups=groups), data).check()


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.item = nn.Embedding(50, 6, padding_idx=0)
        self.cell = nn.GRUCell(6, 6)
        self.towers = nn.ModuleList(nn.Linear(6, 1) for _ in range(2))

    def forward(self, ids: Tensor) -> dict[str, Tensor]:
        state = torch.zeros(len(ids), 6, dtype=self.item.weight.dtype)
        for step in range(ids.shape[1]):
            there = (ids[:, step] != 0).unsqueeze(1)
            state = torch.where(there, self.cell(self.item(ids[:, step]), state), state)
        return {f"t{n}": tower(state).squeeze(1) for n, tower in enumerate(self.towers)}


@case("other graphs on other ranks: a loop as long as the longest sequence")
def _() -> None:
    ids = torch.randint(1, 50, (16, 7))
    ids[torch.arange(7) >= torch.arange(16).unsqueeze(1) // 3 + 1] = 0
    data = Data({"ids": ids, "y": torch.randn(16).double()})
    for make in (lambda: gdod.GDOD(groups=3), lambda: gdod.GradReg(0.5), lambda: gdod.Sum()):
        Step(Recurrent().double(), sequence_losses, make, data).check()


@case("other graphs on other ranks, where towers change places")
def _() -> None:
    def losses(model: nn.Module, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        found = sequence_losses(model, inputs)
        whole = len(inputs["ids"]) == 16
        if dist.get_rank() == 0 and not whole:  # more nodes above the first task's tower
            found["t0"] = (found["t0"] * 2).exp().log() / 2
        return found

    data = Data({"ids": torch.randint(1, 50, (16, 7)), "y": torch.randn(16).double()})
    for make in (lambda: gdod.GDOD(groups=3), lambda: gdod.GradReg(0.5), lambda: gdod.Sum()):
        Step(Sequences().double(), losses, make, data).check()


class Mixing(nn.Module):
    """Batch norm in training: the statistics are those of a rank."""

    def __init__(self) -> None:
        super().__init__()
        self.user = nn.Embedding(30, 5)
        self.first = nn.Linear(5, 6)
        self.norm = nn.BatchNorm1d(6, track_running_stats=False)
        self.towers = nn.ModuleList(nn.Linear(6, 1) for _ in range(2))

    def forward(self, user: Tensor) -> dict[str, Tensor]:
        x = torch.tanh(self.norm(self.first(self.user(user))))
        return {f"t{n}": tower(x).squeeze(1) for n, tower in enumerate(self.towers)}


def mixing_losses(model: nn.Module, user: Tensor) -> dict[str, Tensor]:
    return {name: (value - 0.1 * user) ** 2 for name, value in model(user).items()}


@case("examples that mix, with the statistics of each rank")
def _() -> None:
    ranks, rank = dist.get_world_size(), dist.get_rank()
    user = torch.randint(0, 30, (6 * ranks,), generator=torch.Generator().manual_seed(1))
    for make in (lambda: gdod.GDOD(groups=4), lambda: gdod.Sum()):
        together, alone = Mixing().double(), Mixing().double()
        alone.load_state_dict(together.state_dict())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", gdod.SlowPathWarning)
            parts = [mixing_losses(alone, user[6 * r : 6 * r + 6]) for r in range(ranks)]
            whole = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
            gdod.backward(whole, make(), process_group=None)
            info = gdod.backward(mixing_losses(together, user[6 * rank : 6 * rank + 6]), make())
        torch.testing.assert_close(flat(together), flat(alone), rtol=1e-8, atol=1e-10)
        assert isinstance(make(), gdod.Sum) or info.slow
        same_everywhere(flat(together), "the gradient")


@case("examples that mix on one rank only")
def _() -> None:
    class OnOneRank(Sequences):
        def forward(self, ids: Tensor) -> dict[str, Tensor]:
            out = super().forward(ids)
            # A matrix product along the batch, which is an identity for other ranks.
            size = len(ids)
            mixed = torch.eye(size).double()
            if dist.get_rank() == 0:
                mixed[0, 1] = 0.5
            return {name: mixed @ value for name, value in out.items()}

    ranks, rank = dist.get_world_size(), dist.get_rank()
    ids = torch.randint(1, 50, (5 * ranks, 4), generator=torch.Generator().manual_seed(3))
    together, alone = OnOneRank().double(), Sequences().double()
    alone.load_state_dict(together.state_dict())
    mixed = torch.eye(5 * ranks).double()
    mixed[0, 1] = 0.5
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", gdod.SlowPathWarning)
        whole = {name: (mixed @ value - 0.3) ** 2 for name, value in alone(ids).items()}
        gdod.backward(whole, gdod.GDOD(groups=3), process_group=None)
        own = together(ids[5 * rank : 5 * rank + 5])
        gdod.backward({name: (value - 0.3) ** 2 for name, value in own.items()}, gdod.GDOD(groups=3))
    torch.testing.assert_close(flat(together), flat(alone), rtol=1e-8, atol=1e-10)
    same_everywhere(flat(together), "the gradient")


# DistributedDataParallel, hooks, groups of ranks.


def ddp(model: nn.Module) -> nn.Module:
    return DistributedDataParallel(model)


@case("inside DistributedDataParallel")
def _() -> None:
    for name in ("gdod", "sum", "gradreg", "gradnorm", "pcgrad"):
        everything(VARIETY[name], wrap=ddp, steps=3).check()


@case("DistributedDataParallel with bucket views")
def _() -> None:
    def views(model: nn.Module) -> nn.Module:
        return DistributedDataParallel(model, gradient_as_bucket_view=True)

    everything(VARIETY["gdod"], wrap=views, steps=3).check()
    everything(VARIETY["sum"], wrap=views, steps=3).check()


@case("accumulation over micro-batches, in DistributedDataParallel and out of it")
def _() -> None:
    for wrap in (ddp, lambda model: model):
        for name in ("gdod", "sum", "gradreg"):
            step = everything(VARIETY[name], size=24)
            alone = Everything().double()
            alone.load_state_dict(step.model.state_dict())
            wrapped = wrap(step.model)
            for _ in range(2):  # a second update after `zero_grad` would fail if hooks waited for others
                wrapped.zero_grad()
                alone.zero_grad()
                for half in (step.data.part(0, 12), step.data.part(12, 24)):
                    gdod.backward(everything_losses(alone, half.inputs), VARIETY[name](), process_group=None)
                    own = Step(step.model, everything_losses, VARIETY[name], half).own()
                    gdod.backward(everything_losses(wrapped, own.inputs), VARIETY[name]())
                torch.testing.assert_close(flat(step.model), flat(alone), rtol=1e-8, atol=1e-10)


def micro_batches(sizes: list[list[int]], name: str, mask: dict[str, Tensor] | None, **options: Any) -> None:
    """``sizes``: of each rank's micro-batches."""
    alone = Everything(**options).double()
    model = Everything(**options).double()
    model.load_state_dict(alone.state_dict())
    rank, size = dist.get_rank(), sum(map(sum, sizes))
    data = Data(everything_data(size).inputs, mask)
    want = gdod.backward(
        everything_losses(alone, data.inputs), VARIETY[name](), mask=mask, process_group=None, diagnose=True
    )
    wrapped, start = ddp(model), sum(map(sum, sizes[:rank]))
    update = gdod.Accumulation(VARIETY[name](), examples=sum(sizes[rank]))
    for count in sizes[rank]:
        part = data.part(start, start + count)
        update.add(everything_losses(wrapped, part.inputs), mask=part.mask)
        start += count
    got = update.backward()
    torch.testing.assert_close(flat(model), flat(alone), rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(got.losses, want.losses, equal_nan=True)
    torch.testing.assert_close(got.norms, want.norms)
    for one, other in zip(model.parameters(), alone.parameters(), strict=True):
        assert (one.grad is None) == (other.grad is None)
        assert one.grad is None or one.grad.is_sparse == grad_of(other).is_sparse
    same_everywhere(flat(model), "the gradient")


@case("rows of all micro-batches of all ranks")
def _() -> None:
    others = [[3, 4]] * (dist.get_world_size() - 2)
    for name in (name for name in VARIETY if name != "gradreg"):
        micro_batches([[6, 5], [7, 4], *others], name, None, sparse=True)
    for sizes in ([[1, 5, 3], [0, 4, 9], *[[2, 0, 1]] * len(others)], [[7], [1], *[[2]] * len(others)]):
        for name in ("gdod", "gdod by example", "gradnorm", "sum"):
            micro_batches(sizes, name, masks(sum(map(sum, sizes)), slice(0, 9)), width=12)
            micro_batches(sizes, name, None, width=96)


@case("micro-batches that one rank lacks, or has too many of")
def _() -> None:
    step, rank = everything(VARIETY["gdod"]), dist.get_rank()

    def losses() -> dict[str, Tensor]:
        return everything_losses(step.model, step.data.part(0, 3).inputs)

    update = gdod.Accumulation(gdod.GDOD(groups=4), examples=3 if rank else 6)
    update.add(losses())
    refused(update.backward, "rank 0: 3 of examples=6")
    refused(lambda: update.add(losses()), "rank 1: a micro-batch of 3 examples after 3 of examples=3")
    update = gdod.Accumulation(gdod.GDOD(groups=4), examples=3, scaler=torch.amp.GradScaler("cpu", 2.0 ** (4 + rank)))
    refused(lambda: update.add(losses()), "gradient scaler at 16.0", "gradient scaler at 32.0")


@case("hooks of a parameter see the whole gradient once")
def _() -> None:
    for name in ("gdod", "sum"):
        step = everything(VARIETY[name])
        alone = Everything().double()
        alone.load_state_dict(step.model.state_dict())
        seen: list[Tensor] = []
        after: list[int] = []
        first, tower = model_of(step).first.weight, tensor(model_of(step).towers[0].weight)
        first.register_hook(lambda grad, seen=seen: seen.append(grad.clone()) or 2 * grad)
        tower.register_post_accumulate_grad_hook(lambda p, after=after: after.append(1))
        gdod.backward(everything_losses(step.model, step.own().inputs), VARIETY[name]())
        gdod.backward(everything_losses(alone, step.data.inputs), VARIETY[name](), process_group=None)
        assert len(seen) == len(after) == 1
        torch.testing.assert_close(seen[0], alone.first.weight.grad, rtol=1e-8, atol=1e-10)
        torch.testing.assert_close(
            model_of(step).first.weight.grad, 2 * grad_of(alone.first.weight), rtol=1e-8, atol=1e-10
        )


@case("a group of some ranks, and no group")
def _() -> None:
    pairs = [dist.new_group([first, first + 1]) for first in range(0, dist.get_world_size(), 2)]
    mine, place = pairs[dist.get_rank() // 2], dist.get_rank() % 2
    data = everything_data(12)
    part = data.part(6 * place, 6 * place + 6)
    for name in ("gdod", "sum", "gradreg"):
        model, alone = Everything().double(), Everything().double()
        alone.load_state_dict(model.state_dict())
        gdod.backward(everything_losses(model, part.inputs), VARIETY[name](), process_group=mine)
        gdod.backward(everything_losses(alone, data.inputs), VARIETY[name](), process_group=None)
        torch.testing.assert_close(flat(model), flat(alone), rtol=1e-8, atol=1e-10)
    dist.barrier()


@case("retain_graph")
def _() -> None:
    for name in ("gdod", "sum", "gradreg"):
        step = everything(VARIETY[name])
        losses = everything_losses(step.model, step.own().inputs)
        gdod.backward(losses, VARIETY[name](), retain_graph=True)
        first = flat(step.model)
        step.model.zero_grad()
        gdod.backward(losses, VARIETY[name]())
        torch.testing.assert_close(flat(step.model), first, rtol=1e-9, atol=1e-12)


# Refusals: the same error on all ranks, and the next step works.


def refused(call: Callable[[], object], *words: str, kind: type[gdod.InputError] = gdod.InputError) -> None:
    message = ""
    try:
        call()
    except kind as error:
        message = str(error)
    assert message, "nothing was refused"
    for word in words:
        assert word in message, message
    code = torch.tensor([float(sum(message.encode()))], dtype=torch.float64)
    same_everywhere(code, f"the message {message!r}")
    everything(VARIETY["gdod"], steps=1).check()


@case("a loss that is not finite on one rank")
def _() -> None:
    step = everything(VARIETY["gdod"])
    last = dist.get_world_size() - 1
    for name in ("gdod", "sum", "gradreg"):
        losses = everything_losses(step.model, step.own().inputs)
        if dist.get_rank() == last:
            losses["t1"] = losses["t1"] / 0
        refused(
            partial(gdod.backward, losses, VARIETY[name]()),
            f"rank {last}:",
            "'t1'",
            kind=NonFiniteInputError,
        )
        assert all(parameter.grad is None for parameter in step.model.parameters())


@case("a gradient that is not finite")
def _() -> None:
    step = everything(VARIETY["gdod"])
    losses = everything_losses(step.model, step.own().inputs)
    if dist.get_rank() == 0:
        losses["t1"] = losses["t1"] + (losses["t1"] * 0).sqrt()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", gdod.SlowPathWarning)  # nan looks like anything
        refused(lambda: gdod.backward(losses, gdod.GDOD()), "'t1'", "not finite")


@case("ranks that do not do the same")
def _() -> None:
    step, rank = everything(VARIETY["gdod"]), dist.get_rank()

    def losses() -> dict[str, Tensor]:
        return everything_losses(step.model, step.own().inputs)

    refused(lambda: gdod.backward(losses(), gdod.GDOD(groups=4 + rank)), "rank 1 has", "groups=5")
    refused(lambda: gdod.backward(losses(), gdod.Sum() if rank else gdod.GDOD()), "rank 0 has", "GDOD(")
    fewer = {name: loss for name, loss in losses().items() if name != "t2" or rank == 0}
    refused(lambda: gdod.backward(fewer), "tasks 't0', 't1', 't2'", "tasks 't0', 't1',")
    refused(lambda: gdod.backward(losses(), task_weights=[1, 1, 1 + rank]), "task_weights")
    refused(lambda: gdod.backward(losses(), gdod.PCGrad(seed=rank)), "seed")
    narrow = {name: loss.float() if rank else loss for name, loss in losses().items()}
    refused(lambda: gdod.backward(narrow), "torch.float32", "torch.float64")
    refused(lambda: gdod.backward(losses(), shared=[model_of(step).first.weight] if rank else None), "shared=")
    refused(lambda: gdod.backward(losses(), shared=[model_of(step).unused.weight]), "rank 0: no loss reaches")
    refused(lambda: gdod.backward(losses(), gdod.Sum(), shared=[model_of(step).unused.weight]), "no loss reaches")
    refused(lambda: gdod.backward({}), "losses is empty")
    refused(lambda: gdod.backward(losses(), process_group="other"), "process_group='other'")  # type: ignore[arg-type]
    empty = everything_losses(step.model, step.data.part(0, 0).inputs)
    refused(lambda: gdod.backward(empty), "no rank has an example")


@case("ranks with other models")
def _() -> None:
    rank = dist.get_rank()
    for name in ("gdod", "sum", "gradreg"):
        torch.manual_seed(0)
        model = Everything(width=12 + rank).double()
        step = Step(model, everything_losses, VARIETY[name], everything_data(12))
        losses = everything_losses(model, step.own().inputs)
        refused(partial(gdod.backward, losses, VARIETY[name]()), "same parameters", "rank 1")
        losses = everything_losses(Everything().double(), step.own().inputs)
        if rank == 1:  # a path that only this rank takes
            losses["t0"] = losses["t0"] + nn.Linear(1, 1).double()(losses["t1"].unsqueeze(1)).squeeze(1)
        refused(partial(gdod.backward, losses, VARIETY[name]()), "same parameters")


@case("DistributedDataParallel that looks for unused parameters, or with a static graph")
def _() -> None:
    step = everything(VARIETY["gdod"])
    part = step.own()
    unusual: list[dict[str, Any]] = [{"find_unused_parameters": True}, {"static_graph": True}]
    for options in unusual:
        model = DistributedDataParallel(Everything().double(), **options)
        losses = everything_losses(model, part.inputs)
        refused(partial(gdod.backward, losses), "find_unused_parameters")
        refused(partial(gdod.backward, losses, gdod.Sum()), "find_unused_parameters")


# FSDP2


class Blocks(nn.Module):
    """A table, two blocks that are gathered apart, and a layer for each task. No size is a multiple of the ranks'."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 3)
        self.first = nn.Sequential(nn.Linear(7, 9), nn.Tanh())
        self.second = nn.Sequential(nn.Linear(9, 5), nn.LayerNorm(5), nn.Tanh())
        self.heads = nn.ModuleList(nn.Linear(5, 1) for _ in range(3))

    def forward(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        looked_up = self.table(inputs["ids"])
        shared = self.second(self.first(torch.cat([looked_up, inputs["x"]], 1)))
        return {f"t{number}": (head(shared)[:, 0] - 1) ** 2 for number, head in enumerate(self.heads)}


def sharded(model: nn.Module, reshard: bool) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for part in (model.first, model.second, model):
            fully_shard(part, mesh=mesh, reshard_after_forward=reshard)  # type: ignore[arg-type]


def first_block(model: nn.Module) -> list[Tensor]:
    return list(model.first.parameters())  # type: ignore[union-attr]


def check_sharded(
    make: Callable[[], gdod.Method],
    reshard: bool,
    empty: bool = False,
    named: Callable[[nn.Module], list[Tensor] | None] = lambda model: None,
) -> None:
    """Several steps of Adam: gradients in parts are those of one process, and so are the weights they lead to."""
    torch.manual_seed(3)
    data = Data({"x": torch.randn(13, 4).double(), "ids": torch.randint(7, (13,))})
    ranks = dist.get_world_size()
    sizes = [13] + [0] * (ranks - 1) if empty else None
    step = Step(Blocks().double(), lambda model, inputs: model(inputs), make, data, sizes)
    alone, model, part = copy.deepcopy(step.model), step.model, step.own()
    sharded(model, reshard)
    first, second = make(), make()
    optimizers = [torch.optim.Adam(one.parameters(), lr=0.03) for one in (alone, model)]
    for _ in range(5):
        for optimizer in optimizers:
            optimizer.zero_grad()
        gdod.backward(alone(data.inputs), first, shared=named(alone), process_group=None)
        gdod.backward(model(part.inputs), second, shared=named(model))
        for (name, one), other in zip(model.named_parameters(), alone.parameters(), strict=True):
            assert type(one).__name__ == "DTensor", name
            assert one.grad is not None, name
            torch.testing.assert_close(one.grad.full_tensor(), grad_of(other), rtol=1e-8, atol=1e-10)  # type: ignore[attr-defined]
        for optimizer in optimizers:
            optimizer.step()
        for one, other in zip(model.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(one.full_tensor(), other.detach(), rtol=1e-6, atol=1e-8)  # type: ignore[attr-defined]


for way, freed in (("gdod", True), ("gdod", False), ("sum", True), ("gradreg", False)):
    CASES[f"fully_shard, {way}, {'gathered again' if freed else 'kept'}"] = partial(check_sharded, VARIETY[way], freed)
CASES["fully_shard, with some parameters named"] = partial(check_sharded, VARIETY["gdod"], True, named=first_block)
CASES["fully_shard, and ranks without examples"] = partial(check_sharded, VARIETY["gdod"], True, empty=True)


@case("fully_shard, against the definition")
def _() -> None:
    """The gradient in parts is that of Algorithm 1 on the dense matrix of the whole batch."""
    torch.manual_seed(3)
    data = Data({"x": torch.randn(12, 4).double(), "ids": torch.randint(7, (12,))})
    step = Step(Blocks().double(), lambda model, inputs: model(inputs), gdod.GDOD, data)
    alone, model = copy.deepcopy(step.model), step.model
    shared = [*alone.table.parameters(), *alone.first.parameters(), *alone.second.parameters()]  # type: ignore[union-attr]
    losses = alone(data.inputs)

    def row(loss: Tensor, start: int) -> Tensor:
        grads = torch.autograd.grad(loss[start : start + 3].mean(), shared, retain_graph=True)
        return torch.cat([grad.flatten() for grad in grads])

    rows = torch.stack(
        [torch.stack([row(loss, start) for loss in losses.values()]) for start in range(0, 12, 3)]
    )  # [4, K, D]
    sharded(model, reshard=True)
    gdod.backward(model(step.own().inputs), gdod.GDOD(groups=4))
    ours = [*model.table.parameters(), *model.first.parameters(), *model.second.parameters()]  # type: ignore[union-attr]
    update = torch.cat([one.grad.full_tensor().flatten() for one in ours])
    torch.testing.assert_close(update, algorithm1(rows).update, rtol=1e-8, atol=1e-10)


@case("fully_shard, micro-batches")
def _() -> None:
    torch.manual_seed(3)
    data = Data({"x": torch.randn(12, 4).double(), "ids": torch.randint(7, (12,))})
    step = Step(Blocks().double(), lambda model, inputs: model(inputs), gdod.GDOD, data)
    alone, model, part = copy.deepcopy(step.model), step.model, step.own()
    sharded(model, reshard=True)
    gdod.backward(alone(data.inputs), gdod.GDOD(groups=4), process_group=None)
    update = gdod.Accumulation(gdod.GDOD(groups=4), examples=len(part))
    for start in range(0, len(part), 2):
        update.add(model(part.part(start, start + 2).inputs))
    update.backward()
    for one, other in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(one.grad.full_tensor(), grad_of(other), rtol=1e-8, atol=1e-10)  # type: ignore[union-attr]


@case("fully_shard, and one process alone")
def _() -> None:
    model = Blocks()
    sharded(model, reshard=True)
    inputs = {"x": torch.randn(4, 4), "ids": torch.arange(4)}
    for method in (gdod.GDOD(), gdod.Sum()):
        losses = model(inputs)
        refused(partial(gdod.backward, losses, method, process_group=None), "fully_shard", "leave process_group out")
    assert all(parameter.grad is None for parameter in model.parameters())


@case("parameters that ranks compute with parts of")
def _() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    ranks = dist.get_world_size()
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2 * ranks))  # each rank has two columns of the last
    parallelize_module(model, init_device_mesh("cpu", (ranks,)), {"2": ColwiseParallel()})
    losses = model(torch.ones(4, 4)) ** 2  # [4, 2], this rank's columns
    refused(partial(gdod.backward, losses, gdod.GDOD()), "DTensor", "fully_shard")


# Training.


def train(steps: int, wrap: Callable[[nn.Module], nn.Module], name: str) -> None:
    """Adam for some hundred steps in one process and in several: the losses stay together."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    alone = build("shared-bottom").double()
    together = build("shared-bottom").double()
    together.load_state_dict(alone.state_dict())
    wrapped = wrap(together)
    methods = gdod.method(name), gdod.method(name)
    first = None
    optimizers = [torch.optim.Adam(model.parameters(), lr=3e-3) for model in (alone, together)]
    for number in range(steps):
        data = as_type(table_data(24 + number % 3, seed=number % 3), torch.float64)
        part = data.part(*_bounds(len(data), rank, ranks))
        for optimizer in optimizers:
            optimizer.zero_grad()
        want = gdod.backward(table_losses(alone, data.inputs), methods[0], process_group=None)
        got = gdod.backward(table_losses(wrapped, part.inputs), methods[1])
        for optimizer in optimizers:
            optimizer.step()
        torch.testing.assert_close(got.losses, want.losses, rtol=1e-6, atol=1e-7)
        first = float(want.losses.sum()) if first is None else first
    assert first is not None
    assert float(want.losses.sum()) < 0.8 * first


def _bounds(size: int, rank: int, ranks: int) -> tuple[int, int]:
    parts = torch.arange(size).tensor_split(ranks)[rank]
    return int(parts[0]), int(parts[-1]) + 1


# Left out of the launch of all other cases, for their time.
TRAINING: dict[str, Case] = {
    "training gdod": lambda: train(300, ddp, "gdod"),
    # Where losses come close to zero, so do projections, and rounding decides their signs: one process that adds up
    # the examples of each group in another order is 1e-12 away after 200 steps, 1e-8 after 250, 4e-2 after 300.
    "training weighted-gdod": lambda: train(200, lambda model: model, "weighted-gdod"),
    "training sum": lambda: train(300, lambda model: model, "sum"),
}
