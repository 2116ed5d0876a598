"""CAGrad's toy problem, and the pictures."""

from pathlib import Path

import pytest
import torch

from gdod.errors import InputError
from gdod.experiments import pictures, toy
from gdod.methods import GDOD, Sum
from gdod.methods.cagrad import CAGrad
from gdod.methods.gradreg import GradReg
from gdod.methods.mgda import MGDA


def test_the_landscape_is_the_papers() -> None:
    """Its code draws the minimum of the mean loss at (0, -8.3552), and those of the losses above x₁ = ±7."""
    low = torch.linspace(-9, -8, 10_001, dtype=torch.float64)
    heights = toy.losses(torch.stack([torch.zeros_like(low), low], 1)).mean(1)
    assert float(low[heights.argmin()]) == pytest.approx(-8.3552, abs=2e-4)
    line = torch.linspace(-11, 11, 221, dtype=torch.float64)
    places = torch.cartesian_prod(line, line)
    assert float(toy.losses(places).min()) > toy.LOWEST
    assert places[toy.losses(places).argmin(0), 0].tolist() == pytest.approx([7.0, -7.0])
    assert places[toy.losses(places).mean(1).argmin()].tolist() == pytest.approx([0.0, -8.4], abs=0.06)


def test_known_values() -> None:
    place = torch.tensor([[1.0, 2.0], [1.0, -2.0]], dtype=torch.float64)
    above = torch.tanh(torch.tensor(1.0, dtype=torch.float64))
    tanh = torch.tanh(torch.tensor(2.0, dtype=torch.float64))
    expected = torch.stack(
        [
            torch.stack([(4 - tanh).log() + 6, (3 - tanh).log() + 6]) * above,
            torch.tensor([(36 + 3.6) / 10 - 20, (64 + 3.6) / 10 - 20], dtype=torch.float64) * above,
        ]
    )
    torch.testing.assert_close(toy.losses(place), expected)


def test_paths_go_down_from_the_easy_start() -> None:
    methods = [Sum(), MGDA(), CAGrad(), GDOD()]
    places = toy.paths(methods, [toy.STARTS[1]] * 4, steps=700)
    assert places.shape == (701, 4, 2)
    means = toy.losses(places).mean(-1)
    assert bool((means[-1] < means[0] - 2).all())
    # The sum and CAGrad go on along the Pareto set to the minimum of the mean; MGDA stops where it meets it.
    assert float(means[-1, 0]) < float(means[-1, 1]) - 1
    assert float(means[-1, 2]) < float(means[-1, 1]) - 1


def test_a_penalty_on_the_gradients_bends_the_path() -> None:
    methods = [Sum(), GradReg(weight=0), GradReg(weight=10)]
    places = toy.paths(methods, [toy.STARTS[1]] * 3, steps=100)
    torch.testing.assert_close(places[:, 1], places[:, 0])
    assert float((places[-1, 2] - places[-1, 0]).norm()) > 0.1


def test_paths_refuse_starts() -> None:
    with pytest.raises(InputError, match="two numbers"):
        toy.paths([Sum()], [(1.0, 2.0, 3.0)])


def test_pictures_are_drawn(tmp_path: Path) -> None:
    pictures.draw_toy(tmp_path / "images" / "toy.png", {"sum": Sum, "CAGrad": CAGrad}, steps=3)
    pictures.main(["parts", str(tmp_path / "parts.png")])
    pictures.main(["parts", str(tmp_path / "chosen.png"), "1", "0", "0.5", "2"])
    pictures.main(["parts", str(tmp_path / "parallel.png"), "1", "0", "-2", "0"])
    for name in ("images/toy.png", "parts.png", "chosen.png", "parallel.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


def test_the_command_explains_itself() -> None:
    with pytest.raises(SystemExit, match=r"gdod\.experiments\.pictures toy"):
        pictures.main([])
