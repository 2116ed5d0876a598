"""What the processes that train one model together, the ranks, tell each other besides gradients.

Everything that decides what comes next is decided once, and all ranks do it: `first` for what one rank does
for all, `agree` for what each does, `most` for what may be seen by one alone. With one rank they are plain calls.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from gdod.errors import InputError
from gdod.rows.distributed.exchange import ProcessGroup

T = TypeVar("T")

# Data may take hours to prepare, and ranks of a comparison wait for their next run.
_PATIENCE = timedelta(days=7)


class LostError(RuntimeError):
    """Other ranks have ended, failed or hang: what this rank can say of it is no more than that."""


@dataclass(frozen=True)
class Ranks:
    """This process among those that train together."""

    rank: int = 0
    size: int = 1
    local: int = 0
    """Its number among those of the same machine."""
    group: "ProcessGroup | None" = None
    """Moves memory of the CPU; None: the default group does."""
    patient: "ProcessGroup | None" = None
    """The same, for what may take hours."""

    def agree(self, work: Callable[[], T]) -> T:
        """Every rank does it; where it fails on one it fails on all."""
        if self.size == 1:
            return work()
        problem, result = None, None
        try:
            result = work()
        except Exception as error:
            problem = error
        told = self._tell(_packed(problem), self.patient)
        if problem is not None:
            raise problem
        for rank, found in enumerate(told):
            if found is not None:
                raise _unpacked(found, rank)
        return result  # type: ignore[return-value]

    def in_turns(self, work: Callable[[], T]) -> T:
        """Rank 0 does it, then one rank on each other machine, then all others: they find what was made."""
        turn = 0 if self.rank == 0 else 1 if self.local == 0 else 2
        for _ in range(turn):
            self.agree(lambda: None)
        result = self.agree(work)
        for _ in range(turn, 2 if self.size > 1 else 0):
            self.agree(lambda: None)
        return result

    def first(self, work: Callable[[], T], *, wait: bool = False) -> T:
        """Rank 0 does it, and all have its result, or its error. ``wait``: it may take hours."""
        if self.size == 1:
            return work()
        told: list[Any] = [None]
        problem = None
        if self.rank == 0:
            try:
                told = [(None, work())]
            except Exception as error:
                problem = error
                told = [(_packed(error), None)]
        with _together(self):
            dist.broadcast_object_list(told, 0, group=self.patient if wait else self.group)
        failed, result = told[0]
        if problem is not None:
            raise problem
        if failed is not None:
            raise _unpacked(failed, 0)
        return result  # type: ignore[no-any-return]

    def most(self, numbers: Sequence[int]) -> list[int]:
        """The greatest of all ranks' numbers, place by place."""
        if self.size == 1:
            return list(numbers)
        found = torch.tensor(numbers)
        with _together(self):
            dist.all_reduce(found, dist.ReduceOp.MAX, group=self.group)
        return found.tolist()

    def tell(self, what: T) -> list[T]:
        """What each rank has, in their order."""
        return self._tell(what, self.group) if self.size > 1 else [what]

    def gather(self, rows: Tensor) -> Tensor:
        """On rank 0 the rows [n, d] of all ranks, one after the other; elsewhere a rank's own."""
        if self.size == 1:
            return rows
        sizes = self.tell(len(rows))
        padded = rows.new_zeros(max(sizes), rows.shape[1])
        padded[: len(rows)] = rows
        parts = [torch.empty_like(padded) for _ in sizes] if self.rank == 0 else None
        with _together(self):
            dist.gather(padded, parts, 0, group=self.group)
        if parts is None:
            return rows
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

    def _tell(self, what: Any, group: "ProcessGroup | None") -> list[Any]:
        found: list[Any] = [None] * self.size
        with _together(self):
            dist.all_gather_object(found, what, group=group)
        return found


def ranks_here(timeout: timedelta, local: int | None = None) -> Ranks:
    """The ranks of the default process group, if there is one: all of them have to call this."""
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return Ranks()
    group = None if dist.get_backend() == "gloo" else dist.new_group(backend="gloo", timeout=timeout)
    patient = dist.new_group(backend="gloo", timeout=_PATIENCE)
    return Ranks(dist.get_rank(), dist.get_world_size(), dist.get_rank() if local is None else local, group, patient)


def is_about_others(error: BaseException) -> bool:
    """Whether an error only says that something went wrong on another rank."""
    if not isinstance(error, RuntimeError):
        return False
    told = ("lost the others in gdod.backward", "gdod.backward failed on another rank")
    return isinstance(error, LostError) or any(words in str(error) for words in told)


@contextmanager
def _together(ranks: Ranks) -> Iterator[None]:
    """An exchange that fails because of other ranks says so."""
    try:
        yield
    except RuntimeError as error:
        raise LostError(
            f"rank {ranks.rank} of {ranks.size} lost the others: another rank has ended or hangs; "
            f"torch says: {str(error).splitlines()[0]}"
        ) from error


# Kinds of errors that are the same elsewhere, if their text is.
_KINDS: dict[str, type[Exception]] = {"InputError": InputError, "OSError": OSError, "ImportError": ImportError}


def _packed(error: Exception | None) -> tuple[str, str] | None:
    if error is None:
        return None
    for name, kind in _KINDS.items():
        if isinstance(error, kind):
            return name, str(error)
    return "", f"{type(error).__name__}: {error}"


def _unpacked(found: tuple[str, str], rank: int) -> Exception:
    name, text = found
    if name in _KINDS:
        return _KINDS[name](text if rank == 0 else f"rank {rank}: {text}")
    return LostError(f"rank {rank} failed: {text}")
