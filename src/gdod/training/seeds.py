"""Seeds for everything random in a run, all made from the run's one seed, yet independent of each other."""

import hashlib
import inspect
from collections.abc import Mapping
from typing import Any

from gdod.errors import InputError
from gdod.methods import METHODS, Method
from gdod.methods import method as make_method


def seed_for(purpose: str, seed: int) -> int:
    """Return a seed below 2⁶³ that depends on the purpose and on the run's seed alone."""
    digest = hashlib.sha256(f"{purpose}:{seed}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def seeded_method(name: str, options: Mapping[str, Any], seed: int) -> Method:
    """Return the method of this name; one that draws random numbers gets a seed from the run's, unless it has one."""
    if "name" in options:
        raise InputError(f"method {name!r} does not take the option 'name'")
    method = make_method(name, **options)  # raises if the name or the options are wrong
    if "seed" in options or not _takes_seed(name):
        return method
    return make_method(name, **options, seed=seed_for("method", seed))


def _takes_seed(name: str) -> bool:
    parameters = inspect.signature(METHODS[name]).parameters
    return "seed" in parameters or any(one.kind is one.VAR_KEYWORD for one in parameters.values())
