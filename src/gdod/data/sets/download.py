"""Fetches data sets from their owners: with progress, going on where a connection broke, checked.

A file arrives as `NAME.part` and gets its name when it is whole and its checksum is right, so that a file
with its own name can be trusted.
"""

import gzip
import hashlib
import io
import re
import shutil
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from http.client import HTTPException, HTTPResponse
from pathlib import Path, PurePosixPath
from typing import IO

from gdod.data.sets.published import damage_told, digest, is_tar
from gdod.errors import InputError

Progress = Callable[[int, int | None], None]
"""Called with the bytes that are here, and with those there will be, if the server says so."""

ATTEMPTS = 5
PIECE = 1 << 16
TIMEOUT = 60.0  # seconds without a byte
LARGEST = 8 << 30
"""Bytes that an archive may unpack to: none of the data sets comes near it, a made-up archive may."""


@dataclass(frozen=True)
class Download:
    """Where a file is, and how to know that it is the right one."""

    url: str
    name: str
    sha256: str | None = None
    md5: str | None = None
    """Where nobody has published a sha256."""
    unpacked: Mapping[str, str] = field(default_factory=dict)
    """sha256 of files inside of it, by name."""
    told: bool = False
    """Whether the sha256 is what somebody gave in place of what is expected."""


@dataclass(frozen=True)
class ByHand:
    """What is only given to people who log in."""

    page: str
    files: tuple[str, ...]
    hint: str


PUBLIC: dict[str, Download] = {
    "census": Download(
        # Holds census.tar.gz, and that the two files.
        "https://archive.ics.uci.edu/static/public/117/census+income+kdd.zip",
        "census+income+kdd.zip",
        unpacked={
            "census-income.data": "3676a81db7d3528f3f8b9f3c699d0f0aa28db45e6e994fa0b8ed38327539ee86",
            "census-income.test": "98402b1ab879573d0a7f38a699a40258080e25e33d3401e7bf9c96d3fa0fab8c",
        },
    ),
    "bookcrossing": Download(
        "http://www2.informatik.uni-freiburg.de/~cziegler/BX/BX-CSV-Dump.zip",
        "BX-CSV-Dump.zip",
        # As recorded in public by a project that used the file; the owner gives none.
        md5="37d647ee9e18ba134ea6d78ee4fe5292",
    ),
}
BY_HAND: dict[str, ByHand] = {
    "ijcai15": ByHand(
        "https://tianchi.aliyun.com/dataset/42",
        ("user_log_format1.csv", "user_info_format1.csv"),
        "both are in data_format1.zip there, which may stay as it is",
    )
}


def fetch(wanted: Download, folder: Path, progress: Progress | None = None, *, pause: float = 1.0) -> Path:
    """Downloads the file into the folder, checks it, and unpacks it there. What is there already is kept.

    Args:
        progress: told how far it has come.
        pause: seconds before the second attempt, doubled before each further one.
    """
    _make(folder)
    path, part = folder / wanted.name, folder / f"{wanted.name}.part"
    if path.exists():
        known = _as_told_before(wanted, folder)
        try:
            _accept(known, path, folder)
        except InputError as error:
            raise InputError(f"{error}. It was there already; remove it to fetch it again") from error
        _remember(known, folder)
        return path
    _fetch_part(wanted.url, part, progress or (lambda here, total: None), pause)
    try:
        _accept(wanted, part, folder)
    except InputError as error:
        # Out of the way: going on with it would never make it right.
        wrong = part.replace(folder / f"{wanted.name}.wrong")
        raise InputError(
            f"what came from {wanted.url} is not what was expected: {error}. It is kept as {wrong}. "
            "Try again; if that is the same, the owner has changed the file"
        ) from error
    _remember(wanted, folder)
    return part.replace(path)


def other(wanted: Download, sha256: str) -> Download:
    """The same with a file that somebody says is right, whatever is expected."""
    if re.fullmatch(r"[0-9a-fA-F]{64}", sha256) is None:
        raise InputError(f"sha256={sha256!r}; expected 64 signs from 0 to 9 and a to f")
    return replace(wanted, sha256=sha256.lower(), md5=None, unpacked={}, told=True)


def _as_told_before(wanted: Download, folder: Path) -> Download:
    note = _note(wanted, folder)
    return wanted if wanted.told or not note.is_file() else other(wanted, note.read_text()[:64])


def _remember(wanted: Download, folder: Path) -> None:
    """Beside the file and in the form of `sha256sum`, so that asking for it again without a sha256 finds it right."""
    if wanted.told:
        _note(wanted, folder).write_text(f"{wanted.sha256}  {wanted.name}\n")
    else:
        _note(wanted, folder).unlink(missing_ok=True)


def _note(wanted: Download, folder: Path) -> Path:
    return folder / f"{wanted.name}.sha256"


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InputError(f"nothing can be put into {folder}: {error.strerror}; choose another with --folder") from error


def _accept(wanted: Download, path: Path, folder: Path) -> None:
    """Checks the file, and puts what it holds into the folder."""
    for kind in ("sha256", "md5"):
        expected = getattr(wanted, kind)
        if expected is not None and (found := digest(path, kind)) != expected.lower():
            raise InputError(f"the {kind} of {path} is {found}, not {expected}")
    if wanted.name.endswith(".zip") or is_tar(wanted.name):
        unpack(path, folder, expected=wanted.unpacked)


