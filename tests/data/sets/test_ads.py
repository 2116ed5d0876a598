"""Simulated ads: the same rows for a seed, rates as asked for, a best AUC that holds, and conflict."""

import hashlib
import io
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from sklearn.metrics import roc_auc_score
from typer import Typer
from typer.testing import CliRunner

import gdod
import gdod.data
from gdod.cli.download import register
from gdod.data.sets.ads import CHUNK, TASKS, AdsOptions, Simulated, SimulatedAds, best_auc, simulate
from gdod.data.tables.table_schema import IgnoredColumn
from gdod.models import build, per_example_losses


def sha256(table: pl.DataFrame) -> str:
    written = io.BytesIO()
    table.write_parquet(written)
    return hashlib.sha256(written.getvalue()).hexdigest()


def test_the_same_bytes_for_the_same_seed() -> None:
    first = simulate(AdsOptions(rows=CHUNK + 1_000, seed=3))
    assert sha256(first.table) == sha256(simulate(AdsOptions(rows=CHUNK + 1_000, seed=3)).table)
    assert sha256(first.table) != sha256(simulate(AdsOptions(rows=CHUNK + 1_000, seed=4)).table)


def test_more_rows_begin_with_the_same_rows() -> None:
    few, many = simulate(AdsOptions(rows=1_000)), simulate(AdsOptions(rows=CHUNK + 5_000))
    assert few.table.equals(many.table[:1_000])
    assert few.truth.equals(many.truth[:1_000])


def test_ids_are_consistent() -> None:
    table = simulate(AdsOptions(rows=50_000, users=500)).table
    for key, fields in (("user", ["age_band", "region", "segment"]), ("ad", ["advertiser", "category", "price"])):
        assert table.group_by(key).agg(pl.col(fields).n_unique()).select(pl.col(fields).max()).row(0) == (1, 1, 1)
    assert table["ad"].max() <= 1_098  # type: ignore[operator]
    assert table["ad"].n_unique() > 1_000


