"""Where does GDOD lie relative to the front as tasks, model, batch or optimizer change? A ladder of fronts each.

What was expected of each question, written down before the runs, is in docs/when-it-helps.md.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gdod._files import make_folder, write_text
from gdod.data.sets.ads import TASKS as ADS_TASKS
from gdod.data.sets.ads import AdsOptions, table_schema
from gdod.experiments.paper.fronts import FRONT, Fronts, verdict_cell
from gdod.experiments.paper.sets import AvailableSet
from gdod.experiments.paper.tables import markdown
from gdod.experiments.plan import Spec
from gdod.experiments.plots import Panel, Series, draw
from gdod.report.front import Front, point_table
from gdod.report.tables import as_markdown
from gdod.statistics import holm
from gdod.training.config import merged, nested

QUESTIONS_NAME = f"{FRONT}-questions"
"""The name of all of them together, of their folder and of their page."""
TITLE = "Further questions on the front"
METHODS = (Spec("gdod"), Spec("pcgrad"))
"""GDOD, and PCGrad as a control. All ladders have two tasks, with which Weighted-GDOD is GDOD: a vector on which both
agree has the weight 1, and a tie 0."""
BUDGET: Mapping[str, Any] = {"points": 5, "span": 8, "tune": 3}
"""The weightings of a front, and the learning rates that everybody may try: few, since there are many fronts."""
_LABELS = ADS_TASKS[:2]


@dataclass(frozen=True)
class Level:
    """One front of a question's ladder."""

    name: str
    """What tables call it."""
    folder: str
    """The name of its folder. Questions that share a level share its runs."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What differs from the recipe, by path."""


@dataclass(frozen=True)
class Question:
    """What changes from level to level, and on which data."""

    name: str
    title: str
    data: str
    """A name in `sets.FRONT_SETS`."""
    changes: str
    """What the levels are levels of, as pictures call it."""
    levels: tuple[Level, ...]
    tasks: tuple[str, ...] = ()
    """Those of the data set's tasks that are trained, for simulated ads; nothing: all of them."""


def _rate(visit: float) -> Level:
    rate = AdsOptions.click_rate * visit
    options = {"rows": 20_000, "users": 2_000, "visit_rate": visit}
    return Level(f"{rate:.1%}", f"visit_rate={visit:g}", {"data.options": options})


def _width(width: int) -> Level:
    model = {"name": "shared-bottom", "options": {"bottom": [width], "cross": 0}}
    return Level(str(width), f"bottom={width}", {"model": model})


_RECIPE = "recipe"
QUESTIONS = (
    Question("rarer", "As a task gets rarer", "ads", "visits", tuple(map(_rate, (0.5, 0.15, 0.05))), _LABELS),
    Question(
        "smaller",
        "As the model gets smaller",
        "ijcai15",
        "shared units",
        (Level("256, 128", _RECIPE), _width(4), _width(1)),
    ),
    Question(
        "batch",
        "As the batch grows",
        "ijcai15",
        "batch",
        (Level("256", _RECIPE), Level("1024", "batch=1024", {"batch": 1024})),
    ),
    Question(
        "sgd",
        "With SGD in place of AdamW",
        "ijcai15",
        "optimizer",
        # Learning rates of SGD's own, by the plain sum on validation with seed 100, which nothing else uses: 0.1 was
        # best of 0.03, 0.05, 0.1 and 0.15, and 0.3 diverges. The three that everybody tries go up to 0.15.
        (
            Level("AdamW", _RECIPE),
            Level("SGD", "sgd", {"optimizer": {"name": "sgd", "lr": 0.05, "momentum": 0.9}}),
        ),
    ),
    Question(
        "stem",
        "With id vectors of each task beside shared ones",
        "ijcai15",
        "model",
        (Level("shared-bottom", _RECIPE), Level("stem", "stem", {"model": {"name": "stem"}})),
    ),
)
QUESTION_OF = {f"{FRONT}-{one.name}": one.name for one in QUESTIONS}
"""The question of each name: "front-rarer" and so on."""


