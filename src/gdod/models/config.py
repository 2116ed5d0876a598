"""The sizes and options that all models have. Each model adds its own in its own module."""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from torch import nn

from gdod._checks import check_choice, check_flag, check_number, check_positive, check_whole
from gdod.errors import InputError

MOST_LEVELS = 100
"""The most levels or layers that a model may have: it is made one by one, and millions would take hours."""

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "leaky-relu": nn.LeakyReLU,
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
}


@dataclass(frozen=True, kw_only=True)
class Config:
    """The sizes and options that all models have."""

    embedding: int = 8
    """The length of the vector of an id."""
    tower: tuple[int, ...] = (16,)
    """The sizes of the hidden layers of each task's tower; its output layer comes on top."""
    activation: str = "relu"
    """The activation after hidden layers: a name in `ACTIVATIONS`."""
    dropout: float = 0.0
    """The share of hidden units that are dropped in training."""
    id_dropout: float = 0.0
    """The share of the numbers in the vectors of ids that are dropped in training."""
    cross: int = 0
    """How many cross layers multiply the features with each other before all other layers: see
    `gdod.models.cross.CrossLayers`."""
    cross_rank: int = 32
    """The rank of the cross layers' matrices."""
    fm: bool = False
    """Whether the products of all pairs of vectors of ids are features, too: see `gdod.models.fm.pairwise_products`."""
    ensemble: int = 1
    """How many members the model has, which share all weights but their output layers and predict together: see
    `gdod.models.layers.Members`."""
    sparse: bool = False
    """Whether the gradients of embedding tables are sparse, for an optimizer that takes such gradients."""

    def __post_init__(self) -> None:
        check_positive("embedding", self.embedding)
        self._sizes("tower")
        check_choice("activation", self.activation, ACTIVATIONS)
        check_number("dropout", self.dropout, at_least=0, below=1)
        check_number("id_dropout", self.id_dropout, at_least=0, below=1)
        check_whole("cross", self.cross, 0)
        check_number("cross", self.cross, at_most=MOST_LEVELS)
        check_positive("cross_rank", self.cross_rank)
        check_flag("fm", self.fm)
        check_positive("ensemble", self.ensemble)

    def _sizes(self, name: str, at_least: int = 0) -> None:
        """Check a field of layer sizes, and make a tuple of it."""
        value = getattr(self, name)
        if not isinstance(value, Iterable) or isinstance(value, str):
            raise InputError(f"{name}={value!r}; expected sizes of layers, e.g. (256, 32)")
        sizes = tuple(value)
        if len(sizes) > MOST_LEVELS:
            raise InputError(f"{name} has {len(sizes):,} layers; expected at most {MOST_LEVELS}")
        for size in sizes:
            check_positive(f"a layer of {name}", size)
        if len(sizes) < at_least:
            raise InputError(f"{name}={value!r}; expected at least {at_least} layer(s)")
        object.__setattr__(self, name, sizes)


AnyConfig = TypeVar("AnyConfig", bound=Config)


def configure(kind: type[AnyConfig], options: dict[str, Any]) -> AnyConfig:
    """Return a config of this kind, and raise if an option is not one of its fields."""
    for name in options:
        check_choice("option", name, [field.name for field in fields(kind)])
    return kind(**options)
