"""Multi-task training without tasks fighting over shared parameters: GDOD (CIKM 2022) for PyTorch.

Names are loaded when they are first used, so that the command line's help need not wait for torch. (That
is also why `backward` lives in a module of another name: a module `gdod.backward` would hide it.) `gdod.data`,
`gdod.training` and `gdod.MultiTaskModel` are not in `__all__`, because they need packages of the extra "cli".
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gdod import data as data
    from gdod import models
    from gdod import training as training
    from gdod._backward import Accumulation, Info, backward
    from gdod.errors import InputError, MixingWarning, NonFiniteInputError, SlowPathWarning
    from gdod.estimator import MultiTaskModel as MultiTaskModel
    from gdod.methods import (
        GDOD,
        METHODS,
        MGDA,
        CAGrad,
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
    from gdod.methods.torchjd import GDODAggregator, GDODWeighting

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
    "SlowPathWarning",
    "Sum",
    "TaskMethod",
    "Uncertainty",
    "WeightedGDOD",
    "Weights",
    "as_method",
    "backward",
    "decompositions",
    "method",
    "models",
]

# Where names are that are not of gdod.methods.
_PLACES = {
    "_backward": ("Accumulation", "Info", "backward"),
    "methods.torchjd": ("GDODAggregator", "GDODWeighting"),
    "errors": ("InputError", "MixingWarning", "NonFiniteInputError", "SlowPathWarning"),
}


# What needs packages of the extra "cli", and where it is.
_WITH_EXTRA = {"data": "data", "estimator": "estimator", "training": "training", "MultiTaskModel": "estimator"}


def __getattr__(name: str) -> object:
    if name == "models" or name in _WITH_EXTRA:
        place = _WITH_EXTRA.get(name, name)
        try:
            module = import_module(f"gdod.{place}")
            return module if name == place else getattr(module, name)
        except ModuleNotFoundError as error:
            raise ImportError(
                f"gdod.{name} needs {error.name}, which is not installed. Install it with: pip install 'gdod[cli]'"
            ) from error
    if name not in __all__:
        raise AttributeError(f"module 'gdod' has no attribute {name!r}")
    place = next((place for place, names in _PLACES.items() if name in names), "methods")
    value = getattr(import_module(f"gdod.{place}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__, *_WITH_EXTRA]
