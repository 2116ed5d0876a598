"""The methods: each turns the Gram matrix of the rows, or the losses, into a weight for each row."""

from collections.abc import Callable
from inspect import signature
from typing import Any

from gdod._checks import check_choice
from gdod.errors import InputError
from gdod.methods import decompositions
from gdod.methods.base import LossMethod, Method, OwnUpdate, PenaltyMethod, TaskMethod, Weights
from gdod.methods.cagrad import CAGrad
from gdod.methods.gdod import GDOD, GradientParts, WeightedGDOD
from gdod.methods.gradnorm import GradNorm
from gdod.methods.gradreg import GradReg
from gdod.methods.gram import Gram
from gdod.methods.mgda import MGDA
from gdod.methods.pcgrad import PCGrad
from gdod.methods.sum import Sum
from gdod.methods.torchjd import as_method, torchjd_methods
from gdod.methods.uncertainty import Uncertainty

METHODS: dict[str, Callable[..., Method]] = {
    "sum": Sum,
    "uncertainty": Uncertainty,
    "gradnorm": GradNorm,
    "gradreg": GradReg,
    "mgda": MGDA,
    "pcgrad": PCGrad,
    "cagrad": CAGrad,
    "gdod": GDOD,
    "weighted-gdod": WeightedGDOD,
    **torchjd_methods(),
}

_RETIRED = {
    "gdod-variant": "soft agreement is now method 'gdod' with agreement='soft'; commit d7fba99 is the last that "
    "has the others",
}


def method(name: str, **options: Any) -> Method:
    """Return a new method by its name in `METHODS`, with its options: `method("gdod", groups=8)`."""
    if name in _RETIRED:
        raise InputError(f"method {name!r} is no longer there: {_RETIRED[name]}")
    check_choice("method", name, METHODS)
    try:
        return METHODS[name](**options)
    except TypeError as error:
        if isinstance(METHODS[name], type):
            known = list(signature(METHODS[name]).parameters)
            if not known:
                raise InputError(f"method {name!r} takes no options, and {', '.join(options)} is given") from error
            for option in options:
                check_choice(f"option of method {name!r}", option, known)
        raise InputError(f"method {name!r} does not take these options: {error}") from error


__all__ = [
    "GDOD",
    "METHODS",
    "MGDA",
    "CAGrad",
    "GradNorm",
    "GradReg",
    "GradientParts",
    "Gram",
    "LossMethod",
    "Method",
    "OwnUpdate",
    "PCGrad",
    "PenaltyMethod",
    "Sum",
    "TaskMethod",
    "Uncertainty",
    "WeightedGDOD",
    "Weights",
    "as_method",
    "decompositions",
    "method",
    "torchjd_methods",
]
