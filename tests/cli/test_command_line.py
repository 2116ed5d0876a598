"""docs/command-line.md says what is there: commands, exit codes, `--json`."""

import re
from pathlib import Path

import typer.main

from gdod.cli import app, compare, train
from gdod.training.launch import LOST

TEXT = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text(encoding="utf-8")
CODES = {int(code) for row in re.findall(r"^\| ([\d, ]+) \|", TEXT, re.MULTILINE) for code in row.split(",")}


def test_every_exit_code_is_in_the_table() -> None:
    assert {0, 1, train.WRONG_INPUT, train.NON_FINITE, train.SYSTEM, compare.SOME_FAILED, LOST, 130, 143} == CODES


def test_codes_in_help_texts_are_those_of_the_table() -> None:
    for text in (train.EXIT_CODES, compare.EXIT_CODES):
        codes = {int(code) for code in re.findall(r"\b(\d+) (?:done|wrong|a loss|the system|some|stopped|by)", text)}
        assert {0, 2, 3, 4, 130, 143} <= codes <= CODES


def test_every_command_with_json_is_in_the_table() -> None:
    found = set()
    for path, command in commands(typer.main.get_command(app)):
        if any("--json" in option.opts for option in command.params):  # type: ignore[attr-defined]
            found.add(f"gdod {' '.join(path)}")
    assert found == set(re.findall(r"`(gdod [a-z ]+) --json`", TEXT))


def commands(command: object, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], object]]:
    below = getattr(command, "commands", {})
    if not below:
        return [(path, command)]
    return [one for name, other in below.items() for one in commands(other, (*path, name))]
