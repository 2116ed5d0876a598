"""``gdod demo``: small models on made data, trained with the plain sum, GDOD and Weighted-GDOD.

The labels come from a known ground truth. Each task scores the same hidden features along its own
direction; ``conflict`` says how much of a direction is the task's own instead of common to all.
"""

import copy
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

import gdod

BATCH = 256
TRAIN = 40_000
TEST = 20_000
FIELDS = {"user": 2_000, "item": 1_000, "place": 50}
HIDDEN_FEATURES = 8


@dataclass(frozen=True)
class Problem:
    """Tasks, and the share (0 to 1) of each task's direction that is its own."""

    title: str
    tasks: tuple[str, ...]
    conflict: float


PROBLEMS = (
    Problem("Two tasks", ("click", "buy"), conflict=0.8),
    Problem("Six tasks", ("click", "cart", "buy", "like", "share", "hide"), conflict=0.8),
)


@dataclass(frozen=True)
class Data:
    """Category numbers ``[examples, fields]`` and labels ``[examples, tasks]``."""

    ids: Tensor
    labels: Tensor


class SharedBottom(nn.Module):
    """One embedding per field, a shared MLP, and a small tower for each task."""

    def __init__(self, tasks: Sequence[str], width: int = 8) -> None:
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(size, width) for size in FIELDS.values())
        self.bottom = nn.Sequential(nn.Linear(width * len(FIELDS), 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())
        self.towers = nn.ModuleDict(
            {task: nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 1)) for task in tasks}
        )

    def forward(self, ids: Tensor) -> dict[str, Tensor]:
        """``ids`` [batch, fields] -> one logit [batch] for each task."""
        columns = zip(self.embeddings, ids.unbind(1), strict=True)
        features = self.bottom(torch.cat([table(column) for table, column in columns], dim=1))
        return {task: tower(features).squeeze(1) for task, tower in self.towers.items()}


Losses = Mapping[str, Tensor]
"""Per-example losses by task, each ``[batch]``."""


def plain_sum(losses: Losses) -> None:
    """The ordinary step that the others are measured against."""
    torch.stack([loss.mean() for loss in losses.values()]).sum().backward()


@dataclass
class Run:
    """One method's model on its way through training, and what was seen on it."""

    name: str
    model: SharedBottom
    backward: Callable[[Losses], gdod.Info | None]
    optimizer: torch.optim.Optimizer = field(init=False)
    seconds: list[float] = field(default_factory=list)
    energy_kept: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=2e-3)

    def step(self, batch: Data) -> None:
        start = time.perf_counter()
        self.optimizer.zero_grad()
        info = self.backward(example_losses(self.model(batch.ids), batch.labels))
        self.optimizer.step()
        self.seconds.append(time.perf_counter() - start)
        # Read outside the clock: `info` is computed when asked for, and training need not ask.
        energy = None if info is None else info.energy_kept
        self.energy_kept.append(1.0 if energy is None else energy)


@dataclass(frozen=True)
class Outcome:
    """What the table shows of one method. ``slowdown`` is relative to the plain sum's step."""

    method: str
    auc: dict[str, float]
    energy_kept: float
    slowdown: float


def make_data(problem: Problem, seed: int, train: int = TRAIN, test: int = TEST) -> tuple[Data, Data]:
    """Training and test examples of the same ground truth."""
    generator = torch.Generator().manual_seed(seed)
    examples, tasks = train + test, len(problem.tasks)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    ids = torch.stack([torch.randint(size, (examples,), generator=generator) for size in FIELDS.values()], dim=1)
    # A field's hidden features add up and bend, so that the towers' features must be learned.
    traits = [normal(size, HIDDEN_FEATURES) for size in FIELDS.values()]
    hidden = torch.stack([trait[column] for trait, column in zip(traits, ids.unbind(1), strict=True)]).sum(0)
    hidden = torch.tanh(hidden @ normal(HIDDEN_FEATURES, HIDDEN_FEATURES) / HIDDEN_FEATURES**0.5)
    common, own = normal(HIDDEN_FEATURES, 1), normal(HIDDEN_FEATURES, tasks)
    directions = (1 - problem.conflict) * common + problem.conflict * own
    logits = 3 * hidden @ (directions / directions.norm(dim=0)) - 1
    labels = torch.bernoulli(torch.sigmoid(logits), generator=generator)
    return Data(ids[:train], labels[:train]), Data(ids[train:], labels[train:])


