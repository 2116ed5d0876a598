"""All that can be told of a run by the rows of a table, part by part."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import polars as pl

from gdod._checks import check_choice
from gdod.errors import InputError
from gdod.training.explain.columns import REPEATS, Importance, importance
from gdod.training.explain.experts import ExpertUse, check_gates, expert_use
from gdod.training.explain.layers import BATCHES, Conflict, check_conflict, layer_conflict
from gdod.training.explain.table_rows import check_inputs, check_labels
from gdod.training.run import Run

Entries = Sequence[Importance] | Sequence[ExpertUse] | Sequence[Conflict]
PARTS = ("importance", "experts", "conflict")


@dataclass(frozen=True)
class Settings:
    """How a run is explained."""

    repeats: int = REPEATS
    """How often each column is shuffled."""
    batches: int = BATCHES
    """Of how many batches gradients are compared, at most."""
    seed: int = 0
    """The seed of shuffles and batches."""


def tellable(run: Run, frame: pl.DataFrame, only: Sequence[str] = ()) -> tuple[list[str], list[str]]:
    """Return the parts that a run and a table have, and a sentence for each that they do not have.

    Raises if a part that was asked for by ``only`` cannot be told, or if there is no label to judge columns by: before
    any work is done.
    """
    for name in only:
        check_choice("part", name, PARTS)
    check_inputs(run, frame)
    parts, notes = [], []
    for part in [name for name in PARTS if not only or name in only]:
        try:
            _check(part, run, frame)
            parts.append(part)
        except InputError as error:
            if only:
                raise
            if part == "importance":
                raise InputError(f"{error}{_without_labels(run)}") from error
            notes.append(str(error))
    return parts, notes


def _without_labels(run: Run) -> str:
    """Return what can be told of a run all the same, as the end of a sentence."""
    try:
        check_gates(run)
    except InputError:
        return ""
    return '. Which experts the tasks use needs none: --only experts, or only=["experts"]'


def tell(
    part: str, run: Run, frame: pl.DataFrame, settings: Settings, told: Callable[[str], object] = lambda text: None
) -> Entries:
    """Return the entries of one part; ``told`` is called with what is being done."""
    if part == "experts":
        return expert_use(run, frame)
    if part == "importance":
        return importance(
            run,
            frame,
            repeats=settings.repeats,
            seed=settings.seed,
            told=lambda column: told(f"shuffling {column}"),
        )
    return layer_conflict(
        run,
        frame,
        batches=settings.batches,
        seed=settings.seed,
        told=lambda batch: told(f"gradients, batch {batch}"),
    )


def _check(part: str, run: Run, frame: pl.DataFrame) -> None:
    if part == "importance":
        check_labels(run, frame)
    elif part == "experts":
        check_gates(run)
    else:
        check_conflict(run)
        check_labels(run, frame, least=2)
