"""Finds a file of a published data set: as it is, compressed, or still inside the archive it came in."""

import gzip
import hashlib
import io
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, cast

from gdod.data.preparing.cache import cache_folder, hash_files
from gdod.errors import InputError

DAMAGE = (EOFError, zlib.error, gzip.BadGzipFile, zipfile.BadZipFile, tarfile.TarError)
"""What the standard library raises for archives that are cut short or corrupt."""


@dataclass(frozen=True)
class Published:
    """A file on disk, and the way to the wanted one inside of it."""

    path: Path
    inside: tuple[str, ...] = ()  # members of archives, from the outermost on

    def __str__(self) -> str:
        return ":".join((str(self.path), *self.inside))

    @property
    def short(self) -> str:
        """Without the folder, for notes that travel with the data."""
        return ":".join((self.path.name, *self.inside))

    @contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        """The wanted file's own bytes; damage on the way to them is told with the file's name."""
        with damage_told(str(self)), ExitStack() as opened:
            stream: IO[bytes] = opened.enter_context(self.path.open("rb"))
            for member in self.inside:
                stream = _open_member(stream, member, opened)
            if (self.inside[-1] if self.inside else self.path.name).endswith(".gz"):
                stream = cast(IO[bytes], opened.enter_context(gzip.GzipFile(fileobj=stream)))
            yield stream

    def read(self) -> bytes:
        with self.open() as stream:
            return stream.read()

    def copy_to(self, target: Path) -> None:
        with self.open() as stream, target.open("wb") as written:
            shutil.copyfileobj(stream, written, 1 << 20)


@contextmanager
def damage_told(name: str) -> Iterator[None]:
    try:
        yield
    except DAMAGE as error:
        raise InputError(
            f"{name} is cut short or corrupt ({error or type(error).__name__}); fetch it again from its owner"
        ) from error


def downloads_folder(name: str) -> Path:
    """Where the files of a data set with a name are put, and looked for if no folder is given."""
    return cache_folder(None) / "downloads" / name


def find_all(name: str, folder: Path | None, files: Iterable[str], archives: Sequence[str]) -> dict[str, Published]:
    """The files of the data set ``name``, in the given folder or where downloads are put."""
    if folder is None:
        folder = downloads_folder(name)
        if not folder.is_dir():
            raise InputError(
                f"the files of the data set {name!r} are not in {folder}; run `gdod data download {name}`, "
                "or name the folder that holds them"
            )
    return {file: find(folder, file, archives) for file in files}


def hashes(files: Iterable[Published]) -> str:
    """Of the files on disk, each once."""
    return " ".join(hash_files(sorted({file.path for file in files}), cache_folder(None)))


def find(folder: Path, name: str, archives: Sequence[str]) -> Published:
    """Looks for ``name`` and ``name.gz`` in the folder, one folder below, and in the named archives."""
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; expected the folder that holds {name}")
    wanted = (name, f"{name}.gz")
    for pattern in ("{}", "*/{}"):
        for each in wanted:
            # A folder may hold copies; the first by name, so that the choice is always the same.
            if found := sorted(path for path in folder.glob(pattern.format(each)) if path.is_file()):
                return Published(found[0])
    for archive in archives:
        if (path := folder / archive).is_file() and (inside := _look_inside(path, wanted)):
            return Published(path, inside)
    raise InputError(
        f"{folder} has no {name}; expected {name}, {name}.gz or the archive {' or '.join(archives)} with it inside"
    )


def digest(path: Path, kind: str = "sha256") -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, kind).hexdigest()


def is_tar(name: str) -> bool:
    return name.endswith((".tar", ".tar.gz", ".tgz"))


def _look_inside(path: Path, wanted: Sequence[str]) -> tuple[str, ...] | None:
    """The way to the first wanted name, in the archive or in an archive inside of it."""
    with damage_told(str(path)), ExitStack() as opened:
        stream = opened.enter_context(path.open("rb"))
        names = _names(stream)
        for name in names:
            if PurePosixPath(name).name in wanted:
                return (name,)
        for name in filter(is_tar, names):
            for inner in _names(_open_member(stream, name, opened)):
                if PurePosixPath(inner).name in wanted:
                    return (name, inner)
    return None


def _names(stream: IO[bytes]) -> list[str]:
    if _is_zip(stream):
        with zipfile.ZipFile(stream) as archive:
            return [entry.filename for entry in archive.infolist() if not entry.is_dir()]
    with tarfile.open(fileobj=stream) as tar:
        return [member.name for member in tar if member.isfile()]


def _open_member(stream: IO[bytes], member: str, opened: ExitStack) -> IO[bytes]:
    if _is_zip(stream):
        content = opened.enter_context(opened.enter_context(zipfile.ZipFile(stream)).open(member))
        # A tar is read back and forth, which is slow in a zip's own stream.
        return io.BytesIO(content.read()) if is_tar(member) else content
    file = opened.enter_context(tarfile.open(fileobj=stream)).extractfile(member)  # noqa: SIM115
    if file is None:
        raise tarfile.ReadError(f"{member} is not a file")
    return file


def _is_zip(stream: IO[bytes]) -> bool:
    stream.seek(0)
    start = stream.read(2)
    stream.seek(0)
    return start == b"PK"
