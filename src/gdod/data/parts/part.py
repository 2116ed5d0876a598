"""A part of a data set ("train", "validation" or "test") as batches: in order, or shuffled by a seed."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from gdod._checks import check_positive
from gdod.errors import InputError
from gdod.schema import Batch

# Examples that are fetched at once and then cut into batches: much cheaper than fetching each batch.
_BLOCK = 16_384


Seen = Literal["whole", "gaps"]  # labels from 0 to 1: all are there, some may be missing


class Minibatch(NamedTuple):
    """What one training step takes."""

    batch: Batch
    labels: dict[str, Tensor]  # [B] float32 each, nan where missing
    weights: Tensor | None  # [B] float32, mean 1 over the training part; None: all alike
    seen: Seen | None = None  # what the labels are known to be; None: nobody has looked, or they are something else


class Part(Protocol):
    """Some examples, in batches.

    An epoch depends on ``seed`` and its number alone, so it can be repeated, or go on from a batch in
    its middle. With several ranks each gets its share of every batch, and together they see every example once.
    Of a part in memory they see the batches that one rank alone would see.
    """

    def __len__(self) -> int:
        """The number of examples."""
        ...

    def steps(self, size: int, *, ranks: int = 1) -> int:
        """Batches in an epoch; the last may be smaller."""
        ...

    def batches(
        self,
        size: int,
        *,
        seed: int | None = None,
        epoch: int = 0,
        start: int = 0,
        rank: int = 0,
        ranks: int = 1,
    ) -> Iterator[Minibatch]:
        """The batches of an epoch from number ``start`` on; without a seed in stored order.

        ``size`` counts the examples of all ranks together.
        """
        ...


class Examples(NamedTuple):
    """Rows side by side as tensors, before they are cut into batches."""

    categorical: Tensor  # [n, F] int32
    numeric: Tensor  # [n, G] float32
    sequences: tuple[Tensor, ...]  # each [n, L] int32
    labels: Tensor  # [K, n] float32, nan where missing
    weights: Tensor | None  # [n] float32

    @property
    def size(self) -> int:
        return len(self.categorical)

    def take(self, rows: Tensor) -> "Examples":
        return Examples(
            self.categorical.index_select(0, rows),
            self.numeric.index_select(0, rows),
            tuple(ids.index_select(0, rows) for ids in self.sequences),
            self.labels.index_select(1, rows),
            None if self.weights is None else self.weights.index_select(0, rows),
        )

    def slice(self, first: int, last: int) -> "Examples":
        return Examples(
            self.categorical[first:last],
            self.numeric[first:last],
            tuple(ids[first:last] for ids in self.sequences),
            self.labels[:, first:last],
            None if self.weights is None else self.weights[first:last],
        )


@dataclass(frozen=True)
class MemoryPart:
    """A part that lies in memory."""

    examples: Examples
    tasks: tuple[str, ...]  # names, in the order of the rows of `examples.labels`
    notes: tuple[str, ...] = ()  # what a person should know about how it was made

    def __len__(self) -> int:
        return self.examples.size

    def steps(self, size: int, *, ranks: int = 1) -> int:
        check_positive("size", size)
        return -(-len(self) // size)

    def batches(
        self,
        size: int,
        *,
        seed: int | None = None,
        epoch: int = 0,
        start: int = 0,
        rank: int = 0,
        ranks: int = 1,
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
    """Batches of ``size`` examples, the last may be smaller, or of these sizes; of each the slice of this rank."""
    if not size or (not block.size and isinstance(size, int)):
        return
    ids = block.categorical.long().split(size)
    numbers = block.numeric.split(size)
    lists = [field.long().split(size) for field in block.sequences]
    labels = block.labels.split(size, 1)  # [K, B] each
    weights = None if block.weights is None else block.weights.split(size)
    seen = look_at(block.labels)  # once for many batches
    for at in range(len(ids)):
        batch = Batch(ids[at], numbers[at], tuple(field[at] for field in lists))
        label, weight = labels[at], None if weights is None else weights[at]
        if ranks > 1:
            mine = _share(batch.size, rank, ranks)
            batch, label = batch.take(mine), label[:, mine]
            weight = None if weight is None else weight[mine]
        yield Minibatch(batch, dict(zip(tasks, label.unbind(0), strict=True)), weight, seen)


def look_at(labels: Tensor) -> Seen | None:
    """What can be said of all labels [K, n] together."""
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
    """Where `torch.tensor_split` cuts: the first ``size % ranks`` ranks get one more."""
    each, more = divmod(size, ranks)
    first = rank * each + min(rank, more)
    return slice(first, first + each + (rank < more))


def generator(seed: int, epoch: int, *path: int) -> torch.Generator:
    """Random numbers that depend on a seed, an epoch, and the way from there to where they are used."""
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise InputError(f"seed={seed!r}; expected a whole number of at least 0, or None for the stored order")
    if isinstance(epoch, bool) or not isinstance(epoch, int) or epoch < 0:
        raise InputError(f"epoch={epoch!r}; expected the number of an epoch, from 0 on")
    state = np.random.SeedSequence([seed, epoch, *path]).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(state >> np.uint64(1)))


def check_position(size: int, start: int, rank: int, ranks: int) -> None:
    check_positive("size", size)
    check_positive("ranks", ranks)
    if isinstance(start, bool) or not isinstance(start, int) or start < 0:
        raise InputError(f"start={start!r}; expected the number of a batch, from 0 on")
    if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < ranks:
        raise InputError(f"rank={rank!r}; expected 0 to {ranks - 1}, for ranks={ranks}")
