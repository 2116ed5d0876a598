"""List and open the members of zip and tar archives."""

import gzip
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import IO, NamedTuple

from gdod.errors import InputError

DAMAGE = (EOFError, zlib.error, gzip.BadGzipFile, zipfile.BadZipFile, tarfile.TarError)
"""The errors that the standard library raises for archives that are cut short or corrupt."""


@contextmanager
def explain_damage(name: str) -> Iterator[None]:
    """Turn errors of damaged archives into an `InputError` that names the file and says what to do."""
    try:
        yield
    except DAMAGE as error:
        raise InputError(
            f"{name} is cut short or corrupt ({error or type(error).__name__}); fetch it again from its owner"
        ) from error


class Member(NamedTuple):
    """A member of an archive that is no folder."""

    name: str
    size: int
    plain: bool
    """Whether it is a file, and no link or device."""
    open: Callable[[], IO[bytes] | None]
    """Opens it for reading, as long as the archive is open; None if it is no file."""


def members(stream: IO[bytes], opened: ExitStack) -> list[Member]:
    """Return the members of the archive in a stream; it stays open until ``opened`` is closed."""
    start = stream.read(2)
    stream.seek(0)
    if start == b"PK":
        archive = opened.enter_context(zipfile.ZipFile(stream))
        entries = [entry for entry in archive.infolist() if not entry.is_dir()]
        # The upper half of the 32 bits is the Unix mode, and 0xA at its start marks a link.
        return [
            Member(entry.filename, entry.file_size, entry.external_attr >> 28 != 0xA, partial(archive.open, entry))
            for entry in entries
        ]
    tar = opened.enter_context(tarfile.open(fileobj=stream))  # noqa: SIM115
    infos = [info for info in tar.getmembers() if not info.isdir()]
    return [Member(info.name, info.size, info.isfile(), partial(tar.extractfile, info)) for info in infos]


def is_tar(name: str) -> bool:
    return name.endswith((".tar", ".tar.gz", ".tgz"))
