"""Simulated ads: impressions of about 1,100 ads; a click, then a visit, then a purchase.

What makes the labels is known, so the best AUC that any model can reach is known, too. Each step happens,
if the step before did, with a logit of

    click:            draw + own taste + rate + noise
    visit, purchase:  (1 - 4 · conflict) · draw + own taste + rate + noise

- *draw* is what makes people click: the fields of user, ad and context, two fields crossed, what the
  single user and the single ad add, and how well their hidden tastes fit.
- At conflict 0 what draws clicks sells just as well. At 0.25 it does not matter after the click. At 1 it
  is clickbait: it counts three times as much against a visit or a purchase as for the click. Opposing
  the click takes that much, as whoever does not click cannot buy.
- *own taste* is for the ad, by task; the *rate* makes as many labels 1 as asked for; *noise* nobody can know.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl
import yaml

from gdod.data.sets.options import Options
from gdod.data.sets.source import RawTables, Source
from gdod.data.tables.table_schema import TableSchema
from gdod.errors import InputError

Numbers = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]

VERSION = 1
TASKS = ("click", "visit", "purchase")
BEFORE = {"click": None, "visit": "click", "purchase": "visit"}  # a step of the funnel needs the one before
USER_FIELDS = {"age_band": 8, "region": 40, "device": 4, "segment": 24}
AD_FIELDS = {"advertiser": 150, "category": 25, "form": 5}
CONTEXT_FIELDS = {"hour": 24, "slot": 8}
TASTES = 4  # dimensions of the hidden tastes
CHUNK = 1 << 16
SAMPLE = 1 << 14
"""The number of rows of the sample on which the rates are set: never the rows handed out, so that the truth
does not depend on their number."""


@dataclass(frozen=True)
class AdsOptions:
    """The options of `SimulatedAds`."""

    rows: int = 200_000
    users: int = 20_000
    ads: int = 1_098
    conflict: float = 0.5
    click_rate: float = 0.3
    visit_rate: float = 0.25
    purchase_rate: float = 0.3
    """Rates are among the rows that passed the step before."""
    noise: float = 0.5
    """The standard deviation of the noise, in logits."""
    conditional: bool = False
    """Whether a step's label is missing, instead of 0, where the step before did not happen."""
    test: float = 0.2
    """The share of rows of the test part."""
    seed: int = 0

    @classmethod
    def of(cls, options: Mapping[str, object]) -> "AdsOptions":
        """Return the given options, checked, with defaults for the others."""
        given = Options("ads", options)
        made = cls(
            rows=given.whole("rows", cls.rows),
            users=given.whole("users", cls.users),
            ads=given.whole("ads", cls.ads),
            conflict=given.number("conflict", cls.conflict, high=1),
            click_rate=given.number("click_rate", cls.click_rate, low=1e-4, high=0.9),
            visit_rate=given.number("visit_rate", cls.visit_rate, low=1e-4, high=0.9),
            purchase_rate=given.number("purchase_rate", cls.purchase_rate, low=1e-4, high=0.9),
            noise=given.number("noise", cls.noise, high=5),
            conditional=given.flag("conditional", cls.conditional),
            test=given.number("test", cls.test, high=0.9),
            seed=given.whole("seed", cls.seed, at_least=0),
        )
        given.done()
        if made.rows < 10:
            raise InputError(f"rows={made.rows}; expected at least 10")
        return made

    @property
    def rates(self) -> dict[str, float]:
        """The rate of each label among the rows that passed the step before."""
        return {"click": self.click_rate, "visit": self.visit_rate, "purchase": self.purchase_rate}


@dataclass(frozen=True)
class Impressions:
    """Rows without their labels: positions of users and ads, and the context, each [rows]."""

    user: Ids
    ad: Ids
    context: dict[str, Ids]


