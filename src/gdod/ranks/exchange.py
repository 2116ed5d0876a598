"""What ranks send each other over one process group.

Everything that could make ranks wait for each other in different places is settled in `Exchange.agree`: ranks tell
each other numbers of which nobody knows beforehand how many there are, or an error, which all of them raise.
"""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from gdod.errors import InputError, NonFiniteInputError

if TYPE_CHECKING or dist.is_available():  # noqa: SIM108 (a type checker reads only the first)
    ProcessGroup = dist.ProcessGroup
else:
    ProcessGroup = type("ProcessGroup", (), {})
T = TypeVar("T")

# Numbers that `agree` sends at once; if a rank has more, there is a second round.
_ROOM = 510


class LostError(RuntimeError):
    """Other ranks have ended, failed or hang, and this rank knows no more than that."""


# Kinds of errors that are raised as what they are on other ranks, too; all others as `LostError`.
_KINDS: tuple[type[Exception], ...] = (NonFiniteInputError, InputError, OSError, ImportError)


@dataclass(frozen=True)
class Failure:
    """An error on one rank, in a form that can be sent to others."""

    rank: int
    kind: type[Exception]
    text: str

    @staticmethod
    def of(error: Exception, rank: int) -> "Failure":
        kind = next((kind for kind in _KINDS if isinstance(error, kind)), LostError)
        return Failure(rank, kind, str(error) if kind in _KINDS else f"{type(error).__name__}: {error}")

    def error(self) -> Exception:
        """Return the error to raise on another rank."""
        if self.kind is LostError:
            return LostError(f"rank {self.rank} failed: {self.text}")
        return self.kind(self.text if self.rank == 0 else f"rank {self.rank}: {self.text}")


def raise_in_same_words(failures: Sequence[Failure], own: Exception | None) -> NoReturn:
    """Raise one error with the words of all ranks that failed; ``own`` is this rank's, if it did."""
    kinds = {failure.kind for failure in failures}
    names = {OSError: "OSError: ", ImportError: "ImportError: "}
    text = "; ".join(f"rank {failure.rank}: {names.get(failure.kind, '')}{failure.text}" for failure in failures)
    if kinds <= {NonFiniteInputError, InputError}:
        raise (InputError if InputError in kinds else NonFiniteInputError)(text) from own
    raise own or LostError(f"gdod.backward failed on another rank: {text}")


def raise_own_or_first(failures: Sequence[Failure], own: Exception | None) -> NoReturn:
    """Raise this rank's own error as it is, or that of the first rank that failed."""
    raise own or failures[0].error()


def is_distributed() -> bool:
    """Return whether this process is one of several, or may become so: then hooks may wait for other ranks."""
    return dist.is_available() and dist.is_initialized()


def exchange_over(process_group: "ProcessGroup | str | None") -> "Exchange | Alone":
    """Return the exchange between the ranks of a process group, or `Alone` where there are no others."""
    if process_group is None or (process_group == "default" and not is_distributed()):
        return Alone()
    if isinstance(process_group, str):
        if process_group != "default":
            raise InputError(
                f"process_group={process_group!r}; expected 'default', a torch.distributed.ProcessGroup, or None"
            )
        group = None
    elif isinstance(process_group, ProcessGroup):
        group = process_group
    elif is_distributed() and process_group is dist.GroupMember.NON_GROUP_MEMBER:
        raise InputError("this rank is not in process_group; call gdod.backward only on the ranks that are")
    else:
        raise InputError(
            f"process_group is a {type(process_group).__name__}; expected 'default', a "
            "torch.distributed.ProcessGroup, or None"
        )
    return Exchange(group) if dist.get_world_size(group) > 1 else Alone()


@dataclass
class Traffic:
    """Counts the bytes that this rank has sent, by what they were.

    As the usual algorithms send them: to W - 1 others in turn (all_to_all, all_gather), twice (W - 1) / W of
    the numbers (all_reduce, in a ring), once (broadcast).
    """

    sent: dict[str, int] = field(default_factory=dict)
    calls: int = 0

    def count(self, what: str, size: float) -> None:
        self.sent[what] = self.sent.get(what, 0) + round(size)
        self.calls += 1

    @property
    def total(self) -> int:
        return sum(self.sent.values())

    def clear(self) -> None:
        self.sent, self.calls = {}, 0


traffic = Traffic()
"""What this process has sent since it was last cleared."""


class Alone:
    """This process without others, for callers that need not know whether there are any."""

    def agree(self, work: Callable[[], tuple[T, Sequence[int]]]) -> tuple[T, list[list[int]]]:
        """Do ``work`` and return its result and its numbers, as those of the only rank."""
        result, numbers = work()
        return result, [list(numbers)]


