"""Batches for a rank when the epoch was begun by another number of ranks.

What is streamed is dealt out to ranks when an epoch begins: each has its own row groups, a lane. A run that
goes on with more or fewer ranks keeps those lanes until the epoch ends, and cuts them in another way: rank r of R
takes the part from r/R to (r + 1)/R of all lanes side by side. So no example is lost and none is repeated.
"""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from math import ceil, floor
from typing import TYPE_CHECKING

import torch

from gdod.schema import Batch

if TYPE_CHECKING:
    from gdod.data.parts.part import Minibatch, Part


def lane_batches(
    part: "Part", size: int, lanes: int, rank: int, ranks: int, *, seed: int, epoch: int, start: int
) -> "Iterator[Minibatch]":
    """This rank's batches of an epoch that was dealt out to ``lanes`` ranks."""
    cuts = list(pieces(rank, ranks, lanes))
    streams = [part.batches(size, seed=seed, epoch=epoch, start=start, rank=lane, ranks=lanes) for lane, _, _ in cuts]
    if lanes == ranks:
        return streams[0]
    return (
        _joined([_cut(one, first, last) for one, (_, first, last) in zip(found, cuts, strict=True)])
        for found in zip(*streams, strict=True)
    )


def pieces(rank: int, ranks: int, lanes: int) -> Iterator[tuple[int, Fraction, Fraction]]:
    """The lanes that the rank has a part of, and from where to where, between 0 and 1."""
    first, last = Fraction(rank * lanes, ranks), Fraction((rank + 1) * lanes, ranks)
    for lane in range(floor(first), ceil(last)):
        yield lane, max(first - lane, Fraction(0)), min(last - lane, Fraction(1))


def _cut(minibatch: "Minibatch", first: Fraction, last: Fraction) -> "Minibatch":
    batch, labels, weights, _ = minibatch
    mine = slice(floor(batch.size * first), floor(batch.size * last))
    return minibatch._replace(
        batch=batch.take(mine),
        labels={name: label[mine] for name, label in labels.items()},
        weights=None if weights is None else weights[mine],
    )


def _joined(found: "Sequence[Minibatch]") -> "Minibatch":
    batches = [one.batch for one in found]
    weights = [one.weights for one in found if one.weights is not None]
    return found[0]._replace(
        batch=Batch(
            torch.cat([batch.categorical for batch in batches]),
            torch.cat([batch.numeric for batch in batches]),
            tuple(torch.cat(fields) for fields in zip(*(batch.sequences for batch in batches), strict=True)),
        ),
        labels={name: torch.cat([one.labels[name] for one in found]) for name in found[0].labels},
        weights=torch.cat(weights) if weights else None,
        seen=found[0].seen if len({one.seen for one in found}) == 1 else None,
    )
