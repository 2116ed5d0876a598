"""Compare: make runs in parallel processes, then the tables and the page. Given again, it goes on where it was.

plan = read_plan(options={"data.source": "ads", "methods": ["sum", "gdod"], "seeds": 3})
outcome = compare(plan, "comparison")
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from gdod._files import check_writable, make_folder, read_json, write_json
from gdod.errors import InputError
from gdod.experiments.plan import ComparisonPlan, PlannedRun, on_same_data
from gdod.experiments.pool import Ended, Job, cores, run_jobs, run_together
from gdod.experiments.predictions import has_predictions
from gdod.experiments.rivals.inputs import prepare_input
from gdod.experiments.run_config import RunConfig, folder_config, with_threads
from gdod.experiments.watch import Watch
from gdod.report import Study, load_studies, write_report
from gdod.training.config import Settings, TrainConfig, check_config
from gdod.training.evaluation import check_monitor
from gdod.training.lock import locked
from gdod.training.preflight import differences
from gdod.training.recipes import TableSize, apply_recipe, as_stored
from gdod.training.run import Folder, decay_note, versions

if TYPE_CHECKING:
    from gdod.data import Dataset
    from gdod.experiments.worker import Worker


@dataclass(frozen=True)
class Outcome:
    """What a comparison left behind."""

    folder: Path
    study: Study
    failed: dict[str, str]
    """Why runs failed, by their names."""

    @property
    def report(self) -> Path:
        return self.folder / "report.html"

    @property
    def markdown(self) -> Path:
        return self.folder / "tables.md"

    @property
    def csv(self) -> Path:
        return self.folder / "figures.csv"


def compare(
    plan: ComparisonPlan,
    out: str | Path,
    *,
    processes: int | None = None,
    nproc: int = 1,
    worker: "Worker | None" = None,
    watch: Watch | None = None,
    command: Sequence[str] | None = None,
    test: bool = True,
) -> Outcome:
    """Make the runs that are not finished yet, and write the tables and the page.

    Args:
        plan: what to run, e.g. from `read_plan`.
        out: the folder of the comparison. Finished runs in it are kept, others go on where they were.
        processes: how many runs at a time; None: as many as there are cores, or GPUs.
        nproc: how many processes train a run together.
        worker: rank 0 of processes that were started already, which then make the runs one after the other.
        watch: is told how far the runs are.
        command: what the runs say that they were started with.
        test: whether the test part is looked at; if not, the tables are of the validation part.
    """
    folder, watch = Path(out), watch or Watch()
    check_place(folder, "comparison.json", "runs")
    _check_folds(plan, folder)
    plan = _as_begun(plan, folder)
    runs = runs_in(folder, plan.runs)
    make_folder(folder / "runs")
    with locked(folder, watch.say) as handles, watch:
        dataset = prepare_data(plan.config)
        check_tasks(plan.config, dataset)
        _describe(plan, dataset, folder)
        for config in by_fold(plan):
            if config.data.fold is not None:
                watch.say(f"data: {config.data.fold}")
            prepare_data(config)
            if plan.rivals:
                prepare_input(config.data)
        failed = make_runs(
            folder,
            runs,
            processes=processes,
            nproc=nproc,
            worker=worker,
            watch=watch,
            command=command,
            keep_open=handles,
            test=test,
        )
    return _written(folder, failed)


def by_fold(plan: ComparisonPlan) -> list[RunConfig]:
    """Return the configuration of one run on each fold; without folds, that of one run."""
    return list({run.config.data.fold: run.config for run in reversed(plan.runs)}.values())[::-1]


def runs_in(folder: Path, runs: Iterable[PlannedRun]) -> list[PlannedRun]:
    """Return the runs as they go on in a folder, after making sure that those that are there have their settings."""
    return [replace(run, config=continued(run.config, _place(folder, run))) for run in runs]


def make_runs(
    folder: Path,
    runs: Sequence[PlannedRun],
    *,
    processes: int | None = None,
    nproc: int = 1,
    worker: "Worker | None" = None,
    watch: Watch,
    command: Sequence[str] | None = None,
    keep_open: Sequence[int] = (),
    test: bool = True,
    predictions: bool = False,
) -> dict[str, str]:
    """Make the runs that are not finished yet, and return why some failed, by their names.

    Args:
        folder: the folder that holds the folder `runs`; this process has its lock, and the data is in the cache.
        runs: what to run, as `runs_in` gives it.
        processes: how many runs at a time; None: as many as there are cores, or GPUs.
        nproc: how many processes train a run together.
        worker: rank 0 of processes that were started already, which then make the runs one after the other.
        watch: is told how far the runs are.
        command: what the runs say that they were started with.
        keep_open: the file descriptors of the lock.
        test: whether the test part is looked at.
        predictions: whether each run keeps its predictions for the rows of the validation and the test part, too.
    """
    given, device = runs[0].config.threads, runs[0].config.device
    processes, threads = share_cores(processes, len(runs), given, nproc)
    if worker is not None:  # who started the ranks has shared out the cores
        threads = given or torch.get_num_threads()
    todo = [
        Job(run.name, place.path, with_threads(run.config, threads), test=test, predictions=predictions)
        for run in runs
        if not (place := _place(folder, run)).is_finished or (predictions and not has_predictions(place))
    ]
    for said in dict.fromkeys(decay_note(job.config) for job in todo if isinstance(job.config, TrainConfig)):
        if said is not None:
            watch.say(said)
    watch.begin(len(runs), len(runs) - len(todo))
    failed: dict[str, str] = {}

    def note(ended: Ended) -> None:
        if ended.message is not None:
            failed[ended.job.name] = ended.message

    if worker is not None:
        run_together(iter(todo), worker, watch=watch, on_end=note, command=command)
        return failed
    run_jobs(
        iter(todo),
        processes,
        threads=threads,
        nproc=nproc,
        device=device,
        watch=watch,
        on_end=note,
        command=command,
        keep_open=keep_open,
    )
    return failed


def _place(folder: Path, run: PlannedRun) -> Folder:
    return Folder((folder / "runs" / run.name).absolute())


def _check_folds(plan: ComparisonPlan, folder: Path) -> None:
    """Raise if the comparison in the folder was begun with another number of folds."""
    path = folder / "comparison.json"
    if not path.exists():
        return
    folds = read_json(path, "what a comparison was asked for").get("folds")
    if folds != plan.folds:
        said, now = (f"{count} folds" if count else "no folds" for count in (folds, plan.folds))
        raise InputError(f"the comparison in {folder} has {said}, and now there are {now}; choose another with --out")


def _as_begun(plan: ComparisonPlan, folder: Path) -> ComparisonPlan:
    """Return the plan with the recipe that the comparison in the folder was begun with, unless it names one."""
    path = folder / "comparison.json"
    if not isinstance(plan.config, TrainConfig) or "recipe" in plan.config.model_fields_set or not path.exists():
        return plan
    recipe = recipe_of(read_json(path, "what a comparison was asked for"))
    runs = []
    for run in plan.runs:
        if isinstance(run.config, TrainConfig):
            run = replace(run, config=check_config({**run.config.model_dump(), "recipe": recipe}))
        runs.append(run)
    return replace(plan, runs=on_same_data(runs))


def recipe_of(description: Settings) -> str:
    """Return the recipe of a comparison or a search, as its folder describes it; before there were any, "paper"."""
    recipe: str = description.get("settings", {}).get("recipe", "paper")
    return recipe


def recipe_in_words(plan: ComparisonPlan) -> list[str]:
    """Return sentences on what the recipe chooses and why: in all runs, then in those of one model alone.

    For that the data is prepared, after which it is in the cache.
    """
    by_model: dict[str, list[TrainConfig]] = {}
    for run in plan.runs:
        if isinstance(run.config, TrainConfig) and run.config.recipe != "paper":
            by_model.setdefault(run.model.label, []).append(run.config)
    if not by_model:
        return []
    table = TableSize.of(prepare_data(plan.config))
    said = sentences_of_all((config for configs in by_model.values() for config in configs), table)
    for model, configs in by_model.items():
        said += [f"{model}: {one}" for one in sentences_of_all(configs, table) if one not in said]
    return said


def sentences_of_all(configs: Iterable[TrainConfig], table: TableSize) -> list[str]:
    """Return the sentences on what the recipe chooses that hold for all configurations."""
    first, *others = (apply_recipe(config, table)[1] for config in configs)
    return [sentence for sentence in first if all(sentence in other for other in others)]


def share_cores(processes: int | None, runs: int, threads: int | None, nproc: int = 1) -> tuple[int, int]:
    """Return how many runs are made at a time, and how many threads each of their ``nproc`` processes has."""
    if processes is not None and processes < 1:
        raise InputError(f"jobs={processes}; expected at least 1")
    processes = processes or (torch.cuda.device_count() or cores()) // nproc
    processes = max(1, min(processes, runs))
    return processes, threads or max(1, cores() // (processes * nproc))


def prepare_data(config: RunConfig) -> "Dataset":
    """Put the data into the cache, from where all processes take it, and return it."""
    from gdod.data import open_prepared, prepare

    data = config.data
    place = prepare(
        data.source,
        schema=data.schema_file,
        labels=data.labels,
        folder=data.folder,
        cache=data.cache,
        features=data.features,
        vectors=data.vectors,
        fold=data.fold,
        **data.options,
    )
    return open_prepared(place, stream=True)


def check_tasks(config: RunConfig, dataset: "Dataset") -> None:
    """Raise what every run would be refused for, once."""
    names = [task.name for task in dataset.tasks]
    check_monitor(config.stopping.monitor, dataset.tasks)
    if unknown := [name for name in config.task_weights or {} if name not in names]:
        raise InputError(f"task_weights names {unknown[0]!r}; the tasks are {', '.join(map(repr, names))}")


def continued(config: RunConfig, place: Folder) -> RunConfig:
    """Return the configuration, after making sure that a run in the folder has the same.

    A run keeps its number of threads: with another one it would round in another way.
    """
    if not place.is_run:
        return config
    stored = folder_config(place)
    if isinstance(config, TrainConfig) and isinstance(stored, TrainConfig):
        config = as_stored(config, stored)
    if config.threads is None:
        config = config.model_copy(update={"threads": stored.threads})
    check_same(f"run in {place.path}", stored.model_dump(mode="json"), config.model_dump(mode="json"))
    return config


def check_same(what: str, stored: Settings, asked: Settings) -> None:
    """Raise if what was begun has other settings than what is asked for now."""
    if others := differences(stored, asked):
        raise InputError(
            f"the {what} was made with other settings: {'; '.join(others)}. Give the settings it has, or choose "
            "another folder with --out"
        )


def check_place(folder: Path, description: str, runs: str) -> None:
    """Raise unless the folder is not there yet, or empty, or was begun: with the file that describes what for."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; expected a folder, or a name for a new one")
    if folder.is_dir() and not (folder / description).exists():
        # Of a command that was killed as it began there is a lock, and an empty folder for the runs.
        there = [one for one in folder.iterdir() if one.name != ".lock" and one.suffix != ".part"]
        if any(one.name != runs or not one.is_dir() or any(one.iterdir()) for one in there):
            raise InputError(
                f"the folder {folder} holds other files, and no {description}; choose a new one with --out"
            )
    check_writable(folder)


def _describe(plan: ComparisonPlan, dataset: "Dataset", folder: Path) -> None:
    path = folder / "comparison.json"
    before = read_json(path, "what a comparison was asked for") if path.exists() else {}
    if before.get("fingerprint", dataset.fingerprint) != dataset.fingerprint:
        raise InputError(
            f"the comparison in {folder} is on other data (fingerprint {before['fingerprint']}, "
            f"now {dataset.fingerprint}); choose another folder with --out"
        )
    content: dict[str, Any] = {
        "data": dataset.name,
        "fingerprint": dataset.fingerprint,
        **plan.to_json(),
        "started": before.get("started", datetime.now(UTC).isoformat(timespec="seconds")),
        "versions": versions(),
    }
    write_json(path, content)


def _written(folder: Path, failed: dict[str, str]) -> Outcome:
    outcome = Outcome(folder, load_studies([folder])[0], failed)
    write_report([folder], outcome.report, markdown=outcome.markdown, csv=outcome.csv)
    return outcome
