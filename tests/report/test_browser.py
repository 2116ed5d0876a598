"""The page in a real browser: it draws, sorts and switches, with nothing on the console."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.report.made_front import make_front
from tests.report.made_runs import make_comparison

from gdod.report import write_report
from gdod.report.front import front_page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--enable-logging=stderr", "--virtual-time-budget=5000"),
    "--allow-file-access-from-files",
)

# What a person would do; the frame's policy forbids scripts in the page itself.
DRIVER = """<!doctype html><body><iframe src="report.html" width="WIDTH" height="900"></iframe><script>
const frame = document.querySelector("iframe");
frame.addEventListener("load", () => {
  const page = frame.contentDocument, window_ = frame.contentWindow, found = {};
  const shown = (element) => window_.getComputedStyle(element).display !== "none";
  const column = (place) => [...page.querySelector("table").tBodies[0].rows].map((row) => row.cells[place].textContent);
  const button = page.querySelectorAll("thead th button")[1];
  button.click(); found.down = column(1);
  button.click(); found.up = column(1);
  found.sorted = button.closest("th").getAttribute("aria-sort");
  found.wide = page.documentElement.scrollWidth > page.documentElement.clientWidth;
  const charts = page.querySelector("figure").querySelectorAll("svg.chart");
  found.before = [...charts].map(shown);
  page.querySelector('.switch button[value="time"]').click();
  found.after = [...charts].map(shown);
  page.querySelector('.legend button[data-series="7"]').click();
  found.chosen = [...new Set([...page.querySelectorAll(".series.chosen")].map((line) => line.dataset.name))];
  const markers = [...charts[1].querySelectorAll(".series.chosen .marker")];
  const box = markers.at(-1).getBoundingClientRect();  // the first may lie outside the picture
  charts[1].dispatchEvent(new window_.PointerEvent("pointermove", { clientX: box.x + 3, clientY: box.y + 3 }));
  found.tip = page.getElementById("tip").textContent;
  page.getElementById("theme").click();
  page.getElementById("theme").click();
  found.theme = page.documentElement.dataset.theme;
  found.background = window_.getComputedStyle(page.body).backgroundColor;
  const out = document.createElement("pre");
  out.id = "found";
  out.textContent = JSON.stringify(found);
  document.body.append(out);
});
</script></body>"""


def browse(page: Path, profile: Path) -> tuple[str, str]:
    """The document after its scripts have run, and what the browser logged."""
    command = [str(CHROMIUM), *FLAGS, f"--user-data-dir={profile}", "--dump-dom", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, done.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("browser")
    write_report([make_comparison(folder / "c", evaluations=20)], folder / "report.html")
    return folder


@pytest.mark.parametrize("width", [1280, 390])
def test_it_works_in_a_browser(folder: Path, tmp_path: Path, width: int) -> None:
    driver = folder / f"driver{width}.html"
    driver.write_text(DRIVER.replace("WIDTH", str(width)), encoding="utf-8")
    document, log = browse(driver, tmp_path / "profile")
    assert "CONSOLE" not in log
    text = re.search(r'<pre id="found">(.*?)</pre>', document, re.DOTALL)
    assert text is not None, f"the page's script did not finish: {log}"
    found = json.loads(text[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
    figures = [float(cell.split()[0]) for cell in found["down"]]
    assert figures == sorted(figures, reverse=True)
    assert found["up"] == found["down"][::-1]
    assert found["sorted"] == "ascending"
    assert not found["wide"], "the page scrolls sideways"
    assert (found["before"], found["after"]) == ([True, False], [False, True])
    assert found["chosen"] == ["gdod"]
    assert re.fullmatch(r"gdodAUC 0\.\d+, seconds of training [\d.]+", found["tip"])
    assert found["theme"] == "dark"
    assert found["background"] == "rgb(18, 22, 27)"


FRONT_DRIVER = """<!doctype html><body><iframe src="front.html" width="WIDTH" height="900"></iframe><script>
const frame = document.querySelector("iframe");
frame.addEventListener("load", () => {
  const page = frame.contentDocument, window_ = frame.contentWindow, found = {};
  found.wide = page.documentElement.scrollWidth > page.documentElement.clientWidth;
  page.querySelector('.legend button[data-series="1"]').click();
  found.chosen = [...page.querySelectorAll(".series.chosen")].map((mark) => mark.dataset.name);
  const chart = page.querySelector("svg.chart");
  const box = chart.querySelector(".series.chosen .marker").getBoundingClientRect();
  const middle = { clientX: box.x + box.width / 2, clientY: box.y + box.height / 2 };
  chart.dispatchEvent(new window_.PointerEvent("pointermove", middle));
  found.tip = page.getElementById("tip").textContent;
  const out = document.createElement("pre");
  out.id = "found";
  out.textContent = JSON.stringify(found);
  document.body.append(out);
});
</script></body>"""


@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_of_a_front_works_in_a_browser(tmp_path: Path, width: int) -> None:
    scores = {"1:4": [(0.7, 0.8)], "1:1": [(0.75, 0.75)], "4:1": [(0.8, 0.7)], "gdod": [(0.78, 0.76)]}
    made = make_front(tmp_path / "f", scores, places={"gdod": "above"}, warnings=["few seeds"])
    (tmp_path / "front.html").write_text(front_page(made), encoding="utf-8")
    (tmp_path / "driver.html").write_text(FRONT_DRIVER.replace("WIDTH", str(width)), encoding="utf-8")
    document, log = browse(tmp_path / "driver.html", tmp_path / "profile")
    assert "CONSOLE" not in log
    text = re.search(r'<pre id="found">(.*?)</pre>', document, re.DOTALL)
    assert text is not None, f"the page's script did not finish: {log}"
    found = json.loads(text[1])
    assert not found["wide"], "the page scrolls sideways"
    assert found["chosen"] == ["gdod"]
    assert found["tip"] == "gdodAUC of buy 0.76, AUC of click 0.78"


def test_console_errors_would_be_seen(folder: Path, tmp_path: Path) -> None:
    """The test above can fail: a script that the policy does not know is refused, loudly."""
    page = (folder / "report.html").read_text(encoding="utf-8")
    broken = tmp_path / "broken.html"
    broken.write_text(page.replace("</body>", "<script>document.title = 'run'</script></body>"), encoding="utf-8")
    document, log = browse(broken, tmp_path / "profile")
    assert "CONSOLE" in log
    assert "Content Security Policy" in log
    assert "<title>run</title>" not in document


def pages_of(page: Path, folder: Path) -> list[list[str]]:
    """The printed page: the lines of each sheet of paper."""
    command = [str(CHROMIUM), *FLAGS, f"--user-data-dir={folder / 'profile'}", "--no-pdf-header-footer"]
    pdf = folder / "printed.pdf"
    subprocess.run([*command, f"--print-to-pdf={pdf}", page.as_uri()], capture_output=True, timeout=120, check=True)
    text = subprocess.run(["pdftotext", "-raw", str(pdf), "-"], capture_output=True, text=True, check=True).stdout
    return [[line.strip() for line in sheet.splitlines()] for sheet in text.split("\f")[:-1]]


@pytest.mark.skipif(shutil.which("pdftotext") is None, reason="no pdftotext on this machine")
def test_headings_figures_and_tables_stay_whole_on_paper(folder: Path, tmp_path: Path) -> None:
    sheets = pages_of(folder / "report.html", tmp_path)
    assert len(sheets) > 4
    belongs = {
        "AUC by task": "weighted-gdod",  # the last row
        "Learning curves": "AUC on validation",
        "AUC on validation": "mean AUC",
        "Conflict": "Over time",
        "Over time": "share of directions kept",
        "Between pairs of tasks": "weighted-gdod",
        "Calibration": "mean predicted probability",
    }
    for heading, below in belongs.items():
        (sheet,) = (sheet for sheet in sheets if heading in sheet)
        after = sheet[sheet.index(heading) :]
        assert any(line.startswith(below) for line in after), f"{heading} stands alone at the foot of a page"
    drawn = sheets[: next(place for place, sheet in enumerate(sheets) if "Calibration" in sheet)]
    sides = ("AUC", "log loss", "loss", "cosine", "share")  # above a picture; "step" stands below it
    assert sum(sheet.count("step") for sheet in drawn) == 13
    assert [sum(line in sides for line in sheet) for sheet in drawn] == [sheet.count("step") for sheet in drawn]
    runs = [sheet for sheet in sheets if any(line.startswith("shared-bottom sum") for line in sheet)]
    assert all(any(line.startswith("model method seed state") for line in sheet) for sheet in runs)
