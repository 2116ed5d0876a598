"""Files that are whole or not there at all, whatever happens while they are written; and room for them."""

import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from gdod.errors import InputError


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A place to write to, which takes the name ``path`` at the end; after an error nothing is left."""
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.part")
    try:
        yield part
        _to_disk(part)
        os.replace(part, path)
        _to_disk(path.parent)
    finally:
        part.unlink(missing_ok=True)


def write(path: Path, content: Callable[[BinaryIO], object]) -> None:
    with whole(path) as part, part.open("wb") as file:
        content(file)


def write_json(path: Path, content: Any) -> None:
    text = json.dumps(content, indent=2, allow_nan=False, ensure_ascii=False) + "\n"
    write(path, lambda file: file.write(text.encode()))


def read_json(path: Path, what: str) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError(f"{path} is missing; expected {what}") from error
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not valid JSON ({error}); expected {what}") from error
    if not isinstance(found, dict):
        raise InputError(f"{path} holds a {type(found).__name__}; expected {what}")
    return found


def remove_parts(folder: Path) -> None:
    """Takes away what a killed process left half written."""
    for part in folder.glob(".*.part"):
        part.unlink(missing_ok=True)


def check_writable(folder: Path) -> None:
    """Writes to the folder once, or to where it is going to be, to know before any work is done."""
    place = _existing(folder)
    probe = place / f".probe.{uuid.uuid4().hex[:8]}.part"
    try:
        with probe.open("wb") as file:
            file.write(bytes(4096))
        _to_disk(probe)
        probe.unlink()
    except OSError as error:
        with suppress(OSError):
            probe.unlink()
        raise InputError(
            f"the folder {folder} cannot be written to: {error.strerror}; choose another with --out"
        ) from error


def make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"the folder {folder} cannot be made: {error.strerror}; choose another with --out") from error


def check_space(folder: Path, needed: int) -> None:
    """Refuses to begin what the disk has no room for."""
    free = shutil.disk_usage(_existing(folder)).free
    if free < needed:
        raise InputError(
            f"{folder} has {_size(free)} free; checkpoints and records need about {_size(needed)}. "
            "Make room, or choose another folder with --out"
        )


def _existing(folder: Path) -> Path:
    """The folder itself, or the nearest above it that is there."""
    place = folder.absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    return place


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"


def _to_disk(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
