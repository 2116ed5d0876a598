"""Read run and comparison folders. Only JSON is read; whatever is damaged or half written counts as missing."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, Literal, NamedTuple

from gdod._files import read_json_lines, try_read_json
from gdod.errors import InputError

Status = Literal["finished", "unfinished", "failed", "not started"]
Json = dict[str, Any]
SINGLE_TASK = "single-task"
RIVAL = "rival"
"""What the run of a rival, such as boosted trees, has in place of a model; its method is the rival's name."""

# What a configuration says that does not, since it was stored by a version before there were these settings.
_BEFORE: Json = {"recipe": "paper", "filled": False, "average": None, "update": None}
_SIGNS = ("about.json", "config.json", "metrics.jsonl", "result.json", "error.json")


class Repetition(NamedTuple):
    """What tells runs of the same setting apart."""

    seed: int | None
    fold: int | None = None
    """The number of the fold that is tested on, from 1; None: there are no folds."""


@dataclass(frozen=True, eq=False)
class RunRecord:
    """What a run folder holds."""

    path: Path
    status: Status
    reason: str | None = None
    """Why it is not finished, as far as the folder tells."""
    about: Json = field(default_factory=dict, repr=False)
    config: Json = field(default_factory=dict, repr=False)
    result: Json | None = field(default=None, repr=False)
    train: tuple[Json, ...] = field(default=(), repr=False)
    """Records of training in the order of steps, one a step at most."""
    evaluations: tuple[Json, ...] = field(default=(), repr=False)
    explanation: Json = field(default_factory=dict, repr=False)
    """The content of `explanation.json`, if `gdod explain` wrote one."""
    notes: tuple[str, ...] = ()
    """What is wrong with its files, in words."""
    asked: Json = field(default_factory=dict, repr=False)
    """The content of the `comparison.json` that it belongs to."""

    @property
    def name(self) -> str:
        return self.path.name

    @cached_property
    def model(self) -> str:
        return _name(self.about, self.config, "model")

    @cached_property
    def method(self) -> str:
        return _name(self.about, self.config, "method")

    def options(self, what: str) -> Json | None:
        """Return the options of the "model" or the "method"; None if the folder does not tell."""
        for source in (self.config, self.about):
            if isinstance(options := part(source, what).get("options"), dict):
                return options
        return None

    @cached_property
    def seed(self) -> int | None:
        for source in (self.about, self.config):
            if isinstance(seed := source.get("seed"), int):
                return seed
        return None

    @property
    def repetition(self) -> Repetition:
        number = part(self.data, "fold").get("number")
        return Repetition(self.seed, number if isinstance(number, int) else None)

    @cached_property
    def data(self) -> Json:
        return part(self.about, "data")

    @cached_property
    def tasks(self) -> tuple[tuple[str, str], ...]:
        """The name and the kind of each task."""
        told = self.about.get("tasks")
        listed = [task for task in told if isinstance(task, dict)] if isinstance(told, list) else []
        return tuple((str(task.get("name")), str(task.get("kind", "binary"))) for task in listed)

    @property
    def last_step(self) -> int | None:
        steps = [record["step"] for record in (*self.train[-1:], *self.evaluations[-1:])]
        return max(steps, default=None)


@dataclass(frozen=True)
class Asked:
    """A model or a method that a comparison asks for."""

    label: str
    """What names of run folders call it, such as `cagrad_c=0.3`."""
    name: str
    options: Json = field(default_factory=dict)


@dataclass(frozen=True)
class Collection:
    """All runs in some folders, and those that comparisons ask for."""

    runs: tuple[RunRecord, ...]


def collect(paths: Sequence[Path]) -> Collection:
    """Return the runs in the given folders: a run, a comparison, or a folder of any of them."""
    runs: dict[Path, RunRecord] = {}
    asked: dict[Path, Json] = {}
    for path in paths:
        if not path.is_dir():
            raise InputError(f"{path} is not a folder; expected a run, a comparison, or a folder of them")
        comparisons, folders = _comparisons(path), _run_folders(path)
        if not comparisons and not folders:
            raise InputError(
                f"{path} holds no run: no folder in it has a file {', '.join(_SIGNS)}; expected what "
                "`gdod train` or `gdod compare` wrote"
            )
        for folder in comparisons:
            comparison = asked[folder.resolve()] = try_read_json(folder / "comparison.json")[0] or {}
            for run in _asked_runs(comparison, folder):
                runs.setdefault(run.path.resolve(), run)
        for folder in folders:
            place = folder.resolve()
            run = replace(read_run(folder), asked=asked.get(place.parent.parent, {}))
            runs[place] = _named(run, runs.get(place))
    if not runs:
        raise InputError("there is no run to report; give at least one folder")
    return Collection(tuple(runs.values()))


