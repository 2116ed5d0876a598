"""The wheel and the sdist hold the whole library."""

import subprocess
import sys
import tarfile
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build both into a folder, the wheel from the sdist."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-2000:]
    return folder


@pytest.mark.slow
def test_the_wheel_has_every_file_of_the_library(built: Path) -> None:
    library = {
        path.relative_to(ROOT / "src").as_posix()
        for path in (ROOT / "src" / "gdod").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {"gdod/py.typed", "gdod/report/page.css", "gdod/experiments/paper/printed.json"} <= library
    (wheel,) = built.glob("*.whl")
    names = ZipFile(wheel).namelist()
    assert {name for name in names if name.startswith("gdod/")} == library
    assert any(name.endswith("licenses/LICENSE") for name in names)


@pytest.mark.slow
def test_the_sdist_has_what_a_build_needs(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "src/gdod/report/page.js"} <= names
