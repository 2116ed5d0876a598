"""Read JSON, write files whole or not at all, and check that there is a place and room for them."""

import hashlib
import json
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from gdod.errors import InputError

_SYSTEM_ERROR = re.compile(r"\(os error (\d+)\)")


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Give a path to write to, and rename it to ``path`` at the end; after an error nothing of it is left."""
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.part")
    try:
        with naming(path):
            yield part
            _to_disk(part)
            os.replace(part, path)
            _to_disk(path.parent)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Let an error of the system name the file that is being written: that of a full disk does not by itself."""
    try:
        yield
    except OSError as error:
        number = error.errno
        if number is None and (written := _SYSTEM_ERROR.search(str(error))):  # that of a library in Rust
            number = int(written[1])
        if number is None or error.filename is not None:
            raise
        raise OSError(number, os.strerror(number), str(path)) from error


def write(path: Path, content: Callable[[BinaryIO], object]) -> None:
    """Write a file whole or not at all; ``content`` gets the open file."""
    with whole(path) as part, part.open("wb") as file:
        content(file)


def write_text(path: Path, text: str) -> None:
    """Write text in UTF-8, the whole file or none of it."""
    write(path, lambda file: file.write(text.encode()))


def write_json(path: Path, content: Any) -> None:
    """Write plain values as JSON, the whole file or none of it; nan and infinity are refused."""
    write_text(path, json.dumps(content, indent=2, allow_nan=False, ensure_ascii=False) + "\n")


def read_json(path: Path, what: str) -> dict[str, Any]:
    """Return the object in a JSON file. ``what`` the file should hold is part of the error if it cannot be read."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError(f"{path} is missing; expected {what}") from error
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not valid JSON ({error}); expected {what}") from error
    if not isinstance(content, dict):
        raise InputError(f"{path} holds a {type(content).__name__}; expected {what}")
    return content


def try_read_json(path: Path) -> tuple[dict[str, Any] | None, str | None]:
    """Return the object in a JSON file, or None, and what is wrong with the file in words.

    A file that is not there is nothing wrong: both are None. nan and infinity are read as None.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"), parse_constant=lambda name: None)
    except FileNotFoundError:
        return None, None
    except (OSError, ValueError, RecursionError) as error:
        return None, f"{path.name} cannot be read: {type(error).__name__}"
    return (content, None) if isinstance(content, dict) else (None, f"{path.name} holds no object")


def read_json_lines(path: Path) -> tuple[list[dict[str, Any]], int]:
    """Return the objects in a file with one JSON object a line, and the number of lines that hold something else.

    A file that cannot be read has no lines, and empty lines do not count. nan and infinity are read as None.
    """
    objects, damaged = [], 0
    with suppress(OSError), path.open(encoding="utf-8", errors="replace") as lines:
        for line in filter(str.strip, lines):
            try:
                content = json.loads(line, parse_constant=lambda name: None)
            except (ValueError, RecursionError):
                content = None
            if isinstance(content, dict):
                objects.append(content)
            else:
                damaged += 1
    return objects, damaged


def digest(path: Path, kind: str = "sha256") -> str:
    """Return the checksum of a file's content in hexadecimal digits; ``kind`` as `hashlib` names it."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, kind).hexdigest()


def remove_parts(folder: Path) -> None:
    """Remove the half-written files that killed processes left in a folder."""
    for part in folder.glob(".*.part"):
        part.unlink(missing_ok=True)


def check_writable(folder: Path, option: str = "--out") -> None:
    """Raise unless the folder, or the place where it is going to be, can be written to: before any work is done."""
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
        reason = f"the folder {folder} cannot be written to: {error.strerror}"
        raise InputError(f"{reason}; choose another with {option}") from error


def make_folder(folder: Path, option: str = "--out") -> None:
    """Make a folder and those above it; if that fails, the error names the option to choose another with."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"the folder {folder} cannot be made: {error.strerror}; choose another with {option}"
        ) from error


def check_space(folder: Path, needed: int) -> None:
    """Raise if the disk has no room for so many bytes."""
    free = shutil.disk_usage(_existing(folder)).free
    if free < needed:
        raise InputError(
            f"{folder} has {_size(free)} free; checkpoints and records need about {_size(needed)}. "
            "Make room, or choose another folder with --out"
        )


def _existing(folder: Path) -> Path:
    """Return the folder itself, or the nearest above it that is there."""
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
