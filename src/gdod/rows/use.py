"""What a node's use of a parameter has to answer, so that the parameter gets rows without a backward pass for each."""

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node

from gdod.rows.cotangent import Cotangent
from gdod.rows.groups import Owner


class Use(ABC):
    """One way in which nodes use a parameter: its gradient from what the node saved and from a cotangent there."""

    @abstractmethod
    def allows(self, owner: Owner, shape: torch.Size, weight: torch.Size, examples: int) -> bool:
        """Return whether rows can be read off a cotangent of this shape whose elements are owned like that."""

    @abstractmethod
    def load(self, node: Node) -> Any:
        """Return what the node saved for the gradient, to be read before the graph is freed."""

    @abstractmethod
    def rows(self, loaded: Any, cotangent: Cotangent, shape: torch.Size) -> Tensor:
        """Return the rows of the (viewed) parameter, in its shape. [N, *shape]"""

    def obstacle(self, node: Node) -> str | None:
        """Return why this node's rows have to come from autograd although its kind has a rule, or None."""
        return None