def read_run(path: Path) -> RunRecord:
    """Return what a run folder holds, as far as it can be read."""
    notes: list[str] = []
    files: dict[str, Json | None] = {}
    for name in ("about", "config", "result", "error", "explanation"):
        files[name], note = try_read_json(path / f"{name}.json")
        if note:
            notes.append(note)
    lines, skipped = read_json_lines(path / "metrics.jsonl")
    records = [line for line in lines if isinstance(line.get("step"), int)]
    skipped += len(lines) - len(records)
    if skipped:
        notes.append(f"metrics.jsonl: {skipped} unreadable line{'s' if skipped > 1 else ''} left out")
    lost = (files["about"] or {}).get("lost")
    notes += [str(said) for said in lost] if isinstance(lost, list) else []
    status, reason = _status(path, files["result"], files["error"], notes)
    return RunRecord(
        path=path,
        status=status,
        reason=reason,
        about=files["about"] or {},
        config=_as_of_now(files["config"] or {}),
        result=files["result"],
        train=_by_step(record for record in records if record.get("kind") == "train"),
        evaluations=_by_step(record for record in records if record.get("kind") == "evaluation"),
        explanation=files["explanation"] or {},
        notes=tuple(notes),
    )


def part(source: Mapping[str, Any], name: str) -> Json:
    """Return an object inside another; empty if it is missing or something else."""
    inner = source.get(name)
    return inner if isinstance(inner, dict) else {}


def _comparisons(path: Path) -> list[Path]:
    return sorted({file.parent for depth in ("", "*/", "*/*/") for file in path.glob(f"{depth}comparison.json")})


def _run_folders(path: Path) -> list[Path]:
    depths = ("", "*/", "*/*/", "*/*/*/")
    return sorted({file.parent for depth in depths for sign in _SIGNS for file in path.glob(depth + sign)})


def _asked_runs(comparison: Json, folder: Path) -> Iterator[RunRecord]:
    """Yield all runs that a comparison asks for, as if none of them had a folder yet."""
    data = comparison.get("data")
    methods, seeds = asked_for(comparison, "method"), _whole_numbers(comparison.get("seeds"))
    pairs = [
        (model, method)
        for model in asked_for(comparison, "model")
        for method in (methods if model.name != SINGLE_TASK else [Asked("sum", "sum")])
    ]
    pairs += [(Asked(RIVAL, RIVAL), rival) for rival in asked_for(comparison, "rival")]
    count = comparison.get("folds")
    folds = range(1, count + 1) if isinstance(count, int) else (None,)
    for (model, method), seed, fold in product(pairs, seeds, folds):
        about: Json = {
            "model": {"name": model.name, "options": model.options},
            "method": {"name": method.name, "options": method.options},
            "seed": seed,
        }
        if isinstance(data, str):
            about["data"] = {"name": data} | ({} if fold is None else {"fold": {"number": fold, "of": count}})
        path = folder / "runs" / (f"{model.label}-{method.label}-seed{seed}" + ("" if fold is None else f"-fold{fold}"))
        yield RunRecord(path, "not started", "has no folder yet", about=about, asked=comparison)


def _named(run: RunRecord, asked: RunRecord | None) -> RunRecord:
    """Return the run; if it failed before it could say what it is, as what it was asked for."""
    return run if asked is None or run.about or run.config else replace(run, about=asked.about)


def asked_for(comparison: Json, what: str) -> list[Asked]:
    """Return the models, methods or rivals of a comparison, from names or objects with a name.

    Single-task models come last.
    """
    listed = comparison.get(f"{what}s")
    if not isinstance(listed, list | dict):
        return []
    if what == "model" and (alone := part(comparison, "single_task")):
        listed = [*listed, alone]
    asked = []
    for item in listed:
        if isinstance(item, dict):
            label = str(item.get("name"))
            asked.append(Asked(label, str(item.get(what, label)), part(item, "options")))
        else:
            asked.append(Asked(str(item), str(item)))
    return asked


def _whole_numbers(listed: Any) -> list[int]:
    return [item for item in listed if isinstance(item, int)] if isinstance(listed, list) else []


def _as_of_now(config: Json) -> Json:
    """Return a configuration with the settings that it is too old to have; none if its recipe had yet to fill it."""
    if not config or (config.get("recipe") == "strong" and not config.get("filled")):
        return {}
    if part(config, "model").get("name") == RIVAL:
        return config
    optimizer = {"optimizer": {"id_decay": None, **config["optimizer"]}} if part(config, "optimizer") else {}
    return {**_BEFORE, **config, **optimizer}


def _name(about: Json, config: Json, what: str) -> str:
    for source in (about, config):
        told = source.get(what)
        if isinstance(told, str):
            return told
        if isinstance(told, dict) and told.get("name"):
            return str(told["name"])
    return "unknown"


def _status(path: Path, result: Json | None, error: Json | None, notes: Sequence[str]) -> tuple[Status, str | None]:
    if result is not None:
        return "finished", None
    if error is not None:
        message = error.get("message") or error.get("error") or "no message"
        return "failed", str(message)
    if not (path / "metrics.jsonl").exists():
        reason = "stopped before the first step was recorded"
    elif (path / "result.json").exists():
        reason = "its result is damaged"
    else:
        reason = "no result.json, so it is still running or was interrupted"
    return "unfinished", "; ".join([reason, *notes])


def _by_step(records: Iterable[Json]) -> tuple[Json, ...]:
    """Return the records in the order of steps; of a step that was repeated after an interruption, the last ones."""
    last = {(record["step"], str(record.get("part"))): record for record in records}
    return tuple(last[key] for key in sorted(last))
