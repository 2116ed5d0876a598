"""What the processes that train one model together, the ranks, tell each other besides gradients.

Everything that decides what comes next is decided once, and all ranks do it: `first` for what one rank does
for all, `agree` for what each does, `most` for what may be seen by one alone. With one rank they are plain calls.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from gdod.ranks.exchange import Exchange, Failure, is_distributed, raise_own_or_first

T = TypeVar("T")

# Data may take hours to prepare, and ranks of a comparison wait for their next run.
_PATIENCE = timedelta(days=7)


@dataclass(frozen=True)
class Ranks:
    """This process among those that train together; by default it is the only one."""

    rank: int = 0
    size: int = 1
    local: int = 0
    """The number of this process among those of the same machine."""
    exchange: Exchange | None = None
    """Moves memory of the CPU; None without other ranks."""
    patient: Exchange | None = None
    """The same, for what may take hours."""

    def agree(self, work: Callable[[], T]) -> T:
        """Do ``work`` on every rank; where it fails on one it fails on all."""
        if self.patient is None:
            return work()
        return self.patient.agree(lambda: (work(), ()), raise_own_or_first)[0]

    def in_turns(self, work: Callable[[], T]) -> T:
        """Do ``work`` on rank 0, then on one rank of each other machine, then on all others, who find it done."""
        turn = 0 if self.rank == 0 else 1 if self.local == 0 else 2
        for _ in range(turn):
            self.agree(lambda: None)
        result = self.agree(work)
        for _ in range(turn, 2 if self.size > 1 else 0):
            self.agree(lambda: None)
        return result

    def first(self, work: Callable[[], T], *, wait: bool = False) -> T:
        """Do ``work`` on rank 0 and return its result, or raise its error, on all. ``wait``: it may take hours."""
        exchange = self.patient if wait else self.exchange
        if exchange is None:
            return work()
        told: list[Any] = [None]
        own = None
        if self.rank == 0:
            try:
                told = [(None, work())]
            except Exception as error:
                own = error
                told = [(Failure.of(error, 0), None)]
        exchange.run("results", 0, lambda: dist.broadcast_object_list(told, 0, group=exchange.group))
        failure, result = told[0]
        if failure is not None:
            raise_own_or_first([failure], own)
        return result  # type: ignore[no-any-return]

    def most(self, numbers: Sequence[int]) -> list[int]:
        """Return the greatest of all ranks' numbers, place by place."""
        exchange = self.exchange
        if exchange is None:
            return list(numbers)
        most = torch.tensor(numbers)
        exchange.run("decisions", 0, lambda: dist.all_reduce(most, dist.ReduceOp.MAX, group=exchange.group))
        return most.tolist()

    def tell(self, what: T) -> list[T]:
        """Return what each rank passed, in their order."""
        exchange = self.exchange
        if exchange is None:
            return [what]
        told: list[Any] = [None] * self.size
        exchange.run("objects", 0, lambda: dist.all_gather_object(told, what, group=exchange.group))
        return told

    def gather(self, rows: Tensor) -> Tensor:
        """Return on rank 0 the rows [n, d] of all ranks, one after the other; elsewhere a rank's own."""
        exchange = self.exchange
        if exchange is None:
            return rows
        sizes = self.tell(len(rows))
        padded = rows.new_zeros(max(sizes), rows.shape[1])
        padded[: len(rows)] = rows
        parts = [torch.empty_like(padded) for _ in sizes] if self.rank == 0 else None
        exchange.run("table rows", padded.nbytes, lambda: dist.gather(padded, parts, 0, group=exchange.group))
        if parts is None:
            return rows
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])


def ranks_here(timeout: timedelta, local: int | None = None) -> Ranks:
    """Return the ranks of the default process group, if there is one: all of them have to call this."""
    if not is_distributed() or dist.get_world_size() == 1:
        return Ranks()
    group = None if dist.get_backend() == "gloo" else dist.new_group(backend="gloo", timeout=timeout)
    exchange = Exchange(group, called="")
    patient = Exchange(dist.new_group(backend="gloo", timeout=_PATIENCE), called="")
    return Ranks(exchange.rank, exchange.ranks, exchange.rank if local is None else local, exchange, patient)
