"""In which layers of a run's model the tasks conflict: cosines of their gradients, and what GDOD would keep of them."""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import combinations, islice
from math import isfinite

import polars as pl
import torch
from torch import Tensor, nn

from gdod._backward import Info, backward
from gdod._checks import check_positive, check_whole
from gdod.data.parts.part import Minibatch
from gdod.errors import InputError
from gdod.methods import GDOD
from gdod.models import Model
from gdod.statistics import paired_difference
from gdod.training.explain.table_rows import check_inputs, check_labels, encoded_part
from gdod.training.minibatch_losses import minibatch_losses
from gdod.training.positive_weights import with_positive_weights
from gdod.training.run import Run

BATCHES = 20
ALL_SHARED = "all shared"
"""What the parameters of all shared layers together are called."""


@dataclass(frozen=True)
class Conflict:
    """How the gradients of two tasks stand to each other in one layer, as means over batches."""

    layer: str
    """The name of the module whose parameters these are, or "all shared"."""
    parameters: int
    """The number of its parameters."""
    task: str
    other: str
    cosine: float
    """The cosine between the tasks' gradients: below 0 they conflict."""
    low: float
    high: float
    """The interval of that mean, with 95 % confidence; of one batch alone, the cosine itself."""
    energy_kept: float
    """The share of the squared lengths of all tasks' gradients in this layer that GDOD would keep."""
    directions_kept: float
    """The share of the directions in this layer on which all tasks agree."""
    batches: int
    """The number of batches in which both tasks have a gradient there."""


def check_conflict(run: Run) -> None:
    """Raise unless the run has several tasks that share parameters."""
    if len(run.tasks) < 2:
        raise InputError(f"the run has one task, {run.tasks[0].name!r}, so no two tasks can conflict")
    if not run.model.shared_parameters():
        raise InputError(f"the tasks of the model {run.config.model.name} share no parameters, so they cannot conflict")


def layers_of(model: Model) -> dict[str, list[nn.Parameter]]:
    """Return the shared parameters by the name of the module that holds them."""
    shared = {id(parameter) for parameter in model.shared_parameters()}
    layers: dict[str, list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if id(parameter) in shared:
            layers.setdefault(name.rpartition(".")[0] or name, []).append(parameter)
    return layers


def layer_conflict(
    run: Run,
    frame: pl.DataFrame,
    *,
    batches: int = BATCHES,
    seed: int = 0,
    told: Callable[[str], object] = lambda name: None,
) -> list[Conflict]:
    """Return how the gradients of each two tasks stand to each other in each shared layer, and in all of them.

    Gradients are those of training at the run's weights: the same losses, weights of tasks and size of batches, with
    dropout. The run's model is not touched. What would be kept is that of `GDOD` with its usual 16 groups, for each
    layer as if it alone were shared.

    Args:
        run: a trained model of several tasks.
        frame: rows with labels, those of training for the conflict in training; a task without labels is left out.
        batches: how many batches of rows at most; each row is in one batch.
        seed: the seed of the order of rows and of dropout.
        told: called with the number of each batch before it is used, as text.
    """
    check_positive("batches", batches)
    check_whole("seed", seed, 0)
    check_conflict(run)
    check_inputs(run, frame)
    check_labels(run, frame, least=2)
    part = encoded_part(run, frame)
    size = min(run.config.batch, len(part))
    count = min(batches, len(part) // size)
    model = copy.deepcopy(run.model).train()  # whose gradients and buffers are its own
    every = layers_of(model)
    layers = {ALL_SHARED: model.shared_parameters(), **every} if len(every) > 1 else every
    measured: dict[str, list[Info]] = {name: [] for name in layers}
    with torch.random.fork_rng(devices=[run.device] if run.device.type == "cuda" else []):
        torch.manual_seed(seed)
        for number, minibatch in enumerate(islice(part.batches(size, seed=seed), count), 1):
            told(f"{number} of {count}")
            for name, info in _infos(run, model, minibatch, layers).items():
                measured[name].append(info)
    found = [one for name, infos in measured.items() for one in _summaries(name, layers[name], infos)]
    if not found:
        raise InputError("no two tasks have a label in the same batch of these rows; expected rows with several labels")
    return found


def _infos(run: Run, model: Model, minibatch: Minibatch, layers: Mapping[str, list[nn.Parameter]]) -> dict[str, Info]:
    """Return what GDOD finds in one batch, for each layer as if it alone were shared."""
    config = run.config
    losses, mask = minibatch_losses(model, minibatch, run.device, weighted=config.sample_weights)
    if config.positive_weights:
        losses = with_positive_weights(losses, minibatch.labels, config.positive_weights)
    weights = None if config.task_weights is None else {name: config.task_weights.get(name, 1.0) for name in losses}
    infos = {}
    for name, parameters in layers.items():
        infos[name] = backward(
            losses, GDOD(), shared=parameters, mask=mask, task_weights=weights, retain_graph=True, process_group=None
        )
        model.zero_grad()
    return infos


def _summaries(layer: str, parameters: list[nn.Parameter], infos: list[Info]) -> list[Conflict]:
    count = sum(one.numel() for one in parameters)
    energy, directions = (_mean([getattr(info, name) for info in infos]) for name in ("energy_kept", "directions_kept"))
    summaries = []
    for (row, task), (column, other) in combinations(enumerate(infos[0].tasks), 2):
        cosines = {at: _cosine(info, row, column) for at, info in enumerate(infos)}
        mean = paired_difference(cosines, dict.fromkeys(cosines, 0.0))
        if mean.mean is None:
            continue
        low, high = mean.mean if mean.low is None else mean.low, mean.mean if mean.high is None else mean.high
        summaries.append(
            Conflict(layer, count, task, other, mean.mean, max(low, -1.0), min(high, 1.0), energy, directions, mean.n)
        )
    return summaries


def _cosine(info: Info, row: int, column: int) -> float | None:
    """Return a cosine; None if one of the tasks has no gradient, for example since its labels are missing."""
    lengths: Tensor = info.norms[row] * info.norms[column]
    return float(info.cosines[row, column]) if float(lengths) > 0 else None


def _mean(values: list[float]) -> float:
    known = [value for value in values if isfinite(value)]
    return sum(known) / len(known) if known else 1.0  # no gradient at all: nothing is taken away
