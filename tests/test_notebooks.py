"""The notebooks in `examples/` run from an empty folder, in a kernel of their own, and are committed as they ran."""

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parent.parent / "examples").glob("*.ipynb"))
QUICK = {"one_line.ipynb"}  # the others train many runs, in processes of their own


def read(path: Path) -> nbformat.NotebookNode:
    return nbformat.read(path, as_version=4)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=() if path.name in QUICK else pytest.mark.slow, id=path.name) for path in NOTEBOOKS],
)
def test_every_cell_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cell that raises ends it with an error; what must be true of the results the cells assert themselves."""
    monkeypatch.setenv("GDOD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))  # no settings of whoever runs the tests
    notebook = read(path)
    NotebookClient(notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": tmp_path}}).execute()
    shown = [cell for cell in notebook.cells if cell.cell_type == "code" and cell.outputs]
    assert shown


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_it_is_committed_with_its_outputs(path: Path) -> None:
    """Cells were run once, from the first to the last; no output names a place on somebody's machine."""
    cells = [cell for cell in read(path).cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    texts = [
        str(output.get("text", "")) + str(output.get("data", {}).get("text/plain", ""))
        for cell in cells
        for output in cell.outputs
    ]
    assert "".join(texts).strip()
    assert not [text for text in texts if re.search(r"/(home|root|tmp|Users|work)/", text)]
    assert path.stat().st_size < 500_000
