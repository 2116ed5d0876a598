"""The strong recipe against boosted trees: `python -m benchmarks.quality`.

One network with the recipe's defaults beside LightGBM and CatBoost with one model a label, on the same rows, over
several seeds; what each part of the recipe adds, on the validation part; single-task networks with the same recipe; and
training times, each run alone. It is made of comparisons as `gdod compare` makes them, so what is finished is never
repeated. Our runs are kept by the version of the source that made them; rivals do not depend on it, and are kept for
all versions.

`--table shop=shop.csv:shop.yaml` makes the same judgement on a table of your own, with at least one binary label.
"""

import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from statistics import mean, median
from typing import Annotated, Any

import typer

from benchmarks.report import environment, markdown_table
from gdod._files import try_read_json, write_json
from gdod.data import SOURCES, TableSchema, prepare
from gdod.errors import InputError
from gdod.experiments.compare import compare
from gdod.experiments.plan import make_plan
from gdod.experiments.rivals.boosters import RIVALS
from gdod.experiments.rivals.inputs import prepare_input
from gdod.experiments.watch import Watch
from gdod.report.numbers import duration, number, signed, with_spread
from gdod.statistics import Difference, paired_difference, summarise
from gdod.training.config import Settings
from gdod.training.recipes import fixed_settings

RESULTS = Path(__file__).parent / "results"
RECIPE = "strong"
THREADS = 2  # of the timed runs
TIMED_RUNS, LONG = 5, 10.0  # how many runs a time is the median of; from so many seconds on, one will do
RUN = "shared-bottom-sum"  # what our runs are called, before the seed
ALONE = "single-task-sum"

PARTS: dict[str, Settings] = {
    "target statistics": {"data": {"features": {"statistics": False}}},
    "statistics of repeated numbers": {"data": {"features": {"repeated_numbers": False}}},
    "statistics of pairs": {"data": {"features": {"pairs": 0}}},
    "statistics of frequent values left out": {"data": {"features": {"rows_per_value": 1_000_000_000}}},
    "statistics that tell nothing left out": {"data": {"features": {"noise": True}}},
    "piecewise-linear numbers": {"data": {"features": {"bins": 0}}},
    "flags for missing numbers": {"data": {"features": {"missing_flags": False}}},
    "one vector for rare values": {"data": {"features": {"rare": 1}}},
    "dropout": {"models": [{"name": "shared-bottom", "options": {"dropout": 0.0}}]},
    "cross layers": {"models": [{"name": "shared-bottom", "options": {"cross": 0}}]},
    "SiLU (ReLU in its place)": {"models": [{"name": "shared-bottom", "options": {"activation": "relu"}}]},
    "falling learning rate": {"schedule": {"name": "constant"}},
    "warm-up": {"schedule": {"warmup": 0}},
    "average of the weights": {"average": None},
    "weight decay": {"optimizer": {"weight_decay": 0.0}},
    "AdamW (Adam in its place, no decay)": {"optimizer": {"name": "adam", "lr": fixed_settings({})["optimizer"]["lr"]}},
    "more passes than one": {"epochs": 1},
    "early stopping": {"stopping": {"patience": None}},
}
"""The parts of the recipe, and the settings that take each of them out alone."""


class Stage(StrEnum):
    """What there is to measure."""

    OURS = "ours"
    RIVALS = "rivals"
    PARTS = "parts"
    SINGLE = "single"
    TIMES = "times"


@dataclass(frozen=True)
class QualitySet:
    """A table to measure on."""

    title: str
    data: Callable[[Path, Path], Settings]
    """Gives the settings of its data from the folder of all data sets and a folder for files that are made."""


def named(source: str, folder: str) -> Callable[[Path, Path], Settings]:
    """Return what gives the data settings of a data set with a name."""
    return lambda data, work: {"source": source, "folder": str(data / folder)}


SETS = {
    "census": QualitySet("Census-Income", named("census", "census-income-kdd")),
    "bookcrossing": QualitySet("BookCrossing", named("bookcrossing", "book-crossing")),
    "ijcai15": QualitySet("shop log (IJCAI-15 layout)", named("ijcai15", "ijcai15")),
    "drugs": QualitySet("drug consumption", named("drugs", "drug-consumption")),
}


