"""Target statistics: by their formula, without a row's own label, whatever the folds, weights and gaps are."""

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from gdod.data.preparing.target_statistics import Fitting, Folds, Source, Target, hashed, keys_of

Array = NDArray[np.float64]
RATE, MEAN = Target("buy"), Target("price", "mean")
SOURCES: list[Source] = [("user",), ("item",), ("user", "item")]
SIZES = {"user": 9, "item": 4}


class Rows:
    """Random training rows: ids, folds, labels of two targets with gaps, weights."""

    def __init__(self, count: int = 400, seed: int = 0, folds: int = 5) -> None:
        draw = np.random.default_rng(seed)
        self.ids = {name: draw.integers(0, size + 1, count) for name, size in SIZES.items()}
        self.folds = draw.integers(0, folds, count)
        self.labels = np.stack([(draw.random(count) < 0.3) * 1.0, draw.normal(5, 2, count)], 1)
        self.labels[draw.random((count, 2)) < 0.2] = np.nan
        self.weights = draw.random(count) + 0.5

    def fit(self, in_time: bool = False, limit: int = 10**6, chunk: int = 130) -> Fitting:
        fitting = Fitting(SOURCES, SIZES, [RATE, MEAN], Folds(5, in_time), prior=3.0, limit=limit)
        for first in range(0, len(self.folds), chunk):
            part = slice(first, first + chunk)
            ids = {name: values[part] for name, values in self.ids.items()}
            fitting.add(ids, self.folds[part], self.labels[part], self.weights[part])
        return fitting

    def training_numbers(self, fitting: Fitting, source: Source) -> Array:
        table = fitting.training_tables()[source]
        return table.look_up(fitting.training_keys(source, self.ids, self.folds)).astype(np.float64)


def by_formula(rows: Rows, seen: NDArray[np.bool_], same: NDArray[np.bool_]) -> list[float]:
    """Return the three numbers of a value from the rows that may be seen and those that have the value."""
    numbers = []
    for at in range(2):
        there = seen & ~np.isnan(rows.labels[:, at])
        y, w = np.where(there, np.nan_to_num(rows.labels[:, at]), 0), rows.weights * there
        mean = (w @ y + 1) / (w.sum() + 2) if at == 0 else w @ y / max(w.sum(), 1e-300)
        mine = w * same
        smooth = (mine @ y + 3.0 * mean) / (mine.sum() + 3.0)
        if at == 0:
            numbers.append(math.log(smooth / (1 - smooth)) - math.log(mean / (1 - mean)))
        else:
            spread = math.sqrt(max(w @ y**2 / max(w.sum(), 1e-300) - mean**2, 0)) or 1.0
            numbers.append((smooth - mean) / spread)
    return [*numbers, math.log1p((seen & same).sum())]


