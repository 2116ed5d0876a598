"""`gdod reproduce front`: which fronts are made, and what their page says."""

from pathlib import Path

import pytest
from tests.report.made_front import make_front
from typer.testing import CliRunner

from gdod.cli import app
from gdod.errors import InputError
from gdod.experiments.front.picture import draw_front
from gdod.experiments.paper.cases import Scale
from gdod.experiments.paper.fronts import METHODS, FrontStudy
from gdod.experiments.paper.reproduce import chosen, reproduce
from gdod.experiments.paper.sets import FRONT_SETS, find_sets

TINY = Scale(seeds=(0,), evaluations=1, steps=2, rows=1_000)


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FrontStudy:
    """Nothing is downloaded, so that only simulated ads are there."""
    monkeypatch.setenv("GDOD_CACHE", str(tmp_path / "cache"))
    return FrontStudy(tmp_path / "out", find_sets(None, FRONT_SETS), TINY, 1)


def test_only_data_that_is_there_has_a_front(study: FrontStudy) -> None:
    assert [*study.there] == ["ads"]
    page = study.write(study.folder / "pages").read_text()
    assert "No front is finished yet" in page
    assert "Left out, since there are no files: BookCrossing" in page


def test_the_page_lays_methods_beside_each_other(study: FrontStudy) -> None:
    scores = {"equal": [[0.7, 0.7]], "w1": [[0.8, 0.6]], "gdod": [[0.75, 0.7]], "pcgrad": [[0.6, 0.6]]}
    made = make_front(study.folder / "front/ads", scores, places={"gdod": "above", "pcgrad": "below"}, warnings=["few"])
    draw_front(made, made.folder / "front.png")
    page = study.write(study.folder / "pages").read_text()
    # Both have p = 0.02, and there are two of them.
    assert "| gdod | −0.0123 [−0.0200, −0.0010], p 0.040: above the front |" in page
    assert "| pcgrad | −0.0123 [−0.0200, −0.0010], p 0.040: below the front |" in page
    assert "- few." in page
    assert (study.folder / "pages/front-ads.png").exists()


def test_one_front_alone_can_be_made(study: FrontStudy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    monkeypatch.setattr(
        "gdod.experiments.paper.fronts.FrontStudy.make", lambda study: made.extend(set(study.there) & set(study.only))
    )
    for name in ("front-ads", "front-drugs", "front"):
        reproduce([name], tmp_path / "out", quick=True)
    assert made == ["ads", "ads"]  # there is no file of drugs


def test_it_is_named_beside_the_others() -> None:
    assert chosen(["front", "front-drugs"]) == []
    assert [one.name for one in chosen(["front", "table2"])] == ["table2"]
    with pytest.raises(InputError, match="did you mean 'front'"):
        chosen(["fronts"])
    listed = CliRunner().invoke(app, ["reproduce", "--list"])
    assert "front        Methods against the front" in listed.stdout


@pytest.mark.slow
def test_it_runs(study: FrontStudy, tmp_path: Path) -> None:
    study.make()
    assert not study.failed
    page = study.write(study.folder / "pages").read_text()
    assert all(method.name in page for method in METHODS)
    again = reproduce(["front"], tmp_path / "none", quick=True, run=False)
    assert [*again.pages] == ["front"]
