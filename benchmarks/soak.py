"""Tens of thousands of updates in one process: memory stays flat, and the last update is as exact as the first.

``python -m benchmarks.soak --steps 30000`` trains a small model with `gdod.backward`, with another batch size,
other missing labels and another method in each step, conflict worked out in some, and losses that are refused in
between. It watches resident memory, tensors that are alive and what the engine keeps, and at the end compares the
update with a dense one. It is not part of `make bench`, since nothing in it is a matter of speed.
"""

import copy
import gc
import json
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor

import gdod
from benchmarks.report import environment, markdown_table
from gdod.models import Batch, Categorical, Numeric, Schema, Task, build, per_example_losses
from gdod.models import Sequence as Sequences
from gdod.rows import workspace

RESULTS = Path(__file__).parent / "results"
SCHEMA = Schema(
    categorical=[Categorical("user", 500), Categorical("item", 200)],
    numeric=[Numeric("age"), Numeric("price")],
    sequences=[Sequences("seen", 200)],
)
TASKS = [Task("click"), Task("buy"), Task("stars", "regression")]
GROUPS = 8
# With state of their own and without; gdod most often, as it is what most people use.
METHODS: tuple[Callable[[], gdod.Method], ...] = (
    *[lambda: gdod.GDOD(groups=GROUPS)] * 3,
    lambda: gdod.GDOD(groups=GROUPS, decomposition="randomized", rank=6),
    lambda: gdod.WeightedGDOD(groups=GROUPS),
    gdod.Sum,
    *[
        lambda name=name: gdod.method(name)
        for name in ("gradnorm", "pcgrad", "cagrad", "mgda", "uncertainty", "famo", "modo", "gradreg")
    ],
)
FLAT = 10.0  # MB of resident memory between the least and the most after the warm-up
EXACT = 1e-3  # of the dense update's length, in float32 beside float64


@dataclass(frozen=True)
class Sample:
    step: int
    resident: float  # MB
    tensors: int  # alive
    objects: int  # that Python's collector knows
    kept: float  # MB that the engine keeps for the next step
    cached: int  # entries of all caches of functions


class Soak:
    """A model in training, in a way that no training is."""

    def __init__(self, sizes: Sequence[int], seed: int = 0) -> None:
        self.sizes, self.draw = sizes, random.Random(seed)
        torch.manual_seed(seed)
        self.model = build("shared-bottom", SCHEMA, TASKS, embedding=4, bottom=(32, 16), tower=(8,), dropout=0.1)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.methods = [make() for make in METHODS]
        self.steps = self.refused = 0

    def batch(self, size: int) -> tuple[Batch, dict[str, Tensor]]:
        batch = Batch(
            torch.stack([torch.randint(1, 501, (size,)), torch.randint(1, 201, (size,))], 1),
            torch.randn(size, 2),
            (torch.randint(0, 201, (size, 5)),),
        )
        labels = {"click": torch.rand(size).lt(0.3).float(), "buy": torch.rand(size).lt(0.1).float()}
        labels["stars"] = torch.randn(size)
        gaps = self.draw.choice([0.0, 0.0, 0.3])
        return batch, {name: label.masked_fill(torch.rand(size) < gaps, torch.nan) for name, label in labels.items()}

    def step(self) -> None:
        draw = self.draw
        method = draw.choice(self.methods)
        batch, labels = self.batch(draw.choice(self.sizes))
        self.optimizer.zero_grad()
        losses, mask = per_example_losses(self.model(batch), labels, TASKS)
        wrong = draw.random() < 0.02
        if wrong:
            losses["buy"] = losses["buy"] * torch.inf
        weights = {"click": 1.0, "buy": draw.uniform(0.5, 2.0), "stars": 0.5} if draw.random() < 0.2 else None
        try:
            gdod.backward(losses, method, mask=mask, task_weights=weights, diagnose=draw.random() < 0.1)
        except gdod.InputError:
            # A task without any label, say, cannot be balanced; but what is wrong must always be refused.
            assert all(parameter.grad is None for parameter in self.model.parameters())
            self.refused += 1
        else:
            assert not wrong or not any(bool(one.any()) for one in (mask or {}).values()), "an infinite loss was taken"
            self.optimizer.step()
        self.steps += 1

    def sample(self) -> Sample:
        gc.collect()
        objects = gc.get_objects()
        return Sample(
            self.steps,
            resident(),
            sum(issubclass(type(one), Tensor) for one in objects),
            len(objects),
            workspace.kept_bytes() / 1e6,
            sum(info().currsize for info in caches().values()),
        )


def caches() -> dict[str, Any]:
    """Return, for each cached function in the package, the call that tells how full its cache is."""
    return {
        f"{module}.{name}": value.cache_info
        for module, content in list(sys.modules.items())
        if module.startswith("gdod.")
        for name, value in vars(content).items()
        if hasattr(value, "cache_info") and value.__module__ == module
    }


