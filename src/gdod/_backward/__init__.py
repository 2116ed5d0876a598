"""`gdod.backward` and its parts: read the losses, ask the method for weights of the rows, write `.grad`."""

from gdod._backward.accumulation import Accumulation
from gdod._backward.info import Info
from gdod._backward.step import backward

__all__ = ["Accumulation", "Info", "backward"]
