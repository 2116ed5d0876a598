"""The losses in the graph: where backward passes start."""

from dataclasses import dataclass

from torch import Tensor
from torch.autograd.graph import GradientEdge, Node

from gdod.rows.graph import signed


@dataclass(frozen=True)
class Target:
    """Per-example losses of one task: a tensor [batch] in the graph, or a column of one [batch, tasks]."""

    output: Tensor | GradientEdge
    column: int | None = None
    columns: int = 0

    @property
    def node(self) -> Node:
        return self.output.node if isinstance(self.output, GradientEdge) else self.output.grad_fn  # type: ignore[return-value]

    def seed(self, values: Tensor) -> Tensor:
        """What to start a backward pass with, from one number an example."""
        if self.column is None:
            return values
        seed = values.new_zeros(len(values), self.columns)
        seed[:, self.column] = values
        return seed


def before_stacking(losses: Tensor) -> tuple[Target, ...] | None:
    """Tasks' losses before `stack` or `cat` put them together, when each had a graph of its own."""
    node, dim = losses.grad_fn, 1
    assert node is not None
    if type(node).__name__ in ("TBackward0", "TransposeBackward0", "PermuteBackward0"):
        child, output = node.next_functions[0]
        if child is None or output:
            return None
        node, dim = child, 0
    kind = type(node).__name__
    if kind not in ("StackBackward0", "CatBackward0") or signed(node._saved_dim) % 2 != dim:  # type: ignore[attr-defined]
        return None
    edges = [GradientEdge(child, output) for child, output in node.next_functions if child is not None]
    if len(edges) != losses.shape[1]:
        return None
    if kind == "StackBackward0":
        return tuple(Target(edge) for edge in edges)
    return tuple(Target(edge, 0, 1) for edge in edges) if dim == 1 else None
