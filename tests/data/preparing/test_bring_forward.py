"""Encoders brought forward to a new table: against brute force over both days, and without a row's own label."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray

from gdod import InputError
from gdod.data import Dataset, Encoder, FeatureOptions, TableSchema, load
from gdod.data.preparing.bring_forward import Previous, growth
from gdod.data.preparing.counts import Counts, StoredCounts
from gdod.data.preparing.target_statistics import Fitting, Folds, Past, Source, Target, keys_of

OPTIONS = FeatureOptions(folds=4, rare=5, prior=3.0, noise=True)
COLUMNS: dict[str, Any] = {
    "user": "categorical",
    "item": "categorical",
    "seen": {"type": "sequence", "longest": 3},
    "age": "numeric",
    "w": "weight",
    "click": "label",
    "size": {"type": "label", "kind": "multiclass", "classes": ["S", "M", "L"]},
    "price": {"type": "label", "kind": "regression"},
}
SPLITS = {
    "random": {"by": "random", "validation": 0.2, "test": 0},
    "time": {"by": "time", "column": "day", "validation": 0.2, "test": 0},
    "group": {"by": "group", "column": "user", "validation": 0.2, "test": 0},
}


def day(number: int, rows: int = 300, offset: int = 4) -> pl.DataFrame:
    """Return the rows of a day; with each day some users, items and seen values are new."""
    draw = np.random.default_rng([number, 17])
    user, item = (draw.integers(0, size, rows) + offset * number for size in (30, 12))
    click = (draw.random(rows) < 0.2 + 0.6 * ((user + item) % 2)).astype(int)
    return pl.DataFrame(
        {
            "user": [f"u{one}" for one in user],
            "item": pl.Series([f"i{one}" for one in item]).set(pl.Series(draw.random(rows) < 0.05), None),
            "seen": [" ".join(f"s{one + number}" for one in draw.integers(0, 9, draw.integers(0, 4))) for _ in user],
            "age": draw.normal(40 + 5 * number, 12, rows).round(1),
            "w": draw.uniform(0.5, 2, rows).round(2),
            "day": np.sort(draw.integers(0, 100, rows)) + 100 * number,
            "click": click,
            "size": [("S", "M", "L")[one] for one in draw.integers(0, 3, rows)],
            "price": (draw.permutation(rows) + 1000 * number) / 8,  # no two are the same
        }
    )


def schema(split: str = "random", **columns: Any) -> TableSchema:
    return TableSchema(columns={**COLUMNS, **columns}, split=SPLITS[split])


def first(folder: Path, split: str = "random", options: FeatureOptions | None = OPTIONS, **columns: Any) -> Dataset:
    return load(day(0), schema=schema(split, **columns), cache=folder, features=options)


def then(
    before: Dataset, frame: pl.DataFrame, folder: Path, half_life: float = 2.0, options: FeatureOptions | None = OPTIONS
) -> Dataset:
    return load(frame, cache=folder, features=options, previous=Previous(before.encoder, half_life))


def read(data: Dataset) -> Counts:
    assert isinstance(data.encoder.counts, StoredCounts)
    return data.encoder.counts.read()


def training_rows(frame: pl.DataFrame, data: Dataset) -> pl.DataFrame:
    """Return the rows of a day that were trained on, told by their prices in the training part."""
    prices = data.train.examples.labels[2].numpy()  # type: ignore[attr-defined]
    return frame.filter(pl.col("price").cast(pl.Float32).is_in(pl.Series(prices).implode()))


def brute_force(days: list[pl.DataFrame], weights: list[float], means: float, values: tuple[str, ...]) -> Any:
    """Return rows, labelled weight and click sums of some values of the columns, each day by its factor."""
    columns = ("user", "item")[: len(values)] if len(values) > 1 else ("user",)
    rows = labelled = sums = 0.0
    for frame, factor in zip(days, weights, strict=True):
        same = frame.filter(*(pl.col(name) == value for name, value in zip(columns, values, strict=True)))
        rows += factor * len(same)
        labelled += factor * float(same["w"].sum()) / means
        sums += factor * float((same["w"] * same["click"]).sum()) / means
    return rows, labelled, sums


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("keys", [1_000_000, 40], ids=["all keys", "hashed pairs"])
def test_counts_are_those_of_all_days_by_their_age(split: str, keys: int, tmp_path: Path) -> None:
    options = OPTIONS.model_copy(update={"keys": keys})
    frames = [day(number) for number in range(3)]
    data = [first(tmp_path, split, options)]
    for frame in frames[1:]:
        data.append(then(data[-1], frame, tmp_path, half_life=2.0, options=options))
    rows = [training_rows(frame, one) for frame, one in zip(frames, data, strict=True)]
    keep = 0.5**0.5
    counts, encoder = read(data[2]), data[2].encoder
    assert counts.rows == sum(map(len, rows)) == sum(len(one.train) for one in data)
    assert counts.updates == 2
    at = [one.name for one in encoder.added.targets].index("click")  # type: ignore[union-attr]
    width = len(counts.targets)
    pairs = rows[0].vstack(rows[2]).select("user", "item").drop_nulls().unique(maintain_order=True)[:20].rows()
    for user, item in pairs:
        ids = {
            name: encoder.vocabularies[name].ids(pl.Series([value])) for name, value in (("user", user), ("item", item))
        }
        ids64 = {name: one.astype(np.int64) for name, one in ids.items()}
        expected = brute_force(rows, [keep**2, keep, 1], encoder.weight, (user,))
        np.testing.assert_allclose(counts.columns["user"].known[ids["user"][0] - 1], expected[0])
        for source, values in ((("user",), (user,)), (("user", "item"), (user, item))):
            sums = counts.past.sums.get(source)
            if sums is None:  # a group's column tells nothing of other groups
                assert split == "group"
                continue
            hashed = sums.buckets is not None
            assert hashed == (keys == 40 and len(source) > 1)
            if hashed:
                continue  # several pairs share a bucket; see below
            place = np.searchsorted(sums.keys, keys_of(source, ids64, encoder.largest_ids))
            got = sums.sums[place[0]]
            np.testing.assert_allclose(
                got[[0, 1 + at, 1 + width + at]], brute_force(rows, [keep**2, keep, 1], encoder.weight, values)
            )
    base = counts.past.base[:, at]
    expected_base = brute_force(
        [one.with_columns(user=pl.lit("x")) for one in rows], [keep**2, keep, 1], encoder.weight, ("x",)
    )
    np.testing.assert_allclose(base[:2], expected_base[1:])
    for sums in counts.past.sums.values():  # whatever buckets they share, no row is lost or counted twice
        if sums.buckets is not None:
            np.testing.assert_allclose(
                sums.sums[:, 0].sum(), sum(keep ** (2 - age) * len(one) for age, one in enumerate(rows))
            )


def test_statistics_with_a_past_are_those_of_all_rows_with_weights(tmp_path: Path) -> None:
    """Also of pairs in buckets: the same key must fall into the same bucket before and after columns grow."""
    draw = np.random.default_rng(3)
    sources: list[Source] = [("a",), ("a", "b")]
    small, large = {"a": 6, "b": 5}, {"a": 9, "b": 8}
    old = {"a": draw.integers(0, 6, 200), "b": draw.integers(0, 5, 200)}
    new = {"a": draw.integers(0, 9, 300), "b": draw.integers(0, 8, 300)}
    labels = draw.integers(0, 2, (500, 1)).astype(float)
    folds, keep = draw.integers(1, 4, 300), 0.7
    for limit in (10**6, 16):
        one = Fitting(sources, small, [Target("y")], Folds(3), limit=limit)
        one.add(old, np.zeros(200, np.int64), labels[:200])
        sums = {
            source: each.with_sizes(small[source[-1]], large[source[-1]]) if len(source) > 1 else each
            for source, each in one.sums().items()
        }
        aged = {source: type(each)(each.keys, keep * each.sums, each.buckets) for source, each in sums.items()}
        two = Fitting(sources, large, [Target("y")], Folds(4), limit=limit, past=Past(keep * one.base, aged))
        two.add(new, folds, labels[200:])
        # The same from nothing: the old rows with weight and count `keep`, which only sums of sums can say.
        whole = Fitting(sources, large, [Target("y")], Folds(4), limit=limit)
        whole.add(old, np.zeros(200, np.int64), labels[:200], np.full(200, keep))
        whole.add(new, folds, labels[200:])
        for source in sources:
            got, wanted = two.tables()[source], whole.tables()[source]
            assert got.buckets == wanted.buckets
            assert (got.buckets is not None) == (limit == 16 and len(source) > 1)
            np.testing.assert_array_equal(got.keys, wanted.keys)
            np.testing.assert_allclose(got.numbers[:, 0], wanted.numbers[:, 0], atol=1e-6)
            keys = two.training_keys(source, new, folds)
            got_rows, wanted_rows = (each.training_tables()[source].look_up(keys) for each in (two, whole))
            np.testing.assert_allclose(got_rows[:, 0], wanted_rows[:, 0], atol=1e-6)
            np.testing.assert_array_equal(got.of(source, new, large), got.of(source, new, {**large, "b": 8}))


def test_ids_keep_their_place_and_those_with_enough_rows_get_a_vector(tmp_path: Path) -> None:
    before = first(tmp_path)
    after = then(before, day(1), tmp_path)
    again = then(after, day(2), tmp_path)
    for name, vocabulary in before.encoder.vocabularies.items():
        for later in (after, again):
            assert later.encoder.vocabularies[name].values[: len(vocabulary)].equals(vocabulary.values)
    for old, new in ((before, after), (after, again)):
        counts = read(new).columns
        for name in ("user", "item", "seen"):
            values = new.encoder.vocabularies[name].values
            added, was = new.encoder.added, old.encoder.added
            assert added is not None
            assert was is not None
            ids = np.arange(len(values) + 1, dtype=np.int32)
            model = added.model_ids(name, ids)
            earlier = was.model_ids(name, ids[: len(old.encoder.vocabularies[name]) + 1])
            kept = earlier > 0
            np.testing.assert_array_equal(model[: len(earlier)][kept], earlier[kept])  # a vector stays a value's own
            np.testing.assert_array_equal(
                model[1:] > 0, (counts[name].known >= 5) | np.isin(ids[1:], ids[: len(earlier)][kept])
            )
            assert sorted(model[model > 0]) == list(range(1, added.kept[name] + 1))
    rare = read(before).columns["user"].known
    promoted = after.encoder.added.promoted["user"]  # type: ignore[union-attr]
    assert any(one <= len(rare) and rare[one - 1] < 5 for one in promoted)  # it was too rare, and is not any more
    assert any(one > len(rare) for one in promoted)  # it is new
    grown = growth(before.encoder, after.encoder)["user"]
    assert (
        grown["values_added"] == len(after.encoder.vocabularies["user"]) - len(before.encoder.vocabularies["user"]) > 0
    )
    assert grown["vectors_added"] == len(promoted)
    loaded = Encoder.from_json(
        json.loads(json.dumps(again.encoder.to_json() | {"added": {**again.encoder.to_json()["added"], "sources": []}}))
    )
    assert loaded.added is not None
    assert again.encoder.added is not None
    assert loaded.added.promoted == again.encoder.added.promoted


def test_what_was_fitted_otherwise_stays(tmp_path: Path) -> None:
    before = first(tmp_path)
    after = then(before, day(1), tmp_path).encoder
    old = before.encoder
    assert (after.scalings, after.classes, after.longest, after.weight) == (
        old.scalings,
        old.classes,
        old.longest,
        old.weight,
    )
    assert after.added is not None
    assert old.added is not None
    assert (after.added.bins, after.added.flags, after.added.targets) == (
        old.added.bins,
        old.added.flags,
        old.added.targets,
    )
    assert list(after.added.statistics) == list(old.added.statistics)
    assert after.numeric == old.numeric


@pytest.mark.parametrize("split", SPLITS)
def test_a_rows_own_label_never_changes_its_own_features(split: str, tmp_path: Path) -> None:
    before = first(tmp_path, split)
    frame = day(1)
    whole = then(before, frame, tmp_path)
    base = features(whole)
    for row in (3, 150, 290):
        changed = frame.with_columns(
            click=pl.when(pl.int_range(len(frame)) == row).then(1 - pl.col("click")).otherwise("click"),
            size=pl.when(pl.int_range(len(frame)) == row)
            .then(pl.lit("S" if frame["size"][row] != "S" else "L"))
            .otherwise("size"),
        )
        other = then(before, changed, tmp_path)
        price = np.float32(frame["price"][row])
        if price not in base:
            continue  # a validation row
        np.testing.assert_array_equal(features(other)[price], base[price])
        others = [key for key in base if not np.array_equal(features(other)[key], base[key])]
        assert others or split == "time"  # rows of other folds do see it


def features(data: Dataset) -> dict[np.float32, NDArray[np.float32]]:
    """Return the numbers of each training row by its price, which is its own."""
    examples = data.train.examples  # type: ignore[attr-defined]
    return dict(zip(examples.labels[2].numpy(), examples.numeric.numpy(), strict=True))


@pytest.mark.parametrize("split", ["random", "time"])
def test_training_rows_see_all_of_the_past_and_other_folds(split: str, tmp_path: Path) -> None:
    before = first(tmp_path, split)
    after = then(before, day(1), tmp_path)
    keep, at = 0.5**0.5, after.encoder.numeric.index("rows | user")
    past, today = training_rows(day(0), before), training_rows(day(1), after)
    seen = features(after)
    more = 0
    for row in today.iter_rows(named=True):
        counted = np.expm1(5 * float(seen[np.float32(row["price"])][at]))
        of_past = keep * len(past.filter(pl.col("user") == row["user"]))
        of_today = round(counted - of_past, 3)
        assert 0 <= of_today == round(of_today) < len(today.filter(pl.col("user") == row["user"]))  # never itself
        more += of_today > 0
    assert more > len(today) / 2


def test_rows_that_are_not_trained_on_see_all_days(tmp_path: Path) -> None:
    before = first(tmp_path)
    after = then(before, day(1), tmp_path)
    encoder = after.encoder
    table = encoder.added.statistics[("user",)]  # type: ignore[union-attr]
    user = day(1)["user"][0]
    name = "rows | user"
    at = encoder.numeric.index(name)
    row = encoder.encode(day(1)[:1], labels=False).examples.numeric[0, at]
    keep = 0.5**0.5
    days = [training_rows(day(0), before), training_rows(day(1), after)]
    expected = np.log1p(brute_force(days, [keep, 1], encoder.weight, (user,))[0]) / 5
    np.testing.assert_allclose(row, expected, rtol=1e-5)
    assert len(table.keys) > len(before.encoder.added.statistics[("user",)].keys)  # type: ignore[union-attr]


def test_without_options_only_values_with_enough_rows_have_an_id(tmp_path: Path) -> None:
    columns: dict[str, Any] = {"user": {"type": "categorical", "rare": 12}}
    before = first(tmp_path, options=None, **columns)
    after = then(before, day(1, offset=0), tmp_path, half_life=1e18, options=None)
    counts = read(after).columns["user"]
    assert (counts.known >= 12 - 1e-6).all()
    assert (counts.waiting["count"] < 12).all()
    both = pl.concat([training_rows(day(0), before), training_rows(day(1, offset=0), after)])["user"].value_counts()
    enough = both.filter(pl.col("count") >= 12)["user"]
    assert set(after.encoder.vocabularies["user"].values) == set(enough)
    assert len(enough) > len(before.encoder.vocabularies["user"])
    assert after.encoder.added is None


def test_the_cache_knows_the_encoder_that_is_brought_forward(tmp_path: Path) -> None:
    one, other = first(tmp_path), load(day(7), schema=schema(), cache=tmp_path, features=OPTIONS)
    prints = {
        then(one, day(1), tmp_path).fingerprint,
        then(other, day(1), tmp_path).fingerprint,
        then(one, day(1), tmp_path, half_life=3).fingerprint,
        load(day(1), schema=schema(), cache=tmp_path, features=OPTIONS).fingerprint,
    }
    assert len(prints) == 4
    assert then(one, day(1), tmp_path).fingerprint in prints


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda frame: frame.drop("item"), "no column 'item'"),
        (lambda frame: frame.drop("price"), "no column 'price'"),
        (lambda frame: frame.with_columns(age=pl.lit("old")), "'age'.*'old'"),
        (lambda frame: frame.with_columns(size=pl.lit("XL")), "'XL'.*the classes S, M, L.*An update keeps labels"),
        (lambda frame: frame.with_columns(click=pl.lit("ja")), "'click'.*'ja'"),
        (lambda frame: day(0), "was trained on already"),
    ],
    ids=["column", "label", "type", "class", "words", "the same table"],
)
def test_tables_that_do_not_fit_are_refused(change: Any, said: str, tmp_path: Path) -> None:
    before = first(tmp_path)
    with pytest.raises(InputError, match=said):
        then(before, change(day(1)), tmp_path)


def test_other_words_for_a_positive_label_are_refused(tmp_path: Path) -> None:
    words: dict[str, Any] = {"click": {"type": "label", "positive": ["yes"]}}

    def told(number: int, *names: str) -> pl.DataFrame:
        return day(number).with_columns(click=pl.col("click").replace_strict({0: names[0], 1: names[1]}))

    before = load(told(0, "no", "yes"), schema=schema(**words), cache=tmp_path, features=OPTIONS)
    assert read(then(before, told(1, "no", "yes"), tmp_path)).updates == 1
    with pytest.raises(InputError, match=r"'click' is never 'yes'.*'ja', 'nein'"):
        then(before, told(1, "nein", "ja"), tmp_path)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"user": "numeric"}, "type of 'user' was 'categorical' and is 'numeric'"),
        ({"more": "label"}, "the column 'more' is new"),
        ({"click": {"type": "label", "positive": ["yes"]}}, "positive of 'click' was None and is"),
    ],
)
def test_another_schema_is_refused(columns: dict[str, Any], said: str, tmp_path: Path) -> None:
    before = first(tmp_path)
    with pytest.raises(InputError, match=said):
        load(day(1), schema=schema(**columns), cache=tmp_path, features=OPTIONS, previous=Previous(before.encoder, 2.0))
    same = Previous(before.encoder, 2.0)
    assert len(load(day(1), schema=schema(), cache=tmp_path, features=OPTIONS, previous=same).train)


def test_damaged_counts_are_refused(tmp_path: Path) -> None:
    before = first(tmp_path / "c")
    assert isinstance(before.encoder.counts, StoredCounts)
    path = before.encoder.counts.path
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(InputError, match="damaged or was changed"):
        then(before, day(1), tmp_path / "c")
    path.unlink()
    with pytest.raises(InputError, match="is missing"):
        then(before, day(1), tmp_path / "c")
