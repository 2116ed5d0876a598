"""From the runs of a front to its results: scores, verdicts, hypervolume and warnings, as `front.json` holds them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gdod._files import read_json
from gdod.experiments.front.hypervolume import added_volume, hypervolume
from gdod.experiments.front.plan import Candidate, FrontPlan
from gdod.experiments.front.rows import METRICS, Floats, PartRows, Scored, draw_seeds, over_seeds
from gdod.experiments.front.verdict import Interval, Judged, Verdict, difference, judge, task_intervals
from gdod.experiments.front.weights import finer
from gdod.experiments.plan import PlannedRun
from gdod.experiments.predictions import read_predictions
from gdod.report.numbers import duration
from gdod.training.config import Settings

_SEED = 0  # of the draws of rows and seeds: the same runs give the same intervals
_MOST_TASKS = 8  # of an exact hypervolume, whose time grows fast with their number
_FEW_SEEDS = 5


@dataclass(frozen=True)
class Finished:
    """A candidate whose runs have all finished."""

    candidate: Candidate
    runs: Sequence[PlannedRun]
    """One for each seed, with the learning rate and decay that were best on validation."""
    rate: str
    """These, if they are not the runs' own."""


def results(plan: FrontPlan, folder: Path, finished: Sequence[Finished]) -> Settings:
    """Return the results of a front, from the predictions that its runs have kept."""
    scores = _Scores(plan, folder)
    judged = {one.candidate.name: scores.of(one) for one in finished}
    front = {one.candidate.name: judged[one.candidate.name] for one in finished if one.candidate.kind == "front"}
    methods = {one.candidate.name: judged[one.candidate.name] for one in finished if one.candidate.kind == "method"}
    verdicts = judge(methods, front) if front else {}
    equal = next((one for one in finished if _is_equal(one.candidate)), None)
    base = None if equal is None else judged[equal.candidate.name]
    seconds = {one.candidate.name: _seconds(folder, one) for one in finished}
    return {
        "tasks": [{"name": task.name, "metric": METRICS[task.kind]} for task in plan.dataset.tasks],
        "rows": {"validation": len(scores.validation), "test": len(scores.test)},
        "draws": scores.draws,
        "candidates": [_entry(plan, one, judged[one.candidate.name], base, scores, seconds) for one in finished],
        "verdicts": [
            {
                "method": name,
                "place": one.place,
                "weighting": one.weighting,
                "validation": one.validation,
                "d": _interval(one.d),
                "p": one.p,
                "p_holm": one.p_holm,
                "gap": one.gap,
                "leads": _by_task(plan, [_interval(task) for task in one.tasks]),
            }
            for name, one in verdicts.items()
        ],
        "hypervolume": _hypervolumes(front, methods, scores.test.chance()),
        "warnings": _warnings(plan, verdicts, front, seconds),
    }


class _Scores:
    """The scores of runs, all on the same draws of rows and seeds."""

    def __init__(self, plan: FrontPlan, folder: Path) -> None:
        self.plan, self.folder = plan, folder
        data, random = plan.dataset, np.random.default_rng(_SEED)
        weighted = plan.config.weighted_metrics
        self.validation = PartRows.read(data.validation, data.tasks, weighted=weighted)
        self.test = PartRows.read(data.test, data.tasks, weighted=weighted).draw(random)
        self.draws = 0 if self.test.counts is None else len(self.test.counts)
        self.seeds = draw_seeds(random, self.draws, len(plan.seeds))

    def of(self, one: Finished) -> Judged:
        validation = [self._run(run, "validation", self.validation) for run in one.runs]
        test = [self._run(run, "test", self.test) for run in one.runs]
        return Judged(np.mean([run.scores for run in validation], axis=0), over_seeds(test, self.seeds))

    def validation_of(self, run: PlannedRun) -> Floats:
        return self._run(run, "validation", self.validation).scores

    def _run(self, run: PlannedRun, part: str, rows: PartRows) -> Scored:
        place = self.folder / "runs" / run.name
        return rows.score(read_predictions(place, part, rows.tasks, len(rows)))


def _is_equal(candidate: Candidate) -> bool:
    return candidate.weights is not None and len(set(candidate.weights.values())) == 1


