"""Batches of an epoch that was begun by another number of ranks.

When an epoch begins, streamed data is split among the ranks: each gets its own row groups, a lane. A run that
resumes with more or fewer ranks keeps those lanes until the epoch ends and cuts them differently: rank r of R takes
the part from r/R to (r + 1)/R of all lanes laid side by side. So no example is lost and none is repeated.
"""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from math import ceil, floor

import torch

from gdod.data.parts.part import Minibatch, Part
from gdod.schema import Batch


def resharded_batches(
    part: Part, size: int, lanes: int, rank: int, ranks: int, *, seed: int, epoch: int, start: int
) -> Iterator[Minibatch]:
    """Return rank ``rank``'s batches, of ``ranks``, from an epoch that was split into ``lanes`` lanes.

    ``size``, ``seed``, ``epoch`` and ``start`` are those of `Part.batches`.
    """
    cuts = list(lane_cuts(rank, ranks, lanes))
    streams = [part.batches(size, seed=seed, epoch=epoch, start=start, rank=lane, ranks=lanes) for lane, _, _ in cuts]
    if lanes == ranks:
        return streams[0]
    return (
        _join([_cut(one, first, last) for one, (_, first, last) in zip(minibatches, cuts, strict=True)])
        for minibatches in zip(*streams, strict=True)
    )


def lane_cuts(rank: int, ranks: int, lanes: int) -> Iterator[tuple[int, Fraction, Fraction]]:
    """Yield each lane that the rank has a part of, and where that part begins and ends, from 0 to 1."""
    first, last = Fraction(rank * lanes, ranks), Fraction((rank + 1) * lanes, ranks)
    for lane in range(floor(first), ceil(last)):
        yield lane, max(first - lane, Fraction(0)), min(last - lane, Fraction(1))


def _cut(minibatch: Minibatch, first: Fraction, last: Fraction) -> Minibatch:
    batch, labels, weights, _ = minibatch
    mine = slice(floor(batch.size * first), floor(batch.size * last))
    return minibatch._replace(
        batch=batch.take(mine),
        labels={name: label[mine] for name, label in labels.items()},
        weights=None if weights is None else weights[..., mine],
    )


def _join(minibatches: Sequence[Minibatch]) -> Minibatch:
    batches = [one.batch for one in minibatches]
    weights = [one.weights for one in minibatches if one.weights is not None]
    return minibatches[0]._replace(
        batch=Batch(
            torch.cat([batch.categorical for batch in batches]),
            torch.cat([batch.numeric for batch in batches]),
            tuple(torch.cat(fields) for fields in zip(*(batch.sequences for batch in batches), strict=True)),
        ),
        labels={name: torch.cat([one.labels[name] for one in minibatches]) for name in minibatches[0].labels},
        weights=torch.cat(weights, -1) if weights else None,
        seen=minibatches[0].seen if len({one.seen for one in minibatches}) == 1 else None,
    )
