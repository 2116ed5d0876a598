"""Put runs together: what was trained on the same data, by model and method, over seeds and folds."""

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from gdod.errors import InputError
from gdod.report.runs import RIVAL, SINGLE_TASK, Asked, Collection, Json, Repetition, RunRecord, asked_for, part
from gdod.statistics import Difference, Summary, average_ranks, delta_m, holm, paired_difference, summarise

MAIN = {"binary": "auc", "regression": "rmse", "multiclass": "accuracy"}
"""The metric by which settings are compared, for each kind of task."""
METRICS = {"binary": ("auc", "log_loss"), "regression": ("rmse", "mae"), "multiclass": ("accuracy", "log_loss")}
HIGHER = {"auc": True, "accuracy": True, "log_loss": False, "rmse": False, "mae": False}
TITLES = {"auc": "AUC", "log_loss": "log loss", "rmse": "RMSE", "mae": "MAE", "accuracy": "accuracy"}

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
    "test_curve",
}


@dataclass(frozen=True, eq=False)
class Setting:
    """A model and a method with their options, and the runs of it."""

    model: str
    method: str
    """Model and method are named with the options in which they differ from others of the same name, a method also
    with those that are not its defaults."""
    runs: tuple[RunRecord, ...]
    style: int = 0
    """The number of its colour, dash and marker: the same for a method in every model."""

    @property
    def finished(self) -> dict[Repetition, RunRecord]:
        """The finished runs by seed and fold; of runs with the same seed and fold the first counts."""
        repetitions: dict[Repetition, RunRecord] = {}
        for run in self.runs:
            if run.result is not None:
                repetitions.setdefault(run.repetition, run)
        return repetitions

    @property
    def is_single_task(self) -> bool:
        return self.runs[0].model == SINGLE_TASK

    @property
    def is_rival(self) -> bool:
        return self.runs[0].model == RIVAL

    @property
    def shown(self) -> tuple[RunRecord, ...]:
        """The runs whose curves are drawn: finished ones, or what there is."""
        return tuple(self.finished.values()) or tuple(run for run in self.runs if run.train or run.evaluations)


@dataclass(frozen=True)
class Comparison:
    """One setting against the baseline, in one figure."""

    summary: Summary
    difference: Difference | None
    """The difference from the baseline; None for the baseline itself."""
    p_holm: float | None
    each: Mapping[Repetition, float] = field(default_factory=dict)
    """The difference from the baseline of each common seed and fold."""


@dataclass(frozen=True)
class Trade:
    """What a setting gains on some tasks and loses on others, each beyond chance: task weights can do that, too."""

    gains: Mapping[str, float]
    """The mean differences from the baseline of the tasks that are better, in their main metrics."""
    losses: Mapping[str, float]
    """Those of the tasks that are worse."""


