"""What torchjd keeps, loaded when it is first used: its import takes longer than ours."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from gdod.methods.base import Method

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
    """The methods that torchjd keeps and that fit this engine, by name; each takes its class's options.

    Besides those, ``seed``, and for scalarizers ``lr`` of what they learn.
    """
    return {name: partial(_build, name) for name in NAMES}


def _build(name: str, **options: Any) -> Method:
    from gdod.methods.torchjd.from_torchjd import RECIPES

    return RECIPES[name].build(name, **options)


def as_method(kept: object, *, seed: int | torch.Generator | None = None, lr: float | None = None) -> Method:
    """The method that an object of torchjd (or of this library) stands for.

    Weightings and scalarizers draw from a generator of their own that starts at ``seed`` (0 by default).
    Scalarizers with parameters (UW, IMTL-L) learn them with Adam at ``lr`` (0.025 by default); do not give
    them to an optimizer too. The same object gives the same method again, with what it has learned,
    unless a seed or a learning rate is given.
    """
    if isinstance(kept, Method):
        return kept
    from gdod.methods.torchjd.from_torchjd import method_of

    return method_of(kept, seed, lr)
