"""Gradients of parameters that have one."""

from torch import Tensor


def grad_of(parameter: object) -> Tensor:
    """Return `.grad`, which must be there. (A part of a module is any object for a type checker.)"""
    assert isinstance(parameter, Tensor)
    assert parameter.grad is not None
    return parameter.grad


def tensor(parameter: object) -> Tensor:
    """Return a part of a module that is a tensor."""
    assert isinstance(parameter, Tensor)
    return parameter