@dataclass(frozen=True)
class Study:
    """All runs on one data set."""

    data: Json
    tasks: tuple[tuple[str, str], ...]
    settings: tuple[Setting, ...]
    runs: tuple[RunRecord, ...]
    bases: tuple[Setting, ...]
    """The baselines: what others are compared with, in each model and each group of runs with other settings."""

    @property
    def name(self) -> str:
        return str(self.data.get("name", "unknown data"))

    @property
    def folds(self) -> int | None:
        """The number of folds of a cross-validation; None: it is none, and all runs have the same test part."""
        of = part(self.data, "fold").get("of")
        return of if isinstance(of, int) else None

    @property
    def over(self) -> str:
        """What results are means over: "seeds", "folds", or "folds and seeds"."""
        if self.folds is None:
            return "seeds"
        return "folds and seeds" if len({run.seed for run in self.runs}) > 1 else "folds"

    @property
    def baseline(self) -> str:
        """The name of the baselines, without the settings in which they differ."""
        labels = {base.method for base in self.bases}
        return labels.pop() if len(labels) == 1 else self.bases[0].runs[0].method

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(setting.model for setting in self.settings))

    @cached_property
    def part(self) -> str:
        """The part of the data that results are on: "test" if every finished run has one, else "validation"."""
        results = [run.result for setting in self.settings for run in setting.finished.values()]
        return "test" if results and all(part(result or {}, "test") for result in results) else "validation"

    @cached_property
    def headlines(self) -> dict[str, tuple[str, ...]]:
        """The metrics that are averaged over tasks, one for each kind of task, and these tasks."""
        kinds = dict.fromkeys(kind for _, kind in self.tasks if kind in MAIN) or ("binary",)
        return {MAIN[kind]: tuple(name for name, other in self.tasks if other == kind) for kind in kinds}

    @property
    def headline(self) -> tuple[str, tuple[str, ...]]:
        """The metric averaged over tasks, and these tasks: those of the first task's kind."""
        return next(iter(self.headlines.items()))

    @property
    def headline_title(self) -> str:
        return self.title_of(self.headline[0])

    def title_of(self, metric: str) -> str:
        """Return the name of a headline's figure, such as "mean AUC"."""
        return f"mean {TITLES[metric]}" if len(self.headlines[metric]) > 1 else TITLES[metric]

    @cached_property
    def unequal(self) -> tuple[str, ...]:
        """The settings, besides model and method, in which not all runs are alike, by their paths."""
        return tuple(
            name for name in _differing([_conditions(setting) for setting in self.settings if not setting.is_rival])
        )

    def tasks_with(self, metric: str) -> tuple[str, ...]:
        return tuple(name for name, kind in self.tasks if metric in METRICS.get(kind, ()))

    def values(self, setting: Setting, metric: str, task: str | None = None) -> dict[Repetition, float | None]:
        """Return a metric by seed and fold: of one task, or the mean over those that have it if none is named."""
        return {repetition: self.value(run, metric, task) for repetition, run in setting.finished.items()}

    def value(self, run: RunRecord, metric: str, task: str | None = None) -> float | None:
        """Return a metric of a run: of one task, or the mean over those that have it if none is named."""
        if task is not None:
            return as_number(part(part(part(run.result or {}, self.part), "tasks"), task).get(metric))
        values = [self.value(run, metric, name) for name in self._known_tasks[metric]]
        known = [value for value in values if value is not None]
        # A mean over fewer tasks than the others have would not be comparable.
        return math.fsum(known) / len(known) if known and len(known) == len(values) else None

    @cached_property
    def _known_tasks(self) -> dict[str, tuple[str, ...]]:
        """The tasks that have a figure of a metric in any run, by metric (a part may hold one class only)."""
        return {
            metric: tuple(
                task
                for task in self.tasks_with(metric)
                if any(self.value(run, metric, task) is not None for run in self.runs)
            )
            for metric in HIGHER
        }

    def base_of(self, setting: Setting) -> Setting | None:
        """Return the baseline in the same model, None if it is not clear which; that of a baseline is itself.

        That of a rival is the one in the first model.
        """
        if setting in self.bases:
            return setting
        if setting.is_rival:
            return self.bases[0]
        return _nearest(setting, [base for base in self.bases if base.model == setting.model])

    def baseline_of(self, setting: Setting) -> Setting | None:
        """Return what a setting is compared with; None for a baseline and where there is none."""
        base = self.base_of(setting)
        return None if base is setting else base

    def compare(self, metric: str, tasks: Sequence[str | None] = (None,)) -> dict[str | None, list[Comparison]]:
        """Return each setting, in order, against its baseline, by task. The p-values of all are corrected together."""
        places = [(task, setting) for task in tasks for setting in self.settings]
        differences = [self._difference(setting, metric, task) for task, setting in places]
        corrected = holm([None if difference is None else difference.p for difference in differences])
        compared: dict[str | None, list[Comparison]] = {task: [] for task in tasks}
        for (task, setting), difference, p in zip(places, differences, corrected, strict=True):
            values = self.values(setting, metric, task)
            summary = summarise(list(values.values()))
            compared[task].append(Comparison(summary, difference, p, self._each(setting, metric, task)))
        return compared

    def _difference(self, setting: Setting, metric: str, task: str | None) -> Difference | None:
        base = self.baseline_of(setting)
        if base is None:
            return None
        ours, theirs = self.values(setting, metric, task), self.values(base, metric, task)
        if self.folds is None:
            return paired_difference(ours, theirs)
        # Seeds of a fold share all of its rows: they make its figure steadier, and are no further folds.
        common = [one for one, value in ours.items() if value is not None and theirs.get(one) is not None]
        by_fold = [
            {fold: summarise([values[one] for one in common if one.fold == fold]).mean for _, fold in common}
            for values in (ours, theirs)
        ]
        return paired_difference(by_fold[0], by_fold[1], folds=self.folds)

    def _each(self, setting: Setting, metric: str, task: str | None) -> dict[Repetition, float]:
        base = self.baseline_of(setting)
        theirs = {} if base is None else self.values(base, metric, task)
        ours = self.values(setting, metric, task)
        pairs = {one: (ours[one], theirs[one]) for one in ours if one in theirs}
        return {one: a - b for one, (a, b) in pairs.items() if a is not None and b is not None}

    def trades(self) -> list[Trade | None]:
        """Return what each setting trades: tasks whose difference from the baseline has an interval beside 0.

        None without both a gain and a loss, and for single-task models and rivals, which share nothing between tasks.
        """
        found: dict[Setting, tuple[dict[str, float], dict[str, float]]] = {one: ({}, {}) for one in self.settings}
        for metric in dict.fromkeys(MAIN[kind] for _, kind in self.tasks if kind in MAIN):
            tasks = [task for task, kind in self.tasks if MAIN.get(kind) == metric]
            for task, compared in self.compare(metric, tasks).items():
                for setting, one in zip(self.settings, compared, strict=True):
                    gain = one.difference
                    if task is None or gain is None or gain.mean is None or gain.low is None or gain.high is None:
                        continue
                    if not gain.low <= 0 <= gain.high:
                        better = (gain.mean > 0) == HIGHER[metric]
                        found[setting][0 if better else 1][task] = gain.mean
        return [
            Trade(gains, losses) if gains and losses and not (setting.is_single_task or setting.is_rival) else None
            for setting, (gains, losses) in found.items()
        ]

    def ranks(self) -> list[float | None]:
        """Return the average place of each setting, over the main metrics of all tasks, seeds and folds."""
        cases = {(task, MAIN[kind]): HIGHER[MAIN[kind]] for task, kind in self.tasks if kind in MAIN}
        results = {
            place: {
                (task, metric, repetition): value
                for task, metric in cases
                for repetition, value in self.values(setting, metric, task).items()
            }
            for place, setting in enumerate(self.settings)
        }
        higher = {case: cases[case[:2]] for by_case in results.values() for case in by_case}
        ranks = average_ranks(results, higher)
        return [ranks[place] for place in range(len(self.settings))]

    def gains(self) -> list[Summary | None]:
        """Return Δm in per cent against single-task models, over seeds; None where there are none to compare with."""
        alone = [setting for setting in self.settings if setting.is_single_task]
        gains: list[Summary | None] = []
        for setting in self.settings:
            single = None if setting.is_single_task else _nearest(setting, alone)
            gains.append(None if single is None else self._gain(setting, single))
        return gains

    def _gain(self, setting: Setting, single: Setting) -> Summary:
        higher = {task: HIGHER[MAIN[kind]] for task, kind in self.tasks if kind in MAIN}
        metrics = {task: MAIN[kind] for task, kind in self.tasks if kind in MAIN}
        gains = []
        for repetition, run in setting.finished.items():
            if (alone := single.finished.get(repetition)) is not None:
                ours = {task: self.value(run, metric, task) for task, metric in metrics.items()}
                theirs = {task: self.value(alone, metric, task) for task, metric in metrics.items()}
                gains.append(delta_m(ours, theirs, higher))
        return summarise(gains)

    @property
    def rivals(self) -> tuple[Setting, ...]:
        """The settings that are no models of ours, such as boosted trees."""
        return tuple(setting for setting in self.settings if setting.is_rival)

    def training_times(self) -> list[Summary]:
        """Return the seconds of training of each setting, without evaluation at the end, over seeds."""
        return [self._of_results(setting, "seconds") for setting in self.settings]

    def sizes(self) -> list[Summary]:
        """Return the bytes on disk of the trained model, or of all models together, of each setting, over seeds."""
        return [self._of_results(setting, "bytes") for setting in self.settings]

    def step_times(self) -> list[tuple[Summary, float | None]]:
        """Return the milliseconds of a step, and how many times those of the baseline in the same model they are."""
        times = {setting: self._of_results(setting, "milliseconds_per_step") for setting in self.settings}
        listed = []
        for setting, time in times.items():
            base = self.base_of(setting)
            least = None if base is None else times[base].mean
            listed.append((time, None if time.mean is None or not least else time.mean / least))
        return listed

    def _of_results(self, setting: Setting, name: str) -> Summary:
        return summarise([as_number((run.result or {}).get(name)) for run in setting.finished.values()])


