"""Python blocks in the documents run, examples run, links lead somewhere, and the reference names what is public."""

import re
import runpy
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!\w+:|#)([^)#]+)")
DIRECTIVE = re.compile(r"^::: (\S+)", re.MULTILINE)
PUBLIC = ["gdod", "gdod.methods", "gdod.models", "gdod.data", "gdod.training", "gdod.estimator", "gdod.report"]


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def blocks(document: Path) -> list[str]:
    """Return the Python blocks, each moved down to its own line so that a traceback points at it."""
    text = document.read_text()
    return ["\n" * text.count("\n", 0, match.start(1)) + match.group(1) for match in BLOCK.finditer(text)]


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_python_blocks_run(document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "__main__"}
    for block in blocks(document):
        exec(compile(block, str(document), "exec"), namespace)


def test_the_readme_has_python_blocks() -> None:
    assert blocks(ROOT / "README.md")


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_links_to_files_lead_somewhere(document: Path) -> None:
    missing = [target for target in LINK.findall(document.read_text()) if not (document.parent / target).exists()]
    assert not missing


@pytest.mark.parametrize("example", EXAMPLES, ids=name)
def test_example_runs(example: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(example), run_name="__main__")


def test_the_training_example_learns() -> None:
    losses = runpy.run_path(str(ROOT / "examples" / "train.py"))["main"]()
    # A model that has learned nothing is at log 2.
    assert all(loss < 0.6 for loss in losses.values())


@pytest.mark.parametrize("package", PUBLIC)
def test_the_reference_has_every_public_name(package: str) -> None:
    """The reference names an object once, by whichever of its public paths."""
    pages = (ROOT / "docs" / "reference").glob("*.md")
    names = {path.rpartition(".")[2] for page in pages for path in DIRECTIVE.findall(page.read_text())}
    packages = {path.rpartition(".")[2] for path in PUBLIC} | {"decompositions"}
    assert not set(import_module(package).__all__) - names - packages


@pytest.mark.slow
def test_the_site_builds(tmp_path: Path) -> None:
    """Strictly: a broken link, a page without a place, or a name that is not there would be an error."""
    command = [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(tmp_path)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0, ended.stderr[-4000:]
    # A link that leaves docs/ becomes an address in the repository, and README a page.
    assert "/blob/main/examples/train.py" in (tmp_path / "index.html").read_text(encoding="utf-8")
