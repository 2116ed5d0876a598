"""When does GDOD help? Parts of the method, of the data and of training, changed one at a time.

What a variant is called good by is validation data; test data only reports (docs/when-it-helps.md).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from gdod.experiments.paper.cases import Case
from gdod.experiments.paper.results import ADAM, GDOD, THREE_SETS, Experiment, difference_line, time_picture
from gdod.experiments.paper.store import Store
from gdod.experiments.paper.tables import Row, figures_table, gains, gains_table, interval, markdown
from gdod.experiments.plan import Spec
from gdod.experiments.plots import Panel, Series, draw
from gdod.statistics import Difference, holm, paired_difference

RIVALS: Mapping[str, Spec] = {"PCGrad": Spec("pcgrad"), "CAGrad": Spec("cagrad"), "UPGrad": Spec("upgrad")}
CONFLICTS = (0.0, 0.25, 0.5, 0.75, 1.0)
BATCHES = (128, 256, 1024)


PROPOSALS: Mapping[str, Spec] = {"soft agreement": Spec("gdod", {"agreement": "soft"})}
"""What is put to the test against other methods. Further variants were studied up to commit d7fba99, none of which
did better (docs/results/variants.md)."""


@dataclass(frozen=True)
class Conflict(Experiment):
    """The simulator's knob, from aligned to opposed tasks."""

    name: str = "conflict"
    title: str = "From aligned to opposed tasks"

    def cases(self) -> Iterable[Case]:
        return [case for cases in self._by_method().values() for case in cases.values()]

    def tell(self, store: Store, pictures: Path) -> str:
        methods = self._by_method()
        tasks = store.tasks(Case("ads"))
        tuned = {name: {x: store.tuned(case) for x, case in cases.items()} for name, cases in methods.items()}
        panels = [
            Panel(
                "mean over tasks" if task is None else task,
                "conflict",
                "AUC on test data, minus the plain sum",
                [_against_sum(store, tuned, name, task) for name in tuned if name != "plain sum"],
                level=0.0,
            )
            for task in (None, *tasks)
        ]
        draw(panels, pictures / "conflict.png")
        lines = []
        for name, cases in tuned.items():
            if name != "plain sum":
                differences = [_difference(store, cases[x], tuned["plain sum"][x]) for x in CONFLICTS]
                lines.append((name, *(interval(one) for one in differences)))
        cosines = ["cosine between tasks, plain sum"]
        for x in CONFLICTS:
            means = mean_cosines(store, tuned["plain sum"][x])
            cosines.append(" / ".join(f"{value:+.3f}" for value in means) if means else "–")
        table = markdown(("minus the plain sum", *(f"conflict {x:g}" for x in CONFLICTS)), (*lines, cosines))
        pairs = ", ".join(f"{a}–{b}" for i, a in enumerate(tasks) for b in tasks[i + 1 :])
        return "\n\n".join(
            [
                "![AUC against the conflict knob](conflict.png)",
                table,
                f"Mean AUC over tasks on test data. Cosines are means over training, of the pairs {pairs}.",
                time_picture(
                    store,
                    {f"conflict {x:g}": [Row(name, cases[x]) for name, cases in tuned.items()] for x in CONFLICTS},
                    pictures / "conflict-time.png",
                ),
            ]
        )

    def _by_method(self) -> dict[str, dict[float, Case]]:
        specs = {"plain sum": ADAM, **RIVALS, "GDOD": GDOD, **PROPOSALS}
        return {name: {x: _with_conflict(spec, x) for x in CONFLICTS} for name, spec in specs.items()}


@dataclass(frozen=True)
class BatchSize(Experiment):
    """Smaller and larger batches: how noisy the rows are."""

    name: str = "batch"
    title: str = "Batch size"

    def cases(self) -> Iterable[Case]:
        return [case for key in THREE_SETS for cases in self._by_method(key).values() for case in cases.values()]

    def tell(self, store: Store, pictures: Path) -> str:
        lines, panels = [], []
        for key in THREE_SETS:
            methods = self._by_method(key)
            for name, cases in methods.items():
                if name != "plain sum":
                    base = methods["plain sum"]
                    gained = [interval(_difference(store, cases[size], base[size])) for size in BATCHES]
                    lines.append((store.sets[key].title, name, *gained))
            series = [_against_sum(store, methods, name, None) for name in methods if name != "plain sum"]
            panels.append(Panel(store.sets[key].title, "batch", "mean test AUC, minus the sum", series, True, 0.0))
        draw(panels, pictures / "batch.png", 3)
        table = markdown(("data set", "minus the plain sum", *(f"batch {size}" for size in BATCHES)), lines)
        text = "Mean AUC over tasks on test data; the sum at the same batch size, the same number of passes."
        beside_cost = {
            f"{store.sets[key].title}, batch {size}": [
                Row(name, cases[size]) for name, cases in self._by_method(key).items()
            ]
            for key in THREE_SETS
            for size in BATCHES
        }
        time = time_picture(store, beside_cost, pictures / "batch-time.png")
        return "\n\n".join(["![AUC against batch size](batch.png)", table, text, time])

    def _by_method(self, key: str) -> dict[str, dict[int, Case]]:
        specs = {"plain sum": ADAM, "GDOD": GDOD, "soft agreement": PROPOSALS["soft agreement"]}
        return {name: {size: _with_batch(key, spec, size) for size in BATCHES} for name, spec in specs.items()}


