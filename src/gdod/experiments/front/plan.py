"""Plan a front: weightings of the plain sum, methods, single-task models and rivals, checked before any run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from gdod._checks import check_whole
from gdod.errors import InputError
from gdod.experiments.compare import check_tasks, prepare_data
from gdod.experiments.front.rows import PartRows
from gdod.experiments.front.weights import SPAN, Weighting, default_count, given_weights, spread_weights
from gdod.experiments.plan import (
    SEEDS,
    SINGLE_TASK,
    PlannedRun,
    Spec,
    config_of,
    on_same_data,
    over_file,
    read_flag,
    read_seeds,
    read_specs,
)
from gdod.experiments.run_config import RunConfig, check_run
from gdod.report.runs import RIVAL
from gdod.training.config import Settings, TrainConfig, inside, merged, nested, read_settings
from gdod.training.recipes import TableSize, apply_recipe

if TYPE_CHECKING:
    from gdod.data import Dataset

Kind = Literal["front", "method", "single-task", "rival"]

TUNE = 5
"""How many settings of learning rate and decay everybody may try, unless another number is asked for."""
# The factors of the recipe's own learning rate and decay, in the order in which a larger budget adds them.
_TRIED = ((1, 1), (1 / 3, 1), (3, 1), (1, 0.1), (1, 10), (1 / 3, 0.1), (3, 10), (1 / 3, 10), (3, 0.1))
_OWN = ("weights", "points", "span", "tune")


@dataclass(frozen=True, eq=False)
class Candidate:
    """What is trained with every seed: a weighting of the plain sum, a method, single-task models or a rival."""

    name: str
    """What tables and pictures call it."""
    kind: Kind
    model: Spec
    method: Spec
    weights: Mapping[str, float] | None = None
    """The weights of the tasks' losses, of a weighting."""

    @property
    def label(self) -> str:
        """What names of run folders begin with."""
        return (
            f"weights-{self.name.replace(':', 'to')}"
            if self.kind == "front"
            else f"{self.model.label}-{self.method.label}"
        )


@dataclass(frozen=True)
class Rate:
    """A setting of learning rate and decay."""

    settings: Settings
    """What goes over the settings of a run; nothing: the run's own."""
    text: str = ""
    """What names of run folders call it; nothing: the run's own."""


@dataclass(frozen=True)
class FrontPlan:
    """All that a front needs, on data that was looked at."""

    settings: Settings
    """As they were given, whole."""
    rest: Settings = field(repr=False)
    """Those of all runs."""
    tasks: tuple[str, ...]
    candidates: tuple[Candidate, ...]
    seeds: tuple[int, ...]
    rates: tuple[Rate, ...]
    dataset: "Dataset" = field(repr=False)
    drawn: bool = True
    """Whether the weightings were spread by us, and not given one by one."""

    @property
    def config(self) -> RunConfig:
        """The configuration of the first run: data, stopping and the like are the same in all."""
        return self.run(self.candidates[0], self.seeds[0]).config

    def of(self, *kinds: Kind) -> tuple[Candidate, ...]:
        return tuple(one for one in self.candidates if one.kind in kinds)

    def run(self, candidate: Candidate, seed: int, rate: Rate | None = None) -> PlannedRun:
        """Return a run of a candidate."""
        rate = rate or self.rates[0]
        over: Settings = {} if candidate.kind == "rival" else dict(rate.settings)
        if candidate.weights is not None and len(set(candidate.weights.values())) > 1:
            over["task_weights"] = dict(candidate.weights)
        config = config_of(merged(self.rest, over), candidate.model, candidate.method, seed)
        name = f"{candidate.label}{f'-{rate.text}' if rate.text else ''}-seed{seed}"
        return PlannedRun(name, candidate.model, candidate.method, seed, config)

    def tuning_runs(self, candidate: Candidate) -> list[PlannedRun]:
        """Return the runs of a candidate with the first seed, one for each rate; of a rival, which has none, one."""
        rates = self.rates[:1] if candidate.kind == "rival" else self.rates
        return [self.run(candidate, self.seeds[0], rate) for rate in rates]

    @property
    def most_runs(self) -> int:
        """How many runs there are in all."""
        return sum(len(self.tuning_runs(one)) + len(self.seeds) - 1 for one in self.candidates)

    def to_json(self) -> Settings:
        """Return what `front.json` says was asked for."""
        common = self.config.model_dump(mode="json")
        return {
            "tasks": list(self.tasks),
            "weights": {one.name: dict(one.weights or {}) for one in self.of("front")},
            "methods": [one.method.label for one in self.of("method")],
            "single_task": bool(self.of("single-task")),
            "rivals": [one.method.label for one in self.of("rival")],
            "seeds": list(self.seeds),
            "tune": [one.text or "own" for one in self.rates],
            "runs": self.most_runs,
            "settings": {name: value for name, value in common.items() if name not in ("method", "seed")},
        }