def example_losses(logits: Mapping[str, Tensor], labels: Tensor) -> dict[str, Tensor]:
    """One loss per task and example: what ``gdod.backward`` takes."""
    return {
        task: binary_cross_entropy_with_logits(logit, label, reduction="none")
        for (task, logit), label in zip(logits.items(), labels.unbind(1), strict=True)
    }


@torch.no_grad()
def auc_per_task(model: SharedBottom, test: Data) -> dict[str, float]:
    logits = model(test.ids)
    return {
        task: float(roc_auc_score(label.numpy(), logit.numpy()))
        for (task, logit), label in zip(logits.items(), test.labels.unbind(1), strict=True)
    }


def train(problem: Problem, steps: int, seed: int, on_step: Callable[[], None]) -> list[Outcome]:
    """Train one model per method from the same start on the same batches, step by step in turn.

    In turn, because a machine's speed drifts: methods timed one after the other would each meet
    another machine.
    """
    train_data, test_data = make_data(problem, seed)
    torch.manual_seed(seed)
    start = SharedBottom(problem.tasks)
    gdod_method, weighted = gdod.GDOD(), gdod.WeightedGDOD()
    runs = [
        Run("plain sum", copy.deepcopy(start), plain_sum),
        Run("GDOD", copy.deepcopy(start), lambda losses: gdod.backward(losses, gdod_method)),
        Run("Weighted-GDOD", copy.deepcopy(start), lambda losses: gdod.backward(losses, weighted)),
    ]
    order = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        chosen = torch.randint(len(train_data.ids), (BATCH,), generator=order)
        batch = Data(train_data.ids[chosen], train_data.labels[chosen])
        for run in runs:
            run.step(batch)
        on_step()
    plain = statistics.median(runs[0].seconds)
    return [
        Outcome(
            method=run.name,
            auc=auc_per_task(run.model, test_data),
            energy_kept=statistics.fmean(run.energy_kept),
            slowdown=statistics.median(run.seconds) / plain,
        )
        for run in runs
    ]


@contextmanager
def one_thread() -> Iterator[None]:
    """The models are small: a second thread gains little, and on a busy machine both wait for it."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def table(problem: Problem, outcomes: Sequence[Outcome]) -> Table:
    """AUC per task on test data, energy kept, and time per step, one method a row."""
    title = f"{problem.title}: AUC on test data"
    # Narrow enough for six tasks in 80 columns.
    shown = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    shown.add_column("method", no_wrap=True)
    for task in (*problem.tasks, "energy\nkept", "time per\nstep"):
        shown.add_column(task, justify="right", no_wrap=True)
    for outcome in outcomes:
        shown.add_row(
            outcome.method,
            *(f"{outcome.auc[task]:.3f}" for task in problem.tasks),
            f"{outcome.energy_kept:.0%}",
            f"{outcome.slowdown:.2f}×",
        )
    return shown


def run(steps: int = 600, seed: int = 0, console: Console | None = None) -> None:
    """Train on both problems under a progress bar, then print a table for each."""
    console = console or Console()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    # A bar redrawn into a file or a pipe would be rubbish there.
    progress = Progress(
        *columns,
        TextColumn("steps"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    results: list[tuple[Problem, list[Outcome]]] = []
    with progress, one_thread():
        for problem in PROBLEMS:
            bar = progress.add_task(problem.title, total=steps)
            outcomes = train(problem, steps, seed, on_step=partial(progress.advance, bar))
            results.append((problem, outcomes))
    for problem, outcomes in results:
        console.print(table(problem, outcomes))
    console.print(
        "Energy kept: share of the task gradients' squared length, mean over the steps.\n"
        "Time: a whole step with Adam, relative to the plain sum.\n"
        "One run with one seed: small differences in AUC are chance."
    )
