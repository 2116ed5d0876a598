"""Weights that are computed from parameters before they meet data: W + B A, a direction times its length, a cast sum.

The gradient of such a weight has a row for each group and task, as that of a parameter has, by the rule of the node
where it meets data. From there on rows go through the few nodes that made the weight, one after the other: their size
is that of the weight, not that of the batch, and what comes out is exact whatever these nodes do, since a gradient is
linear in the one above it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node

from gdod.rows.graph import LEAF, Graph
from gdod.rows.groups import Owner
from gdod.rows.lookup import TableUse
from gdod.rows.node_kinds import is_known, kind_of, use_of
from gdod.rows.ownership import has_candidates
from gdod.rows.plan import Place, Plan, Shared, way_to
from gdod.rows.uses import Convolution
from gdod.rows.views import is_complex, output_shape

Output = tuple[int, int]  # of a node: its number, and that of the output
Owners = Mapping[Output, Sequence[Owner]]


@dataclass(frozen=True)
class Computed:
    """Weights, where they meet data, and the parameters that they are computed from."""

    leaves: tuple[int, ...] = ()
    places: tuple[Place, ...] = ()
    weights: tuple[Output, ...] = ()  # the weight at each of the places
    inner: frozenset[int] = frozenset()  # the nodes that compute them

    def outputs(self, graph: Graph) -> list[Tensor | GradientEdge]:
        """Return the weights as `torch.autograd.grad` takes what is to be differentiated."""
        nodes = [(graph.nodes[number], number, output) for number, output in self.weights]
        return [
            graph.leaf(number) if type(node) is LEAF else GradientEdge(node, output) for node, number, output in nodes
        ]


def find_computed(
    graph: Graph, plan: Plan, candidates: Sequence[Shared], owners: Owners, examples: int
) -> tuple[Computed, tuple[Output, ...]]:
    """Return those of the candidates that only reach data by weights with a rule, and the way from the losses there.

    Args:
        candidates: shared parameters that have no rule where they are used, or no examples there to sum over.
        owners: of the cotangents between the losses and the nodes where parameters are used.
    """
    found = {one.leaf: climb for one in candidates if (climb := _climb(graph, plan, one.leaf, owners, examples))}
    direct = {one.leaf for one in plan.shared} - {one.leaf for one in candidates}
    while rejected := [
        leaf for leaf, climb in found.items() if not _leaves_below(graph, climb.inner) <= found.keys() | direct
    ]:
        # A backward pass for another parameter would free the nodes that rows are to go through.
        for leaf in rejected:
            del found[leaf]
    if not found:
        return Computed(), plan.way
    meetings = dict(meeting for climb in found.values() for meeting in climb.meetings)
    inner = frozenset(number for climb in found.values() for number in climb.inner)
    places, weights = zip(*meetings.values(), strict=True)
    computed = Computed(tuple(found), places, weights, inner)
    nodes = dict.fromkeys([*(n for n in plan.nodes if n not in inner), *(place.node for place in computed.places)])
    return computed, tuple(way_to(graph, plan.consumers, tuple(nodes)))


@dataclass(frozen=True)
class _Climb:
    meetings: tuple[tuple[Output, tuple[Place, Output]], ...]  # (node, its input): the place, and the weight there
    inner: frozenset[int]


def _climb(graph: Graph, plan: Plan, leaf: int, owners: Owners, examples: int) -> _Climb | None:
    """Follow a parameter through what is computed of it, up to where that meets data; None if it never does so."""
    meetings, inner, stack = [], set[int](), [leaf]
    while stack:
        below = stack.pop()
        users = plan.consumers.get(below, ())
        if not users or below in graph.roots:
            return None
        for user, slot, output in users:
            place = _place(graph, user, slot, (below, output), owners, examples)
            if place is not None:
                meetings.append(((user, slot), (place, (below, output))))
            elif not _holds_no_data(graph.nodes[user], examples):
                return None
            elif user not in inner:
                inner.add(user)
                stack.append(user)
    return _Climb(tuple(meetings), frozenset(inner))


def _place(graph: Graph, user: int, slot: int, weight: Output, owners: Owners, examples: int) -> Place | None:
    """Return where a weight meets data if it does so at this node, by a rule."""
    node, below = graph.nodes[user], graph.nodes[weight[0]]
    use = use_of(node, slot)
    if isinstance(use, str) or is_complex(node):
        return None
    shape, own = output_shape(node, 0), output_shape(below, weight[1])
    owner = next((one for one in owners.get((user, 0), ()) if use.allows(one, shape, own, examples)), None)
    return None if owner is None else Place(user, use, (), (), own, owner)


def _holds_no_data(node: Node, examples: int) -> bool:
    """Return whether a node computes something of its inputs alone, which no example is part of.

    Otherwise it may be that examples mix above it: then rows go through nodes of the batch's size, which is the slow
    path.
    """
    shapes = [output_shape(node, output) for output in range(len(node._input_metadata))]
    if not any(has_candidates(shape, examples) for shape in shapes):
        return True
    uses = kind_of(node).uses.values()
    if not is_known(node) or any(isinstance(use, TableUse | Convolution) for use in uses):
        return False  # it may have saved data, such as ids
    inputs = [None if child is None else output_shape(child, output) for child, output in node.next_functions]
    return None not in inputs or shapes[0] in inputs


def _leaves_below(graph: Graph, nodes: frozenset[int]) -> set[int]:
    numbers = {node: number for number, node in enumerate(graph.nodes)}
    seen, stack = set(nodes), list(nodes)
    while stack:
        for child in _children(graph.nodes[stack.pop()]):
            if numbers[child] not in seen:
                seen.add(numbers[child])
                stack.append(numbers[child])
    return {number for number in seen if type(graph.nodes[number]) is LEAF}


def _children(node: Node) -> Iterator[Node]:
    return (child for child, _ in node.next_functions if child is not None)


def stacked_rows(rows: Sequence[Sequence[Tensor | None]], leaves: Sequence[Tensor]) -> list[Tensor | None]:
    """Return the rows of each leaf [N, *shape], from its gradients row by row; None without any."""
    stacked: list[Tensor | None] = []
    for leaf, grads in zip(leaves, zip(*rows, strict=True), strict=True):
        dense = [torch.zeros_like(leaf) if grad is None else grad for grad in grads]
        stacked.append(None if all(grad is None for grad in grads) else torch.stack(dense))
    return stacked
