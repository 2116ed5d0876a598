"""Parse YAML and TOML that people wrote. Whatever is wrong with the text, the error is an `InputError`."""

import re
import tomllib
from collections import Counter
from contextlib import suppress
from typing import Any

import yaml

from gdod.errors import InputError

_MOST_VALUES = 1_000_000


class UniqueKeyLoader(yaml.SafeLoader):
    """YAML in which a key that stands twice is an error.

    So are references (`*name`) by which a value contains itself, or a few lines become more values than fit memory.
    """

    def construct_document(self, node: yaml.Node) -> Any:
        if _values(node, {}) > _MOST_VALUES:
            said = f"its references (*name) make more than {_MOST_VALUES:,} values of it"
            raise yaml.constructor.ConstructorError(None, None, said, node.start_mark)
        return super().construct_document(node)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]
        with suppress(TypeError):  # a key that is a list is refused below
            for key, times in Counter(keys).items():
                if times > 1:
                    said = f"the key {key!r} stands there twice"
                    raise yaml.constructor.ConstructorError(None, None, said, node.start_mark)
        return super().construct_mapping(node, deep)


def _values(node: yaml.Node, counted: dict[int, int | None]) -> int:
    """Return how many values a node holds, those in places that it refers to once for each reference."""
    if id(node) in counted:
        if (known := counted[id(node)]) is None:
            raise yaml.constructor.ConstructorError(None, None, "a value contains itself", node.start_mark)
        return known
    counted[id(node)] = None
    parts = [] if isinstance(node, yaml.ScalarNode) else node.value
    if isinstance(node, yaml.MappingNode):
        parts = [part for pair in node.value for part in pair]
    counted[id(node)] = count = 1 + sum(_values(part, counted) for part in parts)
    return count


class PlainWordsLoader(UniqueKeyLoader):
    """YAML in which yes, no, on and off are text, too: in a table they are names and labels, not truth values."""


PlainWordsLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:bool" or first in "tTfF"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def parse_yaml(text: str, what: str, loader: type[UniqueKeyLoader] = UniqueKeyLoader) -> Any:
    """Return the value of a YAML text. ``what`` the text is, such as "the schema ads.yaml", begins the error."""
    try:
        return yaml.load(text, loader)
    except RecursionError as error:
        raise InputError(f"{what} is nested too deeply") from error
    # A text without a value, such as the date 2024-13-45, is an error of any kind in the library.
    except Exception as error:
        said = " ".join(str(error).split()) or type(error).__name__  # the library's own is of several lines
        raise InputError(f"{what} is not valid YAML: {said}") from error


def parse_toml(text: str, what: str) -> dict[str, Any]:
    """Return the table of a TOML text. ``what`` the text is, such as "the schema ads.toml", begins the error."""
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise InputError(f"{what} is nested too deeply") from error
    except ValueError as error:
        raise InputError(f"{what} is not valid TOML: {error}") from error


def parse_value(text: str, what: str | None = None) -> Any:
    """Return the value of a YAML text, such as an option's; unlike in YAML 1.1, 1e-3 is a number, too."""
    value = parse_yaml(text, what or f"the value {text!r}")
    number = isinstance(value, str) and re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)e[-+]?\d+", value, re.IGNORECASE)
    return float(value) if number else value
