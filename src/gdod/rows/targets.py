"""The losses in the graph: where backward passes start."""

from dataclasses import dataclass

from torch import Tensor
from torch.autograd.graph import GradientEdge, Node

from gdod.rows.graph import signed
from gdod.rows.node_kinds import kind_of


@dataclass(frozen=True)
class Target:
    """The per-example losses of one task: a tensor [B] in the graph, or a column of one [B, K]."""

    output: Tensor | GradientEdge
    column: int | None = None
    columns: int = 0

    @property
    def node(self) -> Node:
        return self.output.node if isinstance(self.output, GradientEdge) else self.output.grad_fn  # type: ignore[return-value]

    def seed(self, values: Tensor) -> Tensor:
        """Return the cotangent of ``output`` that gives each example its value. [B] or [B, columns]"""
        if self.column is None:
            return values
        seed = values.new_zeros(len(values), self.columns)
        seed[:, self.column] = values
        return seed


def before_stacking(losses: Tensor) -> tuple[Target, ...] | None:
    """Return the tasks' losses before `stack` or `cat` made ``losses`` [B, K] of them, or None if they did not."""
    node, dim = losses.grad_fn, 1
    assert node is not None
    if kind_of(node).transposes(node):
        child, output = node.next_functions[0]
        if child is None or output:
            return None
        node, dim = child, 0
    joins = kind_of(node).joins
    if joins is None or signed(node._saved_dim) % 2 != dim:  # type: ignore[attr-defined]
        return None
    edges = [GradientEdge(child, output) for child, output in node.next_functions if child is not None]
    if len(edges) != losses.shape[1]:
        return None
    if joins == "stack":
        return tuple(Target(edge) for edge in edges)
    return tuple(Target(edge, 0, 1) for edge in edges) if dim == 1 else None
