"""How threads of torch wait, which commands decide before torch is imported."""

import os
import subprocess
import sys

import pytest

SCRIPT = """
import os, sys
from typer.testing import CliRunner
from gdod.cli import app
print("torch" in sys.modules)
CliRunner().invoke(app, ["report", "nowhere"])
print(os.environ.get("GOMP_SPINCOUNT"))
"""


@pytest.mark.parametrize(
    ("given", "count"), [({}, "3000"), ({"GOMP_SPINCOUNT": "9"}, "9"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "None")]
)
def test_they_sleep_unless_the_environment_says_how_to_wait(given: dict[str, str], count: str) -> None:
    names = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
    environment = {name: value for name, value in os.environ.items() if name not in names} | given
    run = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["False", count]


def test_runs_of_a_comparison_wait_in_the_same_way_when_python_starts_them(monkeypatch: pytest.MonkeyPatch) -> None:
    from gdod.experiments.pool import _environment

    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"):
        monkeypatch.delenv(name, raising=False)
    assert _environment(2, 0, 1)["GOMP_SPINCOUNT"] == "3000"
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    assert "GOMP_SPINCOUNT" not in _environment(2, 0, 1)
