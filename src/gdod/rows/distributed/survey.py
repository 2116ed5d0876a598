"""What the graph of a step tells beside the rows, in numbers of parameters that are the same on all ranks."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gdod.errors import InputError
from gdod.rows.collect import check_among
from gdod.rows.distributed.rank_parameters import lookups, ordered_leaves, refuse_sharded
from gdod.rows.fully_sharded import kept_whole
from gdod.rows.graph import walk
from gdod.rows.parts import digest
from gdod.rows.plan import plan_for
from gdod.rows.processes import LocalLosses


@dataclass
class Survey:
    """Parameters by their numbers, which are the same on all ranks."""

    leaves: list[Tensor]
    shared: list[int]
    tables: list[int]  # among the shared ones
    private: list[int]  # other parameters that a task with labels reaches
    ids: dict[int, Tensor]  # looked up in private tables on this rank, each once
    sparse: dict[int, bool]  # of all tables: whether the gradient is to be
    last_layer: list[int]

    def check(self, other: "Survey") -> None:
        """Refuse a micro-batch of another model."""
        if set(map(id, self.leaves)) != set(map(id, other.leaves)):
            raise InputError(
                f"the losses of this micro-batch reach {len(other.leaves)} parameters, and those of the first one "
                f"{len(self.leaves)}, or others; every micro-batch of an update needs the same model and losses"
            )

    def add(self, other: "Survey") -> None:
        """Add what another micro-batch looks up and reaches."""
        at = {id(leaf): number for number, leaf in enumerate(self.leaves)}
        names = [at[id(leaf)] for leaf in other.leaves]
        self.private = sorted({*self.private, *(names[number] for number in other.private)})
        for number, ids in other.ids.items():
            before = self.ids.get(names[number], ids)
            self.ids[names[number]] = torch.cat([before, ids]).unique()


def survey(losses: LocalLosses, examples: int, alike: bool) -> Survey:
    """Return what the graph tells, which has to be asked before it is freed.

    ``alike``: whether the graphs of all ranks have the same structure.
    """
    graph = walk([target.node for target in losses.targets])
    refuse_sharded(graph)
    shared = losses.shared
    plan = plan_for(graph, examples, None if shared is None else frozenset(map(id, shared)))
    if shared is not None:
        check_among({id(graph.leaf(parameter.leaf)) for parameter in plan.shared}, shared)
    with kept_whole(map(graph.leaf, graph.leaves())):  # on all ranks, also those without examples
        order = ordered_leaves(graph, alike)
    at = {leaf: number for number, leaf in enumerate(order)}
    tables = lookups(graph, list(at))
    private = sorted({at[leaf] for task in losses.active for leaf in plan.private[task]})
    return Survey(
        leaves=[graph.leaf(leaf) for leaf in at],
        shared=sorted(at[parameter.leaf] for parameter in plan.shared),
        tables=sorted(at[parameter.leaf] for parameter in plan.shared if parameter.is_table),
        private=private,
        ids={number: tables[number].ids().unique() for number in private if number in tables},
        sparse={number: table.sparse for number, table in tables.items()},
        last_layer=[at[leaf] for leaf in plan.last_layer],
    )


def digest_of(leaves: Sequence[Tensor]) -> int:
    """Return a number for the shapes and types of parameters, the same in every process."""
    return digest(str([(tuple(leaf.shape), str(leaf.dtype)) for leaf in leaves]))
