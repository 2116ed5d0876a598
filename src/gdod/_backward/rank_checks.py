"""What ranks must have in common before a step: tasks, method, options; and what they count together."""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from gdod._backward.losses import Tasks, Totals
from gdod.errors import InputError
from gdod.methods import Method
from gdod.rows.distributed import Across, Exchange
from gdod.rows.distributed.exchange import as_bits, digest, from_bits
from gdod.rows.distributed.rank_parameters import structure
from gdod.rows.graph import walk

Read = Callable[[], tuple[Tasks, list[Tensor] | None]]
_STEPS: WeakKeyDictionary[Method, int] = WeakKeyDictionary()


def meet(exchange: Exchange, method: Method, read: Read, diagnose: bool) -> tuple[Tasks, list[Tensor] | None, Across]:
    """Reads this rank's losses and makes sure that the others are about to do the same.

    Returns the tasks with what all ranks counted together.
    """

    def work() -> tuple[tuple[Tasks, list[Tensor] | None, str], list[int]]:
        tasks, parameters = read()
        about = _about(tasks, method, parameters, diagnose)
        labelled = (
            [tasks.values.shape[1]] * len(tasks.names) if tasks.labelled is None else tasks.labelled.sum(1).tolist()
        )
        values = tasks.values if tasks.labelled is None else torch.where(tasks.labelled, tasks.values, 0.0)
        sums = as_bits(values.double().sum(1).tolist())
        graph = structure(walk([target.node for target in tasks.targets]))
        head = [digest(about), _random_state(method), tasks.values.shape[1], int(tasks.labelled is not None), graph]
        return (tasks, parameters, about), [*head, *labelled, *sums]

    (tasks, parameters, about), told = exchange.agree(work)
    _check(exchange, method, about, told)
    sizes = tuple(numbers[2] for numbers in told)
    if not sum(sizes):
        raise InputError("no rank has an example; expected at least one loss on one of them")
    count = len(tasks.names)
    counts = torch.tensor([numbers[5 : 5 + count] for numbers in told]).sum(0)  # [K]
    sums = torch.tensor([from_bits(numbers[5 + count :]) for numbers in told], dtype=torch.float64).sum(0)
    totals = Totals(sum(sizes), counts, torch.where(counts > 0, sums / counts, torch.nan))
    masked, alike = any(numbers[3] for numbers in told), len({numbers[4] for numbers in told}) == 1
    return replace(tasks, totals=totals), parameters, Across(exchange, sizes, masked, alike)


def _about(tasks: Tasks, method: Method, parameters: list[Tensor] | None, diagnose: bool) -> str:
    """What has to be the same on all ranks, for people to read."""
    names = ", ".join(map(repr, tasks.names))
    weights = "" if tasks.weights is None else f", task_weights {tasks.weights.tolist()}"
    shared = "" if parameters is None else f", {len(parameters)} parameters in shared="
    scale = "" if tasks.scale is None else f", a gradient scaler at {tasks.scale}"
    how = re.sub(r" at 0x[0-9a-f]+", "", repr(method))
    more = f"{shared}{scale}{', diagnose' if diagnose else ''}"
    return f"tasks {names}{weights}, losses of {tasks.values.dtype}, {how}{more}"


def _check(exchange: Exchange, method: Method, about: str, told: list[list[int]]) -> None:
    if len({numbers[0] for numbers in told}) > 1:
        texts = exchange.tell(about)
        found = "; ".join(f"rank {rank} has {text}" for rank, text in enumerate(texts))
        raise InputError(f"ranks do not call gdod.backward alike: {found}; pass the same on every rank")
    states = {numbers[1] for numbers in told}
    if len(states) > 1 and 0 not in states:
        raise InputError(
            f"the random numbers of {method!r} are not the same on all ranks; give it the same seed= everywhere, and "
            "load the same state into it"
        )


def _random_state(method: Method) -> int:
    """A digest of the method's random generators; 0 where it has none or was looked at not long ago.

    They move in step as long as they start alike, so it is enough to look after 1, 2, 4, 8, ... steps.
    """
    if type(method).__hash__ is not None:
        steps = _STEPS[method] = _STEPS.get(method, 0) + 1
        if steps & (steps - 1):
            return 0
    states = [state.tolist() for state in _bytes_in(method.state_dict())]
    return digest(str(states)) or 1 if states else 0


def _bytes_in(state: Any) -> Iterator[Tensor]:
    if isinstance(state, Tensor) and state.dtype == torch.uint8:
        yield state
    elif isinstance(state, dict):
        for value in state.values():
            yield from _bytes_in(value)
