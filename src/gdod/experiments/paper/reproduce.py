"""Run experiments and write their pages.

reproduce(["table2"], "reproduction", data_folder=Path("data"))
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gdod._checks import check_choice
from gdod._files import check_writable, make_folder
from gdod.errors import InputError
from gdod.experiments.paper.cases import PAPER_SETTINGS, QUICK, TUNING_SEED, Case, Scale
from gdod.experiments.paper.fronts import FRONT, FRONT_OF, FrontStudy
from gdod.experiments.paper.printed import SOURCE
from gdod.experiments.paper.questions import QUESTION_OF, QUESTIONS_NAME, QuestionStudy
from gdod.experiments.paper.results import PAPER, Experiment
from gdod.experiments.paper.sets import FRONT_SETS, find_sets
from gdod.experiments.paper.store import Store
from gdod.experiments.paper.study import STUDY
from gdod.experiments.watch import Watch
from gdod.report.tables import TextTable, Value, as_csv
from gdod.training.run import versions

EXPERIMENTS: dict[str, Experiment] = {one.name: one for one in (*PAPER, *STUDY)}
SETS_OF_NAMES = {"all": tuple(one.name for one in PAPER), "study": tuple(one.name for one in STUDY)}
"""Names that stand for several experiments."""


@dataclass(frozen=True)
class Reproduced:
    """Where the pages are, by experiment, and why runs failed, by run."""

    pages: dict[str, Path]
    failed: dict[str, str] = field(default_factory=dict)


def chosen(names: Sequence[str]) -> list[Experiment]:
    """Return the experiments of these names, each once; fronts, which are none of them, may be among the names."""
    wanted: list[str] = []
    known = (*SETS_OF_NAMES, *EXPERIMENTS, FRONT, *FRONT_OF, QUESTIONS_NAME, *QUESTION_OF)
    for name in names:
        check_choice("experiment", name, known)
        wanted += SETS_OF_NAMES.get(name, (name,))
    if not wanted:
        raise InputError(f"no experiment is named; expected some of {', '.join(known)}")
    return [EXPERIMENTS[name] for name in dict.fromkeys(wanted) if name in EXPERIMENTS]


def reproduce(
    names: Sequence[str],
    out: str | Path,
    *,
    data_folder: Path | None = None,
    seeds: int | None = None,
    quick: bool = False,
    processes: int | None = None,
    watch: Watch | None = None,
    command: Sequence[str] = ("gdod", "reproduce"),
    run: bool = True,
) -> Reproduced:
    """Make the runs that are missing, and one Markdown page for each experiment, with its pictures.

    Args:
        names: tables and figures of the paper ("table2"), parts of the study ("conflict"), "all" or "study"; or
            "front", methods against the front of weighted sums, or that of one data set ("front-ijcai15"); or
            "front-questions", where GDOD lies as tasks, model, batch or optimizer change, or one of them ("front-sgd").
        out: a folder for runs (`runs/`) and pages. Given again, nothing finished is repeated.
        data_folder: where the data sets' folders are.
        seeds: how many, from 0 on; 5 unless told.
        quick: fewer seeds and a few steps, to see that all of it works. Its figures mean nothing.
        processes: runs at a time.
        run: False: only write pages, from the runs that are there.
    """
    experiments = chosen(names)
    folder = Path(out) / ("quick" if quick else "full")
    check_writable(folder)
    scale = QUICK if quick else Scale()
    if seeds is not None:
        scale = Scale(tuple(range(seeds)), scale.evaluations, scale.steps, scale.rows)
    watch = watch or Watch()
    sets = find_sets(data_folder)
    pages: dict[str, Path] = {}
    failed: dict[str, str] = {}
    if experiments:
        store = Store(folder, sets, scale, processes, watch, command)
        pages, failed = _of_experiments(experiments, store, folder / "pages", run=run)
    for page, keys, study_of in ((FRONT, FRONT_OF, FrontStudy), (QUESTIONS_NAME, QUESTION_OF, QuestionStudy)):
        only = [key for name, key in keys.items() if name in names or page in names]
        if only:
            study = study_of(folder, find_sets(data_folder, FRONT_SETS), scale, processes, watch, command, only=only)
            if run:
                study.make()
            pages[page], failed = study.write(folder / "pages"), failed | study.failed
    return Reproduced(pages, failed)


def _of_experiments(
    experiments: Sequence[Experiment], store: Store, folder: Path, *, run: bool
) -> tuple[dict[str, Path], dict[str, str]]:
    """Make the runs of experiments and their pages; return where these are, and why runs failed."""
    for key, one in store.sets.items():
        if one.stands_in:
            store.watch.say(f"{key}: no files were found; simulated ads are taken in its place")
    if run:
        cases = [case for experiment in experiments for case in experiment.cases()]
        store.tune(cases)
        ready = [store.tuned(case) for case in cases]
        ready += [case for experiment in experiments for case in experiment.further(store)]
        store.make(ready)
    return {one.name: _write(one, store, folder) for one in experiments}, store.failed


def _write(experiment: Experiment, store: Store, folder: Path) -> Path:
    """Write the page, its pictures, and every figure of every run behind them as CSV; return where the page is."""
    make_folder(folder)
    page = folder / f"{experiment.name}.md"
    parts = [f"# {experiment.title}"]
    if store.scale.is_quick:
        parts.append("**Quick: a few steps with two seeds. These figures only show that everything runs.**")
    cases = list(dict.fromkeys([*map(store.tuned, experiment.cases()), *experiment.further(store)]))
    parts += [experiment.tell(store, folder), _about(experiment, store, cases)]
    page.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    if cases:
        table = as_csv(TextTable.of_values(_FIGURES, _figures(store, cases)))
        (folder / f"{experiment.name}.csv").write_text(table, encoding="utf-8", newline="")
    return page


_FIGURES = ("data", "run", "seed", "part", "task", "auc", "log_loss", "best_step", "steps", "milliseconds_per_step")


def _figures(store: Store, cases: Sequence[Case]) -> Iterator[Sequence[Value]]:
    for case in cases:
        for seed in store.scale.seeds:
            result = store.result(case, seed)
            for part in ("validation", "test") if result is not None else ():
                assert result is not None
                how = [result["best_step"], result["steps"], f"{result['milliseconds_per_step']:.2f}"]
                for task, metrics in (result[part] or {"tasks": {}})["tasks"].items():
                    yield case.data, case.label, seed, part, task, metrics["auc"], metrics["log_loss"], *how


def _about(experiment: Experiment, store: Store, cases: Sequence[Case]) -> str:
    """Return how the figures were made, as Markdown."""
    keys = list(dict.fromkeys(case.data for case in cases)) or list(store.sets)
    epochs = [f"{store.sets[key].title} {store.sets[key].paper_set.epochs}" for key in keys]
    results = [store.result(case, seed) for case in cases for seed in store.scale.seeds]
    seconds = sum(result["seconds"] for result in results if result is not None)
    there = sum(result is not None for result in results)
    software = ", ".join(f"{name} {version}" for name, version in versions().items())
    options = " --quick" if store.scale.is_quick else ""
    options += f" --seeds {len(store.scale.seeds)}" if len(store.scale.seeds) != len(Scale().seeds) else ""
    command = f"- Command: `gdod reproduce {experiment.name} --data-folder DATA{options}`."
    if not cases:
        return f"## How this was made\n\n{command}"
    lines = [
        command,
        f"- Batch {PAPER_SETTINGS['batch']}, Adam at {PAPER_SETTINGS['optimizer']['lr']:g}, 16 groups, seeds "
        f"{', '.join(map(str, store.scale.seeds))}; passes over the training data: {', '.join(epochs)}.",
        "- A tenth of the training data is held out. The checkpoint that is best on it (mean AUC over tasks, "
        f"{store.scale.evaluations} evaluations a run) is tested; options were tuned on it with seed {TUNING_SEED}.",
        "- Differences are paired by seed, with the 95 % interval of Student's t; p-values of the means' differences "
        "are corrected by Holm for the number of rows of their table. Seeds change weights and the order of examples, "
        "not which rows are test data.",
        f"- {there} of {len(results)} runs are behind this page (several pages share some); {seconds / 60:.0f} minutes "
        "of training steps in them, one thread each. Times a step were taken with other runs beside them.",
        f"- Every figure of every run: [{experiment.name}.csv]({experiment.name}.csv).",
        f"- {software}. Printed figures: {SOURCE}.",
    ]
    return "## How this was made\n\n" + "\n".join(lines)
