"""Make a front: tune everybody with the same budget, make the runs of all seeds, and judge.

plan = read_front(options={"data.source": "ads", "methods": ["gdod", "pcgrad"], "seeds": 5})
outcome = front(plan, "runs/front")
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from gdod._files import make_folder, read_json, write_json
from gdod.errors import InputError
from gdod.experiments.compare import check_place, make_runs, recipe_of, runs_in
from gdod.experiments.front.picture import draw_front
from gdod.experiments.front.plan import Candidate, FrontPlan, Rate, plan_front, same_data
from gdod.experiments.front.results import Finished, results
from gdod.experiments.rivals.inputs import prepare_input
from gdod.experiments.watch import Watch
from gdod.report.front import Front, write_front
from gdod.training.config import Settings
from gdod.training.evaluation import monitored_score
from gdod.training.lock import locked
from gdod.training.run import Folder, versions

DESCRIPTION = "front.json"


@dataclass(frozen=True)
class FrontOutcome:
    """What a front left behind."""

    folder: Path
    front: Front
    failed: Mapping[str, str]
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

    @property
    def picture(self) -> Path:
        return self.folder / "front.png"


def front(
    plan: FrontPlan,
    out: str | Path,
    *,
    processes: int | None = None,
    watch: Watch | None = None,
    command: Sequence[str] | None = None,
) -> FrontOutcome:
    """Make the runs that are not finished yet, judge the methods, and write the page, the picture and the tables.

    Args:
        plan: what to run, from `read_front`.
        out: the folder of the front. Finished runs in it are kept, others go on where they were.
        processes: how many runs at a time; None: as many as there are cores, or GPUs.
        watch: is told how far the runs are.
        command: what the runs say that they were started with.
    """
    folder, watch = Path(out), watch or Watch()
    check_place(folder, DESCRIPTION, "runs")
    plan = _as_begun(plan, folder)
    every = [plan.run(one, seed, rate) for one in plan.candidates for seed in plan.seeds for rate in plan.rates]
    runs_in(folder, same_data(plan, every))  # raises if one of them is there with other settings
    make_folder(folder / "runs")
    with locked(folder, watch.say) as handles, watch:
        if plan.of("rival"):
            prepare_input(plan.config.data)
        description = _describe(plan, folder, command)
        make = partial(make_runs, folder, processes=processes, watch=watch, command=command, keep_open=handles)
        failed: dict[str, str] = {}
        if len(plan.rates) > 1:
            tuned = [run for one in plan.candidates if one.kind != "rival" for run in plan.tuning_runs(one)]
            watch.say(f"learning rate and decay: {len(tuned)} runs with seed {plan.seeds[0]}, judged on validation")
            failed |= make(runs_in(folder, same_data(plan, tuned)), test=False)
            watch.close()
        rates = {one: _best_rate(plan, one, folder) for one in plan.candidates}
        chosen = [plan.run(one, seed, rate) for seed in plan.seeds for one, rate in rates.items() if rate is not None]
        if not chosen:
            raise InputError(f"all runs in {folder} failed: {next(iter(failed.values()))}")
        failed |= make(runs_in(folder, same_data(plan, chosen)), predictions=True)
        finished = []
        for one, rate in rates.items():
            if rate is not None:
                runs = [plan.run(one, seed, rate) for seed in plan.seeds]
                if not any(run.name in failed for run in runs):
                    finished.append(Finished(one, runs, rate.text))
        if not any(one.candidate.kind == "front" for one in finished):
            raise InputError(f"no weighting of the front in {folder} has finished: {next(iter(failed.values()))}")
        watch.say("judging: rows and seeds are drawn again")
        description |= {"results": results(plan, folder, finished), "failed": failed}
        write_json(folder / DESCRIPTION, description)
    return _written(folder, failed)


def _best_rate(plan: FrontPlan, candidate: Candidate, folder: Path) -> Rate | None:
    """Return the learning rate and decay with which a candidate is best on validation; None if all its runs failed.

    What is best is what `gdod tune` goes by, with all tasks alike: mean AUC, or the setting `stopping.monitor`.
    """
    if candidate.kind == "rival" or len(plan.rates) == 1:
        return plan.rates[0]
    found: list[tuple[float, Rate]] = []
    for run, rate in zip(plan.tuning_runs(candidate), plan.rates, strict=True):
        place = Folder(folder / "runs" / run.name)
        if place.is_finished:
            metrics = read_json(place.result, "the result of a run")["validation"]
            score = monitored_score(metrics, run.config.stopping.monitor, {})
            if score is not None:
                found.append((score, rate))
    return max(found, key=lambda one: one[0])[1] if found else None


def _as_begun(plan: FrontPlan, folder: Path) -> FrontPlan:
    """Return the plan with the recipe that the front in the folder was begun with, unless it names one."""
    path = folder / DESCRIPTION
    if "recipe" in plan.settings or not path.exists():
        return plan
    recipe = recipe_of(read_json(path, "what a front was asked for"))
    return plan if recipe == plan.rest.get("recipe", "strong") else plan_front({**plan.settings, "recipe": recipe})


def _describe(plan: FrontPlan, folder: Path, command: Sequence[str] | None) -> Settings:
    """Write what was asked for, on which data, and return it. Results of before are not those of now."""
    path, data = folder / DESCRIPTION, plan.dataset
    before = read_json(path, "what a front was asked for") if path.exists() else {}
    if before.get("fingerprint", data.fingerprint) != data.fingerprint:
        raise InputError(
            f"the front in {folder} is on other data (fingerprint {before['fingerprint']}, now {data.fingerprint}); "
            "choose another folder with --out"
        )
    content = {
        "data": data.name,
        "fingerprint": data.fingerprint,
        **plan.to_json(),
        "command": list(command or ()),
        "started": before.get("started", datetime.now(UTC).isoformat(timespec="seconds")),
        "versions": versions(),
    }
    write_json(path, content)
    return content


def _written(folder: Path, failed: Mapping[str, str]) -> FrontOutcome:
    outcome = FrontOutcome(folder, Front.read(folder), failed)
    write_front(outcome.front, outcome.report, markdown=outcome.markdown, csv=outcome.csv)
    draw_front(outcome.front, outcome.picture)
    return outcome
