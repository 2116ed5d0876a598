"""What the commands write to the terminal, in which no name of a column, a task or a file can steer it."""

from typing import TYPE_CHECKING, Any

import typer

from gdod._checks import visible

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text


def say(text: str, *, err: bool = False) -> None:
    """Print text, and \\x1b and the like in place of signs that would move the cursor or change colours."""
    typer.echo(visible(text), err=err)


def screen(*, stderr: bool = False) -> "Console":
    """Return a console that prints text as `say` does. Brackets and colons in names are no markup either."""
    from rich.console import Console

    class Screen(Console):
        def render_str(self, text: str, **options: Any) -> "Text":
            return super().render_str(visible(text), **options)

    return Screen(stderr=stderr, markup=False, highlight=False, emoji=False)
