"""How each shared parameter gets its rows, once it is known which example owns what."""

from dataclasses import dataclass, replace
from functools import cached_property

import torch

from gdod.rows.computed import Computed, Owners, find_computed
from gdod.rows.graph import Graph
from gdod.rows.ownership import has_candidates
from gdod.rows.plan import Plan, Shared
from gdod.rows.uses import Contraction, Reduction
from gdod.rows.views import is_complex


@dataclass(frozen=True)
class Recipe:
    """All shared parameters, sorted by how they get their rows."""

    products: tuple[tuple[Shared, Shared | None], ...]  # weights, each with the bias added in the same nodes
    tables: tuple[Shared, ...]
    others: tuple[Shared, ...]
    computed: Computed  # those that weights are computed from
    slow: tuple[Shared, ...]  # those that need a backward pass for each row
    way: tuple[tuple[int, int], ...]  # the (node, output) of everything between the losses and the nodes below

    @cached_property
    def nodes(self) -> tuple[int, ...]:
        """The nodes at whose output the cotangents of all tasks are wanted."""
        parameters = [p for pair in self.products for p in pair if p is not None]
        places = [place for p in (*parameters, *self.tables, *self.others) for place in p.places]
        places += self.computed.places
        return tuple(dict.fromkeys(place.node for place in places))


def make_recipe(graph: Graph, plan: Plan, owners: Owners, shapes: dict[int, torch.Size], examples: int) -> Recipe:
    """Sort the shared parameters of a plan by how they get their rows.

    ``owners`` holds, for each output of a node on the way, the possible owners of its cotangent's elements, ``shapes``
    the shape of the cotangent at each node of the plan.
    """
    products, tables, others, slow = [], [], [], []
    for shared in plan.shared:
        parameter = _locate(graph, shared, owners, shapes, examples)
        if parameter.reason:
            slow.append(parameter)
        elif parameter.is_table:
            tables.append(parameter)
        elif parameter.is_product:
            products.append(parameter)
        else:
            others.append(parameter)
    pairs = []
    for weight in products:
        bias = next((other for other in others if _added_with(graph, weight, other)), None)
        if bias is not None:
            others.remove(bias)
        pairs.append((weight, bias))
    computed, way = find_computed(graph, plan, slow, owners, examples) if slow else (Computed(), plan.way)
    slow = [parameter for parameter in slow if parameter.leaf not in computed.leaves]
    return Recipe(tuple(pairs), tuple(tables), tuple(others), computed, tuple(slow), way)


def _locate(graph: Graph, shared: Shared, owners: Owners, shapes: dict[int, torch.Size], examples: int) -> Shared:
    """Return the parameter with the owner at each of its places, or with the reason why there is none."""
    places, reason, mixes = [], shared.reason, False
    if not reason and _meets_complex_numbers(graph, shared):
        return replace(shared, places=(), reason="complex numbers")
    for place in shared.places:
        shape, known = shapes[place.node], owners[place.node, 0]
        owner = next((o for o in known if place.use.allows(o, shape, place.shape, examples)), None)
        if owner is None:
            kind = type(graph.nodes[place.node]).__name__
            mixes = mixes or (not known and has_candidates(shape, examples))
            reason = f"examples mix above {kind}" if mixes else f"no dimension of examples to sum over at {kind}"
        places.append(place if owner is None else replace(place, owner=owner))
    reason = reason if places or reason else "it is a loss itself"
    return replace(shared, places=tuple(places), reason=reason, mixes=mixes)


def _meets_complex_numbers(graph: Graph, shared: Shared) -> bool:
    return graph.leaf(shared.leaf).is_complex() or any(is_complex(graph.nodes[place.node]) for place in shared.places)


def _added_with(graph: Graph, weight: Shared, bias: Shared) -> bool:
    """Return whether ``bias`` is what `addmm` adds to the product with ``weight``, everywhere."""
    if [place.node for place in weight.places] != [place.node for place in bias.places]:
        return False
    use, shape = weight.places[0].use, weight.places[0].shape
    assert isinstance(use, Contraction)
    if use.left or len(shape) != 2:
        return False
    return all(
        # In a node that multiplies matrices, this is the use of what is added.
        isinstance(place.use, Reduction)
        and place.shape == shape[-1:]
        and place.owner == other.owner
        and place.view == bias.places[0].view
        and graph.nodes[place.node]._saved_beta == 1  # type: ignore[attr-defined]
        for place, other in zip(bias.places, weight.places, strict=True)
    )
