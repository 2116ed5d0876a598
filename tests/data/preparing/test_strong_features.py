"""What `FeatureOptions` make of a whole table: what is in it, where it comes from, and that no label leaks."""

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from numpy.typing import NDArray
from tests.data.preparing.test_target_statistics import auc

import gdod.data.tables.read
from gdod import InputError
from gdod._files import digest
from gdod.data import Dataset, Encoder, FeatureOptions, MemoryPart, TableSchema, load, prepare
from gdod.data.preparing.bins import edges, edges_beside_common
from gdod.data.preparing.pipeline import row_bytes

COLUMNS = {
    "row": {"type": "numeric", "scale": "none"},
    "user": "categorical",
    "item": "categorical",
    "age": "numeric",
    "day": "ignore",
    "click": "label",
    "buy": {"type": "label", "when": "click"},
}
RANDOM = {"by": "random"}
TIME = {"by": "time", "column": "day"}
GROUP = {"by": "group", "column": "user"}
OPTIONS = FeatureOptions(folds=5, noise=True)  # what labels at random have, too


def rows(count: int = 1200, seed: int = 0) -> pl.DataFrame:
    """Return a table in which user and item decide together, and only together, whether there is a click."""
    draw = np.random.default_rng(seed)
    user, item = draw.integers(1, 13, count), draw.integers(1, 7, count)
    click = (draw.random(count) < np.where((user + item) % 2, 0.85, 0.1)).astype(int)
    return pl.DataFrame(
        {
            "row": np.arange(count),
            "user": user,
            "item": item,
            "age": pl.Series(draw.normal(40, 12, count).round(1)).set(pl.Series(draw.random(count) < 0.1), None),
            "day": np.sort(draw.integers(0, 300, count)),
            "click": click,
            "buy": (draw.random(count) < 0.2 + 0.05 * item).astype(int),
        }
    )


class Made:
    """A prepared table: each part's fields by name, in the order of the raw rows."""

    def described(self) -> dict[str, Any]:
        """Return the content of encoder.json, without the hash of the table."""
        content: dict[str, Any] = json.loads((self.folder / "encoder.json").read_text())
        content["counts"].pop("tables")
        return content

    def __init__(
        self,
        folder: Path,
        frame: pl.DataFrame,
        split: Mapping[str, object] = RANDOM,
        options: FeatureOptions | None = OPTIONS,
        columns: Mapping[str, object] = COLUMNS,
    ) -> None:
        path = folder / f"{len(list(folder.iterdir()))}.csv"
        frame.write_csv(path)
        self.frame, self.schema = frame, TableSchema(columns=dict(columns), split=dict(split))
        self.folder = prepare(path, schema=self.schema, cache=folder / "cache", features=options)
        self.data: Dataset = load(path, schema=self.schema, cache=folder / "cache", features=options)
        self.parts = {name: self._part(getattr(self.data, name)) for name in ("train", "validation", "test")}

    def _part(self, part: object) -> dict[str, NDArray[np.float32]]:
        assert isinstance(part, MemoryPart)
        numbers, ids = part.examples.numeric.numpy(), part.examples.categorical.numpy()
        names = [field.name for field in self.data.schema.numeric]
        order = np.argsort(numbers[:, names.index("row")])
        fields = {name: numbers[order, at] for at, name in enumerate(names)}
        return fields | {field.name: ids[order, at] for at, field in enumerate(self.data.schema.categorical)}

    def places(self, part: str = "train") -> NDArray[np.int64]:
        """Return which rows of the table a part has. [n]"""
        return self.parts[part]["row"].astype(np.int64)

    def raw(self, part: str) -> pl.DataFrame:
        return self.frame[self.places(part)]


def flipped(frame: pl.DataFrame, places: NDArray[np.int64] | int) -> pl.DataFrame:
    """Return the table with other labels in some rows."""
    at = np.isin(np.arange(len(frame)), places)
    return frame.with_columns(
        click=pl.Series(np.where(at, 1 - frame["click"].to_numpy(), frame["click"].to_numpy())),
        buy=pl.Series(np.where(at, 1 - frame["buy"].to_numpy(), frame["buy"].to_numpy())),
    )


def differs(one: Made, other: Made, part: str = "train") -> NDArray[np.bool_]:
    """Return in which rows of a part any field differs. [n]"""
    assert one.parts[part].keys() == other.parts[part].keys()
    pairs = [(one.parts[part][name], other.parts[part][name]) for name in one.parts[part]]
    different: NDArray[np.bool_] = np.any([mine != yours for mine, yours in pairs], axis=0)
    return different


