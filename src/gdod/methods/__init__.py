"""Methods: functions from the Gram matrix of the rows (and the losses) to weights of the rows."""

from typing import Any

from gdod.errors import InputError
from gdod.methods.checks import check_choice
from gdod.methods.gdod import GDOD, Decomposition, WeightedGDOD
from gdod.methods.gradreg import GradReg
from gdod.methods.gram import Gram
from gdod.methods.method import LossMethod, Method, PenaltyMethod, TaskMethod, Weights
from gdod.methods.sum import Sum

METHODS: dict[str, type[Method]] = {"gdod": GDOD, "weighted-gdod": WeightedGDOD, "sum": Sum, "gradreg": GradReg}


def method(name: str, **options: Any) -> Method:
    """A method by its name: `method("gdod", groups=8)`."""
    check_choice("method", name, METHODS)
    try:
        return METHODS[name](**options)
    except TypeError as error:
        raise InputError(f"method {name!r} does not take these options: {error}") from error


def as_method(given: object) -> Method:
    """A method as it is; anything else is refused."""
    if isinstance(given, Method):
        return given
    raise InputError(f"method is {given!r}; expected a method such as gdod.GDOD(), or gdod.method('gdod')")


__all__ = [
    "GDOD",
    "METHODS",
    "Decomposition",
    "GradReg",
    "Gram",
    "LossMethod",
    "Method",
    "PenaltyMethod",
    "Sum",
    "TaskMethod",
    "WeightedGDOD",
    "Weights",
    "as_method",
    "method",
]