class Truth:
    """The simulated world: who the users are, what the ads are, and what makes people click and buy."""

    def __init__(self, options: AdsOptions) -> None:
        self.options = options
        random = np.random.Generator(np.random.PCG64([options.seed, 0]))
        self.user_fields = {name: random.integers(size, size=options.users) for name, size in USER_FIELDS.items()}
        self.ad_fields = {name: random.integers(size, size=options.ads) for name, size in AD_FIELDS.items()}
        # Some users and ads are seen far more often than others.
        self.user_share = _shares(options.users, 0.6, random)
        self.ad_share = _shares(options.ads, 0.8, random)
        self.price = np.round(np.exp(random.normal(3.0, 0.8, options.ads)), 2)
        self._set_draw(random)
        self.own = {task: 0.35 * random.standard_normal(options.ads) for task in TASKS}
        self.rate_logits = self._set_rates(np.random.Generator(np.random.PCG64([options.seed, 1])))

    def _set_draw(self, random: np.random.Generator) -> None:
        def effects(*shape: int, strength: float) -> Numbers:
            return strength * random.standard_normal(shape)

        options = self.options
        # The fields say most of it; a model learns the rest from the rows of the single user and ad.
        self.user_draw, self.ad_draw = effects(options.users, strength=0.5), effects(options.ads, strength=1.0)
        for name, ids in self.user_fields.items():
            self.user_draw += effects(USER_FIELDS[name], strength=0.4)[ids]
        for name, ids in self.ad_fields.items():
            self.ad_draw += effects(AD_FIELDS[name], strength=0.4)[ids]
        self.ad_draw -= 0.25 * (np.log(self.price) - 3.0)
        self.context_draw = {name: effects(size, strength=0.35) for name, size in CONTEXT_FIELDS.items()}
        self.segment_category = effects(USER_FIELDS["segment"], AD_FIELDS["category"], strength=0.5)
        self.user_taste = effects(options.users, TASTES, strength=1.0)
        self.ad_taste = effects(options.ads, TASTES, strength=0.5 / TASTES**0.5)

    def draw(self, rows: int, random: np.random.Generator) -> Impressions:
        """Return random impressions, users and ads in proportion to their shares."""
        return Impressions(
            np.searchsorted(self.user_share, random.random(rows), side="right").clip(max=self.options.users - 1),
            np.searchsorted(self.ad_share, random.random(rows), side="right").clip(max=self.options.ads - 1),
            {name: random.integers(size, size=rows) for name, size in CONTEXT_FIELDS.items()},
        )

    def scores(self, seen: Impressions) -> dict[str, Numbers]:
        """Return the logit of each task without its rate and without noise. [rows]"""
        user, ad = seen.user, seen.ad
        draw = self.user_draw[user] + self.ad_draw[ad]
        draw += self.segment_category[self.user_fields["segment"][user], self.ad_fields["category"][ad]]
        draw += np.einsum("rd,rd->r", self.user_taste[user], self.ad_taste[ad])
        for name, effect in self.context_draw.items():
            draw += effect[seen.context[name]]
        turned = 1 - 4 * self.options.conflict
        return {task: (draw if task == "click" else turned * draw) + self.own[task][ad] for task in TASKS}

    def probabilities(self, scores: Mapping[str, Numbers]) -> dict[str, Numbers]:
        """Return the probability of each step, given the steps before and everything but the noise. [rows]"""
        return {task: self._probability(scores[task] + self.rate_logits[task]) for task in scores}

    def _probability(self, logits: Numbers) -> Numbers:
        if self.options.noise == 0:
            return _sigmoid(logits)
        total = np.zeros_like(logits)
        for node, weight in zip(*self._nodes, strict=True):
            total += weight * _sigmoid(logits + self.options.noise * node)
        return total

    @cached_property
    def _nodes(self) -> tuple[Numbers, Numbers]:
        """Points and weights that average a function over the standard normal distribution."""
        nodes, weights = np.polynomial.hermite_e.hermegauss(15)
        return nodes, weights / weights.sum()

    def _set_rates(self, random: np.random.Generator) -> dict[str, float]:
        """Return the constant of each task's logit at which its rate is as asked for, among those who come that far."""
        scores = self.scores(self.draw(SAMPLE, random))
        logits: dict[str, float] = {}
        reached = np.ones(SAMPLE)
        for task in TASKS:
            logits[task] = self._constant(scores[task], reached, self.options.rates[task])
            reached = reached * self._probability(scores[task] + logits[task])
        return logits

    def _constant(self, scores: Numbers, reached: Numbers, rate: float) -> float:
        low, high = -30.0, 30.0
        for _ in range(30):
            middle = (low + high) / 2
            if np.average(self._probability(scores + middle), weights=reached) < rate:
                low = middle
            else:
                high = middle
        return (low + high) / 2


