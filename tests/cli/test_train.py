"""`gdod train`, `gdod predict` and `gdod evaluate` as a person or a script uses them."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import polars as pl
import pytest
import typer
from rich.console import Console
from tests.training import tiny
from tests.training.test_loop import lines
from typer.testing import CliRunner, Result

from gdod import training
from gdod.cli import app
from gdod.cli.train import explained
from gdod.experiments import watch
from gdod.experiments.pool import Job

QUICK = ["--threads", "1", "--device", "cpu", "--no-tensorboard", "--batch", "64", "--lr", "0.01"]
TABLE = ["--data", "clicks.csv", "--schema", "clicks.yaml"]
LOGS = ["--log-every", "5"]
SMALL = ["--model-option", "bottom=[16]", "--model-option", "embedding=4"]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a table and its schema, where the commands run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GDOD_CACHE", str(tmp_path / "cache"))
    tiny.frame(1000).write_csv(tmp_path / "clicks.csv")
    (tmp_path / "clicks.yaml").write_text(tiny.SCHEMA)
    return tmp_path


def gdod(*arguments: str) -> Result:
    return CliRunner().invoke(app, [*arguments])


def train(*arguments: str) -> Result:
    return gdod("train", *TABLE, *QUICK, *SMALL, *arguments)


def test_without_a_schema_it_says_what_is_predicted_and_what_counts_as_1(place: Path) -> None:
    table = tiny.frame(1000)
    words = table.with_columns(pl.col("click").replace_strict({0: "no", 1: "yes"}))
    words.write_csv(place / "words.csv")
    done = gdod("train", "--data", "words.csv", "--label", "click", *QUICK, *SMALL, "--steps", "2", "--out", "run")
    assert done.exit_code == 0, done.output
    assert "these columns are predicted: click (binary)" in " ".join(done.output.split())
    assert "the label 'click' is 1 where it is 'yes', and 0 for other values" in " ".join(done.output.split())
    told = json.loads((place / "run" / "about.json").read_text())["data"]["notes"]
    assert any("is 1 where it is 'yes'" in note for note in told)
    page = gdod("report", "run", "--out", "report.html")
    assert page.exit_code == 0, page.output
    assert "is 1 where it is &#x27;yes&#x27;" in (place / "report.html").read_text("utf-8")


def test_a_run_that_was_killed_as_it_began_begins_again(place: Path) -> None:
    assert train("--steps", "2", "--out", "whole").exit_code == 0
    for number, arguments in enumerate(([], ["--resume"])):
        folder = place / f"half{number}"
        (folder / "checkpoints").mkdir(parents=True)
        for name in ("encoder.json", "about.json"):
            (folder / name).write_bytes((place / "whole" / name).read_bytes())
        (folder / ".config.json.0123abcd.part").write_text("{")
        bare = gdod("train", "--resume", "--out", folder.name)
        assert bare.exit_code == 2
        assert "To begin it, give all its settings, too" in bare.stderr
        done = train("--steps", "2", "--out", folder.name, *arguments)
        assert done.exit_code == 0, done.output
        assert (folder / "result.json").exists()


def test_from_a_table_to_predictions(place: Path) -> None:
    done = train("--method", "gdod", "--method-option", "groups=8", "--epochs", "3", "--out", "runs/clicks")
    assert done.exit_code == 0, done.output
    assert "validation AUC" in done.output
    assert "click" in done.output
    assert "\x1b" not in done.output  # no terminal, no colours, no bars

    again = gdod("train", "--resume", "--out", "runs/clicks", "--json")
    result = json.loads(again.stdout)
    assert result["folder"] == "runs/clicks"
    assert result["test"]["mean_auc"] > 0.6

    predicted = gdod("predict", "runs/clicks", "clicks.csv", "--out", "scores.parquet", "--keep", "id", "--json")
    assert json.loads(predicted.stdout) == {
        "out": "scores.parquet",
        "rows": 1000,
        "columns": ["id", "click", "buy"],
        "notes": [],
    }
    assert pl.read_parquet("scores.parquet").columns == ["id", "click", "buy"]

    metrics = json.loads(gdod("evaluate", "runs/clicks", "clicks.csv", "--json").stdout)
    assert metrics["rows"] == 1000
    assert metrics["mean_auc"] > 0.6
    shown = gdod("evaluate", "runs/clicks", "clicks.csv")
    assert "AUC" in shown.output


def test_a_configuration_file_and_options(place: Path) -> None:
    (place / "train.yaml").write_text(
        "data: {source: clicks.csv, schema: clicks.yaml}\nmodel: {name: mmoe, options: {experts: 2}}\nsteps: 99\n"
        "threads: 1\ntensorboard: false\n"
    )
    options = ["--steps", "5", "--set", "optimizer.lr=1e-2", "--set", "stopping.least=0.5", "--task-weight", "buy=2"]
    done = gdod("train", "train.yaml", *options, "--out", "run", "--json")
    assert done.exit_code == 0, done.output
    config = json.loads((place / "run" / "config.json").read_text())
    assert (config["steps"], config["optimizer"]["lr"], config["stopping"]["least"]) == (5, 0.01, 0.5)
    assert (config["model"]["name"], config["task_weights"]) == ("mmoe", {"buy": 2.0})
    assert config["model"]["options"].keys() == {"experts", "dropout", "activation", "embedding", "cross"}  # the recipe
    assert config["model"]["options"]["experts"] == 2
    assert (config["recipe"], config["method"]["name"]) == ("strong", "sum")
    assert config["data"]["source"] == str(place / "clicks.csv")


def test_a_run_has_a_name_if_it_was_given_none(place: Path) -> None:
    done = train("--method", "sum", "--steps", "2", "--seed", "4", "--quiet")
    assert done.exit_code == 0, done.output
    assert (place / "runs" / "clicks-shared-bottom-sum-seed4" / "result.json").exists()
    assert train("--method", "sum", "--steps", "2", "--seed", "4").exit_code == 2


def test_check_prints_all_settings_and_does_nothing(place: Path) -> None:
    done = train("--check", "--model", "mmoe", "--model-option", "experts=2", "--set", "model.options={experts: 2}")
    assert done.exit_code == 2  # mmoe has no option bottom
    done = gdod("train", "--data", "ads", "--recipe", "paper", "--check")
    assert json.loads(done.stdout)["model"] == {"name": "shared-bottom", "options": {}}
    done = train("--check")
    assert json.loads(done.stdout)["model"]["options"].items() > {"bottom": [16], "embedding": 4}.items()
    assert "640 training rows" in done.stderr
    assert not (place / "runs").exists()


def test_options_beside_resume_are_compared_with_those_of_the_run(place: Path) -> None:
    assert train("--method", "sum", "--steps", "2", "--out", "run", "--quiet").exit_code == 0
    other = gdod("train", "--resume", "--out", "run", "--steps", "1")
    assert other.exit_code == 2
    assert "steps is 2, not 1. Go on with its own with gdod train --resume --out run" in other.stderr
    assert gdod("train", "--resume", "--out", "run", "--steps", "9", "--lr", "3").exit_code == 2
    assert gdod("train", "--resume", "--out", "run", "--steps", "2").exit_code == 0
    longer = gdod("train", "--resume", "--out", "run", "--steps", "9")  # the one change that a run goes on with
    assert longer.exit_code == 0, longer.output
    assert "goes on from step 2 to step 9" in " ".join(longer.output.split())
    assert json.loads((place / "run" / "result.json").read_text())["steps"] == 9


def test_brackets_in_names_are_no_markup(place: Path) -> None:
    frame = tiny.frame(600).rename({"click": "[bold]click", "buy": "buy[/]"})
    frame.write_csv("odd.csv")
    labels = ["--label", "[bold]click", "--label", "buy[/]"]
    done = gdod(
        "train", "--data", "odd.csv", *labels, *QUICK, *SMALL, "--method", "sum", "--steps", "3", "--out", "[red]"
    )
    assert done.exit_code == 0, done.output
    for shown in (done.output, gdod("evaluate", "[red]", "odd.csv").output):
        assert "[bold]click" in shown
        assert "buy[/]" in shown
    assert done.output.endswith("\n[red]\n")
    arguments = [
        "--data",
        "odd.csv",
        *labels,
        "--model",
        "shared-bottom:bottom=[16]",
        "--method",
        "sum",
        "--seeds",
        "1",
    ]
    compared = gdod("compare", *arguments, "--steps", "3", "--jobs", "1", "--threads", "1", "--out", "[i]c")
    assert compared.exit_code == 0, compared.output
    assert "[i]c/report.html" in compared.output
    assert "[bold]click" in (place / "[i]c" / "tables.md").read_text()


def test_brackets_are_no_markup_in_bars_either() -> None:
    out = io.StringIO()
    terminal = Console(file=out, force_terminal=True, width=200, no_color=True)
    metrics = {"mean_auc": None, "tasks": {"[bold]price[/bold]": {"rmse": 1.5, "labelled": 3}}}
    with training.Shown(terminal) as bar:
        bar.start(10, 0)
        bar.evaluated(5, metrics, best=True)
    assert "[bold]price[/bold] rmse 1.5000" in out.getvalue()
    job = Job("[i]mmoe[/i]", Path("run"), tiny.config())
    with watch.ShownRuns(terminal) as bars:
        bars.begin(2, 0)
        bars.told(job, {"kind": "started", "steps": 10, "done": 0})
    assert "[i]mmoe[/i]" in out.getvalue()


def test_a_task_with_one_class_says_so(place: Path) -> None:
    frame = tiny.frame(600).with_columns(buy=pl.when(pl.col("id") < 480).then("buy").otherwise(0))
    frame.write_csv("one.csv")
    (place / "time.yaml").write_text(tiny.SCHEMA.replace("by: random, seed: 0", "by: time, column: id"))
    arguments = ["--data", "one.csv", "--schema", "time.yaml", *QUICK, *SMALL, "--method", "sum", "--steps", "3"]
    done = gdod("train", *arguments, "--out", "run")
    assert done.exit_code == 0, done.output
    assert "buy, test: no AUC: all" in done.output
    assert "buy, validation" not in done.output


def test_weight_decay_that_does_not_reach_the_tables_is_told_once(place: Path) -> None:
    sparse = ["--optimizer", "sparse-adam", "--method", "sum", "--steps", "2"]
    told = train(*sparse, "--weight-decay", "0.1", "--out", "told").output
    assert told.count("no weight decay") == 1
    assert "weight decay" not in train(*sparse, "--out", "without").output
    dense = train("--weight-decay", "0.1", "--method", "sum", "--steps", "2", "--out", "dense").output
    assert "weight decay" not in dense
    arguments = [*TABLE, "--model", "shared-bottom:bottom=[16]", "--method", "sum", "--method", "mgda", "--seeds", "1"]
    arguments += ["--steps", "2", "--optimizer", "sparse-adam", "--set", "optimizer.weight_decay=0.1", "--jobs", "1"]
    compared = gdod("compare", *arguments, "--out", "c")
    assert compared.output.count("no weight decay") == 1


def test_the_version_is_that_of_the_package() -> None:
    done = gdod("--version")
    assert (done.exit_code, done.stdout) == (0, f"gdod {version('gdod')}\n")


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)  # as after `| head`
    done = subprocess.run(
        [sys.executable, "-m", "gdod", "reproduce", "--list"], stdout=writing, stderr=subprocess.PIPE, text=True
    )
    os.close(writing)
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["train"], "no data is given"),
        (["train", "--data", "adds"], "did you mean 'ads'"),
        (["train", "--data", "ads", "--task-weight", "click=-1"], "greater than or equal to 0"),
        (["train", "--data", "ads", "--set", "stopping=3"], "expected names with values, of 'patience'"),
        (["train", "--data", "ads", "--optimizer", "adma"], "did you mean 'adam'"),
        (["train", "--data", "ads", "--schedule", "cosin"], "did you mean 'cosine'"),
        (["train", "--data", "ads", "--precision", "bf61"], "did you mean 'bf16'"),
        (["train", "--data", "clicks.csv", "--schema", "clicks.yaml", "--model", "mmeo"], "did you mean 'mmoe'"),
        (["train", "--data", "clicks.csv", "--schema", "clicks.yaml", "--set", "batchh=3"], "did you mean 'batch'"),
        (["train", "--data", "clicks.csv", "--schema", "clicks.yaml", "--set", "batch"], "expected a name and a value"),
        (["train", "--data", "clixks.csv"], "clicks.csv"),
        (["train", "nothing.yaml"], "cannot be read"),
        (["train", "census"], "if it is data, say --data census"),
        (["train", "--resume"], "--resume needs --out"),
        (["train", "--resume", "--out", "nowhere"], "no run in nowhere"),
        (["predict", "nowhere", "clicks.csv", "--out", "x.csv"], "is no run"),
        (["evaluate", "nowhere", "clicks.csv"], "is no run"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(place: Path, arguments: list[str], says: str) -> None:
    done = gdod(*arguments)
    assert done.exit_code == 2
    assert says in done.stderr
    assert done.stderr.startswith("gdod: ")
    assert "Traceback" not in done.output
    assert not (place / "runs").exists()


def test_a_loss_that_is_not_finite_has_its_own_exit_code(place: Path) -> None:
    done = train("--method", "sum", "--optimizer", "sgd", "--lr", "1e30", "--steps", "9", "--out", "run")
    assert done.exit_code == 3
    assert "is not finite; the last good checkpoint is run/checkpoints/last.pt (step 0)" in done.stderr


def test_help_has_examples_and_exit_codes() -> None:
    for command in ("train", "predict", "evaluate"):
        shown = gdod(command, "--help").output
        assert "Examples" in shown
        assert "Exit codes" in shown


def start(*arguments: str) -> "subprocess.Popen[str]":
    program = "from gdod.cli import app; app()"
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finish(*arguments: str) -> str:
    process = start(*arguments)
    out, error = process.communicate(timeout=120)
    assert process.returncode == 0, error
    return out


def wait_for(path: Path, least: int, process: "subprocess.Popen[str]") -> None:
    while process.poll() is None and not (path.exists() and path.read_bytes().count(b"\n") >= least):
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_tells_how_to_go_on(place: Path, number: signal.Signals) -> None:
    settings = [
        "--data",
        "clicks.csv",
        "--schema",
        "clicks.yaml",
        *QUICK,
        *SMALL,
        "--epochs",
        "100",
        "--log-every",
        "5",
    ]
    process = start("train", *settings, "--out", "my runs/1", "--method", "gradnorm")
    wait_for(place / "my runs" / "1" / "metrics.jsonl", 20, process)
    process.send_signal(number)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert "gdod train --resume --out 'my runs/1'" in error
    before = len(lines(place / "my runs" / "1"))
    out = finish("train", "--resume", "--out", "my runs/1", "--json")
    assert json.loads(out)["stopped"] == "finished"
    assert len(lines(place / "my runs" / "1")) > before


@pytest.mark.slow
def test_killed_from_outside_the_command_goes_on(place: Path) -> None:
    settings = [*TABLE, *QUICK, *SMALL, *LOGS, "--epochs", "30", "--method", "uncertainty", "--checkpoint-every", "3"]
    finish("train", *settings, "--out", "whole")
    for least in (1, 15, 40):
        process = start("train", *settings, "--out", "killed", "--resume")
        wait_for(place / "killed" / "metrics.jsonl", least, process)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
    finish("train", *settings, "--out", "killed", "--resume")
    found = [[{**line, "seconds": 0} for line in lines(place / name)] for name in ("whole", "killed")]
    assert found[0] == found[1]


def test_a_disk_that_is_full_names_the_file_and_how_to_go_on(place: Path) -> None:
    """No file may grow beyond a limit, which is as real as a full disk."""
    resource = pytest.importorskip("resource")
    assert train("--steps", "1", "--out", "first").exit_code == 0
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    last = place / "first/checkpoints/last.pt"
    resource.setrlimit(resource.RLIMIT_FSIZE, (last.stat().st_size - 1, before[1]))
    try:
        done = train("--steps", "1", "--out", "second")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert done.exit_code == 4
    said = " ".join(done.stderr.split())
    assert "second/checkpoints/last.pt" in said
    assert said.endswith("goes on with: gdod train --resume --out second")
    assert gdod("train", "--resume", "--out", "second").exit_code == 0


def test_what_says_how_to_install_itself_is_not_told_twice(capsys: pytest.CaptureFixture[str]) -> None:
    for reason, advised in (("needs x: pip install 'gdod[solvers]'", False), ("No module named 'yaml'", True)):
        with pytest.raises(typer.Exit), explained():
            raise ImportError(reason)
        assert ("gdod[cli]" in capsys.readouterr().err) is advised


def test_an_evaluation_shows_every_kind_of_task() -> None:
    console = Console(file=io.StringIO(), width=200)
    tasks = {"click": {"auc": 0.75}, "buy": {"auc": 0.5}, "age": {"rmse": 2.0}, "a\x1b[31m": {"log_loss": 1.0}}
    training.Shown(console).evaluated(3, {"mean_auc": 0.625, "tasks": tasks}, best=True)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "validation AUC 0.6250 (click 0.7500, buy 0.5000, age rmse 2.0000, a\\x1b[31m log_loss 1.0000)" in shown


def test_a_run_goes_on_with_the_rows_of_a_new_day(place: Path) -> None:
    assert train("--steps", "4", "--out", "monday", "--quiet").exit_code == 0
    tiny.frame(900, seed=1).write_csv(place / "tuesday.csv")
    update = ["train", "--from", "monday", "--data", "tuesday.csv"]
    checked = gdod(*update, "--check")
    assert checked.exit_code == 0, checked.output
    assert f"update of the run in {place / 'monday'}" in " ".join(checked.output.split())
    done = gdod(*update, "--half-life", "4", "--out", "tuesday")
    assert done.exit_code == 0, done.output
    told = json.loads((place / "tuesday" / "about.json").read_text())["update"]
    assert (told["from"], told["half_life"], told["updates"]) == (str(place / "monday"), 4, 1)
    assert gdod("predict", "tuesday", "tuesday.csv", "--out", "scores.csv").exit_code == 0
    for arguments, said in (
        (["train", "--data", "tuesday.csv", "--half-life", "4"], "--half-life is for an update"),
        (["train", "--data", "tuesday.csv", "--from", "nothing"], "nothing is no run to go on from"),
        ([*update, "--model", "mmoe"], "an update cannot change that"),
        ([*update, "--schema", "clicks.yaml", "--data", "clicks.csv"], "was trained on already"),
    ):
        refused = gdod(*arguments, "--out", "refused")
        assert refused.exit_code == 2
        assert said in " ".join(refused.output.split())
        assert not (place / "refused").exists()