@dataclass
class QuestionStudy(Fronts):
    """The ladders of fronts of all questions, and their page."""

    only: Collection[str] = tuple(one.name for one in QUESTIONS)

    def settings(self, question: Question, level: Level) -> dict[str, Any]:
        """Return the settings of a level's front, as `read_front` takes them."""
        common = self.common(self.sets[question.data], METHODS)
        settings = merged({**common, **BUDGET}, nested(level.settings))
        if self.scale.rows is not None and "rows" in settings["data"]["options"]:
            settings["data"]["options"]["rows"] = self.scale.rows
        if question.tasks:
            settings["data"]["schema"] = str(self._schema(question))
        return merged(settings, self.quick)

    def make(self) -> None:
        """Make the fronts, one level after the other; questions on data that is not there are left out."""
        for question in QUESTIONS:
            if question.name in self.only and question.data in self.there:
                for level in question.levels:
                    self.watch.say(f"{question.title}: {question.changes} {level.name}")
                    self.make_front(_place(question, level), self.settings(question, level))

    def write(self, pages: Path) -> Path:
        """Write the page from the fronts that are finished, with its picture, and return where it is."""
        make_folder(pages)
        found = self._finished()
        parts = self.opening(TITLE)
        if found:
            picture = pages / f"{QUESTIONS_NAME}.png"
            draw([_panel(question, found) for question in QUESTIONS if _levels(question, found)], picture, 3)
            parts += [_TEXT, f"![d of each method at each level]({picture.name})", _table(self.sets, found)]
            for place, one in found.items():
                notes = [*(f"- {warning}." for warning in one.warnings), *_failures(one)]
                parts += [f"## {_title(place)}", as_markdown(point_table(one)), "\n".join(notes)]
        else:
            parts.append("No front is finished yet.")
        budget = (
            f"- A front has {BUDGET['points']} weightings, ratios from 1:{BUDGET['span']} to {BUDGET['span']}:1, and "
            f"everybody tries {BUDGET['tune']} learning rates: that of the level, a third of it, and three times it. "
            "No single-task models and no rivals."
        )
        parts.append(self.made(QUESTIONS_NAME, {_title(place): one for place, one in found.items()}, [budget]))
        page = pages / f"{QUESTIONS_NAME}.md"
        write_text(page, "\n\n".join(part for part in parts if part) + "\n")
        return page

    def _finished(self) -> dict[str, Front]:
        """Return the fronts that are finished by the names of their folders; those that questions share once."""
        places = [_place(question, level) for question in QUESTIONS for level in question.levels]
        read = {place: self.finished(place) for place in dict.fromkeys(places)}
        return {place: one for place, one in read.items() if one is not None}

    def _schema(self, question: Question) -> Path:
        """Write the schema of simulated ads with the question's tasks alone, and return where it is, always there."""
        schema = table_schema(AdsOptions()).to_json()
        left_out = {task: {"type": "ignore"} for task in ADS_TASKS if task not in question.tasks}
        path = (self.folder / QUESTIONS_NAME / f"{'-'.join(question.tasks)}.yaml").absolute()
        make_folder(path.parent)
        write_text(path, json.dumps({**schema, "columns": {**schema["columns"], **left_out}}, indent=1) + "\n")
        return path


_TEXT = (
    "d on test data with its 95 % interval: above 0, a weighting of the plain sum is better than the method on every "
    "task; below 0, none is. Where a method lies is by p-values corrected for its own front; p beside it is corrected "
    "(Holm) for all cells of the table together, of which those with the recipe's own settings are the same front and "
    "count once. What was expected of each question, written down before the runs: `docs/when-it-helps.md`."
)


def _place(question: Question, level: Level) -> str:
    return f"{QUESTIONS_NAME}/{question.data}/{level.folder}"


def _title(place: str) -> str:
    """Return what lists call the front in a folder, such as "ijcai15, batch=1024"."""
    _, data, level = place.split("/")
    return f"{data}, {level}"


def _levels(question: Question, found: Mapping[str, Front]) -> list[tuple[Level, Front]]:
    """Return the levels of a question whose fronts are finished."""
    return [(level, found[place]) for level in question.levels if (place := _place(question, level)) in found]


def _table(sets: Mapping[str, AvailableSet], found: Mapping[str, Front]) -> str:
    """Return one row for each question and level, with the verdict on each method."""
    verdicts = {(place, one["method"]): one for place, front in found.items() for one in front.verdicts}
    corrected = dict(zip(verdicts, holm([one["p"] for one in verdicts.values()]), strict=True))
    rows = []
    for question in QUESTIONS:
        for level, _ in _levels(question, found):
            cells = [
                verdict_cell(verdicts[key], corrected[key])
                if (key := (_place(question, level), name)) in verdicts
                else "–"
                for name in _methods(found.values())
            ]
            rows.append((question.title, sets[question.data].title, f"{question.changes}: {level.name}", *cells))
    return markdown(("question", "data", "level", *_methods(found.values())), rows)


def _failures(front: Front) -> list[str]:
    """Return a line for each run that failed, without the advice that follows, which names folders of this machine."""
    failed: Mapping[str, str] = front.asked.get("failed", {})
    return [f"- The run {name} failed: {why.partition(';')[0]}." for name, why in failed.items()]


def _methods(fronts: Collection[Front]) -> list[str]:
    return list(dict.fromkeys(one["method"] for front in fronts for one in front.verdicts))


def _panel(question: Question, found: Mapping[str, Front]) -> Panel:
    """Return the plot of a question: d of each method at each level, in the order of the levels."""
    series = []
    levels = _levels(question, found)
    for method in _methods([front for _, front in levels]):
        points = [
            (number, one["d"])
            for number, (_, front) in enumerate(levels)
            for one in front.verdicts
            if one["method"] == method
        ]
        ends: dict[str, Sequence[float]] = {end: [d[end] for _, d in points] for end in ("value", "low", "high")}
        series.append(Series(method, [x for x, _ in points], ends["value"], ends["low"], ends["high"]))
    ticks = [level.name for level, _ in levels]
    return Panel(question.title, question.changes, "d on test data", series, level=0.0, ticks=ticks)
