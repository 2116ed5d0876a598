"""One seed of a run, and from it one for each thing that is random, so that none follows another."""

import hashlib
import inspect
from collections.abc import Mapping
from typing import Any

from gdod.errors import InputError
from gdod.methods import METHODS, Method
from gdod.methods import method as make_method


def seed_for(purpose: str, seed: int) -> int:
    """A number below 2⁶³ that only these two decide."""
    digest = hashlib.sha256(f"{purpose}:{seed}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def seeded_method(name: str, options: Mapping[str, Any], seed: int) -> Method:
    """The method; one that draws random numbers starts them at the run's seed, if no other is given."""
    if "name" in options:
        raise InputError(f"method {name!r} does not take the option 'name'")
    method = make_method(name, **options)  # tells what is wrong with the name or the options
    if "seed" in options or not _takes_seed(name):
        return method
    return make_method(name, **options, seed=seed_for("method", seed))


def _takes_seed(name: str) -> bool:
    parameters = inspect.signature(METHODS[name]).parameters
    return "seed" in parameters or any(one.kind is one.VAR_KEYWORD for one in parameters.values())