@pytest.mark.parametrize("conflict", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("noise", [0.0, 3.0])
def test_rates_are_as_asked_for(conflict: float, noise: float) -> None:
    options = AdsOptions(
        rows=200_000, conflict=conflict, noise=noise, click_rate=0.2, visit_rate=0.3, purchase_rate=0.5
    )
    table = simulate(options).table
    clicks, visits, purchases = (int(table[task].sum()) for task in TASKS)
    # About four standard deviations of the rarest.
    assert clicks / len(table) == pytest.approx(0.2, rel=0.02)
    assert visits / clicks == pytest.approx(0.3, rel=0.05)
    assert purchases / visits == pytest.approx(0.5, rel=0.05)


def test_steps_of_the_funnel_need_the_one_before() -> None:
    table = simulate(AdsOptions(rows=50_000)).table
    assert table.select((pl.col("visit") <= pl.col("click")).all(), (pl.col("purchase") <= pl.col("visit")).all()).row(
        0
    ) == (True, True)
    conditional = simulate(AdsOptions(rows=50_000, conditional=True)).table
    assert (conditional["visit"].is_null() == (conditional["click"] == 0)).all()
    reached = (conditional["visit"] == 1).fill_null(False)
    assert (conditional["purchase"].is_not_null() == reached).all()
    # The same events either way; only what is known of them differs.
    assert conditional.with_columns(pl.col(TASKS).fill_null(0)).equals(table)


@pytest.mark.parametrize("conditional", [False, True])
def test_true_probabilities_are_calibrated(conditional: bool) -> None:
    made = simulate(AdsOptions(rows=300_000, conditional=conditional, noise=1.0))
    for task in TASKS:
        known = made.table[task].is_not_null()
        labels, chances = made.table[task].filter(known).to_numpy(), made.truth[task].filter(known).to_numpy()
        order = np.argsort(chances)
        for part in np.array_split(order, 5):
            spread = np.sqrt((chances[part] * (1 - chances[part])).sum()) / len(part)
            assert abs(labels[part].mean() - chances[part].mean()) < 4 * spread


@pytest.mark.parametrize("conditional", [False, True])
def test_the_best_auc_is_that_of_the_true_probabilities(conditional: bool) -> None:
    made = simulate(AdsOptions(rows=30_000, conditional=conditional))
    for task, best in best_auc(made.table, made.truth).items():
        known = made.table[task].is_not_null()
        expected = roc_auc_score(made.table[task].filter(known), made.truth[task].filter(known))
        assert best == pytest.approx(expected, abs=1e-12)
        # Other scores of the same rows do not reach it.
        shaken = made.truth[task].to_numpy() * np.exp(np.random.default_rng(0).normal(0, 0.5, len(known)))
        assert roc_auc_score(made.table[task].filter(known), pl.Series(shaken).filter(known)) < best


def test_noise_makes_labels_harder_to_predict() -> None:
    quiet, loud = (simulate(AdsOptions(rows=50_000, noise=noise)) for noise in (0.0, 3.0))
    assert best(quiet)["click"] > best(loud)["click"] + 0.05


def best(made: Simulated) -> dict[str, float]:
    return {task: value for task, value in best_auc(made.table, made.truth).items() if value is not None}


def test_conflict_turns_clicks_against_purchases() -> None:
    def correlation(conflict: float) -> float:
        made = simulate(AdsOptions(rows=50_000, conflict=conflict, conditional=True))
        return float(np.corrcoef(made.truth["click"], made.truth["visit"])[0, 1])

    aligned, middle, opposed = (correlation(conflict) for conflict in (0.0, 0.25, 1.0))
    assert aligned > 0.7
    assert abs(middle) < 0.2
    assert opposed < -0.7


def mean_cosines(conflict: float, cache: Path, steps: int) -> tuple[float, float]:
    """Return the mean cosine between click's gradient and the others' in training, and AUC of click over the best."""
    data = gdod.data.load("ads", cache=cache, conflict=conflict, rows=120_000, users=3_000)
    model = build("shared-bottom", data.schema, data.tasks, seed=0)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    seen: list[float] = []
    epochs = (step for epoch in range(9) for step in data.train.batches(512, seed=0, epoch=epoch))
    for count, step in zip(range(steps), epochs, strict=False):
        losses, mask = per_example_losses(model(step.batch), step.labels, data.tasks)
        optimizer.zero_grad()
        info = gdod.backward(losses, gdod.method("sum"), mask=mask, diagnose=count % 3 == 0)
        optimizer.step()
        if count % 3 == 0 and count > steps // 4:
            seen.append(float(info.cosines[0, 1:].mean()))
    test = next(iter(data.test.batches(len(data.test))))
    with torch.no_grad():
        score = model(test.batch)["click"]
    reached = float(data.notes[0].rsplit(" ", 1)[1])
    return float(np.mean(seen)), float(roc_auc_score(test.labels["click"], score)) / reached


@pytest.mark.slow
def test_conflict_of_gradients_follows_the_knob(tmp_path: Path) -> None:
    aligned, reached = mean_cosines(0.0, tmp_path, steps=360)
    opposed, _ = mean_cosines(1.0, tmp_path, steps=360)
    assert aligned > 0.08
    assert opposed < aligned - 0.06
    assert 0.85 < reached < 1  # and a model can learn it


def test_train_and_test_and_notes() -> None:
    raw = SimulatedAds().read(None, {"rows": 5_000, "test": 0.1})
    assert isinstance(raw.train, pl.DataFrame)
    assert raw.test is not None
    assert (len(raw.train), len(raw.test)) == (4_500, 500)
    assert [note.split(":")[0] for note in raw.notes] == list(TASKS)
    assert all("best reachable AUC 0." in note for note in raw.notes)


def test_too_few_labels_for_an_auc_are_told() -> None:
    raw = SimulatedAds().read(None, {"rows": 20, "purchase_rate": 0.001})
    assert "not defined (one class only)" in raw.notes[2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"conflict": 1.5}, "conflict=1.5; expected a number from 0 to 1"),
        ({"rows": 3}, "rows=3; expected at least 10"),
        ({"click_rate": 0}, "click_rate=0; expected"),
        ({"conflikt": 0.5}, "did you mean 'conflict'"),
        ({"conditional": 1}, "conditional=1; expected true or false"),
        ({"seed": -1}, "seed=-1; expected a whole number of at least 0"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(gdod.InputError, match=message):
        SimulatedAds().read(None, options)
    with pytest.raises(gdod.InputError, match=message):
        SimulatedAds().fingerprint(None, options)


def test_fingerprints_follow_every_option() -> None:
    source = SimulatedAds()
    others: list[dict[str, object]] = [{"seed": 1}, {"noise": 1.0}, {"conditional": True}, {"test": 0.5}, {"ads": 9}]
    assert len({source.fingerprint(None, options) for options in [{}, *others]}) == 6
    assert source.fingerprint(None, {"noise": 1}) == source.fingerprint(None, {"noise": 1.0})


def app() -> Typer:
    made = Typer()
    register(made)
    return made


@pytest.mark.parametrize("name", ["ads.csv", "ads.parquet"])
def test_the_command_writes_a_table(tmp_path: Path, name: str) -> None:
    out = tmp_path / "new" / name
    result = CliRunner().invoke(app(), ["ads", str(out), "--rows", "2000", "--truth", "--conflict", "1"])
    assert result.exit_code == 0, result.output
    assert "best reachable AUC 0." in result.output
    table = pl.read_csv(out) if out.suffix == ".csv" else pl.read_parquet(out)
    assert len(table) == 2_000
    assert table["true_purchase"].is_between(0, 1).all()
    assert sorted(path.name for path in out.parent.iterdir()) == [name, "ads.yaml"]
    wrong = CliRunner().invoke(app(), ["ads", str(tmp_path / "ads.xlsx")])
    assert wrong.exit_code == 2
    assert "expected a name that ends in .parquet or .csv" in wrong.output


@pytest.mark.parametrize("options", [[], ["--truth", "--conditional"]])
def test_the_written_table_gives_nothing_away(tmp_path: Path, options: list[str]) -> None:
    """Neither under the schema that is written beside it, nor under an inferred one."""
    out, beside = tmp_path / "own.parquet", tmp_path / "own.yaml"
    result = CliRunner().invoke(app(), ["ads", str(out), "--rows", "3000", "--users", "100", *options])
    assert result.exit_code == 0, result.output
    assert f"--data {out} --schema {beside}" in result.output
    own, inferred = gdod.data.TableSchema.read(beside), gdod.data.inspect(out).schema()
    features = SimulatedAds().schema({}).features
    for schema in (own, inferred):
        assert tuple(schema.labels) == TASKS
        assert schema.features == features
        assert set(schema.of(IgnoredColumn)) == ({f"true_{task}" for task in TASKS} if options else set())
    assert own.labels == SimulatedAds().schema({"conditional": bool(options)}).labels
    data = gdod.data.load(out, schema=beside, cache=tmp_path / "cache")
    assert [len(part) for part in (data.train, data.validation, data.test)] == [2160, 240, 600]


def test_a_named_label_does_not_turn_the_others_into_features(tmp_path: Path) -> None:
    simulate(AdsOptions(rows=3_000)).table.write_parquet(tmp_path / "own.parquet")
    schema = gdod.data.inspect(tmp_path / "own.parquet", labels=["purchase"]).schema()
    assert tuple(schema.labels) == ("purchase",)
    assert {"click", "visit"}.isdisjoint(schema.features)


def test_the_command_writes_over_nothing_unless_told_to(tmp_path: Path) -> None:
    command = ["ads", str(tmp_path / "own.csv"), "--rows", "100", "--users", "10"]
    for name in ("own.csv", "own.yaml"):
        (tmp_path / name).write_text("mine")
        refused = CliRunner().invoke(app(), command)
        assert refused.exit_code == 2
        assert f"{tmp_path / name} is there already; take another name, or --overwrite" in refused.output
        assert [path.read_text() for path in tmp_path.iterdir()] == ["mine"]
        (tmp_path / name).unlink()
    (tmp_path / "own.csv").write_text("mine")
    assert CliRunner().invoke(app(), [*command, "--overwrite"]).exit_code == 0
    assert len(pl.read_csv(tmp_path / "own.csv")) == 100


def test_a_place_that_takes_no_file_is_told_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError("No such file or directory (os error 2): .own.csv.part")  # as polars does, without an errno

    monkeypatch.setattr(pl.DataFrame, "write_csv", refuse)
    result = CliRunner().invoke(app(), ["ads", str(tmp_path / "own.csv"), "--rows", "100", "--users", "10"])
    assert result.exit_code == 2
    assert "own.csv cannot be written: No such file or directory" in result.output
    assert list(tmp_path.iterdir()) == []
