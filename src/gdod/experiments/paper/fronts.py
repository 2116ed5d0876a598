"""Does any method beat weighted sums? A front on each data set, with the strong recipe, and one page on all of them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from shutil import copyfile
from typing import Any

from gdod._files import make_folder, read_json, write_text
from gdod.experiments.front.plan import read_front
from gdod.experiments.front.run import DESCRIPTION, front
from gdod.experiments.paper.cases import Scale
from gdod.experiments.paper.sets import FRONT_SETS, AvailableSet
from gdod.experiments.paper.tables import markdown
from gdod.experiments.plan import Spec
from gdod.experiments.watch import Watch
from gdod.report.front import PLACES, Front, verdict_table
from gdod.report.numbers import p_value, signed
from gdod.report.tables import as_markdown
from gdod.statistics import holm

FRONT = "front"
"""The name of the experiment: the fronts of all data sets."""
FRONT_OF = {f"{FRONT}-{key}": key for key in FRONT_SETS}
"""The data set of the front of each name: "front-ijcai15" and so on."""
TITLE = "Methods against the front of weighted sums"
METHODS = (
    Spec("gdod"),
    Spec("weighted-gdod"),
    Spec("gdod", {"agreement": "soft"}),
    *(Spec(name) for name in ("pcgrad", "cagrad", "upgrad", "uncertainty", "famo")),
)
_RIVAL = "lightgbm"


@dataclass
class Fronts:
    """Fronts below a folder, with the strong recipe: makes what is missing of them, and reads what is there."""

    folder: Path
    sets: Mapping[str, AvailableSet]
    scale: Scale
    processes: int | None = None
    watch: Watch = field(default_factory=Watch)
    command: Sequence[str] = ()
    only: Collection[str] = ()
    """Those that are made. The page shows all that are there."""
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def there(self) -> dict[str, AvailableSet]:
        """The data sets whose files are there. Nothing stands in for others: a front of it would be that of ads."""
        return {key: one for key, one in self.sets.items() if not one.stands_in}

    def common(self, one: AvailableSet, methods: Sequence[Spec]) -> dict[str, Any]:
        """Return the settings that every front of these methods on a data set has, as `read_front` takes them."""
        options = dict(one.paper_set.options)
        if self.scale.rows is not None and one.paper_set.source == "ads":
            options["rows"] = self.scale.rows
        data: dict[str, Any] = {"source": one.paper_set.source, "options": options}
        if one.folder is not None:
            data["folder"] = str(one.folder)
        return {
            "recipe": "strong",
            "data": data,
            "methods": [method.to_json() for method in methods],
            "seeds": list(self.scale.seeds),
            "device": "cpu",
            "threads": 1,
        }

    @property
    def quick(self) -> dict[str, Any]:
        """The settings that make a front quick, if it is to be."""
        return {"points": 5, "tune": 1, "steps": self.scale.steps} if self.scale.is_quick else {}

    def make_front(self, name: str, settings: Mapping[str, Any]) -> None:
        """Make the front of these settings, or what is missing of it, in the folder of this name."""
        plan, place = read_front(options=settings), self.folder / name
        made = front(plan, place, processes=self.processes, watch=self.watch, command=self.command)
        self.failed |= {f"{name}/{run}": why for run, why in made.failed.items()}

    def finished(self, name: str) -> Front | None:
        """Return the front of this name; None if it was never begun, or is not finished yet."""
        path = self.folder / name / DESCRIPTION
        if not path.exists() or "results" not in read_json(path, "a front"):
            return None
        return Front.read(path.parent)

    def opening(self, title: str) -> list[str]:
        """Return how a page on fronts begins."""
        quick = "**Quick: a few steps with two seeds. These figures only show that everything runs.**"
        return [f"# {title}", *([quick] if self.scale.is_quick else [])]

    def made(self, name: str, fronts: Mapping[str, Front], further: Sequence[str] = ()) -> str:
        """Return how the figures on a page were made, as Markdown: by which command, on which data, by what."""
        quick = " --quick" if self.scale.is_quick else ""
        lines = [
            f"- Command: `gdod reproduce {name} --data-folder DATA{quick}`. What it does, and how to read the tables: "
            "`docs/front.md`.",
            "- The recipe `strong`; everybody chooses among the same learning rates and decays on validation.",
            *further,
        ]
        missing = [one.title for one in self.sets.values() if one.stands_in]
        lines += [f"- Left out, since there are no files: {', '.join(missing)}."] if missing else []
        # One line for fronts by the same software, which is most often all of them.
        software = {
            title: ", ".join(f"{n} {v}" for n, v in one.asked["versions"].items()) for title, one in fronts.items()
        }
        same = len(set(software.values())) == 1
        for title, one in fronts.items():
            by = "" if same else f"; {software[title]}"
            lines.append(f"- {title}: {one.asked['runs']} runs, data {one.asked['fingerprint']}{by}.")
        lines += [f"- {text}." for text in set(software.values()) if same and text]
        return "## How this was made\n\n" + "\n".join(lines)


@dataclass
class FrontStudy(Fronts):
    """The fronts of all data sets, and their page."""

    only: Collection[str] = tuple(FRONT_SETS)

    def settings(self, one: AvailableSet) -> dict[str, Any]:
        """Return the settings of a data set's front, as `read_front` takes them."""
        references = {"single_task": True, "rivals": [_RIVAL] if find_spec(_RIVAL) else []}
        return {**self.common(one, METHODS), **references, **one.paper_set.front, **self.quick}

    def make(self) -> None:
        """Make the fronts, one data set after the other; those without files are left out."""
        for key, one in self.there.items():
            if key in self.only:
                self.watch.say(f"front: {one.title}")
                self.make_front(f"{FRONT}/{key}", self.settings(one))

    def write(self, pages: Path) -> Path:
        """Write the page from the fronts that are there, with their pictures, and return where it is."""
        make_folder(pages)
        read = {key: self.finished(f"{FRONT}/{key}") for key in self.there}
        found = {key: one for key, one in read.items() if one is not None}
        parts = self.opening(TITLE)
        parts.append(_overview({self.sets[key].title: one for key, one in found.items()}))
        for key, one in found.items():
            copyfile(one.folder / "front.png", pages / f"front-{key}.png")
            parts += [
                f"## {self.sets[key].title}",
                f"![The front of {self.sets[key].title}](front-{key}.png)",
                as_markdown(verdict_table(one)),
                "\n".join(f"- {warning}." for warning in one.warnings),
            ]
        budget = (
            "- There are five of these on the small data sets, three on the large ones, which also have fewer points."
        )
        parts.append(self.made(FRONT, {self.sets[key].title: one for key, one in found.items()}, [budget]))
        page = pages / f"{FRONT}.md"
        write_text(page, "\n\n".join(part for part in parts if part) + "\n")
        return page


