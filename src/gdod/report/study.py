"""Runs put together: what was trained on the same data, by model and method, over seeds."""

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from gdod.experiments.statistics import (
    Difference,
    Summary,
    average_ranks,
    delta_m,
    holm,
    paired_difference,
    summarise,
)
from gdod.report.runs import Asked, Collection, Json, Run, asked_for, part

MAIN = {"binary": "auc", "regression": "rmse", "multiclass": "accuracy"}
"""The metric by which settings are compared, for each kind of task."""
METRICS = {"binary": ("auc", "log_loss"), "regression": ("rmse", "mae"), "multiclass": ("accuracy", "log_loss")}
HIGHER = {"auc": True, "accuracy": True, "log_loss": False, "rmse": False, "mae": False}
TITLES = {"auc": "AUC", "log_loss": "log loss", "rmse": "RMSE", "mae": "MAE", "accuracy": "accuracy"}
SINGLE_TASK = "single-task"

# Settings in which runs of the same method may differ without being another method.
_NO_MATTER = {
    "seed",
    "device",
    "threads",
    "tensorboard",
    "checkpoint_every",
    "checkpoint_minutes",
    "log_every",
    "conflict_every",
    "evaluation_batch",
}


@dataclass(frozen=True, eq=False)
class Setting:
    """A model and a method with their options, and the runs of it."""

    model: str
    method: str
    """Both with the options in which they differ from others of the same name."""
    runs: tuple[Run, ...]
    style: int = 0
    """Number of its colour, dash and marker: the same for the same method in every model."""

    @property
    def finished(self) -> dict[int | None, Run]:
        """By seed; of runs with the same seed the first counts."""
        found: dict[int | None, Run] = {}
        for run in self.runs:
            if run.result is not None:
                found.setdefault(run.seed, run)
        return found

    @property
    def is_single_task(self) -> bool:
        return self.runs[0].model == SINGLE_TASK

    @property
    def shown(self) -> tuple[Run, ...]:
        """The runs whose curves are drawn: finished ones, or what there is."""
        return tuple(self.finished.values()) or tuple(run for run in self.runs if run.train or run.evaluations)


@dataclass(frozen=True)
class Comparison:
    """One setting against the baseline, in one figure."""

    summary: Summary
    difference: Difference | None
    """None for the baseline itself."""
    p_holm: float | None
    by_seed: Mapping[int | None, float] = field(default_factory=dict)
    """Differences from the baseline."""