def test_without_options_nothing_has_changed(tmp_path: Path) -> None:
    """Both values are those of the version before there were options."""
    path = tmp_path / "t.csv"
    path.write_text("city,seen,age,click\nrome,1 2,1,0\noslo,2,3,1\nrome,,1,1\noslo,3 2,3,0\n")
    columns = {"city": "categorical", "seen": "sequence", "age": "numeric", "click": "label"}
    schema = TableSchema(columns=columns, split={"validation": 0, "test": 0})
    folder = prepare(path, schema=schema, cache=tmp_path / "c")
    assert folder.name == "719a4898c613eddf206f1946da9c10c55571973c663ca09576fc850a5c219141"
    content = json.loads((folder / "encoder.json").read_text())
    assert content.pop("counts")["rows"] == 4  # what later versions keep besides, for updates
    table = json.dumps(schema.to_json())
    assert json.dumps(content) == (
        f'{{"format": 1, "table": {table}, "vocabularies": {{"city": ["oslo", "rome"], "seen": ["2", "1", "3"]}}, '
        '"scalings": {"age": {"scale": "standard", "mean": 2.0, "sd": 1.0}}, "classes": {}, "longest": {"seen": 2}, '
        '"weight": 1.0}'
    )
    assert not (folder / "statistics.parquet").exists()
    Encoder.load(folder).save(tmp_path)
    assert (tmp_path / "encoder.json").read_bytes() == (folder / "encoder.json").read_bytes()


def test_options_are_part_of_the_fingerprint(tmp_path: Path) -> None:
    made = [Made(tmp_path, rows(200), options=options) for options in (None, OPTIONS, FeatureOptions(folds=6))]
    assert len({one.data.fingerprint for one in made}) == 3
    own = {**COLUMNS, "user": {"type": "categorical", "rare": 1}}  # the default, but said
    assert Made(tmp_path, rows(200), columns=own).data.fingerprint != made[1].data.fingerprint
    assert Made(tmp_path, rows(200), RANDOM, None, own).data.fingerprint == made[0].data.fingerprint
    with pytest.raises(InputError, match="features is a dict; expected FeatureOptions"):
        load(tmp_path / "0.csv", features={"folds": 3})  # type: ignore[arg-type]


def test_the_fields_that_are_added(tmp_path: Path) -> None:
    made = Made(tmp_path, rows())
    names = [field.name for field in made.data.schema.numeric]
    assert names[:3] == ["row", "age", "age is missing"]
    assert names[3:] == [
        f"{what} | {of}" for of in ("user", "item", "user × item") for what in ("click", "buy", "rows")
    ]
    gaps = made.raw("train")["age"].is_null().to_numpy()
    assert (made.parts["train"]["age is missing"] == gaps).all()
    assert gaps.any()
    assert pq.read_schema(made.folder / "train-00000.parquet").names[:6] == [
        "row", "user", "item", "age", "age is missing", "click | user",
    ]  # fmt: skip
    assert made.data.notes[0] == "target statistics: 3 numbers for each of 2 of 2 columns and 1 of 1 pairs"
    plain = Made(tmp_path, rows(), options=None)
    assert row_bytes(made.data.encoder) - row_bytes(plain.data.encoder) == 4 * 10


def test_a_column_may_have_the_name_of_an_added_field(tmp_path: Path) -> None:
    frame = rows().with_columns(pl.lit(1.5).alias("age is missing"), pl.col("user").alias("user × item"))
    columns = {**COLUMNS, "age is missing": "numeric", "user × item": "categorical"}
    made = Made(tmp_path, frame, columns=columns)
    names = made.data.schema.names
    assert len(set(names)) == len(names)
    assert {"age is missing", "age is missing *", "click | user × item", "click | user × item *"} <= set(names)
    assert (made.parts["train"]["age is missing"] == 0).all()  # the column, a constant


def log_odds(rate: float) -> float:
    return math.log(rate / (1 - rate))


def test_other_parts_have_the_statistics_of_all_training_rows(tmp_path: Path) -> None:
    """Labels of every kind by the formula, with weights, gaps and `when`."""
    draw = np.random.default_rng(3)
    frame = rows().with_columns(
        price=pl.Series(draw.normal(10, 3, 1200)).set(pl.Series(draw.random(1200) < 0.3), None),
        stars=pl.Series(draw.choice(["a", "b", "c"], 1200)),
        weight=pl.Series(draw.random(1200) + 0.5).set(pl.Series(draw.random(1200) < 0.1), None),
    )
    kinds = {"price": "regression", "stars": "multiclass"}
    columns = {**COLUMNS, "weight": "weight"} | {name: {"type": "label", "kind": kind} for name, kind in kinds.items()}
    made = Made(tmp_path, frame, options=FeatureOptions(prior=4.0, noise=True), columns=columns)
    train, test = made.raw("train"), made.raw("test")
    mean_weight = train["weight"].mean()
    assert isinstance(mean_weight, float)
    weights = train["weight"].fill_null(mean_weight).to_numpy() / mean_weight
    labels = {
        "click": train["click"].to_numpy().astype(float),
        "buy": np.where(train["click"].to_numpy() == 1, train["buy"].to_numpy(), np.nan),
        "price": train["price"].to_numpy(),
        **{f"stars = {one}": (train["stars"] == one).to_numpy().astype(float) for one in "abc"},
    }
    for columns_of in (["user"], ["user", "item"]):
        source = " × ".join(columns_of)
        for at in range(0, len(test), 40):
            same = np.all([train[name].to_numpy() == test[name][at] for name in columns_of], axis=0)
            for name, label in labels.items():
                there = ~np.isnan(label)
                y, w = np.nan_to_num(label), weights * there
                mean = (w @ y) / w.sum() if name == "price" else (w @ y + 1) / (w.sum() + 2)
                smooth = ((w * same) @ y + 4.0 * mean) / ((w * same).sum() + 4.0)
                spread = math.sqrt(w @ y**2 / w.sum() - mean**2)
                expected = (smooth - mean) / spread if name == "price" else log_odds(smooth) - log_odds(mean)
                assert made.parts["test"][f"{name} | {source}"][at] == pytest.approx(expected, rel=1e-4, abs=1e-5)
            assert made.parts["test"][f"rows | {source}"][at] == pytest.approx(math.log1p(same.sum()) / 5)


