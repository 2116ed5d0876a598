"""Checks of options and of what surrounds a process, with errors that say what was passed, expected and to do."""

import math
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches

from gdod.errors import InputError


def check_whole(name: str, value: object, at_least: int, expected: str = "") -> None:
    """Raise unless the value is an int of at least ``at_least``; ``expected`` says so in other words."""
    if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
        raise InputError(f"{name}={value!r}; expected {expected or f'a whole number of at least {at_least}'}")


def check_positive(name: str, value: object) -> None:
    """Raise unless the value is an int of at least 1."""
    check_whole(name, value, 1)


def check_flag(name: str, value: object) -> None:
    """Raise unless the value is True or False."""
    if not isinstance(value, bool):
        raise InputError(f"{name}={value!r}; expected true or false")


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


def visible(text: str) -> str:
    """Return text for a terminal, with \\x1b and the like for signs that would move its cursor or change colours."""
    return "".join(sign if sign.isprintable() or sign == "\n" else repr(sign)[1:-1] for sign in text)


def check_number(
    name: str,
    value: object,
    *,
    at_least: float = -math.inf,
    above: float = -math.inf,
    at_most: float = math.inf,
    below: float = math.inf,
) -> None:
    """Raise unless the value is a finite number within the bounds."""
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not number or not (at_least <= float(value) <= at_most and above < float(value) < below):  # type: ignore[arg-type]
        bounds = {"of at least": at_least, "above": above, "of at most": at_most, "below": below}
        expected = " and".join(f" {words} {bound:g}" for words, bound in bounds.items() if math.isfinite(bound))
        raise InputError(f"{name}={value!r}; expected a number{expected}")


def version_problem(package: str, installed: str, tested: str) -> str | None:
    """Return what is wrong and what to do if an installed version is not of the tested release ("2.13"), else None."""
    if re.match(re.escape(tested) + r"(?!\d)", installed):
        return None
    return (
        f"{package} {installed} is installed, but gdod uses private parts of {package} that it was tested with in "
        f"{tested}.* only. Install that version: pip install '{package}=={tested}.*'"
    )


# What says how threads that wait for each other do so, before torch is imported.
_WAYS_TO_WAIT = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


def short_waits(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what an environment lacks for waiting threads to spin for a short while only; nothing if it says how.

    A spinning thread takes the core that the one it waits for needs, if other work keeps the machine busy. Threads
    that sleep at once cost more than a second thread gains on a free machine.
    """
    return {} if any(name in environment for name in _WAYS_TO_WAIT) else {"GOMP_SPINCOUNT": "3000"}
