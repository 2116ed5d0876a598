"""What models of a chain of tasks have in common: a step of it, say a purchase, needs the one before, say a click."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from gdod._checks import check_choice
from gdod.errors import InputError
from gdod.models.config import Config
from gdod.models.model import Model
from gdod.schema import Schema, Task


@dataclass(frozen=True, kw_only=True)
class ChainConfig(Config):
    """The sizes and options of models of a chain."""

    chain: tuple[str, ...] = ()
    """The names of the tasks that are steps of the chain, in the order in which they happen. None: all tasks, in
    their order."""
    bottom: tuple[int, ...] = ()
    """The sizes of the layers that all tasks share below their towers; the papers have none."""
    tower: tuple[int, ...] = (256, 32)
    """The sizes of the hidden layers of each task's tower; its output layer comes on top."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._sizes("bottom")
        names = self.chain
        if isinstance(names, str) or not isinstance(names, Iterable) or not all(isinstance(one, str) for one in names):
            raise InputError(f"chain={names!r}; expected the names of tasks, e.g. [click, buy]")
        object.__setattr__(self, "chain", tuple(names))


class ChainModel(Model):
    """A model of which some tasks, or all, are steps of a chain.

    Labels of all steps are over all rows: where a step did not happen, those after it are 0.
    """

    def __init__(self, schema: Schema, tasks: Iterable[Task], config: ChainConfig) -> None:
        super().__init__(schema, tasks, config)
        self.chain = find_chain(self.tasks, config.chain)

    def check_labels(self, labels: Mapping[str, Tensor]) -> None:
        """Raise if a step happened without the one before, or is known only where the one before happened."""
        for before, after in pairwise(self.chain):
            first, second = labels[before], labels[after]  # [n] each
            wrong = int((second > first).sum())
            if wrong:
                raise InputError(
                    f"{wrong:,} of {len(first):,} rows have {after!r} without {before!r}, which comes before it in the "
                    f"chain {', '.join(self.chain)}; correct the labels or the order (chain=[...]), or take a model "
                    "without a chain, e.g. shared-bottom"
                )
            not_before = first == 0
            if bool(not_before.any()) and bool(second[not_before].isnan().all()):
                raise InputError(
                    f"{after!r} has a label only where {before!r} is 1, and a chain learns every step over all rows; "
                    f"leave out `when: {before}` in the schema, if it is there, so that {after!r} is 0 where "
                    f"{before!r} is, or take a model without a chain, e.g. shared-bottom"
                )

    def _is_followed(self, number: int) -> bool:
        """Return whether a task is a step of the chain that another comes after."""
        return self.tasks[number].name in self.chain[:-1]


def find_chain(tasks: tuple[Task, ...], names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of the steps, in order; raise if these tasks cannot be a chain."""
    by_name = {task.name: task for task in tasks}
    chain = names or tuple(by_name)
    for name in chain:
        check_choice("a task of chain", name, by_name)
        if chain.count(name) > 1:
            raise InputError(f"chain={list(chain)} names {name!r} more than once; expected each step once")
        if by_name[name].kind != "binary":
            raise InputError(
                f"task {name!r} of the chain {', '.join(chain)} is of kind {by_name[name].kind}, and steps of a chain "
                "are binary; name those that are, in the order in which they happen: chain=[click, buy], say"
            )
    if len(chain) < 2:
        raise InputError(
            f"the chain has one task, {chain[0]!r}; expected at least two, e.g. click and buy; a single task needs no "
            "chain: take shared-bottom"
        )
    return chain


def logit_of_product(first: Tensor, second: Tensor) -> Tensor:
    """Return the logit of σ(a) σ(b), for logits a and b of the same shape.

    With 1 / σ(a) = 1 + e^-a it is

        -log(1 / (σ(a) σ(b)) - 1) = -log(e^-a / σ(b) + e^-b),

    which needs no probability and is as exact where one would round to 0 or 1; nothing is cut off, so that every
    example has a gradient.
    """
    return -torch.logaddexp(-first - logsigmoid(second), -second)