def studies(collection: Collection, baseline: str | None = None) -> tuple[Study, ...]:
    """Return the runs by data set, those of one data set by model, method and options."""
    by_data: dict[str, list[RunRecord]] = {}
    for run in collection.runs:
        by_data.setdefault(_data_key(run, collection.runs), []).append(run)
    return tuple(_study(runs, baseline) for runs in by_data.values())


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return settings by their paths: {"model": {"name": "ple"}} is {"model.name": "ple"}."""
    settings: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, dict) and value:
            settings |= flat(value, f"{prefix}{name}.")
        else:
            settings[f"{prefix}{name}"] = value
    return settings


def as_number(value: object) -> float | None:
    """Return a finite number; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


def _data_key(run: RunRecord, runs: Iterable[RunRecord]) -> str:
    if (key := _told_key(run)) is not None:
        return key
    # A run that has not said on which data it is belongs to the only data set, or to that of its name.
    known = {key: _name_and_folds(other) for other in runs if (key := _told_key(other)) is not None}
    same = [key for key, name in known.items() if name == _name_and_folds(run)]
    return next(iter(known)) if len(known) == 1 else same[0] if same else str(run.data.get("name", "unknown"))


def _told_key(run: RunRecord) -> str | None:
    """Return what names the data of a run, as it says itself; all folds of a table are the same data."""
    whole, folds = run.data.get("whole"), part(run.data, "fold").get("of")
    if isinstance(whole, str) and folds is not None:
        return f"{whole} in {folds} folds"
    fingerprint = run.data.get("fingerprint")
    return fingerprint if isinstance(fingerprint, str) else None