@dataclass(frozen=True)
class Challenge(Experiment):
    """The proposals against the plain sum, PCGrad, CAGrad and UPGrad."""

    name: str = "challenge"
    title: str = "Does a variant beat the plain sum, PCGrad, CAGrad and UPGrad?"
    sets: tuple[str, ...] = (*THREE_SETS, "census")

    def cases(self) -> Iterable[Case]:
        return [Case(key, method=spec) for key in self.sets for spec in self._specs().values()]

    def tell(self, store: Store, pictures: Path) -> str:
        parts, lines, p_values = [], [], []
        panels: dict[str, list[Row]] = {}
        for key in self.sets:
            panels[store.sets[key].title] = rows = [
                Row(name, store.tuned(Case(key, method=spec))) for name, spec in self._specs().items()
            ]
            parts += [f"### {store.sets[key].title}", figures_table(store, rows),
                      gains_table(gains(store, rows, rows[0]))]  # fmt: skip
            for row in rows:
                if row.name in ("GDOD", *PROPOSALS):
                    for rival in rows:
                        if rival.name in ("plain sum", *RIVALS):
                            one = _difference(store, row.case, rival.case)
                            p_values.append(one.p)
                            lines.append((store.sets[key].title, row.name, rival.name, interval(one)))
        corrected = holm(p_values)
        shown = [(*line, "–" if p is None else f"{p:.3f}") for line, p in zip(lines, corrected, strict=True)]
        titles = ("data set", "variant", "minus", "mean AUC on test data", "p (Holm, all of these)")
        time = time_picture(store, panels, pictures / "challenge-time.png")
        return "\n\n".join([markdown(titles, shown), time, *parts])

    def _specs(self) -> dict[str, Spec]:
        return {"plain sum": ADAM, **RIVALS, "GDOD": GDOD, **PROPOSALS}


@dataclass(frozen=True)
class Chance(Experiment):
    """What GDOD keeps, beside what it would keep of directions on which tasks' signs are coin tosses."""

    name: str = "chance"
    title: str = "What GDOD keeps, and what chance would"
    sets: tuple[str, ...] = (*THREE_SETS, "census")

    def cases(self) -> Iterable[Case]:
        return [Case(key, method=spec) for key in self.sets for spec in (ADAM, GDOD)]

    def tell(self, store: Store, pictures: Path) -> str:
        lines = []
        for key in self.sets:
            case, tasks = Case(key, method=GDOD), len(store.tasks(Case(key)))
            cosines = mean_cosines(store, Case(key))
            shares = [kept(store, case, what) for what in ("directions_kept", "energy_kept")]
            lines.append(
                (
                    store.sets[key].title,
                    str(tasks),
                    f"{min(cosines):+.2f} to {max(cosines):+.2f}" if cosines else "–",
                    f"{2.0 ** (1 - tasks):.3f}",
                    *("–" if share is None else f"{share:.3f}" for share in shares),
                )
            )
        header = ("data set", "tasks", "cosines, plain sum", "vectors kept by chance", "vectors kept", "energy kept")
        return "\n\n".join(
            [
                markdown(header, lines),
                "Means over training and seeds, from one step in a hundred. Cosines between the tasks' gradients of a "
                "batch are those of training with the plain sum: the least and the largest of the pairs' means. If the "
                "signs of K tasks on a basis vector were independent, all would agree on a share of 2^(1-K) of them.",
            ]
        )


def kept(store: Store, case: Case, what: str) -> float | None:
    """Return the share of energy or of basis vectors that a method keeps, mean over training and seeds."""
    values = [
        line[what] for seed in store.scale.seeds for line in store.conflicts(case, seed) if line[what] is not None
    ]
    return fmean(values) if values else None


def mean_cosines(store: Store, case: Case) -> list[float]:
    """Return the cosine between the gradients of each pair of tasks, mean over training and seeds."""
    cosines: list[list[float]] = []
    for seed in store.scale.seeds:
        for line in store.conflicts(case, seed):
            matrix = line["cosines"]
            pairs = [matrix[i][j] for i in range(len(matrix)) for j in range(i + 1, len(matrix))]
            if None not in pairs:
                cosines.append(pairs)
    return [fmean(column) for column in zip(*cosines, strict=True)]


def _with_conflict(spec: Spec, conflict: float) -> Case:
    return Case("ads", method=spec, settings=() if conflict == 0.5 else (("data.options.conflict", conflict),))


def _with_batch(key: str, spec: Spec, size: int) -> Case:
    return Case(key, method=spec, settings=() if size == 256 else (("batch", size),))


def _difference(store: Store, case: Case, baseline: Case, part: str = "test") -> Difference:
    return paired_difference(store.metric(case, None, part=part), store.metric(baseline, None, part=part))


def _against_sum(store: Store, methods: Mapping[str, Mapping[Any, Case]], name: str, task: str | None) -> Series:
    lines = [difference_line(store, {x: case}, methods["plain sum"][x], task) for x, case in methods[name].items()]
    there = [line for line in lines if line.x]
    return Series(
        name,
        [line.x[0] for line in there],
        [line.mean[0] for line in there],
        [line.low[0] for line in there if line.low],
        [line.high[0] for line in there if line.high],
    )


STUDY: tuple[Experiment, ...] = (Chance(), Conflict(), BatchSize(), Challenge())
