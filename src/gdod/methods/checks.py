"""Checks of options, with errors that say what was passed, what was expected and what to do."""

from collections.abc import Iterable
from difflib import get_close_matches

from gdod.errors import InputError


def check_positive(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"{name}={value!r}; expected a whole number of at least 1")


def check_choice(name: str, value: object, known: Iterable[str]) -> None:
    known = tuple(known)
    if value not in known:
        near = get_close_matches(str(value), known, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise InputError(f"{name}={value!r} is unknown; expected one of {', '.join(map(repr, known))}{hint}")