@dataclass(frozen=True)
class Study:
    """All runs on one data set."""

    data: Json
    tasks: tuple[tuple[str, str], ...]
    settings: tuple[Setting, ...]
    runs: tuple[Run, ...]
    baseline: str
    """The method that others are compared with, in the same model."""
    asked: Json = field(default_factory=dict)

    @property
    def name(self) -> str:
        return str(self.data.get("name", "unknown data"))

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(setting.model for setting in self.settings))

    @cached_property
    def part(self) -> str:
        """Where results come from: the test part if every finished run has one."""
        results = [run.result for setting in self.settings for run in setting.finished.values()]
        return "test" if results and all(part(result or {}, "test") for result in results) else "validation"

    @property
    def headline(self) -> tuple[str, tuple[str, ...]]:
        """The metric averaged over tasks, and these tasks: those of the first task's kind."""
        kind = self.tasks[0][1] if self.tasks else "binary"
        return MAIN.get(kind, "auc"), tuple(name for name, other in self.tasks if other == kind)

    @property
    def headline_title(self) -> str:
        metric, tasks = self.headline
        return f"mean {TITLES[metric]}" if len(tasks) > 1 else TITLES[metric]

    def tasks_with(self, metric: str) -> tuple[str, ...]:
        return tuple(name for name, kind in self.tasks if metric in METRICS.get(kind, ()))

    def values(self, setting: Setting, metric: str, task: str | None = None) -> dict[int | None, float | None]:
        """By seed; of one task, or of the headline if none is named."""
        return {seed: self.value(run, metric, task) for seed, run in setting.finished.items()}

    def value(self, run: Run, metric: str, task: str | None = None) -> float | None:
        if task is not None:
            found = part(part(part(run.result or {}, self.part), "tasks"), task)
            return as_number(found.get(metric))
        values = [self.value(run, metric, name) for name in self.headline[1]]
        known = [value for value in values if value is not None]
        # A mean over fewer tasks than the others have would not be comparable.
        return math.fsum(known) / len(known) if known and len(known) == len(self._headline_known) else None

    @cached_property
    def _headline_known(self) -> set[str]:
        """The headline's tasks that have a figure in any run (a part may hold one class only)."""
        metric, tasks = self.headline
        return {
            task
            for task in tasks
            for setting in self.settings
            for value in self.values(setting, metric, task).values()
            if value is not None
        }

    def baseline_of(self, setting: Setting) -> Setting | None:
        """The baseline in the same model; None for the baseline itself and where there is none."""
        for other in self.settings:
            if other.model == setting.model and other.method == self.baseline:
                return None if other is setting else other
        return None

    def compare(self, metric: str, tasks: Sequence[str | None] = (None,)) -> dict[str | None, list[Comparison]]:
        """By task, for each setting in order. The p-values of all are corrected together."""
        places = [(task, setting) for task in tasks for setting in self.settings]
        differences = [self._difference(setting, metric, task) for task, setting in places]
        corrected = holm([None if found is None else found.p for found in differences])
        found: dict[str | None, list[Comparison]] = {task: [] for task in tasks}
        for (task, setting), difference, p in zip(places, differences, corrected, strict=True):
            values = self.values(setting, metric, task)
            summary = summarise(list(values.values()))
            found[task].append(Comparison(summary, difference, p, self._by_seed(setting, metric, task)))
        return found

    def _difference(self, setting: Setting, metric: str, task: str | None) -> Difference | None:
        base = self.baseline_of(setting)
        if base is None:
            return None
        return paired_difference(self.values(setting, metric, task), self.values(base, metric, task))

    def _by_seed(self, setting: Setting, metric: str, task: str | None) -> dict[int | None, float]:
        base = self.baseline_of(setting)
        theirs = {} if base is None else self.values(base, metric, task)
        ours = self.values(setting, metric, task)
        pairs = {seed: (ours[seed], theirs[seed]) for seed in ours if seed in theirs}
        return {seed: a - b for seed, (a, b) in pairs.items() if a is not None and b is not None}

    def ranks(self) -> list[float | None]:
        """The average place of each setting, over the main metrics of all tasks and seeds."""
        cases = {(task, MAIN[kind]): HIGHER[MAIN[kind]] for task, kind in self.tasks if kind in MAIN}
        results = {
            place: {
                (task, metric, seed): value
                for task, metric in cases
                for seed, value in self.values(setting, metric, task).items()
            }
            for place, setting in enumerate(self.settings)
        }
        higher = {case: cases[case[:2]] for found in results.values() for case in found}
        ranks = average_ranks(results, higher)
        return [ranks[place] for place in range(len(self.settings))]

    def gains(self) -> list[Summary | None]:
        """Δm in per cent against single-task models, by seed; None where there are none to compare with."""
        single = next((setting for setting in self.settings if setting.is_single_task), None)
        return [
            None if single is None or setting.is_single_task else self._gain(setting, single)
            for setting in self.settings
        ]

    def _gain(self, setting: Setting, single: Setting) -> Summary:
        higher = {task: HIGHER[MAIN[kind]] for task, kind in self.tasks if kind in MAIN}
        metrics = {task: MAIN[kind] for task, kind in self.tasks if kind in MAIN}
        gains = []
        for seed, run in setting.finished.items():
            if (alone := single.finished.get(seed)) is not None:
                ours = {task: self.value(run, metric, task) for task, metric in metrics.items()}
                theirs = {task: self.value(alone, metric, task) for task, metric in metrics.items()}
                gains.append(delta_m(ours, theirs, higher))
        return summarise(gains)

    def step_times(self) -> list[tuple[Summary, float | None]]:
        """Milliseconds a step, and how many times the baseline's in the same model."""
        times = [self._step_time(setting) for setting in self.settings]
        found = []
        for setting, time in zip(self.settings, times, strict=True):
            base = next((s for s in self.settings if s.model == setting.model and s.method == self.baseline), None)
            least = None if base is None else times[self.settings.index(base)].mean
            found.append((time, None if time.mean is None or not least else time.mean / least))
        return found

    def _step_time(self, setting: Setting) -> Summary:
        return summarise(
            [as_number((run.result or {}).get("milliseconds_per_step")) for run in setting.finished.values()]
        )


