"""The verdict on made-up scores: its definition, its invariances, and whether its intervals hold what they promise."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gdod.experiments.front.rows import Floats, Scored, draw_seeds, over_seeds
from gdod.experiments.front.verdict import (
    Judged,
    difference,
    gap_at,
    judge,
    least_lead,
    nearest_weighting,
    task_intervals,
)

NO_DRAWS = 2


def judged(validation: Floats, test: Floats | None = None, noise: Floats | None = None) -> Judged:
    """A candidate with exact scores, or with these deviations [B, K] of its draws."""
    test = validation if test is None else test
    drawn = np.tile(test, (NO_DRAWS, 1)) if noise is None else test + noise
    return Judged(validation, Scored(test, drawn))


@given(st.integers(2, 5), st.integers(2, 8), st.integers(0, 10_000))
def test_d_is_above_zero_just_where_a_weighting_is_better_on_every_task(tasks: int, points: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    front, method = random.normal(size=(points, tasks)), random.normal(size=tasks)
    place, d = nearest_weighting(method, front)
    dominated = any(all(front[p, k] > method[k] for k in range(tasks)) for p in range(points))
    assert (d > 0) == dominated
    # By its definition, one number at a time.
    assert d == max(min(front[p, k] - method[k] for k in range(tasks)) for p in range(points))
    assert d == min(front[place, k] - method[k] for k in range(tasks))


@given(st.integers(2, 5), st.integers(0, 10_000))
def test_d_moves_with_the_method_and_keeps_still_if_tasks_change_places(tasks: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    front, method, order = random.normal(size=(6, tasks)), random.normal(size=tasks), random.permutation(tasks)
    _, d = nearest_weighting(method, front)
    assert nearest_weighting(method + 0.25, front)[1] == pytest.approx(d - 0.25)
    assert nearest_weighting(method[order], front[:, order])[1] == d
    # More weightings can only be nearer.
    assert nearest_weighting(method, np.concatenate([front, random.normal(size=(3, tasks))]))[1] >= d


def test_the_weighting_is_chosen_on_validation_and_d_shown_on_test() -> None:
    front = {
        "seems": judged(np.array([0.8, 0.8]), np.array([0.6, 0.6])),
        "is": judged(np.array([0.6, 0.6]), np.array([0.9, 0.9])),
    }
    verdict = judge({"m": judged(np.array([0.7, 0.7]))}, front)["m"]
    assert verdict.weighting == "seems"
    assert verdict.validation == pytest.approx(0.1)
    assert verdict.d.value == pytest.approx(-0.1)


def test_places() -> None:
    """Exact scores tell for sure: below, above, and between two weightings that lie as far apart."""
    random = np.random.default_rng(0)
    noise = random.normal(0, 1e-6, (400, 2))
    front = {name: judged(np.array(scores), noise=noise) for name, scores in {"a": [0.6, 0.8], "b": [0.8, 0.6]}.items()}
    methods = {
        "worse": [0.55, 0.75],
        "between": [0.7, 0.7],
        "beyond": [0.9, 0.9],
        "same": [0.6, 0.8],
    }
    made = {name: judged(np.array(one), noise=random.normal(0, 1e-6, (400, 2))) for name, one in methods.items()}
    verdicts = judge(made, front)
    assert {name: one.place for name, one in verdicts.items()} == {
        "worse": "below",
        "between": "gap",
        "beyond": "above",
        "same": "on",
    }
    assert verdicts["between"].gap == pytest.approx(0.2)
    assert gap_at("a", {"a": front["a"]}) == 0
    # A weighting that another beats leaves no gap.
    assert gap_at("low", {**front, "low": judged(np.array([0.5, 0.5]))}) == 0


def test_more_methods_make_each_verdict_more_careful() -> None:
    random = np.random.default_rng(1)
    front = {"a": judged(np.zeros(2)), "b": judged(np.full(2, -1.0))}
    front = {name: judged(one.validation, noise=np.zeros((1000, 2))) for name, one in front.items()}
    method = judged(np.full(2, -2.5), noise=random.normal(size=(1000, 2)))
    alone = judge({"m0": method}, front)["m0"]
    among = judge({f"m{place}": method for place in range(20)}, front)["m0"]
    assert alone.p == among.p
    assert alone.p_holm is not None
    assert among.p_holm is not None
    assert alone.p_holm < 0.05 <= among.p_holm
    assert (alone.place, among.place) == ("below", "on")


@pytest.mark.parametrize(
    "leads", [np.zeros(2), np.zeros(10), np.array([0.0, 5.0, 5.0]), np.array([-0.5, 0.5, 0.0])], ids=str
)
def test_intervals_hold_the_true_least_lead(leads: Floats) -> None:
    """In 19 of 20 worlds or more, also with many equal tasks, where the least of the noisy leads is far too low."""
    random = np.random.default_rng(2)
    held, worlds = 0, 400
    above = []
    for _ in range(worlds):
        seen = leads + random.normal(size=len(leads))
        d, p = least_lead(Scored(seen, seen + random.normal(size=(500, len(leads)))))
        held += d.low <= leads.min() <= d.high
        above.append(d.high)
        assert d.low <= d.value <= d.high
        assert 0 < p <= 1
        # The interval and the p-value tell the same, but for the number of draws.
        if p < 0.04:
            assert d.low > 0 or d.high < 0
        if p > 0.06:
            assert d.low <= 0 <= d.high
    assert held / worlds > 0.93
    # It is no empty promise: its upper end is near.
    assert np.mean(above) < leads.min() + 4


@pytest.mark.parametrize("seeds", [3, 5])
def test_few_seeds_make_no_false_alarms(seeds: int) -> None:
    """Methods that are a weighting under another name: seeds vary, each task by itself, and nothing else does."""
    random = np.random.default_rng(5)
    alarms, worlds = 0, 300
    for _ in range(worlds):
        draws = draw_seeds(random, 400, seeds)
        ours, theirs = (
            over_seeds([Scored(one, np.tile(one, (400, 1))) for one in random.normal(size=(seeds, 3))], draws)
            for _ in range(2)
        )
        _, p = least_lead(difference(ours, theirs))
        alarms += p < 0.05
    assert alarms / worlds < 0.07


def test_each_task_has_its_own_interval() -> None:
    random = np.random.default_rng(3)
    noise = random.normal(size=(4000, 2)) * (0.1, 1.0)
    narrow, wide = task_intervals(Scored(np.array([1.0, 2.0]), np.array([1.0, 2.0]) + noise))
    assert (narrow.value, wide.value) == (1.0, 2.0)
    assert narrow.high - narrow.low == pytest.approx(2 * 1.96 * 0.1, rel=0.1)
    assert wide.high - wide.low == pytest.approx(2 * 1.96, rel=0.1)
