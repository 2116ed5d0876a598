"""What the graph tells about parameters under `torch.distributed`: which one is which on another rank, which
are tables, which are sharded."""

from collections import OrderedDict
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor
from torch.autograd.graph import Node

from gdod.errors import InputError
from gdod.rows.graph import LEAF, Graph
from gdod.rows.lookup import TableUse
from gdod.rows.node_kinds import is_view, kind_of
from gdod.rows.parts import digest


@dataclass(frozen=True)
class Lookups:
    """The uses of a parameter that is looked up and used in no other way."""

    nodes: list[Node]
    sparse: bool  # whether its gradient is to be

    def ids(self) -> Tensor:
        """Return all ids looked up, to be read before the graph is freed."""
        return torch.cat([node._saved_indices.reshape(-1).long() for node in self.nodes])  # type: ignore[attr-defined]


def lookups(graph: Graph, leaves: list[int]) -> dict[int, Lookups]:
    """Return the tables, by their number among the leaves."""
    numbers = {graph.nodes[leaf]: number for number, leaf in enumerate(leaves)}
    uses: dict[int, list[Node] | None] = {}
    for node in graph.nodes:
        for slot, (child, _) in enumerate(node.next_functions):
            if type(child) is not LEAF:
                continue
            number = numbers[child]  # type: ignore[index]
            before = uses.setdefault(number, [])
            if isinstance(kind_of(node).uses.get(slot), TableUse) and before is not None:
                before.append(node)
            else:
                uses[number] = None
    return {
        number: Lookups(nodes, bool(nodes[-1]._saved_sparse))  # type: ignore[attr-defined]
        for number, nodes in uses.items()
        if nodes
    }


_STRUCTURES: OrderedDict[object, int] = OrderedDict()


def structure(graph: Graph) -> int:
    """Return a number that is the same on two ranks if their graphs have the same nodes and edges, of any sizes."""
    known = _STRUCTURES.get(graph.signature)
    if known is None:
        numbers = {node: number for number, node in enumerate(graph.nodes)}
        edges = [[(numbers.get(child, -1), at) for child, at in node.next_functions] for node in graph.nodes]  # type: ignore[arg-type]
        kinds = [type(node).__name__ for node in graph.nodes]
        known = _STRUCTURES[graph.signature] = digest(str((graph.roots, kinds, edges)))
        if len(_STRUCTURES) > 256:
            _STRUCTURES.popitem(last=False)
    return known


def ordered_leaves(graph: Graph, alike: bool) -> list[int]:
    """Return the leaves in an order that is the same on all ranks.

    In graphs that are ``alike`` it is that of the graph. Otherwise (a loop that runs as often as a rank's longest
    sequence is long) parameters are known by what they hold, which is the same on all ranks.
    """
    leaves = graph.leaves()
    if alike:
        return leaves
    known = {leaf: _description(graph, leaf) for leaf in leaves}
    context = _context(graph, leaves)
    keys = {leaf: (known[leaf], sorted(known[other] for other in context[leaf])) for leaf in leaves}
    order = sorted(leaves, key=lambda leaf: keys[leaf])
    for one, other in pairwise(order):
        if keys[one] == keys[other]:
            raise InputError(
                "the graphs of the losses differ between ranks, and two parameters of shape "
                f"{tuple(graph.leaf(one).shape)} hold the same numbers, so that ranks cannot tell which is which; "
                "let all ranks run the same operations in the first steps, or start the parameters differently"
            )
    return order


def _description(graph: Graph, leaf: int) -> str:
    parameter = graph.leaf(leaf)
    flat = parameter.detach().reshape(-1)
    some = flat[:: max(1, flat.shape[0] // 64)].tolist()
    return f"{tuple(parameter.shape)} {parameter.dtype} {digest(str(some))}"


def _context(graph: Graph, leaves: list[int]) -> dict[int, set[int]]:
    """Return for each leaf those that enter the same operations, such as the weight that a bias is added to."""
    numbers = {node: number for number, node in enumerate(graph.nodes)}
    context: dict[int, set[int]] = {leaf: set() for leaf in leaves}
    for node in graph.nodes:
        inside: set[int] = set()
        for child, _ in node.next_functions:
            while child is not None and is_view(child) and type(child) is not LEAF:
                child = child.next_functions[0][0]
            if child is not None and type(child) is LEAF:
                inside.add(numbers[child])
        for leaf in inside:
            context[leaf] |= inside - {leaf}
    return context


def refuse_sharded(graph: Graph) -> None:
    """Refuse graphs whose nodes talk to other ranks by themselves, and parameters that cannot be sent whole.

    Those are the ones of which a rank has a part, and complex ones.
    """
    kinds = {type(node).__name__ for node in graph.nodes}
    if "_DDPSinkBackward" in kinds:
        raise InputError(
            "the model is wrapped in DistributedDataParallel with find_unused_parameters=True or static_graph=True, "
            "which hides what belongs to which task; leave both out: gdod.backward sums gradients itself, and "
            "parameters that no loss reaches do no harm"
        )
    if "SyncBatchNormBackward" in kinds:
        raise InputError(
            "the model holds SyncBatchNorm, whose backward pass waits for other ranks, which need not make as many "
            "passes; use layer norm, or batch norm over each rank's own examples"
        )
    for leaf in graph.leaves():
        parameter = graph.leaf(leaf)
        if parameter.is_complex():
            raise InputError(
                f"a parameter of shape {tuple(parameter.shape)} is complex, which works in one process only; keep its "
                "real and imaginary parts in a parameter with a last dimension of 2, and use torch.view_as_complex"
            )
        if type(parameter).__name__ in ("DTensor", "FlatParameter"):
            raise InputError(
                f"a parameter of shape {tuple(parameter.shape)} is a {type(parameter).__name__}: each rank computes "
                "with a part of it (tensor parallelism, or the first FSDP), and its gradient cannot be written; use "
                "torch.distributed.fsdp.fully_shard, DistributedDataParallel, or the plain model on each rank"
            )
