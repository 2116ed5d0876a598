"""`gdod train`."""

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gdod.cli import options
from gdod.cli.terminal import say, screen

if TYPE_CHECKING:
    from rich.console import Console

    from gdod.ranks import Ranks
    from gdod.report.tables import TextTable
    from gdod.training import TrainConfig

WRONG_INPUT, NON_FINITE, SYSTEM = 2, 3, 4

EXIT_CODES = (
    "Exit codes: 0 done, 2 wrong input, 3 a loss is not finite, 4 the system refused (disk full, ...), "
    "6 another process of the run was lost, 130 stopped by Ctrl-C and 143 by a request to terminate, both after saving."
)
EXAMPLES = """
Examples:

  gdod train --data ads --model mmoe --method gdod --epochs 2

  gdod train --data clicks.csv --schema clicks.yaml --out runs/clicks

  gdod train train.yaml --seed 1 --set optimizer.lr=0.0005

  gdod train --resume --out runs/clicks

  gdod train --data clicks.csv --schema clicks.yaml --nproc 4

  gdod train --from runs/monday --data tuesday.parquet --out runs/tuesday
"""

_SETTINGS = {
    "model": "model.name",
    "method": "method.name",
    "weight_decay": "optimizer.weight_decay",
    "schedule": "schedule.name",
    "warmup": "schedule.warmup",
    **{name: name for name in ("clip", "log_every", "checkpoint_every", "seed", "device", "precision", "non_finite")},
    "calibrate": "calibrate",
    "from_": "update.from",
    "half_life": "update.half_life",
    "tensorboard": "tensorboard",
}


