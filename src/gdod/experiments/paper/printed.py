"""The figures that the paper prints (`printed.json`: GDOD, CIKM 2022, doi 10.1145/3511808.3557333)."""

from functools import lru_cache
from pathlib import Path
from typing import Any

from gdod._files import read_json


@lru_cache(maxsize=1)
def printed() -> dict[str, Any]:
    """Return the figures by table, as `printed.json` has them."""
    return read_json(Path(__file__).with_name("printed.json"), "the paper's figures")


SOURCE = "Dong et al., GDOD, CIKM 2022, doi 10.1145/3511808.3557333"
