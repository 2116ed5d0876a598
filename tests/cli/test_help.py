"""What `--help` prints is what was written: nothing is taken for markup and swallowed."""

from collections.abc import Iterator

import pytest
import typer.main
from typer.testing import CliRunner

from gdod.cli import app


def commands(command: object, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    for name, below in getattr(command, "commands", {}).items():
        yield from commands(below, (*path, name))


@pytest.mark.parametrize(
    "path", list(commands(typer.main.get_command(app))), ids=lambda path: " ".join(("gdod", *path))
)
def test_help_texts_are_shown_whole(path: tuple[str, ...]) -> None:
    command = typer.main.get_command(app)
    for name in path:
        command = command.commands[name]  # type: ignore[attr-defined]
    shown = " ".join(CliRunner().invoke(app, [*path, "--help"], env={"COLUMNS": "400"}).stdout.split())
    texts = [text for one in command.params for text in (getattr(one, "help", None), one.metavar) if text]
    texts += [text for text in (command.help, command.epilog) if text]
    for text in texts:
        assert " ".join(text.split()) in shown


def test_defaults_that_depend_on_the_machine_are_told() -> None:
    for command in ("prepare", "download"):
        shown = CliRunner().invoke(app, ["data", command, "--help"], env={"COLUMNS": "400"}).stdout
        assert "$GDOD_CACHE or ~/.cache/gdod" in shown