def _entry(
    plan: FrontPlan,
    one: Finished,
    judged: Judged,
    base: Judged | None,
    scores: _Scores,
    seconds: Mapping[str, float],
) -> Settings:
    candidate = one.candidate
    beside = None if base is None or base is judged else task_intervals(difference(judged.test, base.test))
    runs = {run.name: _by_task(plan, scores.validation_of(run).tolist()) for run in one.runs}
    return {
        "name": candidate.name,
        "kind": candidate.kind,
        "weights": None if candidate.weights is None else dict(candidate.weights),
        "rate": one.rate or "own",
        "validation": _by_task(plan, judged.validation.tolist()),
        "test": _by_task(plan, judged.test.scores.tolist()),
        "difference": None if beside is None else _by_task(plan, [_interval(each) for each in beside]),
        "seconds": seconds[candidate.name],
        "runs": runs,
    }


def _by_task(plan: FrontPlan, values: Sequence[Any]) -> dict[str, Any]:
    return dict(zip(plan.tasks, values, strict=True))


def _interval(one: Interval) -> Settings:
    return {"value": one.value, "low": one.low, "high": one.high}


def _seconds(folder: Path, one: Finished) -> float:
    """Return the mean time of training of a candidate's runs."""
    read = [read_json(folder / "runs" / run.name / "result.json", "the result of a run") for run in one.runs]
    return float(np.mean([result["seconds"] for result in read]))


def _hypervolumes(front: Mapping[str, Judged], methods: Mapping[str, Judged], chance: Floats) -> Settings | None:
    """Return the hypervolume of the front above chance, and the share of it that each method would add."""
    if not front or len(chance) > _MOST_TASKS:
        return None
    points = np.stack([one.test.scores for one in front.values()])
    whole = hypervolume(points, chance)
    added = {name: added_volume(one.test.scores, points, chance) for name, one in methods.items()}
    return {
        "reference": chance.tolist(),
        "front": whole,
        "added_percent": {name: 100 * volume / whole if whole else None for name, volume in added.items()},
    }


def sparse_warning(plan: FrontPlan) -> str | None:
    """Return a warning if there are fewer weightings than two for each way in which weights can vary; else None."""
    tasks, points = len(plan.tasks), len(plan.of("front"))
    if points >= 2 ** (tasks - 1):
        return None
    return (
        f"{points} weightings of {tasks} tasks are too few to say that no weighting is better: that takes "
        f"{2 ** (tasks - 1):,}, two for each of the {tasks - 1} ways in which weights can vary"
    )


def _warnings(
    plan: FrontPlan, verdicts: Mapping[str, Verdict], front: Mapping[str, Judged], seconds: Mapping[str, float]
) -> list[str]:
    said = []
    if sparse := sparse_warning(plan):
        said.append(sparse)
    if gaps := [name for name, one in verdicts.items() if one.place == "gap"]:
        said.append(
            f"{', '.join(gaps)}: no weighting is better on every task, but the front has gaps as large there, so a "
            "weighting between those that were trained may be"
        )
    if said:
        said[-1] += f". {_cost(plan, front, seconds)}"
    ends = [one.name for one in plan.of("front")][:: max(1, len(plan.of("front")) - 1)]
    if plan.drawn and len(plan.tasks) == 2 and (out := [n for n, one in verdicts.items() if one.weighting in ends]):
        said.append(
            f"{', '.join(out)}: the nearest weighting is the last of the front, which may go on beyond it; "
            "give a larger --span"
        )
    if len(plan.seeds) < _FEW_SEEDS:
        few = (
            f"{len(plan.seeds)} seeds: intervals are wide"
            if len(plan.seeds) > 1
            else "one seed: intervals leave it out"
        )
        said.append(f"{few}; take {_FEW_SEEDS} or more for a verdict to rely on")
    return said


def _cost(plan: FrontPlan, front: Mapping[str, Judged], seconds: Mapping[str, float]) -> str:
    """Return a sentence on what about twice as many weightings would cost."""
    points = len(plan.of("front"))
    more = (finer(len(plan.tasks), points) if plan.drawn else 2 * points) - points
    runs = more * (len(plan.rates) + len(plan.seeds) - 1)
    each = float(np.mean([seconds[name] for name in front])) if front else 0.0
    how = f"--points {points + more}" if plan.drawn else "more --weights"
    return f"With {how} there are {more} more: {runs} runs, about {duration(runs * each)} of training in one process"
