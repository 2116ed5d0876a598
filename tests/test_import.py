"""What `import gdod` brings, without the packages of the extras too, and which versions it refuses."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import gdod
from gdod._checks import version_problem

EXTRAS = (
    "catboost",
    "lightgbm",
    "matplotlib",
    "numpy",
    "onnx",
    "optuna",
    "polars",
    "prometheus_client",
    "pyarrow",
    "pydantic",
    "rich",
    "scipy",
    "sklearn",
    "starlette",
    "tensorboard",
    "typer",
    "uvicorn",
    "yaml",
)
WITHOUT_EXTRAS = f"""
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {EXTRAS}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Hidden())
"""


def run(code: str, *folders: Path) -> str:
    """Return what Python code prints in a process of its own, with these folders first on its path."""
    path = os.pathsep.join([*map(str, folders), str(Path(gdod.__file__).parents[1])])
    environment = {**os.environ, "PYTHONPATH": path}
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert process.returncode == 0, process.stderr
    return process.stdout


def import_errors(before: str, statements: list[str], *folders: Path) -> list[str]:
    """Return the message of the ImportError of each statement, or "" where there is none."""
    code = f"""
{before}
for statement in {statements}:
    try:
        exec(statement)
    except ImportError as error:
        print(error)
    else:
        print()
"""
    return run(code, *folders).splitlines()


def test_a_star_import_needs_no_extras() -> None:
    code = """
from gdod import *
import torch
tasks = [models.Task("a"), models.Task("b")]
model = models.build("shared-bottom", models.Schema(numeric=[models.Numeric("x")]), tasks)
logits = model(models.Batch(torch.zeros(8, 0).long(), torch.randn(8, 1)))
backward({name: logit**2 for name, logit in logits.items()}, GDOD())
assert all(parameter.grad is not None for parameter in model.parameters())
"""
    run(WITHOUT_EXTRAS + code)


def test_a_missing_extra_is_named_with_the_way_to_get_it() -> None:
    statements = ["import gdod; gdod.data", "from gdod import data", "import gdod; gdod.training"]
    for message in import_errors(WITHOUT_EXTRAS, statements):
        assert message.startswith("gdod.")
        assert message.endswith("which is not installed. Install it with: pip install 'gdod[cli]'")


def test_every_name_is_there() -> None:
    for name in (*gdod.__all__, "data", "training"):
        assert getattr(gdod, name) is not None
        assert name in dir(gdod)
    with pytest.raises(AttributeError, match="nonsense"):
        gdod.nonsense  # noqa: B018


def test_the_engine_refuses_a_torch_whose_private_parts_it_does_not_know() -> None:
    (message,) = import_errors("import torch; torch.__version__ = '2.14.0+cpu'", ["import gdod; gdod.backward"])
    assert message.startswith("torch 2.14.0+cpu is installed")
    assert message.endswith("pip install 'torch==2.13.*'")


def test_the_bridge_refuses_a_torchjd_whose_private_parts_it_does_not_know(tmp_path: Path) -> None:
    folder = tmp_path / "torchjd-0.19.1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: torchjd\nVersion: 0.19.1\n")
    uses = ["gdod.method('upgrad')", "gdod.GDODWeighting", "import gdod.methods.torchjd.to_torchjd"]
    *messages, without = import_errors("import gdod", [*uses, "gdod.backward; gdod.method('gdod')"], tmp_path)
    for message in messages:
        assert message.startswith("torchjd 0.19.1 is installed")
        assert message.endswith("pip install 'torchjd==0.18.*'")
    assert without == ""


@pytest.mark.parametrize(
    ("installed", "fits"),
    [
        ("2.13.0", True),
        ("2.13.1+cu130", True),
        ("2.13.0a0+gitdeadbee", True),
        ("2.13.0.dev20260101+cpu", True),
        ("2.14.0", False),
        ("2.130.0", False),
        ("2.1.3", False),
        ("12.13.0", False),
    ],
)
def test_builds_of_a_release_fit(installed: str, fits: bool) -> None:
    assert (version_problem("torch", installed, "2.13") is None) == fits


def test_the_dependencies_are_bound_to_the_releases_that_are_checked() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert project["dependencies"] == ["torch>=2.13,<2.14", "torchjd>=0.18,<0.19"]