def test_of_many_classes_the_frequent_ones_have_statistics(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    stars = np.append(np.repeat(np.arange(20), 40), np.repeat(np.arange(20, 40), 20))
    frame = rows(1200).with_columns(stars=pl.Series(draw.permutation(stars)))
    made = Made(tmp_path, frame, columns={**COLUMNS, "stars": {"type": "label", "kind": "multiclass"}})
    names = [name for name in made.data.schema.names if name.startswith("stars = ") and name.endswith("| user")]
    assert names == [f"stars = {one} | user" for one in range(20)]


@pytest.mark.parametrize("split", [RANDOM, TIME, GROUP], ids=["random", "time", "group"])
@pytest.mark.parametrize("keys", [10**6, 20], ids=["", "buckets"])
def test_a_training_rows_own_label_changes_none_of_its_features(
    split: Mapping[str, object], keys: int, tmp_path: Path
) -> None:
    options = FeatureOptions(folds=5, keys=keys)
    before = Made(tmp_path, rows(), split, options)
    for at in range(5, len(before.places()), 211):
        after = Made(tmp_path, flipped(rows(), before.places()[at]), split, options)
        different = differs(before, after)
        assert not different[at]
        assert different.any() or differs(before, after, "test").any()  # others do see it


@pytest.mark.parametrize("split", [RANDOM, TIME, GROUP], ids=["random", "time", "group"])
def test_labels_outside_the_training_part_change_nothing(split: Mapping[str, object], tmp_path: Path) -> None:
    before = Made(tmp_path, rows(), split)
    others = np.append(before.places("validation"), before.places("test"))
    after = Made(tmp_path, flipped(rows(), others), split)
    for part in before.parts:
        assert not differs(before, after, part).any()
    for name in ("counts.parquet", "statistics.parquet"):
        assert (before.folder / name).read_bytes() == (after.folder / name).read_bytes()
    assert before.described() == after.described()


def test_in_time_a_later_row_changes_no_earlier_one(tmp_path: Path) -> None:
    before = Made(tmp_path, rows(), TIME)
    days = before.raw("train")["day"].to_numpy()
    for at in (100, 300, 600):
        after = Made(tmp_path, flipped(rows(), before.places()[at]), TIME)
        different = differs(before, after)
        assert not different[days <= days[at]].any()
        assert different[days > days[at]].any()


def test_rows_of_the_same_time_and_those_without_one(tmp_path: Path) -> None:
    """Rows of one time do not see each other; those without a time come first and see nothing."""
    day = (rows()["day"] // 30).set(pl.Series(np.arange(1200) % 50 == 7), None)
    made = Made(tmp_path, rows().with_columns(day=day), TIME)
    without = made.raw("train")["day"].is_null().to_numpy()
    assert without.any()
    seen = made.parts["train"]["rows | user"]
    assert (seen[without] == 0).all()
    train = made.raw("train").with_columns(seen=pl.Series(seen)).drop_nulls("day")
    alike = train.group_by("day", "user").agg(pl.col("seen").n_unique())
    assert (alike["seen"] == 1).all()
    assert train.group_by("day").agg(pl.col("seen").max()).sort("day")["seen"].is_sorted()


def test_no_group_sees_itself(tmp_path: Path) -> None:
    frame = rows().with_columns(user=pl.Series(np.random.default_rng(0).integers(0, 100, 1200)))
    frame = frame.with_columns(region=pl.col("user") % 7)  # several groups of each
    before = Made(tmp_path, frame, GROUP, columns={**COLUMNS, "region": "categorical"})
    names = before.data.schema.names
    assert not [name for name in names if "| user" in name]  # it would be 0 in every training row
    assert "click | region" in names
    groups = before.raw("train")["user"].to_numpy()
    for at in (3, 333):
        after = Made(tmp_path, flipped(frame, before.places()[at]), GROUP, columns={**COLUMNS, "region": "categorical"})
        different = differs(before, after)
        assert not different[groups == groups[at]].any()
        assert different.any()


def test_noise_tells_nothing_where_the_naive_statistic_would(tmp_path: Path) -> None:
    frame = rows(6000).with_columns(noise=pl.Series(np.random.default_rng(1).integers(0, 1500, 6000)))
    options = FeatureOptions(pairs=1, noise=True)
    made = Made(tmp_path, frame, options=options, columns={**COLUMNS, "noise": "categorical"})
    clicks = {part: made.raw(part)["click"].to_numpy().astype(float) for part in made.parts}
    for part in made.parts:
        assert abs(auc(made.parts[part]["click | noise"].astype(float), clicks[part]) - 0.5) < 0.05
        assert auc(made.parts[part]["click | user × item"].astype(float), clicks[part]) > 0.8
    names = [field.name for field in made.data.schema.numeric]
    naive = made.data.encoder.encode(made.raw("train")).examples.numeric[:, names.index("click | noise")]
    assert auc(naive.numpy().astype(float), clicks["train"]) > 0.7
    assert not [name for name in names if "× noise" in name]  # nor is a pair with it chosen


@pytest.mark.parametrize("keys", [10**6, 20], ids=["", "buckets"])
def test_prediction_sees_what_was_stored(keys: int, tmp_path: Path) -> None:
    made = Made(tmp_path, rows(), options=FeatureOptions(keys=keys))
    for part in ("validation", "test"):
        stored = getattr(made.data, part).examples
        again = made.data.encoder.encode(made.raw(part)).examples
        order = stored.numeric[:, 0].argsort()
        for one, other in zip(stored.take(order)[:2], again[:2], strict=True):
            assert torch.equal(one, other)
    without = made.data.encoder.encode(made.raw("test").drop("age", "user"), labels=False).examples.numeric
    names = [field.name for field in made.data.schema.numeric]
    assert (without[:, names.index("age is missing")] == 1).all()
    assert without.isfinite().all()


def test_a_value_that_is_new_is_not_like_a_missing_one(tmp_path: Path) -> None:
    gaps = pl.Series(np.arange(1200) % 5 == 0)
    frame = rows().with_columns(user=rows()["user"].set(gaps, None), click=rows()["click"].set(gaps, 1))
    encoder = Made(tmp_path, frame).data.encoder
    part = encoder.encode(
        pl.DataFrame({"user": [None, "new", "new", None], "item": [1, 1, "new", "new"]}, strict=False)
    )
    told = dict(zip(encoder.numeric, part.examples.numeric.T.tolist(), strict=True))
    assert part.examples.categorical[:, 0].tolist() == [0, 0, 0, 0]
    assert told["click | user"][0] == told["click | user"][3] > 1
    assert told["rows | user"][0] > 0.5
    for what in ("click", "buy", "rows"):
        assert told[f"{what} | user"][1:3] == [0, 0]
        assert told[f"{what} | item"][2:] == [0, 0]
        assert told[f"{what} | user × item"][1:] == [0, 0, 0]
    assert told["rows | user × item"][0] > 0


def test_streaming_gives_the_same_numbers(tmp_path: Path) -> None:
    made = Made(tmp_path, rows())
    stream = load(tmp_path / "0.csv", schema=made.schema, cache=tmp_path / "cache", features=OPTIONS, stream=True)
    assert stream.schema == made.data.schema
    for one, other in zip(stream.train.batches(100), made.data.train.batches(100), strict=True):
        assert torch.equal(one.batch.numeric, other.batch.numeric)
        assert torch.equal(one.batch.categorical, other.batch.categorical)


def test_chunks_do_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Made(tmp_path, rows())
    monkeypatch.setattr(gdod.data.tables.read, "_BLOCK_BYTES", 2_000)
    (tmp_path / "pieces").mkdir()
    pieces = Made(tmp_path / "pieces", rows())
    for part in whole.parts:
        for name, numbers in whole.parts[part].items():
            np.testing.assert_allclose(pieces.parts[part][name], numbers, rtol=1e-5, atol=1e-6)


def test_a_saved_encoder_gives_the_same_numbers(tmp_path: Path) -> None:
    made = Made(tmp_path, rows())
    (tmp_path / "run").mkdir()
    made.data.encoder.save(tmp_path / "run", indent=2)
    again = Encoder.load(tmp_path / "run")
    assert again.model_schema == made.data.schema
    assert again.to_json() == made.data.encoder.to_json()
    new = rows(300, seed=9)
    assert torch.equal(again.encode(new).examples.numeric, made.data.encoder.encode(new).examples.numeric)


def test_statistics_that_are_missing_or_do_not_fit(tmp_path: Path) -> None:
    made, other = Made(tmp_path, rows()), Made(tmp_path, rows(seed=1))
    content = json.loads((made.folder / "encoder.json").read_text())
    with pytest.raises(InputError, match=r"statistics.parquet is missing; expected the target statistics"):
        Encoder.from_json(content)
    with pytest.raises(InputError, match="format 99"):
        Encoder.from_json({**content, "format": 99})
    made.data.encoder.save(tmp_path)
    whole = (tmp_path / "statistics.parquet").read_bytes()
    for wrong in ((other.folder / "statistics.parquet").read_bytes(), whole[:-9], b""):
        (tmp_path / "statistics.parquet").write_bytes(wrong)
        with pytest.raises(InputError, match=r"statistics.parquet does not fit encoder.json"):
            Encoder.load(tmp_path)
    (tmp_path / "statistics.parquet").unlink()
    with pytest.raises(InputError, match=r"statistics.parquet is missing"):
        Encoder.load(tmp_path)


def test_prepared_statistics_that_are_damaged_are_made_again(tmp_path: Path) -> None:
    made = Made(tmp_path, rows())
    whole = (made.folder / "statistics.parquet").read_bytes()
    (made.folder / "statistics.parquet").unlink()
    load(tmp_path / "0.csv", schema=made.schema, cache=tmp_path / "cache", features=OPTIONS)
    assert (made.folder / "statistics.parquet").read_bytes() == whole


def test_rare_values_share_an_id_but_not_their_statistics(tmp_path: Path) -> None:
    user = rows()["user"].set(pl.Series(np.arange(1200) < 900), None).fill_null(pl.Series(np.arange(1200) // 2 + 100))
    frame = rows().with_columns(user=user, seen=user.cast(pl.String) + " x")
    columns = {**COLUMNS, "seen": "sequence"}
    split = {"by": "random", "validation": 0, "test": 0}
    made = Made(tmp_path, frame, split, FeatureOptions(rare=3, noise=True), columns)
    counts = frame["user"].value_counts().filter(pl.col("count") >= 3)
    train = made.parts["train"]
    assert ((train["user"] == 0) == ~made.raw("train")["user"].is_in(counts["user"].implode()).to_numpy()).all()
    assert made.data.schema.categorical[0].cardinality == len(counts) == 12
    assert made.data.schema.sequences[0].cardinality == 13  # with x
    rare = train["user"] == 0
    assert rare.sum() == 900
    assert len(np.unique(train["click | user"][rare])) > 2  # those of the other row with the value
    own = {**columns, "user": {"type": "categorical", "rare": 2}}
    schema = Made(tmp_path, frame, split, FeatureOptions(rare=3, noise=True), own).data.schema
    assert schema.categorical[0].cardinality == 462
    every = Made(tmp_path, frame, split, FeatureOptions(rare=10_000), columns)
    assert (every.parts["train"]["user"] == 0).all()
    assert every.data.schema.categorical[0].cardinality == 1


def with_sequences(count: int = 1500) -> pl.DataFrame:
    """Return the table with values of which some decide, some are noise, many of them rare, and some rows have none."""
    draw = np.random.default_rng(8)
    lists = [draw.choice(12, draw.integers(0, 5), replace=False) for _ in range(count)]
    good = np.array([(one < 6).mean() if len(one) else 0.5 for one in lists])
    noise = [" ".join(f"n{value}" for value in draw.integers(0, 800, draw.integers(0, 4))) for _ in range(count)]
    return rows(count).with_columns(
        click=pl.Series((draw.random(count) < 0.1 + 0.8 * good).astype(int)),
        seen=pl.Series([" ".join(map(str, one)) for one in lists]),
        noise=pl.Series(noise),
    )


SEQUENCES = {**COLUMNS, "seen": "sequence", "noise": {"type": "sequence", "longest": 2}}


def test_sequences_have_the_means_of_their_values(tmp_path: Path) -> None:
    frame = with_sequences()
    made = Made(tmp_path, frame, columns=SEQUENCES)
    assert "of 4 columns" in made.data.notes[0]
    clicks = {part: made.raw(part)["click"].to_numpy().astype(float) for part in made.parts}
    for part in made.parts:
        assert auc(made.parts[part]["click | seen"].astype(float), clicks[part]) > 0.7
        assert abs(auc(made.parts[part]["click | noise"].astype(float), clicks[part]) - 0.5) < 0.09
    naive = made.data.encoder.encode(made.raw("train")).examples.numeric
    names = [field.name for field in made.data.schema.numeric]
    assert auc(naive[:, names.index("click | noise")].numpy().astype(float), clicks["train"]) > 0.7
    assert not [name for name in names if "×" in name and ("seen" in name or "noise" in name)]
    # Worked out by hand for rows of the test part: over all training rows with the value, in the last two of a row.
    train, rate = made.raw("train"), (clicks["train"].sum() + 1) / (len(clicks["train"]) + 2)
    values = train["noise"].str.split(" ").list.tail(2).to_list()
    for at, told in enumerate(made.parts["test"]["click | noise"][:40]):
        numbers = []
        for value in made.raw("test")["noise"][at].split(" ")[-2:] if made.raw("test")["noise"][at] else []:
            with_it = [label for one, label in zip(values, clicks["train"], strict=True) for two in one if two == value]
            smooth = (sum(with_it) + 10 * rate) / (len(with_it) + 10)
            numbers.append(math.log(smooth / (1 - smooth)) - math.log(rate / (1 - rate)))
        assert told == pytest.approx(np.mean(numbers) if numbers else 0, abs=1e-5)
    off = Made(tmp_path, frame, options=OPTIONS.model_copy(update={"sequences": False}), columns=SEQUENCES)
    assert not [name for name in off.data.schema.names if name.endswith(("| seen", "| noise"))]


@pytest.mark.parametrize("split", [RANDOM, TIME, GROUP], ids=["random", "time", "group"])
def test_sequences_do_not_see_their_own_label(split: Mapping[str, object], tmp_path: Path) -> None:
    before = Made(tmp_path, with_sequences(), split, columns=SEQUENCES)
    for at in (5, 500):
        after = Made(tmp_path, flipped(with_sequences(), before.places()[at]), split, columns=SEQUENCES)
        different = differs(before, after)
        assert not different[at]
        assert different.any()
        days, users = (before.raw("train")[name].to_numpy() for name in ("day", "user"))
        hidden = {"time": days <= days[at], "group": users == users[at], "random": days < 0}[str(split["by"])]
        assert not different[hidden].any()


def test_sequences_are_predicted_from_and_chunks_do_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = FeatureOptions(rare=40, noise=True)
    made = Made(tmp_path, with_sequences(), options=options, columns=SEQUENCES)
    stored = made.data.test.examples  # type: ignore[attr-defined]
    made.data.encoder.save(tmp_path)
    again = Encoder.load(tmp_path).encode(made.raw("test")).examples
    order = stored.numeric[:, 0].argsort()
    assert torch.equal(stored.numeric[order], again.numeric)
    for one, other in zip(stored.sequences, again.sequences, strict=True):
        assert torch.equal(one[order], other)
    for one, field in zip(stored.sequences, made.data.schema.sequences, strict=True):
        assert one.max() <= field.cardinality
    assert made.data.schema.sequences[1].cardinality == 1  # all are rare to the model, and have statistics
    assert len(np.unique(made.parts["train"]["click | noise"])) > 100
    monkeypatch.setattr(gdod.data.tables.read, "_BLOCK_BYTES", 2_000)
    monkeypatch.setattr("gdod.data.preparing.target_statistics._TOGETHER", 7)
    (tmp_path / "pieces").mkdir()
    pieces = Made(tmp_path / "pieces", with_sequences(), options=options, columns=SEQUENCES)
    for part in made.parts:
        for name, numbers in made.parts[part].items():
            np.testing.assert_allclose(pieces.parts[part][name], numbers, rtol=1e-5, atol=1e-6)


OTHERS: dict[str, object] = {
    "statistics": False,
    "sequences": False,
    "repeated_numbers": False,
    "pairs": 0,
    "columns": 15,
    "noise": False,
    "prior": 3.0,
    "folds": 4,
    "keys": 7,
    "rows_per_value": 20,
    "bins": 1,
    "statistic_bins": 1,
    "rare": 300,
    "times": False,
    "missing_flags": False,
}


def test_every_option_changes_the_fingerprint_and_what_comes_out(tmp_path: Path) -> None:
    assert OTHERS.keys() == FeatureOptions.model_fields.keys()
    when = pl.datetime_range(pl.datetime(2024, 1, 1), pl.datetime(2024, 1, 26), "1h", eager=True)[:600]
    code = 2 * (pl.col("row") * 37 % 101) + pl.col("click")  # a number whose neighbours are the opposite
    with_sequences(600).with_columns(when=when, code=code).write_csv(tmp_path / "t.csv")
    schema = TableSchema(columns={**SEQUENCES, "when": "time", "code": "numeric"})
    prints, encoders, numbers = set(), set(), set()
    for options in ({}, *({name: value} for name, value in OTHERS.items())):
        features = FeatureOptions(**{"noise": True, **options})  # type: ignore[arg-type]
        folder = prepare(tmp_path / "t.csv", schema=schema, cache=tmp_path / "cache", features=features)
        prints.add(folder.name)
        encoders.add((folder / "encoder.json").read_bytes())
        numbers.add((folder / "train-00000.parquet").read_bytes() + (folder / "encoder.json").read_bytes())
    assert len(prints) == len(numbers) == len(OTHERS) + 1
    assert len(encoders) >= len(OTHERS)


def sources(made: Made) -> list[str]:
    return [name.removeprefix("rows | ") for name in made.data.schema.names if name.startswith("rows | ")]


def test_only_what_tells_of_other_rows_has_statistics(tmp_path: Path) -> None:
    draw = np.random.default_rng(6)
    liking = draw.normal(0, 1.5, 60)
    columns = {name: draw.integers(0, values, 3000) for name, values in (("shop", 60), ("noise", 60), ("single", 2000))}
    labels = {name: (liking[columns["shop"]] + draw.logistic(0, 1, 3000) > 0).astype(int) for name in ("click", "buy")}
    frame = pl.DataFrame({**columns, **labels, "row": np.arange(3000)})
    schema = {**dict.fromkeys(columns, "categorical"), "row": "numeric", **dict.fromkeys(labels, "label")}
    made = Made(tmp_path, frame, options=FeatureOptions(), columns=schema)
    assert sources(made)[0] == "shop"
    assert all("shop" in source for source in sources(made))
    every = Made(tmp_path, frame, options=FeatureOptions(noise=True), columns=schema)
    assert {"shop", "noise", "single"} < set(sources(every))
    at_random = frame.with_columns(click=draw.integers(0, 2, 3000), buy=draw.integers(0, 2, 3000))
    assert not sources(Made(tmp_path, at_random, options=FeatureOptions(), columns=schema))


def test_pairs_within_the_budget(tmp_path: Path) -> None:
    draw = np.random.default_rng(5)
    frame = rows(3000).with_columns(
        *(pl.Series(name, draw.integers(0, 4, 3000)) for name in ("a", "b", "c")), one=pl.lit("x")
    )
    columns = {**dict.fromkeys(("a", "b", "c", "one"), "categorical"), **COLUMNS}

    def chosen(**options: int) -> list[str]:
        features = FeatureOptions(**{"rows_per_value": 1000, "noise": True, **options})  # type: ignore[arg-type]
        return sources(Made(tmp_path, frame, options=features, columns=columns))

    singles = ["a", "b", "c", "user", "item"]
    assert len(chosen()) == 5 + 10
    assert chosen(pairs=1) == [*singles, "user × item"]
    assert chosen(pairs=0) == singles
    assert chosen(columns=6 * 3 + 2) == [*singles, "user × item"]
    assert chosen(columns=5 * 3) == singles
    assert chosen(rows_per_value=2000, pairs=1) == [*singles, "user × item"]
    many = {"rows_per_value": 500}  # 700 of each value of a, b and c
    assert chosen(**many, pairs=0) == ["user", "item"]
    assert len(chosen(**many)) == 2 + 7  # no pairs of a, b and c
    assert chosen(rows_per_value=1) == []
    assert len(chosen(columns=3 * 3)) == 3
    made = Made(tmp_path, frame, options=FeatureOptions(statistics=False), columns=columns)
    assert sources(made) == []
    assert "age is missing" in made.data.schema.names
    assert not (made.folder / "statistics.parquet").exists()


def test_pairs_are_chosen_by_rows_from_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a sorted table the first rows may have one label only."""
    monkeypatch.setattr("gdod.data.preparing.fit_statistics._SAMPLE_ROWS", 600)
    monkeypatch.setattr("gdod.data.preparing.fit_statistics._FEWEST_SAMPLE_ROWS", 600)
    frame = rows(3000).with_columns(noise=pl.Series(np.random.default_rng(0).integers(0, 50, 3000))).sort("click")
    options = FeatureOptions(pairs=1, noise=True)
    made = Made(tmp_path, frame, options=options, columns={**COLUMNS, "noise": "categorical"})
    assert sources(made)[3:] == ["user × item"]


def test_a_table_of_numbers_only(tmp_path: Path) -> None:
    columns = {name: kind for name, kind in COLUMNS.items() if name not in ("user", "item")}
    made = Made(tmp_path, rows(), columns=columns)
    names = [field.name for field in made.data.schema.numeric]
    assert names == ["row", "age", "age is missing"]
    again = Encoder.load(made.folder).encode(made.raw("test")).examples.numeric
    assert torch.equal(again, torch.from_numpy(np.stack([made.parts["test"][name] for name in names], 1)))


def test_flags_for_missing_numbers_can_be_left_out(tmp_path: Path) -> None:
    names = Made(tmp_path, rows(), options=FeatureOptions(missing_flags=False)).data.schema.names
    assert not [name for name in names if "is missing" in name]


def test_bins_have_as_many_training_rows_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gdod.data.preparing.bins._ROWS_PER_BIN", 100)
    made = Made(tmp_path, rows(4000), options=FeatureOptions(bins=16, statistic_bins=16))
    bins = {field.name: field.bins for field in made.data.schema.numeric}
    assert bins["age is missing"] == ()
    for name in ("row", "age", "click | user × item"):
        assert 8 <= len(bins[name]) <= 17
        numbers = made.parts["train"][name]
        assert bins[name][0] == numbers.min()
        counts = np.histogram(numbers, bins[name])[0]
        assert counts.max() < 4 * len(numbers) / 16
    assert max(map(len, bins.values())) <= 17
    assert not any(field.bins for field in Made(tmp_path, rows(), options=FeatureOptions(bins=0)).data.schema.numeric)


def test_edges_of_few_values_and_of_ties() -> None:
    def of(*values: float) -> NDArray[np.float32]:
        return np.array(values, np.float32)

    assert edges(of(1, 1, 1), 8) == ()
    assert edges(of(0, 1, 0, 1), 8) == ()
    assert edges(of(5, 1, 3, 3, 3), 8) == (1, 3, 5)  # the values themselves
    assert edges(of(*[0] * 90, *range(10)), 4) == (0, 9)  # no bin without width
    assert edges(of(0, 1, 2, 3, 4), 2) == (0, 2, 4)
    assert edges(of(0, 0.004, 0.008, 1), 8, narrowest=0.01) == (0, 1)
    close = np.nextafter(np.float32(1), np.float32(2), dtype=np.float32)
    rising = edges(of(*[1] * 20, *[close] * 20, *np.linspace(2, 3, 40)), 8)  # one quantile lies between the two
    assert (np.diff(np.array(rising, np.float32)) > 0).all()


def test_common_values_leave_the_bins_to_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    money = np.array([*[0] * 900, *range(100, 200)], np.float32)  # a quantile of them all is nearly always 0
    assert len(edges(money, 8)) == 2
    monkeypatch.setattr("gdod.data.preparing.bins._ROWS_PER_BIN", 10)
    cut = edges_beside_common(money, 8)
    assert cut[:2] == (0, 100)
    assert cut[-1] == 199
    assert len(cut) == 9
    counts = np.histogram(money[money > 0], cut[1:])[0]
    assert counts.max() - counts.min() <= 2
    assert edges_beside_common(money, 2) == (0, 100, 199)
    monkeypatch.setattr("gdod.data.preparing.bins._ROWS_PER_BIN", 40)
    assert len(edges_beside_common(money, 8)) == 4  # 0, and two bins of 50 rows
    spread = np.arange(1000, dtype=np.float32)
    assert edges_beside_common(spread, 8) == edges(spread, 8)
    two = np.array([0, 0, 0, 5, 5, 5, 1, 2, 3], np.float32)  # both at the outside
    assert edges_beside_common(two, 4)[0] == 0
    assert edges_beside_common(two, 4)[-1] == 5


def test_a_run_keeps_the_statistics_and_predicts_with_them(tmp_path: Path) -> None:
    from tests.training import tiny

    from gdod.training import load_run, train

    made = Made(tmp_path, rows())
    train(tiny.config(steps=2), tmp_path / "run", dataset=made.data)
    assert (tmp_path / "run" / "statistics.parquet").exists()
    loaded, test = load_run(tmp_path / "run"), made.raw("test")
    added = loaded.encoder.added
    assert added is not None
    nothing = {source: replace(table, numbers=table.numbers * 0) for source, table in added.statistics.items()}
    without = replace(loaded, encoder=replace(loaded.encoder, added=replace(added, statistics=nothing)))
    assert not loaded.predict(test).equals(without.predict(test))
    again = replace(loaded, encoder=made.data.encoder)
    assert loaded.predict(test).equals(again.predict(test))
    (tmp_path / "run" / "statistics.parquet").unlink()
    with pytest.raises(InputError, match=r"statistics.parquet is missing"):
        load_run(tmp_path / "run")


def test_rare_values_are_not_said_to_be_unseen(tmp_path: Path) -> None:
    from tests.training import tiny

    from gdod.training import load_run, train
    from gdod.training.predict import predict_file

    made = Made(tmp_path, rows(), options=FeatureOptions(rare=10_000))
    train(tiny.config(steps=1), tmp_path / "run", dataset=made.data)
    made.raw("test").with_columns(user=pl.Series([1, 99] * 120), item=pl.lit("new")).write_csv(tmp_path / "new.csv")
    told = predict_file(load_run(tmp_path / "run"), tmp_path / "new.csv", tmp_path / "out.csv")
    unseen = [note for note in told.notes if "has seen no value" in note]
    assert ["'item'" in note for note in unseen] == [True]


def test_few_rows_have_few_bins_and_statistics_their_own_number(tmp_path: Path) -> None:
    made = Made(tmp_path, rows(4000), options=FeatureOptions(bins=64, statistic_bins=3))
    count = {field.name: len(field.bins) - 1 for field in made.data.schema.numeric if field.bins}
    assert count["row"] == len(made.data.train) // 250
    assert max(bins for name, bins in count.items() if " | " in name) == 3
    none = Made(tmp_path, rows(400), options=FeatureOptions(statistic_bins=0)).data.schema.numeric
    assert {bool(field.bins) for field in none if " | " in field.name} == {False}


def test_statistics_that_are_packed_beyond_all_measure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of zeros take no room in Parquet, and all the room of the machine once they are read."""
    Made(tmp_path, rows()).data.encoder.save(tmp_path)
    content = json.loads((tmp_path / "encoder.json").read_text())
    width, count = len(content["added"]["targets"]) + 1, 500_000
    numbers = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(count * width, np.float32)), width)
    columns = {"source": pa.array(np.zeros(count, np.int32)), "key": pa.array(np.zeros(count, np.int64))}
    pq.write_table(pa.table({**columns, "numbers": numbers}), tmp_path / "statistics.parquet", compression="zstd")
    content["added"]["sources"][0]["keys"] = count
    content["added"]["sources"] = content["added"]["sources"][:1]
    content["added"]["checksum"] = digest(tmp_path / "statistics.parquet")
    (tmp_path / "encoder.json").write_text(json.dumps(content))
    monkeypatch.setattr("gdod.data.preparing.added_fields._SMALL", 1 << 20)  # a test's measure
    with pytest.raises(InputError, match=r"statistics.parquet is packed tighter than target statistics can be"):
        Encoder.load(tmp_path)
