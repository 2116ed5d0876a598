"""Hypervolume against counting the cells of a grid, and what must hold of it."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gdod.experiments.front.hypervolume import added_volume, hypervolume, undominated

SIDE = 4


@st.composite
def whole_points(draw: st.DrawFn) -> np.ndarray:
    """Points on a grid, most of them above the reference, of which some are equal and some dominated."""
    tasks, points = draw(st.integers(2, 5)), draw(st.integers(1, 7))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    return np.clip(random.integers(-1, SIDE + 2, (points, tasks)), -1, SIDE).astype(float)


@given(whole_points())
def test_it_is_the_number_of_cells_that_some_point_dominates(points: np.ndarray) -> None:
    tasks = points.shape[1]
    counted = sum(any((point > cell).all() for point in points) for cell in product(range(SIDE), repeat=tasks))
    assert hypervolume(points, np.zeros(tasks)) == pytest.approx(counted)


@given(whole_points())
def test_a_point_adds_what_the_whole_grows_by(points: np.ndarray) -> None:
    reference = np.zeros(points.shape[1])
    new, others = points[0], points[1:]
    grown = hypervolume(points, reference) - hypervolume(others, reference)
    assert added_volume(new, others, reference) == pytest.approx(grown)


@given(whole_points(), st.integers(0, 1000))
def test_order_of_points_and_tasks_does_not_matter(points: np.ndarray, seed: int) -> None:
    random = np.random.default_rng(seed)
    tasks = points.shape[1]
    mixed = random.permutation(points)[:, random.permutation(tasks)]
    assert hypervolume(mixed, np.zeros(tasks)) == pytest.approx(hypervolume(points, np.zeros(tasks)))


def test_the_reference_is_where_it_begins() -> None:
    assert hypervolume(np.array([[0.8, 0.9]]), np.array([0.5, 0.5])) == pytest.approx(0.3 * 0.4)
    assert hypervolume(np.array([[0.8, 0.4]]), np.array([0.5, 0.5])) == 0
    assert added_volume(np.array([0.8, 0.4]), np.array([[0.6, 0.6]]), np.array([0.5, 0.5])) == 0


def test_undominated_points_are_kept_once() -> None:
    kept = undominated(np.array([[1.0, 2.0], [2.0, 1.0], [1.0, 1.0], [2.0, 1.0]]))
    assert sorted(kept.tolist()) == [[1, 2], [2, 1]]
