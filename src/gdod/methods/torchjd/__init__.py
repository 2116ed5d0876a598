"""The bridge to torchjd (https://torchjd.org), both ways: its methods on our engine, our methods in its loops.

This file is the door. torchjd itself is imported when something of it is first used, because that takes longer
than importing this library.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from gdod.methods.base import Method

if TYPE_CHECKING:
    from gdod.methods.torchjd.to_torchjd import ExactProjector, GDODAggregator, GDODWeighting

__all__ = ["ExactProjector", "GDODAggregator", "GDODWeighting", "as_method", "torchjd_methods"]

NAMES = (
    "upgrad",
    "dualproj",
    "aligned-mtl",
    "imtl-g",
    "fairgrad",
    "krum",
    "gradvac",
    "pcd",
    "nash-mtl",
    "cr-mogm",
    "modo",
    "sdmgrad",
    "random",
    "dwa",
    "famo",
    "imtl-l",
    "geometric-mean",
    "stch",
)


def torchjd_methods() -> dict[str, Callable[..., Method]]:
    """Return a constructor for each torchjd method that fits this engine, by name.

    Each takes the options of its torchjd class and ``seed``; scalarizers also take ``lr``, the learning rate
    of their own parameters.
    """
    return {name: partial(_build, name) for name in NAMES}


def _build(name: str, **options: Any) -> Method:
    from gdod.methods.torchjd.by_name import MAKERS

    return MAKERS[name].build(name, options)


def as_method(source: object, *, seed: int | torch.Generator | None = None, lr: float | None = None) -> Method:
    """Return a method that does what a torchjd weighting, aggregator or scalarizer does.

    A method of this library is returned as it is. The same torchjd object gives the same method again, with
    what it has learned, unless one of the options is given: ``seed``, where its random numbers start (0 by default),
    or ``lr``, the learning rate of a scalarizer's own parameters (UW, IMTL-L; 0.025 by default). Those are learned
    here with Adam; do not give them to an optimizer as well.
    """
    if isinstance(source, Method):
        return source
    from gdod.methods.torchjd.from_object import method_of

    return method_of(source, seed, lr)


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from gdod.methods.torchjd import to_torchjd

    return getattr(to_torchjd, name)
