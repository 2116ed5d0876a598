"""Statistics over seeds, against scipy and against figures worked out by hand."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import gdod
from gdod.statistics import average_ranks, delta_m, holm, paired_difference, summarise

NAN = float("nan")
results = st.lists(
    st.tuples(st.floats(0.5, 0.95), st.floats(0.5, 0.95)).map(lambda pair: (round(pair[0], 4), round(pair[1], 4))),
    min_size=2,
    max_size=8,
).filter(lambda pairs: len({round(a - b, 8) for a, b in pairs}) > 1)


@given(results, st.sampled_from([0.8, 0.95, 0.99]))
def test_paired_difference_is_scipys(pairs: list[tuple[float, float]], confidence: float) -> None:
    first, second = [a for a, _ in pairs], [b for _, b in pairs]
    expected = stats.ttest_rel(first, second)
    interval = expected.confidence_interval(confidence)
    difference = paired_difference(dict(enumerate(first)), dict(enumerate(second)), confidence=confidence)
    assert difference.p == pytest.approx(expected.pvalue, rel=1e-9)
    assert (difference.low, difference.high) == pytest.approx((interval.low, interval.high), rel=1e-9)
    assert difference.note is None


def test_by_hand() -> None:
    difference = paired_difference({0: 2.0, 1: 4.0, 2: 6.0}, {0: 1.0, 1: 2.0, 2: 3.0})  # 1, 2, 3
    assert (difference.n, difference.mean, difference.sd) == (3, 2.0, 1.0)
    reach = 4.302652729911275 / math.sqrt(3)
    assert (difference.low, difference.high) == pytest.approx((2 - reach, 2 + reach))


def test_only_common_seeds_count() -> None:
    values = {0: 0.7, 1: 0.8, 2: 0.75, 3: None, 4: NAN, 5: 0.1}
    baseline = {0: 0.6, 1: 0.6, 2: 0.6, 3: 0.1, 4: 0.1, 6: 0.9}
    difference = paired_difference(values, baseline)
    assert difference.n == 3
    assert difference.mean == pytest.approx(0.15)


def test_one_seed_has_no_interval_and_says_so() -> None:
    difference = paired_difference({0: 0.7}, {0: 0.6, 1: 0.5})
    assert (difference.n, difference.sd, difference.low, difference.high, difference.p) == (1, None, None, None, None)
    assert difference.mean == pytest.approx(0.1)
    assert "one common seed" in str(difference.note)


def test_no_common_seed() -> None:
    difference = paired_difference({0: 0.7}, {1: 0.7})
    assert (difference.n, difference.mean) == (0, None)
    assert "no seed in common" in str(difference.note)


def test_equal_differences_give_no_test() -> None:
    same = paired_difference({0: 0.7, 1: 0.8}, {0: 0.7, 1: 0.8})
    assert (same.mean, same.low, same.high, same.p) == (0, 0, 0, 1)
    shifted = paired_difference({0: 0.71, 1: 0.81}, {0: 0.7, 1: 0.8})
    assert shifted.p is None
    assert shifted.mean == pytest.approx(0.01)
    assert "no test" in str(shifted.note)


def test_summary() -> None:
    summary = summarise([1.0, None, 3.0, NAN])
    assert (summary.n, summary.mean) == (2, 2.0)
    assert summary.sd == pytest.approx(math.sqrt(2))
    assert summarise([5.0]).sd is None
    assert summarise([None]).mean is None


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([None, 0.5, 0.6]) == [None, 1.0, 1.0]
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), max_size=12))
def test_holm_properties(p_values: list[float]) -> None:
    corrected = [p for p in holm(p_values) if p is not None]
    assert all(1 >= after >= before for before, after in zip(p_values, corrected, strict=True))
    # What is rejected at any level is what Holm's procedure, step by step, rejects.
    for level in (0.01, 0.05, 0.5):
        rejected = set()
        for rank, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
            if p_values[place] * (len(p_values) - rank) > level:
                break
            rejected.add(place)
        assert {place for place, p in enumerate(corrected) if p <= level} == rejected


@given(st.lists(st.lists(st.integers(0, 3), min_size=4, max_size=4), min_size=1, max_size=6))
def test_ranks_are_scipys(table: list[list[int]]) -> None:
    places = average_ranks({name: dict(enumerate(map(float, row))) for name, row in enumerate(table)})
    ranks = stats.rankdata([[-value for value in row] for row in table], axis=0)
    assert [places[name] for name in range(len(table))] == pytest.approx(ranks.mean(axis=1))


def test_ranks_use_common_cases_and_the_right_direction() -> None:
    places = average_ranks(
        {"a": {"auc": 0.9, "loss": 0.5, "other": 1.0}, "b": {"auc": 0.8, "loss": 0.4, "other": None}, "c": {}},
        {"auc": True, "loss": False, "other": True},
    )
    assert places == {"a": 1.5, "b": 1.5, "c": None}


def test_delta_m_by_hand() -> None:
    values = {"click": 0.77, "price": 0.9}
    single = {"click": 0.7, "price": 1.0}
    # +10 % where higher is better, and 10 % less where lower is better
    assert delta_m(values, single, {"click": True, "price": False}) == pytest.approx(10.0)
    assert delta_m(values, single) == pytest.approx(0.0)
    assert delta_m({"click": 0.7}, single) is None
    assert delta_m({"click": None, "price": 1.0}, single) is None
    assert delta_m({"click": 1.0, "price": 1.0}, {"click": 0.0, "price": 1.0}) is None


def test_wrong_options_are_refused() -> None:
    with pytest.raises(gdod.InputError, match=r"confidence=95"):
        paired_difference({0: 1.0}, {0: 1.0}, confidence=95)
    with pytest.raises(gdod.InputError, match=r"p-value 1\.5"):
        holm([1.5])


def test_folds_have_the_corrected_resampled_t_test() -> None:
    """Nadeau and Bengio (2003): t = mean / sqrt((1/n + test/train) sd²), here with 5 folds and so 1/4."""
    ours, theirs = {1: 0.72, 2: 0.74, 3: 0.73, 4: 0.75, 5: 0.71}, {1: 0.7, 2: 0.71, 3: 0.72, 4: 0.71, 5: 0.7}
    plain, corrected = paired_difference(ours, theirs), paired_difference(ours, theirs, folds=5)
    assert (corrected.n, corrected.mean, corrected.sd) == (plain.n, plain.mean, plain.sd)
    assert corrected.sd is not None
    t = 0.022 / (corrected.sd * math.sqrt(1 / 5 + 1 / 4))
    assert corrected.p == pytest.approx(2 * stats.t.sf(t, 4), rel=1e-9)
    assert plain.high is not None
    assert corrected.high == pytest.approx(0.022 + (plain.high - 0.022) * 1.5, rel=1e-9)  # sqrt(9/20 / (1/5))
    assert paired_difference({1: 0.7}, {2: 0.7}, folds=5).note == "no fold in common with the baseline"
