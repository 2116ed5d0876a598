"""Methods: functions from the Gram matrix of the rows (and the losses) to weights of the rows."""

from collections.abc import Callable
from inspect import signature
from typing import TYPE_CHECKING, Any

from gdod.errors import InputError
from gdod.methods.base import LossMethod, Method, PenaltyMethod, TaskMethod, Weights
from gdod.methods.borrowed import as_method, torchjd_methods
from gdod.methods.cagrad import CAGrad
from gdod.methods.checks import check_choice
from gdod.methods.gdod import GDOD, Decomposition, WeightedGDOD
from gdod.methods.gradnorm import GradNorm
from gdod.methods.gradreg import GradReg
from gdod.methods.gram import Gram
from gdod.methods.mgda import MGDA
from gdod.methods.pcgrad import PCGrad
from gdod.methods.sum import Sum
from gdod.methods.uncertainty import Uncertainty
from gdod.methods.variants import GDODVariant

if TYPE_CHECKING:
    from gdod.methods.to_torchjd import GDODAggregator, GDODWeighting

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
    "gdod-variant": GDODVariant,
    **torchjd_methods(),
}


def method(name: str, **options: Any) -> Method:
    """A method by its name: `method("gdod", groups=8)`."""
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


def __getattr__(name: str) -> object:
    """What is built on torchjd is loaded when it is first used."""
    if name not in ("GDODAggregator", "GDODWeighting"):
        raise AttributeError(f"module 'gdod.methods' has no attribute {name!r}")
    from gdod.methods import to_torchjd

    return getattr(to_torchjd, name)


__all__ = [
    "GDOD",
    "METHODS",
    "MGDA",
    "CAGrad",
    "Decomposition",
    "GDODAggregator",
    "GDODVariant",
    "GDODWeighting",
    "GradNorm",
    "GradReg",
    "Gram",
    "LossMethod",
    "Method",
    "PCGrad",
    "PenaltyMethod",
    "Sum",
    "TaskMethod",
    "Uncertainty",
    "WeightedGDOD",
    "Weights",
    "as_method",
    "method",
    "torchjd_methods",
]
