"""Search for good settings of one model and one method. Only the validation part is looked at.

Every trial is one run for each seed, in a folder of its own. What optuna knows is in a journal beside them,
so a search that was interrupted goes on where it was, and finished trials are not repeated.
"""

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from gdod._checks import check_choice
from gdod._files import make_folder, read_json, write_json, write_text
from gdod.errors import InputError
from gdod.experiments.compare import (
    check_place,
    check_same,
    check_tasks,
    continued,
    prepare_data,
    recipe_of,
    sentences_of_all,
    share_cores,
)
from gdod.experiments.plan import Spec, read_seeds, read_spec
from gdod.experiments.pool import Ended, Job, run_jobs
from gdod.experiments.recipe_space import own_point, recipe_space
from gdod.experiments.rivals.inputs import prepare_input
from gdod.experiments.run_config import RunConfig, check_run, run_config, stored_config, with_threads
from gdod.experiments.search import Grid, Point, Range, Space, as_settings, check_space, declared, read_space
from gdod.experiments.watch import Watch
from gdod.report.runs import RIVAL
from gdod.training.config import Settings, TrainConfig, check_config, inside, merged, nested, read_settings
from gdod.training.evaluation import monitored_score
from gdod.training.lock import locked
from gdod.training.recipes import TableSize, apply_recipe
from gdod.training.run import Folder
from gdod.training.seeds import seed_for

if TYPE_CHECKING:
    from optuna import Study as Optuna
    from optuna.distributions import BaseDistribution

TRIALS = 20
"""How many trials a search in ranges makes, unless it is told."""
RECIPE = "recipe"
"""The name of the space that `recipe_space` gives."""


@dataclass(frozen=True)
class Search:
    """What to search: the settings that stay, and where to look for the others."""

    settings: Settings
    space: Space
    seeds: tuple[int, ...]
    trials: int
    wanted: int | None = None
    """How many trials were asked for; a grid has no more than its points."""

    start: Point | None = None
    """The first point to try; None: any."""

    def config(self, point: Point, seed: int) -> RunConfig:
        """Return the configuration at a point of the space."""
        return run_config(merged(self.settings, nested({**as_settings(point), "seed": seed})))

    @property
    def first_point(self) -> dict[str, Any]:
        return {name: one.values[0] if isinstance(one, Grid) else one.low for name, one in self.space.items()}

    @property
    def first_config(self) -> RunConfig:
        return self.config(self.first_point, self.seeds[0])

    @property
    def is_grid(self) -> bool:
        return all(isinstance(one, Grid) for one in self.space.values())

    def points(self) -> list[dict[str, Any]]:
        """Return every point of the grid."""
        values = [one.values for one in self.space.values() if isinstance(one, Grid)]
        return [dict(zip(self.space, point, strict=True)) for point in product(*values)]

    def to_json(self) -> Settings:
        """Return the content of `tuning.json`, the same for the same search with more trials."""
        space = {name: one.to_json() for name, one in self.space.items()}
        return {"settings": self.common(self.first_config), "search": space, "seeds": list(self.seeds)}

    def common(self, config: RunConfig) -> Settings:
        """Return the settings of a configuration that are the same in all trials."""
        settings = config.model_dump(mode="json")
        for path in ("seed", "threads", *self.space):
            *outer, last = path.split(".")
            place = settings
            for name in outer:
                place = place.get(name, {})
            place.pop(last, None)
        return settings


@dataclass(frozen=True)
class Best:
    """The best trial of a search."""

    folder: Path
    value: float
    settings: dict[str, Any]
    """The settings that were searched, by their paths."""
    trial: int
    trials: int
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def file(self) -> Path:
        return self.folder / "best.yaml"


