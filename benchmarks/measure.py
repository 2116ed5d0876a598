"""Time as a ratio to the plain step in the same minute, and peak memory in a process of its own."""

import contextlib
import ctypes
import gc
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from benchmarks.case import Case, SharedBottom, batches
from benchmarks.ways import COMPETITORS, PLAIN, Competitor

THREADS = 2
WARM_UP = 5
FEWEST_PAIRS, MOST_PAIRS = 3, 400
BLOCK = 10  # steps that a process makes before it is another's turn
PAUSE = 0.05  # seconds before each turn: threads of the other process spin for a while before they sleep
LONG = 0.2  # seconds after which a single step is a block


@dataclass(frozen=True)
class Timing:
    """A competitor's step over the plain step: median and quartiles over pairs timed in turn."""

    case: Case
    competitor: str
    ratio: float
    low: float
    high: float
    milliseconds: float
    pairs: int


@dataclass(frozen=True)
class Skipped:
    case: Case
    competitor: str
    reason: str


@dataclass(frozen=True)
class Memory:
    """Peak resident memory of a few steps above that of the built model, in MB (10^6 bytes)."""

    case: Case
    competitor: str
    megabytes: float


def time_competitors(
    case: Case, competitors: list[Competitor], seconds: float, processes: int = 1, keep_memory: bool = False
) -> list[Timing | Skipped]:
    """Time each competitor in turn with the plain step, for about ``seconds``, in each of some pairs of processes.

    Each trains in a process of its own, as it would for a user. In one process they would share a heap, and how
    often a step has to ask the system for memory would depend on what the other one has left there.
    """
    results: list[Timing | Skipped] = []
    for competitor in competitors:
        if reason := competitor.refuses(case):
            results.append(Skipped(case, competitor.name, reason))
            continue
        pairs = []
        for _ in range(processes):
            with Trainee(case, PLAIN, keep_memory) as plain, Trainee(case, competitor, keep_memory) as other:
                pairs += time_pairs(plain.block, other.block, seconds)
        ratios = [theirs / base for base, theirs in pairs]
        quartiles = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
        results.append(
            Timing(
                case=case,
                competitor=competitor.name,
                ratio=statistics.median(ratios),
                low=quartiles[0],
                high=quartiles[2],
                milliseconds=1e3 * statistics.median(theirs for _, theirs in pairs),
                pairs=len(pairs),
            )
        )
    return results


class Trainee:
    """A process that trains a competitor, a block of steps whenever it is asked to."""

    def __init__(self, case: Case, competitor: Competitor, keep_memory: bool) -> None:
        self.name = competitor.name
        self.process = start("train", case, competitor, keep_memory=keep_memory, stdin=subprocess.PIPE)

    def __enter__(self) -> "Trainee":
        self._told()  # it is ready
        return self

    def __exit__(self, *_: object) -> None:
        self.process.communicate()  # closes its input, which ends it

    def block(self) -> float:
        """Return the mean time of a step in a block."""
        assert self.process.stdin is not None
        time.sleep(PAUSE)
        self.process.stdin.write("block\n")
        self.process.stdin.flush()
        return float(self._told())

    def _told(self) -> str:
        assert self.process.stdout is not None
        if line := self.process.stdout.readline():
            return line
        raise SystemExit(f"{self.name} ended with exit code {self.process.wait()}; see its message above")


def train(case: Case, competitor: Competitor, keep_memory: bool) -> None:
    """Train a block for each line of input and print its time: what the child process runs."""
    if keep_memory:
        keep_freed_memory()
    load(competitor, case)
    torch.manual_seed(0)
    model = SharedBottom(case)
    optimizer = torch.optim.Adam(model.parameters()) if case.adam else None
    way, feed = competitor.way(case), batches(case)

    def step() -> float:
        batch = next(feed)
        start = time.perf_counter()
        model.zero_grad()
        way(model, batch)
        if optimizer is not None:
            optimizer.step()
        return time.perf_counter() - start

    warm_up = time.perf_counter() + LONG
    while time.perf_counter() < warm_up:
        step()
    print("ready", flush=True)
    for _ in sys.stdin:
        # The first step finds the caches as the other process left them, which it would not when training alone.
        first = step()
        took = [step() for _ in range(BLOCK)] if first < LONG else [first]
        print(statistics.fmean(took), flush=True)