def resident() -> float:
    line = next(one for one in Path("/proc/self/status").read_text().splitlines() if one.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024 / 1e6


def deviation(soak: Soak) -> float:
    """Return the distance of GDOD's update from a dense one in float64, relative to that one's length."""
    soak.model.eval()  # no dropout
    batch, labels = soak.batch(64)
    twin = copy.deepcopy(soak.model).double()
    theirs, mask = per_example_losses(twin(batch._replace(numeric=batch.numeric.double())), labels, TASKS)
    soak.model.zero_grad()
    losses, _ = per_example_losses(soak.model(batch), labels, TASKS)
    info = gdod.backward(losses, gdod.GDOD(groups=GROUPS), mask=mask)
    assert info.shared is not None
    places = {id(parameter): at for at, parameter in enumerate(soak.model.parameters())}
    shared = [list(twin.parameters())[places[id(parameter)]] for parameter in info.shared]
    update = torch.cat([parameter.grad.flatten().double() for parameter in info.shared if parameter.grad is not None])
    wanted = dense_update(theirs, mask, shared)
    return float((update - wanted).norm() / wanted.norm())


def dense_update(losses: dict[str, Tensor], mask: dict[str, Tensor] | None, shared: Sequence[Tensor]) -> Tensor:
    """Return the update of the paper's Algorithm 1, worked out with all rows in memory. [D]"""
    rows, counts = [], []
    size = len(next(iter(losses.values())))
    for group in torch.arange(size).tensor_split(GROUPS):
        for name, loss in losses.items():
            examples = group if mask is None else group[mask[name][group]]
            mean = loss[examples].sum() / max(len(examples), 1)
            of_row = torch.autograd.grad(mean, shared, retain_graph=True, materialize_grads=True)
            rows.append(torch.cat([one.flatten() for one in of_row]))
            counts.append(len(examples))
    matrix = torch.stack(rows)  # [nK, D]
    count = torch.tensor(counts, dtype=torch.float64).view(GROUPS, -1)  # [n, K]
    share = count / count.sum(0).clamp(min=1)
    gradients = (share[..., None] * matrix.view(GROUPS, len(losses), -1)).sum(0)  # [K, D]
    _, sigma, basis = torch.linalg.svd(matrix, full_matrices=False)
    basis = basis[sigma > sigma[0] * max(matrix.shape) * torch.finfo(torch.float64).eps]
    projections = basis @ gradients.T  # [r, K]
    signs = projections.sign() * (projections.abs() > 1e-10 * gradients.norm(dim=1))
    agree = ~((signs > 0).any(1) & (signs < 0).any(1))
    return torch.as_tensor((agree * projections.sum(1)) @ basis)


def as_markdown(samples: list[Sample], told: dict[str, str], about: dict[str, str], command: str) -> str:
    shown = samples[:: max(1, len(samples) // 15)]
    shown += [] if shown[-1] is samples[-1] else [samples[-1]]
    rows = [
        [
            f"{one.step:,}",
            f"{one.resident:.1f}",
            f"{one.tensors:,}",
            f"{one.objects:,}",
            f"{one.kept:.1f}",
            f"{one.cached}",
        ]
        for one in shown
    ]
    header = ["step", "resident, MB", "tensors alive", "objects", "kept by the engine, MB", "cached results"]
    parts = [
        "# A long run",
        f"`{command}` on {', '.join(f'{name} {value}' for name, value in about.items())}.",
        "Updates of a small model by `gdod.backward` and Adam, in each another batch size from 1 to 256, other missing "
        f"labels and one of {len(METHODS)} methods; in a tenth of them the conflict is worked out, and now and then a "
        "loss is infinite, which is refused.",
        markdown_table(["what", "outcome"], [[what, outcome] for what, outcome in told.items()]),
        markdown_table(header, rows),
    ]
    return "\n\n".join(parts) + "\n"


def main(
    steps: Annotated[int, typer.Option(min=10, help="Updates.")] = 30_000,
    out: Annotated[Path, typer.Option(help="Folder for soak.json and soak.md.")] = RESULTS,
) -> None:
    """Print what memory did and how exact the last update is, and write it as JSON and Markdown.

    Ctrl-C ends it early, with what there is.
    """
    torch.set_num_threads(1)
    soak, samples = Soak(range(1, 257)), []
    before = deviation(soak)
    every = max(1, steps // 60)
    soak.model.train()
    try:
        while soak.steps < steps:
            soak.step()
            if soak.steps % every == 0:
                samples.append(soak.sample())
                print(samples[-1], file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        print("stopped; this is what there is", file=sys.stderr)
    after = deviation(soak)
    settled = [one for one in samples if one.step > soak.steps / 5]
    spread = max(one.resident for one in settled) - min(one.resident for one in settled)
    half = len(settled) // 2
    growth = settled[-1].resident - settled[half].resident
    told = {
        "updates": f"{soak.steps:,}{'' if soak.steps == steps else ' (stopped there by Ctrl-C)'}, of them "
        f"{soak.refused:,} refused",
        "resident memory after the first fifth": f"{'flat' if spread <= FLAT else 'NOT flat'}: within {spread:.1f} MB, "
        f"in the second half of that {growth:+.1f} MB",
        "tensors alive, least and most": f"{min(s.tensors for s in settled):,}, {max(s.tensors for s in settled):,}",
        "results that caches hold, at most": f"{max(one.cached for one in samples):,}",
        "GDOD's update beside a dense one in float64": f"off by {before:.1e} of its length at first, by {after:.1e} "
        f"at the end: {'exact' if after <= EXACT else 'NOT exact'}",
    }
    about, command = environment() | {"threads": "1"}, f"python -m benchmarks.soak --steps {steps}"
    text = as_markdown(samples, told, about, command)
    out.mkdir(parents=True, exist_ok=True)
    content = {"command": command, "environment": about, "outcome": told, "samples": [asdict(one) for one in samples]}
    (out / "soak.json").write_text(json.dumps(content, indent=1) + "\n")
    (out / "soak.md").write_text(text)
    print(text)


if __name__ == "__main__":
    typer.run(main)
