"""What a step of `gdod train` costs on real tables: each method over the plain sum, and over PCGrad.

``python -m benchmarks.real`` times whole training steps (batch, forward pass, `gdod.backward`, optimizer) of the
training loop on the tables that are in $GDOD_DATA, and on made tables of the same shape in place of those that are
not. Every way trains in a process of its own; a block of steps of each is timed in turn.

All of it takes more than half an hour. Options choose a part, and `real.json` and `real.md` keep what was measured
before: ``--missing`` goes on where a run was interrupted. Parts of less than ten minutes on a quiet machine are

    python -m benchmarks.real --recipe paper --threads 1 --memory given-back
    python -m benchmarks.real --recipe paper --threads 1 --memory kept
    python -m benchmarks.real --recipe paper --threads 2 --memory given-back --no-busy
    python -m benchmarks.real --recipe paper --threads 2 --memory kept
    python -m benchmarks.real --recipe strong --threads 1
    python -m benchmarks.real --recipe strong --threads 2
    python -m benchmarks.real --recipe ensemble --threads 1 --rounds 20
    python -m benchmarks.real --recipe ensemble --threads 2 --rounds 20
    python -m benchmarks.real --busy
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch.nn.functional import binary_cross_entropy_with_logits

from benchmarks.loop import blocks_of, by_hand, endless
from benchmarks.measure import PAUSE, can_keep_freed_memory, keep_freed_memory
from benchmarks.report import ENOUGH_PAIRS, UNSTEADY, environment, markdown_table
from gdod._backward import Info
from gdod._checks import short_waits
from gdod.data.dataset import Dataset
from gdod.data.parts.part import Examples, MemoryPart, Minibatch
from gdod.data.preparing.encoder import Encoder
from gdod.data.preparing.feature_options import FeatureOptions
from gdod.data.tables.table_schema import TableSchema
from gdod.models import Categorical, Numeric, Schema, Task, build
from gdod.models.shared_bottom import SharedBottom
from gdod.training import Folder, Silent, TrainConfig, check_config
from gdod.training.loop import Trainer
from gdod.training.recipes import TableSize, apply_recipe
from gdod.training.seeds import seed_for, seeded_method

RESULTS = Path(__file__).parent / "results"
DATA = Path(os.environ.get("GDOD_DATA") or Path(__file__).parents[2] / "shared/data")
BLOCK = 10  # steps that a process makes before it is another's turn
WARM_UP = 30  # blocks before anything is timed: float32 is least precise where a model has begun to learn
LONGEST = 20.0  # seconds that they may take unless an option says more
BARS = {2: 2.0, 3: 2.5, 6: 4.0, 12: 4.0}  # of the methods with a basis over the plain sum, by the number of tasks
BAR_PCGRAD, BAR_SECOND, BAR_HAND = 1.4, 0.05, 1.05
ON_BASIS = ("gdod", "weighted-gdod")
HAND, PLAIN, PCGRAD, TORCHJD = "by hand", "sum", "pcgrad", "torchjd PCGrad"
WAYS = (PLAIN, HAND, PCGRAD, TORCHJD, *ON_BASIS)
BY_HAND = (HAND, TORCHJD)  # loops without `gdod`, of recipe paper alone
RECIPES = ("paper", "strong", "ensemble")
MEMBERS = 8  # of the ensemble
# The tables of each recipe: all, or those of two and of six tasks.
OF_RECIPE = {"strong": ("BookCrossing", "shop log", "Census-Income"), "ensemble": ("shop log", "Census-Income")}
BUSY = ("shop log", "Census-Income")  # the tables of steps beside a busy process


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
    source: str  # the name of a data set
    folder: str | None = None  # below $GDOD_DATA; None: it is simulated

    @property
    def is_here(self) -> bool:
        return self.folder is None or (DATA / self.folder).exists()


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
    Table("drug consumption", 12, Shape(1_357, (), 12, 300), "drugs", "drug-consumption"),
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    table: Table
    recipe: str
    threads: int
    keeps_memory: bool
    busy: bool = False  # whether another process keeps a core busy

    def __str__(self) -> str:
        memory = "kept" if self.keeps_memory else "given back"
        made = "" if self.table.is_here else " (made)"
        threads = f"{self.threads} thread{'s' if self.threads > 1 else ''}"
        recipe = f"strong with {MEMBERS} members" if self.recipe == "ensemble" else self.recipe
        beside = ", beside a busy process" if self.busy else ""
        return f"{self.table.name}{made}, recipe {recipe}, {threads}{beside}, freed memory {memory}"

    def order(self) -> dict[str, Any]:
        """Return the case as JSON has it."""
        return {**asdict(self), "table": self.table.name}

    @staticmethod
    def ordered(order: dict[str, Any]) -> "Case":
        """Return the case that `order` was made of."""
        return Case(**{**order, "table": next(one for one in TABLES if one.name == order["table"])})


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
        "recipe": "paper" if case.recipe == "paper" else "strong",
        "log_every": 100,
        "conflict_every": 0,
        "evaluate_every": BLOCK,
    }
    if case.recipe == "ensemble":
        settings["model"] = {"name": "shared-bottom", "options": {"ensemble": MEMBERS}}
    return check_config(settings)


def load(case: Case) -> Dataset:
    """Return the table, with as many of its tasks as are asked for."""
    features = None if case.recipe == "paper" else FeatureOptions()
    dataset = _real(case.table, features) if case.table.is_here else _made(case.table, features is not None)
    count = case.table.tasks
    parts = [dataset.train, dataset.validation, dataset.test]
    train, validation, test = (_first_tasks(part, count) for part in parts if isinstance(part, MemoryPart))
    return replace(dataset, tasks=dataset.tasks[:count], train=train, validation=validation, test=test)


def _first_tasks(part: MemoryPart, count: int) -> MemoryPart:
    return MemoryPart(part.examples._replace(labels=part.examples.labels[:count].contiguous()), part.tasks[:count])


def _real(table: Table, features: FeatureOptions | None) -> Dataset:
    from gdod.data import load

    return load(table.source, folder=table.folder and DATA / table.folder, features=features, stream=False)


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
    config, _ = apply_recipe(config_of(case, PLAIN if way in BY_HAND else way), TableSize.of(dataset))
    options = {**config.model.options}
    model = build(config.model.name, dataset.schema, dataset.tasks, seed=seed_for("model", 0), **options)
    if way in BY_HAND:
        assert isinstance(dataset.train, MemoryPart)
        if way == HAND:
            return by_hand(model, dataset.train, missing=False), None
        assert isinstance(model, SharedBottom)
        return by_torchjd(model, dataset.train), None
    method = seeded_method(config.method.name, config.method.options, 0)
    trainer = Watched(config, dataset, model, method, Folder(folder), device=torch.device("cpu"), progress=Silent())
    return blocks_of(trainer), trainer


def by_torchjd(model: SharedBottom, train: MemoryPart) -> Callable[[], float]:
    """Return the loop of `by_hand` with torchjd's PCGrad on the shared parameters."""
    from torchjd.aggregation import PCGrad
    from torchjd.autojac import jac_to_grad, mtl_backward

    optimizer, aggregator = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True), PCGrad()
    shared, batches = [*model.features.parameters(), *model.bottom.parameters()], endless(train)

    def block() -> float:
        start = time.perf_counter()
        for _ in range(BLOCK):
            minibatch = next(batches)
            optimizer.zero_grad()
            hidden = model.bottom(model.features(minibatch.batch))  # [B, H]
            towers = zip(model.towers, minibatch.labels.values(), strict=True)
            losses = [binary_cross_entropy_with_logits(tower(hidden), label) for tower, label in towers]
            mtl_backward(losses, features=hidden)
            jac_to_grad(shared, aggregator, optimize_gramian_computation=True)
            optimizer.step()
        return time.perf_counter() - start

    return block


