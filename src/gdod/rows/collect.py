"""From losses to rows: walk the graph, run one backward pass a task, sort what comes out into blocks."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import cast

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge
from torch.utils.weak import WeakTensorKeyDictionary

from gdod.errors import InputError, MixingWarning
from gdod.rows.blocks import Block, Chain, Dense, Only
from gdod.rows.contraction import Contraction, Products
from gdod.rows.cotangent import Cotangent, Deltas, working
from gdod.rows.graph import Graph, walk
from gdod.rows.groups import Groups, Owner
from gdod.rows.lookup import Entries, Tables
from gdod.rows.ownership import factors, owners
from gdod.rows.plan import Assignment, Place, Plan, plan_for
from gdod.rows.random_rows import RandomRows
from gdod.rows.recipe import Located, Parameter, Recipe, make_recipe
from gdod.rows.targets import Target
from gdod.rows.trunk import Trunk, find_trunk
from gdod.rows.trust import keeps_apart
from gdod.rows.views import output_shape, undo
from gdod.rows.workspace import release

Input = Tensor | GradientEdge


@dataclass(frozen=True)
class SlowPath:
    """A parameter whose rows took a backward pass each, and why."""

    parameter: Tensor
    reason: str


@dataclass
class Rows:
    """Rows of all shared parameters, ordered group by group: row ``g * tasks + i``.

    A row here is the gradient of the *part* of task i's weighted mean loss that group g contributes,
    so that the rows of a task add up to its gradient.
    """

    groups: Groups
    tasks: int
    blocks: list[Block]
    shared: tuple[Tensor, ...]
    own: list[tuple[Tensor, list[tuple[int, Tensor]]]]  # other parameters with the gradients (task, gradient)
    slow: tuple[SlowPath, ...]
    passes: int

    last_layer: frozenset[int]  # ids of the shared parameters that are used closest to the losses

    def gram(self, precise: bool, only: Only = None) -> Tensor:
        """Inner products of the rows, over all shared parameters or some, as float64 on the CPU. [N, N]"""
        count = self.groups.count * self.tasks
        totals: dict[tuple[torch.device, torch.dtype], Tensor] = {}
        for block in self.blocks:
            gram = block.gram(precise, only)
            kind = gram.device, gram.dtype
            totals[kind] = totals[kind] + gram if kind in totals else gram
        found = [total.to("cpu", torch.float64) for total in totals.values()]
        return sum(found[1:], found[0]) if found else torch.zeros(count, count, dtype=torch.float64)

    def release(self) -> None:
        """Gives back the memory of the rows, which must not be used any more."""
        release()

    def combine(self, weights: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Shared parameters with the weighted sum of their rows."""
        cast: dict[tuple[torch.device, torch.dtype], Tensor] = {}
        grads = []
        for block in self.blocks:
            kind = block.like.device, block.like.dtype
            if kind not in cast:
                cast[kind] = weights.to(*kind)
            grads += block.combine(cast[kind])
        return grads

    def private(self, factors: Tensor | None) -> list[tuple[Tensor, Tensor]]:
        """The other parameters with their gradients, each task's times its factor."""
        grads = []
        for parameter, parts in self.own:
            scaled = [grad if factors is None else float(factors[task]) * grad for task, grad in parts]
            grads.append((parameter, sum(scaled[1:], scaled[0])))
        return grads

    def random_rows(self, averages: Tensor) -> RandomRows:
        """A source of random vectors beside the task gradients, which average rows by ``averages`` [K, N]."""
        return RandomRows([self.combine((share > 0).double()) for share in averages])

    @cached_property
    def precision(self) -> float:
        """Relative rounding error of the rows."""
        return precision(self.shared)

    def layers(self) -> "list[Rows]":
        """The rows of each layer alone: a weight with its bias; all tables of one width."""
        return [self._of([block]) for block in self.blocks]

    def tables_apart(self) -> "tuple[Rows, Rows]":
        """The rows of all but embedding tables, and those of the tables."""
        tables: list[Block] = [block for block in self.blocks if isinstance(block, Tables)]
        return self._of([block for block in self.blocks if block not in tables]), self._of(tables)

    def place_of(self, layer: "Rows") -> int:
        """A number for a layer that it has in every step."""
        return next(number for number, parameter in enumerate(self.shared) if parameter is layer.shared[0])

    def _of(self, blocks: list[Block]) -> "Rows":
        parameters = tuple(parameter for block in blocks for parameter in block.parameters)
        return replace(self, blocks=blocks, shared=parameters)


