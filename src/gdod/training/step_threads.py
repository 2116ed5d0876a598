"""How many threads of torch the steps of a run use, where nobody says it.

In a short step threads spend more time waiting for each other than they save, and a thread whose core another process
has taken makes all others wait for its next turn: beside a busy process a step of 1 ms on one thread took 6 on two.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn

# Multiplications of a forward pass from which on a second thread gains something.
_ENOUGH = 2**25
_MOMENT = 0.1  # seconds during which the cores are watched


def choose_threads(model: nn.Module, batch: int) -> int:
    """Return the number of threads for steps of a model on the CPU: one where they are short, else one a free core."""
    most = torch.get_num_threads()
    if most == 1 or "OMP_NUM_THREADS" in os.environ:
        return most
    return max(1, min(most, free_cores())) if multiplications(model, batch) >= _ENOUGH else 1


def multiplications(model: nn.Module, batch: int) -> int:
    """Return how many a forward pass makes, if every parameter that is no table's is used once for each example."""
    tables = {id(one.weight) for one in model.modules() if isinstance(one, nn.Embedding | nn.EmbeddingBag)}
    return batch * sum(one.numel() for one in model.parameters() if id(one) not in tables)


def free_cores() -> int:
    """Return how many cores have nothing to do at the moment; all that there are, where the system does not tell."""
    try:
        before = _idle_seconds()
        time.sleep(_MOMENT)
        return round((_idle_seconds() - before) / _MOMENT)
    except (OSError, ValueError, IndexError):
        return os.cpu_count() or 1


def _idle_seconds() -> float:
    """Return how long all cores together have been idle."""
    name, *times = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()
    assert name == "cpu"
    return (int(times[3]) + int(times[4])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def on_threads(count: int) -> Iterator[None]:
    """Let torch use so many threads, and as many as before afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