class Exchange:
    """Sends numbers and tensors between the ranks of one process group."""

    def __init__(self, group: ProcessGroup | None, called: str = "gdod.backward") -> None:
        """Use a process group, or the default one. ``called``: what all ranks have to call equally often, or ""."""
        self.group, self.called = group, called
        self.rank, self.ranks = dist.get_rank(group), dist.get_world_size(group)
        self.first = 0 if group is None else dist.get_global_rank(group, 0)
        # nccl moves memory of the GPU only; gloo serves both.
        on_gpu = dist.get_backend(group) == "nccl"
        self.device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")

    def agree(
        self,
        work: Callable[[], tuple[T, Sequence[int]]],
        fail: Callable[[Sequence[Failure], Exception | None], NoReturn] = raise_in_same_words,
    ) -> tuple[T, list[list[int]]]:
        """Do ``work``, which returns a result and numbers to tell; return the result and all ranks' numbers.

        Where it fails on one rank, ``fail`` raises on all.
        """
        try:
            result, numbers = work()
        except Exception as error:
            own = Failure.of(error, self.rank)
            status = 1 + (*_KINDS, LostError).index(own.kind)
            fail(_failures(self._told(status, list(own.text.encode()))), error)
        told = self._told(0, numbers)
        if any(status for status, _ in told):
            fail(_failures(told), None)
        return result, [numbers for _, numbers in told]

    def numbers(self, numbers: Sequence[int]) -> list[list[int]]:
        """Return the numbers of all ranks, of which each has equally many."""
        gathered = self._gather(torch.tensor(numbers, dtype=torch.int64, device=self.device), "sizes")
        return gathered.view(self.ranks, -1).tolist()

    def all_reduce(self, values: Tensor, what: str) -> Tensor:
        """Return the sum over ranks, the same bits on all of them."""
        sent = values.to(self.device).contiguous()
        sent = sent.clone() if sent is values else sent
        self.run(what, 2 * (self.ranks - 1) / self.ranks * sent.nbytes, lambda: dist.all_reduce(sent, group=self.group))
        return sent.to(values.device)

    def broadcast(self, values: Tensor, what: str) -> Tensor:
        """Return the first rank's values."""
        sent = values.to(self.device).contiguous().clone()
        size = sent.nbytes if self.rank == 0 else 0
        self.run(what, size, lambda: dist.broadcast(sent, self.first, group=self.group))
        return sent.to(values.device)

    def gather(self, values: Tensor, sizes: Sequence[int], what: str) -> list[Tensor]:
        """Return the values of all ranks, which have these sizes. [size] each"""
        longest = max(sizes)
        if longest == 0:
            return [values[:0]] * self.ranks
        padded = torch.zeros(longest, dtype=values.dtype, device=self.device)
        padded[: values.shape[0]] = values
        gathered = self._gather(padded, what).view(self.ranks, -1).to(values.device)
        return [row[:size] for row, size in zip(gathered, sizes, strict=True)]

    def all_to_all(self, values: Tensor, sent: Sequence[int], received: Sequence[int], what: str) -> Tensor:
        """Send the first ``sent[0]`` values to rank 0 and so on; return what came from each, one after the other."""
        out = torch.empty(sum(received), dtype=values.dtype, device=self.device)
        values = values.to(self.device).contiguous()
        size = (values.shape[0] - sent[self.rank]) * values.element_size()
        self.run(what, size, lambda: dist.all_to_all_single(out, values, list(received), list(sent), group=self.group))
        return out

    def _gather(self, values: Tensor, what: str) -> Tensor:
        out = torch.empty(self.ranks * values.shape[0], dtype=values.dtype, device=self.device)
        parts = list(out.view(self.ranks, -1).unbind())
        self.run(what, (self.ranks - 1) * values.nbytes, lambda: dist.all_gather(parts, values, group=self.group))
        return out

    def _told(self, status: int, numbers: Sequence[int]) -> list[tuple[int, list[int]]]:
        head = torch.zeros(2 + _ROOM, dtype=torch.int64)
        head[:2] = torch.tensor([status, len(numbers)])
        head[2 : 2 + len(numbers)] = torch.tensor(numbers[:_ROOM], dtype=torch.int64)
        heads = self._gather(head.to(self.device), "agreement").view(self.ranks, -1).tolist()
        longest = max(count for _, count, *_ in heads)
        tails: list[list[int]] = [[]] * self.ranks
        if longest > _ROOM:
            tail = torch.zeros(longest - _ROOM, dtype=torch.int64)
            tail[: max(len(numbers) - _ROOM, 0)] = torch.tensor(numbers[_ROOM:], dtype=torch.int64)
            tails = self._gather(tail.to(self.device), "agreement").view(self.ranks, -1).tolist()
        return [(status, [*first, *tail][:count]) for (status, count, *first), tail in zip(heads, tails, strict=True)]

    def run(self, what: str, size: float, collective: Callable[[], object]) -> None:
        """Call a collective of `torch.distributed`, in which this rank sends ``size`` bytes.

        Raises:
            LostError: another rank does not take part.
        """
        try:
            collective()
        except RuntimeError as error:
            lost = f"rank {self.rank} of {self.ranks} lost the others"
            if not self.called:
                said = str(error).splitlines()[0]
                raise LostError(f"{lost}: another rank has ended or hangs; torch says: {said}") from error
            raise LostError(
                f"{lost} in {self.called}, while exchanging {what}: another rank has ended, hangs (longer than the "
                "timeout given to torch.distributed.init_process_group), or did not call "
                f"{self.called} as often as this one; torch says: {error}"
            ) from error
        traffic.count(what, size)


def _failures(told: list[tuple[int, list[int]]]) -> list[Failure]:
    kinds = (*_KINDS, LostError)
    return [
        Failure(rank, kinds[status - 1], bytes(letters).decode())
        for rank, (status, letters) in enumerate(told)
        if status
    ]


def as_bits(values: Sequence[float]) -> list[int]:
    """Return floating-point numbers as whole ones of the same bits, to be sent along with others."""
    return list(struct.unpack(f"{len(values)}q", struct.pack(f"{len(values)}d", *values)))


def from_bits(numbers: Sequence[int]) -> list[float]:
    """Return what `as_bits` was given."""
    return list(struct.unpack(f"{len(numbers)}d", struct.pack(f"{len(numbers)}q", *numbers)))