def _name_and_folds(run: RunRecord) -> tuple[object, object]:
    return run.data.get("name"), part(run.data, "fold").get("of")


def _study(runs: Sequence[RunRecord], baseline: str | None) -> Study:
    about = next((run for run in runs if run.data.get("fingerprint")), runs[0])
    tasks = next((run.tasks for run in runs if run.tasks), ())
    settings = _settings(runs)
    bases = _bases(settings, baseline)
    # The baseline comes first and is drawn in the colour of text.
    first = {base.method for base in bases}
    methods = sorted(dict.fromkeys(setting.method for setting in settings), key=lambda method: method not in first)
    order = {method: place for place, method in enumerate(methods)}
    models = list(dict.fromkeys(setting.model for setting in settings))
    settings.sort(key=lambda setting: (models.index(setting.model), order[setting.method]))
    styled = {setting: replace(setting, style=order[setting.method]) for setting in settings}
    return Study(about.data, tasks, tuple(styled.values()), tuple(runs), tuple(styled[base] for base in bases))


def _bases(settings: Sequence[Setting], wanted: str | None) -> list[Setting]:
    """Return the baselines: what is wanted, what the first comparison asks for, the sum, or the first method."""
    ours = [setting for setting in settings if not setting.is_rival] or list(settings)
    shared = [setting for setting in ours if not setting.is_single_task] or ours
    if wanted is not None and (bases := of_method(shared, wanted)):
        return bases
    asked = next((asked for setting in shared for run in setting.runs if (asked := _asked_baseline(run))), None)
    if asked is not None and (bases := [setting for setting in shared if _is_of(setting.runs[0], asked)]):
        return bases
    return of_method(shared, "sum") or of_method(shared, shared[0].method)


