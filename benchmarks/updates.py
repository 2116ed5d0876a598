"""Updates day by day against training anew and against not training: `python -m benchmarks.updates`.

A log is cut into days. A first run is trained on the first days; on each day after that, before its rows are learned
from, all ways predict it:

- not trained: the first run, as it is
- updated: the first run, and an update (`gdod train --from`) for each day since
- anew: a run on all days so far

Ads are simulated: each day some ads are new and others are gone, users come and go, and what makes people click drifts.
The shop's log is that of IJCAI-15, if it is at hand; its labels (favourite, buy) are taken as known at a day's end.
"""

import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import mean
from typing import Annotated, Any

import numpy as np
import polars as pl
import torch
import typer

from benchmarks.report import environment, markdown_table
from gdod._files import write_json
from gdod.data import SOURCES, TableSchema
from gdod.data.sets.ads import AD_FIELDS, TASKS, USER_FIELDS, AdsOptions, Truth
from gdod.errors import InputError
from gdod.statistics import paired_difference
from gdod.training import load_run, read_config, train

RESULTS = Path(__file__).parent / "results"
WAYS = ("not trained", "updated", "anew")
CHOICES: dict[str, dict[str, Any]] = {
    "as it is": {},
    "learning rate × 1/3": {"optimizer.lr": 0.0003},
    "learning rate × 3.3, as in the first run": {"optimizer.lr": 0.003},
    "two passes": {"epochs": 2},
    "constant learning rate": {"schedule.name": "constant"},
    "batches of 128": {"batch": 128},
    "half-life of 3 updates": {"update.half_life": 3},
    "half-life of 1,000 updates": {"update.half_life": 1000},
}
"""Other settings for updates, in place of those that are chosen. The first run's learning rate is 0.003."""


@dataclass(frozen=True)
class Log:
    """A log cut into days."""

    name: str
    schema: TableSchema
    days: Sequence[pl.DataFrame]
    first: int
    """How many days the first run is trained on."""


def simulated_log(seed: int, days: int = 12, first: int = 6, rows: int = 15_000) -> Log:
    """Return days of ads and users that come and go, and whose tastes drift from day to day."""
    options = AdsOptions(rows=rows, users=12_000, ads=1_500, seed=seed, conflict=0.2)
    truth, random = Truth(options), np.random.default_rng([seed, 0xDA7])
    frames = []
    for day in range(days):
        if day:
            _drift(truth, random)
        frames.append(_day(truth, random, rows, day / days))
    columns: dict[str, Any] = dict.fromkeys(frames[0].columns, "categorical")
    columns |= {"price": {"type": "numeric", "scale": "log"}} | dict.fromkeys(TASKS, "label")
    split = {"by": "random", "validation": 0.1, "test": 0, "seed": seed}
    return Log("simulated ads", TableSchema(columns=columns, split=split), frames, first)


def _drift(truth: Truth, random: np.random.Generator) -> None:
    """Let tastes change within a day; what they spread over stays the same."""
    for effects, part in ((truth.segment_category, 0.3), (truth.ad_draw, 0.15), (truth.context_draw["hour"], 0.2)):
        spread = float(effects.std())
        effects *= np.sqrt(1 - part**2)
        effects += part * spread * random.standard_normal(effects.shape)


def _day(truth: Truth, random: np.random.Generator, rows: int, when: float) -> pl.DataFrame:
    """Return the rows of a day, of a window of all ads and users that has moved by the share ``when`` of its way."""
    seen = truth.draw(8 * rows, random)
    here = np.ones(len(seen.user), bool)
    for ids, count, window in ((seen.ad, truth.options.ads, 0.5), (seen.user, truth.options.users, 0.6)):
        place = (ids / count - (1 - window) * when) / window
        here &= (place >= 0) & (place < 1)
    chosen = np.flatnonzero(here)[:rows]
    seen = type(seen)(seen.user[chosen], seen.ad[chosen], {name: ids[chosen] for name, ids in seen.context.items()})
    columns: dict[str, Any] = {"user": seen.user, "ad": seen.ad, **seen.context}
    columns |= {name: truth.user_fields[name][seen.user] for name in USER_FIELDS}
    columns |= {name: truth.ad_fields[name][seen.ad] for name in AD_FIELDS}
    columns["price"] = truth.price[seen.ad]
    happened = np.ones(len(chosen), bool)
    for task, chances in truth.probabilities(truth.scores(seen)).items():
        happened = happened & (random.random(len(chosen)) < chances)
        columns[task] = happened.astype(np.int8)
    return pl.DataFrame(columns)


