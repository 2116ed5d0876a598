"""What the training loop costs: `gdod train` with the plain sum against a loop written by hand.

``python -m benchmarks.loop`` times blocks of steps of both in turn: the same model, optimizer and
batches, and the mean of the losses every 100 steps. The loop of `gdod train` also checks labels and
losses and writes a line every 100 steps; with what it does by default, it then also works out the conflict
between the tasks, which the loop written by hand does not do: that is timed on its own.
"""

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import torch
import typer
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

import gdod
from benchmarks.measure import THREADS, time_pairs
from benchmarks.models import BATCH, CENSUS, LABELS, NUMBERS, tasks
from benchmarks.report import ENOUGH_PAIRS, UNSTEADY, environment, markdown_table
from gdod.data.dataset import Dataset
from gdod.data.parts.part import Examples, MemoryPart, Minibatch
from gdod.data.preparing.encoder import Encoder
from gdod.data.tables.table_schema import TableSchema
from gdod.models import Model, build
from gdod.training import Folder, Silent, TrainConfig, check_config
from gdod.training.interruption import StopRequest
from gdod.training.loop import Trainer
from gdod.training.record import Record

RESULTS = Path(__file__).parent / "results"
BLOCK = 10  # steps that are timed together: few, so that both loops meet the same moments of the machine
LOG = 100  # steps between two log times: one block in ten has one
ROWS = 50 * 1024
BAR = 1.1


@dataclass(frozen=True)
class Measured:
    """The loop's time over that of the one written by hand, all blocks together; quartiles over pairs of blocks."""

    tasks: int
    labels: str
    ratio: float
    low: float
    high: float
    with_conflict: float  # the same ratio where the conflict between the tasks is recorded, too
    milliseconds: float  # of a step of the loop written by hand
    pairs: int
    noise: float  # that loop over itself: 1 on a quiet machine

    @property
    def verdict(self) -> str:
        if abs(self.noise - 1) > UNSTEADY or self.pairs < ENOUGH_PAIRS:
            return f"≤ {BAR:g}: machine too busy to tell"
        return f"≤ {BAR:g}: {'ok' if self.ratio <= BAR else 'missed'}"


def part(count: int, missing: bool) -> MemoryPart:
    """Return random ids with a long tail, numbers and labels; with ``missing``, a fifth of the labels is not there."""
    generator = torch.Generator().manual_seed(0)
    sizes = torch.tensor([field.cardinality for field in CENSUS.categorical])
    ids = (torch.rand(ROWS, len(sizes), generator=generator) ** 2 * sizes).int() + 1
    labels = torch.rand(count, ROWS, generator=generator).lt(0.3).float()
    if missing:
        labels[torch.rand(count, ROWS, generator=generator) < 0.2] = torch.nan
    numbers = torch.randn(ROWS, len(NUMBERS), generator=generator)
    return MemoryPart(Examples(ids, numbers, (), labels, None), LABELS[:count])


def by_hand(model: Model, train: MemoryPart, missing: bool) -> Callable[[], float]:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)

    def losses_of(logits: dict[str, Tensor], labels: dict[str, Tensor]) -> Tensor:
        losses = []
        for name, label in labels.items():
            if missing:
                known = ~label.isnan()
                loss = binary_cross_entropy_with_logits(
                    logits[name], torch.where(known, label, 0.0), weight=known.float(), reduction="sum"
                )
                losses.append(loss / known.sum())
            else:
                losses.append(binary_cross_entropy_with_logits(logits[name], label))
        return torch.stack(losses)  # [K]

    batches, kept = endless(train), list[Tensor]()

    def block() -> float:
        start = time.perf_counter()
        for _ in range(BLOCK):
            minibatch = next(batches)
            optimizer.zero_grad()
            losses = losses_of(model(minibatch.batch), minibatch.labels)
            losses.sum().backward()
            optimizer.step()
            kept.append(losses.detach())
        if len(kept) == LOG:
            torch.stack(kept).mean(0).tolist()
            kept.clear()
        return time.perf_counter() - start

    return block


def endless(train: MemoryPart) -> Iterator[Minibatch]:
    epoch = 0
    while True:
        yield from train.batches(BATCH, seed=0, epoch=epoch)
        epoch += 1


def by_loop(model: Model, train: MemoryPart, folder: Path, *, conflict: bool) -> Callable[[], float]:
    settings = {"recipe": "paper", "data": "random", "method": "sum", "batch": BATCH, "log_every": LOG}
    settings |= {"evaluate_every": BLOCK} if conflict else {"evaluate_every": BLOCK, "conflict_every": 0}
    config: TrainConfig = check_config(settings)
    trainer = Trainer(
        config, dataset(model, train), model, gdod.Sum(), Folder(folder), device=torch.device("cpu"), progress=Silent()
    )
    return blocks_of(trainer)


