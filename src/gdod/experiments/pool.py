"""Make runs in parallel: in a few processes, each of which trains one run after the other.

A process stays for many runs, since loading torch takes longer than many a run of a comparison does. One
that dies takes only its run with it. In its place there may be several that train each run together.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from gdod._checks import short_waits
from gdod._files import make_folder, write_json
from gdod.training.run import Folder

if TYPE_CHECKING:
    from gdod.experiments.run_config import RunConfig
    from gdod.experiments.watch import Watch
    from gdod.experiments.worker import Worker

Json = dict[str, Any]

_GRACE = 60.0  # seconds that a process has to save its run
_LAUNCHERS = 10  # seconds that one with several ranks has to end them after that


@dataclass(frozen=True)
class Job:
    """A run to be made."""

    name: str
    folder: Path
    config: "RunConfig"
    test: bool = True
    """Whether the test part is looked at, at the end."""
    predictions: bool = False
    """Whether the run keeps its predictions for the rows of the validation and the test part."""


@dataclass(frozen=True)
class Ended:
    """How a run ended: with a result, or with a message that says why there is none."""

    job: Job
    result: Json | None
    message: str | None = None
    trace: str | None = None
    """The traceback of an error that nobody foresaw."""


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_jobs(
    jobs: Iterator[Job],
    processes: int,
    *,
    threads: int,
    nproc: int = 1,
    device: str = "auto",
    watch: "Watch",
    on_end: Callable[[Ended], None] | None = None,
    command: Sequence[str] | None = None,
    keep_open: Sequence[int] = (),
) -> None:
    """Make the runs, as many at a time as there are processes. The next job is asked for when a process is free.

    Args:
        jobs: the runs to make.
        processes: how many runs are made at a time.
        threads: how many threads torch has in each process.
        nproc: how many processes train a run together.
        device: what the runs are trained on.
        watch: is told how far the runs are.
        on_end: is called after every run, before the next job is asked for.
        command: what the runs' `about.json` say that they were started with.
        keep_open: file descriptors that the processes hold as long as they live.

    Ctrl-C: every run that is going on saves first, then KeyboardInterrupt goes on.
    """
    crew = _Crew(processes, threads, nproc, device, tuple(keep_open))
    try:
        while True:
            while (hand := crew.free()) is not None and (job := next(jobs, None)) is not None:
                hand.give(job, command)
            if not crew.busy:
                return
            hand, event = crew.events.get()
            if hand.job is None:
                continue  # ended without work, as it was told to
            watch.told(hand.job, event)
            ended = hand.take(event)
            if ended is not None:
                if ended.message is not None:
                    _note_failure(ended)
                if on_end is not None:
                    on_end(ended)
                watch.ended(ended)
    finally:
        crew.dismiss()


def run_together(
    jobs: Iterator[Job],
    worker: "Worker",
    *,
    watch: "Watch",
    on_end: Callable[[Ended], None],
    command: Sequence[str] | None = None,
) -> None:
    """Make the runs one after the other in this process and those of the other ranks, which follow."""
    for job in jobs:
        event = worker.work(_order(job, command), partial(watch.told, job))
        watch.told(job, event)
        if event["kind"] == "interrupted":
            raise KeyboardInterrupt
        failed = event["kind"] == "failed"
        ended = Ended(job, None, event["message"], event["traceback"]) if failed else Ended(job, event["result"])
        if failed:
            _note_failure(ended)
        on_end(ended)
        watch.ended(ended)


def _order(job: Job, command: Sequence[str] | None) -> Json:
    return {
        "folder": str(job.folder),
        "config": job.config.model_dump(mode="json"),
        "test": job.test,
        "predictions": job.predictions,
        "command": None if command is None else list(command),
    }


class _Crew:
    """The processes that make runs."""

    def __init__(self, size: int, threads: int, nproc: int, device: str, keep_open: tuple[int, ...]) -> None:
        self.size, self.threads, self.nproc, self.device, self.keep_open = size, threads, nproc, device, keep_open
        self.hands: list[_Hand] = []
        self.events: SimpleQueue[tuple[_Hand, Json]] = SimpleQueue()

    @property
    def busy(self) -> bool:
        return any(hand.job is not None for hand in self.hands)

    def free(self) -> "_Hand | None":
        """Return a process without work, a new one if there may be more of them; None if all are at work."""
        there = [hand for hand in self.hands if not hand.gone]
        for hand in there:
            if hand.job is None:
                return hand
        if len(there) == self.size:
            return None
        taken = {hand.place for hand in there}
        place = next(place for place in range(self.size) if place not in taken)
        self.hands.append(_Hand(place, self))
        return self.hands[-1]

    def dismiss(self) -> None:
        """Have every process save its run and end."""
        try:
            for hand in self.hands:
                hand.close()
            for hand in self.hands:
                hand.wait(_GRACE)
        finally:  # a second Ctrl-C, or one that does not end
            for hand in self.hands:
                hand.kill()


class _Hand:
    """One process, or several ranks with one above them, and the run it is at."""

    def __init__(self, place: int, crew: _Crew) -> None:
        self.place, self.nproc = place, crew.nproc
        self.job: Job | None = None
        self.gone = False
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed in `kill`)
        self.process = subprocess.Popen(
            [sys.executable, *_launcher(crew.nproc), "-m", "gdod.experiments.worker", crew.device],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            encoding="utf-8",
            env=_environment(crew.threads, place, crew.nproc),
            pass_fds=crew.keep_open,
            start_new_session=True,  # Ctrl-C reaches us alone, and we tell the processes
        )
        self.listener = threading.Thread(target=self._listen, args=(crew.events,), daemon=True)
        self.listener.start()

    def _listen(self, events: "SimpleQueue[tuple[_Hand, Json]]") -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            events.put((self, json.loads(line)))
        self.process.wait()
        events.put((self, {"kind": "gone"}))

    def give(self, job: Job, command: Sequence[str] | None) -> None:
        self.job = job
        assert self.process.stdin is not None
        with suppress(OSError):  # it has died, and `_listen` says so
            self.process.stdin.write(json.dumps(_order(job, command)) + "\n")
            self.process.stdin.flush()

    def take(self, event: Json) -> Ended | None:
        """Note what the process tells; return how its run ended, None if it goes on."""
        job, kind = self.job, event["kind"]
        assert job is not None
        if kind not in ("finished", "failed", "gone", "interrupted"):
            return None
        self.job = None
        if kind == "finished":
            return Ended(job, event["result"])
        if kind == "failed":
            if event["traceback"] is not None:
                self.close()  # what it left behind is not known
            return Ended(job, None, event["message"], event["traceback"])
        self.close()
        code = self.process.poll()
        self.errors.seek(0)
        words = self.errors.read().decode(errors="replace").strip()
        last = words.splitlines()[-1] if words else ""
        if last.startswith("gdod: rank "):  # one of several ranks, and the process above them says which
            return Ended(job, None, last.removeprefix("gdod: "), words)
        how = "was stopped" if code is None else f"was killed by signal {-code}" if code < 0 else f"ended with {code}"
        return Ended(job, None, f"its process {how}{': ' + last if last else ''}", words or None)

    def close(self) -> None:
        self.gone = True
        assert self.process.stdin is not None
        with suppress(OSError):  # it has died
            self.process.stdin.close()

    def wait(self, seconds: float) -> None:
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)

    def kill(self) -> None:
        if self.nproc > 1 and self.process.poll() is None:
            self.process.terminate()  # it ends its ranks
            self.wait(3 * _LAUNCHERS)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.listener.join()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.errors.close()


def _launcher(nproc: int) -> list[str]:
    return [] if nproc == 1 else ["-m", "gdod.training.launch", str(nproc)]


def _environment(threads: int, place: int, nproc: int) -> dict[str, str]:
    """Return an environment with a share of the cores; of several GPUs, each process takes its turn."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "POLARS_MAX_THREADS")
    environment = {**os.environ, **short_waits(os.environ), **dict.fromkeys(names, str(threads))}
    environment["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] = str(_LAUNCHERS)
    if "CUDA_VISIBLE_DEVICES" not in os.environ and (gpus := _gpus()) > nproc:
        own = [str((place * nproc + rank) % gpus) for rank in range(nproc)]
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(own)
    return environment


def _gpus() -> int:
    import torch

    return torch.cuda.device_count()


def _note_failure(ended: Ended) -> None:
    """Write why a run failed into its folder, with its configuration, which makes the folder a run."""
    folder = Folder(ended.job.folder)
    make_folder(folder.path)
    if not folder.is_run:
        write_json(folder.config, ended.job.config.model_dump(mode="json"))
    write_json(folder.path / "error.json", {"message": ended.message, "traceback": ended.trace})