def _fetch_part(url: str, part: Path, progress: Progress, pause: float) -> None:
    """Tries again as long as more comes, and a few times when nothing does."""
    most, failures = _size(part), 0
    while True:
        try:
            _fetch_rest(url, part, progress)
            return
        except urllib.error.HTTPError as error:
            with error:
                if error.code < 500 and error.code not in (408, 429):
                    raise InputError(
                        f"{url} answered {error.code} {error.reason}; is the address still right?"
                    ) from error
            problem: Exception = error
        except (OSError, HTTPException) as error:
            problem = error
        failures = 0 if _size(part) > most else failures + 1
        most = max(most, _size(part))
        if failures == ATTEMPTS:
            raise InputError(
                f"{url} could not be fetched ({problem}); {_size(part):,} bytes are kept in {part}, "
                "and the same command goes on from there"
            ) from problem
        time.sleep(pause * 2**failures)


def _fetch_rest(url: str, part: Path, progress: Progress) -> None:
    have = _size(part)
    # Some servers turn away callers without a name.
    request = urllib.request.Request(url, headers={"User-Agent": "gdod", "Accept-Encoding": "identity"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        answer: HTTPResponse = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code != 416 or not have:
            raise
        # Nothing lies beyond what is here: it is whole, or not of this file. The checksum tells.
        error.close()
        return
    with answer:
        goes_on = answer.status == 206 and answer.headers.get("Content-Range", "").startswith(f"bytes {have}-")
        if not goes_on:
            have = 0  # the whole file comes, whatever was asked for
        length = answer.headers.get("Content-Length")
        total = None if length is None else have + int(length)
        with part.open("ab" if have else "wb") as written:
            progress(have, total)
            while piece := answer.read(PIECE):
                written.write(piece)
                have += len(piece)
                progress(have, total)
    if total is not None and have < total:
        raise ConnectionError(f"the connection broke after {have:,} of {total:,} bytes")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def unpack(archive: Path, folder: Path, expected: Mapping[str, str] | None = None) -> list[Path]:
    """Unpacks a zip or tar (and a tar inside a zip) into the folder; nothing outside of it is written.

    Names that lead out of the folder, links and anything but plain files are refused before a file is
    written, and files get their names when all are there and right.
    """
    with damage_told(str(archive)), tempfile.TemporaryDirectory(prefix=".unpacking-", dir=folder) as work:
        found = _unpack(archive.open("rb"), str(archive), Path(work))
        for path in [path for path in found if is_tar(path.name)]:
            found += _unpack(path.open("rb"), f"{archive}:{path.name}", path.parent)
            found.remove(path)
        for name, sha256 in (expected or {}).items():
            _check_member(archive, Path(work), found, name, sha256)
        made = []
        for path in found:
            target = folder / path.relative_to(work)
            target.parent.mkdir(parents=True, exist_ok=True)
            made.append(path.replace(target))
        return made


def _check_member(archive: Path, work: Path, found: list[Path], name: str, sha256: str) -> None:
    named = [path for path in found if path.name in (name, f"{name}.gz")]
    if not named:
        names = ", ".join(str(path.relative_to(work)) for path in found) or "nothing"
        raise InputError(f"{archive} holds {names}; expected {name}")
    for path in named:
        content = digest(path) if path.name == name else _gz_digest(path)
        if content != sha256:
            raise InputError(
                f"{name} in {archive} has the sha256 {content}, not {sha256}; remove the archive, try again"
            )


def _gz_digest(path: Path) -> str:
    with gzip.open(path) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _unpack(stream: IO[bytes], name: str, folder: Path) -> list[Path]:
    with stream:
        start = stream.read(2)
        stream.seek(0)
        return _unzip(stream, name, folder) if start == b"PK" else _untar(stream, name, folder)


def _unzip(stream: IO[bytes], name: str, folder: Path) -> list[Path]:
    with zipfile.ZipFile(stream) as archive:
        entries = [entry for entry in archive.infolist() if not entry.is_dir()]
        targets = [_inside(folder, entry.filename, name) for entry in entries]
        for entry in entries:
            # The upper half of these bits is the Unix mode; 0xA000 marks a link.
            if (entry.external_attr >> 16) & 0xF000 == 0xA000:
                raise InputError(f"{name} holds a link, {entry.filename!r}; it is not unpacked")
        _check_size(name, sum(entry.file_size for entry in entries))
        for entry, target in zip(entries, targets, strict=True):
            with archive.open(entry) as content:
                _write(content, target)
        return targets


def _untar(stream: IO[bytes], name: str, folder: Path) -> list[Path]:
    with tarfile.open(fileobj=stream) as archive:
        members = [member for member in archive.getmembers() if not member.isdir()]
        targets = [_inside(folder, member.name, name) for member in members]
        for member in members:
            if not member.isfile():
                raise InputError(f"{name} holds {member.name!r}, which is no plain file; it is not unpacked")
        _check_size(name, sum(member.size for member in members))
        for member, target in zip(members, targets, strict=True):
            _write(archive.extractfile(member) or io.BytesIO(), target)
        return targets


def _inside(folder: Path, member: str, archive: str) -> Path:
    pure = PurePosixPath(member.replace("\\", "/"))
    if pure.is_absolute() or ".." in pure.parts or not pure.parts or ":" in pure.parts[0]:
        raise InputError(f"{archive} holds {member!r}, which leads out of the folder; it is not unpacked")
    return folder.joinpath(*pure.parts)


def _check_size(archive: str, size: int) -> None:
    if size > LARGEST:
        raise InputError(f"{archive} unpacks to {size:,} bytes, more than {LARGEST:,}; it is not unpacked")


def _write(content: IO[bytes], target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as written:
        shutil.copyfileobj(content, written, PIECE)
