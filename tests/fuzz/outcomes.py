"""What may come of any input: a result, or an error of the project's own with one readable message."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from gdod.errors import InputError
from gdod.training.interruption import NonFiniteError

T = TypeVar("T")


def attempt(call: Callable[[], T]) -> T | None:
    """Return the result; None if the input was refused. Any other exception, and any warning, is a failure."""
    try:
        return call()
    except (InputError, NonFiniteError) as error:
        message = str(error)
        assert message.strip()
        return None
    except ImportError as error:
        if "pip install" not in str(error):
            raise
        return None


def content(folder: Path) -> dict[Path, bytes]:
    """Return all files below a folder."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