def read_front(file: Path | None = None, options: Mapping[str, Any] | None = None) -> FrontPlan:
    """Return the front that a YAML or TOML file describes, with options over it. For that the data is prepared.

    Settings are those of `gdod train`, and besides them `methods` and `rivals` (lists of names or of {name, options}),
    `single_task`, `seeds` (a list, or how many), `points` (how many weightings), `span` (the largest ratio of two
    tasks' weights), `weights` (a list of weightings in place of both) and `tune` (how many settings of learning rate
    and decay everybody may try).
    """
    settings: Settings = {} if file is None else inside(read_settings(file), file.parent)
    return plan_front(over_file(settings, nested(options or {})))


def plan_front(settings: Mapping[str, Any]) -> FrontPlan:
    """Return the front that settings describe; raise for what is wrong with them or with the data."""
    rest = {"tensorboard": False, **settings}
    own = {name: rest.pop(name) for name in _OWN if name in rest}
    (model,) = _one_model(read_specs(rest, "models", ("shared-bottom",)))
    rivals, methods = read_specs(rest, "rivals", (), few=True), read_specs(rest, "methods", (), few=True)
    seeds, single = read_seeds(rest, SEEDS), read_flag(rest, "single_task")
    if any(method.name == "sum" for method in methods):
        raise InputError("method 'sum' is the front itself, with equal weights; leave it out")
    if "task_weights" in rest:
        raise InputError("task_weights are what a front varies; leave them out, or give --weights click=4,buy=1")
    _check_counts(own)
    # Names and options that are wrong are told before the data is prepared.
    pairs = [(model, Spec("sum")), *((model, method) for method in methods), *((Spec(RIVAL), one) for one in rivals)]
    for one, method in pairs:
        check_run(config_of(rest, one, method, seeds[0]))
    config = config_of(rest, model, Spec("sum"), seeds[0])
    assert isinstance(config, TrainConfig)
    dataset = prepare_data(config)
    tasks = tuple(task.name for task in dataset.tasks)
    _check_data(dataset)
    check_tasks(config, dataset)
    weightings = _weightings(tasks, own)
    candidates = [Candidate(one.name, "front", model, Spec("sum"), one.weights) for one in weightings]
    candidates += [Candidate(_shown(method), "method", model, method) for method in methods]
    if single:
        candidates.append(Candidate(SINGLE_TASK, "single-task", Spec(SINGLE_TASK), Spec("sum")))
    candidates += [Candidate(_shown(rival), "rival", Spec(RIVAL), rival) for rival in rivals]
    rates = _rates(config, dataset, own.get("tune", TUNE))
    plan = FrontPlan(dict(settings), rest, tasks, tuple(candidates), seeds, rates, dataset, drawn="weights" not in own)
    on_same_data([plan.run(one, seeds[0]) for one in plan.candidates])
    for candidate in plan.candidates:
        check_run(plan.run(candidate, seeds[0]).config)
    return plan


def recipe_in_words(plan: FrontPlan) -> list[str]:
    """Return sentences on what the recipe chooses in the runs of the plain sum, and why."""
    config = plan.config
    if not isinstance(config, TrainConfig) or config.recipe == "paper":
        return []
    return list(apply_recipe(config, TableSize.of(plan.dataset))[1])


def same_data(plan: FrontPlan, runs: Sequence[PlannedRun]) -> list[PlannedRun]:
    """Return the runs with the data of the whole front, also those of rivals, which use no features."""
    data = plan.config.data
    return [replace(run, config=run.config.model_copy(update={"data": data})) for run in runs]