@dataclass(frozen=True)
class Simulated:
    """The rows with their labels, and each task's true probabilities."""

    table: pl.DataFrame
    truth: pl.DataFrame
    """One column for each task, in the order of the rows of ``table``."""


def simulate(options: AdsOptions) -> Simulated:
    """Return all rows, the same for the same options on any run."""
    truth = Truth(options)
    tables, probabilities = [], []
    for start in range(0, options.rows, CHUNK):
        # A generator for each chunk: the first rows stay the same when more are asked for.
        random = np.random.Generator(np.random.PCG64([options.seed, 2, start]))
        table, chances = _chunk(truth, min(CHUNK, options.rows - start), random)
        tables.append(table)
        probabilities.append(chances)
    return Simulated(pl.concat(tables), pl.concat(probabilities))


def _chunk(truth: Truth, rows: int, random: np.random.Generator) -> tuple[pl.DataFrame, pl.DataFrame]:
    # Everything is drawn at the full size of a chunk, so that a shorter last one is the beginning of a full one.
    seen = truth.draw(CHUNK, random)
    seen = Impressions(seen.user[:rows], seen.ad[:rows], {name: ids[:rows] for name, ids in seen.context.items()})
    noise, luck = random.standard_normal((len(TASKS), CHUNK)), random.random((len(TASKS), CHUNK))
    scores = truth.scores(seen)
    columns = _features(truth, seen)
    reached = np.ones(rows, dtype=bool)
    for place, task in enumerate(TASKS):
        logits = scores[task] + truth.rate_logits[task] + truth.options.noise * noise[place, :rows]
        happened = reached & (luck[place, :rows] < _sigmoid(logits))
        label = pl.Series(task, happened, dtype=pl.Boolean).cast(pl.Int8)
        if truth.options.conditional and not reached.all():
            label = label.set(~pl.Series(reached), None)
        columns[task] = label
        reached = happened
    chances = truth.probabilities(scores)
    if not truth.options.conditional:
        chances = dict(zip(chances, np.multiply.accumulate(list(chances.values())), strict=True))
    return pl.DataFrame(columns), pl.DataFrame(chances)


def _features(truth: Truth, seen: Impressions) -> dict[str, pl.Series]:
    """Return the feature columns; ids count from 1, as 0 would look like "unknown" to many readers."""
    columns = {"user": seen.user + 1}
    columns |= {name: ids[seen.user] + 1 for name, ids in truth.user_fields.items()}
    columns["ad"] = seen.ad + 1
    columns |= {name: ids[seen.ad] + 1 for name, ids in truth.ad_fields.items()}
    columns |= {"hour": seen.context["hour"], "slot": seen.context["slot"] + 1}
    made = {name: pl.Series(name, ids.astype(np.int32)) for name, ids in columns.items()}
    return made | {"price": pl.Series("price", truth.price[seen.ad])}


def best_auc(table: pl.DataFrame, truth: pl.DataFrame) -> dict[str, float | None]:
    """Return the AUC of each task's true probabilities over the labelled rows; None where there is one class only."""
    return {task: _auc(table[task], truth[task]) for task in TASKS}


