"""One training of an experiment: a data set, a model, a method, and settings that differ from the paper's."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gdod.experiments.paper.sets import Found
from gdod.experiments.plan import Spec
from gdod.training.config import TrainConfig, check_config, merged, nested

if TYPE_CHECKING:
    from gdod.data import Dataset

PAPER_SETTINGS: Mapping[str, Any] = {
    "batch": 256,
    "optimizer": {"name": "adam", "lr": 1e-3},
    "device": "cpu",
    "threads": 1,  # the models are small: two runs at a time are quicker than one with two threads
    "tensorboard": False,
    "log_every": 100,
}
"""Those of the paper (section 5.1.4), and how runs are made here."""

SEEDS = (0, 1, 2, 3, 4)
TUNING_SEED = 1000
"""For choosing options on validation data: a seed that no result is from."""


@dataclass(frozen=True)
class Scale:
    """How much of everything."""

    seeds: tuple[int, ...] = SEEDS
    evaluations: int = 8
    """In a run."""
    steps: int | None = None
    """At most so many; None: the whole number of epochs."""
    rows: int | None = None
    """Of simulated ads; None: as declared."""

    @property
    def is_quick(self) -> bool:
        return self.steps is not None


SHARED_BOTTOM, PLAIN_SUM = Spec("shared-bottom"), Spec("sum")
QUICK = Scale(seeds=(0, 1), evaluations=3, steps=60, rows=20_000)


@dataclass(frozen=True)
class Case:
    data: str
    model: Spec = SHARED_BOTTOM
    method: Spec = PLAIN_SUM
    settings: tuple[tuple[str, Any], ...] = ()
    """By their paths, such as ("batch", 1024) or ("data.options.conflict", 0.8)."""

    def __hash__(self) -> int:
        return hash((self.data, self.label))

    @property
    def label(self) -> str:
        """Names its folder."""
        own = ",".join(f"{path.rpartition('.')[2]}={value}" for path, value in self.settings)
        label = f"{self.model.label}-{self.method.label}" + (f"-{own}" if own else "")
        return re.sub(r"[^\w.=,+-]+", "", label)

    def with_(self, method: Spec, settings: Sequence[tuple[str, Any]] | None = None) -> "Case":
        return Case(self.data, self.model, method, self.settings if settings is None else tuple(settings))


def data_settings(case: Case, found: Found, scale: Scale) -> dict[str, Any]:
    """Which data the case is on."""
    options = dict(found.paper_set.options)
    if scale.rows is not None and found.paper_set.source == "ads":
        options["rows"] = scale.rows
    settings = {"data": {"source": found.paper_set.source, "options": options}}
    if found.folder is not None:
        settings["data"]["folder"] = str(found.folder)
    own = {path: value for path, value in case.settings if path.startswith("data.")}
    return merged(settings, nested(own))


def config_of(case: Case, found: Found, scale: Scale, seed: int, dataset: "Dataset") -> TrainConfig:
    own = {path: value for path, value in case.settings if not path.startswith("data.")}
    settings = merged(merged(PAPER_SETTINGS, data_settings(case, found, scale)), nested(own))
    steps = found.paper_set.epochs * dataset.train.steps(settings["batch"])
    steps = steps if scale.steps is None else min(steps, scale.steps)
    over = {
        "seed": seed,
        "steps": steps,
        "evaluate_every": max(1, steps // scale.evaluations),
        "test_curve": found.key in ("bookcrossing", "ijcai15"),  # figures 3 and 4
        "model": case.model.to_json(),
        "method": case.method.to_json(),
    }
    return check_config(merged(settings, over))
