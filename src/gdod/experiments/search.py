"""Where `gdod tune` looks: lists of values and ranges of numbers, by the path of a setting."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gdod.errors import InputError
from gdod.yaml_toml import parse_value

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

Value = bool | int | float | str | None
"""A value of a setting as optuna keeps it: a list of sizes is a text such as "[64, 32]", see `as_settings`."""


@dataclass(frozen=True)
class Grid:
    """A list of values of which one is chosen."""

    values: tuple[Value, ...]

    def distribution(self) -> "BaseDistribution":
        from optuna.distributions import CategoricalDistribution

        return CategoricalDistribution(self.values)

    def to_json(self) -> Any:
        return list(self.values)


@dataclass(frozen=True)
class Range:
    """Numbers from ``low`` to ``high``: whole ones if both are, evenly spread or by their logarithm."""

    low: int | float
    high: int | float
    log: bool = False

    def distribution(self) -> "BaseDistribution":
        from optuna.distributions import FloatDistribution, IntDistribution

        if isinstance(self.low, int) and isinstance(self.high, int):
            return IntDistribution(self.low, self.high, log=self.log)
        return FloatDistribution(self.low, self.high, log=self.log)

    def to_json(self) -> Any:
        return {"low": self.low, "high": self.high, "log": self.log}


Space = dict[str, Grid | Range]
Point = Mapping[str, Value]
"""One place of a space: a value for each path."""

_NOT_SEARCHED = ("recipe", "filled", "data", "seed", "stopping", "threads", "device", "task_weights", "name")


def as_settings(point: Point) -> dict[str, Any]:
    """Return the settings at a point, by their paths, as a file has them."""
    return {path: parse_value(value) if isinstance(value, str) else value for path, value in point.items()}


def declared(method: str, *, rival: bool = False) -> Space:
    """Return the grid that the method's class declares; empty if it declares none. ``rival``: that of a rival."""
    from gdod._checks import check_choice
    from gdod.methods import METHODS

    if rival:
        from gdod.experiments.rivals.boosters import RIVALS

        check_choice("rival", method, RIVALS)
        return {f"method.options.{name}": one for name, one in RIVALS[method].space.items()}

    check_choice("method", method, METHODS)
    grid: Mapping[str, Any] = getattr(METHODS[method], "GRID", {})
    return {f"method.options.{name}": Grid(tuple(values)) for name, values in grid.items()}


def read_range(text: str) -> tuple[str, Range]:
    """Return the path and the range of a text such as `optimizer.lr=1e-4..1e-2:log`."""
    path, sign, ends = text.partition("=")
    match = re.fullmatch(r"\s*(\S+?)\s*\.\.\s*(\S+?)\s*(:log)?\s*", ends)
    if not sign or match is None:
        raise InputError(f"--range {text!r}; expected e.g. --range optimizer.lr=1e-4..1e-2:log")
    low, high = parse_value(match[1]), parse_value(match[2])
    return path.strip(), _range(path, low, high, match[3] is not None)


def read_grid(text: str) -> tuple[str, Grid]:
    """Return the path and the values of a text such as `method.options.c=[0.1, 0.3]`."""
    path, sign, values = text.partition("=")
    if not sign:
        raise InputError(f"--grid {text!r}; expected e.g. --grid batch=[128,256]")
    return path.strip(), _grid(path, parse_value(values))


def read_space(given: object) -> Space:
    """Return the space as a file has it: `{optimizer.lr: {low: 1e-4, high: 1e-2, log: true}, batch: [128, 256]}`."""
    if not isinstance(given, Mapping):
        raise InputError(f"search={given!r}; expected settings with lists of values or with {{low, high, log}}")
    space: Space = {}
    for path, one in given.items():
        if isinstance(one, Mapping):
            if set(one) - {"low", "high", "log"} or not {"low", "high"} <= set(one):
                raise InputError(f"search.{path}={one!r}; expected {{low: ..., high: ..., log: true or false}}")
            low, high = (parse_value(str(one[end])) for end in ("low", "high"))
            space[str(path)] = _range(str(path), low, high, one.get("log", False) is True)
        else:
            space[str(path)] = _grid(str(path), one)
    return space


def check_space(space: Space) -> None:
    """Raise for settings that a search must not change, such as the data and the seed."""
    for path in space:
        fixed = path.split(".")[0] in _NOT_SEARCHED and not path.startswith("data.features.")
        if not path or fixed or path.split(".")[-1] == "name":
            raise InputError(
                f"{path!r} cannot be searched; expected a setting such as optimizer.lr or method.options.c"
            )


def _range(path: str, low: object, high: object, log: bool) -> Range:
    for end in (low, high):
        if isinstance(end, bool) or not isinstance(end, int | float) or not math.isfinite(end):
            raise InputError(f"the range of {path} is from {low!r} to {high!r}; expected two numbers")
    assert isinstance(low, int | float)
    assert isinstance(high, int | float)
    if low >= high or (log and low <= 0):
        above = " above 0" if log else ""
        raise InputError(
            f"the range of {path} is from {low!r} to {high!r}; expected two numbers{above}, the lower first"
        )
    return Range(low, high, log)


def _grid(path: str, values: object) -> Grid:
    if not isinstance(values, list | tuple) or not values:
        raise InputError(f"the values of {path} are {values!r}; expected a list, e.g. [0.1, 0.3]")
    for value in values:
        sizes = isinstance(value, list) and all(type(one) is int for one in value)
        if value is not None and not sizes and not isinstance(value, bool | int | float | str):
            raise InputError(
                f"the values of {path} hold {value!r}; expected numbers, words, true, false, null, or lists of whole "
                "numbers such as [64, 32]"
            )
    parsed = (parse_value(value) if isinstance(value, str) else value for value in values)
    return Grid(tuple(dict.fromkeys(str(one) if isinstance(one, list) else one for one in parsed)))