def shop_log(folder: Path, days: int = 10, first: int = 5) -> Log:
    """Return IJCAI-15, cut by date into periods of about as many rows each; the date itself is left out."""
    raw = SOURCES["ijcai15"].read(folder, {})
    table = raw.train if isinstance(raw.train, pl.DataFrame) else raw.train.collect()
    table = table.sort("date", maintain_order=True)
    period = table.select((pl.col("date").rank("min") - 1) * days // len(table)).to_series()
    frames = [table.filter(period == at).drop("date", "month") for at in range(days)]
    columns = {name: kind for name, kind in raw.schema.to_json()["columns"].items() if name not in ("date", "month")}
    for kind in columns.values():
        kind.pop("rare", None)  # the recipe's own
    split = {"by": "random", "validation": 0.1, "test": 0}
    return Log("shop log", TableSchema(columns=columns, split=split), [one for one in frames if len(one)], first)


@dataclass
class Measured:
    """A log's figures by way: of each day the mean AUC over tasks, and the seconds that being ready for it took."""

    name: str
    seed: int
    rows: list[int] = field(default_factory=list)
    auc: dict[str, list[float]] = field(default_factory=lambda: {way: [] for way in WAYS})
    seconds: dict[str, list[float]] = field(default_factory=lambda: {way: [] for way in WAYS})


def measure(log: Log, seed: int, folder: Path) -> Measured:
    """Go through the days of a log, and return the figures of all ways."""
    days = _Days(log, seed, folder)
    measured = Measured(log.name, seed)
    seconds = days.anew(log.first, folder / "first")
    current, all_so_far = folder / "first", folder / "first"
    for day in range(log.first, len(log.days)):
        measured.rows.append(len(log.days[day]))
        if day > log.first:
            seconds_update = days.update(day - 1, current, folder / f"updated-{day}")
            current, all_so_far = folder / f"updated-{day}", folder / f"anew-{day}"
            seconds = days.anew(day, all_so_far)
        for way, run in zip(WAYS, (folder / "first", current, all_so_far), strict=True):
            measured.auc[way].append(days.auc(run, day))
        took = (0.0, seconds_update if day > log.first else 0.0, seconds if day > log.first else 0.0)
        for way, one in zip(WAYS, took, strict=True):
            measured.seconds[way].append(one)
    return measured


def measure_choices(log: Log, seed: int, folder: Path) -> dict[str, float]:
    """Return the mean AUC of the days after the first for each choice of settings.

    No times: days that were prepared for one choice are in the cache for the next.
    """
    days = _Days(log, seed, folder)
    days.anew(log.first, folder / "first")
    figures = {}
    for number, (name, settings) in enumerate(CHOICES.items()):
        current, auc = folder / "first", []
        for day in range(log.first + 1, len(log.days)):
            out = folder / f"choice-{number}-{day}"
            days.update(day - 1, current, out, settings)
            auc.append(days.auc(out, day))
            current = out
        figures[name] = mean(auc)
    return figures


class _Days:
    """The days of a log as files, and runs on them."""

    def __init__(self, log: Log, seed: int, folder: Path) -> None:
        self.log, self.folder = log, folder
        self.common = {"seed": seed, "threads": 1, "device": "cpu", "tensorboard": False, "conflict_every": 0}
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "log.yaml").write_text(_yaml(log.schema))
        for day, frame in enumerate(log.days):
            (folder / f"day-{day:02d}.parquet").unlink(missing_ok=True)
            frame.write_parquet(folder / f"day-{day:02d}.parquet")

    def anew(self, days: int, out: Path) -> float:
        """Train on the days before a day, and return the seconds."""
        table = self.folder / f"before-{days:02d}.parquet"
        pl.concat(self.log.days[:days]).write_parquet(table)
        data = {"source": str(table), "schema": str(self.folder / "log.yaml"), "cache": str(self.folder / "cache")}
        return self._train({**self.common, "data": data}, out)

    def update(self, day: int, before: Path, out: Path, settings: dict[str, Any] | None = None) -> float:
        """Train an update with the rows of a day, and return the seconds."""
        source = str(self.folder / f"day-{day:02d}.parquet")
        given = {**self.common, "data.source": source, "update.from": str(before), **(settings or {})}
        return self._train(given, out)

    def _train(self, settings: dict[str, Any], out: Path) -> float:
        begun = time.perf_counter()
        train(read_config(None, settings), out)
        return time.perf_counter() - begun

    def auc(self, run: Path, day: int) -> float:
        return float(load_run(run).evaluate(self.log.days[day])["mean_auc"])


def _yaml(schema: TableSchema) -> str:
    import yaml

    columns = {
        name: {"type": column.type, **column.model_dump(mode="json", exclude_defaults=True)}
        for name, column in schema.columns.items()
    }
    return yaml.safe_dump({"columns": columns, "split": schema.split.model_dump(mode="json")}, sort_keys=False)


