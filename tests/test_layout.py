"""The tests lie in the folders of what they test, and each file has a name of its own."""

from collections import Counter
from pathlib import Path

import gdod

TESTS = Path(__file__).parent
# Random input, and kills and damage, for several packages at once.
ELSEWHERE = {Path("fuzz"), Path("faults")}


def test_no_two_test_files_have_the_same_name() -> None:
    """A failure is reported by its file's name, and editors open files by it."""
    names = Counter(path.name for folder in (TESTS, TESTS.parent / "benchmarks") for path in folder.rglob("test_*.py"))
    assert not [name for name, count in names.items() if count > 1]


def test_the_folders_are_those_of_the_library() -> None:
    library = Path(gdod.__file__).parent
    folders = {path.parent.relative_to(TESTS) for path in TESTS.rglob("test_*.py")} - ELSEWHERE
    assert not [str(folder) for folder in folders if not (library / folder / "__init__.py").is_file()]
