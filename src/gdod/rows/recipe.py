"""How each shared parameter gets its rows, once it is known which example owns what."""

from dataclasses import dataclass
from functools import cached_property

import torch

from gdod.rows.contraction import Contraction
from gdod.rows.graph import Graph
from gdod.rows.groups import Owner
from gdod.rows.ownership import has_candidates
from gdod.rows.plan import Place, Plan, Shared
from gdod.rows.reduction import Reduction

_WHOLE = Owner(0, 1)


@dataclass(frozen=True)
class Located:
    """A place whose cotangent's elements are assigned to examples."""

    place: Place
    owner: Owner


@dataclass(frozen=True)
class Parameter:
    """A shared parameter with all places where it is used."""

    leaf: int
    located: tuple[Located, ...]


@dataclass(frozen=True)
class Slow:
    """A parameter that needs a backward pass for each row."""

    parameter: Parameter
    reason: str
    mixes: bool
    """Whether the reason is that examples mix."""
    is_table: bool
    """Whether autograd is asked for the entries that the batch touches only."""


@dataclass(frozen=True)
class Recipe:
    """All shared parameters, sorted by how they get their rows."""

    products: tuple[tuple[Parameter, Parameter | None], ...]
    """Weights of matrix products, each with the bias that is added in the same nodes."""
    tables: tuple[Parameter, ...]
    others: tuple[Parameter, ...]
    slow: tuple[Slow, ...]

    @cached_property
    def nodes(self) -> tuple[int, ...]:
        """The nodes at whose output the cotangents of all tasks are wanted."""
        parameters = [p for pair in self.products for p in pair if p is not None]
        located = [at for p in (*parameters, *self.tables, *self.others) for at in p.located]
        return tuple(dict.fromkeys(at.place.node for at in located))


def make_recipe(
    graph: Graph,
    plan: Plan,
    owners: dict[int, list[Owner]],
    shapes: dict[int, torch.Size],
    examples: int,
) -> Recipe:
    """Sort the shared parameters of a plan by how they get their rows.

    Args:
        graph: The graph of this step.
        plan: The plan of all graphs of its structure.
        owners: For each node of the plan, the possible owners of its cotangent's elements.
        shapes: The shape of each of these cotangents.
        examples: The number of examples in the batch.
    """
    products, tables, others, slow = [], [], [], []
    for shared in plan.shared:
        parameter, why, mixes = _locate(graph, shared, owners, shapes, examples)
        if why is not None:
            slow.append(Slow(parameter, why, mixes, shared.is_table))
        elif shared.is_table:
            tables.append(parameter)
        elif shared.is_product:
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
    graph: Graph,
    shared: Shared,
    owners: dict[int, list[Owner]],
    shapes: dict[int, torch.Size],
    examples: int,
) -> tuple[Parameter, str | None, bool]:
    located, why, mixes = [], shared.reason, False
    for place in shared.places:
        shape, known = shapes[place.node], owners[place.node]
        owner = next((o for o in known if place.use.allows(o, shape, place.shape, examples)), None)
        if owner is None:
            kind = graph.kind(place.node)
            mixes = mixes or (not known and has_candidates(shape, examples))
            why = f"examples mix above {kind}" if mixes else f"no dimension of examples to sum over at {kind}"
        located.append(Located(place, owner or _WHOLE))
    if not shared.places and why is None:
        why = "it is a loss itself"
    return Parameter(shared.leaf, tuple(located)), why, mixes


def _added_with(graph: Graph, weight: Parameter, bias: Parameter) -> bool:
    """Return whether ``bias`` is what `addmm` adds to the product with ``weight``, everywhere."""
    if [at.place.node for at in weight.located] != [at.place.node for at in bias.located]:
        return False
    use, shape = weight.located[0].place.use, weight.located[0].place.shape
    assert isinstance(use, Contraction)
    if use.left or len(shape) != 2:
        return False
    return all(
        # In a node that multiplies matrices, this is the use of what is added.
        isinstance(at.place.use, Reduction)
        and at.place.shape == shape[-1:]
        and at.owner == other.owner
        and at.place.view == bias.located[0].place.view
        and graph.nodes[at.place.node]._saved_beta == 1  # type: ignore[attr-defined]
        for at, other in zip(bias.located, weight.located, strict=True)
    )