def of_method(settings: Sequence[Setting], wanted: str) -> list[Setting]:
    """Return the settings with this label (cagrad:c=0.3 is short for one), or all of a method without variants."""
    name, _, options = wanted.partition(":")
    label = f"{name} ({', '.join(options.split(','))})" if options else name
    if labelled := [setting for setting in settings if setting.method == label]:
        return labelled
    alike = [setting for setting in settings if setting.runs[0].method == wanted]
    if len({_text(setting.runs[0].options("method") or {}) for setting in alike}) > 1:
        variants = ", ".join(dict.fromkeys(repr(setting.method) for setting in alike))
        raise InputError(f"baseline={wanted!r} is several of the methods: {variants}; name one of them")
    return alike


def _asked_baseline(run: RunRecord) -> Asked | None:
    """Return the baseline of the comparison that a run belongs to."""
    base = run.asked.get("baseline")
    base = base.get("name") if isinstance(base, dict) else base
    return next((one for one in asked_for(run.asked, "method") if one.label == base), None)


def _is_of(run: RunRecord, method: Asked) -> bool:
    """Return whether a run is of a method with its options; tuning may have given it more."""
    if (place := _place(run, "method")) is not None:
        one = asked_for(run.asked, "method")[place]
        return (one.name, one.options) == (method.name, method.options)
    return run.method == method.name and (run.options("method") or {}) == method.options


def _nearest(setting: Setting, others: Sequence[Setting]) -> Setting | None:
    """Return the one to compare with: of the same comparison, and most alike in the rest; None if two are."""
    places, conditions = {run.path.parent for run in setting.runs}, _conditions(setting)

    def far(other: Setting) -> tuple[bool, int]:
        theirs = _conditions(other)
        apart = sum(_text(conditions.get(name)) != _text(theirs.get(name)) for name in conditions | theirs)
        return places.isdisjoint(run.path.parent for run in other.runs), apart

    ranked = sorted(others, key=far)
    return None if not ranked or (len(ranked) > 1 and far(ranked[0]) == far(ranked[1])) else ranked[0]


def _conditions(setting: Setting) -> dict[str, Any]:
    """Return the settings of its runs besides the model, the method and what does not matter."""
    config = next((run.config for run in setting.runs if run.config), {})
    return {name: value for name, value in _mattering(config).items() if not name.startswith(("model.", "method."))}


def _mattering(config: Json) -> dict[str, Any]:
    return {
        name: value for name, value in flat(config).items() if name not in _NO_MATTER and not name.startswith("data.")
    }


_Key = tuple[str, str, str]  # model with its options, method, configuration


def _settings(runs: Sequence[RunRecord]) -> list[Setting]:
    """Return groups of runs that are alike but for the seed and the fold, in the order asked for."""
    groups: dict[_Key, list[RunRecord]] = {}
    configs: dict[_Key, dict[str, Any]] = {}
    models = _model_labels(runs)
    silent = []
    first_folds: dict[Path, dict[str, Any]] = {}
    for run in runs:
        config = _mattering(run.config)
        if not config:
            silent.append(run)
            continue
        if run.repetition.fold is not None:
            # What a recipe chose by the number of rows may differ a little from fold to fold.
            config = first_folds.setdefault(_but_for_the_seed(run), config)
        key = (models[run], run.method, _text(config))
        groups.setdefault(key, []).append(run)
        configs[key] = config
    for run in silent:  # no configuration (yet)
        options = run.options("method") or {}
        key = _kin(run, models[run], groups) or (models[run], run.method, _text(options))
        groups.setdefault(key, []).append(run)
        configs.setdefault(key, flat({"method": {"options": options}}))

    def order(key: _Key) -> list[int]:
        places = [_place(groups[key][0], what) for what in ("model", "method")]
        return [len(runs) if place is None else place for place in places]

    return [Setting(key[0], _label(key, configs), tuple(groups[key])) for key in sorted(groups, key=order)]


