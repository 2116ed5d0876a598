"""Keeps what random input has brought down: some failures come once and not again."""

import platform
import re
from collections.abc import Generator
from importlib.metadata import version
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent.parent / ".fuzz"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Write the example, its seed and the trace of a failure to a file of its own in .fuzz/."""
    report = yield
    if report.failed:
        seed = item.config.getoption("hypothesis_seed", None)
        versions = ", ".join(f"{name} {version(name)}" for name in ("hypothesis", "polars", "pyarrow", "torch"))
        FOLDER.mkdir(exist_ok=True)
        name = re.sub(r"\W+", "-", item.name)
        place = FOLDER / f"{name}-{len(list(FOLDER.glob(f'{name}-*.txt')))}.txt"
        about = f"{item.nodeid}\n--hypothesis-seed={seed}\nPython {platform.python_version()}, {versions}\n\n"
        place.write_text(about + report.longreprtext, "utf-8", "backslashreplace")
        report.sections.append(("random input", f"kept in {place}"))
    return report
