"""Checks of options, with errors that say what was passed, what was expected and what to do."""

import math
from collections.abc import Iterable
from difflib import get_close_matches

from gdod.errors import InputError


def check_whole(name: str, value: object, at_least: int, expected: str = "") -> None:
    """Raise unless the value is an int of at least ``at_least``; ``expected`` says so in other words."""
    if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
        raise InputError(f"{name}={value!r}; expected {expected or f'a whole number of at least {at_least}'}")


def check_positive(name: str, value: object) -> None:
    """Raise unless the value is an int of at least 1."""
    check_whole(name, value, 1)


def check_choice(name: str, value: object, known: Iterable[str]) -> None:
    """Raise unless the value is one of the known names; the error lists them and names the nearest."""
    known = tuple(known)
    if value not in known:
        expected = ", ".join(map(repr, known))
        raise InputError(f"{name}={value!r} is unknown; expected one of {expected}{nearest(value, known)}")


def nearest(value: object, known: Iterable[str]) -> str:
    """Return " (did you mean 'x'?)" if a known name is similar to the value, else nothing."""
    name, known = str(value), tuple(known)
    near = [other for other in known if other.casefold() == name.casefold()] or get_close_matches(name, known, n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def listed(names: Iterable[str], most: int = 12) -> str:
    """Return the names in quotes, separated by commas; after ``most`` of them only the number of the others."""
    names = tuple(names)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return (", ".join(map(repr, names[:most])) or "none") + more


def check_number(name: str, value: object, *, at_least: float = -math.inf, above: float = -math.inf) -> None:
    """Raise unless the value is a finite number of at least ``at_least`` and greater than ``above``."""
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not number or not (at_least <= float(value) and above < float(value)):  # type: ignore[arg-type]
        bound = (
            f" of at least {at_least:g}" if at_least > -math.inf else f" above {above:g}" if above > -math.inf else ""
        )
        raise InputError(f"{name}={value!r}; expected a number{bound}")
