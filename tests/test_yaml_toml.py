"""Tests of YAML that a stranger wrote."""

import pytest

from gdod import InputError
from gdod.yaml_toml import parse_yaml


def test_references_are_followed() -> None:
    assert parse_yaml("a: &a [1, 2]\nb: [*a, *a]", "the text") == {"a": [1, 2], "b": [[1, 2], [1, 2]]}


@pytest.mark.parametrize("kind", ["lists", "mappings"])
def test_a_few_lines_cannot_become_more_than_memory_holds(kind: str) -> None:
    """Ten lines, of which each refers to the one before ten times, make ten thousand million values."""
    parts = [f"k{part}: " if kind == "mappings" else "" for part in range(10)]
    signs = "{}" if kind == "mappings" else "[]"
    lines = ["- &a0 1"]
    for line in range(1, 11):
        lines.append(f"- &a{line} {signs[0]}{', '.join(f'{part}*a{line - 1}' for part in parts)}{signs[1]}")
    with pytest.raises(InputError, match=r"the text is not valid YAML: its references .* more than 1,000,000 values"):
        parse_yaml("\n".join(lines), "the text")


def test_a_value_cannot_contain_itself() -> None:
    with pytest.raises(InputError, match="a value contains itself"):
        parse_yaml("a: &a {b: [*a]}", "the text")