def _kin(run: RunRecord, model: str, groups: Mapping[_Key, Sequence[RunRecord]]) -> _Key | None:
    """Return the key of the group that a run without a configuration belongs to."""
    alike = [key for key in groups if key[:2] == (model, run.method)]
    # The other seeds and folds of a comparison have the same name; what was tuned may have given them more options.
    for key in alike:
        if any(_but_for_the_seed(other) == _but_for_the_seed(run) for other in groups[key]):
            return key
    wanted = run.options("method") or {}
    return next((key for key in alike if wanted.items() <= (groups[key][0].options("method") or {}).items()), None)


def _but_for_the_seed(run: RunRecord) -> Path:
    """Return the path of a run of a comparison, without its end `-seed3` or `-seed3-fold1`."""
    return run.path.with_name(re.sub(r"-seed\d+(-fold\d+)?$", "", run.name))


def _place(run: RunRecord, what: str) -> int | None:
    """Return which of its comparison's models or methods a run is of: that with most of its options, and no others."""
    listed = asked_for(run.asked, what)
    name, options = run.model if what == "model" else run.method, run.options(what) or {}
    fitting = [place for place, one in enumerate(listed) if one.name == name and one.options.items() <= options.items()]
    return max(fitting, key=lambda place: len(listed[place].options), default=None)


def _model_labels(runs: Sequence[RunRecord]) -> dict[RunRecord, str]:
    """Return the model of each run, with the options in which it differs from others of its name.

    What a comparison asks for as one model is one, even if some of its runs were tuned to have more options.
    """
    variants: dict[RunRecord, Json] = {}
    twins: dict[str, dict[str, Json]] = {}  # by the model's name, then by options
    for run in runs:
        if (options := run.options("model")) is not None:
            place = _place(run, "model")
            variants[run] = options if place is None else asked_for(run.asked, "model")[place].options
            twins.setdefault(run.model, {})[_text(variants[run])] = variants[run]
    labels: dict[RunRecord, str] = {}
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
    """Return the method, with its options, the settings in which it differs from others of its name and model, and
    those of which most others in the table have another value."""
    twins = [config for other, config in configs.items() if other[:2] == key[:2]]
    # A rival has settings of its own kind.
    alike = [config for other, config in configs.items() if (other[0] == RIVAL) == (key[0] == RIVAL)]
    own = {*_own(configs[key], twins), *_unusual(configs[key], alike)}
    names = [name for name in configs[key] if name in own or name.startswith("method.options.")]
    # A method without options is called by its name alone.
    names = [name for name in names if name != "method.options"]
    if not names:
        return key[1]
    shown = ", ".join(f"{name.removeprefix('method.options.')}={configs[key][name]}" for name in names[:3])
    return f"{key[1]} ({shown}{', …' if len(names) > 3 else ''})"


def _unusual(config: Mapping[str, Any], configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the settings, besides those of model and method, that are not as most configurations have them."""
    others = [name for name in config if not name.startswith(("model.", "method."))]
    usual = _differing([{name: other[name] for name in others if name in other} for other in configs])
    return [name for name in others if name in usual and _text(config[name]) != usual[name]]


def _differing(configs: Sequence[Mapping[str, Any]]) -> dict[str, str | None]:
    """Return the settings in which configurations that have them differ, each with the value that most have, as text.

    It is None if two values are as common.
    """
    found: dict[str, Counter[str]] = {}
    for config in configs:
        for name, value in config.items():
            found.setdefault(name, Counter())[_text(value)] += 1
    usual: dict[str, str | None] = {}
    for name, values in found.items():
        if len(values) > 1:
            (first, most), (_, second), *_ = values.most_common(2)
            usual[name] = first if most > second else None
    return usual


def _own(settings: Mapping[str, Any], twins: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of the settings that not all twins have, or not with the same value."""
    return [
        name
        for name, value in settings.items()
        if any(name not in twin or _text(twin[name]) != _text(value) for twin in twins)
    ]


def _text(value: object) -> str:
    return json.dumps(value, default=str, sort_keys=True)