def time_pairs(plain: Callable[[], float], other: Callable[[], float], seconds: float) -> list[tuple[float, float]]:
    """Return pairs of times, one call each, for about ``seconds``; at least one pair."""
    gc.collect()
    start = time.perf_counter()
    first = plain(), other()
    if time.perf_counter() > start + seconds:
        return [first]
    for _ in range(WARM_UP):
        if time.perf_counter() < start + seconds / 4:
            other()
    pairs: list[tuple[float, float]] = []
    while len(pairs) < FEWEST_PAIRS or (time.perf_counter() < start + seconds and len(pairs) < MOST_PAIRS):
        # Whoever goes second finds the caches as the first left them, so they take turns.
        if len(pairs) % 2:
            second = other()
            pairs.append((plain(), second))
        else:
            pairs.append((plain(), other()))
    return pairs


def can_keep_freed_memory() -> bool:
    """Return whether the C library is glibc, whose allocator can be told to keep freed memory."""
    return hasattr(ctypes.CDLL(None), "mallopt")


def keep_freed_memory() -> None:
    """Tell glibc's allocator not to give memory back to the system between steps.

    By default it gives back a step's large gradients or not, as the heap happens to lie, and a plain
    step takes once or three times its time. Kept memory makes the plain step steady and fast, so
    the ratios are steadier, and higher, than those of a process left alone.
    """
    trim_threshold, top_pad, mmap_threshold = -1, -2, -3  # mallopt's names for them, from malloc.h
    allocator = ctypes.CDLL(None)
    allocator.mallopt(mmap_threshold, 2**25)  # the most that glibc takes
    allocator.mallopt(trim_threshold, 2**31 - 1)
    allocator.mallopt(top_pad, 2**26)


def peak_memory(case: Case, competitor: Competitor) -> Memory:
    """Measure in a new process: a peak never comes down again in the one that had it."""
    child = start("peak", case, competitor)
    told, _ = child.communicate()
    if child.returncode:
        raise SystemExit(f"measuring the memory of {competitor.name} ended with exit code {child.returncode}")
    return Memory(case, competitor.name, float(told))


def start(
    what: str, case: Case, competitor: Competitor, keep_memory: bool = False, stdin: int | None = None
) -> "subprocess.Popen[str]":
    """Start this module as a process."""
    order = {"what": what, "case": asdict(case), "competitor": competitor.name, "keep_memory": keep_memory}
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.measure", json.dumps(order)],
        cwd=Path(__file__).parent.parent,
        stdin=stdin,
        stdout=subprocess.PIPE,
        text=True,
    )


def steps_peak(case: Case, competitor: Competitor, steps: int = 5) -> float:
    """Return the peak memory of a few steps in MB above the built model. Runs in the child."""
    load(competitor, case)
    model, way, feed = SharedBottom(case), competitor.way(case), batches(case)
    gc.collect()
    reset_peak()
    before = peak_bytes()
    for _ in range(steps):
        model.zero_grad()
        way(model, next(feed))
    return (peak_bytes() - before) / 1e6


def load(competitor: Competitor, case: Case) -> None:
    """Make one step of a tiny model: libraries load code and workspace when they are first used."""
    tiny = Case(tasks=case.tasks, groups=2, table_rows=10, batch=4, sparse=case.sparse)
    competitor.way(tiny)(SharedBottom(tiny), next(batches(tiny)))


def reset_peak() -> None:
    """Bring the peak down to the memory in use now, where the system can (Linux)."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_bytes() -> int:
    """Return the most resident memory so far, from Linux's own record if there is one.

    ``getrusage`` is second choice: on Linux its figure outlives ``exec``, so a child starts with
    the peak of the parent that started it, and nothing brings it down.
    """
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def limit_memory(allowance: int) -> None:
    """Allow no more than ``allowance`` bytes beyond what the process has now (Linux).

    Libraries set aside a gigabyte of addresses when they are first used, so use them first; a limit on
    the whole would say little.
    """
    taken = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmData:"))
    limit = int(taken.split()[1]) * 1024 + allowance
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


if __name__ == "__main__":
    torch.set_num_threads(THREADS)
    order = json.loads(sys.argv[1])
    chosen = next(one for one in COMPETITORS if one.name == order["competitor"])
    if order["what"] == "peak":
        print(steps_peak(Case(**order["case"]), chosen))
    else:
        train(Case(**order["case"]), chosen, order["keep_memory"])
