"""Exceptions that end a run before its last step, and a signal handler that lets it save first."""

import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Self


class NonFiniteError(RuntimeError):
    """A loss, a gradient or a weight became infinite or not a number; the message says when, and what is saved."""

    def __init__(
        self, step: int, tasks: Sequence[str], what: str, checkpoint: Path | None, saved: int | None, skipping: bool
    ) -> None:
        of = f" of task {', '.join(map(repr, tasks))}" if tasks else ""
        good = "there is no checkpoint yet" if checkpoint is None else f"the last good checkpoint is {checkpoint}"
        good += "" if saved is None else f" (step {saved})"
        super().__init__(
            f"step {step}: {what}{of} is not finite{', after many skipped steps' if skipping else ''}; {good}. A lower "
            f"learning rate{' or' if skipping else ','} gradient clipping (clip=1)"
            f"{'' if skipping else ' or non_finite=skip'} may help"
        )
        self.step, self.tasks, self.checkpoint = step, tuple(tasks), checkpoint


class Interrupted(Exception):
    """A signal asked the run to end, and a checkpoint has been written."""

    def __init__(self, folder: Path, step: int, number: int) -> None:
        super().__init__(f"stopped at step {step}, saved in {folder}")
        self.folder, self.step = folder, step
        self.exit_code = 128 + number
        """The exit code that a shell expects of a program that was ended by this signal."""


class StopRequest:
    """A context in which SIGINT (Ctrl-C) and SIGTERM only make this object true, so that the run can save first.

    A second signal raises KeyboardInterrupt at once.
    """

    def __init__(self) -> None:
        self.number: int | None = None
        """The number of the signal that came; None if there was none."""
        self._before: dict[int, object] = {}

    def __bool__(self) -> bool:
        return self.number is not None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # no other thread may set handlers
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.number is not None:
            raise KeyboardInterrupt
        self.number = number
