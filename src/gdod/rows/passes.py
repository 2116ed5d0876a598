"""Backward passes: an ordinary one over the whole graph, or those whose cotangents become the rows of blocks.

The latter is one pass for all tasks, or one a task, and one for each row of parameters on the slow path.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, _engine_run_backward

from gdod.errors import InputError
from gdod.rows.blocks import Block, Chain, Dense, row_matrix
from gdod.rows.computed import Computed, stacked_rows
from gdod.rows.cotangent import Cotangent, Deltas
from gdod.rows.fully_sharded import kept_whole
from gdod.rows.graph import Graph, walk
from gdod.rows.groups import WHOLE, Groups
from gdod.rows.lookup import Entries, Tables
from gdod.rows.plan import Assignment, Place, Plan, Shared
from gdod.rows.products import Products
from gdod.rows.recipe import Recipe
from gdod.rows.targets import Target
from gdod.rows.trunk import Trunk
from gdod.rows.uses import Contraction
from gdod.rows.views import undo

Input = Tensor | GradientEdge


def differentiate(targets: Sequence[Target], seeds: Tensor, retain_graph: bool, penalty: Tensor | None = None) -> None:
    """Run an ordinary backward pass, into `.grad`, of the losses times their seeds [K, B] (plus a penalty)."""
    outputs: list[Input] = [target.output for target in targets]
    values = [target.seed(seed) for target, seed in zip(targets, seeds, strict=True)]
    if penalty is not None:
        outputs, values = [*outputs, penalty], [*values, torch.ones_like(penalty)]
    _run(outputs, values, (), retain_graph=retain_graph, accumulate=True)


def gradients(
    targets: Sequence[Target], seeds: Tensor, retain_graph: bool, further: tuple[Tensor, Tensor] | None = None
) -> list[tuple[Tensor, Tensor]]:
    """Return all parameters with their gradients of the losses times their seeds [K, B].

    Nothing is written to `.grad`, and no hook is called. ``further`` is a tensor that is to be differentiated along
    with the losses, and its cotangent.
    """
    graph = walk([target.node for target in targets])
    leaves = [graph.leaf(leaf) for leaf in graph.leaves()]
    grads = derivatives(targets, seeds, leaves, retain_graph, further)
    return [(leaf, grad) for leaf, grad in zip(leaves, grads, strict=True) if grad is not None]


def derivatives(
    targets: Sequence[Target],
    seeds: Tensor,
    leaves: Sequence[Tensor],
    retain_graph: bool,
    further: tuple[Tensor, Tensor] | None = None,
) -> Sequence[Tensor | None]:
    """Return the gradients of the losses times their seeds as `gradients` does, for these leaves."""
    outputs: list[Input] = [target.output for target in targets]
    values = [target.seed(seed) for target, seed in zip(targets, seeds, strict=True)]
    if further is not None and further[0].requires_grad:
        outputs, values = [*outputs, further[0]], [*values, further[1]]
    with without_hooks(leaves), kept_whole(leaves):
        return grad(outputs, leaves, values, retain_graph)


def grad(
    outputs: Sequence[Tensor | GradientEdge],
    inputs: Sequence[Input],
    seeds: Sequence[Tensor],
    retain_graph: bool,
    create_graph: bool = False,
) -> Sequence[Tensor | None]:
    """Call `torch.autograd.grad`, with None for inputs that are not reached and a clear error for compiled models."""
    try:
        return _run(outputs, seeds, inputs, retain_graph, create_graph)
    except RuntimeError as error:
        if "donated buffer" not in str(error):
            raise
        raise InputError(
            "the compiled model allows a single backward pass, and more are needed; put "
            "`import torch._functorch.config` and `torch._functorch.config.donated_buffer = False` before its first "
            "call, or leave it uncompiled"
        ) from error


def _run(
    outputs: Sequence[Input],
    seeds: Sequence[Tensor],
    inputs: Sequence[Input],
    retain_graph: bool,
    create_graph: bool = False,
    accumulate: bool = False,
) -> Sequence[Tensor | None]:
    """Run a backward pass: what `torch.autograd.grad` and, with ``accumulate``, `backward` call after their checks.

    Those checks take longer than anything else that a step with the plain sum adds to a hand-written one.
    """
    return _engine_run_backward(
        tuple(outputs), tuple(seeds), retain_graph, create_graph, tuple(inputs), True, accumulate_grad=accumulate
    )


@contextmanager
def without_hooks(inputs: Sequence[Input]) -> Iterator[None]:
    """Take the hooks off parameters: they are to see the whole gradient once, when it is accumulated."""
    hooked = [(x, x._backward_hooks) for x in inputs if isinstance(x, Tensor) and x._backward_hooks]
    for parameter, _ in hooked:
        parameter._backward_hooks = None
    try:
        yield
    finally:
        for parameter, hooks in hooked:
            parameter._backward_hooks = hooks


def _agree(some: dict[int, Deltas], others: dict[int, Deltas]) -> bool:
    """Return whether cotangents that were computed in two ways are the same but for rounding."""
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


class Passes:
    """The backward passes over one graph, and what comes out of them."""

    def __init__(self, graph: Graph, plan: Plan, recipe: Recipe, groups: Groups) -> None:
        self.graph, self.plan, self.recipe, self.groups = graph, plan, recipe, groups
        self.tasks = len(plan.private)
        self.deltas: dict[int, Deltas] = {}
        self.rows: dict[int, list[Tensor | None]] = {}
        self.private: dict[int, list[tuple[int, Tensor]]] = {}
        self.count = 0
        # What nodes saved is read now: the last pass may free it.
        tables = [parameter for parameter in recipe.slow if parameter.is_table]
        products = [weight for weight, _ in recipe.products]
        self.loaded = {
            (parameter.leaf, number): place.use.load(graph.nodes[place.node])
            for parameter in (*products, *recipe.tables, *recipe.others, *tables)
            for number, place in enumerate(parameter.places)
        }
        self.loaded_computed = [place.use.load(graph.nodes[place.node]) for place in recipe.computed.places]

    def run(
        self,
        targets: Sequence[Target],
        seeds: Tensor,
        active: Sequence[int],
        retain_graph: bool,
        assignment: Assignment,
    ) -> None:
        """Run one pass for all tasks or one a task; before that, for parameters on the slow path, one a row."""
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
        deltas, private, count = self.deltas, self.private, self.count
        self._run_tasks(targets, seeds, active, retain_graph)
        if _agree(deltas, self.deltas):
            # Autograd rounds in another way: which steps are examined, such as those after resuming, must not show.
            self.deltas, self.private, self.count = deltas, private, count
        else:  # a hook on a tensor in the shared part, for instance, which only autograd knows of
            self.count -= count
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
                grads = self._last_pass(targets, task, seeds, inputs)
            else:
                grads = self._pass([targets[task]], inputs, [seeds[task]], retain_graph=True)
            for number, delta in zip(nodes, grads, strict=False):
                deltas[number][task] = delta
            self._keep_private(task, leaves, grads[len(nodes) : len(nodes) + len(leaves)])

    def _run_trunk(
        self, trunk: Trunk, targets: Sequence[Target], seeds: Tensor, active: Sequence[int], retain_graph: bool
    ) -> None:
        leaves = [(task, leaf) for task in active for leaf in self.plan.private[task]]
        edges = [GradientEdge(self.graph.nodes[number], 0) for number in trunk.edges]
        inputs: list[Input] = [*edges, *(self.graph.leaf(leaf) for _, leaf in leaves)]
        entries = trunk.entries(self.graph)
        starts = seeds.unbind()
        grads = self._pass([targets[task] for task in active], inputs, [starts[task] for task in active], retain_graph)
        at_edges = dict(zip(trunk.edges, grads, strict=False))
        for (task, leaf), grad in zip(leaves, grads[len(edges) :], strict=True):
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
        """Run the pass of a task that frees the graph: so it also goes, with zeros, where only other tasks go."""
        others = {id(target.output): target for target in targets if target.output is not targets[task].output}
        starts, values = [targets[task], *others.values()], [seeds[task]]
        values += [torch.zeros_like(seeds[task])] * len(others)
        return self._pass(starts, [*inputs, *self._slow_inputs()[0]], values, retain_graph=False)

    def _pass(
        self, targets: Sequence[Target], inputs: list[Input], seeds: Sequence[Tensor], retain_graph: bool
    ) -> Sequence[Tensor | None]:
        if not inputs:
            return []
        self.count += 1
        values = [target.seed(seed) for target, seed in zip(targets, seeds, strict=True)]
        with without_hooks(inputs):
            # With gradients enabled, what comes out is to be differentiated again.
            return grad([target.output for target in targets], inputs, values, retain_graph, torch.is_grad_enabled())

    def _slow_inputs(self) -> tuple[list[Input], tuple[int, ...], tuple[int, ...]]:
        """Return what a pass for a row asks for: cotangents at tables' nodes, gradients of other leaves."""
        slow = self.recipe.slow
        nodes = tuple(dict.fromkeys(place.node for p in slow if p.is_table for place in p.places))
        leaves = tuple(p.leaf for p in slow if not p.is_table)
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
                    grads = self._pass([targets[task]], inputs, [inside[task]], retain_graph=True)
                    for number, grad in zip((*nodes, *leaves), grads, strict=True):
                        self.rows[number][group * self.tasks + task] = grad

    def blocks(self) -> Iterator[Block]:
        """Yield the rows of all shared parameters."""
        yield from self._products()
        yield from self._tables(self.recipe.tables, self.deltas, self.groups)
        for parameter in self.recipe.others:
            yield from self._other(parameter)
        if self.recipe.computed.leaves:
            yield from self._computed(self.recipe.computed)
        yield from self._tables([p for p in self.recipe.slow if p.is_table], self.rows, Groups(1, 1))
        for parameter in self.recipe.slow:
            if not parameter.is_table:
                yield from self._direct(parameter.leaf)

    def _reached(
        self, parameter: Shared, deltas: Mapping[int, Deltas], groups: Groups
    ) -> list[tuple[Place, Any, Cotangent]]:
        """Return the places that tasks reach, each with what its node saved and the cotangent there."""
        cotangents = [Cotangent.of(deltas[place.node], groups, place.owner) for place in parameter.places]
        return [
            (place, self.loaded[parameter.leaf, number], cotangent)
            for number, (place, cotangent) in enumerate(zip(parameter.places, cotangents, strict=True))
            if cotangent is not None
        ]

    def _viewed(self, parameter: Shared) -> tuple[Tensor, torch.Size, Chain]:
        place = parameter.places[0]
        return self.graph.leaf(parameter.leaf), place.shape, self._chain(place)

    def _chain(self, place: Place) -> Chain:
        return [(self.graph.nodes[number], output) for number, output in place.chain]

    def _products(self) -> Iterator[Block]:
        for weight, bias in self.recipe.products:
            reached = self._reached(weight, self.deltas, self.groups)
            if reached:
                uses = [(cast(Contraction, place.use), x, cotangent) for place, x, cotangent in reached]
                yield Products(uses, self._viewed(weight), None if bias is None else self._viewed(bias))

    def _tables(self, parameters: Sequence[Shared], deltas: Mapping[int, Deltas], groups: Groups) -> Iterator[Block]:
        """Yield the rows of tables, a block for all of one width and kind."""
        kinds: dict[tuple[object, ...], list[tuple[Tensor, bool, list[tuple[Entries, Cotangent]]]]] = {}
        for parameter in parameters:
            reached = self._reached(parameter, deltas, groups)
            if reached:
                table, last = self.graph.leaf(parameter.leaf), self.graph.nodes[reached[-1][0].node]
                kind = (table.shape[1], table.device, reached[0][2].dtype)
                uses = [(entries, cotangent) for _, entries, cotangent in reached]
                kinds.setdefault(kind, []).append((table, last._saved_sparse, uses))  # type: ignore[attr-defined]
        for tables in kinds.values():
            yield Tables(tables)

    def _other(self, parameter: Shared) -> Iterator[Block]:
        """Yield the rows as a matrix; of several uses in the parameter's own shape, so that they can be added."""
        leaf, shape, chain = self._viewed(parameter)
        parts = []
        for place, loaded, cotangent in self._reached(parameter, self.deltas, self.groups):
            rows = place.use.rows(loaded, cotangent, place.shape)
            if len(parameter.places) > 1:
                views, shape, chain = self._chain(place), leaf.shape, []
                rows = torch.stack([undo(views, row).to(rows.dtype) for row in rows]) if views else rows
            parts.append(rows)
        if parts:
            total = reduce(torch.add, parts)
            yield Dense(leaf, total.reshape(len(total), -1), shape, chain)

    def _computed(self, computed: Computed) -> Iterator[Block]:
        """Yield the rows of parameters that weights are computed from: the weights' rows, each through their nodes."""
        weights, groups = [], []
        for weight, place, loaded in zip(
            computed.outputs(self.graph), computed.places, self.loaded_computed, strict=True
        ):
            cotangent = Cotangent.of(self.deltas[place.node], self.groups, place.owner)
            if cotangent is not None:
                weights.append(weight)
                groups.append(place.use.rows_by_group(loaded, cotangent, place.shape))
        if not groups:
            return
        leaves = [self.graph.leaf(leaf) for leaf in computed.leaves]
        with without_hooks(leaves):
            grads = [
                grad(weights, leaves, row, True, torch.is_grad_enabled())
                for rows in zip(*groups, strict=True)
                for row in zip(*rows, strict=True)
            ]
        for leaf, own in zip(leaves, stacked_rows(grads, leaves), strict=True):
            if own is not None:
                yield Dense(leaf, row_matrix(own), leaf.shape, [])

    def _direct(self, leaf: int) -> Iterator[Block]:
        """Yield the rows that came from a pass each."""
        parameter = self.graph.leaf(leaf)
        rows = [None if row is None else row.to_dense() if row.is_sparse else row for row in self.rows[leaf]]
        cotangent = Cotangent.of(rows, Groups(1, 1), WHOLE)
        if cotangent is not None:
            yield Dense(parameter, row_matrix(cotangent.stacked), parameter.shape, [])