def _one_model(models: tuple[Spec, ...]) -> tuple[Spec]:
    if len(models) != 1 or models[0].name == SINGLE_TASK:
        names = ", ".join(model.label for model in models)
        raise InputError(f"models={names}; a front is of one model, which all tasks share; give one, e.g. --model mmoe")
    return (models[0],)


def _check_counts(own: Settings) -> None:
    if "weights" in own and (both := [name for name in ("points", "span") if name in own]):
        raise InputError(
            f"both weights and {both[0]} are given; expected the weightings themselves, or how they spread"
        )
    check_whole("points", own.get("points", 3), 3, "at least 3 weightings, or a list of them as `weights`")
    check_whole("tune", own.get("tune", 1), 1)
    if own.get("tune", 1) > len(_TRIED):
        raise InputError(f"tune={own['tune']}; expected at most {len(_TRIED)}, a grid of 3 learning rates and 3 decays")
    span = own.get("span", SPAN)
    if isinstance(span, bool) or not isinstance(span, int | float) or not 1 < span <= 1e6:
        raise InputError(f"span={span!r}; expected a number above 1, the largest ratio of two tasks' weights")


def _weightings(tasks: tuple[str, ...], own: Settings) -> tuple[Weighting, ...]:
    given = own.get("weights")
    if given is not None:
        if not isinstance(given, list | tuple) or not given or not all(isinstance(one, Mapping) for one in given):
            raise InputError(f"weights={given!r}; expected a list such as [{{click: 4, buy: 1}}]")
        made = given_weights(tasks, given)
        if len(made) < 3:
            raise InputError(f"{len(made)} weightings are given; expected at least 3, or no front can be seen")
        return made
    count = own.get("points", default_count(len(tasks)))
    if len(tasks) == 2 and count % 2 == 0:
        raise InputError(f"points={count}; expected an odd number for two tasks, so that equal weights are among them")
    return spread_weights(tasks, count, own.get("span", SPAN))


def _check_data(dataset: "Dataset") -> None:
    """Raise unless there are two tasks at least, and every part has what each task needs."""
    if len(dataset.tasks) < 2:
        names = ", ".join(task.name for task in dataset.tasks)
        raise InputError(
            f"{dataset.name} has one task ({names}); a front needs two or more, between which weights can choose"
        )
    parts = {"training": dataset.train, "validation": dataset.validation, "test": dataset.test}
    why = {"training": "to learn", "validation": "to choose by", "test": "to show results on"}
    for name, part in parts.items():
        if not len(part):
            raise InputError(f"{dataset.name} has no {name} part, which a front needs {why[name]}; change its split")
        labels = PartRows.read(part, dataset.tasks).labels
        for task in dataset.tasks:
            known = labels[task.name][~np.isnan(labels[task.name])]
            if task.kind == "multiclass":
                known = known[known >= 0]
            if len(known) == 0 or len(np.unique(known)) < 2:
                held = "no label" if not len(known) else f"no label but {known[0]:g}"
                raise InputError(
                    f"the {name} part of {dataset.name} has {held} of the task {task.name!r}; a front needs it "
                    f"{why[name]}: leave the task out, or change the split"
                )


def _rates(config: TrainConfig, dataset: "Dataset", count: int) -> tuple[Rate, ...]:
    """Return the settings of learning rate and decay that everybody may try: first what the recipe has.

    A decay of 0 stays 0, which leaves fewer of them.
    """
    optimizer = apply_recipe(config, TableSize.of(dataset))[0].optimizer
    rates: dict[str, Rate] = {"": Rate({})}
    for faster, stronger in _TRIED[1:count]:
        over: Settings = {"lr": _rounded(optimizer.lr * faster)}
        decay = {"weight_decay": optimizer.weight_decay, "id_decay": optimizer.id_decay}
        over |= {name: _rounded(value * stronger) for name, value in decay.items() if value}
        if over["lr"] == optimizer.lr and not any(decay.values()):
            continue
        text = f"lr={over['lr']:g}" + (f",decay={over['weight_decay']:g}" if "weight_decay" in over else "")
        rates.setdefault(text, Rate({"optimizer": over}, text))
    return tuple(rates.values())


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")


def _shown(spec: Spec) -> str:
    """Return the name of a method or rival with its options, such as `cagrad (c=0.3)`."""
    options = ", ".join(f"{name}={value}" for name, value in spec.options.items())
    return f"{spec.name} ({options})" if options else spec.name