def _overview(fronts: Mapping[str, Front]) -> str:
    """Return d of each method on each data set, with p-values that are corrected for all of them together."""
    if not fronts:
        return "No front is finished yet."
    verdicts = {(name, one["method"]): one for name, found in fronts.items() for one in found.verdicts}
    corrected = dict(zip(verdicts, holm([one["p"] for one in verdicts.values()]), strict=True))
    methods = list(dict.fromkeys(method for _, method in verdicts))
    rows = []
    for method in methods:
        cells = []
        for name in fronts:
            one = verdicts.get((name, method))
            cells.append("–" if one is None else verdict_cell(one, corrected[name, method]))
        rows.append((method, *cells))
    text = (
        "d on test data with its 95 % interval: above 0, a weighting of the plain sum is better than the method on "
        "every task; below 0, none is. Where a method lies is by p-values corrected for its data set; p beside it is "
        "corrected (Holm) for all methods on all data sets."
    )
    return f"{markdown(('method', *fronts), rows)}\n\n{text}"


def verdict_cell(one: Mapping[str, Any], p: float | None) -> str:
    """Return the d of a verdict with its interval, a p-value, and where the method lies."""
    d = one["d"]
    return f"{signed(d['value'])} [{signed(d['low'])}, {signed(d['high'])}], p {p_value(p)}: {PLACES[one['place']]}"
