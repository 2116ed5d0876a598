"""Results as JSON and Markdown, and the speed contract judged by them."""

import json
import math
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path

from benchmarks.case import Case
from benchmarks.measure import BLOCK, THREADS, Memory, Skipped, Timing
from benchmarks.ways import COMPETITORS, GDOD, PLAIN, Competitor
from gdod.report.tables import TextTable, as_markdown

LARGE = 1_000_000
MEGABYTES_THAT_COUNT_AS_FLAT = 10
UNSTEADY = 0.1
ENOUGH_PAIRS = 20


@dataclass
class Results:
    command: str
    timings: list[Timing | Skipped] = field(default_factory=list)
    kept: list[Timing | Skipped] = field(default_factory=list)  # with an allocator that keeps freed memory
    memory: list[Memory] = field(default_factory=list)

    def timing(self, case: Case, competitor: Competitor, kept: bool = False) -> Timing | None:
        for timing in self.kept if kept else self.timings:
            if isinstance(timing, Timing) and (timing.case, timing.competitor) == (case, competitor.name):
                return timing
        return None

    def doubt(self, case: Case, kept: bool) -> float:
        """Return how far a ratio may be off: as far as plain against plain is; infinitely with too few blocks."""
        plain, ours = self.timing(case, PLAIN, kept), self.timing(case, GDOD, kept)
        if plain is None or ours is None or min(plain.pairs, ours.pairs) < ENOUGH_PAIRS:
            return math.inf
        return abs(plain.ratio - 1)

    def megabytes(self, case: Case) -> float | None:
        """Return GDOD's peak memory, if it was measured."""
        for memory in self.memory:
            if (memory.case, memory.competitor) == (case, GDOD.name):
                return memory.megabytes
        return None

    def as_json(self) -> str:
        content = {
            "command": self.command,
            "environment": environment(),
            "contract": [
                asdict(promise) | {"doubt": promise.doubt if math.isfinite(promise.doubt) else None}
                for promise in contract(self)
            ],
            "timings": [asdict(timing) for timing in self.timings],
            "freed_memory_kept": [asdict(timing) for timing in self.kept],
            "memory": [asdict(memory) for memory in self.memory],
        }
        return json.dumps(content, indent=2) + "\n"

    def as_markdown(self) -> str:
        about = ", ".join(f"{name} {value}" for name, value in environment().items())
        parts = ["# Speed and memory of one step", f"`{self.command}` on {about}."]
        parts += ["## The speed contract", contract_table(contract(self))]
        if self.timings:
            parts += [
                "## Time, as a ratio to a plain forward and backward pass",
                f"Each way trains in a process of its own; blocks of {BLOCK} steps of it and of the plain step "
                "are timed in turn. Median over pairs of blocks, with the quartiles. The column plain is the plain "
                "step in one process against that in another: what the machine's noise makes of 1. Cases with Adam "
                "time the whole training step. Tables have 8 columns. Empty: not run.",
                "Freed memory: by default the C library gives a step's large gradients back to the system, and the "
                "next step, plain or not, fetches them again page by page. With an allocator that keeps them (here "
                "glibc's, told so with mallopt) the plain step is faster and GDOD's price is a larger share of it.",
                timing_table(self.timings, self.kept),
            ]
        if self.memory:
            parts += [
                "## Peak memory above the built model, in MB",
                "Each in a process of its own. A dense gradient of two tables of 1,000,000 × 8 is "
                "64 MB of it, whatever the way; with `sparse=True` there is none.",
                memory_table(self.memory),
            ]
        return "\n\n".join(parts) + "\n"

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "step.json").write_text(self.as_json())
        (folder / "step.md").write_text(self.as_markdown())


@dataclass(frozen=True)
class Promise:
    """A line of the speed contract: at most ``bar``, and at most ``aim`` if we do well."""

    what: str
    measured: float | None
    bar: float
    aim: float
    unit: str = "×"
    doubt: float = 0.0

    def verdict(self, limit: float) -> str:
        if self.measured is None:
            return "not measured"
        # A machine that is too busy for a close call may still be quiet enough for a clear one.
        close = self.measured * (1 - self.doubt) <= limit < self.measured * (1 + self.doubt)
        if close and self.doubt > UNSTEADY:
            return "machine too busy to tell"
        return "ok" if self.measured <= limit else "missed"


