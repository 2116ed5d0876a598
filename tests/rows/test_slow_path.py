"""Tests of what is said of parameters that need a backward pass for each row."""

import re
import warnings

import pytest
import torch
from tests._backward.without_rule import times
from torch import Tensor, nn

import gdod
from gdod.rows import slow_path


class Slow(nn.Module):
    """A parameter that enters by an operation without a rule, among others that do not."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.layer = nn.Linear(4, width)
        self.gate = nn.Parameter(torch.ones(width))
        self.heads = nn.ModuleList(nn.Linear(width, 1) for _ in range(2))

    def forward(self, x: Tensor) -> list[Tensor]:
        hidden = times(self.layer(x).tanh(), self.gate)
        return [head(hidden)[:, 0] ** 2 for head in self.heads]


@pytest.fixture(autouse=True)
def nothing_said_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow_path, "_SAID", set())


def said(model: nn.Module, groups: int = 4) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        gdod.backward(model(torch.randn(8, 4)), gdod.GDOD(groups=groups))
    assert all(one.category is gdod.SlowPathWarning for one in caught)
    assert all(one.filename == __file__ for one in caught), "it points at the caller"
    return [str(one.message) for one in caught]


def test_it_names_parameters_costs_and_reasons() -> None:
    (text,) = said(Slow())
    assert "1 of 3 shared parameters" in text
    assert "about 8 more passes a step (4 groups of 2 tasks)" in text
    assert "gate (no rule for input 1 of _TimesBackward)" in text
    assert "exact" in text


def test_the_cost_is_what_the_step_takes() -> None:
    model = Slow()
    (text,) = said(model)
    found = re.search(r"about (\d+) more passes", text)
    assert found is not None
    info = gdod.backward(model(torch.randn(8, 4)), gdod.GDOD(groups=4))
    assert info.passes - int(found[1]) in (1, 2)


def test_it_is_said_once_for_a_shape() -> None:
    model = Slow()
    assert len(said(model)) == 1
    assert not said(model)
    assert not said(Slow()), "another model of the same shape"
    assert len(said(Slow(5))) == 1


def test_the_longest_name_is_the_one_from_outside() -> None:
    inside = Slow()
    outside = nn.ModuleDict({"net": inside})
    assert slow_path.names_of([inside.gate]) == {id(inside.gate): "net.gate"}
    assert outside["net"] is inside


def test_parameters_of_no_module_are_told_by_their_shape() -> None:
    gate = nn.Parameter(torch.ones(3))
    x = torch.randn(8, 3)
    with pytest.warns(gdod.SlowPathWarning, match=r"one of shape \(3,\)"):
        gdod.backward([times(x, gate).sum(1) ** 2, times(x, gate).sum(1)], gdod.GDOD(groups=2))


def test_many_names_are_cut() -> None:
    class Many(Slow):
        def __init__(self) -> None:
            super().__init__()
            self.more = nn.ParameterList(torch.ones(6) for _ in range(6))

        def forward(self, x: Tensor) -> list[Tensor]:
            hidden = self.layer(x).tanh()
            for one in self.more:
                hidden = times(hidden, one)
            return [head(hidden)[:, 0] ** 2 for head in self.heads]

    (text,) = said(Many())
    assert "and 2 more (no rule" in text