def studies(found: Collection, baseline: str | None = None) -> tuple[Study, ...]:
    """The runs by data set, those of one data set by model, method and options."""
    by_data: dict[str, list[Run]] = {}
    for run in found.runs:
        by_data.setdefault(_data_key(run, found.runs), []).append(run)
    return tuple(_study(runs, found.asked, baseline) for runs in by_data.values())


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"model": {"name": "ple"}} -> {"model.name": "ple"}."""
    found: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, dict) and value:
            found |= flat(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value
    return found


def as_number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


def _data_key(run: Run, runs: Iterable[Run]) -> str:
    fingerprint = run.data.get("fingerprint")
    if isinstance(fingerprint, str):
        return fingerprint
    # A run that has not said on which data it is belongs to the only data set, or to that of its name.
    known = {str(other.data["fingerprint"]): other.data.get("name") for other in runs if other.data.get("fingerprint")}
    same = [key for key, name in known.items() if name == run.data.get("name")]
    return next(iter(known)) if len(known) == 1 else same[0] if same else str(run.data.get("name", "unknown"))


def _study(runs: Sequence[Run], asked: Sequence[Json], baseline: str | None) -> Study:
    about = next((run for run in runs if run.data.get("fingerprint")), runs[0])
    tasks = next((run.tasks for run in runs if run.tasks), ())
    wanted = next((item for item in asked if item), {})
    settings = _settings(runs, wanted)
    methods = list(dict.fromkeys(setting.method for setting in settings))
    base = baseline or _asked_baseline(settings, wanted)
    if base not in methods:
        base = "sum" if "sum" in methods else methods[0]
    # The baseline comes first and is drawn in the colour of text.
    methods.sort(key=lambda method: method != base)
    order = {method: place for place, method in enumerate(methods)}
    models = list(dict.fromkeys(setting.model for setting in settings))
    settings.sort(key=lambda setting: (models.index(setting.model), order[setting.method]))
    styled = tuple(Setting(s.model, s.method, s.runs, order[s.method]) for s in settings)
    return Study(about.data, tasks, styled, tuple(runs), base, wanted)


def _asked_baseline(settings: Sequence[Setting], asked: Json) -> str | None:
    """What the settings call the baseline that a comparison asks for."""
    base = asked.get("baseline")
    base = base.get("name") if isinstance(base, dict) else base
    listed = asked_for(asked, "method")
    for setting in settings:
        place = _place(setting.runs[0], "method", listed)
        if place is not None and listed[place].label == base and not setting.is_single_task:
            return setting.method
    return base if isinstance(base, str) else None


_Key = tuple[str, str, str]  # model with its options, method, configuration


def _settings(runs: Sequence[Run], asked: Json) -> list[Setting]:
    """Runs of one model, method and configuration but for the seed; in the order asked for."""
    groups: dict[_Key, list[Run]] = {}
    configs: dict[_Key, dict[str, Any]] = {}
    models = _model_labels(runs, asked_for(asked, "model"))
    silent = []
    for run in runs:
        config = {
            name: value
            for name, value in flat(run.config).items()
            if name not in _NO_MATTER and not name.startswith("data.")
        }
        if not config:
            silent.append(run)
            continue
        key = (models[run], run.method, _text(config))
        groups.setdefault(key, []).append(run)
        configs[key] = config
    for run in silent:  # no configuration (yet)
        options = run.options("method") or {}
        key = _kin(run, models[run], groups) or (models[run], run.method, _text(options))
        groups.setdefault(key, []).append(run)
        configs.setdefault(key, flat({"method": {"options": options}}))
    listed = {what: asked_for(asked, what) for what in ("model", "method")}

    def order(key: _Key) -> list[int]:
        places = [_place(groups[key][0], what, listed[what]) for what in ("model", "method")]
        return [len(runs) if place is None else place for place in places]

    return [Setting(key[0], _label(key, configs), tuple(groups[key])) for key in sorted(groups, key=order)]


def _kin(run: Run, model: str, groups: Mapping[_Key, Sequence[Run]]) -> _Key | None:
    """The group that a run without a configuration belongs to."""
    alike = [key for key in groups if key[:2] == (model, run.method)]
    # The other seeds of a comparison have the same name; what was tuned may have given them more options.
    for key in alike:
        if any(_but_for_the_seed(other) == _but_for_the_seed(run) for other in groups[key]):
            return key
    wanted = run.options("method") or {}
    return next((key for key in alike if wanted.items() <= (groups[key][0].options("method") or {}).items()), None)


def _but_for_the_seed(run: Run) -> Path:
    """The path of a run of a comparison, without its end `-seed3`."""
    return run.path.with_name(re.sub(r"-seed\d+$", "", run.name))


def _place(run: Run, what: str, listed: Sequence[Asked]) -> int | None:
    """Which of the models or methods asked for a run is of: the one that has most of its options, and no others."""
    name, options = run.model if what == "model" else run.method, run.options(what) or {}
    fitting = [place for place, one in enumerate(listed) if one.name == name and one.options.items() <= options.items()]
    return max(fitting, key=lambda place: len(listed[place].options), default=None)


def _model_labels(runs: Sequence[Run], asked: Sequence[Asked]) -> dict[Run, str]:
    """The model of each run, with the options in which it differs from others of its name.

    What a comparison asks for as one model is one, even if some of its runs were tuned to have more options.
    """
    variants: dict[Run, Json] = {}
    twins: dict[str, dict[str, Json]] = {}  # by the model's name, then by options
    for run in runs:
        if (options := run.options("model")) is not None:
            place = _place(run, "model", asked)
            variants[run] = options if place is None else asked[place].options
            twins.setdefault(run.model, {})[_text(variants[run])] = variants[run]
    labels: dict[Run, str] = {}
    kin: dict[Path | str, str] = {}
    for run, options in variants.items():
        shown = ", ".join(f"{name}={options[name]}" for name in _own(options, list(twins[run.model].values())))
        labels[run] = f"{run.model} ({shown})" if shown else run.model
        kin.setdefault(_but_for_the_seed(run), labels[run])
        kin.setdefault(run.model, labels[run])
    for run in runs:  # the others: as the other seeds, or as any of its name
        labels.setdefault(run, kin.get(_but_for_the_seed(run)) or kin.get(run.model) or run.model)
    return labels


def _label(key: _Key, configs: Mapping[_Key, Mapping[str, Any]]) -> str:
    """The method, with the settings in which it differs from others of its name and model."""
    twins = [config for other, config in configs.items() if other[:2] == key[:2]]
    # A method without options is called by its name alone.
    names = [name for name in _own(configs[key], twins) if name != "method.options"]
    if not names:
        return key[1]
    shown = ", ".join(f"{name.removeprefix('method.options.')}={configs[key][name]}" for name in names[:3])
    return f"{key[1]} ({shown}{', …' if len(names) > 3 else ''})"


def _own(settings: Mapping[str, Any], twins: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names of the settings that not all twins have, or not with the same value."""
    return [
        name
        for name, value in settings.items()
        if any(name not in twin or _text(twin[name]) != _text(value) for twin in twins)
    ]


def _text(value: object) -> str:
    return json.dumps(value, default=str, sort_keys=True)
