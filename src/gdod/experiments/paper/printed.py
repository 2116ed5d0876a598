"""The figures that the paper prints (`printed.json`: GDOD, CIKM 2022, doi 10.1145/3511808.3557333)."""

import json
from functools import lru_cache
from importlib.resources import files
from typing import Any


@lru_cache(maxsize=1)
def printed() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((files("gdod.experiments.paper") / "printed.json").read_text(encoding="utf-8"))
    return found


SOURCE = "Dong et al., GDOD, CIKM 2022, doi 10.1145/3511808.3557333"
