"""Runs under torchrun: every case on all ranks, what went wrong into a file for each rank.

``torchrun --standalone --nproc-per-node 2 tests/rows/distributed/worker.py FOLDER [CASE ...]``
"""

import faulthandler
import json
import os
import sys
import time
import traceback
import warnings
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[3]))

from tests.rows.distributed.cases import CASES, TRAINING


def main(folder: Path, names: list[str]) -> None:
    faulthandler.enable()  # a rank that crashed has left a trace of every thread, and the name of its case
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    found: dict[str, dict[str, object]] = {}
    for name in names or list(CASES):
        (folder / f"case-{os.environ['RANK']}").write_text(name)
        torch.manual_seed(0)
        start = time.perf_counter()
        try:
            {**CASES, **TRAINING}[name]()
            problem = ""
        except Exception:
            problem = traceback.format_exc()
        found[name] = {"problem": problem, "seconds": time.perf_counter() - start}
        # A rank that failed alone has said less to the others than they wait for: all stop here.
        failed = torch.tensor([float(bool(problem))])
        dist.all_reduce(failed)
        if problem:
            print(name, problem, file=sys.stderr, flush=True)
    (folder / f"rank-{os.environ['RANK']}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
