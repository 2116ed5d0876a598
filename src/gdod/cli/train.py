"""`gdod train`."""

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from gdod.training import TrainConfig
    from gdod.training.ranks import Ranks

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
"""

Config = Annotated[Path | None, typer.Argument(help="A YAML or TOML file with settings; options win over it.")]
Pairs = list[str] | None


def train(
    config: Config = None,
    recipe: Annotated[str | None, typer.Option(help="What fills settings that you do not give: paper, strong.")] = None,
    data: Annotated[str | None, typer.Option(help="A named data set, a file, a folder or a pattern.")] = None,
    schema: Annotated[Path | None, typer.Option(help="What the columns of your own table are (YAML or TOML).")] = None,
    label: Annotated[list[str] | None, typer.Option(help="A column to predict, if you give no schema.")] = None,
    data_folder: Annotated[Path | None, typer.Option(help="Where the files of a named data set are.")] = None,
    data_option: Annotated[Pairs, typer.Option(metavar="NAME=VALUE", help="Of a named data set.")] = None,
    model: Annotated[str | None, typer.Option(help="shared-bottom, cross-stitch, mmoe, snr, ple, single-task.")] = None,
    model_option: Annotated[Pairs, typer.Option(metavar="NAME=VALUE", help="E.g. experts=4.")] = None,
    method: Annotated[str | None, typer.Option(help="sum, gdod, weighted-gdod, pcgrad, cagrad, mgda, ...")] = None,
    method_option: Annotated[Pairs, typer.Option(metavar="NAME=VALUE", help="E.g. groups=16.")] = None,
    optimizer: Annotated[str | None, typer.Option(help="adam, adamw, sgd, sparse-adam.")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate.")] = None,
    weight_decay: Annotated[float | None, typer.Option(help="Weight decay.")] = None,
    schedule: Annotated[str | None, typer.Option(help="constant, cosine, linear, step.")] = None,
    warmup: Annotated[int | None, typer.Option(help="Steps in which the learning rate rises.")] = None,
    clip: Annotated[float | None, typer.Option(help="Longest gradient of a step.")] = None,
    batch: Annotated[int | None, typer.Option(help="Examples of a step.")] = None,
    epochs: Annotated[float | None, typer.Option(help="Passes over the training data.")] = None,
    steps: Annotated[int | None, typer.Option(help="Steps, in place of epochs.")] = None,
    task_weight: Annotated[Pairs, typer.Option(metavar="TASK=FACTOR", help="Factor of a task's loss.")] = None,
    patience: Annotated[int | None, typer.Option(help="Evaluations without a better one before it stops.")] = None,
    monitor: Annotated[str | None, typer.Option(help="What is better: mean_auc, loss or a task.")] = None,
    evaluate_every: Annotated[int | None, typer.Option(help="Steps; by default each epoch.")] = None,
    log_every: Annotated[int | None, typer.Option(help="Steps between lines of training loss.")] = None,
    checkpoint_every: Annotated[int | None, typer.Option(help="Steps between checkpoints.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of weights, order and dropout.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda, cuda:1, ...")] = None,
    precision: Annotated[str | None, typer.Option(help="float32 or bf16.")] = None,
    threads: Annotated[int | None, typer.Option(help="Threads of torch.")] = None,
    non_finite: Annotated[str | None, typer.Option(help="stop, or skip such a step.")] = None,
    tensorboard: Annotated[bool | None, typer.Option(help="Curves for TensorBoard.")] = None,
    set_: Annotated[
        Pairs, typer.Option("--set", metavar="PATH=VALUE", help="Any setting, e.g. stopping.least=0.001.")
    ] = None,
    nproc: Annotated[int | None, typer.Option(min=1, help="Processes of this machine that train together.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run; by default one below runs/.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Only check the settings, and print them all.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
) -> None:
    """Train a model, and write a run folder: settings, metrics, checkpoints, result."""
    with explained():
        settings: dict[str, Any] = {
            "recipe": recipe,
            "data.source": data,
            "data.schema": None if schema is None else str(schema),
            "data.labels": label or None,
            "data.folder": None if data_folder is None else str(data_folder),
            "model.name": model,
            "method.name": method,
            "optimizer.name": optimizer,
            "optimizer.lr": lr,
            "optimizer.weight_decay": weight_decay,
            "schedule.name": schedule,
            "schedule.warmup": warmup,
            "clip": clip,
            "batch": batch,
            "epochs": epochs,
            "steps": steps,
            "stopping.patience": patience,
            "stopping.monitor": monitor,
            "evaluate_every": evaluate_every,
            "log_every": log_every,
            "checkpoint_every": checkpoint_every,
            "seed": seed,
            "device": device,
            "precision": precision,
            "threads": threads,
            "non_finite": non_finite,
            "tensorboard": tensorboard,
        }
        options = {name: value for name, value in settings.items() if value is not None}
        options |= pairs(data_option, "--data-option", "data.options.")
        options |= pairs(model_option, "--model-option", "model.options.")
        options |= pairs(method_option, "--method-option", "method.options.")
        options |= pairs(task_weight, "--task-weight", "task_weights.")
        options |= pairs(set_, "--set")
        _train(config, options, out, nproc, resume=resume, check_only=check, as_json=as_json, quiet=quiet)


def _train(
    file: Path | None,
    options: dict[str, Any],
    out: Path | None,
    nproc: int | None,
    *,
    resume: bool,
    check_only: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    from gdod.training import check, name_of
    from gdod.training.processes import check_nproc, joined, surroundings
    from gdod.training.train_run import preview

    place = surroundings()
    check_nproc(nproc, place)
    config = _config(file, options, out, resume)
    if check_only:
        check(config)
        config, chosen = preview(config)
        for sentence in chosen:  # not among the settings, which may go to a file
            typer.echo(sentence, err=True)
        typer.echo(json.dumps(config.model_dump(mode="json"), indent=2))
        return
    folder = out or Path("runs") / name_of(config)
    if place is None and nproc is not None and nproc > 1:
        check(config)  # what can be told here is told once
        _start(nproc, folder)
    with joined(place, config.device) as ranks, explained(silent=ranks.rank > 0):
        _train_here(config, folder, ranks, resume=resume, as_json=as_json, quiet=quiet)


def _start(nproc: int, folder: Path) -> None:
    """This very command in several processes."""
    from gdod.training import resume_command
    from gdod.training.launch import launch

    hint = f" What was saved last goes on with:\n  {resume_command(folder)} --nproc {nproc}"
    raise typer.Exit(launch(nproc, ["-P", "-m", "gdod", *sys.argv[1:]], hint=hint))


def _train_here(
    config: "TrainConfig", folder: Path, ranks: "Ranks", *, resume: bool, as_json: bool, quiet: bool
) -> None:
    from gdod.training import Shown, Silent, train

    console = screen(stderr=as_json)
    progress = Silent() if quiet else Shown(console)
    command = ["gdod", *sys.argv[1:]]
    result = train(config, folder, resume=resume, progress=progress, command=command, ranks=ranks)
    if ranks.rank > 0:
        return
    if as_json:
        typer.echo(json.dumps({"folder": str(folder), **result}, indent=2))
    else:
        show_metrics(console, {part: result[part] for part in ("validation", "test") if result[part]})
        console.print(f"\n{folder}", soft_wrap=True)


def _config(file: Path | None, options: dict[str, Any], out: Path | None, resume: bool) -> "TrainConfig":
    from gdod.errors import InputError
    from gdod.training import Folder, check_config, read_config
    from gdod.training.config import merged, nested

    if resume and file is None and "data.source" not in options:
        if out is None:
            raise InputError("--resume needs --out, the folder of the run to go on with")
        if not Folder(out).is_run:
            raise InputError(
                f"there is no run in {out} to go on with: it was not begun, or ended before its config.json was "
                "written. To begin it, give all its settings, too: the same command as before, with --resume"
            )
        return check_config(merged(Folder(out).read_config().model_dump(mode="json"), nested(options)))
    if file is None and "data.source" not in options:
        raise InputError("no data is given; name it with --data, e.g. --data ads, or give a configuration file")
    return read_config(file, options)


def screen(*, stderr: bool = False) -> "Console":
    """The terminal. Names of tasks, columns and files may have brackets, which are no markup."""
    from rich.console import Console

    return Console(stderr=stderr, markup=False, highlight=False)


def show_metrics(console: "Console", parts: dict[str, dict[str, Any]]) -> None:
    """The metrics of all tasks on one or more parts of the data, and why some are not there."""
    console.print(_table(parts))
    for part, metrics in parts.items():
        for task, one in metrics["tasks"].items():
            if "note" in one:
                console.print(f"{task}, {part}: {one['note']}", soft_wrap=True)


def _table(parts: dict[str, dict[str, Any]]) -> "Table":
    from rich.table import Table

    found = Table("task", "part")
    tasks = {task: None for metrics in parts.values() for task in metrics["tasks"]}
    names = [
        name
        for name in ("auc", "log_loss", "rmse", "mae", "accuracy")
        if any(name in metrics for part in parts.values() for metrics in part["tasks"].values())
    ]
    for name in (*names, "labels"):
        found.add_column(name.replace("_", " ").replace("auc", "AUC"), justify="right")
    for task in tasks:
        for part, metrics in parts.items():
            one = metrics["tasks"][task]
            found.add_row(task, part, *(_number(one.get(name)) for name in names), f"{one['labelled']:,}")
    return found


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"


def pairs(given: Sequence[str] | None, option: str, prefix: str = "") -> dict[str, Any]:
    """`name=value` as settings; values as YAML has them: numbers, true, lists such as [64, 32]."""
    from gdod.errors import InputError
    from gdod.yaml_toml import parse_value

    found = {}
    for pair in given or ():
        name, sign, value = pair.partition("=")
        if not sign or not name.strip():
            raise InputError(f"{option} {pair!r}; expected a name and a value, e.g. {option} name=3")
        found[prefix + name.strip()] = parse_value(value, f"{option} {pair!r}")
    return found


@contextmanager
def explained(*, silent: bool = False) -> Iterator[None]:
    """Errors as one line and an exit code, in place of a traceback. GDOD_TRACEBACK=1 brings that back.

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
        _fail(f"{error}. Install what is missing, e.g. with: pip install 'gdod[cli]'", WRONG_INPUT, silent)
    except BrokenPipeError:  # whoever read the output has seen enough; typer ends quietly
        raise
    except OSError as error:
        _fail(str(error), SYSTEM, silent)
    except Exception as error:
        _fail_in_training(error, silent)


def _fail_in_training(error: Exception, silent: bool) -> None:
    from gdod.training import Interrupted, NonFiniteError, resume_command
    from gdod.training.launch import LOST
    from gdod.training.processes import LAUNCHER
    from gdod.training.ranks import is_about_others

    if isinstance(error, NonFiniteError):
        _fail(str(error), NON_FINITE, silent)
    if isinstance(error, Interrupted):
        several = f" --nproc {os.environ['WORLD_SIZE']}" if LAUNCHER in os.environ else ""
        _fail(f"{error}. Go on with:\n  {resume_command(error.folder)}{several}", error.exit_code, silent)
    if is_about_others(error):
        _fail(f"{error}. What was saved last goes on with --resume", LOST, silent=LAUNCHER in os.environ)
    raise error


def _fail(text: str, code: int, silent: bool = False) -> None:
    if not silent:
        typer.echo(f"gdod: {text}", err=True)
    raise typer.Exit(code)
