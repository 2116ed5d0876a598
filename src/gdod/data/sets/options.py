"""Read the options of a data set with a name: one by one, checked, and unknown ones refused."""

from collections.abc import Iterable, Mapping
from typing import cast

from gdod._checks import check_choice, check_number, check_whole
from gdod.errors import InputError


class Options:
    """The options given to the data set ``owner``: each method returns one, `done` refuses those nobody asked for."""

    def __init__(self, owner: str, given: Mapping[str, object]) -> None:
        self.owner = owner
        self._left = dict(given)
        self._known: list[str] = []

    def whole(self, name: str, default: int, *, at_least: int = 1) -> int:
        value = self._take(name, default)
        check_whole(name, value, at_least)
        return cast(int, value)

    def number(self, name: str, default: float, *, low: float = 0.0, high: float | None = None) -> float:
        value = self._take(name, default)
        check_number(name, value, at_least=low)
        number = float(cast(float, value))
        if high is not None and number > high:
            raise InputError(f"{name}={value!r}; expected a number from {low:g} to {high:g}")
        return number

    def choice(self, name: str, default: str, known: Iterable[str]) -> str:
        value = self._take(name, default)
        check_choice(name, value, known)
        return str(value)

    def flag(self, name: str, default: bool) -> bool:
        value = self._take(name, default)
        if not isinstance(value, bool):
            raise InputError(f"{name}={value!r}; expected true or false")
        return value

    def done(self) -> None:
        """Raise if an option was given that no other method was asked for."""
        for name in self._left:
            check_choice(f"option of the data set {self.owner!r}", name, self._known)

    def _take(self, name: str, default: object) -> object:
        self._known.append(name)
        return self._left.pop(name, default)