def as_markdown(measured: Sequence[Measured], command: str, about: dict[str, str]) -> str:
    described = ", ".join(f"{name} {value}" for name, value in about.items())
    parts = ["# Updates day by day", f"`{command}` on {described}, one thread."]
    parts.append(
        "Mean AUC over tasks on each day, predicted before its rows are learned from, and over all days; the means of "
        "the seeds. Days are counted after those of the first run. Seconds are those that being ready for a day took, "
        "preparing and training; differences are over seeds and days, with their 95 % interval."
    )
    for name in dict.fromkeys(one.name for one in measured):
        parts += [f"## {name}", day_table([one for one in measured if one.name == name])]
    return "\n\n".join(parts) + "\n"


def day_table(measured: Sequence[Measured]) -> str:
    """Return a table with a line a way."""
    days = len(measured[0].rows)
    titles = ["", *(f"day {day + 1}" for day in range(days)), "days 2 on", "against not trained", "seconds a day"]
    rows = []
    for way in WAYS:
        by_day = [mean(one.auc[way][day] for one in measured) for day in range(days)]
        later = {(one.seed, day): one.auc[way][day] for one in measured for day in range(1, days)}
        still = {(one.seed, day): one.auc["not trained"][day] for one in measured for day in range(1, days)}
        keys = {key: number for number, key in enumerate(later)}
        found = paired_difference(
            {keys[key]: value for key, value in later.items()}, {keys[key]: value for key, value in still.items()}
        )
        difference = "–" if way == WAYS[0] else f"{found.mean:+.4f} [{found.low:+.4f}, {found.high:+.4f}]"
        seconds = mean(one.seconds[way][day] for one in measured for day in range(1, days))
        rows.append(
            [way, *(f"{value:.4f}" for value in by_day), f"{mean(later.values()):.4f}", difference, f"{seconds:.1f}"]
        )
    sizes = [["rows", *(f"{size:,}" for size in measured[0].rows), "", "", ""]]
    return markdown_table(titles, sizes + rows)


def logs(data: Path | None, seed: int, days: int, rows: int) -> Iterator[Log]:
    """Yield the logs that are at hand."""
    yield simulated_log(seed, days=days, rows=rows)
    if data is not None:
        try:
            yield shop_log(data)
        except InputError as error:
            typer.echo(f"without the shop's log: {error}", err=True)


def choices_as_markdown(figures: Sequence[dict[str, float]], command: str, about: dict[str, str]) -> str:
    described = ", ".join(f"{name} {value}" for name, value in about.items())
    rows = []
    for name in CHOICES:
        apart = [one[name] - one["as it is"] for one in figures]
        rows.append([name, f"{mean(one[name] for one in figures):.4f}", ", ".join(f"{one:+.4f}" for one in apart)])
    text = (
        "How an update trains, on simulated logs that the other tables do not have: mean AUC over tasks and days, each "
        "predicted before its rows are learned from, and its difference for each seed."
    )
    table = markdown_table(["", "AUC", "difference"], rows)
    return "\n\n".join(["# Choices for updates", f"`{command}` on {described}.", text, table]) + "\n"


def main(
    seeds: Annotated[int, typer.Option(min=1, help="How many, from 0 on; with --choices from 100 on.")] = 2,
    days: Annotated[int, typer.Option(min=8, help="Of the simulated log; the first run has six of them.")] = 11,
    rows: Annotated[int, typer.Option(min=100, help="Of a simulated day.")] = 10_000,
    shop: Annotated[Path | None, typer.Option(help="The folder of IJCAI-15; without it the log is left out.")] = None,
    choices: Annotated[bool, typer.Option("--choices", help="Other settings for updates instead.")] = False,
    out: Annotated[Path, typer.Option(help="Folder for the JSON and Markdown files.")] = RESULTS,
) -> None:
    """Measure, print and write the tables as JSON and Markdown."""
    torch.set_num_threads(1)
    measured: list[Measured] = []
    figures: list[dict[str, float]] = []
    for seed in range(seeds):
        with tempfile.TemporaryDirectory() as name:
            if choices:
                log = simulated_log(100 + seed, days=days, rows=rows)
                figures.append(measure_choices(log, seed, Path(name)))
            else:
                for log in logs(shop, seed, days, rows):
                    measured.append(measure(log, seed, Path(name) / log.name))
        typer.echo(f"seed {seed}: done", err=True)
    options = (" --shop FOLDER" if shop is not None else "") + (" --choices" if choices else "")
    command = f"python -m benchmarks.updates --seeds {seeds} --days {days} --rows {rows}{options}"
    about = environment()
    content: dict[str, Any] = {"command": command, "environment": about}
    if choices:
        text, content["choices"] = choices_as_markdown(figures, command, about), figures
    else:
        text, content["logs"] = as_markdown(measured, command, about), [asdict(one) for one in measured]
    out.mkdir(parents=True, exist_ok=True)
    name = "updates-choices" if choices else "updates"
    write_json(out / f"{name}.json", content)
    (out / f"{name}.md").write_text(text)
    print(text)


if __name__ == "__main__":
    typer.run(main)
