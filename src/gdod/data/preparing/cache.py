"""Keep prepared data under the hash of its inputs, written whole or not at all."""

import errno
import hashlib
import io
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq
from pydantic import BaseModel, Field

from gdod._files import digest, write_text
from gdod.data.preparing import counts
from gdod.data.tables.frames import arrow
from gdod.data.tables.raw_table import CHUNK_ROWS
from gdod.errors import InputError

# Part of every fingerprint: raise it when the stored form or the way to it changes.
VERSION = 2
# Likewise part of the fingerprint of data that was prepared with `FeatureOptions`.
FEATURES_VERSION = 4
# Larger files are hashed once, and again when their size or a time of change differs.
_LARGE = 64 << 20
_STALE_SECONDS = 24 * 3600


def cache_folder(cache: str | Path | None) -> Path:
    """Return the given folder, or $GDOD_CACHE, or ~/.cache/gdod."""
    return Path(cache or os.environ.get("GDOD_CACHE") or "~/.cache/gdod").expanduser()


def fingerprint(values: Mapping[str, Any]) -> str:
    """Return a hash of plain values and of the version of the prepared form."""
    text = json.dumps({"version": VERSION, **values}, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def hash_files(files: Iterable[Path], cache: Path) -> list[str]:
    """Return the hash of each file's content; those of large files are kept in the cache."""
    return [_hash(path, cache) for path in files]


def _hash(path: Path, cache: Path) -> str:
    try:
        about = path.stat()
        if about.st_size < _LARGE:
            return digest(path)
        # The time of modification can be set back, as `touch -r` and `rsync --times` do; st_ctime cannot.
        state = (about.st_size, about.st_mtime_ns, about.st_ctime_ns, about.st_ino)
        memo = cache / "hashes" / hashlib.sha256(f"{path.resolve()} {state}".encode()).hexdigest()
        if memo.is_file():
            return memo.read_text()
        content = digest(path)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    # A file that changed just now may change again within the resolution of its time of change.
    if time.time() - max(about.st_mtime, about.st_ctime) > 2:
        with suppress(OSError):  # a cache that can only be read
            memo.parent.mkdir(parents=True, exist_ok=True)
            write_text(memo, content)
    return content


class _Hashed(io.RawIOBase):
    """A file that only keeps the hash of what is written to it."""

    def __init__(self) -> None:
        self.hash = hashlib.sha256()

    def writable(self) -> bool:
        return True

    def write(self, content: Any) -> int:
        self.hash.update(content)
        return len(content)


def hash_frame(frame: pl.DataFrame) -> str:
    """Return the hash of a frame's content: that of the Parquet file it would be, of which nothing is kept."""
    sink = _Hashed()
    with pq.ParquetWriter(
        sink, arrow(frame.clear()).schema, compression="none", use_dictionary=False, write_statistics=False
    ) as writer:
        for first in range(0, len(frame), CHUNK_ROWS):
            writer.write_table(arrow(frame[first : first + CHUNK_ROWS]).cast(writer.schema))
    return sink.hash.hexdigest()


_NO_ROOM = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)


def build_folder(target: Path, build: Callable[[Path], None]) -> None:
    """Let ``build`` fill a folder beside ``target``, then put it in its place.

    If ``build`` fails, everything is as it was before. If another process was quicker, its folder stays:
    the content has the same hash.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove_stale(target.parent)
        work = Path(tempfile.mkdtemp(dir=target.parent, prefix=".making-"))
    except OSError as error:
        raise InputError(
            f"prepared data cannot be kept in {target.parent}: {error.strerror}; choose another cache with the "
            "environment variable GDOD_CACHE"
        ) from error
    try:
        build(work)
        if target.exists() and not is_whole(target):
            _remove_at_once(target, work.with_name(f"{work.name}-old"))
        try:
            os.rename(work, target)
        except OSError:
            if not is_whole(target):
                raise
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        raise OSError(  # the libraries that write tables do not say where
            f"prepared data cannot be kept in {target.parent}: {os.strerror(error.errno)}; make room, or choose "
            "another cache with the environment variable GDOD_CACHE"
        ) from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _remove_at_once(folder: Path, aside: Path) -> None:
    """Remove a folder so that other processes never see a part of it; one that is gone was removed by one of them."""
    with suppress(FileNotFoundError):
        os.rename(folder, aside)
    shutil.rmtree(aside, ignore_errors=True)


def _remove_stale(folder: Path) -> None:
    """Remove the folders that killed processes left behind."""
    for path in folder.glob(".making-*"):
        with suppress(OSError):  # another process was quicker
            if time.time() - path.stat().st_mtime > _STALE_SECONDS:
                shutil.rmtree(path, ignore_errors=True)


def clean(cache: Path, days: float) -> tuple[int, int]:
    """Remove prepared data that was last used so many days ago, or longer; return how many folders, and their bytes.

    It is made again when it is needed. A folder's time of use is that of its about.json.
    """
    removed = size = 0
    before = time.time() - days * 24 * 3600
    _remove_stale(cache / "prepared")
    for folder in sorted((cache / "prepared").glob("[!.]*")):  # other processes may be making those with a dot
        if folder.is_symlink() or not folder.is_dir():
            continue
        about = folder / "about.json"
        used = about.stat() if about.is_file() else folder.stat()
        if max(used.st_atime, used.st_mtime) <= before:
            size += sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
            shutil.rmtree(folder)
            removed += 1
    for memo in (cache / "hashes").glob("*"):
        if memo.stat().st_mtime <= before:
            memo.unlink(missing_ok=True)
    return removed, size


class _About(BaseModel):
    """The keys that about.json must have for prepared data to be opened."""

    name: str
    fingerprint: str
    rows: dict[str, int]
    parts: dict[str, dict[str, Any]]
    notes: list[str]
    files: dict[str, int] = Field(min_length=1)
    checksums: dict[str, str] = {}
    """Of the files; earlier versions wrote none."""


def is_whole(folder: Path) -> bool:
    """Return whether about.json can be understood, and all files are there as they were written."""
    try:
        about = _About.model_validate_json((folder / "about.json").read_bytes())
        if counts.FILE not in about.files:  # of a version without them; it is made again, for runs that can be updated
            return False
        if any((folder / name).stat().st_size != size for name, size in about.files.items()):
            return False
        memos = folder.parent.parent  # the cache, as `prepare` has it
        return all(_hash(folder / name, memos) == value for name, value in about.checksums.items())
    except (OSError, ValueError):  # pydantic's error is a ValueError, and so is ours
        return False
