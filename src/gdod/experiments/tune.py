"""Search for good settings of one model and one method. Only the validation part is looked at.

Every trial is one run for each seed, in a folder of its own. What optuna knows is in a journal beside them,
so a search that was interrupted goes on where it was, and finished trials are not repeated.
"""

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from gdod._files import make_folder, read_json, write_json, write_text
from gdod.errors import InputError
from gdod.experiments.compare import (
    check_place,
    check_same,
    check_tasks,
    continued,
    prepare_data,
    share_cores,
    with_threads,
)
from gdod.experiments.plan import Spec, read_seeds, read_spec
from gdod.experiments.pool import Ended, Job, run_jobs
from gdod.experiments.search import Grid, Range, Space, check_space, declared, read_space
from gdod.experiments.watch import Watch
from gdod.training.config import Settings, TrainConfig, check_config, inside, merged, nested, read_settings
from gdod.training.evaluation import monitored_score
from gdod.training.lock import locked
from gdod.training.preflight import absolute_paths, check
from gdod.training.run import Folder
from gdod.training.seeds import seed_for

if TYPE_CHECKING:
    from optuna import Study as Optuna
    from optuna.distributions import BaseDistribution

TRIALS = 20
"""How many trials a search in ranges makes, unless it is told."""


@dataclass(frozen=True)
class Search:
    """What to search: the settings that stay, and where to look for the others."""

    settings: Settings
    space: Space
    seeds: tuple[int, ...]
    trials: int
    wanted: int | None = None
    """How many trials were asked for; a grid has no more than its points."""

    def config(self, point: Mapping[str, Any], seed: int) -> TrainConfig:
        """Return the configuration at a point of the space."""
        return absolute_paths(check_config(merged(self.settings, nested({**point, "seed": seed}))))

    @property
    def first_point(self) -> dict[str, Any]:
        return {name: one.values[0] if isinstance(one, Grid) else one.low for name, one in self.space.items()}

    @property
    def first_config(self) -> TrainConfig:
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
        settings = self.first_config.model_dump(mode="json")
        for path in ("seed", "threads", *self.space):
            *outer, last = path.split(".")
            place = settings
            for name in outer:
                place = place[name]
            place.pop(last, None)
        space = {name: one.to_json() for name, one in self.space.items()}
        return {"settings": settings, "search": space, "seeds": list(self.seeds)}


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
) -> Search:
    """Return the search that a YAML or TOML file describes, with options over it.

    Settings are those of `gdod train`, and besides them `search`, `trials` and `seeds` (a list, or how
    many). Without ``space`` and `search`, the grid is searched that the method declares.
    """
    settings: Settings = {} if file is None else inside(read_settings(file), file.parent)
    settings = merged(settings, nested(options or {}))
    settings = {"tensorboard": False, **settings}
    spaces = read_space(settings.pop("search", {})) | dict(space or {})
    wanted = settings.pop("trials", None) if trials is None else trials
    seeds = read_seeds(settings, 1)
    for what, default in (("model", "shared-bottom"), ("method", None)):
        given = settings.get(what, default)
        if given is None:
            raise InputError("no method is given; expected one, e.g. --method cagrad")
        settings[what] = read_spec(given, what).to_json()
    spaces = spaces or declared(settings["method"]["name"])
    if not spaces:
        raise InputError(
            f"method {settings['method']['name']!r} declares no grid; say what to search, "
            "e.g. --range optimizer.lr=1e-4..1e-2:log"
        )
    check_space(spaces)
    if wanted is not None and (type(wanted) is not int or wanted < 1):
        raise InputError(f"trials={wanted!r}; expected a whole number of at least 1")
    search = Search(settings, spaces, seeds, wanted or 0)
    points = search.points() if search.is_grid else []
    trials = min(wanted or len(points), len(points)) if points else wanted or TRIALS
    search = Search(settings, spaces, seeds, trials, wanted)
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
    _check_same(search, folder)
    make_folder(folder / "trials")
    with locked(folder, watch.say) as handles, watch:
        config = search.first_config
        dataset = prepare_data(config)
        check_tasks(config, dataset)
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
                yield job

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


def _check_ends(search: Search) -> None:
    """Raise what can be known before any run: wrong names and options, at the ends of every range."""
    first = search.first_point
    for name, one in search.space.items():
        for value in one.values if isinstance(one, Grid) else (one.low, one.high):
            check(search.config({**first, name: value}, search.seeds[0]))


def _check_same(search: Search, folder: Path) -> None:
    path = folder / "tuning.json"
    if not path.exists():
        return
    before, now = read_json(path, "what a search was asked for"), search.to_json()
    check_same(f"search in {folder}", {name: before.get(name) for name in now}, now)


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
    settings = {name: best.params[name] for name in search.space}
    assert best.value is not None
    outcome = Best(folder, best.value, settings, best.number, len(complete), trials.failed)
    write_text(outcome.file, _as_yaml(search, outcome))
    return outcome


def _as_yaml(search: Search, best: Best) -> str:
    """Return the best settings for `gdod train` and `gdod compare --tuned`, with the model and method they are for."""
    spec: dict[str, Spec] = {what: read_spec(search.settings[what], what) for what in ("model", "method")}
    settings = merged({what: one.to_json() for what, one in spec.items()}, nested(best.settings))
    head = f"# The best of {best.trials} trials on validation: {best.value:.6g} (trial {best.trial}).\n"
    return head + yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)
