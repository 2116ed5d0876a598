"""What processes say to each other: the only file that knows `torch.distributed`.

Everything that could make ranks wait for each other in different places is settled in `agree`: ranks tell
each other numbers of which nobody knows beforehand how many there are, or an error, which all of them raise.
"""

import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

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
_FINE, _WRONG_INPUT, _FAILED, _NOT_FINITE = 0, 1, 2, 3


def is_distributed() -> bool:
    """Whether this process is one of several, or may become so: then hooks of others may wait on parameters."""
    return dist.is_available() and dist.is_initialized()


def exchange_over(process_group: "ProcessGroup | str | None") -> "Exchange | None":
    """The exchange between the ranks of a group; None where there is nobody to talk to."""
    if process_group is None or (process_group == "default" and not is_distributed()):
        return None
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
    return Exchange(group) if dist.get_world_size(group) > 1 else None


@dataclass
class Traffic:
    """Bytes that this rank has sent, by what they were.

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
"""Of all calls of `gdod.backward` in this process since it was last cleared."""


class Exchange:
    def __init__(self, group: ProcessGroup | None) -> None:
        self.group = group
        self.rank, self.ranks = dist.get_rank(group), dist.get_world_size(group)
        self.first = 0 if group is None else dist.get_global_rank(group, 0)
        # nccl moves memory of the GPU only; gloo serves both.
        on_gpu = dist.get_backend(group) == "nccl"
        self.device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")

    def agree(self, work: Callable[[], tuple[T, Sequence[int]]]) -> tuple[T, list[list[int]]]:
        """Does ``work``, which gives a result and numbers to tell; returns the result and all ranks' numbers.

        Where it fails on a rank it fails on all, with that rank's error.
        """
        try:
            result, numbers = work()
        except Exception as error:
            status = _status_of(error)
            text = f"{type(error).__name__}: {error}" if status == _FAILED else str(error)
            failed = self._failed(self._told(status, list(text.encode())))
            if isinstance(failed, InputError):
                raise failed from error
            raise
        told = self._told(_FINE, numbers)
        failed = self._failed(told)
        if failed is not None:
            raise failed
        return result, [numbers for _, numbers in told]

    def tell(self, text: str) -> list[str]:
        """All ranks' texts."""
        return [bytes(letters).decode() for _, letters in self._told(_FINE, list(text.encode()))]

    def numbers(self, numbers: Sequence[int]) -> list[list[int]]:
        """All ranks' numbers, of which there are equally many."""
        found = self._gather(torch.tensor(numbers, dtype=torch.int64, device=self.device), "sizes")
        return found.view(self.ranks, -1).tolist()

    def all_reduce(self, values: Tensor, what: str) -> Tensor:
        """The sum over ranks, the same bits on all of them."""
        sent = values.to(self.device).contiguous()
        sent = sent.clone() if sent is values else sent
        self._run(
            what, 2 * (self.ranks - 1) / self.ranks * sent.nbytes, lambda: dist.all_reduce(sent, group=self.group)
        )
        return sent.to(values.device)

    def broadcast(self, values: Tensor, what: str) -> Tensor:
        """The first rank's values."""
        sent = values.to(self.device).contiguous().clone()
        size = sent.nbytes if self.rank == 0 else 0
        self._run(what, size, lambda: dist.broadcast(sent, self.first, group=self.group))
        return sent.to(values.device)

    def gather(self, values: Tensor, sizes: Sequence[int], what: str) -> list[Tensor]:
        """All ranks' values, which have these sizes. [size] each"""
        longest = max(sizes)
        if longest == 0:
            return [values[:0]] * self.ranks
        padded = torch.zeros(longest, dtype=values.dtype, device=self.device)
        padded[: values.shape[0]] = values
        found = self._gather(padded, what).view(self.ranks, -1).to(values.device)
        return [row[:size] for row, size in zip(found, sizes, strict=True)]

    def all_to_all(self, values: Tensor, sent: Sequence[int], received: Sequence[int], what: str) -> Tensor:
        """Sends the first ``sent[0]`` values to rank 0 and so on; returns what came from each, one after the other."""
        out = torch.empty(sum(received), dtype=values.dtype, device=self.device)
        values = values.to(self.device).contiguous()
        size = (values.shape[0] - sent[self.rank]) * values.element_size()
        self._run(what, size, lambda: dist.all_to_all_single(out, values, list(received), list(sent), group=self.group))
        return out

    def _gather(self, values: Tensor, what: str) -> Tensor:
        out = torch.empty(self.ranks * values.shape[0], dtype=values.dtype, device=self.device)
        parts = list(out.view(self.ranks, -1).unbind())
        self._run(what, (self.ranks - 1) * values.nbytes, lambda: dist.all_gather(parts, values, group=self.group))
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

    def _failed(self, told: list[tuple[int, list[int]]]) -> Exception | None:
        bad = [(rank, status, bytes(n).decode()) for rank, (status, n) in enumerate(told) if status != _FINE]
        if not bad:
            return None
        text = "; ".join(f"rank {rank}: {message}" for rank, _, message in bad)
        if any(status == _FAILED for _, status, _ in bad):
            return RuntimeError(f"gdod.backward failed on another rank: {text}")
        not_finite = all(status == _NOT_FINITE for _, status, _ in bad)
        return NonFiniteInputError(text) if not_finite else InputError(text)

    def _run(self, what: str, size: float, collective: Callable[[], object]) -> None:
        try:
            collective()
        except RuntimeError as error:
            raise RuntimeError(
                f"rank {self.rank} of {self.ranks} lost the others in gdod.backward, while exchanging {what}: another "
                "rank has ended, hangs (longer than the timeout given to torch.distributed.init_process_group), or "
                f"did not call gdod.backward as often as this one; torch says: {error}"
            ) from error
        traffic.count(what, size)


def _status_of(error: Exception) -> int:
    if isinstance(error, NonFiniteInputError):
        return _NOT_FINITE
    return _WRONG_INPUT if isinstance(error, InputError) else _FAILED


def digest(text: str) -> int:
    """The same number for the same text in every process, which `hash` does not promise."""
    return zlib.crc32(text.encode())


def as_bits(values: Sequence[float]) -> list[int]:
    """Floating-point numbers as whole ones of the same bits, to be told along with others."""
    return list(struct.unpack(f"{len(values)}q", struct.pack(f"{len(values)}d", *values)))


def from_bits(numbers: Sequence[int]) -> list[float]:
    return list(struct.unpack(f"{len(numbers)}d", struct.pack(f"{len(numbers)}q", *numbers)))
