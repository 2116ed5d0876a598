"""Multi-task training without tasks fighting over shared parameters: GDOD (CIKM 2022) for PyTorch.

Names are loaded when they are first used, so that the command line's help need not wait for torch. (That
is also why `backward` lives in a module of another name: a module `gdod.backward` would hide it.)
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gdod import data, models, training
    from gdod._backward import Accumulation, Info, backward
    from gdod.errors import InputError, MixingWarning, NonFiniteInputError
    from gdod.methods import (
        GDOD,
        METHODS,
        MGDA,
        CAGrad,
        GDODAggregator,
        GDODWeighting,
        GradientParts,
        GradNorm,
        GradReg,
        Gram,
        LossMethod,
        Method,
        OwnUpdate,
        PCGrad,
        PenaltyMethod,
        Sum,
        TaskMethod,
        Uncertainty,
        WeightedGDOD,
        Weights,
        as_method,
        decompositions,
        method,
    )

__all__ = [
    "GDOD",
    "METHODS",
    "MGDA",
    "Accumulation",
    "CAGrad",
    "GDODAggregator",
    "GDODWeighting",
    "GradNorm",
    "GradReg",
    "GradientParts",
    "Gram",
    "Info",
    "InputError",
    "LossMethod",
    "Method",
    "MixingWarning",
    "NonFiniteInputError",
    "OwnUpdate",
    "PCGrad",
    "PenaltyMethod",
    "Sum",
    "TaskMethod",
    "Uncertainty",
    "WeightedGDOD",
    "Weights",
    "as_method",
    "backward",
    "data",
    "decompositions",
    "method",
    "models",
    "training",
]

_ELSEWHERE = {
    "Accumulation": "_backward",
    "Info": "_backward",
    "InputError": "errors",
    "MixingWarning": "errors",
    "NonFiniteInputError": "errors",
    "backward": "_backward",
}
_PACKAGES = {"data", "models", "training"}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'gdod' has no attribute {name!r}")
    if name in _PACKAGES:
        return import_module(f"gdod.{name}")
    value = getattr(import_module(f"gdod.{_ELSEWHERE.get(name, 'methods')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
