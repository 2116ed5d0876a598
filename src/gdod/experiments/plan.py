"""Plan a comparison: models × methods × seeds (× folds), each with its whole configuration, checked before any work."""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gdod._checks import nearest
from gdod.errors import InputError
from gdod.experiments.run_config import RunConfig, check_run, run_config
from gdod.report.runs import RIVAL
from gdod.training.config import Settings, contained, inside, merged, nested, read_settings
from gdod.yaml_toml import parse_value

PAPER = ("sum", "uncertainty", "gradnorm", "gradreg", "mgda", "pcgrad", "cagrad", "gdod", "weighted-gdod")
"""The methods that the GDOD paper compares."""
SINGLE_TASK = "single-task"
SEEDS = 3

_SINGULAR = {"models": "model", "methods": "method", "seeds": "seed", "rivals": "rival"}
_EXAMPLES = {"models": "[mmoe, ple]", "methods": "[sum, gdod]", "rivals": "[lightgbm, catboost]"}


@dataclass(frozen=True)
class Spec:
    """A model or a method with its options."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """What names of folders call it, such as `cagrad_c=0.3`."""
        if not self.options:
            return self.name
        text = ",".join(f"{name}={value}" for name, value in self.options.items())
        safe = re.sub(r"[^\w.=,+-]+", "", text)
        if len(safe) > 60:
            safe = f"{safe[:50]}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"
        return f"{self.name}_{safe}"

    def to_json(self) -> Settings:
        return {"name": self.name, "options": dict(self.options)}


@dataclass(frozen=True)
class PlannedRun:
    """One run of a comparison. That of a rival has the model "rival", and the rival as its method."""

    name: str
    model: Spec
    method: Spec
    seed: int
    config: RunConfig


@dataclass(frozen=True)
class ComparisonPlan:
    """All runs of a comparison, in the order in which they are made."""

    models: tuple[Spec, ...]
    methods: tuple[Spec, ...]
    seeds: tuple[int, ...]
    baseline: Spec
    single_task: Spec | None
    runs: tuple[PlannedRun, ...]
    tuned: tuple[str, ...] = ()
    rivals: tuple[Spec, ...] = ()
    folds: int | None = None
    """Into how many folds the table is cut, each of which is the test part once; None: no cross-validation."""

    @property
    def config(self) -> RunConfig:
        """The configuration of the first run: data, stopping and the like are the same in all."""
        return self.runs[0].config

    def to_json(self) -> Settings:
        """Return the content of `comparison.json`. Names are as in the names of run folders."""
        common = self.config.model_dump(mode="json")
        return {
            "models": [_named(spec, "model") for spec in self.models],
            "methods": [_named(spec, "method") for spec in self.methods],
            "seeds": list(self.seeds),
            "folds": self.folds,
            "baseline": self.baseline.label,
            "single_task": None if self.single_task is None else _named(self.single_task, "model"),
            "rivals": [_named(spec, "rival") for spec in self.rivals],
            "tuned": list(self.tuned),
            "settings": {name: value for name, value in common.items() if name not in ("model", "method", "seed")},
        }


def _named(spec: Spec, what: str) -> Settings:
    return {**spec.to_json(), "name": spec.label, what: spec.name}


def read_plan(file: Path | None = None, options: Mapping[str, Any] | None = None) -> ComparisonPlan:
    """Return the comparison that a YAML or TOML file describes, with options over it.

    Settings are those of `gdod train`, and besides them `models`, `methods` (lists of names or of
    {name, options}), `rivals` (likewise), `seeds` (a list, or how many), `folds` (how many), `baseline`,
    `single_task` and `tuned`.
    """
    settings: Settings = {} if file is None else inside(read_settings(file), file.parent)
    listed = _texts("tuned", settings.pop("tuned", []))
    tuned = [] if file is None else [contained(one, file.parent, "tuned", "tuned") for one in listed]
    given = nested(options or {})
    tuned = [Path(one) for one in _texts("tuned", given.pop("tuned", []))] or tuned
    return make_plan(over_file(settings, given), tuned)


def over_file(settings: Settings, given: Settings) -> Settings:
    """Return the settings of a file with those that were given over them; `methods` goes over `method`, too."""
    singular = [one for plural, one in _SINGULAR.items() if plural in given]
    return merged({name: value for name, value in settings.items() if name not in singular}, given)


def make_plan(settings: Mapping[str, Any], tuned: Sequence[Path] = ()) -> ComparisonPlan:
    """Return the comparison that settings describe; ``tuned``: files or folders that `gdod tune` wrote."""
    rest = {"tensorboard": False, **settings}
    models = read_specs(rest, "models", ("shared-bottom",))
    rivals = read_specs(rest, "rivals", (), few=True)
    methods = read_specs(rest, "methods", PAPER, few=bool(rivals))
    folds = read_folds(rest)
    seeds = read_seeds(rest, SEEDS if folds is None else 1)
    single = read_flag(rest, "single_task")
    alone = next((model for model in models if model.name == SINGLE_TASK), Spec(SINGLE_TASK))
    single = single or alone in models
    models = tuple(model for model in models if model.name != SINGLE_TASK)
    if not models:
        raise InputError("models: there is none besides 'single-task'; expected at least one that is compared with it")
    baseline = _baseline(rest.pop("baseline", None), methods or rivals)
    read = [_Tuned.read(path) for path in tuned]
    pairs = [(model, method) for model in models for method in methods]
    pairs += [(Spec(RIVAL), rival) for rival in rivals]
    for one in read:
        one.check_used(pairs)
        one.check_recipe(rest.get("recipe", "strong"))
    if single:
        pairs.append((alone, Spec("sum")))
    # All of one seed and fold before the next: a comparison that is stopped early has something of everything.
    numbers = (None,) if folds is None else range(1, folds + 1)
    runs = on_same_data(
        [
            _planned(_on_fold(rest, number, folds), model, method, seed, read)
            for seed in seeds
            for number in numbers
            for model, method in pairs
        ]
    )
    for run in runs[: len(pairs)]:
        check_run(run.config)
    return ComparisonPlan(
        models,
        methods,
        seeds,
        baseline,
        alone if single else None,
        runs,
        tuple(str(one.path) for one in read),
        rivals,
        folds,
    )


def on_same_data(runs: Sequence[PlannedRun]) -> tuple[PlannedRun, ...]:
    """Return the runs, after making sure that all have the same features; rivals, which use none, get those, too.

    They may be on different folds of the data.
    """
    first = runs[0]
    made = []
    for run in runs:
        same = first.config.data.model_copy(update={"fold": run.config.data.fold})
        if run.model.name == RIVAL:
            run = replace(run, config=run.config.model_copy(update={"data": same}))
        if run.config.data != same:
            raise InputError(
                f"{run.name} has other data.features than {first.name}, by what was tuned; all runs of a comparison "
                "are on the same data: give all of them these features, e.g. --set data.features.pairs=0"
            )
        made.append(run)
    return tuple(made)


def read_spec(given: object, what: str) -> Spec:
    """Return a model or method with its options from `cagrad:c=0.3` or {name: cagrad, options: {c: 0.3}}."""
    if isinstance(given, Mapping):
        options = given.get("options", {})
        if set(given) - {"name", "options"} or not isinstance(given.get("name"), str) or not isinstance(options, dict):
            raise InputError(f"{what}: {given!r}; expected a name, or {{name: ..., options: {{...}}}}")
        return Spec(given["name"], options)
    if not isinstance(given, str) or not given.strip():
        raise InputError(f"{what}: {given!r}; expected a name such as 'gdod', or with options 'cagrad:c=0.3'")
    name, sign, text = given.strip().partition(":")
    if not sign:
        return Spec(name)
    options = {}
    for pair in re.split(r",(?=\s*\w+\s*=)", text):  # not at the commas of a list
        option, sign, value = pair.partition("=")
        if not sign or not option.strip() or not value.strip():
            raise InputError(f"{what}: {given!r}; expected options as name=value, e.g. 'cagrad:c=0.3,rescale=1'")
        options[option.strip()] = parse_value(value, f"{what}: {given!r}")
    return Spec(name, options)


def read_specs(rest: Settings, what: str, default: Iterable[str], *, few: bool = False) -> tuple[Spec, ...]:
    """Take the "models", "methods" or "rivals" out of the settings, and return them; ``few``: there may be none."""
    singular = _SINGULAR[what]
    if what in rest and singular in rest:
        raise InputError(f"both `{what}` and `{singular}` are given; expected one of them")
    given = rest.pop(what, None)
    if given is None:
        given = [rest.pop(singular)] if singular in rest else list(default)
    if not isinstance(given, list | tuple) or not (given or few):
        raise InputError(f"{what}={given!r}; expected a list of names, e.g. {_EXAMPLES[what]}")
    specs = tuple(read_spec(one, what) for one in given)
    labels = [spec.label for spec in specs]
    if twice := next((label for label in labels if labels.count(label) > 1), None):
        raise InputError(f"{what}: {twice!r} is given twice")
    return specs


def read_seeds(rest: Settings, default: int = SEEDS) -> tuple[int, ...]:
    """Take the seeds out of the settings, and return them."""
    if "seeds" in rest and "seed" in rest:
        raise InputError("both `seeds` and `seed` are given; expected one of them")
    seed = rest.pop("seed", None)
    given = rest.pop("seeds", default if seed is None else [seed])
    if isinstance(given, int) and not isinstance(given, bool) and given >= 1:
        return tuple(range(given))
    whole = isinstance(given, list | tuple) and all(type(one) is int and one >= 0 for one in given)
    if not whole or not given or len(set(given)) < len(given):
        raise InputError(f"seeds={given!r}; expected how many, or a list of different whole numbers, e.g. [0, 1, 2]")
    return tuple(given)


def read_folds(rest: Settings) -> int | None:
    """Take the number of folds out of the settings, and return it; None: there are none."""
    given = rest.pop("folds", None)
    data = rest.get("data")
    if given is not None and isinstance(data, Mapping) and data.get("fold") is not None:
        raise InputError("both `folds` and `data.fold` are given; leave data.fold out, each run has its own")
    if given is not None and (type(given) is not int or not 2 <= given <= 255):
        raise InputError(f"folds={given!r}; expected a whole number from 2 to 255, such as 5")
    return given


def _on_fold(settings: Settings, number: int | None, folds: int | None) -> Settings:
    """Return the settings with a fold of the data; ``number`` None: as they are."""
    if number is None:
        return settings
    data = settings.get("data", {})
    data = {"source": data} if isinstance(data, str) else data
    return {**settings, "data": {**data, "fold": {"number": number, "of": folds}}}


def read_flag(rest: Settings, name: str) -> bool:
    """Take a setting that is true or false out of the settings, and return it; false if it is not there."""
    value = rest.pop(name, False)
    if not isinstance(value, bool):
        raise InputError(f"{name}={value!r}; expected true or false")
    return value


def _texts(name: str, given: object) -> list[str]:
    given = [given] if isinstance(given, str | Path) else given
    if not isinstance(given, list | tuple):
        raise InputError(f"{name}={given!r}; expected a list of files")
    return [str(one) for one in given]


def _baseline(given: object, methods: Sequence[Spec]) -> Spec:
    if given is None:
        return next((spec for spec in methods if spec.name == "sum"), methods[0])
    wanted = read_spec(given, "baseline")
    fitting = [spec for spec in methods if wanted in (spec, Spec(spec.name))]
    if len(fitting) != 1:
        labels = [spec.label for spec in methods]
        said, hint = ("several", "; name one with its options") if fitting else ("none", nearest(wanted.label, labels))
        raise InputError(f"baseline={given!r} is {said} of the methods: {', '.join(map(repr, labels))}{hint}")
    return fitting[0]


def _planned(common: Settings, model: Spec, method: Spec, seed: int, tuned: "Sequence[_Tuned]") -> PlannedRun:
    settings: Settings = common
    for one in tuned:
        if one.fits(model, method):
            settings = merged(settings, {name: value for name, value in one.settings.items() if name != "recipe"})
    config = config_of(settings, model, method, seed)
    fold = config.data.fold
    name = f"{model.label}-{method.label}-seed{seed}" + ("" if fold is None else f"-fold{fold.number}")
    return PlannedRun(name, model, method, seed, config)


def config_of(settings: Settings, model: Spec, method: Spec, seed: int) -> RunConfig:
    """Return the configuration of a run with these settings, of a model, a method and a seed."""
    over: Settings = {"seed": seed}
    for what, spec in (("model", model), ("method", method)):
        over[what] = {"name": spec.name, **({"options": dict(spec.options)} if spec.options else {})}
    return run_config(merged(settings, over))


@dataclass(frozen=True)
class _Tuned:
    """What `gdod tune` found for one model and one method."""

    path: Path
    settings: Settings

    @staticmethod
    def read(path: Path) -> "_Tuned":
        file = path / "best.yaml" if path.is_dir() else path
        settings = read_settings(file)
        for what in ("model", "method"):
            if not isinstance(settings.get(what), dict) or "name" not in settings[what]:
                raise InputError(f"{file} names no {what}; expected a best.yaml that gdod tune wrote")
        outside = {"data", "seed"} & set(settings)
        if isinstance(data := settings.get("data"), dict) and set(data) == {"features"}:
            outside.remove("data")
        if outside:
            raise InputError(f"{file} sets {', '.join(sorted(outside))}, which are the comparison's to say")
        return _Tuned(file, settings)

    def fits(self, model: Spec, method: Spec) -> bool:
        names = (self.settings["model"]["name"], self.settings["method"]["name"])
        return names == (model.name, method.name)

    def check_recipe(self, recipe: str) -> None:
        tuned = self.settings.get("recipe", recipe)
        if tuned != recipe:
            raise InputError(
                f"{self.path} was found with the recipe {tuned!r}, and the comparison has {recipe!r}; "
                f"give it the same, with --recipe {tuned}"
            )

    def check_used(self, pairs: Iterable[tuple[Spec, Spec]]) -> None:
        if not any(self.fits(model, method) for model, method in pairs):
            names = f"{self.settings['model']['name']} with {self.settings['method']['name']}"
            raise InputError(f"{self.path} is for {names}, which is not among the runs; leave it out, or add them")
