"""One training of an experiment: a data set, a model, a method, and settings that differ from the paper's."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gdod.experiments.paper.sets import AvailableSet
from gdod.experiments.plan import Spec
from gdod.training.config import TrainConfig, check_config, merged, nested

if TYPE_CHECKING:
    from gdod.data import Dataset

PAPER_SETTINGS: Mapping[str, Any] = {
    "recipe": "paper",
    "batch": 256,
    "optimizer": {"name": "adam", "lr": 1e-3},
    "device": "cpu",
    "threads": 1,  # the models are small: two runs at a time are quicker than one with two threads
    "tensorboard": False,
    "log_every": 100,
}
"""Settings of the paper (section 5.1.4), and how runs are made here."""

SEEDS = (0, 1, 2, 3, 4)
TUNING_SEED = 1000
"""The seed of runs that choose options on validation data; no result is from it."""


@dataclass(frozen=True)
class Scale:
    """How much of everything is run."""

    seeds: tuple[int, ...] = SEEDS
    evaluations: int = 8
    """How many times a run is evaluated."""
    steps: int | None = None
    """The largest number of steps; None: as many as the epochs have."""
    rows: int | None = None
    """The number of rows of simulated ads; None: as declared."""

    @property
    def is_quick(self) -> bool:
        return self.steps is not None


SHARED_BOTTOM, PLAIN_SUM = Spec("shared-bottom"), Spec("sum")
QUICK = Scale(seeds=(0, 1), evaluations=3, steps=60, rows=20_000)


@dataclass(frozen=True)
class Case:
    """One training: a data set, a model, a method, and what differs from the paper's settings."""

    data: str
    """A name in `sets.SETS`."""
    model: Spec = SHARED_BOTTOM
    method: Spec = PLAIN_SUM
    settings: tuple[tuple[str, Any], ...] = ()
    """Settings by their paths, such as ("batch", 1024) or ("data.options.conflict", 0.8)."""

    def __hash__(self) -> int:
        return hash((self.data, self.label))

    @property
    def label(self) -> str:
        """The name of its folder."""
        own = ",".join(f"{path.rpartition('.')[2]}={value}" for path, value in self.settings)
        label = f"{self.model.label}-{self.method.label}" + (f"-{own}" if own else "")
        return re.sub(r"[^\w.=,+-]+", "", label)

    def with_(self, method: Spec, settings: Sequence[tuple[str, Any]] | None = None) -> "Case":
        """Return the case with another method, and with other settings if they are given."""
        return Case(self.data, self.model, method, self.settings if settings is None else tuple(settings))


def data_settings(case: Case, available: AvailableSet, scale: Scale) -> dict[str, Any]:
    """Return the settings that say which data the case is on, and the recipe, as it says what is made of columns."""
    options = dict(available.paper_set.options)
    if scale.rows is not None and available.paper_set.source == "ads":
        options["rows"] = scale.rows
    settings: dict[str, Any] = {"recipe": PAPER_SETTINGS["recipe"]}
    settings["data"] = {"source": available.paper_set.source, "options": options}
    if available.folder is not None:
        settings["data"]["folder"] = str(available.folder)
    own = {path: value for path, value in case.settings if path.startswith("data.")}
    return merged(settings, nested(own))


def config_of(case: Case, available: AvailableSet, scale: Scale, seed: int, dataset: "Dataset") -> TrainConfig:
    """Return the whole configuration of a case for one seed."""
    own = {path: value for path, value in case.settings if not path.startswith("data.")}
    settings = merged(merged(PAPER_SETTINGS, data_settings(case, available, scale)), nested(own))
    steps = available.paper_set.epochs * dataset.train.steps(settings["batch"])
    steps = steps if scale.steps is None else min(steps, scale.steps)
    over = {
        "seed": seed,
        "steps": steps,
        "evaluate_every": max(1, steps // scale.evaluations),
        "test_curve": available.key in ("bookcrossing", "ijcai15"),  # figures 3 and 4
        "model": case.model.to_json(),
        "method": case.method.to_json(),
    }
    return check_config(merged(settings, over))
