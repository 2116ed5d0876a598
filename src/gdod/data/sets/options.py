"""Options of a data set with a name: taken one by one, checked, and unknown ones refused."""

from collections.abc import Iterable, Mapping

from gdod._checks import check_choice, check_number, check_positive
from gdod.errors import InputError


class Options:
    """Reads options of the data set ``owner``; `done` refuses what nobody asked for."""

    def __init__(self, owner: str, given: Mapping[str, object]) -> None:
        self.owner = owner
        self._left = dict(given)
        self._known: list[str] = []

    def whole(self, name: str, default: int, *, at_least: int = 1) -> int:
        value = self._take(name, default)
        if at_least > 0:
            check_positive(name, value)
        if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
            raise InputError(f"{name}={value!r}; expected a whole number of at least {at_least}")
        return value

    def number(self, name: str, default: float, *, low: float = 0.0, high: float | None = None) -> float:
        value = self._take(name, default)
        check_number(name, value, at_least=low)
        number = float(value)  # type: ignore[arg-type]
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
        for name in self._left:
            check_choice(f"option of the data set {self.owner!r}", name, self._known)

    def _take(self, name: str, default: object) -> object:
        self._known.append(name)
        return self._left.pop(name, default)
