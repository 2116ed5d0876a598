"""Real ranks for tests: processes with gloo between them, forked from a server that has torch loaded."""

import multiprocessing
import os
import pickle
import signal
import traceback
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
from tests.training import tiny

from gdod.data.dataset import Dataset
from gdod.ranks import Ranks
from gdod.ranks.processes import RankPlace, joined
from gdod.training import TrainConfig, train

Work = Callable[..., Any]


@dataclass
class Started:
    """Ranks at work."""

    processes: Sequence[BaseProcess]
    folder: Path

    def wait(self, timeout: float = 600) -> list[Any]:
        """What each rank's work returned; None for one that did not come to its end."""
        for process in self.processes:
            process.join(timeout)
            if process.is_alive():
                process.kill()
                raise AssertionError(f"{process.name} did not end")
        files = [self.folder / f"rank-{rank}.pickle" for rank in range(len(self.processes))]
        return [pickle.loads(file.read_bytes()) if file.exists() else None for file in files]

    def kill(self, rank: int, number: int = signal.SIGKILL) -> None:
        pid = self.processes[rank].pid
        assert pid is not None
        os.kill(pid, number)


def start(ranks: int, folder: Path, work: Work, *arguments: Any, timeout: float = 600) -> Started:
    """Calls `work(ranks, *arguments)` in each of so many processes, which wait so many seconds for each other."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch._dynamo", "gdod.training.train_run", "gdod.data"])
    place = folder / uuid.uuid4().hex
    place.mkdir(parents=True)
    processes: list[BaseProcess] = [
        context.Process(target=_process, args=(rank, ranks, str(place), timeout, work, arguments), name=f"rank {rank}")
        for rank in range(ranks)
    ]
    for process in processes:
        process.start()
    return Started(processes, place)


def _process(rank: int, ranks: int, folder: str, timeout: float, work: Work, arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    os.environ["GDOD_TIMEOUT"] = str(timeout)
    place = RankPlace(rank, ranks, rank, f"file://{folder}/store", "a test")
    try:
        with joined(place, "cpu") as found:
            result = work(found, *arguments)
    except BaseException:
        Path(folder, f"error-{rank}.txt").write_text(traceback.format_exc())
        raise
    Path(folder, f"rank-{rank}.pickle").write_bytes(pickle.dumps(result))


def together(ranks: int, folder: Path, work: Work, *arguments: Any) -> list[Any]:
    """What `work(ranks, *arguments)` returned on each of so many ranks."""
    started = start(ranks, folder, work, *arguments)
    found = started.wait()
    errors = [path.read_text() for path in sorted(started.folder.glob("error-*.txt"))]
    assert not errors, "\n".join(errors)
    return found


def training(ranks: Ranks, settings: dict[str, Any], out: Path, wrong: "Wrong | None" = None, told: Any = None) -> Any:
    """Trains on the tiny table; the result, or the error."""
    dataset = data(settings)
    if settings["data"]["source"] == "streamed":
        dataset = streamed(out.parent, dataset)
    if wrong is not None:
        dataset = replace(dataset, train=Part(dataset.train, wrong))
    try:
        config = TrainConfig.model_validate(settings)
        return train(config, out, dataset=dataset, resume=True, ranks=ranks, progress=told)
    except Exception as error:
        return Stopped(type(error).__name__, str(error), getattr(error, "exit_code", None))


@dataclass(frozen=True)
class Stopped:
    """The error that a training ended with."""

    kind: str
    text: str
    exit_code: int | None


def data(settings: dict[str, Any] | None = None) -> Dataset:
    """The tiny table; models of a chain have labels of every step in all rows."""
    model = "" if settings is None else settings["model"].get("name")
    return tiny.dataset(rows=1000, validation=250, test=100, conditional=model not in ("esmm", "aitm"))


@dataclass(frozen=True)
class Wrong:
    """What happens on one rank when it is given its share of a certain batch."""

    rank: int
    batch: int
    what: str  # "infinite", "signal", "kill"


class Part:
    """A part in which something goes wrong."""

    def __init__(self, part: Any, wrong: Wrong) -> None:
        self.part, self.wrong = part, wrong

    def __len__(self) -> int:
        return len(self.part)

    def steps(self, size: int, *, ranks: int = 1) -> int:
        return int(self.part.steps(size, ranks=ranks))

    def batches(self, size: int, *, start: int = 0, rank: int = 0, **rest: Any) -> Iterator[Any]:
        for at, minibatch in enumerate(self.part.batches(size, start=start, rank=rank, **rest), start):
            if (rank, at) == (self.wrong.rank, self.wrong.batch):
                if self.wrong.what in ("signal", "kill"):
                    signal.raise_signal(signal.SIGKILL if self.wrong.what == "kill" else signal.SIGTERM)
                else:
                    minibatch = minibatch._replace(weights=minibatch.weights * torch.inf)
            yield minibatch


def streamed(folder: Path, dataset: Dataset) -> Dataset:
    """The same with a training part that is read from disk, in row groups of 50."""
    from gdod.data.preparing.stored import PartWriter
    from gdod.data.stream import StreamPart
    from gdod.data.tables.values import Origin

    path = folder / "train.parquet"
    if not path.exists():  # made beforehand: ranks must not write it both
        writer = PartWriter(path, 50)
        writer.write(tiny.encoder().encode_frame(tiny.frame(1350)[:1000], Origin()).frame)
        writer.close()
    return replace(dataset, train=StreamPart(path, dataset.encoder, window=3))
