"""Where copies of the published data sets are, for tests that need them."""

import os
from pathlib import Path

import pytest

FOLDER = Path(os.environ.get("GDOD_DATA") or Path(__file__).parents[2].parent / "shared/data")


def real(name: str) -> Path:
    if not (FOLDER / name).is_dir():
        pytest.skip(f"needs the published files in {FOLDER / name}; set GDOD_DATA to the folder that holds {name}")
    return FOLDER / name
