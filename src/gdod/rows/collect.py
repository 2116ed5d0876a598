"""From losses to rows: walk the graph, find out which example owns what, run the backward passes, sort into blocks.

One pass serves all tasks where their shared layers allow it, otherwise there is one a task; parameters whose
examples mix or whose nodes have no rule take a further pass for each row.
"""

from collections.abc import Sequence
from math import floor, log2

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from gdod.errors import InputError
from gdod.rows.fully_sharded import kept_whole
from gdod.rows.graph import Graph, walk
from gdod.rows.groups import Groups, Owner
from gdod.rows.ownership import factors, keeps_apart, owners
from gdod.rows.passes import Passes, grad
from gdod.rows.plan import Assignment, Plan, plan_for
from gdod.rows.recipe import Recipe, make_recipe
from gdod.rows.rows import Contributions, SlowPath
from gdod.rows.slow_path import warn_of_slow_path
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
    with kept_whole(map(graph.leaf, graph.leaves())):
        recipe, assignment = _recipe(graph, plan, targets, seeds, groups.examples)
        if recipe.slow:
            warn_of_slow_path(
                [(graph.leaf(slow.leaf), slow.reason, slow.mixes) for slow in recipe.slow],
                len(plan.shared),
                groups.count,
                len(active),
            )
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
        settled = True
        if examples == 1:
            assignment.owners = {
                (number, output): [Owner(*one) for one in enumerate(output_shape(graph.nodes[number], output))]
                for number, output in (*plan.way, *plan.beyond)
            }
        elif plan.way or plan.beyond:
            settled = _probe(graph, plan, assignment, targets, seeds, examples)
        recipe = assignment.recipe = make_recipe(graph, plan, assignment.owners, by_node, examples)
        assignment.settled = settled and (examples == 1 or keeps_apart(graph, recipe.way, assignment.owners))
        assignment.trunk = None if recipe.slow else find_trunk(graph, plan, recipe)
    return assignment.recipe, assignment


def _size(seeds: Tensor, graph: Graph, way: Sequence[tuple[int, int]]) -> float:
    """Return a power of two near the seeds, so that hooks which go by the size of a gradient do what they would do.

    It is 1 with half-precision numbers, which would lose digits, or seeds that a scaler made large.
    """
    largest = float(seeds.abs().max())
    dtypes = {graph.nodes[number]._input_metadata[output].dtype for number, output in way}
    if dtypes & {torch.float16, torch.bfloat16} or not 0 < largest < 1:
        return 1.0
    return 2.0 ** floor(log2(largest))


def _probe(
    graph: Graph, plan: Plan, assignment: Assignment, targets: Sequence[Target], seeds: Tensor, examples: int
) -> bool:
    """Find the owners of all cotangents between the losses and the places where they are wanted, by two passes.

    Return whether no cotangent can be assigned in several ways.
    """
    generator = torch.Generator().manual_seed(assignment.visits)
    factor = factors(examples, generator).to(seeds)
    tasks = (0.5 + torch.rand(len(targets), generator=generator)).to(seeds)
    way = (*plan.way, *plan.beyond)
    tasks = tasks * _size(seeds, graph, way)
    edges = [GradientEdge(graph.nodes[number], output) for number, output in way]

    def cotangents(examples: Tensor) -> Sequence[Tensor | None]:
        values = [target.seed(task * examples) for target, task in zip(targets, tasks, strict=True)]
        return grad([target.output for target in targets], edges, values, retain_graph=True)

    plain, scaled = cotangents(torch.ones_like(factor)), cotangents(factor)
    settled = True
    for at, one, other in zip(way, plain, scaled, strict=True):
        possible = [] if one is None or other is None else owners(one, other, factor)
        settled = settled and len(possible) <= 1
        known = assignment.owners.get(at, possible)
        # An assignment that holds on this batch, too, is narrowed down; one that does not is dropped.
        assignment.owners[at] = [owner for owner in possible if owner in known] or possible
    return settled
