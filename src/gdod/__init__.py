"""Multi-task training without tasks fighting over shared parameters: GDOD (CIKM 2022) for PyTorch."""

from gdod import decompositions
from gdod.backward import backward
from gdod.errors import InputError, MixingWarning
from gdod.info import Info
from gdod.methods import GDOD, Decomposition, Gram, Method, Sum, WeightedGDOD, Weights, method

__all__ = [
    "GDOD",
    "Decomposition",
    "Gram",
    "Info",
    "InputError",
    "Method",
    "MixingWarning",
    "Sum",
    "WeightedGDOD",
    "Weights",
    "backward",
    "decompositions",
    "method",
]
