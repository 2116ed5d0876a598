"""Start a command in several processes of this machine with torchrun's own engine, and say which one failed.

`python -m gdod.training.launch 4 -m gdod train ...` does what `gdod train --nproc 4 ...` does.
"""

import logging
import os
import signal
import sys
import uuid
from collections.abc import Mapping, Sequence

from gdod.ranks.processes import LAUNCHER

LOST = 6
"""The exit code of a rank that only noticed that another one is gone."""
_TOLD = (2, 3, 4, 128 + signal.SIGINT, 128 + signal.SIGTERM)  # the rank has said itself what the matter is
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "POLARS_MAX_THREADS")


def launch(nproc: int, command: Sequence[str], *, hint: str = "") -> int:
    """Run `python *command` in ``nproc`` processes, which see that in their environment; return the exit code.

    Where a rank could not say itself what the matter was, this prints it, with the hint.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    os.environ[LAUNCHER] = str(os.getpid())
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "300")  # seconds to save in, after Ctrl-C
    for name in _THREADS:
        os.environ.setdefault(name, str(max(1, _cores() // nproc)))
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=nproc,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        local_addr="localhost",
    )
    logging.disable(logging.ERROR)  # torch's own account of what is said here in a line
    try:
        elastic_launch(config, sys.executable)(*command)
    except ChildFailedError as error:
        codes = {rank: failure.exitcode for rank, failure in error.failures.items()}
        rank, code = root_cause(codes)
        if code not in _TOLD:
            print(f"gdod: {described(rank, nproc, code)}.{hint}", file=sys.stderr)
        return code if code > 0 else 128 - code
    except SignalException as error:
        return 128 + int(error.sigval)
    finally:
        logging.disable(logging.NOTSET)
    return 0


def root_cause(codes: Mapping[int, int]) -> tuple[int, int]:
    """Return the rank that the others ended for, and its exit code; ``codes`` are in the order in which they ended.

    Others only noticed that it was gone, or were told to end after it.
    """
    after = (LOST, -signal.SIGTERM)
    return next(((rank, code) for rank, code in codes.items() if code not in after), next(iter(codes.items())))


def described(rank: int, ranks: int, code: int) -> str:
    """Return how a rank ended, in words."""
    if code < 0:
        how = f"was killed by signal {-code} ({signal.Signals(-code).name})"
    elif code == LOST:
        how = "lost the others"
    else:
        how = f"failed (exit code {code}); its error stands above"
    return f"rank {rank} of {ranks} {how}, and the others were ended"


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


if __name__ == "__main__":
    sys.exit(launch(int(sys.argv[1]), sys.argv[2:]))
