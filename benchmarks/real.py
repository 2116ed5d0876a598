"""What a step of `gdod train` costs on real tables: each method over the plain sum, and over PCGrad.

``python -m benchmarks.real`` times whole training steps (batch, forward pass, `gdod.backward`, optimizer) of the
training loop on the tables that are in $GDOD_DATA, and on made tables of the same shape in place of those that are
not. Every way trains in a process of its own; a block of steps of each is timed in turn.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from benchmarks.loop import blocks_of, by_hand
from benchmarks.measure import PAUSE, can_keep_freed_memory, keep_freed_memory
from benchmarks.report import ENOUGH_PAIRS, UNSTEADY, environment, markdown_table
from gdod._backward import Info
from gdod.data.dataset import Dataset
from gdod.data.parts.part import Examples, MemoryPart, Minibatch
from gdod.data.preparing.encoder import Encoder
from gdod.data.preparing.feature_options import FeatureOptions
from gdod.data.tables.table_schema import TableSchema
from gdod.models import Categorical, Numeric, Schema, Task, build
from gdod.training import Folder, Silent, TrainConfig, check_config
from gdod.training.loop import Trainer
from gdod.training.recipes import TableSize, apply_recipe
from gdod.training.seeds import seed_for, seeded_method

RESULTS = Path(__file__).parent / "results"
DATA = Path(os.environ.get("GDOD_DATA") or Path(__file__).parents[2] / "shared/data")
BLOCK = 10  # steps that a process makes before it is another's turn
WARM_UP = 30  # blocks before anything is timed: float32 is least precise where a model has begun to learn
BARS = {2: 2.0, 3: 2.5, 6: 4.0, 12: 4.0}  # of the methods with a basis over the plain sum, by the number of tasks
BAR_PCGRAD, BAR_SECOND, BAR_HAND = 1.4, 0.05, 1.05
ON_BASIS = ("gdod", "weighted-gdod")
HAND, PLAIN, PCGRAD = "by hand", "sum", "pcgrad"
WAYS = (PLAIN, HAND, PCGRAD, *ON_BASIS)
# fmt: off
DRUGS = (
    "Alcohol", "Amphet", "Amyl", "Benzos", "Caff", "Cannabis", "Choc", "Coke", "Crack", "Ecstasy", "Heroin", "Ketamine",
    "Legalh", "LSD", "Meth", "Mushrooms", "Nicotine", "Semer", "VSA",
)
# fmt: on
NO_TASKS = ("Alcohol", "Caff", "Choc", "Crack", "Heroin", "Semer", "VSA")


@dataclass(frozen=True)
class Shape:
    """What a table that is not here looked like when it was prepared."""

    rows: int  # of the training part
    categories: tuple[int, ...]
    numbers: int
    wide: int  # inputs that the strong recipe makes of it, in place of numbers


@dataclass(frozen=True)
class Table:
    """A table, or the first tasks of one."""

    name: str
    tasks: int
    shape: Shape
    source: str  # the name of a data set, or a file below $GDOD_DATA
    folder: str | None = None  # below $GDOD_DATA; None: it is simulated, or a file

    @property
    def is_here(self) -> bool:
        return (DATA / (self.folder or self.source)).exists() or self.source == "ads"


# Numbers of the prepared tables: Census-Income in full, a part of BookCrossing, the shop log in the layout of IJCAI-15.
CENSUS = Shape(
    179_571,
    (9, 52, 47, 3, 24, 15, 9, 3, 6, 6, 6, 50, 38, 8, 9, 8, 9, 3, 3, 5, 42, 42, 42, 5, 3, 3, 3, 2),
    numbers=8,
    wide=1200,
)
BOOKS = Shape(143_999, (14769, 83751, 5180, 758, 126, 7462, 1545), numbers=2, wide=1700)
TABLES = (
    Table("BookCrossing", 2, BOOKS, "bookcrossing", "book-crossing"),
    Table("shop log", 2, Shape(33_466, (1461, 25615, 385, 1, 57, 10, 3, 10, 1), 2, 1600), "ijcai15", "ijcai15"),
    Table("Census-Income, two tasks", 2, CENSUS, "census", "census-income-kdd"),
    Table("ads", 3, Shape(144_000, (19692, 8, 40, 4, 24, 1098, 150, 25, 5, 24, 8), 1, 2700), "ads"),
    Table("Census-Income", 6, CENSUS, "census", "census-income-kdd"),
    Table("drug consumption", 12, Shape(1_357, (), 12, 300), "drug-consumption/drug_consumption.data"),
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    table: Table
    recipe: str
    threads: int
    keeps_memory: bool

    def __str__(self) -> str:
        memory = "kept" if self.keeps_memory else "given back"
        made = "" if self.table.is_here else " (made)"
        threads = f"{self.threads} thread{'s' if self.threads > 1 else ''}"
        return f"{self.table.name}{made}, recipe {self.recipe}, {threads}, freed memory {memory}"


@dataclass(frozen=True)
class Measured:
    """The time of a way's step over the plain sum's: median and quartiles over rounds of blocks timed in turn."""

    case: Case
    way: str
    ratio: float
    low: float
    high: float
    over_pcgrad: float
    milliseconds: float
    rounds: int
    second: float  # share of the steps in which the Gram matrix was made again in float64
    noise: float  # the first half of the plain sum's rounds over the second half


class Watched(Trainer):
    """A trainer that counts steps in which inner products were taken a second time, in float64."""

    steps = second = 0

    def _step(self, minibatch: Minibatch, step: int, conflict: bool) -> Info | None:
        info = super()._step(minibatch, step, conflict)
        if info is not None and info.gram is not None and self.method.accepts_float32_gram:
            self.steps += 1
            self.second += info.gram.error < 1e-12
        return info


def config_of(case: Case, method: str) -> TrainConfig:
    settings: dict[str, Any] = {
        "data": {"source": "made"},
        "method": method,
        "recipe": case.recipe,
        "log_every": 100,
        "conflict_every": 0,
        "evaluate_every": BLOCK,
    }
    return check_config(settings)


def load(case: Case) -> Dataset:
    """Return the table, with as many of its tasks as are asked for."""
    features = FeatureOptions() if case.recipe == "strong" else None
    dataset = _real(case.table, features) if case.table.is_here else _made(case.table, features is not None)
    count = case.table.tasks
    parts = [dataset.train, dataset.validation, dataset.test]
    train, validation, test = (_first_tasks(part, count) for part in parts if isinstance(part, MemoryPart))
    return replace(dataset, tasks=dataset.tasks[:count], train=train, validation=validation, test=test)


def _first_tasks(part: MemoryPart, count: int) -> MemoryPart:
    return MemoryPart(part.examples._replace(labels=part.examples.labels[:count].contiguous()), part.tasks[:count])


def _real(table: Table, features: FeatureOptions | None) -> Dataset:
    from gdod.data import load

    if table.folder is None and table.source != "ads":
        with tempfile.TemporaryDirectory() as folder:  # under a name that says what kind of file it is
            file = Path(folder) / "table.csv"
            file.write_bytes((DATA / table.source).read_bytes())
            return load(file, schema=_drug_schema(), features=features, stream=False)
    return load(table.source, folder=table.folder and DATA / table.folder, features=features, stream=False)


def _drug_schema() -> TableSchema:
    """Return twelve tasks: used within the last year, by twelve numbers about a person."""
    numbers = [f"number {at}" for at in range(12)]
    used = {"type": "label", "kind": "binary", "positive": ["CL3", "CL4", "CL5", "CL6"]}
    columns: dict[str, Any] = {"id": "ignore", **dict.fromkeys(numbers, "numeric")}
    columns |= {name: "ignore" if name in NO_TASKS else used for name in DRUGS}
    return TableSchema.model_validate({"columns": columns, "file": {"header": ["id", *numbers, *DRUGS]}})


def _made(table: Table, wide: bool) -> Dataset:
    """Return random ids with a long tail, random numbers, and labels that can be learned from them."""
    generator, shape = torch.Generator().manual_seed(0), table.shape
    sizes, numbers = torch.tensor(shape.categories), shape.wide if wide else shape.numbers
    place = torch.rand(shape.rows, len(sizes), generator=generator) ** 2
    ids = (place * sizes).int() + 1 if len(sizes) else place.int()
    x = torch.randn(shape.rows, numbers, generator=generator)
    logits = x @ torch.randn(numbers, table.tasks, generator=generator) / numbers**0.5
    for column, size in enumerate(shape.categories):
        effects = torch.randn(size + 1, table.tasks, generator=generator) / len(sizes) ** 0.5
        logits = logits + effects[ids[:, column].long()]
    labels = (torch.rand(table.tasks, shape.rows, generator=generator) < (logits - 1).sigmoid().T).float()
    names = tuple(f"task {task}" for task in range(table.tasks))
    part = MemoryPart(Examples(ids, x, (), labels, None), names)
    schema = Schema(
        [Categorical(f"field {at}", size) for at, size in enumerate(shape.categories)],
        [Numeric(f"number {at}") for at in range(numbers)],
    )
    encoder = Encoder(TableSchema(columns={"nothing": "numeric"}))  # nothing here reads a table
    return Dataset("made", schema, tuple(map(Task, names)), part, part, part, "", encoder)


def blocks(case: Case, way: str, folder: Path) -> tuple[Callable[[], float], Watched | None]:
    """Return what trains a block of steps and returns its seconds, and the trainer that counts steps."""
    dataset = load(case)
    config, _ = apply_recipe(config_of(case, PLAIN if way == HAND else way), TableSize.of(dataset))
    options = {**config.model.options}
    model = build(config.model.name, dataset.schema, dataset.tasks, seed=seed_for("model", 0), **options)
    if way == HAND:
        assert isinstance(dataset.train, MemoryPart)
        return by_hand(model, dataset.train, missing=False), None
    method = seeded_method(config.method.name, config.method.options, 0)
    trainer = Watched(config, dataset, model, method, Folder(folder), device=torch.device("cpu"), progress=Silent())
    return blocks_of(trainer), trainer


def train(case: Case, way: str) -> None:
    """Train a block for each line of input and print its time: what the child process runs."""
    torch.set_num_threads(case.threads)
    if case.keeps_memory:
        keep_freed_memory()
    with tempfile.TemporaryDirectory() as folder:
        block, trainer = blocks(case, way, Path(folder))
        for _ in range(WARM_UP):
            block()
        print("ready", flush=True)
        for _ in sys.stdin:
            print(block() / BLOCK, flush=True)
        if trainer is not None:
            print(trainer.second / max(1, trainer.steps), flush=True)
        else:
            print(0.0, flush=True)


class Trainee:
    """A process that trains one way, a block of steps whenever it is asked to."""

    def __init__(self, case: Case, way: str) -> None:
        order = {**asdict(case), "table": case.table.name, "way": way}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.real", "--child", json.dumps(order)],
            cwd=Path(__file__).parent.parent,
            # As the commands have it: threads that wait for each other sleep.
            env=os.environ | {"OMP_NUM_THREADS": str(case.threads), "GOMP_SPINCOUNT": "3000"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.way = way

    def block(self) -> float:
        """Return the mean time of a step in a block."""
        assert self.process.stdin is not None
        time.sleep(PAUSE)
        self.process.stdin.write("block\n")
        self.process.stdin.flush()
        return float(self.told())

    def told(self) -> str:
        assert self.process.stdout is not None
        if line := self.process.stdout.readline():
            return line
        raise SystemExit(f"{self.way} ended with exit code {self.process.wait()}; see its message above")

    def end(self) -> float:
        """Let it end, and return the share of steps with a second Gram matrix."""
        told, _ = self.process.communicate()  # closes its input
        return float(told)


def measure(case: Case, ways: Sequence[str], rounds: int) -> list[Measured]:
    """Time a block of each way in turn, every other round in the opposite order."""
    load(case)  # prepares it, once
    trainees = []
    for way in ways:  # one after the other, so that they do not warm up at once
        trainees.append(Trainee(case, way))
        trainees[-1].told()
    times: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(rounds):
        for trainee in trainees[:: -1 if number % 2 else 1]:
            times[trainee.way].append(trainee.block())
    second = {trainee.way: trainee.end() for trainee in trainees}
    plain, half = times[PLAIN], rounds // 2
    noise = statistics.median(plain[:half]) / statistics.median(plain[half:]) if half else 1.0
    results = []
    for way, took in times.items():
        ratios = [own / base for own, base in zip(took, plain, strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4) if rounds > 1 else ratios * 3
        over = statistics.median(a / b for a, b in zip(took, times.get(PCGRAD, took), strict=True))
        milliseconds = 1e3 * statistics.median(took)
        results.append(Measured(case, way, middle, low, high, over, milliseconds, rounds, second[way], noise))
    return results


def verdict(one: Measured) -> str:
    """Return whether the bars are met, where the machine was quiet enough to tell."""
    if one.way == PLAIN or one.way == PCGRAD:
        return ""
    if abs(one.noise - 1) > UNSTEADY or one.rounds < ENOUGH_PAIRS:
        return "machine too busy to tell"
    if one.way == HAND:
        return f"sum over it ≤ {BAR_HAND:g}: {_met(1 / one.ratio <= BAR_HAND)}"
    bar = BARS[one.case.table.tasks]
    return (
        f"≤ {bar:g}: {_met(one.ratio <= bar)}; over PCGrad ≤ {BAR_PCGRAD:g}: {_met(one.over_pcgrad <= BAR_PCGRAD)}; "
        f"second ≤ {BAR_SECOND:.0%}: {_met(one.second <= BAR_SECOND)}"
    )


def _met(met: bool) -> str:
    return "ok" if met else "missed"


def as_markdown(results: list[Measured], about: dict[str, str]) -> str:
    rows = [
        [
            str(one.case.table.tasks),
            str(one.case),
            one.way,
            f"{one.milliseconds:.2f} ms",
            f"{one.ratio:.2f} ({one.low:.2f}–{one.high:.2f})",
            f"{one.over_pcgrad:.2f}",
            f"{one.second:.1%}" if one.way in ON_BASIS else "",
            verdict(one),
        ]
        for one in results
    ]
    parts = [
        "# What a step costs on real tables",
        f"`python -m benchmarks.real` on {', '.join(f'{name} {value}' for name, value in about.items())}.",
        "Whole steps of `gdod train`, batch to optimizer. Recipe paper: Shared-Bottom at the paper's sizes, batch 256, "
        "16 groups, fused Adam; recipe strong: wider inputs, and sizes by the table. Every way trains in a process of "
        f"its own, {WARM_UP * BLOCK} steps before anything is timed; then blocks of {BLOCK} steps of each are timed in "
        "turn. Medians over rounds, with the quartiles, of the ratio to the plain sum through the same training loop. "
        "By hand: a plain loop without `gdod` (of recipe paper alone). Second: the share of steps in which the Gram "
        "matrix was made again in float64.",
        markdown_table(["K", "case", "way", "step", "over sum", "over PCGrad", "second", "bars"], rows),
    ]
    return "\n\n".join(parts) + "\n"


def main(
    table: Annotated[list[str] | None, typer.Option(help="Only tables whose names begin so.")] = None,
    way: Annotated[list[str] | None, typer.Option(help=f"Only these of {', '.join(WAYS)}; the sum always.")] = None,
    recipe: Annotated[list[str] | None, typer.Option(help="paper, strong; both by default.")] = None,
    threads: Annotated[list[int] | None, typer.Option(help="Threads of torch; 1 by default.")] = None,
    memory: Annotated[str, typer.Option(help="Freed memory: given-back, kept, or both.")] = "both",
    rounds: Annotated[int, typer.Option(min=1, help="Blocks of each way.")] = 30,
    out: Annotated[Path | None, typer.Option(help="Folder for real.json and real.md; none: only print.")] = None,
    child: Annotated[str | None, typer.Option(hidden=True)] = None,
) -> None:
    """Print what steps cost, and write it as JSON and Markdown."""
    if child is not None:
        order = json.loads(child)
        one = next(one for one in TABLES if one.name == order["table"])
        train(Case(one, order["recipe"], order["threads"], order["keeps_memory"]), order["way"])
        return
    chosen = [one for one in TABLES if not table or any(one.name.startswith(name) for name in table)]
    ways = [one for one in WAYS if not way or one in way or one == PLAIN]
    memories = [kept for kept, name in ((False, "given-back"), (True, "kept")) if memory in (name, "both")]
    results = []
    for count in threads or [1]:
        for name in recipe or ["paper", "strong"]:
            for one in chosen:
                for kept in memories:
                    if kept and not can_keep_freed_memory():
                        continue
                    case = Case(one, name, count, kept)
                    print(case, file=sys.stderr, flush=True)
                    results += measure(case, [w for w in ways if name == "paper" or w != HAND], rounds)
                    for own in results[-len(ways) :]:
                        print(f"  {own.way}: {own.ratio:.2f}, second {own.second:.1%}", file=sys.stderr, flush=True)
    about = {name: value for name, value in environment().items() if name != "threads"}
    print(as_markdown(results, about))
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        content = {"environment": about, "results": [asdict(one) for one in results]}
        (out / "real.json").write_text(json.dumps(content, indent=2) + "\n")
        (out / "real.md").write_text(as_markdown(results, about))


if __name__ == "__main__":
    typer.run(main)