def train(
    context: typer.Context,
    config: options.Config = None,
    data: options.Data = None,
    schema: options.SchemaFile = None,
    label: options.Label = None,
    data_folder: options.DataFolder = None,
    data_option: options.DataOption = None,
    vectors: options.Vectors = None,
    from_: Annotated[
        Path | None, typer.Option("--from", help="A run that goes on with the new rows of --data, in --out.")
    ] = None,
    half_life: Annotated[
        float | None, typer.Option(help="With --from: updates after which what was counted counts half.")
    ] = None,
    recipe: options.Recipe = None,
    model: Annotated[
        str | None, typer.Option(help="shared-bottom, cross-stitch, mmoe, snr, ple, stem, esmm, aitm, single-task.")
    ] = None,
    model_option: Annotated[options.Pairs, typer.Option(metavar="NAME=VALUE", help="E.g. experts=4.")] = None,
    method: Annotated[str | None, typer.Option(help="sum (default), gdod, weighted-gdod, pcgrad, cagrad, ...")] = None,
    method_option: Annotated[options.Pairs, typer.Option(metavar="NAME=VALUE", help="E.g. groups=16.")] = None,
    optimizer: options.Optimizer = None,
    lr: options.Rate = None,
    weight_decay: Annotated[float | None, typer.Option(help="Weight decay.")] = None,
    schedule: Annotated[str | None, typer.Option(help="constant, cosine, linear, step.")] = None,
    warmup: Annotated[int | None, typer.Option(help="Steps in which the learning rate rises.")] = None,
    clip: Annotated[float | None, typer.Option(help="Longest gradient of a step.")] = None,
    batch: options.Batch = None,
    epochs: options.Epochs = None,
    steps: options.Steps = None,
    task_weight: Annotated[options.Pairs, typer.Option(metavar="TASK=FACTOR", help="Factor of a task's loss.")] = None,
    positive_weight: Annotated[
        options.Pairs, typer.Option(metavar="TASK=FACTOR", help="How often a positive example of a task counts.")
    ] = None,
    negatives_kept: Annotated[
        options.Pairs, typer.Option(metavar="TASK=SHARE", help="Share of the negatives that the table still has.")
    ] = None,
    calibrate: Annotated[str | None, typer.Option(help="On validation, after training: none, platt, isotonic.")] = None,
    patience: options.Patience = None,
    monitor: options.Monitor = None,
    evaluate_every: options.EvaluateEvery = None,
    log_every: Annotated[int | None, typer.Option(help="Steps between lines of training loss.")] = None,
    checkpoint_every: Annotated[int | None, typer.Option(help="Steps between checkpoints.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of weights, order and dropout.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda, cuda:1, ...")] = None,
    precision: Annotated[str | None, typer.Option(help="float32 or bf16.")] = None,
    threads: Annotated[int | None, typer.Option(help="Threads of torch.")] = None,
    non_finite: Annotated[str | None, typer.Option(help="stop, or skip such a step.")] = None,
    tensorboard: Annotated[bool | None, typer.Option(help="Curves for TensorBoard.")] = None,
    set_: Annotated[
        options.Pairs, typer.Option("--set", metavar="PATH=VALUE", help="Any setting, e.g. stopping.least=0.001.")
    ] = None,
    nproc: Annotated[int | None, typer.Option(min=1, help="Processes of this machine that train together.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run; by default one below runs/.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Only check the settings, and print them all.")] = False,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Train a model, and write a run folder: settings, metrics, checkpoints, result."""
    with explained():
        settings = options.given_settings(context, _SETTINGS)
        _train(config, settings, out, nproc, resume=resume, check_only=check, as_json=as_json, quiet=quiet)


def _train(
    file: Path | None,
    settings: dict[str, Any],
    out: Path | None,
    nproc: int | None,
    *,
    resume: bool,
    check_only: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    from gdod.ranks.processes import check_nproc, joined, surroundings
    from gdod.training import check, name_of
    from gdod.training.preflight import rehearse
    from gdod.training.train_run import preview

    place = surroundings()
    check_nproc(nproc, place)
    config = _config(file, settings, out, resume)
    if check_only:
        check(config)
        if config.update is None:
            rehearse(config)
        config, chosen = preview(config)
        options.tell_recipe(chosen)
        typer.echo(json.dumps(config.model_dump(mode="json"), indent=2))
        return
    folder = out or Path("runs") / name_of(config)
    if place is None and nproc is not None and nproc > 1:
        check(config)  # what can be told here is told once
        _start(nproc, folder)
    with joined(place, config.device) as ranks, explained(silent=ranks.rank > 0):
        _train_here(config, folder, ranks, resume=resume, as_json=as_json, quiet=quiet)


def _start(nproc: int, folder: Path) -> None:
    """Run this very command in several processes, and end as they do."""
    from gdod.training import resume_command
    from gdod.training.launch import launch

    hint = f" What was saved last goes on with:\n  {resume_command(folder)} --nproc {nproc}"
    raise typer.Exit(launch(nproc, ["-P", "-m", "gdod", *sys.argv[1:]], hint=hint))


def _train_here(
    config: "TrainConfig", folder: Path, ranks: "Ranks", *, resume: bool, as_json: bool, quiet: bool
) -> None:
    from gdod.training import Folder, Shown, Silent, resume_command, train

    console = screen(stderr=as_json)
    progress = Silent() if quiet else Shown(console)
    command = ["gdod", *sys.argv[1:]]
    try:
        result = train(config, folder, resume=resume, progress=progress, command=command, ranks=ranks)
    except OSError as error:
        if isinstance(error, BrokenPipeError) or not Folder(folder).is_run:
            raise
        several = f" --nproc {ranks.size}" if ranks.size > 1 else ""
        raise OSError(
            f"{error} (in {folder}). What was saved last goes on with:\n  {resume_command(folder)}{several}"
        ) from error
    if ranks.rank > 0:
        return
    if as_json:
        typer.echo(json.dumps({"folder": str(folder), **result}, indent=2))
    else:
        show_metrics(console, {part: result[part] for part in ("validation", "test") if result[part]})
        console.print(f"\n{folder}", soft_wrap=True)


def _config(file: Path | None, settings: dict[str, Any], out: Path | None, resume: bool) -> "TrainConfig":
    from gdod.errors import InputError
    from gdod.training import Folder, check_config, read_config
    from gdod.training.config import merged, nested

    if resume and file is None and "data.source" not in settings:
        if out is None:
            raise InputError("--resume needs --out, the folder of the run to go on with")
        if not Folder(out).is_run:
            raise InputError(
                f"there is no run in {out} to go on with: it was not begun, or ended before its config.json was "
                "written. To begin it, give all its settings, too: the same command as before, with --resume"
            )
        return check_config(merged(Folder(out).read_config().model_dump(mode="json"), nested(settings)))
    options.need_data(file, settings)
    if "update.half_life" in settings and "update.from" not in settings and file is None:
        raise InputError("--half-life is for an update of a run; name that with --from")
    return read_config(file, settings)


def show_metrics(console: "Console", parts: dict[str, dict[str, Any]]) -> None:
    """Print the metrics of all tasks on one or more parts of the data, and why some are not there."""
    from gdod.report.tables import as_terminal

    tasks = list(dict.fromkeys(task for metrics in parts.values() for task in metrics["tasks"]))
    tables = {_metric_names(parts, tasks): tasks}
    if len(next(iter(tables))) > _MOST_METRICS:  # a table for each kind of task
        tables = {}
        for task in tasks:
            tables.setdefault(_metric_names(parts, [task]), []).append(task)
    for names, alike in tables.items():
        console.print(as_terminal(_table(parts, alike, names), frame="box"))
    for part, metrics in parts.items():
        for task, one in metrics["tasks"].items():
            if "note" in one:
                console.print(f"{task}, {part}: {one['note']}", soft_wrap=True)


_MOST_METRICS = 6  # side by side: more do not fit into a terminal
_TITLES = {
    "auc": "AUC",
    "pr_auc": "PR-AUC",
    "group_auc": "group AUC",
    "f1": "F1",
    "log_loss": "log loss",
    "rmse": "rmse",
    "mae": "mae",
    "accuracy": "accuracy",
    "auc_one_vs_rest": "AUC by class",
}


def _metric_names(parts: dict[str, dict[str, Any]], tasks: Sequence[str]) -> tuple[str, ...]:
    """Return the metrics that any of these tasks has."""
    there = {name for metrics in parts.values() for task in tasks for name in metrics["tasks"][task]}
    return tuple(name for name in _TITLES if name in there)


def _table(parts: dict[str, dict[str, Any]], tasks: Sequence[str], names: Sequence[str]) -> "TextTable":
    from gdod.report.numbers import number
    from gdod.report.tables import Cell, Column, TextTable

    columns = [Column("task", numeric=False), Column("part", numeric=False)]
    columns += [Column(title) for title in (*(_TITLES[name] for name in names), "labels")]
    rows = []
    for task in tasks:
        for part, metrics in parts.items():
            one = metrics["tasks"][task]
            rows.append([task, part, *(number(one.get(name)) for name in names), f"{one['labelled']:,}"])
    return TextTable(columns, [[Cell(text) for text in row] for row in rows])


@contextmanager
def explained(*, silent: bool = False) -> Iterator[None]:
    """Turn errors into one line and an exit code, in place of a traceback. GDOD_TRACEBACK=1 brings that back.

    ``silent``: another rank says what there is to say.
    """
    from gdod.errors import InputError

    if os.environ.get("GDOD_TRACEBACK"):
        yield
        return
    try:
        yield
    except InputError as error:
        _fail(str(error), WRONG_INPUT, silent)
    except KeyboardInterrupt:
        _fail("stopped", 130, silent)
    except ImportError as error:
        hint = "" if "pip install" in str(error) else ". Install what is missing, e.g. with: pip install 'gdod[cli]'"
        _fail(f"{error}{hint}", WRONG_INPUT, silent)
    except BrokenPipeError:  # whoever read the output has seen enough; typer ends quietly
        raise
    except OSError as error:
        _fail(str(error), SYSTEM, silent)
    except Exception as error:
        _fail_in_training(error, silent)


def _fail_in_training(error: Exception, silent: bool) -> None:
    from gdod.ranks import LostError
    from gdod.ranks.processes import LAUNCHER
    from gdod.training import Interrupted, NonFiniteError, resume_command
    from gdod.training.launch import LOST

    if isinstance(error, NonFiniteError):
        _fail(str(error), NON_FINITE, silent)
    if isinstance(error, Interrupted):
        several = f" --nproc {os.environ['WORLD_SIZE']}" if LAUNCHER in os.environ else ""
        _fail(f"{error}. Go on with:\n  {resume_command(error.folder)}{several}", error.exit_code, silent)
    if isinstance(error, LostError):
        _fail(f"{error}. What was saved last goes on with --resume", LOST, silent=LAUNCHER in os.environ)
    raise error


def _fail(text: str, code: int, silent: bool = False) -> None:
    if not silent:
        say(f"gdod: {text}", err=True)
    raise typer.Exit(code)
