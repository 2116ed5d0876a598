"""Tests of what the commands write to the terminal."""

import pytest

from gdod.cli.terminal import say, screen


def test_no_text_steers_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    name = "a\x1b[31m\x07\x9b2J [b] :smile: ü"
    say(name)
    screen().print(name, soft_wrap=True)
    shown = screen()
    with shown.capture() as captured:
        shown.print(shown.render_str(name))
    expected = "a\\x1b[31m\\x07\\x9b2J [b] :smile: ü\n"
    assert capsys.readouterr().out == 2 * expected
    assert captured.get() == expected
