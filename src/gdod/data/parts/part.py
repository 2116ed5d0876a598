"""Cut a part of a data set ("train", "validation" or "test") into batches, in order or shuffled by a seed."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from gdod._checks import check_positive, check_whole
from gdod.errors import InputError
from gdod.schema import Batch

# Examples that are fetched at once and then cut into batches: much cheaper than fetching each batch.
_BLOCK = 16_384

Seen = Literal["whole", "gaps"]  # labels from 0 to 1: all are there, some may be missing


class Minibatch(NamedTuple):
    """The examples of one training step: B of them, for each task a label."""

    batch: Batch
    labels: dict[str, Tensor]  # [B] float32 each, nan where missing
    weights: Tensor | None  # [B] float32, mean 1 over the training part, or [K, B], by task; None: all alike
    seen: Seen | None = None  # what the labels are known to be; None: nobody has looked, or they are something else


class Part(Protocol):
    """A part of a data set, which can be gone through in batches.

    An epoch depends on ``seed`` and its number alone, so it can be repeated, or go on from a batch in
    its middle. With several ranks each gets its share of every batch, and together they see every example once.
    Of a part in memory they see the batches that one rank alone would see.
    """

    def __len__(self) -> int:
        """The number of examples."""

    def steps(self, size: int, *, ranks: int = 1) -> int:
        """Return the number of batches in an epoch, whatever the number of ranks; the last may be smaller."""
        check_positive("size", size)
        return -(-len(self) // size)

    def batches(
        self, size: int, *, seed: int | None = None, epoch: int = 0, start: int = 0, rank: int = 0, ranks: int = 1
    ) -> Iterator[Minibatch]:
        """Yield the batches of an epoch.

        Args:
            size: examples in a batch, of all ranks together.
            seed: the seed of the order; None: the stored order.
            epoch: the number of the epoch, from 0 on, which changes the order.
            start: the number of the first batch to yield.
            rank: the rank whose share of each batch is yielded.
            ranks: the number of ranks.
        """


class Examples(NamedTuple):
    """Examples as tensors, before they are cut into batches."""

    categorical: Tensor  # [n, F] int32
    numeric: Tensor  # [n, G] float32
    sequences: tuple[Tensor, ...]  # each [n, L] int32
    labels: Tensor  # [K, n] float32, nan where missing
    weights: Tensor | None  # [n] float32, or [K, n] if a task has weights of its own

    @property
    def size(self) -> int:
        return len(self.categorical)

    def take(self, rows: Tensor) -> "Examples":
        """Return a copy of the examples at these positions [m]."""
        return self._each(lambda values, dim: values.index_select(dim, rows))

    def slice(self, first: int, last: int) -> "Examples":
        """Return a view of the examples from ``first`` to before ``last``."""
        return self._each(lambda values, dim: values.narrow(dim, first, last - first))

    def _each(self, change: Callable[[Tensor, int], Tensor]) -> "Examples":
        """Return the examples with every tensor changed along its dimension of examples."""
        return Examples(
            change(self.categorical, 0),
            change(self.numeric, 0),
            tuple(change(ids, 0) for ids in self.sequences),
            change(self.labels, 1),
            None if self.weights is None else change(self.weights, -1),
        )


@dataclass(frozen=True)
class MemoryPart(Part):
    """A part of a data set that lies in memory."""

    examples: Examples
    tasks: tuple[str, ...]  # names, in the order of the rows of `examples.labels`
    notes: tuple[str, ...] = ()  # sentences for a person about how it was made

    def __len__(self) -> int:
        return self.examples.size

    def batches(
        self, size: int, *, seed: int | None = None, epoch: int = 0, start: int = 0, rank: int = 0, ranks: int = 1
    ) -> Iterator[Minibatch]:
        check_position(size, start, rank, ranks)
        order = None if seed is None else torch.randperm(len(self), generator=generator(seed, epoch))
        return self._batches(size, order, start, rank, ranks)

    def _batches(self, size: int, order: Tensor | None, start: int, rank: int, ranks: int) -> Iterator[Minibatch]:
        step = max(1, _BLOCK // size) * size
        for first in range(start * size, len(self), step):
            last = min(first + step, len(self))
            block = self.examples.slice(first, last) if order is None else self.examples.take(order[first:last])
            yield from cut(block, self.tasks, size, rank, ranks)


def cut(
    block: Examples, tasks: tuple[str, ...], size: int | list[int], rank: int = 0, ranks: int = 1
) -> Iterator[Minibatch]:
    """Yield this rank's share of batches of ``size`` examples, the last may be smaller, or of these sizes."""
    if not size or (not block.size and isinstance(size, int)):
        return
    ids = block.categorical.long().split(size)
    numbers = block.numeric.split(size)
    lists = [field.long().split(size) for field in block.sequences]
    labels = block.labels.split(size, 1)  # [K, B] each
    weights = None if block.weights is None else block.weights.split(size, -1)
    seen = look_at(block.labels)  # once for many batches
    for at in range(len(ids)):
        batch = Batch(ids[at], numbers[at], tuple(field[at] for field in lists))
        label, weight = labels[at], None if weights is None else weights[at]
        if ranks > 1:
            mine = _share(batch.size, rank, ranks)
            batch, label = batch.take(mine), label[:, mine]
            weight = None if weight is None else weight[..., mine]
        yield Minibatch(batch, dict(zip(tasks, label.unbind(0), strict=True)), weight, seen)


def look_at(labels: Tensor) -> Seen | None:
    """Return "whole" or "gaps" if all labels [K, n] that are there lie from 0 to 1, else None."""
    if not labels.numel():
        return "whole"
    low, high = torch.aminmax(labels)  # nan if any label is
    if float(low) >= 0 and float(high) <= 1:
        return "whole"
    if not bool(low.isnan()):
        return None
    low, high = torch.aminmax(torch.where(labels.isnan(), 0.0, labels))
    return "gaps" if float(low) >= 0 and float(high) <= 1 else None


def _share(size: int, rank: int, ranks: int) -> slice:
    """Return the rank's slice of a batch, as `torch.tensor_split` cuts: the first ``size % ranks`` get one more."""
    each, more = divmod(size, ranks)
    first = rank * each + min(rank, more)
    return slice(first, first + each + (rank < more))


def generator(seed: int, epoch: int, *path: int) -> torch.Generator:
    """Return a generator that depends on a seed, an epoch, and numbers for the place where it is used."""
    check_whole("seed", seed, 0, "a whole number of at least 0, or None for the stored order")
    check_whole("epoch", epoch, 0, "the number of an epoch, from 0 on")
    state = np.random.SeedSequence([seed, epoch, *path]).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(state >> np.uint64(1)))


def check_position(size: int, start: int, rank: int, ranks: int) -> None:
    """Raise unless these are a batch size, the number of a batch, and a rank out of ``ranks``."""
    check_positive("size", size)
    check_positive("ranks", ranks)
    check_whole("start", start, 0, "the number of a batch, from 0 on")
    expected = f"0 to {ranks - 1}, for ranks={ranks}"
    check_whole("rank", rank, 0, expected)
    if rank >= ranks:
        raise InputError(f"rank={rank!r}; expected {expected}")
