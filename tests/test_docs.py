"""Every Python block in the documents runs, every example runs, and links lead somewhere."""

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!\w+:|#)([^)#]+)")


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def blocks(document: Path) -> list[str]:
    """The Python blocks, each moved down to its own line so that a traceback points at it."""
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
