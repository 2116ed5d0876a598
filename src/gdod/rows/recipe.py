"""How each shared parameter gets its rows, once it is known which example owns what."""

from dataclasses import dataclass, replace
from functools import cached_property

import torch

from gdod.rows.graph import Graph
from gdod.rows.groups import Owner
from gdod.rows.ownership import has_candidates
from gdod.rows.plan import Plan, Shared
from gdod.rows.uses import Contraction, Reduction


@dataclass(frozen=True)
class Recipe:
    """All shared parameters, sorted by how they get their rows."""

    products: tuple[tuple[Shared, Shared | None], ...]  # weights, each with the bias added in the same nodes
    tables: tuple[Shared, ...]
    others: tuple[Shared, ...]
    slow: tuple[Shared, ...]  # those that need a backward pass for each row

    @cached_property
    def nodes(self) -> tuple[int, ...]:
        """The nodes at whose output the cotangents of all tasks are wanted."""
        parameters = [p for pair in self.products for p in pair if p is not None]
        places = [place for p in (*parameters, *self.tables, *self.others) for place in p.places]
        return tuple(dict.fromkeys(place.node for place in places))


def make_recipe(
    graph: Graph, plan: Plan, owners: dict[int, list[Owner]], shapes: dict[int, torch.Size], examples: int
) -> Recipe:
    """Sort the shared parameters of a plan by how they get their rows.

    ``owners`` and ``shapes`` hold, for each node of the plan, the possible owners of its cotangent's elements, and the
    cotangent's shape.
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
    return Recipe(tuple(pairs), tuple(tables), tuple(others), tuple(slow))


def _locate(
    graph: Graph, shared: Shared, owners: dict[int, list[Owner]], shapes: dict[int, torch.Size], examples: int
) -> Shared:
    """Return the parameter with the owner at each of its places, or with the reason why there is none."""
    places, reason, mixes = [], shared.reason, False
    for place in shared.places:
        shape, known = shapes[place.node], owners[place.node]
        owner = next((o for o in known if place.use.allows(o, shape, place.shape, examples)), None)
        if owner is None:
            kind = type(graph.nodes[place.node]).__name__
            mixes = mixes or (not known and has_candidates(shape, examples))
            reason = f"examples mix above {kind}" if mixes else f"no dimension of examples to sum over at {kind}"
        places.append(place if owner is None else replace(place, owner=owner))
    return Shared(shared.leaf, tuple(places), reason if places or reason else "it is a loss itself", mixes)


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
