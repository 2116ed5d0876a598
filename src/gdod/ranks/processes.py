"""Joining and leaving other processes, which the environment of torchrun, Slurm or Kubernetes names.

with joined(surroundings(), "auto") as ranks:
    train(config, "runs/mine", ranks=ranks)
"""

import os
import re
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from gdod.errors import InputError
from gdod.ranks.exchange import is_distributed
from gdod.ranks.ranks import Ranks, ranks_here

LAUNCHER = "GDOD_LAUNCHER"
"""The environment variable that names the process of `gdod.training.launch` that started this rank."""


@dataclass(frozen=True)
class RankPlace:
    """One of ``size`` processes that were started together."""

    rank: int
    size: int
    local: int
    address: str
    """Where ranks meet, as the ``init_method`` of `torch.distributed.init_process_group`."""
    who: str
    """The program that started them, for error messages."""


def surroundings(environment: Mapping[str, str] = os.environ) -> RankPlace | None:
    """Return the place of this process among those started with it; None if it was started alone."""
    if "RANK" in environment and "WORLD_SIZE" in environment:
        return _torchrun(environment)
    if "SLURM_PROCID" in environment and "SLURM_STEP_NUM_TASKS" in environment:
        return _slurm(environment)
    return None


def _torchrun(environment: Mapping[str, str]) -> RankPlace | None:
    who = "torchrun" if "TORCHELASTIC_RUN_ID" in environment else "RANK and WORLD_SIZE in the environment"
    rank, size = _number(environment, "RANK"), _number(environment, "WORLD_SIZE")
    local = _number(environment, "LOCAL_RANK") if "LOCAL_RANK" in environment else 0
    if not 0 <= rank < size:
        raise InputError(f"the environment has RANK={rank} and WORLD_SIZE={size}; expected a rank from 0 to {size - 1}")
    if size == 1:
        return None
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        if not environment.get(name):
            raise InputError(
                f"the environment has RANK={rank} and WORLD_SIZE={size}, but no {name}; set it to where rank 0 runs, "
                "or start the command with torchrun, which does"
            )
    return RankPlace(rank, size, local, "env://", who)


def _slurm(environment: Mapping[str, str]) -> RankPlace | None:
    # A batch script itself, outside of srun, has no SLURM_STEP_NUM_TASKS.
    rank, size = _number(environment, "SLURM_PROCID"), _number(environment, "SLURM_STEP_NUM_TASKS")
    if size == 1:
        return None
    nodes = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_NODELIST", "")
    host = environment.get("MASTER_ADDR") or first_host(nodes)
    if not host:
        raise InputError(
            "the environment has SLURM_PROCID, but neither MASTER_ADDR nor SLURM_NODELIST; set MASTER_ADDR"
        )
    # Steps of different jobs on a machine, and of one job, must not meet.
    job, step = (int(environment.get(name, "0")) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
    port = environment.get("MASTER_PORT") or str(20_000 + (97 * job + step) % 20_000)
    return RankPlace(rank, size, _number(environment, "SLURM_LOCALID"), f"tcp://{host}:{port}", "srun")


def first_host(nodes: str) -> str:
    """Return the first machine of a list as Slurm writes it: `gpu[007-012,20],cpu3` -> `gpu007`."""
    first = re.match(r"[^,\[]*(\[[^\]]*\][^,\[]*)*", nodes.strip())
    assert first is not None
    return re.sub(r"\[([^-,\]]+)[^\]]*\]", r"\1", first[0])


def check_nproc(nproc: int | None, place: RankPlace | None) -> None:
    """Refuse a number of processes other than that of those that were started."""
    if nproc is not None and place is not None and nproc != place.size:
        raise InputError(
            f"--nproc {nproc}, but this is rank {place.rank} of {place.size} processes that {place.who} started; "
            f"leave out --nproc, or start {nproc} of them there"
        )


@contextmanager
def joined(place: RankPlace | None, device: str = "auto") -> Iterator[Ranks]:
    """Join the other ranks, and leave them at the end. ``device``: as in the configuration of a run."""
    if place is None:
        yield Ranks()
        return
    backend, timeout = _backend(device, place.local), _timeout()
    try:
        dist.init_process_group(
            backend, init_method=place.address, timeout=timeout, rank=place.rank, world_size=place.size
        )
    except (RuntimeError, ValueError, OSError) as error:
        raise InputError(
            f"rank {place.rank} of {place.size} could not reach the others ({place.who}): {str(error).splitlines()[0]}"
        ) from error
    try:
        if LAUNCHER in os.environ:
            threading.Thread(target=_end_with, args=(int(os.environ[LAUNCHER]),), daemon=True).start()
        yield ranks_here(timeout, place.local)
    finally:
        dist.destroy_process_group()


def current() -> Ranks:
    """Return the ranks of a process group that somebody else has made; or this process alone."""
    place = surroundings() if is_distributed() else None
    return ranks_here(_timeout(), None if place is None else place.local)


def own_device(device: torch.device, ranks: Ranks) -> torch.device:
    """Return the GPU of this rank, where ``device`` names GPUs, and otherwise the device."""
    if device.type != "cuda" or ranks.size == 1:
        return device
    if device.index is not None:
        raise InputError(
            f"device='{device}' is one GPU for {ranks.size} ranks; expected 'cuda' or 'auto', and each takes its own"
        )
    own = torch.device("cuda", ranks.local % torch.cuda.device_count())
    torch.cuda.set_device(own)
    return own


def _backend(device: str, local: int) -> str:
    gpus = torch.cuda.device_count() if device == "auto" or device.startswith("cuda") else 0
    if not gpus:
        return "gloo"
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if here > gpus:
        raise InputError(
            f"{here} ranks on a machine with {gpus} GPUs; expected one for each: start at most {gpus}, or use "
            "--device cpu"
        )
    torch.cuda.set_device(local % gpus)
    return "nccl"


def _timeout() -> timedelta:
    """Return how long a rank may not answer before it counts as lost; writing a large checkpoint has to fit into it."""
    given = os.environ.get("GDOD_TIMEOUT", "1800")
    try:
        seconds = float(given)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise InputError(f"GDOD_TIMEOUT={given!r} in the environment; expected a number of seconds above 0")
    return timedelta(seconds=seconds)


def _number(environment: Mapping[str, str], name: str) -> int:
    try:
        return int(environment[name])
    except (KeyError, ValueError):
        raise InputError(f"the environment has {name}={environment.get(name)!r}; expected a whole number") from None


def _end_with(launcher: int) -> None:
    """End this rank, which saves first, when the process that started it is gone: nobody else would."""
    while os.getppid() == launcher:
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGTERM)
