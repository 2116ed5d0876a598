"""One process among several, which takes runs from its standard input, trains them, and tells how far it is.

`gdod.experiments.pool` starts it as `python -m gdod.experiments.worker`. Every line in either direction is
one JSON object. When the standard input ends, because the other side closed it or was killed, the run
that is going on is saved and the process ends.

Started as several ranks, it is rank 0 that takes runs and tells; all train them together.
"""

import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from shutil import rmtree
from typing import TYPE_CHECKING, Any, TextIO

from gdod.errors import InputError

if TYPE_CHECKING:
    from gdod.data import Dataset, Minibatch
    from gdod.experiments.rivals.config import RivalConfig
    from gdod.ranks import Ranks
    from gdod.training import Folder, TrainConfig

Json = dict[str, Any]
Tell = Callable[[Json], None]


class Desk:
    """Where orders come in and events go out: the other side of the pipes."""

    def __init__(self, out: TextIO) -> None:
        self.out = out
        self.orders: SimpleQueue[Json | None] = SimpleQueue()
        self.busy, self.over = threading.Event(), threading.Event()

    def serve(self, worker: "Worker") -> None:
        threading.Thread(target=self._listen, daemon=True).start()
        while (order := self.orders.get()) is not None:
            self.busy.set()
            if self.over.is_set():
                break
            event = worker.work(order, self.tell)
            self.busy.clear()  # before the other side knows, and may have us end
            self.tell(event)

    def tell(self, event: Json) -> None:
        with suppress(OSError):  # nobody listens any more: `_listen` notices that, too, and has the run saved
            self.out.write(json.dumps(event) + "\n")
            self.out.flush()

    def _listen(self) -> None:
        for line in sys.stdin:
            self.orders.put(json.loads(line))
        self.over.set()
        self.orders.put(None)
        if self.busy.is_set():
            os.kill(os.getpid(), signal.SIGTERM)  # training saves first; anything else ends at once


class Worker:
    """Trains runs, alone or together with other ranks."""

    def __init__(self, ranks: "Ranks") -> None:
        self.ranks = ranks
        self.data: tuple[str, Dataset] | None = None
        """The data of the last run, which is that of the next as a rule, and what it was asked for by."""

    def work(self, order: Json, tell: Tell) -> Json:
        """Have all ranks make a run, and return how it ended. For rank 0."""
        return self._made(self.ranks.first(lambda: order, wait=True), tell)

    def follow(self) -> None:
        """Make the runs that rank 0 does, until it dismisses. For the other ranks."""
        while (order := self.ranks.first(lambda: None, wait=True)) is not None:
            self._made(order, lambda event: None)

    def dismiss(self) -> None:
        """Tell the other ranks that there are no more runs. For rank 0."""
        self.ranks.first(lambda: None, wait=True)

    def _made(self, order: Json, tell: Tell) -> Json:
        from gdod.training import Interrupted, NonFiniteError

        try:
            return {"kind": "finished", "result": self._train(order, tell)}
        except Interrupted as stop:
            return {"kind": "interrupted", "exit_code": stop.exit_code}
        except (InputError, NonFiniteError) as error:
            return {"kind": "failed", "message": str(error), "traceback": None}
        except Exception as error:
            if self.ranks.size > 1:
                raise  # the other ranks wait for this one, who knows where: they end with it
            message = f"{type(error).__name__}: {error}"
            return {"kind": "failed", "message": message, "traceback": traceback.format_exc()}

    def _train(self, order: Json, tell: Tell) -> Json:
        from gdod.experiments.predictions import predict_parts
        from gdod.experiments.rivals.config import RivalConfig
        from gdod.experiments.run_config import stored_config
        from gdod.training import Folder, train
        from gdod.training.checkpoint import keep_weights_only

        config, folder = stored_config(order["config"]), Folder(Path(order["folder"]))
        self.ranks.first(lambda: _clear(folder))
        if isinstance(config, RivalConfig):
            return self._train_rival(config, folder, order, tell)
        dataset = self._load(config)
        if not order["test"]:
            dataset = replace(dataset, test=Nothing())
        result = train(
            config,
            folder.path,
            dataset=dataset,
            resume=True,
            progress=Told(tell),
            command=order.get("command"),
            ranks=self.ranks,
        )
        # A comparison has many runs, and none that has finished is gone on with.
        self.ranks.first(lambda: keep_weights_only(folder.last))
        if order["predictions"]:
            self.ranks.first(lambda: predict_parts(folder, dataset), wait=True)
        return result

    def _train_rival(self, config: "RivalConfig", folder: "Folder", order: Json, tell: Tell) -> Json:
        """Train a rival on rank 0, with the threads of all ranks."""
        from gdod.experiments.rivals.run import train_rival

        self.data = None  # it reads its own
        threads = None if config.threads is None else config.threads * self.ranks.size
        told, test, command = Told(tell), order["test"], order.get("command")
        return self.ranks.first(
            lambda: train_rival(
                config,
                folder,
                progress=told,
                test=test,
                threads=threads,
                command=command,
                predictions=order["predictions"],
            ),
            wait=True,
        )

    def _load(self, config: "TrainConfig") -> "Dataset":
        from gdod.training.train_run import load_data

        key = config.data.model_dump_json()
        if self.data is None or self.data[0] != key:
            self.data = None  # not both at once in memory
            self.data = key, self.ranks.in_turns(lambda: load_data(config))
        return self.data[1]


def _clear(folder: "Folder") -> None:
    """Remove what a run left that failed, or was killed before it had begun."""
    if not folder.is_run:
        rmtree(folder.path, ignore_errors=True)
    (folder.path / "error.json").unlink(missing_ok=True)


class Nothing:
    """A part of the data without examples: what may not be looked at is not there."""

    def __len__(self) -> int:
        return 0

    def steps(self, size: int, *, ranks: int = 1) -> int:
        return 0

    def batches(
        self, size: int, *, seed: int | None = None, epoch: int = 0, start: int = 0, rank: int = 0, ranks: int = 1
    ) -> "Iterator[Minibatch]":
        return iter(())


class Told:
    """A `Progress` that sends an event for each call to the other side."""

    def __init__(self, tell: Tell) -> None:
        self.tell = tell

    def start(self, steps: int, done: int) -> None:
        self.tell({"kind": "started", "steps": steps, "done": done, "process": os.getpid()})

    def trained(self, step: int, loss: float) -> None:
        self.tell({"kind": "trained", "step": step, "loss": loss})

    def evaluated(self, step: int, metrics: dict[str, Any], best: bool) -> None:
        self.tell({"kind": "evaluated", "step": step, "mean_auc": metrics["mean_auc"]})

    def say(self, text: str) -> None: ...

    def close(self) -> None: ...


def main(device: str) -> None:
    """Take runs until there are no more. ``device``: that of all runs; it decides how ranks talk to each other."""
    from gdod.ranks.processes import LAUNCHER, joined, surroundings

    # Whatever a library prints must not come between the lines.
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    with joined(surroundings() if LAUNCHER in os.environ else None, device) as ranks:
        worker = Worker(ranks)
        if ranks.rank > 0:
            worker.follow()
            return
        Desk(out).serve(worker)
        worker.dismiss()


if __name__ == "__main__":
    main(sys.argv[1])