def own_table(text: str) -> tuple[str, QualitySet]:
    """Return the name and the table that NAME=FILE:SCHEMA says."""
    name, _, files = text.partition("=")
    table, _, schema = files.rpartition(":")
    if not re.fullmatch(r"[\w-]+", name) or not table or name in SETS:
        raise typer.BadParameter(
            f"{text!r}; expected NAME=FILE:SCHEMA, such as shop=shop.csv:shop.yaml, with another name than "
            f"{', '.join(SETS)}",
            param_hint="--table",
        )
    for path in (table, schema):
        if not Path(path).exists():
            raise typer.BadParameter(f"{text!r}: there is no {path}", param_hint="--table")
    settings = {"source": str(Path(table).resolve()), "schema": str(Path(schema).resolve())}
    return name, QualitySet(name, lambda data, work: settings)


def _write_schema(schema: TableSchema, path: Path) -> None:
    # Without defaults: what stands in a schema wins over the recipe. JSON is YAML, too.
    path.write_text(json.dumps(schema.model_dump(mode="json", exclude_unset=True), indent=1) + "\n")


@dataclass(frozen=True)
class Figures:
    """What a run came to."""

    validation: float
    """The mean AUC on the validation part."""
    test: float | None
    seconds: float
    bytes: int | None
    commit: str
    """The version of the source that made the run."""
    versions: Mapping[str, str]


@dataclass(frozen=True)
class Timed:
    """The times of a run that was alone on the machine, in seconds: medians, where it was made several times."""

    training: float
    """As the report has it: of a network without evaluation, of a rival with it."""
    whole: float
    """From the data in memory to the metrics of the test part."""
    validation: float
    commit: str
    """The version of the source that made the run."""


@dataclass
class Measured:
    """All figures of one table: of runs by name and seed."""

    title: str
    splits: bool
    runs: dict[str, dict[int, Figures]]
    parts: dict[str, dict[int, Figures]]
    times: dict[str, Timed]
    preparing: dict[str, float]
    """The seconds of reading and preparing the table for "ours" and for "rivals"."""

    def of(self, name: str, figure: str) -> dict[int, float | None]:
        return {seed: getattr(one, figure) for seed, one in self.runs.get(name, {}).items()}

    @property
    def best_rival(self) -> str | None:
        """The rival with the better mean AUC on the validation part, over all seeds."""
        means = {
            name: mean(one.validation for one in self.runs[name].values()) for name in RIVALS if self.runs.get(name)
        }
        if not means:
            means = {name: self.times[name].validation for name in RIVALS if name in self.times}
        return max(means, key=lambda name: means[name], default=None)


