"""docs/models.md says what the code does. Its Python blocks run in tests/test_docs.py."""

from pathlib import Path

from benchmarks.models import CENSUS, parameters_table
from tests.models.cases import tasks_of

from gdod.models import MODELS, Config, build
from gdod.models.features import Features

DOCUMENT = (Path(__file__).parents[2] / "docs" / "models.md").read_text()


def test_parameters_are_counted_by_the_command() -> None:
    assert parameters_table() in DOCUMENT
    features = Features(CENSUS, Config())
    assert f"vector of {features.width} numbers" in DOCUMENT
    assert f"{sum(p.numel() for p in features.parameters()):,} numbers" in DOCUMENT


def test_every_model_and_every_option_is_described() -> None:
    for name in MODELS:
        assert f"`{name}`" in DOCUMENT
        for option in vars(build(name, CENSUS, [task for task in tasks_of(name) if task.kind == "binary"]).config):
            assert f"`{option}`" in DOCUMENT, (name, option)
