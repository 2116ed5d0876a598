"""From losses to rows: walk the graph, find out which example owns what, run the backward passes, sort into blocks.

One pass serves all tasks where their shared layers allow it, otherwise there is one a task; parameters whose
examples mix or whose nodes have no rule take a further pass for each row.
"""

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge
from torch.utils.weak import WeakTensorKeyDictionary

from gdod.errors import InputError, MixingWarning
from gdod.rows.graph import Graph, walk
from gdod.rows.groups import Groups, Owner
from gdod.rows.ownership import factors, keeps_apart, owners
from gdod.rows.passes import Passes, grad
from gdod.rows.plan import Assignment, Plan, plan_for
from gdod.rows.recipe import Recipe, make_recipe
from gdod.rows.rows import Contributions, SlowPath
from gdod.rows.targets import Target
from gdod.rows.trunk import find_trunk
from gdod.rows.views import output_shape


def collect(
    targets: Sequence[Target],
    seeds: Tensor,
    active: Sequence[int],
    groups: Groups,
    shared: Sequence[Tensor] | None,
    retain_graph: bool,
) -> Contributions:
    """Return the rows of all shared parameters and the gradients of the others.

    ``seeds`` [K, B] holds the weight of each example in its task's mean, ``active`` the tasks that have any weight.
    Without ``shared``, a parameter is shared if at least two tasks reach it.
    """
    graph = walk([target.node for target in targets])
    named = None if shared is None else frozenset(map(id, shared))
    plan = plan_for(graph, groups.examples, named)
    if shared is not None:
        check_among({id(graph.leaf(parameter.leaf)) for parameter in plan.shared}, shared)
    recipe, assignment = _recipe(graph, plan, targets, seeds, groups.examples)
    if recipe.slow:
        _warn_of_mixing(graph, recipe, len(plan.shared))
    passes = Passes(graph, plan, recipe, groups)
    passes.run(targets, seeds, active, retain_graph, assignment)
    return Contributions(
        groups=groups,
        tasks=len(targets),
        blocks=list(passes.blocks()),
        shared=tuple(graph.leaf(parameter.leaf) for parameter in plan.shared),
        own=[(graph.leaf(leaf), grads) for leaf, grads in passes.private.items()],
        slow=tuple(SlowPath(graph.leaf(slow.leaf), slow.reason) for slow in recipe.slow),
        passes=passes.count,
        last_layer=frozenset(id(graph.leaf(leaf)) for leaf in plan.last_layer),
    )


_WARNED = WeakTensorKeyDictionary()


def _warn_of_mixing(graph: Graph, recipe: Recipe, shared: int) -> None:
    """Warn that parameters need a pass for each row because examples mix, once for a model."""
    mixed = [graph.leaf(slow.leaf) for slow in recipe.slow if slow.mixes]
    if mixed and not any(parameter in _WARNED for parameter in mixed):
        warnings.warn(
            "examples of the batch influence each other's losses (batch norm in training, in-batch negatives, ...), "
            f"or their places cannot be followed: {len(mixed)} of {shared} shared parameters need a backward pass "
            "for each row. The result is exact, the step slower; layer norm in place of batch norm avoids it",
            MixingWarning,
            stacklevel=4,
        )
    for parameter in mixed:
        _WARNED[parameter] = True


def check_reached(targets: Sequence[Target], shared: Sequence[Tensor]) -> None:
    """Raise `InputError` if no loss reaches one of the parameters."""
    graph = walk([target.node for target in targets])
    check_among({id(graph.leaf(leaf)) for leaf in graph.leaves()}, shared)


def check_among(reached: set[int], shared: Sequence[Tensor]) -> None:
    """Raise `InputError` if the id of one of the parameters is not in ``reached``."""
    for number, parameter in enumerate(shared):
        if id(parameter) not in reached:
            raise InputError(
                f"no loss reaches parameter {number} of shared=, of shape {tuple(parameter.shape)}; "
                "pass only parameters that the losses depend on"
            )


def _recipe(
    graph: Graph, plan: Plan, targets: Sequence[Target], seeds: Tensor, examples: int
) -> tuple[Recipe, Assignment]:
    """Return how the parameters get their rows in this step.

    Who owns what is examined at every step unless the graph's structure settles it; and even then after
    1, 2, 4, 8, ... steps, so that an unlucky batch cannot settle it for good.
    """
    shapes = tuple(output_shape(graph.nodes[number], 0) for number in plan.nodes)
    assignment = plan.assignments.setdefault(shapes, Assignment())
    visits = assignment.visits = assignment.visits + 1
    assignment.examine = assignment.recipe is None or not assignment.settled or visits & (visits - 1) == 0
    if assignment.recipe is None or assignment.examine:
        by_node = dict(zip(plan.nodes, shapes, strict=True))
        if examples == 1:
            assignment.settled = True
            owned = {node: [Owner(dim, size) for dim, size in enumerate(shape)] for node, shape in by_node.items()}
        else:
            if plan.nodes:
                _probe(graph, plan, assignment, targets, seeds, examples)
            owned = {node: assignment.owners[node, 0] for node in plan.nodes}
        assignment.recipe = make_recipe(graph, plan, owned, by_node, examples)
        assignment.trunk = None if assignment.recipe.slow else find_trunk(graph, plan)
    return assignment.recipe, assignment


def _probe(
    graph: Graph, plan: Plan, assignment: Assignment, targets: Sequence[Target], seeds: Tensor, examples: int
) -> None:
    """Find the owners of all cotangents between the losses and the places where they are wanted, by two passes."""
    generator = torch.Generator().manual_seed(assignment.visits)
    factor = factors(examples, generator).to(seeds)
    tasks = (0.5 + torch.rand(len(targets), generator=generator)).to(seeds)
    edges = [GradientEdge(graph.nodes[number], output) for number, output in plan.way]

    def cotangents(examples: Tensor) -> Sequence[Tensor | None]:
        values = [target.seed(task * examples) for target, task in zip(targets, tasks, strict=True)]
        return grad([target.output for target in targets], edges, values, retain_graph=True)

    plain, scaled = cotangents(torch.ones_like(factor)), cotangents(factor)
    settled = True
    for at, one, other in zip(plan.way, plain, scaled, strict=True):
        possible = [] if one is None or other is None else owners(one, other, factor)
        settled = settled and len(possible) <= 1
        known = assignment.owners.get(at, possible)
        # An assignment that holds on this batch, too, is narrowed down; one that does not is dropped.
        assignment.owners[at] = [owner for owner in possible if owner in known] or possible
    assignment.settled = settled and keeps_apart(graph, plan.way, assignment.owners)
