"""The description of a model's input and output: the fields of an example, a batch of examples, the tasks.

A schema says nothing about how a table of text and numbers becomes ids. Models take ids from 1 on, with 0
for "missing or never seen".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite
from typing import TYPE_CHECKING, Literal, NamedTuple, Self, TypeVar

from gdod._checks import check_choice, check_positive, check_whole
from gdod.errors import InputError

if TYPE_CHECKING:  # a schema is read and written where torch is not needed
    import torch
    from torch import Tensor

Kind = Literal["binary", "regression", "multiclass"]
T = TypeVar("T")

KINDS: tuple[Kind, ...] = ("binary", "regression", "multiclass")


@dataclass(frozen=True)
class _Field:
    name: str


@dataclass(frozen=True)
class _IdField(_Field):
    cardinality: int

    def __post_init__(self) -> None:
        check_positive(f"cardinality of {self.name!r}", self.cardinality)


@dataclass(frozen=True)
class Categorical(_IdField):
    """A field with one id for each example: 1 to ``cardinality``, or 0 for missing or never seen in training.

    With ``vectors`` some ids have given vectors of that many numbers: see `gdod.models.pretrained.Pretrained`. If they
    are ``frozen``, such an id has nothing else; otherwise it learns a difference from its vector.
    """

    vectors: int = 0
    frozen: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole(f"vectors of {self.name!r}", self.vectors, 0)


@dataclass(frozen=True)
class Numeric(_Field):
    """A field with one number for each example, already brought to a scale near 1.

    With ``bins``, the rising edges of one or more bins, a model sees the number's place in each bin as well:
    see `gdod.models.piecewise_linear`.
    """

    bins: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        rising = all(map(isfinite, self.bins)) and all(low < high for low, high in pairwise(self.bins))
        if len(self.bins) == 1 or not rising:
            raise InputError(f"bins={self.bins!r} of {self.name!r}; expected none, or two or more rising, finite edges")


class Sequence(_IdField):
    """A field with a list of ids for each example, each 1 to ``cardinality``, filled up with 0.

    The vectors of the ids are averaged; an empty list gives a zero vector.
    """


@dataclass(frozen=True)
class Task:
    """A task of a model: to predict a probability, a number, or one of ``classes``.

    A regression with ``mean`` and ``sd``, those of its labels in training, is learned in these units: the loss is that
    of (label - mean) / sd, so that a label in large units does not drown the other tasks.
    """

    name: str
    kind: Kind = "binary"
    classes: int | None = None
    mean: float = 0.0
    sd: float = 1.0

    def __post_init__(self) -> None:
        check_choice(f"kind of task {self.name!r}", self.kind, KINDS)
        several = isinstance(self.classes, int) and self.classes >= 2
        if self.kind == "multiclass" and not several:
            raise InputError(f"task {self.name!r}: classes={self.classes!r}; expected at least 2")
        if self.kind != "multiclass" and self.classes is not None:
            raise InputError(
                f"task {self.name!r}: classes={self.classes!r} for kind={self.kind!r}; "
                "leave it out, or use kind='multiclass'"
            )
        if not (isfinite(self.mean) and isfinite(self.sd) and self.sd > 0):
            raise InputError(
                f"task {self.name!r}: mean={self.mean!r}, sd={self.sd!r}; expected finite numbers, sd above 0"
            )
        if self.is_standardised and self.kind != "regression":
            raise InputError(f"task {self.name!r}: mean and sd are for kind='regression', not {self.kind!r}")

    @property
    def is_standardised(self) -> bool:
        """Return whether a model learns other numbers than the labels themselves."""
        return (self.mean, self.sd) != (0.0, 1.0)

    def standardised(self, labels: Tensor) -> Tensor:
        """Return the numbers that a model learns in place of these labels of a regression, in float64."""
        return (labels.double() - self.mean) / self.sd

    def in_units(self, outputs: Tensor) -> Tensor:
        """Return a model's outputs for a regression in the units of its labels."""
        return self.mean + self.sd * outputs

    @property
    def outputs(self) -> int:
        """Return how many numbers a model gives for one example of this task."""
        return self.classes or 1


