"""Which experts the tasks of a run use: the weights of its gates, over the rows of a table."""

from dataclasses import dataclass

import polars as pl
import torch

from gdod.errors import InputError
from gdod.models import gate_weights
from gdod.training.explain.table_rows import check_inputs, encoded_part
from gdod.training.run import Run

_BATCH = 8192


@dataclass(frozen=True)
class ExpertUse:
    """How much of an expert a branch of a model takes."""

    level: int
    """The number of the model's level, from 1 on."""
    branch: str
    """What takes: a task, or in PLE the branch that all tasks share, in SNR a sub-network of the next level."""
    expert: str
    weight: float
    """The weight of the expert, the mean over the rows."""
    deviation: float
    """The standard deviation of the weight over the rows; 0: all rows are treated alike."""


def check_gates(run: Run) -> None:
    """Raise unless the run's model has gates."""
    if not run.model.gate_places():
        raise InputError(
            f"the model {run.config.model.name} has no gates, so there are no weights of experts; "
            "mmoe, ple, stem, snr and cross-stitch have"
        )


def expert_use(run: Run, frame: pl.DataFrame) -> list[ExpertUse]:
    """Return how much of each expert the tasks use, level by level; gates of mmoe, ple and stem add up to one.

    Args:
        run: a trained model with gates: mmoe, ple, stem, snr or cross-stitch.
        frame: rows, with labels or without.
    """
    check_gates(run)
    check_inputs(run, frame)
    batches = [batch.batch.to(run.device) for batch in encoded_part(run, frame).batches(_BATCH)]
    use = []
    for several in zip(*(gate_weights(run.model, batch) for batch in batches), strict=True):
        level, branch, experts, _ = several[0]
        weights = torch.cat([one.weights for one in several]).double()  # [n, E]
        spread, means = torch.std_mean(weights, 0, correction=0)
        listed = zip(experts, means.tolist(), spread.tolist(), strict=True)
        use += [ExpertUse(level, branch, expert, mean, deviation) for expert, mean, deviation in listed]
    return use
