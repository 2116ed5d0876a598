"""Multi-task training without tasks fighting over shared parameters: GDOD (CIKM 2022) for PyTorch."""

from gdod import decompositions
from gdod.backward import backward
from gdod.errors import InputError, MixingWarning
from gdod.info import Info
from gdod.methods import (
    GDOD,
    METHODS,
    MGDA,
    CAGrad,
    Decomposition,
    GDODAggregator,
    GDODWeighting,
    GradNorm,
    GradReg,
    Gram,
    LossMethod,
    Method,
    PCGrad,
    PenaltyMethod,
    Sum,
    TaskMethod,
    Uncertainty,
    WeightedGDOD,
    Weights,
    as_method,
    method,
)

__all__ = [
    "GDOD",
    "METHODS",
    "MGDA",
    "CAGrad",
    "Decomposition",
    "GDODAggregator",
    "GDODWeighting",
    "GradNorm",
    "GradReg",
    "Gram",
    "Info",
    "InputError",
    "LossMethod",
    "Method",
    "MixingWarning",
    "PCGrad",
    "PenaltyMethod",
    "Sum",
    "TaskMethod",
    "Uncertainty",
    "WeightedGDOD",
    "Weights",
    "as_method",
    "backward",
    "decompositions",
    "method",
]