def precision(shared: Sequence[Tensor]) -> float:
    """Relative rounding error of the rows of these parameters."""
    half = (torch.bfloat16, torch.float16)
    dtypes = {torch.float32 if p.dtype in half else p.dtype for p in shared}
    return max((torch.finfo(dtype).eps for dtype in dtypes), default=torch.finfo(torch.float64).eps)


def collect(
    targets: Sequence[Target],
    seeds: Tensor,
    active: Sequence[int],
    groups: Groups,
    shared: Sequence[Tensor] | None,
    retain_graph: bool,
) -> Rows:
    """Runs the backward passes.

    ``seeds`` [K, B]: the weight of each example in its task's mean; ``active``: the tasks for which
    they are not all zero.
    """
    graph = walk([target.node for target in targets])
    named = None if shared is None else frozenset(map(id, shared))
    plan = plan_for(graph, groups.examples, named)
    if shared is not None:
        check_among({id(graph.leaf(parameter.leaf)) for parameter in plan.shared}, shared)
    recipe, assignment = _recipe(graph, plan, targets, seeds, groups.examples)
    if recipe.slow:
        _warn_of_mixing(graph, recipe, len(plan.shared))
    collection = _Collection(graph, plan, recipe, groups)
    collection.run(targets, seeds, active, retain_graph, assignment)
    return Rows(
        groups=groups,
        tasks=len(targets),
        blocks=list(collection.blocks()),
        shared=tuple(graph.leaf(parameter.leaf) for parameter in plan.shared),
        own=[(graph.leaf(leaf), grads) for leaf, grads in collection.private.items()],
        slow=tuple(SlowPath(graph.leaf(slow.parameter.leaf), slow.reason) for slow in recipe.slow),
        passes=collection.passes,
        last_layer=frozenset(id(graph.leaf(leaf)) for leaf in plan.last_layer),
    )


_WARNED = WeakTensorKeyDictionary()


def _warn_of_mixing(graph: Graph, recipe: Recipe, shared: int) -> None:
    """Once for a model."""
    mixed = [graph.leaf(slow.parameter.leaf) for slow in recipe.slow if slow.mixes]
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


def differentiate(targets: Sequence[Target], seeds: Tensor, retain_graph: bool, penalty: Tensor | None = None) -> None:
    """An ordinary backward pass, into `.grad`, of the losses times their seeds (plus a penalty)."""
    outputs: list[Input] = [target.output for target in targets]
    values = [target.seed(seed) for target, seed in zip(targets, seeds, strict=True)]
    if penalty is not None:
        outputs, values = [*outputs, penalty], [*values, torch.ones_like(penalty)]
    torch.autograd.backward(cast(Sequence[Tensor], outputs), values, retain_graph=retain_graph)


def gradients(
    targets: Sequence[Target], seeds: Tensor, retain_graph: bool, further: tuple[Tensor, Tensor] | None = None
) -> list[tuple[Tensor, Tensor]]:
    """Parameters with their gradients of the losses times their seeds; nothing is written, no hook is called.

    ``further``: a tensor that is to be differentiated along with the losses, and its cotangent.
    """
    graph = walk([target.node for target in targets])
    leaves = [graph.leaf(leaf) for leaf in graph.leaves()]
    found = derivatives(targets, seeds, leaves, retain_graph, further)
    return [(leaf, grad) for leaf, grad in zip(leaves, found, strict=True) if grad is not None]


def derivatives(
    targets: Sequence[Target],
    seeds: Tensor,
    leaves: Sequence[Tensor],
    retain_graph: bool,
    further: tuple[Tensor, Tensor] | None = None,
) -> Sequence[Tensor | None]:
    outputs: list[Input] = [target.output for target in targets]
    values = [target.seed(seed) for target, seed in zip(targets, seeds, strict=True)]
    if further is not None and further[0].requires_grad:
        outputs, values = [*outputs, further[0]], [*values, further[1]]
    with without_hooks(leaves):
        return _grad(outputs, leaves, values, retain_graph)


def check_reached(targets: Sequence[Target], shared: Sequence[Tensor]) -> None:
    """Refuses parameters that no loss reaches."""
    graph = walk([target.node for target in targets])
    check_among({id(graph.leaf(leaf)) for leaf in graph.leaves()}, shared)


def check_among(reached: set[int], shared: Sequence[Tensor]) -> None:
    for number, parameter in enumerate(shared):
        if id(parameter) not in reached:
            raise InputError(
                f"no loss reaches parameter {number} of shared=, of shape {tuple(parameter.shape)}; "
                "pass only parameters that the losses depend on"
            )


