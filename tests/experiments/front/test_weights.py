"""Weightings: ratios of two tasks, draws from a simplex, and those that a person gives."""

import numpy as np
import pytest

from gdod import InputError
from gdod.experiments.front.weights import finer, given_weights, spread_weights

TWO = ("click", "buy")


def test_ratios_of_two_tasks_are_log_spaced_around_equal_weights() -> None:
    made = spread_weights(TWO, 11)
    ratios = np.array([one.weights["click"] / one.weights["buy"] for one in made])
    np.testing.assert_allclose(ratios, 2.0 ** np.arange(-5, 6))
    assert [one.name for one in made][::5] == ["1:32", "1:1", "32:1"]
    assert [one.is_equal for one in made].index(True) == 5
    assert made[5].weights == {"click": 1.0, "buy": 1.0}
    wider = spread_weights(TWO, 3, span=100)
    assert [one.name for one in wider] == ["1:100", "1:1", "100:1"]
    assert all(spread_weights(TWO, count, span)[count // 2].is_equal for count in range(3, 41, 2) for span in (3, 32))


@pytest.mark.parametrize("tasks", [TWO, ("a", "b", "c"), tuple("abcdef")])
def test_weights_add_up_to_the_number_of_tasks_and_more_of_them_keep_the_first(tasks: tuple[str, ...]) -> None:
    few, more = (spread_weights(tasks, count) for count in (11, finer(len(tasks), 11)))
    for one in more:
        assert sum(one.weights.values()) == pytest.approx(len(tasks))
        assert min(one.weights.values()) > 0
    assert sum(one.is_equal for one in more) == 1
    known = {one.name: one.weights for one in more}
    assert len(known) == len(more) > len(few)
    for one in few:
        assert known[one.name] == pytest.approx(one.weights)


def test_given_weights_are_scaled_and_named() -> None:
    made = given_weights(TWO, [{"click": 4, "buy": 1}, {"buy": 3, "click": 3}, {"click": 1, "buy": 2}])
    assert [one.name for one in made] == ["4:1", "1:1", "1:2"]
    assert made[0].weights == pytest.approx({"click": 1.6, "buy": 0.4})
    assert made[1].is_equal
    three = given_weights(("a", "b", "c"), [{"a": 1, "b": 1, "c": 1}, {"a": 2, "b": 0.5, "c": 1}])
    assert [one.name for one in three] == ["1:1:1", "2:0.5:1"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([{"click": 0, "buy": 1}], "that of 'click' is 0; expected a number above 0"),
        ([{"click": -1, "buy": 1}], "that of 'click' is -1"),
        ([{"click": float("nan"), "buy": 1}], "expected a number above 0"),
        ([{"click": 1}], "there is none for 'buy'"),
        ([{"click": 1, "bye": 1}], "'bye' is no task.*did you mean 'buy'"),
        ([{"click": 1, "buy": 1}, {"click": 2, "buy": 2}], "given twice"),
        ([{"click": 1, "buy": 4}], "have no equal ones"),
    ],
)
def test_wrong_weights_are_told(given: list[dict[str, float]], said: str) -> None:
    with pytest.raises(InputError, match=said):
        given_weights(TWO, given)
