"""What a step is given, read alone or in agreement with other ranks."""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from gdod._backward.losses import Tasks, Totals
from gdod.errors import InputError
from gdod.methods import Method
from gdod.ranks import Exchange, ProcessGroup, exchange_over, is_distributed
from gdod.ranks.exchange import as_bits, from_bits
from gdod.rows import LocalLosses, OneProcess, Processes
from gdod.rows.distributed import SeveralProcesses
from gdod.rows.distributed.rank_parameters import structure
from gdod.rows.graph import walk
from gdod.rows.parts import digest

Read = Callable[[bool], tuple[Tasks, list[Tensor] | None]]
"""Reads this process's losses and the parameters named as shared; the argument: whether there may be no example."""
_STEPS: WeakKeyDictionary[Method, int] = WeakKeyDictionary()


@dataclass(frozen=True)
class Inputs:
    """What a step is given, and the process or processes that have a part of it."""

    tasks: Tasks  # with what all processes counted together
    shared: list[Tensor] | None
    processes: Processes

    def local(self) -> LocalLosses:
        """Return the losses of this process as backward passes start from them."""
        tasks = self.tasks
        return LocalLosses(tasks.targets, tasks.seeds(), tasks.active(), tasks.labelled, self.shared)


def read_inputs(process_group: ProcessGroup | str | None, method: Method, read: Read, diagnose: bool) -> Inputs:
    """Read the losses, and make sure that other ranks, if there are any, are about to do the same."""
    exchange = exchange_over(process_group)
    if isinstance(exchange, Exchange):
        return agree_on_inputs(exchange, method, read, diagnose)
    return Inputs(*read(False), _QUIET if is_distributed() else _ALONE)


_ALONE, _QUIET = OneProcess(quiet=False), OneProcess(quiet=True)


def agree_on_inputs(exchange: Exchange, method: Method, read: Read, diagnose: bool) -> Inputs:
    """Read this rank's losses, and make sure that the others are about to do the same."""

    def work() -> tuple[tuple[Tasks, list[Tensor] | None, str], list[int]]:
        tasks, parameters = read(True)
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
    return Inputs(replace(tasks, totals=totals), parameters, SeveralProcesses(exchange, sizes, masked, alike))


def _about(tasks: Tasks, method: Method, parameters: list[Tensor] | None, diagnose: bool) -> str:
    """Return what has to be the same on all ranks, for people to read."""
    names = ", ".join(map(repr, tasks.names))
    weights = "" if tasks.weights is None else f", task_weights {tasks.weights.tolist()}"
    shared = "" if parameters is None else f", {len(parameters)} parameters in shared="
    scale = "" if tasks.scale is None else f", a gradient scaler at {tasks.scale}"
    how = re.sub(r" at 0x[0-9a-f]+", "", repr(method))
    more = f"{shared}{scale}{', diagnose' if diagnose else ''}"
    return f"tasks {names}{weights}, losses of {tasks.values.dtype}, {how}{more}"


def _check(exchange: Exchange, method: Method, about: str, told: list[list[int]]) -> None:
    if len({numbers[0] for numbers in told}) > 1:
        _, texts = exchange.agree(lambda: (None, list(about.encode())))
        calls = "; ".join(f"rank {rank} has {bytes(text).decode()}" for rank, text in enumerate(texts))
        raise InputError(f"ranks do not call gdod.backward alike: {calls}; pass the same on every rank")
    states = {numbers[1] for numbers in told}
    if len(states) > 1 and 0 not in states:
        raise InputError(
            f"the random numbers of {method!r} are not the same on all ranks; give it the same seed= everywhere, and "
            "load the same state into it"
        )


def _random_state(method: Method) -> int:
    """Return a digest of the method's random generators; 0 where it has none or was looked at not long ago.

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


def checked_parameters(shared: Iterable[Tensor]) -> list[Tensor]:
    """Return the parameters named as shared, or refuse what cannot be used."""
    if isinstance(shared, Tensor) or not isinstance(shared, Iterable):
        raise InputError(f"shared is a {type(shared).__name__}; expected an iterable of parameters")
    parameters = list(shared)
    for number, parameter in enumerate(parameters):
        if not isinstance(parameter, Tensor):
            raise InputError(
                f"shared holds a {type(parameter).__name__} at place {number}; expected parameters, "
                "e.g. module.parameters()"
            )
        if not parameter.is_leaf or not parameter.requires_grad:
            what = "is computed from others" if not parameter.is_leaf else "has requires_grad=False"
            raise InputError(f"the tensor at place {number} of shared {what}; expected parameters that take a gradient")
    if not parameters:
        raise InputError("shared is empty; pass at least one parameter, or None to find them")
    return parameters