def train(case: Case, way: str, longest: float) -> None:
    """Train a block for each line of input and print its time: what the child process runs."""
    torch.set_num_threads(case.threads)
    if case.keeps_memory:
        keep_freed_memory()
    with tempfile.TemporaryDirectory() as folder:
        block, trainer = blocks(case, way, Path(folder))
        end, blocks_left = time.monotonic() + longest, WARM_UP
        while blocks_left and time.monotonic() < end:
            block()
            blocks_left -= 1
        print("ready", flush=True)
        for _ in sys.stdin:
            block()  # untimed: while others had their turn, threads fell asleep and caches were lost
            print(block() / BLOCK, flush=True)
        if trainer is not None:
            print(trainer.second / max(1, trainer.steps), flush=True)
        else:
            print(0.0, flush=True)


class Trainee:
    """A process that trains one way, a block of steps whenever it is asked to."""

    def __init__(self, case: Case, way: str, longest: float) -> None:
        order = {"case": case.order(), "way": way, "longest": longest}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.real", "--child", json.dumps(order)],
            cwd=Path(__file__).parent.parent,
            env=os.environ | {"OMP_NUM_THREADS": str(case.threads)} | short_waits(os.environ),
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


def measure(case: Case, ways: Sequence[str], rounds: int, longest: float) -> list[Measured]:
    """Time a block of each way in turn, every other round in the opposite order."""
    load(case)  # prepares it, once
    trainees = []
    for way in ways:  # one after the other, so that they do not warm up at once
        trainees.append(Trainee(case, way, longest))
        trainees[-1].told()
    times: dict[str, list[float]] = {way: [] for way in ways}
    with busy_process() if case.busy else nullcontext():
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