@pytest.mark.parametrize("in_time", [False, True], ids=["other folds", "earlier folds"])
@pytest.mark.parametrize("source", SOURCES, ids="-".join)
def test_by_the_formula(source: Source, in_time: bool) -> None:
    rows = Rows()
    fitting, keys = rows.fit(in_time), keys_of(source, rows.ids, SIZES)
    training, table = rows.training_numbers(fitting, source), fitting.tables()[source]
    everywhere = np.ones(len(keys), bool)
    for at in range(0, len(keys), 17):
        seen = rows.folds < rows.folds[at] if in_time else rows.folds != rows.folds[at]
        same = keys == keys[at]
        np.testing.assert_allclose(training[at], by_formula(rows, seen, same), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(
            table.look_up(keys[at : at + 1])[0], by_formula(rows, everywhere, same), rtol=1e-5, atol=1e-6
        )


@pytest.mark.parametrize("in_time", [False, True], ids=["other folds", "earlier folds"])
def test_a_rows_own_label_changes_none_of_its_numbers(in_time: bool) -> None:
    rows = Rows()
    before = {source: rows.training_numbers(rows.fit(in_time), source) for source in SOURCES}
    for at in range(0, 400, 23):
        kept = rows.labels[at].copy()
        rows.labels[at] = [0.0 if kept[0] == 1 else 1.0, 1e6]
        for source in SOURCES:
            after = rows.training_numbers(rows.fit(in_time), source)
            assert (after[at] == before[source][at]).all()
            if not in_time or rows.folds[at] < 4:  # else nobody comes later
                assert (after != before[source]).any()  # others with the same value do see it
        rows.labels[at] = kept


def test_in_time_a_later_row_changes_no_earlier_one() -> None:
    rows = Rows()
    before = {source: rows.training_numbers(rows.fit(True), source) for source in SOURCES}
    late = rows.folds >= 3
    rows.labels[late] = np.where(np.isnan(rows.labels[late]), 1.0, np.nan)
    rows.ids["user"][late] = 0
    for source in SOURCES:
        after = rows.training_numbers(rows.fit(True), source)
        assert (after[rows.folds <= 3] == before[source][rows.folds <= 3])[~late[rows.folds <= 3]].all()
        assert (before[source][rows.folds == 0] == 0).all()  # nothing lies before the first fold


def test_how_rows_come_in_chunks_does_not_matter() -> None:
    rows = Rows()
    for source in SOURCES:
        whole, pieces = (rows.training_numbers(rows.fit(chunk=chunk), source) for chunk in (400, 7))
        np.testing.assert_allclose(whole, pieces, rtol=1e-6, atol=1e-7)


def test_values_that_were_not_seen_say_nothing() -> None:
    table = Rows().fit().tables()[("user",)]
    assert (table.look_up(np.array([77, 1000])) == 0).all()
    nothing = Fitting([("user",)], SIZES, [RATE], Folds()).tables()[("user",)]
    assert nothing.look_up(np.array([1])).tolist() == [[0.0, 0.0]]


def noise(count: int, values: int, seed: int = 0) -> tuple[dict[str, NDArray[np.int64]], NDArray[np.int64], Array]:
    draw = np.random.default_rng(seed)
    ids = {"noise": draw.integers(1, values + 1, count), "signal": draw.integers(1, 11, count)}
    labels = (draw.random(count) < 0.1 + 0.05 * ids["signal"]).astype(float)[:, None]
    return ids, draw.integers(0, 10, count), labels


def auc(scores: Array, labels: Array) -> float:
    order = np.argsort(np.argsort(scores + 1e-9 * np.random.default_rng(0).random(len(scores))))
    positives = labels > 0
    return float((order[positives].mean() - (positives.sum() - 1) / 2) / (~positives).sum())


def test_noise_gains_nothing_where_the_naive_statistic_would() -> None:
    ids, folds, labels = noise(20_000, 5_000)
    sizes = {"noise": 5_000, "signal": 10}
    fitting = Fitting([("noise",), ("signal",)], sizes, [RATE], Folds(), prior=10.0)
    fitting.add(ids, folds, labels)
    gains = fitting.gains()
    assert gains[("noise",)][0] < 0.001
    assert gains[("signal",)][0] > 0.05
    out_of_fold = fitting.training_tables()[("noise",)].look_up(fitting.training_keys(("noise",), ids, folds))[:, 0]
    in_fold = fitting.tables()[("noise",)].look_up(ids["noise"])[:, 0]  # a row's own label among them
    assert abs(auc(out_of_fold.astype(float), labels[:, 0]) - 0.5) < 0.02
    assert auc(in_fold.astype(float), labels[:, 0]) > 0.75


def test_the_gain_of_a_mean_is_its_share_of_the_squared_error() -> None:
    draw = np.random.default_rng(0)
    ids = {"signal": draw.integers(1, 6, 10_000), "noise": draw.integers(1, 2_000, 10_000)}
    labels = (10.0 * ids["signal"] + draw.normal(0, 10, 10_000))[:, None]
    fitting = Fitting([("signal",), ("noise",)], {"signal": 5, "noise": 2_000}, [MEAN], Folds())
    fitting.add(ids, draw.integers(0, 10, 10_000), labels)
    gains = fitting.gains()
    assert gains[("signal",)][0] == pytest.approx(2 / 3, abs=0.02)  # variance 200 of 300
    assert gains[("noise",)][0] < 0.002


def test_too_many_keys_share_buckets_at_little_cost() -> None:
    """Half as many buckets as keys: what the statistic explains falls by less than a third."""
    draw = np.random.default_rng(0)
    effect = draw.normal(0, 1.5, 4_001)
    ids = {"user": draw.integers(1, 4_001, 100_000)}
    labels = (draw.random(100_000) < 1 / (1 + np.exp(-effect[ids["user"]]))).astype(float)[:, None]
    folds = draw.integers(0, 10, 100_000)
    gains = []
    for limit in (10_000, 2_000):
        fitting = Fitting([("user",)], {"user": 4_000}, [RATE], Folds(), limit=limit)
        for first in range(0, 100_000, 30_000):
            part = slice(first, first + 30_000)
            fitting.add({"user": ids["user"][part]}, folds[part], labels[part])
        table = fitting.tables()[("user",)]
        assert (table.buckets is None) == (limit == 10_000)
        assert len(table.keys) <= limit
        gains.append(fitting.gains()[("user",)][0])
    assert gains[0] > gains[1] > 0.33 * gains[0]


def test_counts_stay_within_their_memory() -> None:
    """The sources with most keys get fewer buckets; a row's own label still changes none of its numbers."""
    draw = np.random.default_rng(0)
    ids = {"user": draw.integers(1, 50_001, 250_000), "item": draw.integers(1, 11, 250_000)}
    folds, labels = draw.integers(0, 5, 250_000), (draw.random((250_000, 1)) < 0.3).astype(float)
    sources: list[Source] = [("user",), ("item",)]

    def numbers() -> dict[Source, NDArray[np.float32]]:
        fitting = Fitting(sources, {"user": 50_000, "item": 10}, [RATE], Folds(5), limit=40_000, bytes=40_000 * 32)
        for first in range(0, 250_000, 30_000):
            part = slice(first, first + 30_000)
            fitting.add({name: values[part] for name, values in ids.items()}, folds[part], labels[part])
        tables, training = fitting.tables(), fitting.training_tables()
        assert sum(len(table.keys) for table in training.values()) <= 40_000
        assert tables[("item",)].buckets is None
        assert tables[("user",)].buckets == 5_000
        buckets = hashed(ids["user"], 5_000)
        rows = np.bincount(buckets)[buckets]  # with the same bucket as each row, however it came about
        np.testing.assert_allclose(tables[("user",)].look_up(ids["user"])[:, 1], np.log1p(rows), rtol=1e-6)
        return {one: training[one].look_up(fitting.training_keys(one, ids, folds)) for one in sources}

    before = numbers()
    labels[77] = 1 - labels[77]
    after = numbers()
    for source in sources:
        assert (before[source][77] == after[source][77]).all()
        assert (before[source] != after[source]).any()


def test_hashes_are_the_same_everywhere() -> None:
    assert hashed(np.array([0, 1, 2, 10**12]), 1_000).tolist() == [0, 789, 730, 471]


@pytest.mark.parametrize("scale", [1e-100, 1e100, -1e3])
def test_the_unit_of_a_number_does_not_matter(scale: float) -> None:
    plain, scaled = Rows(), Rows()
    scaled.labels[:, 1] *= scale
    for source in SOURCES:
        one, other = (rows.training_numbers(rows.fit(), source)[:, 1] for rows in (plain, scaled))
        np.testing.assert_allclose(other, one * np.sign(scale), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "labels", [[1e308, -1e308], [1e200, 1e200 * (1 + 1e-9)], [1.7e9, 1.7e9 + 1e-6], [3e150, 3e150]]
)
def test_labels_that_no_square_can_hold_or_tell_apart(labels: list[float]) -> None:
    rows = Rows()
    rows.labels[:, 1] = np.resize(labels, len(rows.labels))
    for in_time in (False, True):
        fitting = rows.fit(in_time)
        for source in SOURCES:
            numbers = rows.training_numbers(fitting, source)
            assert np.isfinite(numbers).all()
            assert np.abs(numbers).max() < math.sqrt(len(numbers))
            assert np.isfinite(fitting.gains()[source]).all()