def blocks_of(trainer: Trainer) -> Callable[[], float]:
    """Return what trains until an evaluation is due, which is left out, and returns the seconds that it took."""
    trainer.record, trainer.total = Record(trainer.folder.path / "metrics.jsonl", 0, None), 10**9
    batches, nothing = trainer._batches(), StopRequest()

    def block() -> float:
        start = time.perf_counter()
        trainer._train(batches, nothing)
        return time.perf_counter() - start

    return block


def dataset(model: Model, train: MemoryPart) -> Dataset:
    encoder = Encoder(TableSchema(columns={"age": "numeric"}))  # nothing here reads a table
    return Dataset("random", model.schema, model.tasks, train, train, train, "", encoder)


def measure(count: int, missing: bool, seconds: float) -> Measured:
    train = part(count, missing)
    with tempfile.TemporaryDirectory() as folder:
        places = [Path(folder) / name for name in ("same", "conflict")]
        for place in places:
            place.mkdir()
        hand = by_hand(build("shared-bottom", CENSUS, tasks(count)), train, missing)
        loop, fuller = (
            by_loop(build("shared-bottom", CENSUS, tasks(count)), train, place, conflict=place is places[1])
            for place in places
        )
        for warm_up in (hand, loop, fuller):
            warm_up()
        pairs = time_pairs(hand, loop, seconds)
        conflict = time_pairs(hand, fuller, seconds / 2)
        noise = time_pairs(hand, hand, seconds / 2)
    ratios = [other / base for base, other in pairs]
    quartiles = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    return Measured(
        tasks=count,
        labels="a fifth missing" if missing else "all there",
        ratio=together(pairs),
        low=quartiles[0],
        high=quartiles[2],
        with_conflict=together(conflict),
        milliseconds=1e3 * statistics.median(base for base, _ in pairs) / BLOCK,
        pairs=len(pairs),
        noise=together(noise),
    )


def together(pairs: list[tuple[float, float]]) -> float:
    """Return one loop's time over the other's, all blocks together, without pairs in which the machine was busy."""
    limits = [3 * statistics.median(times) for times in zip(*pairs, strict=True)]
    kept = [pair for pair in pairs if pair[0] < limits[0] and pair[1] < limits[1]]
    return sum(other for _, other in kept) / sum(base for base, _ in kept)


def as_markdown(results: list[Measured], about: dict[str, str]) -> str:
    rows = [
        [
            str(one.tasks),
            one.labels,
            f"{one.milliseconds:.2f} ms",
            f"{one.noise:.2f}",
            f"{one.ratio:.2f} ({one.low:.2f}–{one.high:.2f})",
            one.verdict,
            f"{one.with_conflict:.2f}",
        ]
        for one in results
    ]
    parts = [
        "# What the training loop costs",
        f"`python -m benchmarks.loop` on {', '.join(f'{name} {value}' for name, value in about.items())}.",
        f"Blocks of {BLOCK} steps of `gdod train` with the plain sum, its records included, over blocks of a loop "
        "written by hand that trains and keeps its mean losses: the same Shared-Bottom at the paper's sizes on the "
        f"fields of Census-Income, batch {BATCH}, fused Adam, the same batches. All blocks together, timed in turn, "
        f"with the quartiles over pairs; both loops log every {LOG} steps. The column itself is the loop written by "
        "hand over itself, and the last one is "
        "`gdod train` where it also works out the conflict between the tasks at log times, as it does by default.",
        markdown_table(["tasks", "labels", "step by hand", "itself", "gdod train", "bar", "with conflict"], rows),
    ]
    return "\n\n".join(parts) + "\n"


def main(
    seconds: Annotated[float, typer.Option(min=0, help="Time for each case.")] = 24.0,
    threads: Annotated[int, typer.Option(min=1, help="Threads of torch.")] = THREADS,
    out: Annotated[Path, typer.Option(help="Folder for loop.json and loop.md.")] = RESULTS,
) -> None:
    """Print ratios of the loop's step to one written by hand, and write them as JSON and Markdown."""
    torch.set_num_threads(threads)
    results = []
    for count in (2, 6):
        for missing in (False, True):
            print(f"{count} tasks, labels {'missing' if missing else 'complete'}", file=sys.stderr, flush=True)
            results.append(measure(count, missing, seconds))
    about = environment() | {"threads": str(threads)}
    out.mkdir(parents=True, exist_ok=True)
    content = {"environment": about, "results": [asdict(one) for one in results]}
    (out / "loop.json").write_text(json.dumps(content, indent=2) + "\n")
    (out / "loop.md").write_text(as_markdown(results, about))
    print(as_markdown(results, about))


if __name__ == "__main__":
    typer.run(main)
