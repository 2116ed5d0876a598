"""Faults are counted, test by test, and a table of them ends the report: tried, survived."""

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.training import tiny


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a table and its schema, where the commands run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GDOD_CACHE", str(tmp_path / "cache"))
    tiny.frame(1000).write_csv(tmp_path / "clicks.csv")
    (tmp_path / "clicks.yaml").write_text(tiny.SCHEMA)
    return tmp_path


@pytest.fixture
def tried(request: pytest.FixtureRequest, record_property: Callable[[str, Any], None]) -> Callable[[str], None]:
    """Call it with what is done to the software each time it is done."""
    return lambda fault: record_property("fault", fault)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for outcome in ("passed", "failed"):
        for report in terminalreporter.stats.get(outcome, ()):
            for name, fault in getattr(report, "user_properties", ()):
                if name == "fault" and report.when == "call":
                    counts[fault][0] += 1
                    counts[fault][1] += outcome == "passed"
    if counts:
        terminalreporter.section("faults")
        terminalreporter.line("| fault | tried | survived |")
        terminalreporter.line("|---|---:|---:|")
        for fault, (tried, survived) in counts.items():
            terminalreporter.line(f"| {fault} | {tried} | {survived} |")
        total = [sum(column) for column in zip(*counts.values(), strict=True)]
        terminalreporter.line(f"| all | {total[0]} | {total[1]} |")
