"""Methods: functions from the Gram matrix of the rows (and the losses) to weights of the rows."""

from typing import Any

from gdod.errors import InputError
from gdod.methods.checks import check_choice
from gdod.methods.gdod import GDOD, Decomposition, WeightedGDOD
from gdod.methods.gram import Gram
from gdod.methods.method import Method, Weights
from gdod.methods.sum import Sum

METHODS: dict[str, type[Method]] = {"gdod": GDOD, "weighted-gdod": WeightedGDOD, "sum": Sum}


def method(name: str, **options: Any) -> Method:
    """A method by its name: `method("gdod", groups=8)`."""
    check_choice("method", name, METHODS)
    try:
        return METHODS[name](**options)
    except TypeError as error:
        raise InputError(f"method {name!r} does not take these options: {error}") from error


__all__ = [
    "GDOD",
    "METHODS",
    "Decomposition",
    "Gram",
    "Method",
    "Sum",
    "WeightedGDOD",
    "Weights",
    "method",
]
