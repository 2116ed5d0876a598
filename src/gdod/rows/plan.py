"""What to do with a graph: which parameters are shared, where they are used, what to ask autograd for.

A plan is made once for each structure of graph and holds node numbers only, never tensors.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch.autograd.graph import Node

from gdod.errors import InputError
from gdod.rows.graph import LEAF, Graph
from gdod.rows.groups import WHOLE, Owner
from gdod.rows.lookup import TableUse
from gdod.rows.node_kinds import is_view, refusal_of, use_of
from gdod.rows.uses import Contraction, Use
from gdod.rows.views import output_shape

if TYPE_CHECKING:
    from gdod.rows.recipe import Recipe
    from gdod.rows.trunk import Trunk

Chain = tuple[tuple[int, int], ...]
Consumers = dict[int, list[tuple[int, int, int]]]  # of a node: (consumer, its input, the node's output)


@dataclass(frozen=True)
class Place:
    """Where a parameter meets data: a node, the kind of use, and the views of it on the way there."""

    node: int
    use: Use
    chain: Chain  # the (node, output) of each view, from the parameter outwards
    view: tuple[Hashable, ...]  # what the chain does: equal for equal views
    shape: torch.Size  # the shape of the viewed parameter
    owner: Owner = WHOLE  # the owner of the elements of the cotangent there, once it is known


@dataclass(frozen=True)
class Shared:
    """A shared parameter and all its uses, and the reason, if there is one, why each row takes a backward pass."""

    leaf: int
    places: tuple[Place, ...]
    reason: str = ""
    mixes: bool = False  # whether the reason is that examples mix
    users: tuple[int, ...] = ()  # the nodes that use it, with and without a rule

    @property
    def is_table(self) -> bool:
        """Whether all uses look vectors up in the parameter itself."""
        return bool(self.places) and all(isinstance(p.use, TableUse) and not p.chain for p in self.places)

    @property
    def is_product(self) -> bool:
        """Whether all uses can be joined: one kind of contraction, through the same views."""
        kinds = {(place.use, place.view) for place in self.places}
        return len(kinds) == 1 and isinstance(self.places[0].use, Contraction)


@dataclass(frozen=True)
class Plan:
    """What is known about all graphs of one structure."""

    shared: tuple[Shared, ...]
    private: tuple[tuple[int, ...], ...]  # for each task the leaves that it reaches and that are not shared
    nodes: tuple[int, ...]  # the nodes where cotangents are wanted
    way: tuple[tuple[int, int], ...]  # the (node, output) of everything between the losses and there
    beyond: tuple[tuple[int, int], ...]  # the same, of what lies only on the way to nodes without a rule
    consumers: Consumers
    last_layer: tuple[int, ...]  # the shared leaves that are used closest to the losses
    reached: tuple[frozenset[int], ...]  # for each task all nodes that its loss reaches
    assignments: dict[tuple[torch.Size, ...], Assignment] = field(default_factory=dict)


@dataclass
class Assignment:
    """The owners of the cotangents' elements, for one set of cotangent shapes, and what follows from them."""

    owners: dict[tuple[int, int], list[Owner]] = field(default_factory=dict)
    visits: int = 0  # the number of steps that had these shapes
    settled: bool = False  # whether other numbers in the same graph cannot change the owners
    recipe: Recipe | None = None
    trunk: Trunk | None = None
    examine: bool = True  # whether the trunk is to be compared with autograd's own passes in this step


_PLANS: OrderedDict[Hashable, Plan] = OrderedDict()
_KEPT = 256


def plan_for(graph: Graph, examples: int, named: frozenset[int] | None) -> Plan:
    """Return the plan for a graph, made anew if none of its structure was seen lately.

    ``named`` holds the ids of the shared parameters; None: those that at least two tasks reach.
    """
    key = (graph.signature, examples, named)
    plan = _PLANS.get(key)
    if plan is None:
        plan = _PLANS[key] = _make(graph, graph.roots, named)
        if len(_PLANS) > _KEPT:
            _PLANS.popitem(last=False)
    else:
        _PLANS.move_to_end(key)
    return plan


