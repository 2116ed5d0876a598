"""Fetch data sets from their owners, with progress, going on where a connection broke, and check them.

A file arrives as `NAME.part` and gets its name when it is whole and its checksum is right, so that a file
with its own name can be trusted.
"""

import gzip
import hashlib
import io
import re
import shutil
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from http.client import HTTPException, HTTPResponse
from pathlib import Path, PurePosixPath

from gdod._files import check_writable, digest, make_folder
from gdod.data.sets.archives import explain_damage, is_tar, members
from gdod.errors import InputError

Progress = Callable[[int, int | None], None]
"""A function that is called with the number of bytes that are here, and of all bytes, if the server says so."""

ATTEMPTS = 5
PIECE = 1 << 16
TIMEOUT = 60.0  # seconds without a byte
LARGEST = 8 << 30
"""The most bytes that an archive may unpack to: none of the data sets comes near it, a made-up archive may."""


@dataclass(frozen=True)
class Download:
    """The address of a file, and checksums that tell whether it is the right one."""

    url: str
    name: str
    sha256: str | None = None
    md5: str | None = None
    """For a file of which nobody has published a sha256."""
    unpacked: Mapping[str, str] = field(default_factory=dict)
    """The sha256 of files inside of it, by name."""
    told: bool = False
    """Whether the user gave the sha256, in place of the checksums that are expected."""


@dataclass(frozen=True)
class ByHand:
    """Files that are only given to people who log in, so that the user has to fetch them."""

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
    "drugs": Download(
        "https://archive.ics.uci.edu/static/public/373/drug+consumption+quantified.zip",
        "drug+consumption+quantified.zip",
        unpacked={"drug_consumption.data": "37333e8db8a5529906b3729e5131d41313b5fa3f50dc3afeb4add892108be213"},
    ),
}
BY_HAND: dict[str, ByHand] = {
    "ijcai15": ByHand(
        "https://tianchi.aliyun.com/dataset/42",
        ("user_log_format1.csv", "user_info_format1.csv"),
        "both are in data_format1.zip there, which may stay as it is",
    )
}


def fetch(
    wanted: Download,
    folder: Path,
    progress: Progress | None = None,
    *,
    pause: float = 1.0,
    say: Callable[[str], object] = lambda text: None,
) -> Path:
    """Download the file into the folder, check it, unpack it there, and return its path. A file that is there is kept.

    Args:
        wanted: the file, from `PUBLIC`, or as `other` returns it.
        folder: made if it is not there.
        progress: called after every piece.
        pause: seconds before the second attempt, doubled before each further one.
        say: told when there is an attempt to wait for.
    """
    make_folder(folder, "--folder")
    check_writable(folder, "--folder")
    path, part = folder / wanted.name, folder / f"{wanted.name}.part"
    if path.exists():
        known = _as_told_before(wanted, folder)
        try:
            _accept(known, path, folder)
        except InputError as error:
            raise InputError(f"{error}. It was there already; remove it to fetch it again") from error
        _remember(known, folder)
        return path
    _fetch_part(wanted.url, part, progress or (lambda here, total: None), pause, say)
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
    """Return the same download for a file with this sha256, whatever checksums are expected."""
    if re.fullmatch(r"[0-9a-fA-F]{64}", sha256) is None:
        raise InputError(f"sha256={sha256!r}; expected 64 signs from 0 to 9 and a to f")
    return replace(wanted, sha256=sha256.lower(), md5=None, unpacked={}, told=True)


def _as_told_before(wanted: Download, folder: Path) -> Download:
    note = _note(wanted, folder)
    return wanted if wanted.told or not note.is_file() else other(wanted, note.read_text()[:64])


def _remember(wanted: Download, folder: Path) -> None:
    """Write a sha256 that the user gave beside the file, so that asking again without it finds the file right."""
    if wanted.told:
        _note(wanted, folder).write_text(f"{wanted.sha256}  {wanted.name}\n")
    else:
        _note(wanted, folder).unlink(missing_ok=True)


def _note(wanted: Download, folder: Path) -> Path:
    return folder / f"{wanted.name}.sha256"


def _accept(wanted: Download, path: Path, folder: Path) -> None:
    """Check the file, and unpack it into the folder if it is an archive."""
    for kind in ("sha256", "md5"):
        expected = getattr(wanted, kind)
        if expected is not None and (actual := digest(path, kind)) != expected.lower():
            raise InputError(f"the {kind} of {path} is {actual}, not {expected}")
    if wanted.name.endswith(".zip") or is_tar(wanted.name):
        unpack(path, folder, expected=wanted.unpacked)


def _fetch_part(url: str, part: Path, progress: Progress, pause: float, say: Callable[[str], object]) -> None:
    """Fetch the file; try again as long as more of it comes, and a few times when nothing does."""
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
        say(f"{url} cannot be reached ({problem}); trying again in {pause * 2**failures:g} s")
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
    """Unpack a zip or tar (and a tar inside a zip) into the folder, and return the paths of its files.

    Nothing outside of the folder is written: names that lead out of it, links and anything but plain files are
    refused before a file is written. Files get their names when all are there and right.
    """
    with explain_damage(str(archive)), tempfile.TemporaryDirectory(prefix=".unpacking-", dir=folder) as work:
        unpacked = _unpack(archive, str(archive), Path(work))
        for path in [path for path in unpacked if is_tar(path.name)]:
            unpacked += _unpack(path, f"{archive}:{path.name}", path.parent)
            unpacked.remove(path)
        for name, sha256 in (expected or {}).items():
            _check_member(archive, Path(work), unpacked, name, sha256)
        made = []
        for path in unpacked:
            target = folder / path.relative_to(work)
            target.parent.mkdir(parents=True, exist_ok=True)
            made.append(path.replace(target))
        return made


def _check_member(archive: Path, work: Path, unpacked: list[Path], name: str, sha256: str) -> None:
    named = [path for path in unpacked if path.name in (name, f"{name}.gz")]
    if not named:
        names = ", ".join(str(path.relative_to(work)) for path in unpacked) or "nothing"
        raise InputError(f"{archive} holds {names}; expected {name}")
    for path in named:
        with path.open("rb") if path.name == name else gzip.open(path) as stream:
            content = hashlib.file_digest(stream, "sha256").hexdigest()
        if content != sha256:
            raise InputError(
                f"{name} in {archive} has the sha256 {content}, not {sha256}; remove the archive, try again"
            )


def _unpack(archive: Path, name: str, folder: Path) -> list[Path]:
    with archive.open("rb") as stream, ExitStack() as opened:
        inside = members(stream, opened)
        targets = [_inside(folder, member.name, name) for member in inside]
        for member in inside:
            if not member.plain:
                raise InputError(f"{name} holds {member.name!r}, a link or no plain file; it is not unpacked")
        if (size := sum(member.size for member in inside)) > LARGEST:
            raise InputError(f"{name} unpacks to {size:,} bytes, more than {LARGEST:,}; it is not unpacked")
        for member, target in zip(inside, targets, strict=True):
            target.parent.mkdir(parents=True, exist_ok=True)
            with member.open() or io.BytesIO() as content, target.open("wb") as written:
                shutil.copyfileobj(content, written, PIECE)
        return targets


def _inside(folder: Path, member: str, archive: str) -> Path:
    pure = PurePosixPath(member.replace("\\", "/"))
    if pure.is_absolute() or ".." in pure.parts or not pure.parts or ":" in pure.parts[0]:
        raise InputError(f"{archive} holds {member!r}, which leads out of the folder; it is not unpacked")
    return folder.joinpath(*pure.parts)
