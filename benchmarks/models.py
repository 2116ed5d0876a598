"""The models of `gdod.models` at the paper's sizes, on the fields of Census-Income.

``python -m benchmarks.models`` times GDOD's step of each model against that model's own plain step;
``python -m benchmarks.models --parameters`` counts their parameters.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import cycle
from pathlib import Path
from typing import Annotated

import torch
import typer
from torch import Tensor

import gdod
from benchmarks.measure import THREADS, WARM_UP, time_pairs
from benchmarks.report import ENOUGH_PAIRS, UNSTEADY, environment, markdown_table
from gdod.models import (
    MODELS,
    Batch,
    Categorical,
    Model,
    Numeric,
    Schema,
    Task,
    build,
    per_example_losses,
)

RESULTS = Path(__file__).parent / "results"
BATCH = 256
BARS = {2: 3.0, 6: 6.0}

# Columns of Census-Income (KDD) and the number of their categories in its training data, without
# "?", which is missing. Columns that define one of the six labels are left out.
CATEGORIES = {
    "class of worker": 9,
    "detailed industry recode": 52,
    "detailed occupation recode": 47,
    "enroll in edu inst last wk": 3,
    "major industry code": 24,
    "major occupation code": 15,
    "hispanic origin": 10,
    "member of a labor union": 3,
    "reason for unemployment": 6,
    "tax filer stat": 6,
    "region of previous residence": 6,
    "state of previous residence": 50,
    "detailed household and family stat": 38,
    "detailed household summary in household": 8,
    "migration code-change in msa": 9,
    "migration code-change in reg": 8,
    "migration code-move within reg": 9,
    "live in this house 1 year ago": 3,
    "migration prev res in sunbelt": 3,
    "family members under 18": 5,
    "country of birth father": 42,
    "country of birth mother": 42,
    "country of birth self": 42,
    "citizenship": 5,
    "own business or self employed": 3,
    "fill inc questionnaire for veteran's admin": 3,
    "veterans benefits": 3,
    "year": 2,
}
NUMBERS = (
    "age",
    "wage per hour",
    "capital gains",
    "capital losses",
    "dividends from stocks",
    "instance weight",
    "num persons worked for employer",
    "weeks worked in year",
)
LABELS = ("income", "never married", "education", "full-time", "male", "white")
CENSUS = Schema(
    categorical=[Categorical(name, size) for name, size in CATEGORIES.items()],
    numeric=[Numeric(name) for name in NUMBERS],
)

Example = tuple[Batch, dict[str, Tensor]]


@dataclass(frozen=True)
class Measured:
    """GDOD's step over the plain step: median and quartiles over pairs timed in turn."""

    model: str
    tasks: int
    ratio: float
    low: float
    high: float
    plain_milliseconds: float
    pairs: int
    noise: float  # the plain step over itself: 1 on a quiet machine

    @property
    def verdict(self) -> str:
        bar = BARS[self.tasks]
        if abs(self.noise - 1) > UNSTEADY or self.pairs < ENOUGH_PAIRS:
            return f"≤ {bar:g}: machine too busy to tell"
        return f"≤ {bar:g}: {'ok' if self.ratio <= bar else 'missed'}"


def tasks(count: int) -> list[Task]:
    return [Task(name) for name in LABELS[:count]]


def examples(count: int, batches: int = 20) -> Iterator[Example]:
    """Return random ids with a long tail, numbers and labels."""
    generator = torch.Generator().manual_seed(0)
    sizes = torch.tensor(list(CATEGORIES.values()))

    def draw() -> Example:
        place = torch.rand(BATCH, len(sizes), generator=generator) ** 2
        ids = (place * sizes).long() + 1  # [B, F]
        numbers = torch.randn(BATCH, len(NUMBERS), generator=generator)  # [B, G]
        labels = torch.rand(count, BATCH, generator=generator).lt(0.3).float()  # [K, B]
        return Batch(ids, numbers), dict(zip(LABELS, labels, strict=False))

    return cycle([draw() for _ in range(batches)])


def plain(losses: dict[str, Tensor]) -> None:
    torch.stack([loss.mean() for loss in losses.values()]).sum().backward()


