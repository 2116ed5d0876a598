"""One backward pass for all tasks together, below the tasks' own layers.

Autograd goes through the layers of each task alone, in a single call for all of them, and stops at the
last nodes that only one task's loss reaches. From there on this file takes the cotangents down the
shared part of the graph, stacked over tasks, so that each operation is called once instead of once a
task. With small layers, where a call costs more than its arithmetic, that is most of a backward pass.

(`torch.autograd.grad(is_grads_batched=True)` does the same by vmap, at several times the cost of the
calls it saves.)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter

import torch
from torch import Tensor
from torch.autograd.graph import Node

from gdod.rows import stacked
from gdod.rows.graph import LEAF, Graph
from gdod.rows.node_kinds import kind_of, stacked_rule
from gdod.rows.plan import Plan
from gdod.rows.recipe import Recipe
from gdod.rows.stacked import Pass, Rule
from gdod.rows.views import output_shape

# Numbers in all stacked cotangents. Above it calls cost little beside arithmetic, and the memory of the
# shared part of the graph, which only autograd's own passes free at once, begins to matter.
_LARGEST = 2**23


@dataclass(frozen=True)
class _Source:
    """A node that passes a cotangent on, by one of its inputs."""

    node: int
    slot: int
    task: int | None  # the only task that reaches the node; None: a shared one, whose cotangent is stacked
    rule: Rule | None
    shape: torch.Size  # the shape of that input


@dataclass(frozen=True)
class Trunk:
    """The shared part of a graph, in the order in which cotangents are taken down."""

    edges: Mapping[int, int]  # nodes of a single task at which autograd's pass is to stop, and their task
    order: tuple[tuple[int, tuple[tuple[_Source, ...], ...]], ...]  # shared nodes, and what each output comes from

    def entries(self, graph: Graph) -> dict[_Source, Pass]:
        """Return the ways into the trunk, read off the graph before autograd's pass frees it."""
        return {
            source: source.rule(graph.nodes[source.node], source.slot, source.shape)
            for _, outputs in self.order
            for sources in outputs
            for source in sources
            if source.task is not None and source.rule is not None
        }

    def run(
        self, graph: Graph, entries: Mapping[_Source, Pass], at_edges: Mapping[int, Tensor | None], tasks: int
    ) -> dict[int, list[Tensor | None]]:
        """Return the cotangents of the shared nodes' outputs, stacked over tasks, from those at the edges."""
        at: dict[int, list[Tensor | None]] = {}
        called: dict[int, list[Tensor | None]] = {}

        def passed(source: _Source) -> Tensor | None:
            if source.task is not None:
                own = at_edges[source.node]
                return None if own is None else entries[source](own.unsqueeze(0))
            node, cotangents = graph.nodes[source.node], at[source.node]
            if source.rule is not None:
                return None if cotangents[0] is None else source.rule(node, source.slot, source.shape)(cotangents[0])
            if source.node not in called and any(d is not None for d in cotangents):
                called[source.node] = stacked.call(node, cotangents)
            return called[source.node][source.slot] if source.node in called else None

        for number, outputs in self.order:
            at[number] = [_total([(s.task, passed(s)) for s in sources], tasks) for sources in outputs]
        return at


def _total(parts: Sequence[tuple[int | None, Tensor | None]], tasks: int) -> Tensor | None:
    """Return the sum of what arrives from one task or (None) from all of them, stacked over tasks. [K, ...]"""
    total: Tensor | None = None
    own: list[Tensor | None] = [None] * tasks
    for task, part in parts:
        if part is None:
            continue
        if task is None:
            total = part if total is None else total + part
        else:
            before = own[task]
            own[task] = part if before is None else before + part
    first = next((part for part in own if part is not None), None)
    if first is None:
        return total
    joined = torch.cat([torch.zeros_like(first) if part is None else part for part in own])
    return joined if total is None else total + joined


def find_trunk(graph: Graph, plan: Plan, recipe: Recipe) -> Trunk | None:
    """Return the trunk of a graph, or None where each task needs a pass of its own."""
    numbers = {node: number for number, node in enumerate(graph.nodes)}
    reached, way = plan.reached, recipe.way
    tasks = {number: [task for task, reach in enumerate(reached) if number in reach] for number, _ in way}
    shared = [number for number in tasks if len(tasks[number]) > 1]
    private = [leaf for leaves in plan.private for leaf in leaves]
    if not shared or set(shared) & set(graph.roots) or len(set(private)) < len(private):
        return None
    metadata = [graph.nodes[number]._input_metadata[0] for number in tasks]
    if len({(m.dtype, m.device) for m in metadata}) > 1:
        return None
    shapes = {(number, at): output_shape(graph.nodes[number], at) for number, at in way if len(tasks[number]) > 1}
    if sum(shape.numel() for shape in shapes.values()) * len(reached) > _LARGEST:
        return None
    sources: dict[tuple[int, int], list[_Source]] = {at: [] for at in shapes}
    edges = {number: tasks[number][0] for number in recipe.nodes if len(tasks[number]) == 1}
    for number, own in tasks.items():
        node = graph.nodes[number]
        for slot, (child, output) in enumerate(node.next_functions):
            if child is None or (numbers[child], output) not in sources:
                continue
            mine, rule = len(own) == 1, stacked_rule(node, slot)
            if not _can_pass(node, rule, mine):
                return None
            if mine:
                edges[number] = own[0]
            at = numbers[child], output
            sources[at].append(_Source(number, slot, own[0] if mine else None, rule, shapes[at]))
    outputs = {number: range(len(graph.nodes[number]._input_metadata)) for number in shared}
    order = _sorted(shared, sources)
    return Trunk(edges, tuple((n, tuple(tuple(sources.get((n, at), ())) for at in outputs[n])) for n in order))


def _can_pass(node: Node, rule: Rule | None, mine: bool) -> bool:
    """Return whether a node's cotangent can be passed on by its rule or by a call; ``mine``: it is a single task's."""
    if rule is not None:
        return len(node._input_metadata) == 1
    # A node that is called gives the gradients of all its inputs: of parameters, too, which is waste. And
    # one at the edge has been freed by then.
    parameters = any(type(child) is LEAF for child, _ in node.next_functions)
    return not mine and not parameters and kind_of(node).separates is not None


def _sorted(shared: Sequence[int], sources: Mapping[tuple[int, int], Sequence[_Source]]) -> list[int]:
    """Return the nodes in an order in which each comes after all that pass something on to it."""
    above: dict[int, set[int]] = {number: set() for number in shared}
    for (number, _), passing in sources.items():
        above[number] |= {source.node for source in passing if source.task is None}
    return list(TopologicalSorter(above).static_order())