def read_search(
    file: Path | None = None,
    options: Mapping[str, Any] | None = None,
    space: Mapping[str, Grid | Range] | None = None,
    trials: int | None = None,
    named: str | None = None,
) -> Search:
    """Return the search that a YAML or TOML file describes, with options over it.

    Settings are those of `gdod train`, and besides them `search` (a space, or the name of one), `trials` and `seeds`
    (a list, or how many). Without any space the grid is searched that the method declares, and if it declares none the
    space of the recipe. `rival` in place of `model` and `method` names a rival, whose options are searched.

    Args:
        file: the file.
        options: settings over those of the file, nested or by a path with dots.
        space: where to look, in addition to the file's `search`, over which it wins.
        trials: how many trials to make.
        named: the name of a space, to which the others are added: "recipe", the parts of the strong recipe around what
            it chooses for this table, without those that are given. For that the data is prepared.
    """
    settings: Settings = {} if file is None else inside(read_settings(file), file.parent)
    settings = merged(settings, nested(options or {}))
    settings = {"tensorboard": False, **settings}
    asked = settings.pop("search", {})
    if isinstance(asked, str):
        named, asked = named or asked, {}
    spaces = read_space(asked) | dict(space or {})
    wanted = settings.pop("trials", None) if trials is None else trials
    seeds = read_seeds(settings, 1)
    if (rival := settings.pop("rival", None)) is not None:
        if both := [name for name in ("model", "method") if name in settings]:
            raise InputError(f"both a rival and a {both[0]} are given; expected one of them")
        settings |= {"model": RIVAL, "method": rival}
    settings["model"] = read_spec(settings.get("model", "shared-bottom"), "model").to_json()
    if "method" in settings:
        settings["method"] = read_spec(settings["method"], "method").to_json()
    elif (config := check_config(settings)).recipe == "paper":
        raise InputError("no method is given; expected one, e.g. --method cagrad")
    else:
        settings["method"] = Spec(config.method.name).to_json()
    if named is None and not spaces:
        method = settings["method"]["name"]
        spaces = declared(method, rival=settings["model"]["name"] == RIVAL)
        named = None if spaces else RECIPE
        if named and settings.get("recipe") == "paper":
            raise InputError(
                f"method {method!r} declares no grid; say what to search, e.g. --range optimizer.lr=1e-4..1e-2:log"
            )
    check_space(spaces)
    if wanted is not None and (type(wanted) is not int or wanted < 1):
        raise InputError(f"trials={wanted!r}; expected a whole number of at least 1")
    search = Search(settings, spaces, seeds, wanted or 0)
    _check_ends(search)
    if named is not None:
        search = _with_named(search, named)
    points = search.points() if search.is_grid else []
    trials = min(wanted or len(points), len(points)) if points else wanted or TRIALS
    return replace(search, trials=trials, wanted=wanted)


def _with_named(search: Search, named: str) -> Search:
    """Return the search with the space of this name, to which the one that it has is added."""
    check_choice("space", named, (RECIPE,))
    config = search.config({}, search.seeds[0])
    if not isinstance(config, TrainConfig):
        raise InputError(f"the space {named!r} is for networks, and a rival has its own; leave one of them out")
    if config.recipe == "paper":
        raise InputError(
            f"the space {named!r} is that of the recipe 'strong', and the recipe is 'paper'; leave one of them out"
        )
    check_run(config)
    full, _ = apply_recipe(config, TableSize.of(prepare_data(config)))
    space = recipe_space(full, config.model_dump()) | search.space
    search = replace(search, space=space, start=own_point(space, full))
    _check_ends(search)
    return search


def tune(
    search: Search,
    out: str | Path,
    *,
    processes: int | None = None,
    watch: Watch | None = None,
    command: Sequence[str] | None = None,
) -> Best:
    """Make the trials that are not finished yet, write `best.yaml`, and return it. Arguments as for `compare`."""
    folder, watch = Path(out), watch or Watch()
    check_place(folder, "tuning.json", "trials")
    search = _as_begun(search, folder)
    _check_same(search, folder)
    make_folder(folder / "trials")
    with locked(folder, watch.say) as handles, watch:
        config = search.first_config
        dataset = prepare_data(config)
        check_tasks(config, dataset)
        if config.model.name == RIVAL:
            prepare_input(config.data)
        if not len(dataset.validation):
            raise InputError(f"{dataset.name} has no validation part, by which settings are chosen; change its split")
        _describe(search, folder, dataset.fingerprint)
        if search.wanted is not None and search.wanted > search.trials:
            watch.say(f"the grid has {search.trials} points: {search.trials} trials, not {search.wanted}")
        trials = _Trials(search, folder, processes)
        watch.begin(trials.total, trials.finished)
        run_jobs(
            trials.jobs(),
            trials.processes,
            threads=trials.threads,
            watch=watch,
            on_end=trials.ended,
            command=command,
            keep_open=handles,
        )
    return _written(search, folder, trials)