class Bench:
    """Makes the runs of one table, and reads what is finished."""

    def __init__(
        self,
        key: str,
        table: QualitySet,
        *,
        data: Path,
        runs: Path,
        version: str,
        seeds: int,
        splits: bool,
        jobs: int | None = None,
        rivals: Sequence[str] = tuple(RIVALS),
        parts: Mapping[str, Settings] = PARTS,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.table, self.version, self.seeds, self.splits, self.jobs = table, version, range(seeds), splits, jobs
        self.rivals, self.parts, self.settings = rivals, parts, dict(settings or {})
        self.folder = runs / key / ("splits" if splits else "fixed")
        self.work = (runs / key / "data").resolve()
        self.work.mkdir(parents=True, exist_ok=True)
        self.data = table.data(data, self.work)

    # Making runs

    def make(self, stage: Stage) -> None:
        """Make what is not finished of a stage."""
        {
            Stage.OURS: lambda: self._compare("ours", {"methods": ["sum"]}),
            Stage.SINGLE: lambda: self._compare("ours", {"methods": ["sum"], "single_task": True}),
            Stage.RIVALS: self._rivals,
            Stage.PARTS: self._parts,
            Stage.TIMES: self._times,
        }[stage]()

    def _rivals(self) -> None:
        self._compare("rivals", {"methods": [], "rivals": list(self.rivals), "recipe": "paper"})

    def _parts(self) -> None:
        for name, settings in self.parts.items():
            self._compare(f"parts/{_slug(name)}", {"methods": ["sum"], **settings}, test=False)

    def _compare(self, what: str, settings: Mapping[str, Any], *, test: bool = True) -> None:
        for place, seeds, data in self.comparisons(what):
            self._made(place, seeds, data, settings, test=test, processes=self.jobs)

    def _made(
        self, place: Path, seeds: Sequence[int], data: Settings, settings: Mapping[str, Any], **options: Any
    ) -> None:
        """Make a comparison, and note which version of the source made which run."""
        features = {"features": settings.get("data", {}).get("features")} if "data" in settings else {}
        asked = {
            "recipe": RECIPE,
            "models": ["shared-bottom"],
            "seeds": list(seeds),
            **self.settings,
            **settings,
            "data": {**data, **features},
        }
        before = {path.parent.name for path in place.glob("runs/*/result.json")}
        outcome = compare(make_plan(asked), place, command=sys.argv, watch=Lines(), **options)
        known = try_read_json(place / "provenance.json")[0] or {}
        made = {path.parent.name for path in place.glob("runs/*/result.json")} - before
        write_json(place / "provenance.json", {**known, **dict.fromkeys(sorted(made), self.version)})
        if outcome.failed:
            raise InputError("; ".join(f"{place}: {name} failed: {why}" for name, why in outcome.failed.items()))

    def comparisons(self, what: str) -> list[tuple[Path, Sequence[int], Settings]]:
        """Return the folder, the seeds and the data of each comparison: one for all seeds, or with splits one each."""
        place = self._place(what)
        if not self.splits:
            return [(place, self.seeds, self.data)]
        return [(place / f"split{seed}", [seed], self._split(seed)) for seed in self.seeds]

    def _place(self, what: str) -> Path:
        return self.folder / what if what == "rivals" else self.folder / self.version / what

    def _split(self, seed: int) -> Settings:
        """Return the data cut into parts by another seed."""
        file = self.data.get("schema")
        schema = TableSchema.read(file) if file else SOURCES[self.data["source"]].schema({})
        if schema.split.by != "random":
            raise InputError(f"--splits: {self.table.title} is split by {schema.split.by}; expected a random split")
        other = self.work / f"schema-split{seed}.yaml"
        split = schema.split.model_copy(update={"seed": seed})
        _write_schema(schema.model_copy(update={"split": split}), other)
        return {**self.data, "schema": str(other)}

    def _times(self) -> None:
        """Make runs of each, alone and one after the other, and time them."""
        if not self._times_file("preparing").exists():
            write_json_in(self._times_file("preparing"), self._preparing())
        runs: dict[str, Settings] = {"ours": {"methods": ["sum"]}}
        runs |= {name: {"methods": [], "rivals": [name], "recipe": "paper"} for name in self.rivals}
        left = {what: settings for what, settings in runs.items() if not self._times_file(what).exists()}
        times: dict[str, list[Timed]] = {what: [] for what in left}
        for _ in range(TIMED_RUNS):  # in turn, so that a busy minute does not hit one of them alone
            for what, settings in left.items():
                if not times[what] or times[what][0].whole < LONG:
                    times[what].append(self._timed(what, settings))
        for what, several in times.items():
            training, whole = (median(getattr(one, name) for one in several) for name in ("training", "whole"))
            write_json_in(self._times_file(what), asdict(replace(several[0], training=training, whole=whole)))

    def _timed(self, what: str, settings: Settings) -> Timed:
        """Make a run, and return its times."""
        # A time cannot go on where it was: each attempt has a folder of its own.
        folder, watch = self._times_file(what).with_name(f"{what}-{time.time_ns()}"), Clock()
        asked = {"recipe": RECIPE, "models": ["shared-bottom"], "seeds": [0], "threads": THREADS, **self.settings}
        compare(make_plan({**asked, **settings, "data": self.data}), folder, processes=1, watch=watch)
        (result,) = (json.loads(path.read_text()) for path in folder.glob("runs/*/result.json"))
        return Timed(result["seconds"], watch.seconds, result["validation"]["mean_auc"], source_version())

    def _times_file(self, what: str) -> Path:
        """Return where the times of our runs or of a rival are kept."""
        return (self.folder if what in RIVALS else self.folder / self.version) / "times" / f"{what}.json"

    def _preparing(self) -> dict[str, float]:
        """Return the seconds of preparing the table for us and for rivals, after each was done once.

        What is done for the first time in a process takes longer, whoever comes first.
        """
        config = make_plan({"recipe": RECIPE, "methods": ["sum"], "data": self.data, **self.settings}).config
        data, seconds = config.data, {}
        for _ in range(2):
            with tempfile.TemporaryDirectory() as cache:
                started = time.perf_counter()
                prepare(data.source, schema=data.schema_file, folder=data.folder, cache=cache, features=data.features)
                ours = time.perf_counter()
                prepare_input(data.model_copy(update={"cache": Path(cache)}))
                seconds = {"ours": ours - started, "rivals": time.perf_counter() - ours}
        return seconds

    # Reading them

    def read(self) -> Measured:
        """Return the figures of all finished runs, of this version and of rivals."""
        runs = {"ours": self._figures("ours", RUN), "single": self._figures("ours", ALONE)}
        runs |= {name: self._figures("rivals", f"rival-{name}") for name in RIVALS}
        times = {
            name: Timed(**content)
            for name in ("ours", *RIVALS)
            if (content := try_read_json(self._times_file(name))[0]) is not None
        }
        return Measured(
            self.table.title,
            self.splits,
            {name: found for name, found in runs.items() if found},
            {name: found for name in self.parts if (found := self._figures(f"parts/{_slug(name)}", "*-sum"))},
            times,
            try_read_json(self._times_file("preparing"))[0] or {},
        )

    def _figures(self, what: str, name: str) -> dict[int, Figures]:
        found = {}
        for place, seeds, _ in self.comparisons(what):
            made = try_read_json(place / "provenance.json")[0] or {}
            for seed in seeds:
                run = next(place.glob(f"runs/{name}-seed{seed}"), place)
                result, _ = try_read_json(run / "result.json")
                about = try_read_json(run / "about.json")[0] or {}
                if result is not None:
                    found[seed] = Figures(
                        validation=result["validation"]["mean_auc"],
                        test=result["test"] and result["test"]["mean_auc"],
                        seconds=result["seconds"],
                        bytes=result.get("bytes"),
                        commit=made.get(run.name, "unknown"),
                        versions=about.get("versions", {}),
                    )
        return found


def write_json_in(path: Path, content: Any) -> None:
    """Write JSON, after making the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, content)


def _slug(name: str) -> str:
    return re.sub(r"\W+", "-", name.lower()).strip("-")


class Lines(Watch):
    """Prints a line when a run has ended."""

    def say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def ended(self, ended: Any) -> None:
        metrics = (ended.result or {}).get("validation") or {}
        self.say(f"{ended.job.folder}: {ended.message or metrics.get('mean_auc')}")


class Clock(Lines):
    """Times a run from the data in memory to its metrics."""

    def __init__(self) -> None:
        self.began, self.seconds = 0.0, 0.0

    def told(self, job: Any, event: dict[str, Any]) -> None:
        if event["kind"] == "started":
            self.began = time.perf_counter()

    def ended(self, ended: Any) -> None:
        self.seconds = time.perf_counter() - self.began
        super().ended(ended)


# The tables


def as_markdown(measured: Sequence[Measured], command: str, about: Mapping[str, str]) -> str:
    made = ", ".join(f"{name} {value}" for name, value in about.items())
    parts = ["# The strong recipe against boosted trees", f"`{command}` on {made}."]
    splits = any(one.splits for one in measured)
    parts.append(
        "Seeds change the network's or booster's seed"
        + (", and the rows that fall into each part with it." if splits else "; the split is the same for all.")
    )
    parts += ["## Mean test AUC", _TEST, auc_table(measured)]
    if any(one.times for one in measured):
        parts += ["## Training time", _TIMES, time_table(measured)]
    if any(one.parts for one in measured):
        parts += ["## The parts of the recipe", _PARTS, part_table(measured)]
    if any(one.runs.get("single") for one in measured):
        parts += ["## One network for all tasks, or one each", _SINGLE, single_table(measured)]
    parts += ["## What made the runs", provenance_table(measured)]
    return "\n\n".join(parts) + "\n"


_TEST = (
    "Mean over tasks; ± standard deviation over seeds. Difference: of one network with the recipe's defaults, seed by "
    "seed, from the booster that is better on the validation part; in brackets the 95 % interval of Student's t. "
    "Boosters: their defaults, early stopping on the same validation part, one model a task."
)
_TIMES = (
    f"Alone on the machine, {THREADS} threads: from the data in memory to the metrics of the test part, for a booster "
    f"over all tasks; the median of {TIMED_RUNS} runs, of those of more than {LONG:g} seconds one. Preparing: what the "
    "recipe's inputs (statistics, bins) take beyond preparing the booster's. The ratio is that of our time with this "
    "preparing to the time of the booster that is better on validation; steps: our training steps alone."
)
_PARTS = (
    "Mean AUC on the validation part (the test part is not looked at): of the whole recipe, then the difference from "
    "it when one part alone is taken out, seed by seed. Below 0: the part helps."
)
_SINGLE = "Mean test AUC of networks with the same recipe: one that shares its layers among all tasks, and one a task."


def auc_table(measured: Sequence[Measured]) -> str:
    titles = ["table", "seeds", "ours", *(RIVALS[name].title for name in RIVALS), "best booster", "difference"]
    rows = []
    for one in measured:
        best = one.best_rival
        rows.append(
            [
                one.title,
                str(len(one.of("ours", "test"))),
                *(_spread(one.of(name, "test")) for name in ("ours", *RIVALS)),
                "–" if best is None else RIVALS[best].title,
                "–" if best is None else _difference(paired_difference(one.of("ours", "test"), one.of(best, "test"))),
            ]
        )
    return markdown_table(titles, rows)


def time_table(measured: Sequence[Measured]) -> str:
    titles = ["table", "ours", "preparing", "steps", *(RIVALS[name].title for name in RIVALS), "best booster", "ratio"]
    rows = []
    for one in measured:
        best, ours = one.best_rival, one.times.get("ours")
        extra = max(0.0, one.preparing["ours"] - one.preparing["rivals"]) if one.preparing else None
        rival = None if best is None else one.times.get(best)
        known = ours is not None and rival is not None and extra is not None
        rows.append(
            [
                one.title,
                duration(None if ours is None else ours.whole),
                duration(extra),
                duration(None if ours is None else ours.training),
                *(duration(one.times[name].whole if name in one.times else None) for name in RIVALS),
                "–" if best is None else RIVALS[best].title,
                number((ours.whole + extra) / rival.whole, 2) if known else "–",  # type: ignore[union-attr, operator]
            ]
        )
    return markdown_table(titles, rows)


def part_table(measured: Sequence[Measured]) -> str:
    rows = [["whole recipe", *(_spread(one.of("ours", "validation")) for one in measured)]]
    for part in dict.fromkeys(name for one in measured for name in one.parts):
        row = [f"without {part}"]
        for one in measured:
            values = {seed: found.validation for seed, found in one.parts.get(part, {}).items()}
            row.append(_difference(paired_difference(values, one.of("ours", "validation"))) if values else "–")
        rows.append(row)
    return markdown_table(["", *(one.title for one in measured)], rows)


def single_table(measured: Sequence[Measured]) -> str:
    rows = []
    for one in measured:
        shared, alone = one.of("ours", "test"), one.of("single", "test")
        rows.append([one.title, _spread(shared), _spread(alone), _difference(paired_difference(shared, alone))])
    return markdown_table(["table", "one network", "one a task", "difference"], rows)


def provenance_table(measured: Sequence[Measured]) -> str:
    rows = []
    for one in measured:
        for name, runs in one.runs.items():
            library = RIVALS[name].package if name in RIVALS else "torch"
            versions = dict.fromkeys(f"{library} {run.versions.get(library, 'unknown')}" for run in runs.values())
            commits = dict.fromkeys(run.commit for run in runs.values())
            rows.append([one.title, name, ", ".join(versions), ", ".join(commits), ", ".join(map(str, runs))])
    return markdown_table(["table", "runs", "with", "source", "seeds"], rows)


def _spread(values: Mapping[int, float | None]) -> str:
    found = summarise(list(values.values()))
    return with_spread(found.mean, found.sd)


def _difference(found: Difference) -> str:
    if found.low is None or found.high is None:
        return signed(found.mean)
    return f"{signed(found.mean)} [{signed(found.low)}, {signed(found.high)}]"


def source_version() -> str:
    """Return the commit that last changed the library, with "-changed" if files differ from it."""
    root = Path(__file__).parents[1]

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=True).stdout.strip()

    changed = git("status", "--porcelain", "--", "src/gdod")
    return git("log", "-1", "--format=%h", "--", "src/gdod") + ("-changed" if changed else "")


def main(
    set_: Annotated[list[str] | None, typer.Option("--set", help=f"Of {', '.join(SETS)}. (default: all)")] = None,
    table: Annotated[
        list[str] | None, typer.Option(metavar="NAME=FILE:SCHEMA", help="Your own, in place of those or beside --set.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="How many, from 0 on.")] = 5,
    stage: Annotated[list[Stage] | None, typer.Option(help="(default: all but times)")] = None,
    times: Annotated[bool, typer.Option("--times", help="The stage times alone: the machine must be quiet.")] = False,
    splits: Annotated[bool, typer.Option("--splits", help="Each seed also cuts the table into other parts.")] = False,
    version: Annotated[str | None, typer.Option(help="Whose runs: a commit. (default: that of src/gdod now)")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Runs at a time. (default: as many as cores)")] = None,
    rival: Annotated[list[str] | None, typer.Option(help=f"Of {', '.join(RIVALS)}. (default: all)")] = None,
    data: Annotated[Path, typer.Option(envvar="GDOD_DATA", help="The folder of the data sets.")] = Path("data"),
    runs: Annotated[Path, typer.Option(help="The folder for runs.")] = Path("runs/quality"),
    out: Annotated[
        Path | None,
        typer.Option(help=f"Folder for quality.json and quality.md. (default: {RESULTS.name}; with --table: --runs)"),
    ] = None,
    only_tables: Annotated[bool, typer.Option("--only-tables", help="Make no runs, write what is finished.")] = False,
) -> None:
    """Make the runs that are not finished, and write the tables as JSON and Markdown."""
    own = dict(own_table(text) for text in table or ())
    sets = {**SETS, **own}
    chosen = [*(set_ or ([] if own else SETS)), *own]
    for name in chosen:
        if name not in sets:
            raise typer.BadParameter(f"{name!r}; expected some of {', '.join(SETS)}", param_hint="--set")
    for name in rival or ():
        if name not in RIVALS:
            raise typer.BadParameter(f"{name!r}; expected some of {', '.join(RIVALS)}", param_hint="--rival")
    stages = [Stage.TIMES] if times else stage or [one for one in Stage if one is not Stage.TIMES]
    benches = [
        Bench(
            key,
            sets[key],
            data=data.resolve(),
            runs=runs,
            version=version or source_version(),
            seeds=seeds,
            splits=splits,
            jobs=jobs,
            rivals=rival or tuple(RIVALS),
        )
        for key in chosen
    ]
    folder = out or (runs if own else RESULTS)
    for one in [] if only_tables else stages:
        for bench in benches:
            bench.make(one)
            write(benches, folder)
    write(benches, folder)


def write(benches: Sequence[Bench], out: Path) -> None:
    """Write the tables of what is finished, beside what they hold already of runs that are not here."""
    measured, about = with_kept([bench.read() for bench in benches], kept_figures(out / "quality.json")), environment()
    words = [word for word in sys.argv[1:] if word != "--only-tables"]
    command = " ".join(["python -m benchmarks.quality", *words])
    content = {"command": command, "environment": about, "sets": [asdict(one) for one in measured]}
    write_json_in(out / "quality.json", content)
    (out / "quality.md").write_text(as_markdown(measured, command, about))


def kept_figures(file: Path) -> list[Measured]:
    """Return what was measured before, wherever its runs are by now."""

    def by_seed(runs: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[int, Figures]]:
        return {name: {int(seed): Figures(**one) for seed, one in found.items()} for name, found in runs.items()}

    return [
        Measured(
            one["title"],
            one["splits"],
            by_seed(one["runs"]),
            by_seed(one["parts"]),
            {name: Timed(**times) for name, times in one["times"].items()},
            one["preparing"],
        )
        for one in (try_read_json(file)[0] or {}).get("sets", ())
    ]


def with_kept(measured: Sequence[Measured], kept: Sequence[Measured]) -> list[Measured]:
    """Return all figures, with those of before in place of what was not measured again.

    Where the source that made our runs has changed, nothing is kept but rivals: parts and single-task networks are
    compared with runs of the same source.
    """
    new = {(one.title, one.splits): one for one in measured}
    before = {(one.title, one.splits): one for one in kept}
    return [_joined(new.get(key), before.get(key)) for key in dict.fromkeys([*before, *new])]


def _joined(new: Measured | None, before: Measured | None) -> Measured:
    if new is None or before is None:
        return new or before  # type: ignore[return-value]
    sources = [{run.commit for run in one.runs.get("ours", {}).values()} for one in (new, before)]
    changed = bool(sources[0]) and sources[0] != sources[1]
    only = tuple(RIVALS) if changed else (*RIVALS, "ours", "single")
    return Measured(
        new.title,
        new.splits,
        {**{name: found for name, found in before.runs.items() if name in only}, **new.runs},
        new.parts if changed else {**before.parts, **new.parts},
        {**{name: times for name, times in before.times.items() if name in only}, **new.times},
        new.preparing or before.preparing,
    )


if __name__ == "__main__":
    typer.run(main)