@contextmanager
def busy_process() -> Iterator[None]:
    """Keep a core busy with another process."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def verdict(one: Measured) -> str:
    """Return whether the bars are met, where the machine was quiet enough to tell."""
    if one.way == PLAIN or one.way == PCGRAD:
        return ""
    if abs(one.noise - 1) > UNSTEADY or one.rounds < ENOUGH_PAIRS:
        return "machine too busy to tell"
    if one.way == TORCHJD:
        return f"PCGrad on our engine over it {1 / one.over_pcgrad:.2f} < 1: {_met(one.over_pcgrad > 1)}"
    if one.case.busy:
        return ""  # shown without a bar
    if one.way == HAND:
        return f"sum over it ≤ {BAR_HAND:g}: {_met(1 / one.ratio <= BAR_HAND)}"
    bar = BARS[one.case.table.tasks]
    return (
        f"≤ {bar:g}: {_met(one.ratio <= bar)}; over PCGrad ≤ {BAR_PCGRAD:g}: {_met(one.over_pcgrad <= BAR_PCGRAD)}; "
        f"second ≤ {BAR_SECOND:.0%}: {_met(one.second <= BAR_SECOND)}"
    )


def _met(met: bool) -> str:
    return "ok" if met else "missed"


def kept_results(file: Path) -> list[Measured]:
    """Return what was measured before."""
    if not file.exists():
        return []
    return [Measured(**{**one, "case": Case.ordered(one["case"])}) for one in json.loads(file.read_text())["results"]]


def merged(before: list[Measured], new: list[Measured]) -> list[Measured]:
    """Return all results, cases in a fixed order, those that were measured again as they are now."""
    again = {(one.case, one.way) for one in new}
    results = [one for one in before if (one.case, one.way) not in again] + new
    place = {case: number for number, case in enumerate(cases())}
    return sorted(results, key=lambda one: (place.get(one.case, len(place)), WAYS.index(one.way)))


def write(results: list[Measured], out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    about = {name: value for name, value in environment().items() if name != "threads"}
    rows = [{**asdict(one), "case": one.case.order()} for one in results]
    (out / "real.json").write_text(json.dumps({"environment": about, "results": rows}, indent=2) + "\n")
    (out / "real.md").write_text(as_markdown(results, about))


def cases() -> Iterator[Case]:
    """Yield all cases that are measured unless options choose some."""
    for recipe in RECIPES:
        for threads in (1, 2):
            for table in TABLES:
                for kept in (False, True) if recipe == "paper" else (False,):
                    if table.name in OF_RECIPE.get(recipe, (table.name,)):
                        yield Case(table, recipe, threads, kept)
    for table in TABLES:
        if table.name in BUSY:
            # One thread is what `gdod train` takes there.
            yield from (Case(table, "paper", threads, False, busy=True) for threads in (1, 2))


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
        f"its own, {WARM_UP * BLOCK} steps (or {LONGEST:g} seconds) before anything is timed; then blocks of {BLOCK} "
        "steps of each are timed in "
        "turn, each after a block that is not timed, as in a loop that never waits. Medians over rounds, with the "
        "quartiles, of the ratio to the plain sum through the same training loop. "
        f"By hand: a plain loop without `gdod`, and the same with torchjd's PCGrad (of recipe paper alone). {MEMBERS} "
        "members: the ensemble of that many. Threads that wait for each other sleep soon, as the commands have it "
        "(`GOMP_SPINCOUNT`); beside a busy process: another one keeps a core busy all the time. Freed memory: by "
        "default the C library gives large pieces back to the system, and the next step fetches them again; kept: "
        "it is told not to (mallopt). Second: the share of steps in which the Gram matrix was made again in float64.",
        markdown_table(["K", "case", "way", "step", "over sum", "over PCGrad", "second", "bars"], rows),
    ]
    return "\n\n".join(parts) + "\n"


def main(
    table: Annotated[list[str] | None, typer.Option(help="Only tables whose names begin so.")] = None,
    way: Annotated[list[str] | None, typer.Option(help=f"Only these of {', '.join(WAYS)}; the sum always.")] = None,
    recipe: Annotated[list[str] | None, typer.Option(help=f"Only these of {', '.join(RECIPES)}.")] = None,
    threads: Annotated[list[int] | None, typer.Option(help="Only with so many threads of torch, 1 or 2.")] = None,
    memory: Annotated[str, typer.Option(help="Freed memory: given-back, kept, or both.")] = "both",
    busy: Annotated[bool | None, typer.Option(help="Only beside a busy process, or only without one.")] = None,
    missing: Annotated[bool, typer.Option(help="Only cases that the results do not have yet.")] = False,
    rounds: Annotated[int, typer.Option(min=1, help="Blocks of each way.")] = 30,
    longest: Annotated[
        float, typer.Option(help=f"Seconds that the {WARM_UP * BLOCK} steps before anything is timed may take.")
    ] = LONGEST,
    out: Annotated[Path, typer.Option(help="Folder for real.json and real.md.")] = RESULTS,
    child: Annotated[str | None, typer.Option(hidden=True)] = None,
) -> None:
    """Measure what steps cost, case by case, and write it as JSON and Markdown after each."""
    if child is not None:
        order = json.loads(child)
        train(Case.ordered(order["case"]), order["way"], order["longest"])
        return
    results = kept_results(out / "real.json")
    known = {one.case for one in results}
    for case in cases():
        if (
            (table and not any(case.table.name.startswith(name) for name in table))
            or (recipe and case.recipe not in recipe)
            or (threads and case.threads not in threads)
            or memory not in ("both", "kept" if case.keeps_memory else "given-back")
            or (busy is not None and case.busy != busy)
            or (case.keeps_memory and not can_keep_freed_memory())
            or (missing and case in known)
        ):
            continue
        print(case, file=sys.stderr, flush=True)
        ways = [one for one in WAYS if (not way or one in way or one == PLAIN) and has_way(case, one)]
        measured = measure(case, ways, rounds, longest)
        for own in measured:
            print(f"  {own.way}: {own.ratio:.2f}, second {own.second:.1%}", file=sys.stderr, flush=True)
        results = merged(results, measured)
        write(results, out)
    print((out / "real.md").read_text() if results else "no case is left by these options")


def has_way(case: Case, way: str) -> bool:
    """Return whether a way is measured in a case: loops by hand have the paper's recipe alone."""
    return case.recipe == "paper" or way not in BY_HAND


if __name__ == "__main__":
    typer.run(main)