class _Trials:
    """The trials of a search: what optuna asks for as runs, and their results for optuna."""

    def __init__(self, search: Search, folder: Path, processes: int | None) -> None:
        self.search, self.folder = search, folder
        self.study = _study(folder, search)
        threads = search.first_config.threads
        self.processes, self.threads = share_cores(processes, search.trials * len(search.seeds), threads)
        self.results: dict[int, dict[int, float]] = {}
        """The value on validation, by trial and seed."""
        self.failed: dict[str, str] = {}
        self.prepared: set[str] = set()
        """The data that is in the cache, as configurations name it."""

    @property
    def total(self) -> int:
        return self.search.trials * len(self.search.seeds)

    @property
    def finished(self) -> int:
        complete = len(self._states("COMPLETE"))
        going = [(number, seed) for number in self._states("RUNNING") for seed in self.search.seeds]
        return complete * len(self.search.seeds) + sum(self._place(*one).is_finished for one in going)

    def jobs(self) -> Iterator[Job]:
        """Yield the runs of trials that were begun before, then those of new ones, until there are enough."""
        for number in self._states("RUNNING"):
            yield from self._jobs(number)
        spaces = {name: one.distribution() for name, one in self.search.space.items()}
        if self.search.is_grid:
            for point in self.search.points()[: self.search.trials]:
                if not self._tried(point):
                    yield from self._jobs(self._add(point, spaces))
            return
        if self.search.start is not None and not self.study.trials:
            self.study.enqueue_trial(dict(self.search.start))
        while len(self._states("COMPLETE", "RUNNING")) + len(self.failed_trials) < self.search.trials:
            yield from self._jobs(self.study.ask(spaces).number)

    def _tried(self, point: dict[str, Any]) -> bool:
        going = self._states("COMPLETE", "RUNNING")
        return any(self.study.trials[number].params == point for number in going)

    def _add(self, point: dict[str, Any], spaces: "dict[str, BaseDistribution]") -> int:
        from optuna.trial import TrialState, create_trial

        self.study.add_trial(create_trial(state=TrialState.RUNNING, params=point, distributions=spaces))
        return self.study.trials[-1].number

    @property
    def failed_trials(self) -> set[str]:
        return {name.split("/")[0] for name in self.failed}

    def _jobs(self, number: int) -> Iterator[Job]:
        point = self.study.trials[number].params
        for seed in self.search.seeds:
            place = self._place(number, seed)
            config = continued(self.search.config(point, seed), place)
            job = Job(f"{number}/seed{seed}", place.path, with_threads(config, self.threads), test=False)
            if place.is_finished:
                self.ended(Ended(job, read_json(place.result, "the result of a run")))
            else:
                self._prepare(config)
                yield job

    def _prepare(self, config: RunConfig) -> None:
        """Put the data into the cache if it is not there with these features: once, and not in each process."""
        if (data := config.data.model_dump_json()) not in self.prepared:
            prepare_data(config)
            self.prepared.add(data)

    def ended(self, ended: Ended) -> None:
        """Tell optuna the value of a trial, once all its seeds have ended."""
        number = int(ended.job.name.split("/")[0])
        values = self.results.setdefault(number, {})
        value = None if ended.result is None else self._value(ended)
        values[ended.job.config.seed] = math.nan if value is None else value
        if value is None:
            self.failed[ended.job.name] = ended.message or "it has no figure to choose by"
        if len(values) == len(self.search.seeds):
            from optuna.trial import TrialState

            mean = math.fsum(values.values()) / len(values)
            if math.isnan(mean):
                self.study.tell(number, state=TrialState.FAIL)
            else:
                self.study.tell(number, mean)

    @staticmethod
    def _value(ended: Ended) -> float | None:
        assert ended.result is not None
        config, metrics = ended.job.config, ended.result["validation"]
        return None if metrics is None else monitored_score(metrics, config.stopping.monitor, config.task_weights or {})

    def _place(self, number: int, seed: int) -> Folder:
        return Folder((self.folder / "trials" / str(number) / f"seed{seed}").absolute())

    def _states(self, *names: str) -> list[int]:
        return [trial.number for trial in self.study.trials if trial.state.name in names]


