"""Methods from torchjd objects that a user has made: see `gdod.as_method`.

What fits this engine is a function of the inner products of the task gradients, or of the losses. GradDrop, ConFIG,
TrimmedMean and ExcessMTL look at single coordinates of the gradients, which this engine never forms.
"""

from functools import partial
from typing import Any

import torch
from torch import nn

from gdod.errors import InputError
from gdod.methods.base import Method
from gdod.methods.torchjd import borrowed
from gdod.methods.torchjd.parts import Composed, MatrixWeighting, aggregation, compute_gramian, scalarization

_ATTRIBUTE = "_gdod_method"  # where a torchjd object keeps the method made of it


def method_of(source: object, seed: int | torch.Generator | None, lr: float | None) -> Method:
    """Return the method made of a torchjd object, the one from before if there is one and no option is given."""
    if isinstance(source, nn.Module) and seed is None and lr is None:
        earlier = vars(source).get(_ATTRIBUTE)
        if isinstance(earlier, Method):
            return earlier
    method = _new_method(source, 0 if seed is None else seed, 0.025 if lr is None else lr)
    if isinstance(source, nn.Module):
        vars(source)[_ATTRIBUTE] = method
    return method


def _new_method(source: object, seed: int | torch.Generator, lr: float) -> Method:
    if isinstance(source, scalarization.Scalarizer):
        return borrowed.BorrowedScalarizer(partial(borrowed.already_made, source), seed=seed, lr=lr)
    weighting = _weighting_in(source)
    make = partial(borrowed.already_made, weighting)
    if isinstance(weighting, aggregation.MoDoWeighting | aggregation.SDMGradWeighting):
        batches = 2 if isinstance(weighting, aggregation.MoDoWeighting) else 3
        return borrowed.BorrowedAcrossBatches(make, batches=batches, seed=seed)
    return borrowed.BorrowedWeighting(make, seed=seed)


def _weighting_in(source: object) -> aggregation.Weighting[Any]:
    """Return the weighting that an object consists of, or raise if it needs more than inner products."""
    if isinstance(source, aggregation.GramianWeightedAggregator):
        return _weighting_in(source.gramian_weighting)
    if isinstance(source, aggregation.WeightedAggregator):
        return _weighting_in(source.weighting)
    if isinstance(source, aggregation.CRMOGMWeighting):
        _weighting_in(source.weighting)
        return source
    if isinstance(source, Composed) and source.fn is compute_gramian:
        return _weighting_in(source.weighting)
    fits = isinstance(source, (*borrowed.TAKE_ANY_FACTOR, aggregation.MoDoWeighting, aggregation.SDMGradWeighting))
    if isinstance(source, aggregation.Aggregator | Composed | MatrixWeighting) and not fits:
        raise InputError(
            f"{source!r} needs the coordinates of the task gradients; this engine works with their inner products. "
            "Use torchjd's own autojac for it"
        )
    if isinstance(source, aggregation.Weighting):
        return source
    raise InputError(
        f"method is {source!r}; expected a method such as gdod.GDOD(), gdod.method('pcgrad'), or a weighting, "
        "aggregator or scalarizer of torchjd"
    )
