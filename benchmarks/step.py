"""Measure one training step of GDOD against the plain step and against other ways.

``make bench`` runs everything; ``python -m benchmarks.step --help`` says how to run
a part of it.
"""

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.case import Case, variations
from benchmarks.measure import can_keep_freed_memory, peak_memory, time_competitors
from benchmarks.report import LARGE, Results
from benchmarks.ways import BATCHED, COMPETITORS, GDOD, NAIVE, PLAIN, TORCHJD, Competitor

RESULTS = Path(__file__).parent / "results"
PROMISED = (Case(), Case(tasks=6), Case(adam=True))  # what the speed contract is about

Plan = list[tuple[Case, list[Competitor]]]


class Part(StrEnum):
    ALL = "all"
    CONTRACT = "contract"
    SPEED = "speed"
    MEMORY = "memory"


def speed_plan(part: Part) -> Plan:
    if part is Part.CONTRACT:
        return [(case, [PLAIN, GDOD, TORCHJD]) for case in PROMISED]
    return [] if part is Part.MEMORY else [(case, speed_rivals(case)) for case in variations()]


def speed_rivals(case: Case) -> list[Competitor]:
    """Return the competitors to time, without those whose step takes seconds and would tell nothing new."""
    if case.adam:
        return [PLAIN, GDOD, TORCHJD]
    few = case in [Case(tasks=tasks, groups=groups) for tasks in (2, 6) for groups in (4, 16)]
    return [one for one in COMPETITORS if few or one is not NAIVE]


def memory_plan(part: Part) -> Plan:
    contract: Plan = [
        (Case(table_rows=LARGE), [PLAIN, GDOD]),
        (Case(sparse=True), [PLAIN, GDOD]),
        (Case(table_rows=LARGE, sparse=True), [PLAIN, GDOD]),
    ]
    if part is Part.CONTRACT:
        return contract
    if part is Part.SPEED:
        return []
    return [
        (Case(), [PLAIN, GDOD, TORCHJD, BATCHED, NAIVE]),
        (Case(tasks=6), [PLAIN, GDOD, TORCHJD, BATCHED]),
        (Case(batch=2048), [PLAIN, GDOD, TORCHJD]),
        (Case(tasks=6, table_rows=LARGE), [PLAIN, GDOD, TORCHJD]),
        *contract,
    ]


def main(
    only: Annotated[Part, typer.Option(help="Measure only this part.")] = Part.ALL,
    seconds: Annotated[float, typer.Option(min=0, help="Time for each competitor in each pair of processes.")] = 2.5,
    processes: Annotated[
        int, typer.Option(min=1, help="Pairs of processes for what the speed contract is about; one for the rest.")
    ] = 6,
    out: Annotated[Path, typer.Option(help="Folder for step.json and step.md.")] = RESULTS,
) -> None:
    """Print ratios to a plain forward and backward pass, and write them as JSON and Markdown."""
    command = " ".join(["python -m benchmarks.step", *sys.argv[1:]])
    results = Results("make bench" if command == "python -m benchmarks.step" else command)
    # Memory first: its processes start from a parent that is still small.
    for case, competitors in memory_plan(only):
        for competitor in competitors:
            note(f"memory: {case}: {competitor.name}")
            results.memory.append(peak_memory(case, competitor))
    for case, competitors in speed_plan(only):
        note(f"time: {case}")
        for competitor in competitors:
            promised = case in PROMISED and competitor in (PLAIN, GDOD)
            results.timings += time_competitors(case, [competitor], seconds, processes if promised else 1)
    if only is not Part.MEMORY and can_keep_freed_memory():
        for case in PROMISED:
            note(f"time, freed memory kept: {case}")
            results.kept += time_competitors(case, [PLAIN, GDOD], seconds, processes // 2 or 1, keep_memory=True)
    print(results.as_markdown())
    results.write(out)
    note(f"written to {out}")


def note(text: str) -> None:
    """Print progress to stderr, so that stdout holds the report alone."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    typer.run(main)
