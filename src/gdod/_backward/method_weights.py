"""From rows to the method's weights for them: Gram matrices in the precision that is needed."""

import math

import torch
from torch import Tensor

from gdod._backward.inputs import Inputs
from gdod._backward.losses import Tasks
from gdod.errors import InputError, NonFiniteInputError
from gdod.methods import Gram, Method, Weights
from gdod.rows import Rows, Shares

# Squared lengths in float32 keep their digits in this range.
_SMALL, _LARGE = 1e-24, 1e24


def weigh(method: Method, rows: Rows, inputs: Inputs) -> tuple[Gram, Weights]:
    """Return the method's weights and the Gram matrix that they were found from.

    The method is asked first with inner products in the rows' own precision, if that can be enough.
    """
    for precise in (False, True) if method.accepts_float32_gram and rows.precision > 1e-12 else (True,):
        gram = _gram(method, rows, inputs.tasks, precise)
        if not precise and not _in_range(gram, rows.shares):
            continue
        weights = inputs.processes.settle(_weights(method, gram, inputs.tasks))
        if weights.precise_enough:
            break
    return gram, weights


def _gram(method: Method, rows: Rows, tasks: Tasks, precise: bool) -> Gram:
    eps = rows.precision
    return Gram(
        unscaled(rows.gram(precise), tasks),
        rows.shares.averages,
        row_error=eps,
        error=torch.finfo(torch.float64).eps if precise else rows.gram_error * eps / 2,
        mean_losses=tasks.mean_losses,
        norm_gram=_norm_gram(method, rows, tasks),
        products_with=lambda weights: _unscaled_or_none(rows.products_with(weights), tasks),
        combine=rows.combine,
    )


def _unscaled_or_none(products: Tensor | None, tasks: Tasks) -> Tensor | None:
    return None if products is None else unscaled(products, tasks)


def _weights(method: Method, gram: Gram, tasks: Tasks) -> Weights:
    """Return the method's weights, or nan where gradients overflowed: the scaler then leaves out the step."""
    # No inner product is larger than the longest row's with itself.
    if math.isfinite(gram.longest) or not overflowed(gram.matrix, tasks):
        return method.weigh(gram)
    return Weights(torch.full_like(gram.averages[0], torch.nan))


def _norm_gram(method: Method, rows: Rows, tasks: Tasks) -> Tensor | None:
    """Return the task gradients' inner products over the parameters at which the method wants lengths. [K, K]"""
    if method.lengths_at == "everywhere":
        return None
    if method.lengths_at == "last-shared-layer":
        only = rows.last_layer
    else:
        only = frozenset(map(id, method.lengths_at))
        if not only <= set(map(id, rows.shared)):
            raise InputError(f"{method!r} names parameters that are not shared by the tasks; name shared ones")
    averages = rows.shares.averages
    return averages @ unscaled(rows.gram(True, only), tasks) @ averages.T


def _in_range(gram: Gram, shares: Shares) -> bool:
    """Return whether squared lengths in float32 have all their digits; not so for zero, inf and nan."""
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


def unscaled(matrix: Tensor, tasks: Tasks) -> Tensor:
    """Return inner products as they are without a gradient scaler, which methods are to know nothing of."""
    return matrix if tasks.scale is None else matrix / tasks.scale**2


def overflowed(matrix: Tensor, tasks: Tasks) -> bool:
    """Return whether gradients are not finite, which a gradient scaler provides for; without one they are refused."""
    if bool(matrix.isfinite().all()):
        return False
    if tasks.scale is None:
        _refuse_gradients(matrix, tasks)
    return True
