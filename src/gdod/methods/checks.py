"""Checks of options, with errors that say what was passed, what was expected and what to do."""

import math
from collections.abc import Iterable
from difflib import get_close_matches

import torch

from gdod.errors import InputError


def check_positive(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"{name}={value!r}; expected a whole number of at least 1")


def check_choice(name: str, value: object, known: Iterable[str]) -> None:
    known = tuple(known)
    if value not in known:
        listed = ", ".join(map(repr, known))
        raise InputError(f"{name}={value!r} is unknown; expected one of {listed}{nearest(value, known)}")


def nearest(value: object, known: Iterable[str]) -> str:
    """A hint, if something of a similar name is known."""
    near = get_close_matches(str(value), tuple(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def check_number(name: str, value: object, *, at_least: float = -math.inf, above: float = -math.inf) -> None:
    """A finite number, not below ``at_least``, and greater than ``above``."""
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not number or not (at_least <= float(value) and above < float(value)):  # type: ignore[arg-type]
        bound = (
            f" of at least {at_least:g}" if at_least > -math.inf else f" above {above:g}" if above > -math.inf else ""
        )
        raise InputError(f"{name}={value!r}; expected a number{bound}")


def generator_of(seed: object) -> torch.Generator:
    """The generator itself, or a new one that starts at the seed."""
    if isinstance(seed, torch.Generator):
        return seed
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise InputError(f"seed={seed!r}; expected a whole number or a torch.Generator")
    return torch.Generator().manual_seed(seed)
