"""`gdod compare`: real processes, interrupted and killed for real, and the same results in the end."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import torch
from tests.experiments.small import OPTIONS, make_place, result, start
from typer.testing import CliRunner

from gdod import InputError
from gdod.cli import app
from gdod.data.preparing.feature_options import FeatureOptions
from gdod.experiments.compare import Outcome, check_place, compare, share_cores
from gdod.experiments.plan import ComparisonPlan, make_plan, read_plan, read_spec
from gdod.experiments.pool import Ended, Job, _note_failure
from gdod.experiments.watch import ShownRuns, Watch
from gdod.report import load_studies
from gdod.report.runs import Repetition
from gdod.training import TrainConfig, load_run, train
from gdod.training.checkpoint import load

MODEL = "shared-bottom_bottom=16,embedding=4"
SUM, GDOD = f"{MODEL}-sum-seed0", f"{MODEL}-gdod-seed0"
METHODS = ("sum", "cagrad:c=0.3", "mgda")
KILLED = "single-task-sum-seed1"
SETTINGS: dict[str, Any] = {"seeds": 2, "single_task": True}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    make_place(tmp_path, monkeypatch)
    return tmp_path


def plan(*methods: str, **options: Any) -> ComparisonPlan:
    return read_plan(options={**OPTIONS, "methods": list(methods), "seeds": 1, **options})


def finished(outcome: Outcome) -> set[str]:
    return {path.parent.name for path in outcome.folder.glob("runs/*/result.json")}


def wait_for(happened: Callable[[], bool], seconds: float = 180) -> None:
    until = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < until
        time.sleep(0.02)


def by_default(*methods: str, **options: Any) -> ComparisonPlan:
    """A plan that names no recipe, unless it is among the options."""
    settings = {name: value for name, value in OPTIONS.items() if name != "recipe"}
    own = {"models": ["shared-bottom"], "methods": list(methods), "seeds": 1, **options}
    return read_plan(options={**settings, **own})


def test_the_strong_recipe_is_filled_once_for_each_run(place: Path) -> None:
    for _ in range(2):  # the second time nothing is left to do, and nothing is chosen again
        compare(by_default("sum", "gdod", epochs=1), "study")
    assert json.loads((place / "study/comparison.json").read_text())["settings"]["recipe"] == "strong"
    assert len([*(place / "cache").rglob("encoder.json")]) == 1  # prepared once, with the features, for all runs
    for method in ("sum", "gdod"):
        run = load_run(place / f"study/runs/shared-bottom-{method}-seed0")
        assert run.config.filled
        assert run.config.method.name == method
        assert run.config.average is not None
        assert run.encoder.added is not None
        assert run.encoder.added.statistics


def test_a_comparison_of_before_goes_on_and_grows_with_its_recipe(place: Path) -> None:
    """By the same command, which named no recipe, as there was none; and with one method and one seed more."""
    compare(plan("sum", models=["shared-bottom"], steps=2), "study")
    for path in (place / "study/comparison.json", place / "study/runs/shared-bottom-sum-seed0/config.json"):
        stored = json.loads(path.read_text())
        for settings in (stored, stored.get("settings", {})):
            for name in ("recipe", "filled", "average"):
                settings.pop(name, None)
        path.write_text(json.dumps(stored))
    made = times(place / "study")
    outcome = compare(by_default("sum", "mgda", steps=2, seeds=2), "study")
    assert times(place / "study").items() > made.items()
    assert load_run(place / "study/runs/shared-bottom-mgda-seed0").config.recipe == "paper"
    assert [(setting.method, len(setting.runs)) for setting in outcome.study.settings] == [("sum", 2), ("mgda", 2)]
    with pytest.raises(InputError, match="recipe is 'paper', not 'strong'"):
        compare(by_default("sum", "mgda", steps=2, recipe="strong"), "study")


def test_a_run_that_fails_before_its_recipe_has_chosen_stands_beside_its_other_seeds(place: Path) -> None:
    """Its process is killed, and what was given is all that its configuration has."""
    outcome = compare(by_default("sum", steps=2, seeds=2), "study")
    folder = place / "study/runs/shared-bottom-sum-seed1"
    job = Job(folder.name, folder, by_default("sum", steps=2, seeds=2).runs[1].config)
    shutil.rmtree(folder)
    _note_failure(Ended(job, None, "killed"))
    (study,) = load_studies([outcome.folder])
    assert [(setting.method, len(setting.runs)) for setting in study.settings] == [("sum", 2)]


def test_check_says_what_the_recipe_chose_for_each_model(place: Path) -> None:
    table = ("--data", "clicks.csv", "--schema", "clicks.yaml")
    done = gdod(*table, "--model", "shared-bottom", "--model", "mmoe", "--method", "gdod", "--lr", "0.1", "--check")
    assert done.exit_code == 0, done.stderr
    lines = done.stderr.splitlines()
    assert lines[0].startswith("recipe strong, for 640 training rows")
    for begin in ("optimizer adamw: weight decay", "dropout", "batch size", "shared-bottom: hidden layers of"):
        assert sum(line.startswith(begin) for line in lines) == 1
    assert not any(line.startswith(("method", "hidden layers", "mmoe")) for line in lines)
    paper = gdod(*table, "--recipe", "paper", "--check")
    assert (paper.exit_code, paper.stderr) == (0, "")


# The whole of it


class Killer(Watch):
    """Kills the process of a run as soon as it has begun."""

    def __init__(self, run: str) -> None:
        self.run = run

    def told(self, job: Job, event: dict[str, Any]) -> None:
        if job.name == self.run and event["kind"] == "started":
            os.kill(event["process"], signal.SIGKILL)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outcome]:
    """Two methods and one that cannot but fail, two seeds, single-task models; and a process that dies."""
    place = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        make_place(place, patch)
        (place / "wild.yaml").write_text(
            "model: {name: shared-bottom}\nmethod: {name: mgda}\noptimizer: {lr: 1.0e+30}\n"
        )
        settings = {**SETTINGS, "tuned": ["wild.yaml"]}
        yield compare(plan(*METHODS, **settings), place / "out", processes=2, watch=Killer(KILLED))


def test_a_run_that_fails_is_reported_and_the_others_go_on(whole: Outcome) -> None:
    wild = [f"{MODEL}-mgda-seed{seed}" for seed in (0, 1)]
    assert set(whole.failed) == {*wild, KILLED}
    assert "not finite" in whole.failed[wild[0]]
    assert whole.failed[KILLED] == "its process was killed by signal 9"
    for name, message in whole.failed.items():
        assert json.loads((whole.folder / "runs" / name / "error.json").read_text())["message"] == message
    assert "not finite" in whole.report.read_text()
    others = [f"{MODEL}-{method}-seed{seed}" for method in ("sum", "cagrad_c=0.3") for seed in (0, 1)]
    assert finished(whole) == {*others, "single-task-sum-seed0"}


def test_finished_runs_are_not_repeated_and_failed_ones_are_tried_again(whole: Outcome, tmp_path: Path) -> None:
    copytree(whole.folder, tmp_path / "out")
    shutil.rmtree(tmp_path / "out/runs" / f"{MODEL}-mgda-seed0")
    shutil.rmtree(tmp_path / "out/runs" / f"{MODEL}-mgda-seed1")
    before = times(whole.folder)
    again = compare(plan("sum", "cagrad:c=0.3", **SETTINGS), tmp_path / "out", processes=1)
    assert again.failed == {}
    assert finished(again) == {*finished(whole), KILLED}
    assert not (tmp_path / "out/runs" / KILLED / "error.json").exists()
    after = times(again.folder)
    assert {name: after[name] for name in before} == before


def times(folder: Path) -> dict[str, int]:
    """When each result was written."""
    return {path.parent.name: path.stat().st_mtime_ns for path in folder.glob("runs/*/result.json")}


def test_the_study_has_differences_ranks_and_gains(whole: Outcome) -> None:
    study = whole.study
    assert [setting.method for setting in study.settings if setting.finished] == ["sum", "cagrad (c=0.3)", "sum"]
    assert study.baseline == "sum"
    place = next(place for place, setting in enumerate(study.settings) if setting.method == "cagrad (c=0.3)")
    found = study.compare("auc")[None][place].difference
    assert found is not None
    assert found.n == 2
    ours, sums = (result(whole.folder / "runs" / f"{MODEL}-{one}-seed0") for one in ("cagrad_c=0.3", "sum"))
    each = study.compare("auc")[None][place].each
    assert each[Repetition(seed=0)] == pytest.approx(ours["test"]["mean_auc"] - sums["test"]["mean_auc"], abs=1e-12)
    assert study.gains()[place] is not None  # in the seed whose single-task model is there


def test_the_tables_are_written_as_markdown_and_csv(whole: Outcome) -> None:
    assert "| shared-bottom | cagrad (c=0.3) |" in whole.markdown.read_text()
    assert "Δm %" in whole.markdown.read_text()
    assert whole.csv.read_text().startswith("data,part,model,method")
    asked = json.loads((whole.folder / "comparison.json").read_text())
    assert asked["seeds"] == [0, 1]
    assert [one["name"] for one in asked["methods"]] == ["sum", "cagrad_c=0.3", "mgda"]


def test_a_run_of_a_comparison_is_the_run_that_gdod_train_makes(whole: Outcome, tmp_path: Path) -> None:
    """The second run of a process, so nothing of the first may be left in it."""
    folder = whole.folder / "runs" / f"{MODEL}-cagrad_c=0.3-seed1"
    alone = train(load_run(folder).config, tmp_path / "alone")
    assert {name: value for name, value in alone.items() if "seconds" not in name} == result(folder)
    weights, theirs = (load(path / "checkpoints" / "last.pt")["model"] for path in (folder, tmp_path / "alone"))
    assert all(torch.equal(weights[name], theirs[name]) for name in weights)


# Stopped and continued


ARGUMENTS = (
    *("compare", "--data", "clicks.csv", "--schema", "clicks.yaml", "--model", "shared-bottom:bottom=[16],embedding=4"),
    *(
        "--method",
        "sum",
        "--method",
        "gdod",
        "--seeds",
        "1",
        "--batch",
        "64",
        "--lr",
        "0.01",
    ),
    *("--set", "log_every=5", "--set", "device=cpu", "--threads", "1", "--jobs", "1", "--out", "out"),
    *("--steps", "250", "--set", "checkpoint_every=20"),
)
LONG = {"steps": 250, "checkpoint_every": 20}


def in_the_second_run(place: Path) -> bool:
    """Its first checkpoint is that of the evaluation before the first step, its second one has steps."""
    metrics = place / "out/runs" / GDOD / "metrics.jsonl"
    return metrics.exists() and metrics.read_text().count("\n") > 4


def nobody_works_in(place: Path) -> bool:
    import fcntl

    with (place / "out/.lock").open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def test_a_comparison_that_is_killed_goes_on_where_it_was(place: Path) -> None:
    process = start(*ARGUMENTS)
    wait_for(lambda: in_the_second_run(place))
    process.kill()
    process.communicate()
    wait_for(lambda: nobody_works_in(place))  # its process has noticed, saved and ended
    runs = place / "out/runs"
    assert not (runs / GDOD / "result.json").exists()
    first, step = (
        (runs / SUM / "result.json").stat().st_mtime_ns,
        load(runs / GDOD / "checkpoints/last.pt")["state"]["step"],
    )
    assert step > 0

    starts: dict[str, int] = {}

    class Noting(Watch):
        def told(self, job: Job, event: dict[str, Any]) -> None:
            if event["kind"] == "started":
                starts[job.name] = event["done"]

    outcome = compare(plan("sum", "gdod", recipe="strong", **LONG), "out", processes=1, watch=Noting())
    assert starts == {GDOD: step}
    assert (runs / SUM / "result.json").stat().st_mtime_ns == first
    assert outcome.failed == {}
    whole = train(load_run(runs / GDOD).config, place / "alone")
    assert {name: value for name, value in whole.items() if "seconds" not in name} == result(runs / GDOD)


@pytest.mark.slow
def test_ctrl_c_saves_and_tells_how_to_go_on(place: Path) -> None:
    process = start(*ARGUMENTS)
    wait_for(lambda: in_the_second_run(place))
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=180)
    assert process.returncode == 130
    assert "same command again" in errors
    assert nobody_works_in(place)
    assert load(place / "out/runs" / GDOD / "checkpoints/last.pt")["state"]["step"] > 0

    again = start(*ARGUMENTS, "--json")
    out, errors = again.communicate(timeout=300)
    assert again.returncode == 0, errors
    found = json.loads(out)
    assert [one["method"] for one in found["results"]] == ["sum", "gdod"]
    assert "1 of 2 runs are finished already" in errors


@pytest.mark.slow
def test_two_commands_do_not_work_in_one_folder(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = start(*ARGUMENTS)
    try:
        wait_for(lambda: in_the_second_run(place))
        monkeypatch.setattr("gdod.training.lock._WAIT", 0.3)
        with pytest.raises(InputError, match="another process is at work"):
            compare(plan("sum", recipe="strong", **LONG), "out")
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=180)


def test_finished_runs_keep_their_weights_and_not_the_optimizers_state(whole: Outcome) -> None:
    stored = [load(path.parent / "checkpoints/last.pt") for path in whole.folder.glob("runs/*/result.json")]
    assert stored
    assert all({"model", "state"} <= set(content) and "optimizers" not in content for content in stored)


# What is asked for is checked before any work


def gdod(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["compare", *arguments])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no data is given"),
        (["--data", "clicks.csv", "--method", "gdot"], "did you mean 'gdod'"),
        (["--data", "clicks.csv", "--method", "cagrad:d=1"], "is unknown; expected one of"),
        (["--data", "clicks.csv", "--method", "cagrad:c"], "expected options as name=value"),
        (["--data", "clicks.csv", "--model", "mmoe:exprts=1"], "did you mean 'experts'"),
        (["--data", "clicks.csv", "--method", "sum", "--method", "sum"], "is given twice"),
        (["--data", "clicks.csv", "--method", "gdod", "--baseline", "sum"], "none of the methods"),
        (["--data", "clicks.csv", "--method", "gdod", "--baseline", "gdot"], "did you mean 'gdod'"),
        (["--data", "clicks.csv", "--seeds", "2", "--seed", "3"], "both --seeds and --seed"),
        (["--data", "clicks.csv", "--set", "batsch=3"], "did you mean 'batch'"),
        (["--data", "clicks.csv", "--model", "single-task"], "none besides 'single-task'"),
        (["--data", "clicks.csv", "--tuned", "clicks.yaml"], "names no model"),
        (["--data", "clicks.csv", "--schema", "clicks.yaml", "--monitor", "sale"], "stopping.monitor='sale'"),
    ],
)
def test_wrong_input_is_refused_before_any_run(place: Path, arguments: list[str], message: str) -> None:
    done = gdod(*arguments, "--out", "out")
    assert done.exit_code == 2
    assert message in done.stderr.replace("\n", " ")
    assert not list(place.glob("out/runs/*"))


def test_a_file_describes_a_comparison_and_options_win(place: Path) -> None:
    (place / "comparison.yaml").write_text(
        "data: {source: clicks.csv, schema: clicks.yaml}\nmodels: [mmoe, {name: ple, options: {experts: 3}}]\n"
        "methods: [sum, 'cagrad:c=0.3']\nseeds: [4, 7]\nbatch: 32\n"
    )
    found = json.loads(
        gdod("comparison.yaml", "--check", "--method", "gdod", "--method", "pcgrad", "--lr", "0.1").stdout
    )
    assert found["runs"][:3] == ["mmoe-gdod-seed4", "mmoe-pcgrad-seed4", "ple_experts=3-gdod-seed4"]
    assert len(found["runs"]) == 8
    assert (found["settings"]["batch"], found["settings"]["optimizer"]["lr"]) == (32, 0.1)
    assert found["baseline"] == "gdod"  # the first, as there is no sum


def test_runs_with_other_settings_are_refused(whole: Outcome, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(whole.folder.parent)
    with pytest.raises(InputError, match="made with other settings: batch is 64, not 32") as caught:
        compare(plan("sum", batch=32), "out")
    assert "--resume" not in str(caught.value)
    assert "choose another folder with --out" in str(caught.value)
    with pytest.raises(InputError, match="holds other files"):
        compare(plan("sum"), whole.folder.parent)


def test_only_a_folder_of_its_own_is_worked_in(place: Path) -> None:
    """`runs` is also where `gdod train` puts its runs, so that it alone says nothing."""
    (place / "work/runs/clicks-seed0").mkdir(parents=True)
    for folder in ("work", "work/runs/clicks-seed0/..", "clicks.csv"):
        with pytest.raises(InputError, match=r"holds other files, and no comparison.json|is a file"):
            compare(plan("sum"), folder)
    check_place(place / "work/runs/clicks-seed0", "comparison.json", "runs")
    (place / "killed/runs").mkdir(parents=True)
    (place / "killed/.lock").touch()
    check_place(place / "killed", "comparison.json", "runs")


def test_a_spec_has_options() -> None:
    spec = read_spec("mmoe:experts=4,tower=[32, 16],dropout=1e-1", "model")
    assert spec.options == {"experts": 4, "tower": [32, 16], "dropout": 0.1}
    assert spec.label == "mmoe_experts=4,tower=32,16,dropout=0.1"
    assert "/" not in read_spec({"name": "x", "options": {"a": "../../etc"}}, "model").label


def test_what_was_tuned_is_for_its_model_and_method_and_given_options_win(tmp_path: Path) -> None:
    best = tmp_path / "best.yaml"
    best.write_text("model: {name: mmoe}\nmethod: {name: cagrad, options: {c: 0.1}}\noptimizer: {lr: 0.5}\n")
    settings = {"data": "ads", "models": ["mmoe", "ple"], "methods": ["sum", "cagrad", "cagrad:c=0.9"], "seeds": 1}
    settings["recipe"] = "paper"
    runs = make_plan(settings, [best]).runs
    configs = {run.name: run.config for run in runs if isinstance(run.config, TrainConfig)}
    assert (configs["mmoe-cagrad-seed0"].method.options, configs["mmoe-cagrad-seed0"].optimizer.lr) == ({"c": 0.1}, 0.5)
    assert configs["mmoe-cagrad_c=0.9-seed0"].method.options == {"c": 0.9}
    assert configs["ple-cagrad-seed0"].method.options == {}
    assert configs["mmoe-sum-seed0"].optimizer.lr == 1e-3
    with pytest.raises(InputError, match="not among the runs"):
        make_plan({**settings, "models": ["ple"]}, [best])


def test_what_was_tuned_has_the_recipe_and_the_features_of_the_comparison(tmp_path: Path) -> None:
    best = tmp_path / "best.yaml"
    best.write_text("recipe: strong\nmodel: {name: mmoe}\nmethod: {name: sum}\ndata: {features: {pairs: 3}}\n")
    settings: dict[str, Any] = {"data": "ads", "models": ["mmoe"], "methods": ["sum"], "seeds": 1}
    (run,) = make_plan(settings, [best]).runs
    assert run.config.data.features == FeatureOptions(pairs=3)
    assert "recipe" not in run.config.model_fields_set
    with pytest.raises(InputError, match=r"found with the recipe 'strong', and the comparison has 'paper'.*--recipe"):
        make_plan({**settings, "recipe": "paper"}, [best])
    both = {**settings, "methods": ["gdod", "sum"]}
    with pytest.raises(InputError, match=r"mmoe-sum-seed0 has other data.features than mmoe-gdod-seed0"):
        make_plan(both, [best])
    assert len(make_plan({**both, "data": {"source": "ads", "features": {"pairs": 3}}}, [best]).runs) == 2
    best.write_text("model: {name: mmoe}\nmethod: {name: sum}\ndata: {features: {pairs: 3}, source: ads}\n")
    with pytest.raises(InputError, match="sets data, which are the comparison's to say"):
        make_plan(settings, [best])


def test_what_was_tuned_is_below_the_folder_of_the_file(tmp_path: Path) -> None:
    best, file = tmp_path / "best.yaml", tmp_path / "plans" / "comparison.yaml"
    best.write_text("model: {name: mmoe}\nmethod: {name: sum}\n")
    file.parent.mkdir()
    settings = "data: ads\nmodels: [mmoe]\nmethods: [sum]\nseeds: 1\n"
    for path in ("../best.yaml", str(best)):
        file.write_text(f"{settings}tuned: [{path}]\n")
        with pytest.raises(InputError, match=r"tuned=.* leads out of the folder.*--tuned"):
            read_plan(file)
    file.write_text(settings)
    assert read_plan(file, {"tuned": [str(best)]}).tuned == (str(best),)
    (file.parent / "best.yaml").write_text(best.read_text())
    file.write_text(f"{settings}tuned: [best.yaml]\n")
    assert read_plan(file).tuned == (str(file.parent / "best.yaml"),)


def test_processes_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gdod.experiments.compare.cores", lambda: 8)
    assert share_cores(None, 100, None) == (8, 1)
    assert share_cores(3, 100, None) == (3, 2)
    assert share_cores(None, 2, None) == (2, 4)
    assert share_cores(20, 100, None) == (20, 1)
    assert share_cores(2, 100, 3) == (2, 3)
    assert share_cores(None, 100, None, nproc=2) == (4, 1)
    assert share_cores(1, 100, None, nproc=2) == (1, 4)
    assert share_cores(None, 100, None, nproc=16) == (1, 1)


def test_the_display_counts_runs_and_tells_the_time_that_remains() -> None:
    import io

    from rich.console import Console

    screen = io.StringIO()
    job = Job("one", Path("one"), plan_config())
    with ShownRuns(Console(file=screen, force_terminal=True, width=100, no_color=True)) as shown:
        shown.begin(2, 0)
        shown.told(job, {"kind": "started", "steps": 10, "done": 0})
        shown.told(job, {"kind": "trained", "step": 5, "loss": 0.5})
        left = shown.amounts.left()
        shown.ended(Ended(job, None, "no more"))
    assert left is not None
    assert shown.amounts.done == 1
    assert "all runs" in screen.getvalue()
    assert "[1/2] one: failed: no more" in screen.getvalue()


def plan_config() -> Any:
    return make_plan({"data": "ads", "methods": ["sum"]}).config


def test_help_needs_no_torch() -> None:
    code = (
        "import sys; from typer.testing import CliRunner; from gdod.cli import app\n"
        "assert CliRunner().invoke(app, ['compare', '--help']).exit_code == 0\n"
        "assert not {'torch', 'polars', 'optuna', 'numpy', 'matplotlib', 'sklearn'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