def _auc(labels: pl.Series, scores: pl.Series) -> float | None:
    known = pl.DataFrame({"label": labels, "score": scores}).drop_nulls()
    positives = int(known["label"].sum())
    negatives = len(known) - positives
    if not positives or not negatives:
        return None
    ranks = known["score"].rank("average").filter(known["label"] == 1)
    return (float(ranks.sum()) - positives * (positives + 1) / 2) / (positives * negatives)


class SimulatedAds(Source):
    """The simulated data set. Its options are those of `AdsOptions`."""

    name = "ads"
    title = "Simulated ads"

    def schema(self, options: Mapping[str, object]) -> TableSchema:
        return table_schema(AdsOptions.of(options))

    def is_here(self, folder: Path | None = None, file: str | None = None) -> bool:
        return True  # it needs no files

    def read(self, folder: Path | None, options: Mapping[str, object]) -> RawTables:
        chosen = AdsOptions.of(options)
        made = simulate(chosen)
        train = chosen.rows - round(chosen.rows * chosen.test)
        test = made.table[train:]
        notes = describe(test, made.truth[train:]) if len(test) else describe(made.table, made.truth)
        return RawTables(made.table[:train], test, table_schema(chosen), notes)

    def fingerprint(self, folder: Path | None, options: Mapping[str, object]) -> str:
        chosen = AdsOptions.of(options)
        values = " ".join(f"{field.name}={getattr(chosen, field.name)!r}" for field in fields(chosen))
        return f"ads {VERSION} {values}"


def describe(table: pl.DataFrame, truth: pl.DataFrame) -> tuple[str, ...]:
    """Return a line for each task: the number of labels, their rate, and the best AUC that can be reached."""
    lines = []
    for task, best in best_auc(table, truth).items():
        labels = table[task].drop_nulls()
        rate = float(labels.sum()) / max(1, len(labels))
        reach = "not defined (one class only)" if best is None else f"{best:.4f}"
        lines.append(f"{task}: {len(labels):,} labels, rate {rate:.4f}, best reachable AUC {reach}")
    return tuple(lines)


def table_schema(options: AdsOptions) -> TableSchema:
    """Return the schema without a test part, which `SimulatedAds` itself cuts off."""
    return TableSchema.model_validate(_described(options, test=0))


def schema_yaml(options: AdsOptions, *, truth: bool = False) -> str:
    """Return the schema of a file with these rows, and, with ``truth``, their true probabilities (no features)."""
    described = _described(options, test=options.test)
    if truth:
        described["columns"] |= {true_name(task): "ignore" for task in TASKS}
    return yaml.safe_dump(described, sort_keys=False, default_flow_style=None, width=120)


def true_name(task: str) -> str:
    """Return the name of the column with a task's true probabilities."""
    return f"true_{task}"


def _described(options: AdsOptions, test: float) -> dict[str, dict[str, object]]:
    categorical = ("user", *USER_FIELDS, "ad", *AD_FIELDS, *CONTEXT_FIELDS)
    columns: dict[str, object] = dict.fromkeys(categorical, "categorical")
    columns["price"] = {"type": "numeric", "scale": "log"}
    for task in TASKS:
        when = {"when": BEFORE[task]} if options.conditional and BEFORE[task] else {}
        columns[task] = {"type": "label", "kind": "binary", **when}
    return {"columns": columns, "split": {"by": "random", "seed": options.seed, "validation": 0.1, "test": test}}


def _shares(count: int, steepness: float, random: np.random.Generator) -> Numbers:
    """Return the cumulative shares of a power law, given to the users or ads at random. [count]"""
    weights = random.permutation((np.arange(count) + 10.0) ** -steepness)
    return np.asarray(np.cumsum(weights / weights.sum()), dtype=np.float64)


def _sigmoid(logits: Numbers) -> Numbers:
    return np.asarray(1 / (1 + np.exp(-logits)), dtype=np.float64)
