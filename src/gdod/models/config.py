"""Sizes and options that all models have. Each model adds its own, beside its code."""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from torch import nn

from gdod._checks import check_choice, check_number, check_positive
from gdod.errors import InputError

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
    embedding: int = 8
    """Length of an id's vector."""
    tower: tuple[int, ...] = (16,)
    """Hidden layers of each task's tower; its last layer, with the outputs, is added to them."""
    activation: str = "relu"
    dropout: float = 0.0
    """Share of hidden units that are dropped in training."""
    sparse: bool = False
    """Sparse gradients of the tables, for an optimizer that takes them."""

    def __post_init__(self) -> None:
        check_positive("embedding", self.embedding)
        self._sizes("tower")
        check_choice("activation", self.activation, ACTIVATIONS)
        check_number("dropout", self.dropout, at_least=0, below=1)

    def _sizes(self, name: str, at_least: int = 0) -> None:
        """Checks a field of layer sizes, and makes a tuple of what may come as a list."""
        value = getattr(self, name)
        if not isinstance(value, Iterable) or isinstance(value, str):
            raise InputError(f"{name}={value!r}; expected sizes of layers, e.g. (256, 32)")
        sizes = tuple(value)
        for size in sizes:
            check_positive(f"a layer of {name}", size)
        if len(sizes) < at_least:
            raise InputError(f"{name}={value!r}; expected at least {at_least} layer(s)")
        object.__setattr__(self, name, sizes)


AnyConfig = TypeVar("AnyConfig", bound=Config)


def configure(kind: type[AnyConfig], options: dict[str, Any]) -> AnyConfig:
    """A config from options by name."""
    for name in options:
        check_choice("option", name, [field.name for field in fields(kind)])
    return kind(**options)