def _make(graph: Graph, roots: list[int], named: frozenset[int] | None) -> Plan:
    refusal = next((refusal for node in graph.nodes if (refusal := refusal_of(node)) is not None), None)
    if refusal is not None:
        raise InputError(refusal)
    numbers = {node: number for number, node in enumerate(graph.nodes)}
    reached = [_reach(graph, numbers, root) for root in roots]
    leaves = graph.leaves()
    if named is None:
        enough = min(2, len(roots))
        shared = [leaf for leaf in leaves if sum(leaf in reach for reach in reached) >= enough]
    else:
        shared = [leaf for leaf in leaves if id(graph.leaf(leaf)) in named]
    consumers: Consumers = {}
    for number, node in enumerate(graph.nodes):
        for slot, (child, output) in enumerate(node.next_functions):
            if child is not None:
                consumers.setdefault(numbers[child], []).append((number, slot, output))
    parameters = tuple(_uses(graph, consumers, set(roots), leaf) for leaf in shared)
    others = [leaf for leaf in leaves if leaf not in set(shared)]
    nodes = tuple(dict.fromkeys(place.node for parameter in parameters for place in parameter.places))
    way = tuple(way_to(graph, consumers, nodes))
    users = tuple(dict.fromkeys(user for parameter in parameters for user in parameter.users))
    return Plan(
        shared=parameters,
        private=tuple(tuple(leaf for leaf in others if leaf in reach) for reach in reached),
        nodes=nodes,
        way=way,
        beyond=() if users == nodes else tuple(at for at in way_to(graph, consumers, users) if at not in set(way)),
        consumers=consumers,
        last_layer=_last_layer(parameters),
        reached=tuple(map(frozenset, reached)),
    )


def _last_layer(shared: tuple[Shared, ...]) -> tuple[int, ...]:
    """Return the leaves used closest to the losses: nodes are numbered from there on."""
    first = {parameter.leaf: min((place.node for place in parameter.places), default=None) for parameter in shared}
    nearest = min((node for node in first.values() if node is not None), default=None)
    return tuple(leaf for leaf, node in first.items() if node is not None and node == nearest)


def way_to(graph: Graph, consumers: Consumers, nodes: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Yield the outputs of ``nodes`` and of all nodes that pass a cotangent on to them."""
    seen, stack = set(nodes), list(nodes)
    yield from ((number, 0) for number in nodes)
    while stack:
        for consumer, _, _ in consumers.get(stack.pop(), ()):
            if consumer not in seen:
                seen.add(consumer)
                stack.append(consumer)
                outputs = len(graph.nodes[consumer]._input_metadata)
                yield from ((consumer, output) for output in range(outputs))


def _reach(graph: Graph, numbers: dict[Node, int], root: int) -> set[int]:
    seen, stack = {root}, [root]
    while stack:
        for child, _ in graph.nodes[stack.pop()].next_functions:
            if child is not None and (number := numbers[child]) not in seen:
                seen.add(number)
                stack.append(number)
    return seen


def _uses(graph: Graph, consumers: Consumers, roots: set[int], leaf: int) -> Shared:
    places, users, reason = [], [], ""
    for node, slot, chain in _meetings(graph, consumers, roots, leaf, ()):
        use = use_of(graph.nodes[node], slot)
        users.append(node)
        if isinstance(use, str):
            reason = reason or use
            continue
        inside, output = chain[-1] if chain else (leaf, 0)
        view = tuple((graph.saved_scalars(link), output) for link, output in chain)
        places.append(Place(node, use, chain, view, output_shape(graph.nodes[inside], output)))
    return Shared(leaf, () if reason else tuple(places), reason, users=tuple(users))


def _meetings(
    graph: Graph, consumers: Consumers, roots: set[int], number: int, chain: Chain
) -> Iterator[tuple[int, int, Chain]]:
    """Follow a parameter through its views and yield each node that uses it, as (node, input, chain)."""
    for consumer, slot, output in consumers.get(number, ()):
        views = chain if type(graph.nodes[number]) is LEAF else (*chain, (number, output))
        if is_view(graph.nodes[consumer]) and consumer not in roots:
            yield from _meetings(graph, consumers, roots, consumer, views)
        else:
            yield consumer, slot, views