# Who owns what is found out anew at every step unless the graph's structure settles it; and even
# then after 1, 2, 4, 8, ... steps, so that an unlucky batch cannot settle it for good.
def _recipe(
    graph: Graph, plan: Plan, targets: Sequence[Target], seeds: Tensor, examples: int
) -> tuple[Recipe, Assignment]:
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
    """Finds the owners of all cotangents between the losses and the places where they are wanted."""
    generator = torch.Generator().manual_seed(assignment.visits)
    factor = factors(examples, generator).to(seeds)
    tasks = (0.5 + torch.rand(len(targets), generator=generator)).to(seeds)
    edges = [GradientEdge(graph.nodes[number], output) for number, output in plan.way]

    def cotangents(examples: Tensor) -> Sequence[Tensor | None]:
        values = [target.seed(task * examples) for target, task in zip(targets, tasks, strict=True)]
        return _grad([target.output for target in targets], edges, values, retain_graph=True)

    plain, scaled = cotangents(torch.ones_like(factor)), cotangents(factor)
    settled = True
    for at, one, other in zip(plan.way, plain, scaled, strict=True):
        found = [] if one is None or other is None else owners(one, other, factor)
        settled = settled and len(found) <= 1
        known = assignment.owners.get(at, found)
        # An assignment that holds on this batch, too, is narrowed down; one that does not is dropped.
        assignment.owners[at] = [owner for owner in found if owner in known] or found
    assignment.settled = settled and keeps_apart(graph, plan.way, assignment.owners)


def _grad(
    outputs: Sequence[Tensor | GradientEdge],
    inputs: Sequence[Input],
    seeds: Sequence[Tensor],
    retain_graph: bool,
    create_graph: bool = False,
) -> Sequence[Tensor | None]:
    try:
        # Tensors and edges may stand in one list, which the annotations of torch do not say.
        return torch.autograd.grad(
            cast(Sequence[Tensor], outputs),
            cast(Sequence[Tensor], inputs),
            seeds,
            retain_graph=retain_graph,
            create_graph=create_graph,
            allow_unused=True,
        )
    except RuntimeError as error:
        if "donated buffer" not in str(error):
            raise
        raise InputError(
            "the compiled model allows a single backward pass, and one a task is needed; set "
            "torch._functorch.config.donated_buffer = False before torch.compile, or leave the model uncompiled"
        ) from error


@contextmanager
def without_hooks(inputs: Sequence[Input]) -> Iterator[None]:
    """Hooks of a parameter are to see its whole gradient once, when it is accumulated."""
    hooked = [(x, x._backward_hooks) for x in inputs if isinstance(x, Tensor) and x._backward_hooks]
    for parameter, _ in hooked:
        parameter._backward_hooks = None
    try:
        yield
    finally:
        for parameter, hooks in hooked:
            parameter._backward_hooks = hooks


def _agree(some: dict[int, Deltas], others: dict[int, Deltas]) -> bool:
    """Whether cotangents found in two ways are the same but for rounding."""
    for number, deltas in some.items():
        for one, other in zip(deltas, others[number], strict=True):
            one = torch.zeros_like(other) if one is None and other is not None else one
            if one is None:
                continue
            size = 0.0 if other is None else float(other.norm())
            difference = float(one.norm()) if other is None else float((one - other).norm())
            if not difference <= torch.finfo(one.dtype).eps ** 0.5 * size:
                return False
    return True


