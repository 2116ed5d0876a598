"""Runs of cases on disk: made if they are not there, read where they are."""

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gdod._files import make_folder, read_json, read_json_lines
from gdod.errors import InputError
from gdod.experiments.compare import share_cores
from gdod.experiments.paper.cases import TUNING_SEED, Case, Scale, config_of, data_settings
from gdod.experiments.paper.sets import AvailableSet
from gdod.experiments.plan import Spec
from gdod.experiments.pool import Ended, Job, run_jobs
from gdod.experiments.run_config import check_run
from gdod.experiments.watch import Watch
from gdod.methods import METHODS
from gdod.training.config import check_config
from gdod.training.lock import locked
from gdod.training.run import Folder
from gdod.training.train_run import load_data

if TYPE_CHECKING:
    from gdod.data import Dataset

Json = dict[str, Any]


@dataclass
class Store:
    """The runs of cases below a folder: makes those that are missing, and reads them."""

    folder: Path
    sets: dict[str, AvailableSet]
    scale: Scale
    processes: int | None = None
    """How many runs are made at a time; None: as many as there are cores."""
    watch: Watch = field(default_factory=Watch)
    command: Sequence[str] | None = None
    failed: dict[str, str] = field(default_factory=dict)
    _data: dict[str, "Dataset"] = field(default_factory=dict)
    _read: dict[Path, Json | None] = field(default_factory=dict)

    def dataset(self, case: Case) -> "Dataset":
        """Return the data of a case, read from disk where it is needed rather than held in memory."""
        settings = data_settings(case, self.sets[case.data], self.scale)
        key = json.dumps(settings, sort_keys=True)
        if key not in self._data:
            settings["data"]["stream"] = True
            self._data[key] = load_data(check_config(settings))
        return self._data[key]

    def tasks(self, case: Case) -> tuple[str, ...]:
        """Return the names of the tasks."""
        return tuple(task.name for task in self.dataset(case).tasks)

    # Making

    def make(self, cases: Iterable[Case]) -> None:
        """Run every case with every seed that is not there yet.

        One seed after the other, so that what is stopped early has something of everything.
        """
        several = list(dict.fromkeys(cases))
        self._run([(case, seed) for seed in self.scale.seeds for case in several], test=True)

    def tuned(self, case: Case) -> Case:
        """Return the case with the options of its method that are best on validation data in the runs of `tune`."""
        choices = self._choices(case)
        if not choices:
            return case
        scores = {one: self._validation(one, TUNING_SEED) for one in choices}
        known = {one: score for one, score in scores.items() if score is not None}
        return case.with_(max(known, key=lambda one: known[one]).method) if known else case

    def tune(self, cases: Iterable[Case]) -> None:
        """Run the grids that the cases' methods declare, without looking at test data."""
        grid = dict.fromkeys(choice for case in cases for choice in self._choices(case))
        self._run([(case, TUNING_SEED) for case in grid], test=False)

    def _choices(self, case: Case) -> list[Case]:
        grid = getattr(METHODS.get(case.method.name), "GRID", {})
        if not grid or case.method.options:
            return []
        [(name, values)] = grid.items()
        return [case.with_(Spec(case.method.name, {name: value})) for value in values]

    def _run(self, wanted: Sequence[tuple[Case, int]], test: bool) -> None:
        watch = self.watch
        make_folder(self.folder)
        with locked(self.folder, watch.say) as handles, watch:
            todo = [(case, seed) for case, seed in wanted if not Folder(self.place(case, seed)).is_finished]
            jobs = [self._job(case, seed, test) for case, seed in todo]
            for config in {job.name.rpartition("/")[0]: job.config for job in jobs}.values():
                check_run(config)  # all of them, before the first begins
            watch.begin(len(wanted), len(wanted) - len(todo))
            if jobs:
                processes, threads = share_cores(self.processes, len(jobs), 1)
                run_jobs(
                    _by_data(jobs),
                    processes,
                    threads=threads,
                    watch=watch,
                    on_end=self._ended,
                    command=self.command,
                    keep_open=handles,
                )

    def _job(self, case: Case, seed: int, test: bool) -> Job:
        config = config_of(case, self.sets[case.data], self.scale, seed, self.dataset(case))
        place = self.place(case, seed)
        folder = Folder(place)
        if folder.is_run and folder.read_config() != config:
            raise InputError(
                f"the run in {place} was begun with other settings; choose another folder with --out, or remove it"
            )
        return Job(f"{case.data}/{case.label}/seed{seed}", place, config, test)

    def _ended(self, ended: Ended) -> None:
        if ended.message is not None:
            self.failed[ended.job.name] = ended.message
        else:  # hundreds of runs: their weights are not kept
            shutil.rmtree(Folder(ended.job.folder).checkpoints, ignore_errors=True)

    # Reading

    def place(self, case: Case, seed: int) -> Path:
        """Return the folder of a run."""
        return (self.folder / "runs" / case.data / case.label / f"seed{seed}").absolute()

    def result(self, case: Case, seed: int) -> Json | None:
        """Return what a run came to, None if it is not finished."""
        place = self.place(case, seed)
        if self._read.get(place) is None:
            path = Folder(place).result
            self._read[place] = read_json(path, "the result of a run") if path.exists() else None
        return self._read[place]

    def values(self, case: Case, of: Callable[[Json], float | None]) -> dict[int, float | None]:
        """Return a figure of each finished run, by seed."""
        results = {seed: self.result(case, seed) for seed in self.scale.seeds}
        return {seed: of(result) for seed, result in results.items() if result is not None}

    def metric(self, case: Case, task: str | None, metric: str = "auc", part: str = "test") -> dict[int, float | None]:
        """Return the metric of a task, or its mean over tasks, by seed."""
        return self.values(case, lambda result: metric_of(result.get(part), task, metric))

    def evaluations(self, case: Case, seed: int) -> list[Json]:
        """Return the records of evaluations along training."""
        return [line for line in self._lines(case, seed) if line["kind"] == "evaluation"]

    def conflicts(self, case: Case, seed: int) -> list[Json]:
        """Return the records of conflict along training."""
        return [line["conflict"] for line in self._lines(case, seed) if line["kind"] == "train" and line["conflict"]]

    def _lines(self, case: Case, seed: int) -> list[Json]:
        return read_json_lines(Folder(self.place(case, seed)).metrics)[0]

    def _validation(self, case: Case, seed: int) -> float | None:
        result = self.result(case, seed)
        return None if result is None else metric_of(result.get("validation"), None, "auc")


def metric_of(part: Json | None, task: str | None, metric: str) -> float | None:
    """Return a metric of one task, or its mean over tasks; None if it is not there for all of them."""
    if part is None:
        return None
    tasks = part["tasks"]
    values = [tasks[name].get(metric) for name in ([task] if task is not None else tasks)]
    return None if not values or None in values else sum(values) / len(values)


def _by_data(jobs: Iterable[Job]) -> Iterator[Job]:
    """Yield the jobs in the order given, but runs on one data set together: a process loads it once."""
    groups: dict[str, list[Job]] = {}
    for job in jobs:
        groups.setdefault(f"{job.config.seed} {job.config.data.model_dump_json()}", []).append(job)
    for group in groups.values():
        yield from group
