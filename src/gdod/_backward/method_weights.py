"""From rows to the method's weights for them: Gram matrices in the precision that is needed."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from gdod._backward.losses import Tasks
from gdod._backward.shares import Shares
from gdod.errors import InputError, NonFiniteInputError
from gdod.methods import Gram, Method, Weights
from gdod.rows import Rows
from gdod.rows.distributed import Across, DistributedRows

# Squared lengths in float32 keep their digits in this range.
_SMALL, _LARGE = 1e-24, 1e24


def weigh(
    method: Method, rows: Rows | DistributedRows, tasks: Tasks, shares: Shares, across: Across | None = None
) -> tuple[Gram, Weights]:
    """Asks the method, with inner products in the rows' own precision first if that can be enough."""
    for precise in (False, True) if method.accepts_float32_gram and rows.precision > 1e-12 else (True,):
        gram = _gram(method, rows, tasks, shares, precise)
        if not precise and not _in_range(gram, shares):
            continue
        weights = _weights(method, gram, tasks)
        if across is not None:
            weights = _settled(weights, across)
        if weights.precise_enough:
            break
    return gram, weights


def _gram(method: Method, rows: Rows | DistributedRows, tasks: Tasks, shares: Shares, precise: bool) -> Gram:
    eps = rows.precision
    matrix = unscaled(rows.gram(precise), tasks)
    matrix *= shares.inverses
    return Gram(
        matrix,
        shares.averages,
        row_error=eps,
        error=torch.finfo(torch.float64).eps if precise else eps / 2,
        mean_losses=tasks.mean_losses,
        norm_gram=_norm_gram(method, rows, tasks, shares),
        random_rows=partial(rows.random_rows, shares.averages),
    )


def _weights(method: Method, gram: Gram, tasks: Tasks) -> Weights:
    """The method's, or nothing but nan where gradients overflowed: the scaler's step then leaves the step out."""
    # No inner product is larger than the longest row's with itself.
    return method.weigh(gram) if math.isfinite(gram.longest) or not overflowed(gram.matrix, tasks) else _nan(gram)


def _nan(gram: Gram) -> Weights:
    return Weights(torch.full_like(gram.averages[0], torch.nan))


def _settled(weights: Weights, across: Across) -> Weights:
    """The first rank's weights: even where machines round differently, all ranks make the same step."""
    drawn = weights.random_rows
    parts = [torch.tensor([float(weights.precise_enough)], dtype=torch.float64), weights.rows.double()]
    parts += [part.double() for part in (weights.heads, None if drawn is None else drawn[1]) if part is not None]
    precise_enough, rows, *others = across.settle(torch.cat(parts)).split([len(part) for part in parts])
    heads = None if weights.heads is None else others[0]
    drawn = None if drawn is None else (drawn[0], others[-1])
    return replace(weights, rows=rows, heads=heads, random_rows=drawn, precise_enough=bool(precise_enough))


def _norm_gram(method: Method, rows: Rows | DistributedRows, tasks: Tasks, shares: Shares) -> Tensor | None:
    """Task gradients' inner products over the parameters at which the method wants lengths. [K, K]"""
    if method.lengths_at == "everywhere":
        return None
    if method.lengths_at == "last-shared-layer":
        only = rows.last_layer
    else:
        only = frozenset(map(id, method.lengths_at))
        if not only <= set(map(id, rows.shared)):
            raise InputError(f"{method!r} names parameters that are not shared by the tasks; name shared ones")
    sums = (shares.averages > 0).double()  # a task's rows, as they are here, add up to its gradient
    return sums @ unscaled(rows.gram(True, only), tasks) @ sums.T


def _in_range(gram: Gram, shares: Shares) -> bool:
    """Whether squared lengths in float32 have all their digits; not so for zero, inf and nan."""
    shortest, longest = gram.shortest, gram.longest
    if shares.empty is not None:
        lengths = gram.matrix.diagonal()[~shares.empty]
        if lengths.numel() == 0:
            return False
        shortest = float(lengths.min())
    return shortest > _SMALL * shares.largest and longest < _LARGE


def _refuse_gradients(matrix: Tensor, tasks: Tasks) -> None:
    finite = matrix.diagonal().isfinite().view(-1, len(tasks.names)).all(0)
    bad = ", ".join(repr(name) for name, ok in zip(tasks.names, finite, strict=True) if not ok)
    raise NonFiniteInputError(
        f"the gradient of task {bad or 'unknown'} is not finite although its losses are; nothing was written to .grad; "
        "look for a square root or logarithm at zero, or for overflow in half precision"
    )


def update_of(rows: Rows, shares: Shares, weights: Weights) -> Sequence[tuple[Tensor, Tensor]]:
    if weights.random_rows is not None:
        source, of_random = weights.random_rows
        return source.combine(of_random)
    return rows.combine(weights.rows * shares.inverse)


def unscaled(matrix: Tensor, tasks: Tasks) -> Tensor:
    """Inner products as they are without a gradient scaler, which methods are to know nothing of."""
    return matrix if tasks.scale is None else matrix / tasks.scale**2


def overflowed(matrix: Tensor, tasks: Tasks) -> bool:
    """Whether gradients are not finite, which a gradient scaler provides for; without one they are refused."""
    if bool(matrix.isfinite().all()):
        return False
    if tasks.scale is None:
        _refuse_gradients(matrix, tasks)
    return True