def _study(folder: Path, search: Search) -> "Optuna":
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import optuna
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage = JournalStorage(JournalFileBackend(str(folder / "optuna.journal")))
    study = optuna.create_study(storage=storage, study_name="tune", direction="maximize", load_if_exists=True)
    # Another seed than at the beginning, or a search that goes on would draw the same points again.
    seed = seed_for("tune", search.seeds[0] + len(study.trials)) % 2**32
    study.sampler = optuna.samplers.TPESampler(seed=seed, constant_liar=True)
    return study


def _ends(search: Search) -> Iterator[RunConfig]:
    """Yield a configuration for every value of a list and every end of a range."""
    first = search.first_point
    for name, one in search.space.items():
        for value in one.values if isinstance(one, Grid) else (one.low, one.high):
            yield search.config({**first, name: value}, search.seeds[0])


def _check_ends(search: Search) -> None:
    """Raise what can be known before any run: wrong names and options, at the ends of every range."""
    for config in _ends(search):
        check_run(config)


def recipe_in_words(search: Search) -> list[str]:
    """Return sentences on what the recipe chooses in every trial, and why; nothing on what is searched."""
    config = search.first_config
    if not isinstance(config, TrainConfig) or config.recipe == "paper":
        return []
    configs = (config for config in _ends(search) if isinstance(config, TrainConfig))
    return sentences_of_all(configs, TableSize.of(prepare_data(config)))


def _as_begun(search: Search, folder: Path) -> Search:
    """Return the search with the recipe that the one in the folder was begun with, unless it names one."""
    path = folder / "tuning.json"
    if "recipe" in search.settings or not isinstance(search.first_config, TrainConfig) or not path.exists():
        return search
    before = read_json(path, "what a search was asked for")
    return replace(search, settings={**search.settings, "recipe": recipe_of(before)})


def _check_same(search: Search, folder: Path) -> None:
    path = folder / "tuning.json"
    if not path.exists():
        return
    before, now = read_json(path, "what a search was asked for"), search.to_json()
    stored = {name: before.get(name) for name in now}
    stored["settings"] = search.common(stored_config(before["settings"]))
    check_same(f"search in {folder}", stored, now)


def _describe(search: Search, folder: Path, fingerprint: str) -> None:
    path = folder / "tuning.json"
    before = read_json(path, "what a search was asked for").get("fingerprint") if path.exists() else fingerprint
    if before != fingerprint:
        raise InputError(f"the search in {folder} is on other data; choose another folder with --out")
    write_json(path, {**search.to_json(), "trials": search.trials, "fingerprint": fingerprint})


def _written(search: Search, folder: Path, trials: _Trials) -> Best:
    complete = trials._states("COMPLETE")
    if not complete:
        reason = next(iter(trials.failed.values()), "there are none")
        raise InputError(f"no trial in {folder} has finished: {reason}")
    best = trials.study.best_trial
    settings = as_settings({name: best.params[name] for name in search.space})
    assert best.value is not None
    outcome = Best(folder, best.value, settings, best.number, len(complete), trials.failed)
    write_text(outcome.file, _as_yaml(search, outcome))
    return outcome


def _as_yaml(search: Search, best: Best) -> str:
    """Return the best settings for `gdod train` and `gdod compare --tuned`, with the model and method they are for.

    Their recipe is among them, since it fills all other settings.
    """
    spec: dict[str, Spec] = {what: read_spec(search.settings[what], what) for what in ("model", "method")}
    config = search.first_config
    settings: Settings = {"recipe": config.recipe} if isinstance(config, TrainConfig) else {}
    settings |= {what: one.to_json() for what, one in spec.items()}
    settings = merged(settings, nested(best.settings))
    head = f"# The best of {best.trials} trials on validation: {best.value:.6g} (trial {best.trial}).\n"
    return head + yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)