def contract(results: Results) -> list[Promise]:
    def growth() -> float | None:
        small = results.megabytes(Case(sparse=True))
        large = results.megabytes(Case(table_rows=LARGE, sparse=True))
        return None if small is None or large is None else large - small

    def step(what: str, case: Case, bar: float, aim: float) -> list[Promise]:
        promises = []
        for kept in (False, True):
            ours = results.timing(case, GDOD, kept)
            measured, doubt = None if ours is None else ours.ratio, results.doubt(case, kept)
            promises.append(Promise(f"{what}, freed memory {_memory(kept)}", measured, bar, aim, doubt=doubt))
        return promises

    return [
        *step("GDOD / plain step, K=2", Case(), 2.5, 1.6),
        *step("GDOD / plain step, K=6", Case(tasks=6), 5.0, 3.0),
        *step("GDOD / plain step with dense Adam, K=2", Case(adam=True), 1.3, 1.1),
        Promise(
            f"GDOD's peak memory, tables of {LARGE:,}",
            results.megabytes(Case(table_rows=LARGE)),
            bar=150,
            aim=150,
            unit=" MB",
        ),
        Promise(
            f"its growth from tables of 100,000 to {LARGE:,}, sparse=True (0 is flat)",
            growth(),
            bar=MEGABYTES_THAT_COUNT_AS_FLAT,
            aim=MEGABYTES_THAT_COUNT_AS_FLAT,
            unit=" MB",
        ),
    ]


def environment() -> dict[str, str]:
    return {
        "Python": platform.python_version(),
        "torch": version("torch"),
        "torchjd": version("torchjd"),
        "threads": str(THREADS),
        "cores": str(os.cpu_count()),
        "CPU": processor(),
    }


def processor() -> str:
    """Return the processor's name; ``platform.processor`` is often empty on Linux."""
    listing = Path("/proc/cpuinfo")
    if listing.exists():
        for line in listing.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def contract_table(promises: Sequence[Promise]) -> str:
    rows = []
    for promise in promises:
        measured = "–" if promise.measured is None else f"{promise.measured:.2f}{promise.unit}"
        limits = [f"≤ {limit:g}{promise.unit}: {promise.verdict(limit)}" for limit in (promise.bar, promise.aim)]
        rows.append([promise.what, measured, *limits])
    return markdown_table(["what", "measured", "bar", "aim"], rows)


def timing_table(timings: Sequence[Timing | Skipped], kept: Sequence[Timing | Skipped] = ()) -> str:
    """Return a line for each case and for what becomes of freed memory: given back to the system, or kept."""
    names = present([timing.competitor for timing in timings])
    both = {False: timings, True: kept}
    cells = {(timing.case, keeps, timing.competitor): timing for keeps, some in both.items() for timing in some}
    rows = []
    for case in dict.fromkeys(timing.case for timing in timings):
        for keeps in (False, True):
            line = [cells.get((case, keeps, name)) for name in names]
            if any(line):
                base = cells.get((case, keeps, PLAIN.name))
                milliseconds = f"{base.milliseconds:.2f} ms" if isinstance(base, Timing) else ""
                rows.append([str(case), _memory(keeps), milliseconds, *map(timing_cell, line)])
    return markdown_table(["case", "freed memory", "plain step", *names], rows)


def _memory(kept: bool) -> str:
    return "kept" if kept else "given back"


def timing_cell(timing: Timing | Skipped | None) -> str:
    if timing is None:
        return ""
    if isinstance(timing, Skipped):
        return timing.reason
    digits = 2 if timing.ratio < 20 else 0
    median, low, high = (f"{x:.{digits}f}" for x in (timing.ratio, timing.low, timing.high))
    return median if timing.pairs == 1 else f"{median} ({low}–{high})"


def memory_table(memory: Sequence[Memory]) -> str:
    names = present([one.competitor for one in memory])
    cells = {(one.case, one.competitor): f"{one.megabytes:.0f}" for one in memory}
    rows = [
        [str(case), *(cells.get((case, name), "") for name in names)]
        for case in dict.fromkeys(one.case for one in memory)
    ]
    return markdown_table(["case", *names], rows)


def present(measured: Sequence[str]) -> list[str]:
    """Return the names that were measured, in the order of the competitors."""
    return [one.name for one in COMPETITORS if one.name in measured]


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return as_markdown(TextTable.of_texts(header, rows), escaped=False)
