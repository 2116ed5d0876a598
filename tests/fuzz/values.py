"""Values that a person, or a program gone wrong, may write where another was expected."""

import json
import math
from typing import Any

from hypothesis import strategies as st

WORDS = st.sampled_from(
    (
        *(
            "",
            " ",
            "0",
            "1",
            "-1",
            "true",
            "no",
            "nan",
            "1e999",
            "a,b",
            "a\tb",
            "a\nb",
            '"',
            "'",
            "x" * 300,
            "ä",
            "日本",
        ),
        *("\0", "click", "user", "age", "auto", "[1]", "{}", "~", "2024-02-30", "../..", "/", "%", "\ud800", "name"),
        *("self", "cls", "data"),
    )
)
NUMBERS = st.one_of(
    st.sampled_from([0, 1, -1, 2, 3, 0.5, 0.1, 1e-300, 1e300, -0.0, 10**9, 2**31, 2**63, -(2**63), 10**30, 10**400]),
    st.sampled_from([math.nan, math.inf, -math.inf]),
    st.integers(-5, 70),
    st.floats(),
)
LEAVES = st.one_of(st.none(), st.booleans(), NUMBERS, WORDS, st.text(max_size=6))
ANYTHING: st.SearchStrategy[Any] = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3), max_leaves=5
)


def toml(value: Any) -> str:
    """Return a value as TOML has it; what TOML cannot say becomes something it may refuse."""
    if isinstance(value, dict):
        there = {key: item for key, item in value.items() if item is not None}
        return "{" + ", ".join(f"{json.dumps(str(key))} = {toml(item)}" for key, item in there.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return json.dumps(value)


def toml_file(settings: dict[str, Any]) -> str:
    return "".join(f"{json.dumps(str(key))} = {toml(value)}\n" for key, value in settings.items() if value is not None)


# Pieces of YAML and TOML, put together without sense.
PIECES = (
    *("data", "columns", "batch", "model", "a", ": ", ":", "\n", "\n  ", "- ", "[", "]", "{", "}", ", ", '"', "'", "="),
    *("&a ", "*a", "<<: ", "? ", "| ", "!!int ", "!!timestamp ", "!!bool ", "!!float ", "!!binary ", "!!set ", "%"),
    *("2024-13-45", "0x", "0b2", "1:99", "1_0", "9" * 5000, ".inf", "# ", "\t", "\0", "---", "...", "[[a]]", "ü"),
    "[" * 400,
)
SCRAPS = st.lists(st.sampled_from(PIECES), max_size=14).map("".join)
