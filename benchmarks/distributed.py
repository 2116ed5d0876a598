"""What travels: bytes that a rank sends in one step, by what they are, and how they grow.

``python -m benchmarks.distributed`` runs the benchmark model in 2, 4 and 8 processes (gloo) and counts; beside it
stand the bytes of `DistributedDataParallel`, which sums every gradient, those of whole tables included. Counts do
not depend on the machine, so nothing here is timed.
"""

import json
import sys
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Annotated

import torch
import torch.distributed as dist
import typer

import gdod
from benchmarks.case import Case, SharedBottom, batches, forward
from benchmarks.report import environment, markdown_table
from gdod.ranks.exchange import traffic

RESULTS = Path(__file__).parent / "results"
CENTRE = Case(table_rows=100_000, batch=256)  # of each rank
KINDS = {
    "agreement": ("agreement", "sizes", "weights"),
    "rows": ("rows", "rows of tables", "cotangents of rows"),
    "Gram matrix": ("Gram matrix",),
    "dense gradients": ("dense gradients",),
    "table gradients": ("table gradients",),
}
NUMBER = 4  # bytes


@dataclass(frozen=True)
class Counted:
    case: Case
    method: str
    ranks: int
    kinds: dict[str, int]  # bytes a step, of the rank that sends most
    calls: int
    ddp: int  # bytes of DistributedDataParallel

    @property
    def total(self) -> int:
        return sum(self.kinds.values())


def cases(ranks: int) -> list[tuple[Case, str]]:
    """Return the cases: at two ranks each factor changed alone; at more, the centre and what depends on ranks."""
    centre: list[tuple[Case, str]] = [(CENTRE, "gdod"), (CENTRE, "sum"), (CENTRE, "gradreg")]
    changed = [
        replace(CENTRE, tasks=6),
        replace(CENTRE, tasks=12),
        replace(CENTRE, groups=4),
        replace(CENTRE, groups=64),
        replace(CENTRE, batch=1024),
        replace(CENTRE, table_rows=10_000),
        replace(CENTRE, table_rows=1_000_000),
        replace(CENTRE, table_rows=1_000_000, sparse=True),
        replace(CENTRE, ids="skewed"),
    ]
    return [*centre, *((case, "gdod") for case in changed)] if ranks == 2 else centre


def count(case: Case, method: str, rank: int, ranks: int) -> Counted:
    torch.manual_seed(0)
    model, made = SharedBottom(case), gdod.method(method)
    if method == "gdod":
        made = gdod.GDOD(groups=case.groups)
    feed = batches(case, seed=rank)
    for number in range(3):
        if number == 1:
            traffic.clear()  # the first step only looks at the graph more closely
        model.zero_grad()
        gdod.backward(forward(model, next(feed))[1], made)
    unknown = set(traffic.sent) - {name for names in KINDS.values() for name in names}
    assert not unknown, unknown
    own = torch.tensor([sum(traffic.sent.get(name, 0) for name in names) / 2 for names in KINDS.values()])
    every = [torch.empty_like(own) for _ in range(ranks)]
    dist.all_gather(every, own)
    most = max(every, key=lambda counts: float(counts.sum())).round().long().tolist()
    parameters = sum(parameter.numel() for parameter in model.parameters())
    ddp = round(2 * (ranks - 1) / ranks * NUMBER * parameters)
    return Counted(case, method, ranks, dict(zip(KINDS, most, strict=True)), traffic.calls // 2, ddp)


def work(rank: int, ranks: int, store: str, answer: Connection) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    counted = [count(case, method, rank, ranks) for case, method in cases(ranks)]
    if rank == 0:
        answer.send(counted)
    dist.destroy_process_group()


def run(ranks: int, folder: Path) -> list[Counted]:
    context = get_context("spawn")
    receive, send = context.Pipe(duplex=False)
    store = str(folder / f".ranks-{ranks}")
    started = [context.Process(target=work, args=(rank, ranks, store, send)) for rank in range(ranks)]
    for process in started:
        process.start()
    send.close()  # so that nothing is waited for if they fail
    counted: list[Counted] = receive.recv()
    for process in started:
        process.join()
    Path(store).unlink(missing_ok=True)
    return counted


def as_markdown(results: list[Counted], about: dict[str, str]) -> str:
    def kilobytes(size: int) -> str:
        return f"{size / 1000:,.1f}"

    rows = [
        [
            result.method,
            str(result.ranks),
            str(result.case).replace("batch", "batch of a rank"),
            *(kilobytes(size) for size in result.kinds.values()),
            kilobytes(result.total),
            str(result.calls),
            kilobytes(result.ddp),
        ]
        for result in results
    ]
    table = markdown_table(["method", "ranks", "case", *KINDS, "total", "calls", "DDP"], rows)
    notes = [f"- {key}: {value}" for key, value in about.items()]
    title = "# What travels: kilobytes that a rank sends in one step"
    return "\n".join([title, "", *notes, "", table, ""])


def main(
    ranks: Annotated[list[int] | None, typer.Option(help="Numbers of processes; 2, 4 and 8 by default.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for distributed.json and distributed.md.")] = RESULTS,
) -> None:
    """Print bytes a step, and write them as JSON and Markdown."""
    out.mkdir(parents=True, exist_ok=True)
    results: list[Counted] = []
    for number in ranks or [2, 4, 8]:
        print(f"{number} ranks", file=sys.stderr, flush=True)
        results += run(number, out.resolve())
    about = {"command": " ".join(["python -m benchmarks.distributed", *sys.argv[1:]]), **environment()}
    (out / "distributed.md").write_text(as_markdown(results, about))
    content = {"about": about, "results": [asdict(r) | {"total": r.total} for r in results]}
    (out / "distributed.json").write_text(json.dumps(content, indent=1))
    print(as_markdown(results, about))


if __name__ == "__main__":
    typer.run(main)
