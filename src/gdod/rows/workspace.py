"""Memory that is kept from step to step: of large intermediate results, and of tables' gradients.

Without it every step takes megabytes from the system and gives them back, and the page faults cost
more than the arithmetic.
"""

import threading
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

# Above this nothing is kept: a step that large does not notice.
_BYTES = 2**28
# What so many steps had no use for is given back: batches of changing sizes would otherwise leave memory of each.
_STEPS = 64

_Kind = tuple[tuple[int, ...], torch.dtype, torch.device]


class _Workspace(threading.local):
    """One thread's memory for intermediate results, which the next step takes again."""

    def __init__(self) -> None:
        self.free: dict[_Kind, list[Tensor]] = {}
        self.taken: list[tuple[_Kind, Tensor]] = []
        self.bytes = self.steps = 0
        self.used: set[_Kind] = set()

    def take(self, shape: Sequence[int], like: Tensor) -> Tensor | None:
        """Return an uninitialised tensor that is valid until the next `release`.

        Where results are to be differentiated again it is None, which makes torch find memory itself.
        """
        if torch.is_grad_enabled():
            return None
        kind = tuple(shape), like.dtype, like.device
        self.used.add(kind)
        pool = self.free.get(kind)
        if pool:
            buffer = pool.pop()
        else:
            buffer = torch.empty(kind[0], dtype=like.dtype, device=like.device)
            self.bytes += buffer.nbytes
        self.taken.append((kind, buffer))
        return buffer

    def release(self) -> None:
        """Make all memory taken so far available again."""
        if self.bytes > _BYTES:
            self.free, self.bytes = {}, 0  # also what batches of other shapes left
        else:
            for kind, buffer in self.taken:
                self.free.setdefault(kind, []).append(buffer)
        self.taken = []
        self.steps += 1
        if self.steps % _STEPS == 0:
            self.free = {kind: pool for kind, pool in self.free.items() if kind in self.used}
            self.bytes = sum(buffer.nbytes for pool in self.free.values() for buffer in pool)
            self.used = set()


_GRADIENTS = WeakTensorKeyDictionary()


def zeros_for(parameter: Tensor) -> Tensor:
    """Return zeros in the shape of a parameter, in the memory of its last gradient if nobody holds that."""
    if parameter.device.type != "cpu":  # the allocators of other devices keep memory themselves
        return torch.zeros_like(parameter)
    memory: Tensor | None = _GRADIENTS.get(parameter)
    if memory is None or _is_held(memory) or memory.shape != parameter.shape or memory.dtype != parameter.dtype:
        memory = _GRADIENTS[parameter] = torch.empty_like(parameter, requires_grad=False)
    return memory.zero_().detach()  # another tensor on the same memory, so that its holders are counted


def _is_held(memory: Tensor) -> bool:
    """Return whether anything but ``memory`` itself (and the handle made here) uses its storage."""
    return bool(torch._C._storage_Use_Count(memory.untyped_storage()._cdata) > 2)


_WORKSPACE = _Workspace()
take = _WORKSPACE.take
release = _WORKSPACE.release


def kept_bytes() -> int:
    """Return how many bytes this thread keeps for its next step."""
    return _WORKSPACE.bytes
