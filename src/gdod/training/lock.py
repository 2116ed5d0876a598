"""Let one command at a time work in a folder."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from gdod.errors import InputError

NAME = ".lock"
"""The name of the lock's file in its folder."""

_WAIT = 30.0  # seconds: a command that was just asked to end may still be saving


@contextmanager
def locked(folder: Path, say: Callable[[str], None], *, remove: bool = False) -> Iterator[tuple[int, ...]]:
    """Hold the folder, and yield the file descriptors to hand on to processes that work in it.

    The lock goes with the last process that holds the descriptor, so it outlives a command that is killed
    until its processes have noticed that.

    Args:
        folder: the folder to hold; it must be there.
        say: told once if another process holds the folder, for which this one then waits a while.
        remove: whether the lock's file goes, too, at the end: only if the descriptors were not handed on.
    """
    handle = _acquire(folder, say)
    try:
        yield () if handle is None else (handle,)
    finally:
        if handle is not None:
            if remove:
                (folder / NAME).unlink(missing_ok=True)
            os.close(handle)


def _acquire(folder: Path, say: Callable[[str], None]) -> int | None:
    """Return the descriptor of the lock; None where there are no locks, such as on Windows or some network disks."""
    try:
        import fcntl
    except ImportError:
        return None
    until, said = time.monotonic() + _WAIT, False
    while True:
        handle = os.open(folder / NAME, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(handle, folder / NAME):
                return handle
            os.close(handle)  # whoever held it has removed it in between, and another one may be there
            continue
        except BlockingIOError:
            os.close(handle)
        except OSError:
            os.close(handle)
            return None
        if time.monotonic() > until:
            raise InputError(
                f"another process is at work in {folder}; wait for it, or choose another folder with --out"
            )
        if not said:
            say(f"waiting for another process that is at work in {folder}")
            said = True
        time.sleep(0.2)


def _is_at(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False
