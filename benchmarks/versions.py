"""Compare the speed of two versions of the source: each trains in processes of its own, in turn.

    git worktree add ../before COMMIT
    python -m benchmarks.versions ../before/src

A step of GDOD and of the plain sum through `gdod.backward`, over a plain forward and backward pass in the same process,
one thread. A refactoring should leave both ratios where they were.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

CASES = {
    "K=2, tables of 100,000": (2, 2, 100_000, "shared-bottom"),
    "K=6, 30 small fields": (6, 30, 50, "shared-bottom"),
    "K=2, MMoE": (2, 30, 50, "mmoe"),
    "K=2, PLE": (2, 30, 50, "ple"),
}
WAYS = ("plain", "gdod", "sum")
BATCH = 256


def measure(source: Path, steps: int) -> dict[str, dict[str, float]]:
    """Return the median milliseconds of a step, by case and way, with the library in this folder."""
    sys.path.insert(0, str(source))
    import torch

    import gdod

    assert Path(gdod.__file__).is_relative_to(source), f"{gdod.__file__} is not below {source}"
    torch.set_num_threads(1)
    return {name: _case(steps, *case) for name, case in CASES.items()}


def _case(steps: int, tasks: int, fields: int, cardinality: int, model_name: str) -> dict[str, float]:
    import torch
    from torch import Tensor
    from torch.nn.functional import binary_cross_entropy_with_logits

    import gdod
    from gdod.models import Categorical, Schema, Task, build

    torch.manual_seed(0)
    names = [f"task {number}" for number in range(tasks)]
    schema = Schema([Categorical(f"field {number}", cardinality) for number in range(fields)])
    model = build(model_name, schema, map(Task, names))
    batch = schema.batch({field: torch.randint(1, cardinality + 1, (BATCH,)) for field in schema.names})
    labels = {name: (torch.rand(BATCH) < 0.3).float() for name in names}
    methods = {"gdod": gdod.method("gdod"), "sum": gdod.method("sum")}

    def losses() -> dict[str, Tensor]:
        logits = model(batch)
        return {name: binary_cross_entropy_with_logits(logits[name], labels[name], reduction="none") for name in names}

    def plain() -> None:
        torch.stack([loss.mean() for loss in losses().values()]).sum().backward()

    ways: dict[str, Callable[[], object]] = {
        "plain": plain,
        "gdod": lambda: gdod.backward(losses(), methods["gdod"]),
        "sum": lambda: gdod.backward(losses(), methods["sum"]),
    }
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    for step in range(steps + 10):
        for way in WAYS:
            model.zero_grad()
            start = time.perf_counter()
            ways[way]()
            if step >= 10:  # the first ones are slower
                times[way].append(time.perf_counter() - start)
    return {way: 1e3 * median(times[way]) for way in WAYS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, help="the folder src of the version to compare with")
    parser.add_argument("--after", type=Path, default=Path(__file__).parents[1] / "src", help="this one by default")
    parser.add_argument("--processes", type=int, default=8, help="of each version")
    parser.add_argument("--steps", type=int, default=60, help="of each way in each process")
    parser.add_argument("--one", action="store_true", help="measure the one version and print JSON")
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure(given.before.resolve(), given.steps)))
        return
    versions = {"before": given.before.resolve(), "after": given.after.resolve()}
    results: dict[str, list[dict[str, dict[str, float]]]] = {version: [] for version in versions}
    for number in range(given.processes):
        for version in [*versions][:: 1 if number % 2 else -1]:
            command = [sys.executable, "-m", "benchmarks.versions", str(versions[version]), "--one"]
            command += ["--steps", str(given.steps)]
            done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[1], check=True)
            results[version].append(json.loads(done.stdout))
    print("| case | way | over plain before | after | ms before | after |\n| --- | --- | ---: | ---: | ---: | ---: |")
    for case in CASES:
        for way in WAYS[1:]:
            cells = []
            for what in ("plain", None):
                for version in versions:
                    figures = [one[case][way] / (one[case][what] if what else 1) for one in results[version]]
                    cells.append(f"{median(figures):.2f}")
            print(f"| {case} | {way} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
