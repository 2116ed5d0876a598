"""Let one command at a time work in a folder."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from gdod.errors import InputError

_WAIT = 30.0  # seconds: runs of a command that was just killed may still be saving


@contextmanager
def locked(folder: Path, say: Callable[[str], None]) -> Iterator[tuple[int, ...]]:
    """Hold the folder, and yield the file descriptors to hand on to processes that work in it.

    The lock goes with the last process that holds the descriptor, so it outlives a command that is killed
    until its processes have noticed that.
    """
    try:
        import fcntl
    except ImportError:  # not on Windows
        yield ()
        return
    handle = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        until, said = time.monotonic() + _WAIT, False
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise InputError(
                        f"another process is at work in {folder}; wait for it, or choose another folder with --out"
                    ) from None
                if not said:
                    say(f"waiting for another process that is at work in {folder}")
                    said = True
                time.sleep(0.2)
        yield (handle,)
    finally:
        os.close(handle)
