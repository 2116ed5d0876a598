"""The paper's experiments: what is declared, run, read and said about it."""

import json
import math
from collections import Counter
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gdod.cli import app
from gdod.errors import InputError
from gdod.experiments.paper.cases import TUNING_SEED, Case, Scale
from gdod.experiments.paper.printed import printed
from gdod.experiments.paper.reproduce import EXPERIMENTS, chosen, reproduce
from gdod.experiments.paper.results import ADAM, GDOD, OPTIMIZERS, Methods, trend, weights_verdict
from gdod.experiments.paper.sets import SETS, find_sets
from gdod.experiments.paper.store import Store, metric_of
from gdod.experiments.paper.tables import Row, gains, gains_table
from gdod.experiments.paper.verdicts import Verdict, of_gain
from gdod.experiments.plan import Spec
from gdod.statistics import Difference

TINY = Scale(seeds=(0, 1), evaluations=2, steps=4, rows=2_000)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing is downloaded there, so that simulated ads stand in for everything."""
    monkeypatch.setenv("GDOD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def store(tmp_path: Path, cache: Path) -> Store:
    return Store(tmp_path / "out", find_sets(None), TINY)


def difference(low: float, high: float) -> Difference:
    return Difference(5, (low + high) / 2, 0.1, low, high, 0.5)


@pytest.mark.parametrize(
    ("printed_gain", "ours", "verdict"),
    [
        (0.01, difference(0.001, 0.02), Verdict.CONFIRMED),
        (-0.01, difference(-0.02, -0.001), Verdict.CONFIRMED),
        (0.01, difference(-0.001, 0.02), Verdict.NOT_CONFIRMED),
        (0.01, difference(-0.02, -0.001), Verdict.CONTRADICTED),
        (-0.01, difference(0.001, 0.02), Verdict.CONTRADICTED),
        (0.0, difference(0.001, 0.02), Verdict.CONTRADICTED),
        (0.0, difference(-0.001, 0.02), Verdict.CONFIRMED),
        (None, difference(0.001, 0.02), Verdict.CANNOT),
        (0.01, Difference(1, 0.1, None, None, None, None), Verdict.CANNOT),
    ],
)
def test_verdict(printed_gain: float | None, ours: Difference, verdict: Verdict) -> None:
    assert of_gain(printed_gain, ours) is verdict


def test_printed_figures_are_those_of_the_paper() -> None:
    source = Path(__file__).parents[4] / "shared" / "paper" / "results.json"
    if not source.exists():
        pytest.skip("the copy of the printed figures is not there")
    assert printed() == json.loads(source.read_text())


def test_every_method_of_the_tables_has_printed_figures() -> None:
    assert set(printed()["table2_optimizers_auc"]) == set(OPTIMIZERS)
    assert set(printed()["table5_census_auc"]) == {*OPTIMIZERS, "Weighted-GDOD"}


def test_no_two_cases_share_a_folder(store: Store) -> None:
    cases = set()
    for experiment in EXPERIMENTS.values():
        cases |= {*experiment.cases(), *experiment.further(store)}
    places = Counter(store.place(case, 0) for case in cases)
    assert len(cases) > 100
    assert max(places.values()) == 1


def test_cases_of_all_experiments_are_trainings_that_can_be_made(store: Store) -> None:
    from gdod.experiments.paper.cases import config_of
    from gdod.training.preflight import check

    for experiment in EXPERIMENTS.values():
        for case in experiment.cases():
            check(config_of(case, store.sets[case.data], TINY, 0, store.dataset(case)))


def test_sets_that_are_not_there_are_replaced_and_named(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "data" / "ijcai15").mkdir(parents=True)
    (tmp_path / "data" / "ijcai15" / "user_log_format1.csv").write_text("x")
    found = find_sets(tmp_path / "data")
    assert not found["ijcai15"].stands_in
    assert found["census"].stands_in
    assert "simulated ads" in found["census"].title
    assert not found["census"].is_printed
    assert not found["ads"].is_printed
    with pytest.raises(InputError, match="is not there"):
        find_sets(tmp_path / "nowhere")


def test_runs_are_made_once_tuned_on_validation_and_read_back(store: Store, tmp_path: Path) -> None:
    methods = {name: OPTIMIZERS[name] for name in ("Adam", "GradNorm", "GDOD")}
    experiment = Methods("table2", "Table 2", ("bookcrossing",), methods, lambda method, key: [0.7, 0.6])
    cases = list(experiment.cases())
    store.tune(cases)
    alphas = [Case("bookcrossing", method=Spec("gradnorm", {"alpha": alpha})) for alpha in (0.5, 1.5)]
    results = [store.result(case, TUNING_SEED) for case in alphas]
    assert all(result is not None and result["test"] is None for result in results)  # not looked at
    scores = [metric_of(result["validation"], None, "auc") for result in results if result]
    best = max(zip(scores, alphas, strict=True), key=lambda pair: pair[0] or 0)[1]
    assert store.tuned(cases[1]) == best
    assert store.tuned(cases[0]) == cases[0]

    ready = [store.tuned(case) for case in cases]
    store.make(ready)
    assert store.failed == {}
    stamps = {path: path.stat().st_mtime_ns for path in store.folder.rglob("result.json")}
    assert len(stamps) == 2 + len(TINY.seeds) * len(cases)
    assert not list(store.folder.rglob("*.pt"))

    values = store.metric(ready[0], None)
    assert set(values) == {0, 1}
    tests = [store.result(ready[0], seed) for seed in (0, 1)]
    assert list(values.values()) == pytest.approx([result["test"]["mean_auc"] for result in tests if result], abs=1e-15)
    parts = {line["part"] for line in store.evaluations(ready[0], 0)}
    assert parts == {"validation", "test"}  # for figures 3 and 4

    page = experiment.tell(store, tmp_path)
    assert "simulated ads" in page
    assert "cannot be tested here" in page
    assert "confirmed" not in page  # nothing is printed for this data
    assert (tmp_path / "table2-bookcrossing-time.png").exists()

    again = Store(store.folder, store.sets, TINY)
    again.make(ready)
    assert {path: path.stat().st_mtime_ns for path in store.folder.rglob("result.json")} == stamps

    other = Store(store.folder, store.sets, Scale(seeds=(0, 1, 2), evaluations=2, steps=4, rows=2_000))
    other.make(ready[:1])
    assert len(other.metric(ready[0], None)) == 3


def test_a_run_with_other_settings_is_not_mixed_in(store: Store) -> None:
    case = Case("ads")
    store.make([case])
    (store.place(case, 0) / "result.json").unlink()
    other = Store(store.folder, store.sets, Scale(seeds=(0,), evaluations=2, steps=5, rows=2_000))
    with pytest.raises(InputError, match="other settings"):
        other.make([case])


class Fixed(Store):
    """Results that are given: by method and seed, one AUC a task."""

    def __init__(self, results: dict[str, dict[int, list[float]]], sets: dict[str, object]) -> None:
        super().__init__(Path(), sets, Scale(seeds=(0, 1, 2)))  # type: ignore[arg-type]
        self.given = results

    def tasks(self, case: Case) -> tuple[str, ...]:
        return ("a", "b")

    def result(self, case: Case, seed: int) -> dict[str, object] | None:
        values = self.given[case.method.name].get(seed)
        tasks = None if values is None else {"tasks": dict(zip("ab", ({"auc": v} for v in values), strict=True))}
        return None if tasks is None else {"test": tasks, "milliseconds_per_step": 2.0}


def test_gains_are_paired_by_seed_and_judged() -> None:
    store = Fixed(
        {
            "sum": {0: [0.70, 0.60], 1: [0.80, 0.50], 2: [0.75, 0.55]},
            "gdod": {0: [0.71, 0.58], 1: [0.812, 0.49], 2: [0.759, 0.56]},
        },
        {},
    )
    rows = [Row("Adam", Case("census", method=ADAM), [0.7, 0.5]), Row("GDOD", Case("census", method=GDOD), [0.8, 0.6])]
    found = gains(store, rows, rows[0])
    first = found.differences["GDOD", "a"]
    assert first.mean == pytest.approx((0.01 + 0.012 + 0.009) / 3)
    assert found.verdict(rows[1], "a") is Verdict.CONFIRMED
    assert found.verdict(rows[1], "b") is Verdict.NOT_CONFIRMED
    text = gains_table(found)
    assert "paper +0.1000: confirmed" in text
    assert "paper +0.1000: not confirmed" in text
    mean = found.differences["GDOD", None].mean
    assert mean is not None
    assert math.isclose(mean, ((0.01 + 0.012 + 0.009) + (-0.02 - 0.01 + 0.01)) / 6)


def test_a_trend_is_what_a_doubling_gains() -> None:
    methods = {1: "sum", 2: "gdod", 8: "cagrad"}
    tilts = {0: 0.01, 1: 0.02, 2: 0.03}
    curve = {name: {s: [0.5 + t * math.log2(x)] * 2 for s, t in tilts.items()} for x, name in methods.items()}
    cases = {x: Case("census", method=Spec(name)) for x, name in methods.items()}
    found = trend(Fixed(curve, {}), cases)
    assert found.mean == pytest.approx(0.02)
    assert found.low is not None
    assert found.low < 0.01
    del curve["gdod"][2]
    without = trend(Fixed(curve, {}), cases)
    assert without.n == 2
    assert without.mean == pytest.approx(0.015)


@pytest.mark.parametrize(
    ("wins", "below", "verdict"),
    [(3, 1, "confirmed"), (2, 2, "not confirmed"), (0, 2, "not confirmed"), (1, 3, "contradicted")],
)
def test_task_weights_are_judged_by_most_situations(wins: int, below: int, verdict: str) -> None:
    worse, level = difference(-0.2, -0.1), difference(-0.1, 0.1)
    best = ["GDOD"] * wins + ["Adam"] * (4 - wins)
    assert weights_verdict(best, [worse] * below + [level] * (4 - below)).endswith(f": {verdict}.")


def test_names(cache: Path, tmp_path: Path) -> None:
    assert chosen(["table5", "all"])[0].name == "table5"
    assert len(chosen(["all"])) == 9
    with pytest.raises(InputError, match="table2"):
        chosen(["tabel2"])
    with pytest.raises(InputError, match="no experiment"):
        reproduce([], tmp_path / "out")
    assert set(SETS) == set(find_sets(None))


def test_command_line(cache: Path, tmp_path: Path) -> None:
    runner = CliRunner()
    listed = runner.invoke(app, ["reproduce", "--list"])
    assert listed.exit_code == 0
    assert all(name in listed.output for name in EXPERIMENTS)
    wrong = runner.invoke(app, ["reproduce", "figure9", "--out", str(tmp_path / "out")])
    assert wrong.exit_code == 2
    assert "figure5" in wrong.output
    assert not (tmp_path / "out").exists()
    pages = runner.invoke(app, ["reproduce", "table1", "--quick", "--json", "--quiet", "--out", str(tmp_path / "out")])
    assert pages.exit_code == 0, pages.output
    page = Path(json.loads(pages.stdout)["pages"]["table1"]).read_text()
    assert "Quick" in page
    assert "919,824 + 229,956" in page


@pytest.mark.slow
def test_everything_runs_and_is_told(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gdod.experiments.paper import reproduce as module

    monkeypatch.setattr(module, "QUICK", TINY)
    found = reproduce(["all", "study"], tmp_path / "out", quick=True)
    assert found.failed == {}
    assert set(found.pages) == set(EXPERIMENTS)
    for page in found.pages.values():
        text = page.read_text()
        for picture in [part.split(")")[0] for part in text.split("](")[1:]]:
            assert (page.parent / picture).exists()
    beside_cost = {name for name, page in found.pages.items() if "time.png" in page.read_text()}
    assert beside_cost == set(EXPERIMENTS) - {"table1", "figure3", "figure4", "chance"}