def with_gdod(losses: dict[str, Tensor]) -> None:
    gdod.backward(losses, gdod.GDOD(groups=16))


def step(model: Model, feed: Iterator[Example], back: Callable[[dict[str, Tensor]], None]) -> float:
    """Return the seconds that a forward and a backward pass take."""
    batch, labels = next(feed)
    start = time.perf_counter()
    model.zero_grad()
    logits = model(batch)
    back(per_example_losses(logits, labels, model.tasks, penalties=model.example_penalties(logits)).losses)
    return time.perf_counter() - start


def measure(name: str, count: int, seconds: float) -> Measured:
    torch.manual_seed(0)
    model, feed = build(name, CENSUS, tasks(count)), examples(count)

    def plain_step() -> float:
        return step(model, feed, plain)

    for _ in range(WARM_UP):
        plain_step()
    pairs = time_pairs(plain_step, lambda: step(model, feed, with_gdod), seconds)
    noise = time_pairs(plain_step, plain_step, seconds / 4)
    ratios = [other / base for base, other in pairs]
    quartiles = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    return Measured(
        model=name,
        tasks=count,
        ratio=statistics.median(ratios),
        low=quartiles[0],
        high=quartiles[2],
        plain_milliseconds=1e3 * statistics.median(base for base, _ in pairs),
        pairs=len(pairs),
        noise=statistics.median(other / base for base, other in noise),
    )


def as_markdown(results: list[Measured], about: dict[str, str]) -> str:
    rows = [
        [
            one.model,
            str(one.tasks),
            f"{one.plain_milliseconds:.2f} ms",
            f"{one.noise:.2f}",
            f"{one.ratio:.2f} ({one.low:.2f}–{one.high:.2f})",
            one.verdict,
        ]
        for one in results
    ]
    parts = [
        "# Speed of a GDOD step for each model",
        f"`python -m benchmarks.models` on {', '.join(f'{name} {value}' for name, value in about.items())}.",
        "Forward and backward pass at the paper's sizes on the fields of Census-Income, batch 256, 16 groups, over "
        "the same model's plain step: median over pairs of steps timed in turn, with the quartiles. The column plain "
        "is the plain step over itself: what the machine's noise makes of 1.",
        markdown_table(["model", "tasks", "plain step", "plain", "GDOD", "bar"], rows),
    ]
    return "\n\n".join(parts) + "\n"


def parameters_table() -> str:
    """Return a table of each model's parameters: shared ones and those of a single task."""
    rows = []
    for name in MODELS:
        row = [name]
        for count in BARS:
            model = build(name, CENSUS, tasks(count))
            shared = sum(parameter.numel() for parameter in model.shared_parameters())
            everything = sum(parameter.numel() for parameter in model.parameters())
            row += [f"{everything:,}", f"{shared:,}"]
        rows.append(row)
    header = ["model"]
    for count in BARS:
        header += [f"{count} tasks", "of them shared"]
    return markdown_table(header, rows)


def write(results: list[Measured], about: dict[str, str], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    content = {"environment": about, "results": [asdict(one) for one in results]}
    (folder / "models.json").write_text(json.dumps(content, indent=2) + "\n")
    (folder / "models.md").write_text(as_markdown(results, about))


def main(
    parameters: Annotated[bool, typer.Option(help="Only count parameters.")] = False,
    model: Annotated[list[str] | None, typer.Option(help="Only these models.")] = None,
    seconds: Annotated[float, typer.Option(min=0, help="Time for each model and number of tasks.")] = 3.0,
    threads: Annotated[int, typer.Option(min=1, help="Threads of torch.")] = THREADS,
    out: Annotated[Path, typer.Option(help="Folder for models.json and models.md.")] = RESULTS,
) -> None:
    """Print ratios of GDOD's step to the plain step, and write them as JSON and Markdown."""
    if parameters:
        print(parameters_table())
        return
    torch.set_num_threads(threads)
    about = environment() | {"threads": str(threads)}
    results = []
    for name in model or MODELS:
        for count in BARS:
            print(f"time: {name}, {count} tasks", file=sys.stderr, flush=True)
            results.append(measure(name, count, seconds))
    print(as_markdown(results, about))
    write(results, about, out)


if __name__ == "__main__":
    typer.run(main)
