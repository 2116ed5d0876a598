"""Find the files of a published data set: as they are, compressed, or still inside the archive they came in."""

import gzip
import io
import shutil
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, cast

from gdod.data.preparing.cache import cache_folder, hash_files
from gdod.data.sets.archives import Member, explain_damage, is_tar, members
from gdod.data.sets.source import Source
from gdod.errors import InputError


@dataclass(frozen=True)
class Published:
    """A file of a data set: itself on disk, or a member of an archive there."""

    path: Path
    inside: tuple[str, ...] = ()
    """Names of members of archives, from the outermost on."""

    def __str__(self) -> str:
        return ":".join((str(self.path), *self.inside))

    @property
    def short(self) -> str:
        """The name without the folder, for notes that travel with the data."""
        return ":".join((self.path.name, *self.inside))

    @contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        """Open the file for reading, unpacked; damage is an `InputError` with the file's name."""
        with explain_damage(str(self)), ExitStack() as opened:
            stream: IO[bytes] = opened.enter_context(self.path.open("rb"))
            for name in self.inside:
                stream = _open({member.name: member for member in members(stream, opened)}[name], opened)
            if (self.inside[-1] if self.inside else self.path.name).endswith(".gz"):
                stream = cast(IO[bytes], opened.enter_context(gzip.GzipFile(fileobj=stream)))
            yield stream

    def read(self) -> bytes:
        with self.open() as stream:
            return stream.read()

    def copy_to(self, target: Path) -> None:
        with self.open() as stream, target.open("wb") as written:
            shutil.copyfileobj(stream, written, 1 << 20)


def downloads_folder(name: str) -> Path:
    """Return the folder where the files of a data set are put, and looked for if no folder is given."""
    return cache_folder(None) / "downloads" / name


class PublishedSet(Source):
    """Base class of the data sets that are read from files their owners publish."""

    name: str
    files: tuple[str, ...]
    """Names of the files that are read."""
    archives: tuple[str, ...]
    """Names of the archives that may hold them."""

    def find(self, folder: Path | None, files: Iterable[str] | None = None) -> dict[str, Published]:
        """Return the files (by default all) by name, from the given folder or where downloads are put."""
        if folder is None:
            folder = downloads_folder(self.name)
            if not folder.is_dir():
                raise InputError(
                    f"the files of the data set {self.name!r} are not in {folder}; run `gdod data download "
                    f"{self.name}`, or name the folder that holds them"
                )
        return {file: find(folder, file, self.archives) for file in files or self.files}

    def is_here(self, folder: Path | None = None, file: str | None = None) -> bool:
        try:
            self.find(folder, None if file is None else [file])
        except (InputError, OSError):  # not there, or damaged, or not to be read
            return False
        return True

    def hashes(self, folder: Path | None) -> str:
        """Return the hashes of the files on disk, each once, separated by spaces."""
        return " ".join(hash_files(sorted({file.path for file in self.find(folder).values()}), cache_folder(None)))


@dataclass(frozen=True)
class BadRows:
    """Lines of a file that were left out."""

    count: int
    first: int | None
    """The number of the first such line, from 1 on."""
    reason: str


def reading_notes(file: Published, rows: int, published: int, bad: BadRows) -> list[str]:
    """Return notes on bad rows, and on a number of rows that differs from the published one."""
    notes = []
    if bad.count:
        notes.append(f"{file.short}: left out {bad.count:,} bad rows ({bad.reason}; the first is line {bad.first})")
    if rows != published:
        notes.append(f"{file.short}: {rows:,} rows; as published there are {published:,}")
    return notes


def find(folder: Path, name: str, archives: Sequence[str]) -> Published:
    """Look for ``name`` and ``name.gz`` in the folder, one folder below, and in the named archives."""
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; expected the folder that holds {name}")
    wanted = (name, f"{name}.gz")
    for pattern in ("{}", "*/{}"):
        for each in wanted:
            # A folder may hold copies; the first by name, so that the choice is always the same.
            if copies := sorted(path for path in folder.glob(pattern.format(each)) if path.is_file()):
                return Published(copies[0])
    for archive in archives:
        if (path := folder / archive).is_file() and (inside := _look_inside(path, wanted)):
            return Published(path, inside)
    raise InputError(
        f"{folder} has no {name}; expected {name}, {name}.gz or the archive {' or '.join(archives)} with it inside"
    )


def _look_inside(path: Path, wanted: Sequence[str]) -> tuple[str, ...] | None:
    """Return the members that lead to the first wanted name, in the archive or in a tar inside of it."""
    with explain_damage(str(path)), ExitStack() as opened:
        outer = [member for member in members(opened.enter_context(path.open("rb")), opened) if member.plain]
        for member in outer:
            if PurePosixPath(member.name).name in wanted:
                return (member.name,)
        for member in outer:
            if is_tar(member.name):
                for inner in members(_open(member, opened), opened):
                    if inner.plain and PurePosixPath(inner.name).name in wanted:
                        return (member.name, inner.name)
    return None


def _open(member: Member, opened: ExitStack) -> IO[bytes]:
    stream = member.open()
    if stream is None:
        raise tarfile.ReadError(f"{member.name} is not a file")
    opened.enter_context(stream)
    # A tar is read back and forth, which is slow in a zip's own stream.
    return io.BytesIO(stream.read()) if is_tar(member.name) else stream
