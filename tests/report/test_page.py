"""The page: complete, without network, safe against what run folders hold."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from tests.report.made_runs import make_comparison, make_run, write_json

import gdod
from gdod.report import write_report
from gdod.report.svg import ticks

VOID = {"meta", "link", "br", "img", "hr", "input"}


class Outline(HTMLParser):
    """Fails on tags that do not match, and collects ids, links and texts of pictures."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("page")
    make_comparison(folder / "c")
    return write_report([folder / "c"], folder / "out" / "report.html").read_text(encoding="utf-8")


def test_everything_is_there(page: str) -> None:
    for text in ("Overview", "AUC by task", "Log loss by task", "AUC on validation", "Training loss", "Over time"):
        assert f">{text}</h3>" in page
    for text in ("Between pairs of tasks", "Commands", "Configuration", "All runs"):
        assert f">{text}</h3>" in page
    assert "gdod train --data ads --model shared-bottom --method gdod --seed 1" in page
    assert "Simulated: three tasks, conflict 0.5." in page
    assert "2.13.0" in page
    # 4 AUC, 3 log losses, 3 losses, cosine, energy, directions, each by steps and by time; 3 calibrations
    assert len(re.findall(r'<svg class="chart', page)) == 13 * 2 + 3
    assert page.count('<svg class="heat"') == 8  # uncertainty records no cosines


def test_it_is_well_formed_and_every_picture_has_words(page: str) -> None:
    found = Outline(page).attributes
    ids = [attributes["id"] for _, attributes in found if "id" in attributes]
    assert len(ids) == len(set(ids))
    pictures = [attributes for tag, attributes in found if tag == "svg" and attributes.get("aria-hidden") != "true"]
    assert pictures
    for attributes in pictures:
        assert attributes["role"] == "img"
        assert set(str(attributes["aria-labelledby"]).split()) <= set(ids)
    for tag, attributes in found:
        if tag == "a":
            assert str(attributes["href"]).removeprefix("#") in ids


def test_no_network(page: str) -> None:
    assert "http://" not in page
    assert "https://" not in page
    assert "default-src &#x27;none&#x27;" in page
    assert not re.search(r"@import|url\((?!#clip)", page)
    for tag, attributes in Outline(page).attributes:
        assert tag != "img"
        assert "src" not in attributes


def test_text_from_runs_is_never_markup(tmp_path: Path) -> None:
    evil = "<img src=x onerror=alert(1)>\"'&</script><script>alert(2)</script>"
    path = make_run(tmp_path / "a" / "run<b>", method=evil, model=evil, data=evil, tasks=(evil, "buy"), evaluations=2)
    make_run(tmp_path / "a" / "other", method="sum", model=evil, data=evil, tasks=(evil, "buy"), evaluations=2)
    bad = make_run(tmp_path / "a" / "bad", data=evil, model="m", tasks=(evil, "buy"), evaluations=2, finished=False)
    write_json(bad / "error.json", {"message": evil})
    assert path.exists()
    text = write_report([tmp_path / "a"], tmp_path / "r.html").read_text(encoding="utf-8")
    assert "<img" not in text
    assert "<b>" not in text
    assert text.count("<script>") == 1
    assert "onerror=" not in "".join(str(attributes) for tag, attributes in Outline(text).attributes if tag == "img")
    assert "&lt;img src=x" in text
    for _, attributes in Outline(text).attributes:
        assert not any(name.startswith("on") for name in attributes)


def test_one_run_alone(tmp_path: Path) -> None:
    make_run(tmp_path / "run", evaluations=3)
    text = write_report([tmp_path / "run"], tmp_path / "r.html").read_text(encoding="utf-8")
    Outline(text)
    assert "1 of 1 run finished" in text
    assert "not tested" in text


def test_a_run_that_has_only_begun(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run", finished=False)
    (path / "metrics.jsonl").unlink()
    text = write_report([path], tmp_path / "r.html").read_text(encoding="utf-8")
    Outline(text)
    assert "stopped before the first step was recorded" in text
    assert "No evaluation and no training loss was recorded." in text


def test_an_unfinished_run_shows_its_curves(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run", evaluations=4, finished=False)
    text = write_report([path], tmp_path / "r.html").read_text(encoding="utf-8")
    assert "AUC on validation" in text
    assert "still running or was interrupted" in text


def test_more_methods_than_colours(tmp_path: Path) -> None:
    make_comparison(tmp_path / "c", methods=[f"method{n}" for n in range(24)], seeds=(0,), evaluations=2)
    Outline(write_report([tmp_path / "c"], tmp_path / "r.html").read_text(encoding="utf-8"))


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", evaluations=2)
    (tmp_path / "file").write_text("")
    with pytest.raises(gdod.InputError, match="cannot be written"):
        write_report([run], tmp_path / "file" / "report.html")
    with pytest.raises(gdod.InputError, match="the same path"):
        write_report([run], tmp_path / "same", csv=tmp_path / "same")


def test_ticks_are_round_and_inside() -> None:
    assert ticks(0, 1, 5) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert ticks(0.7012, 0.7831, 5) == pytest.approx([0.72, 0.74, 0.76, 0.78])
    for low, high in ((-1e-9, 1e-9), (0, 1e12), (3, 3.0001)):
        found = ticks(low, high)
        assert 2 <= len(found) <= 8
        assert all(low - 1e-12 <= tick <= high + 1e-12 * high for tick in found)


def test_the_command(tmp_path: Path) -> None:
    import typer
    from typer.testing import CliRunner

    from gdod.cli.report import report

    app = typer.Typer()
    app.command()(report)
    run = make_run(tmp_path / "run", evaluations=2)
    out = tmp_path / "r.html"
    done = CliRunner().invoke(app, [str(run), "--out", str(out), "--csv", str(tmp_path / "t.csv")])
    assert done.exit_code == 0
    assert done.output.split() == [str(out), str(tmp_path / "t.csv")]
    assert out.exists()
    failed = CliRunner().invoke(app, [str(tmp_path / "nothing"), "--out", str(out)])
    assert failed.exit_code == 2
    assert "is not a folder" in failed.output