class _Collection:
    """The backward passes over one graph, and what they leave."""

    def __init__(self, graph: Graph, plan: Plan, recipe: Recipe, groups: Groups) -> None:
        self.graph, self.plan, self.recipe, self.groups = graph, plan, recipe, groups
        self.tasks = len(plan.private)
        self.deltas: dict[int, Deltas] = {}
        self.rows: dict[int, list[Tensor | None]] = {}
        self.private: dict[int, list[tuple[int, Tensor]]] = {}
        self.passes = 0
        # What nodes saved is read now: the last pass may free it.
        tables = [slow.parameter for slow in recipe.slow if slow.is_table]
        products = [parameter for pair in recipe.products for parameter in pair[:1]]
        self.loaded = {
            (parameter.leaf, number): at.place.use.load(graph.nodes[at.place.node])
            for parameter in (*products, *recipe.tables, *recipe.others, *tables)
            for number, at in enumerate(parameter.located)
        }

    def run(
        self,
        targets: Sequence[Target],
        seeds: Tensor,
        active: Sequence[int],
        retain_graph: bool,
        assignment: Assignment,
    ) -> None:
        """One pass for all tasks or one a task; before that, for parameters on the slow path, one a row."""
        if self.recipe.slow:
            self._run_rows(targets, seeds)
        # What is to be differentiated again has to come from autograd.
        trunk = None if torch.is_grad_enabled() or len(active) < 2 else assignment.trunk
        if trunk is None:
            self._run_tasks(targets, seeds, active, retain_graph)
            return
        if not assignment.examine:
            self._run_trunk(trunk, targets, seeds, active, retain_graph)
            return
        self._run_trunk(trunk, targets, seeds, active, retain_graph=True)
        by_trunk, passes = self.deltas, self.passes
        self._run_tasks(targets, seeds, active, retain_graph)
        if _agree(by_trunk, self.deltas):
            self.passes = passes
        else:  # a hook on a tensor in the shared part, for instance, which only autograd knows of
            self.passes -= passes
            assignment.trunk = None

    def _run_tasks(self, targets: Sequence[Target], seeds: Tensor, active: Sequence[int], retain_graph: bool) -> None:
        nodes = self.recipe.nodes
        edges: list[Input] = [GradientEdge(self.graph.nodes[number], 0) for number in nodes]
        deltas: dict[int, list[Tensor | None]] = {number: [None] * self.tasks for number in nodes}
        self.deltas, self.private = {**deltas}, {}
        for task in active:
            leaves = self.plan.private[task]
            inputs = [*edges, *(self.graph.leaf(leaf) for leaf in leaves)]
            if task == active[-1] and not retain_graph:
                found = self._last_pass(targets, task, seeds, inputs)
            else:
                found = self._pass([targets[task]], inputs, [seeds[task]], retain_graph=True)
            for number, delta in zip(nodes, found, strict=False):
                deltas[number][task] = delta
            self._keep_private(task, leaves, found[len(nodes) : len(nodes) + len(leaves)])

    def _run_trunk(
        self, trunk: Trunk, targets: Sequence[Target], seeds: Tensor, active: Sequence[int], retain_graph: bool
    ) -> None:
        leaves = [(task, leaf) for task in active for leaf in self.plan.private[task]]
        edges = [GradientEdge(self.graph.nodes[number], 0) for number in trunk.edges]
        inputs: list[Input] = [*edges, *(self.graph.leaf(leaf) for _, leaf in leaves)]
        entries = trunk.entries(self.graph)
        starts = seeds.unbind()
        found = self._pass([targets[task] for task in active], inputs, [starts[task] for task in active], retain_graph)
        at_edges = dict(zip(trunk.edges, found, strict=False))
        for (task, leaf), grad in zip(leaves, found[len(edges) :], strict=True):
            self._keep_private(task, [leaf], [grad])
        shared = trunk.run(self.graph, entries, at_edges, self.tasks)
        self.deltas = {}
        for number in self.recipe.nodes:
            delta = shared[number][0] if number in shared else None
            if delta is None:
                only = trunk.edges.get(number)
                self.deltas[number] = [at_edges[number] if task == only else None for task in range(self.tasks)]
            else:
                self.deltas[number] = delta

    def _keep_private(self, task: int, leaves: Sequence[int], grads: Sequence[Tensor | None]) -> None:
        for leaf, grad in zip(leaves, grads, strict=True):
            if grad is not None:
                self.private.setdefault(leaf, []).append((task, grad))

    def _last_pass(
        self, targets: Sequence[Target], task: int, seeds: Tensor, inputs: list[Input]
    ) -> Sequence[Tensor | None]:
        """Frees the graph on its way: so it also goes, with nothing, where only other tasks go."""
        others = {id(target.output): target for target in targets if target.output is not targets[task].output}
        nothing = torch.zeros_like(seeds[task])
        slow, _, _ = self._slow_inputs()
        starts = [targets[task], *others.values()]
        return self._pass(starts, [*inputs, *slow], [seeds[task], *[nothing] * len(others)], retain_graph=False)

    def _pass(
        self,
        targets: Sequence[Target],
        inputs: list[Input],
        seeds: Sequence[Tensor],
        retain_graph: bool,
    ) -> Sequence[Tensor | None]:
        if not inputs:
            return []
        self.passes += 1
        values = [target.seed(seed) for target, seed in zip(targets, seeds, strict=True)]
        with without_hooks(inputs):
            # With gradients enabled, what comes out is to be differentiated again.
            return _grad([target.output for target in targets], inputs, values, retain_graph, torch.is_grad_enabled())

    def _slow_inputs(self) -> tuple[list[Input], tuple[int, ...], tuple[int, ...]]:
        """What a pass for a row asks for: cotangents at tables' nodes, gradients of other leaves."""
        slow = self.recipe.slow
        nodes = tuple(dict.fromkeys(at.place.node for s in slow if s.is_table for at in s.parameter.located))
        leaves = tuple(s.parameter.leaf for s in slow if not s.is_table)
        edges: list[Input] = [GradientEdge(self.graph.nodes[number], 0) for number in nodes]
        return [*edges, *(self.graph.leaf(leaf) for leaf in leaves)], nodes, leaves

    def _run_rows(self, targets: Sequence[Target], seeds: Tensor) -> None:
        inputs, nodes, leaves = self._slow_inputs()
        count = self.groups.count * self.tasks
        self.rows = {number: [None] * count for number in (*nodes, *leaves)}
        for group in range(self.groups.count):
            inside = seeds * (self.groups.of_example == group).to(seeds)
            for task, some in enumerate(inside.any(1).tolist()):
                if some:
                    found = self._pass([targets[task]], inputs, [inside[task]], retain_graph=True)
                    for number, grad in zip((*nodes, *leaves), found, strict=True):
                        self.rows[number][group * self.tasks + task] = grad

    def blocks(self) -> Iterator[Block]:
        yield from self._products()
        yield from self._tables([(parameter, self.deltas, self.groups) for parameter in self.recipe.tables])
        for parameter in self.recipe.others:
            yield from self._other(parameter)
        yield from self._tables([(s.parameter, self.rows, Groups(1, 1)) for s in self.recipe.slow if s.is_table])
        for s in self.recipe.slow:
            if not s.is_table:
                yield from self._direct(s.parameter.leaf)

    def _cotangent(self, at: Located) -> Cotangent | None:
        return Cotangent.of(self.deltas[at.place.node], self.groups, at.owner)

    def _viewed(self, parameter: Parameter) -> tuple[Tensor, torch.Size, Chain]:
        place = parameter.located[0].place
        return self.graph.leaf(parameter.leaf), place.shape, self._chain(place)

    def _chain(self, place: Place) -> Chain:
        return [(self.graph.nodes[number], output) for number, output in place.chain]

    def _products(self) -> Iterator[Block]:
        for weight, bias in self.recipe.products:
            uses = []
            for number, at in enumerate(weight.located):
                cotangent = self._cotangent(at)
                if cotangent is not None:
                    assert isinstance(at.place.use, Contraction)
                    uses.append((at.place.use, self.loaded[weight.leaf, number], cotangent))
            if uses:
                yield Products(uses, self._viewed(weight), None if bias is None else self._viewed(bias))

    def _tables(self, parameters: list[tuple[Parameter, Mapping[int, Deltas], Groups]]) -> Iterator[Block]:
        """Tables of one width and kind share a block."""
        kinds: dict[tuple[object, ...], list[tuple[Tensor, bool, list[tuple[Entries, Cotangent]]]]] = {}
        for parameter, deltas, groups in parameters:
            table, uses, sparse = self.graph.leaf(parameter.leaf), [], False
            for number, at in enumerate(parameter.located):
                cotangent = Cotangent.of(deltas[at.place.node], groups, at.owner)
                if cotangent is not None:
                    uses.append((self.loaded[parameter.leaf, number], cotangent))
                    sparse = self.graph.nodes[at.place.node]._saved_sparse  # type: ignore[attr-defined]
            if uses:
                kind = (table.shape[1], table.device, uses[0][1].dtype)
                kinds.setdefault(kind, []).append((table, sparse, uses))
        for tables in kinds.values():
            yield Tables(tables)

    def _other(self, parameter: Parameter) -> Iterator[Block]:
        """Rows as a matrix; of several uses in the parameter's own shape, so that they can be added."""
        leaf, shape, chain = self._viewed(parameter)
        several, total = len(parameter.located) > 1, None
        for number, at in enumerate(parameter.located):
            cotangent = self._cotangent(at)
            if cotangent is None:
                continue
            rows = at.place.use.rows(self.loaded[parameter.leaf, number], cotangent, at.place.shape)
            if several:
                views = self._chain(at.place)
                rows = torch.stack([undo(views, row).to(rows.dtype) for row in rows]) if views else rows
                total = rows if total is None else total + rows
            else:
                total = rows
        if total is not None and several:
            shape, chain = leaf.shape, []
        if total is not None:
            yield Dense(leaf, total.reshape(len(total), -1), shape, chain)

    def _direct(self, leaf: int) -> Iterator[Block]:
        parameter = self.graph.leaf(leaf)
        rows = [None if row is None else row.to_dense() if row.is_sparse else row for row in self.rows[leaf]]
        cotangent = Cotangent.of(rows, Groups(1, 1), Owner(0, 1))
        if cotangent is not None:
            stacked = working(cotangent.stacked).reshape(cotangent.rows, -1)
            yield Dense(parameter, stacked, parameter.shape, [])