class LabelScale(NamedTuple):
    """The mean and the standard deviation of a regression label in training."""

    mean: float
    sd: float


class Batch(NamedTuple):
    """The input of a model: B examples, their fields in the order of the schema. `Schema.batch` makes one."""

    categorical: Tensor  # [B, F] int64
    numeric: Tensor  # [B, G] floating point
    sequences: tuple[Tensor, ...] = ()  # each [B, L] int64

    @property
    def size(self) -> int:
        return len(self.categorical)

    def to(self, device: torch.device | str) -> Self:
        """Return the same batch on another device."""
        return self._each(lambda values: values.to(device))

    def take(self, examples: Tensor | slice) -> Self:
        """Return a batch of some of the examples, chosen by index or by slice."""
        return self._each(lambda values: values[examples])

    def _each(self, change: Callable[[Tensor], Tensor]) -> Self:
        sequences = tuple(change(ids) for ids in self.sequences)
        return self._replace(categorical=change(self.categorical), numeric=change(self.numeric), sequences=sequences)


@dataclass(frozen=True, init=False)
class Schema:
    """The fields of an example, for instance:

    Schema(
        categorical=[Categorical("city", 50)],
        numeric=[Numeric("age")],
        sequences=[Sequence("seen", 1000)],
    )
    """

    categorical: tuple[Categorical, ...]
    numeric: tuple[Numeric, ...]
    sequences: tuple[Sequence, ...]

    def __init__(
        self,
        categorical: Iterable[Categorical] = (),
        numeric: Iterable[Numeric] = (),
        sequences: Iterable[Sequence] = (),
    ) -> None:
        object.__setattr__(self, "categorical", _all(Categorical, categorical))
        object.__setattr__(self, "numeric", _all(Numeric, numeric))
        object.__setattr__(self, "sequences", _all(Sequence, sequences))
        if not self.names:
            raise InputError("the schema has no field; give it at least one")
        _check_names("field", self.names)

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of all fields: categorical, numeric, sequences."""
        fields: tuple[_Field, ...] = (*self.categorical, *self.numeric, *self.sequences)
        return tuple(field.name for field in fields)

    def batch(self, columns: Mapping[str, Tensor]) -> Batch:
        """Return a batch of named columns: [B] for categorical and numeric fields, [B, L] for sequences.

        Columns that the schema does not name are left out.
        """
        if missing := [name for name in self.names if name not in columns]:
            raise InputError(
                f"the columns {', '.join(map(repr, missing))} are missing; "
                f"the columns given are {', '.join(map(repr, columns)) or 'none'}"
            )
        import torch

        ids = [columns[field.name].long() for field in self.categorical]
        numbers = [columns[field.name] for field in self.numeric]
        none = columns[self.names[0]].new_zeros(len(columns[self.names[0]]), 0)  # [B, 0]
        try:
            return Batch(
                torch.stack(ids, 1) if ids else none.long(),  # [B, F]
                torch.stack(numbers, 1) if numbers else none.float(),  # [B, G]
                tuple(columns[field.name].long() for field in self.sequences),
            )
        except RuntimeError as error:
            shapes = {name: tuple(columns[name].shape) for name in self.names}
            raise InputError(f"the columns have shapes {shapes}; expected [B] each") from error


def check_tasks(tasks: Iterable[Task]) -> tuple[Task, ...]:
    """Return the tasks as a tuple, and raise if there is none or two have the same name."""
    tasks = _all(Task, tasks)
    if not tasks:
        raise InputError("there is no task; give at least one, e.g. [Task('click')]")
    _check_names("task", tuple(task.name for task in tasks))
    return tasks


def _all(kind: type[T], items: Iterable[T]) -> tuple[T, ...]:
    checked = tuple(items)
    for item in checked:
        if not isinstance(item, kind):
            raise InputError(f"{item!r} was given where {kind.__name__}(...) was expected")
    return checked


def _check_names(what: str, names: tuple[str, ...]) -> None:
    for name in names:
        if not isinstance(name, str) or not name:
            raise InputError(f"a {what} has the name {name!r}; expected some text")
    for name, times in Counter(names).items():
        if times > 1:
            raise InputError(f"more than one {what} has the name {name!r}; names must differ")
