"""The training loop: steps, evaluations, checkpoints, from any step to the end, the same way every time.

Everything that decides what comes next is in the weights, the optimizer, the method, torch's random
numbers and `State`, all of which a checkpoint holds. So a run that was killed and goes on from its last
checkpoint repeats what was lost, bit for bit. Only times differ.

Several ranks make every decision together: to stop, to save, which weights are the best. Only rank 0 writes.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from functools import partial
from math import isnan, nan
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gdod._backward import Info, backward
from gdod.errors import InputError, NonFiniteInputError
from gdod.methods import Method
from gdod.models import Model
from gdod.ranks import Ranks
from gdod.training import checkpoint
from gdod.training.config import TrainConfig
from gdod.training.evaluation import Metrics, goodness, score
from gdod.training.minibatch_losses import any_losses, binary_labels, binary_losses
from gdod.training.optimizers import Optimizers
from gdod.training.progress import Progress
from gdod.training.record import Line, Record
from gdod.training.resharding import lane_batches
from gdod.training.schedule import share
from gdod.training.seeds import seed_for
from gdod.training.stops import Interrupted, Interruption, NonFiniteError

if TYPE_CHECKING:
    from gdod.data.dataset import Dataset
    from gdod.data.parts.part import Minibatch
    from gdod.training.run import Folder

_SKIPS = 100  # steps in a row; after so many the weights themselves are the matter
_TIMES = 20_000  # of how many of the last steps the median time is taken


@dataclass
class State:
    """Where a run is, besides its weights."""

    step: int = 0  # steps made
    seconds: float = 0.0  # spent in them
    skipped: int = 0
    skipped_in_a_row: int = 0
    evaluated: int = -1  # the step after which the last evaluation was
    waited: int = 0  # evaluations since the best
    best_step: int = -1
    best_value: float | None = None
    best: Metrics | None = None
    recorded: int = 0  # bytes of metrics.jsonl
    lanes: int = 1  # ranks to which the examples of the epoch were dealt out when it began
    losses: list[list[float]] = field(default_factory=list)  # of each task in the steps since the last log time


class Trainer:
    """A model in training on the data.

    Args:
        ranks: this process among others, if there are; each trains on its share of every batch.
    """

    def __init__(
        self,
        config: TrainConfig,
        dataset: "Dataset",
        model: Model,
        method: Method,
        folder: "Folder",
        *,
        device: torch.device,
        progress: Progress,
        ranks: Ranks | None = None,
    ) -> None:
        self.config, self.dataset, self.model, self.method = config, dataset, model.to(device), method
        self.folder, self.device, self.progress, self.ranks = folder, device, progress, ranks or Ranks()
        self.optimizers = Optimizers(model, config.optimizer)
        self.order = seed_for("order", config.seed)
        self.epoch_steps = dataset.train.steps(config.batch, ranks=self.ranks.size)
        self.total = config.steps or max(1, round((config.epochs or 1) * self.epoch_steps))
        self.task_weights = _task_weights(config.task_weights, model)
        self.state = State()
        self.record: Record | None = None
        self.lr = config.optimizer.lr
        self.times: deque[float] = deque(maxlen=_TIMES)
        self._recent: list[Callable[[], Tensor]] = []  # mean losses not worked out yet
        self._saved_at = time.monotonic()
        self._saved_step: int | None = None

    def go_on(self, content: Mapping[str, Any]) -> None:
        """Takes up a run where a checkpoint left it."""
        self.model.load_state_dict(content["model"])
        self.optimizers.load_state(content["optimizers"])
        self.method.load_state_dict(content["method"])
        self.state = State(**content["state"])
        random = [content["random"], *content.get("random_of_others", ())]
        if self.ranks.rank == 0 or len(random) == self.ranks.size:
            checkpoint.set_random_state(random[self.ranks.rank], self.device)
        else:
            torch.manual_seed(self._seed(f" from step {self.state.step} on"))
        self._saved_step = self.state.step

    def _seed(self, when: str = "") -> int:
        """Of torch's own random numbers: other ones for dropout on each rank."""
        rank = self.ranks.rank
        return seed_for(f"torch of rank {rank}{when}" if rank else "torch", self.config.seed)

    def run(self, record: Record | None) -> str:
        """Trains to the end. Returns "finished", or "early" if it was stopped for want of progress."""
        if self._saved_step is None:
            torch.manual_seed(self._seed())
        self.record = record
        self.model.train()
        batches = self._batches()
        with Interruption() as interruption:
            while True:
                if self._evaluation_due() and not self._evaluate(interruption):
                    self._interrupt(interruption)
                if self._out_of_patience():
                    return "early"
                if self.state.step >= self.total:
                    return "finished"
                if self._train(batches, interruption):
                    self._interrupt(interruption)

    @property
    def milliseconds(self) -> float | None:
        """Median time of a step."""
        return 1e3 * median(self.times) if self.times else None

    # Training

    def _train(self, batches: "Iterator[Minibatch]", interruption: Interruption) -> bool:
        """Steps until something else is due. True if a rank was interrupted."""
        state, config = self.state, self.config
        while state.step < self.total:
            start = time.perf_counter()
            minibatch = next(batches)
            step = state.step + 1
            logs = step % config.log_every == 0 or step == self.total
            info = self._step(minibatch, step, conflict=logs and self._records_conflict(step))
            state.step = step
            took = time.perf_counter() - start
            state.seconds += took
            self.times.append(took)
            if logs:
                self._log(info)
            interrupted, due = self.ranks.most([bool(interruption), self._checkpoint_due(logs)])
            if interrupted or self._evaluation_due():
                return bool(interrupted)
            if due:
                self.save()
        return False

    def _batches(self) -> "Iterator[Minibatch]":
        """From where the run is, epoch after epoch."""
        state, ranks, size = self.state, self.ranks, self.config.batch
        epoch, start = divmod(state.step, self.epoch_steps)
        while True:
            if start == 0:
                state.lanes = ranks.size
            yield from lane_batches(
                self.dataset.train, size, state.lanes, ranks.rank, ranks.size, seed=self.order, epoch=epoch, start=start
            )
            epoch, start = epoch + 1, 0

    def _step(self, minibatch: "Minibatch", step: int, conflict: bool) -> Info | None:
        """One update; None if it was skipped."""
        optimizers = self.optimizers
        self.lr = optimizers.set_share(share(self.config.schedule, step - 1, self.total))
        optimizers.zero_grad()
        losses, mask = self._losses(minibatch)
        try:
            info = backward(
                losses, self.method, mask=mask, task_weights=self.task_weights, diagnose=conflict and len(losses) > 1
            )
            penalty = self.model.penalty()
            if penalty is not None:
                penalty.backward()
            self._check_gradient()
        except (InputError, _NotFinite) as error:
            self._refuse(step, losses, error)
            return None
        optimizers.step()
        self.state.skipped_in_a_row = 0
        self._recent.append(info.mean_losses)
        return info

    def _losses(self, minibatch: "Minibatch") -> tuple[dict[str, Tensor], dict[str, Tensor] | None]:
        batch, labels, weights, seen = minibatch
        weights = weights if self.config.sample_weights else None
        binary = binary_labels(labels, self.model.tasks, seen)
        if self.device.type != "cpu":
            batch = batch.to(self.device)
            labels = {name: label.to(self.device) for name, label in labels.items()} if binary is None else {}
            binary = None if binary is None else binary.to(self.device)
            weights = None if weights is None else weights.to(self.device)
        with self._precision():
            logits = self.model(batch)
        if binary is None:
            return any_losses(logits, labels, weights, self.model.tasks)
        return binary_losses(logits, binary, weights), binary.mask

    def _precision(self) -> AbstractContextManager[object]:
        if self.config.precision == "float32":
            return nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)

    def _check_gradient(self) -> None:
        """Clips, and notices a gradient that is not finite if that is to be skipped.

        Otherwise the next step's loss shows it, and until then no checkpoint is written: `save` looks.
        """
        if self.config.clip is None and self.config.non_finite == "stop":
            return
        length = self.optimizers.gradient_length()
        if not bool(length.isfinite()):
            raise _NotFinite
        if self.config.clip is not None:
            self.optimizers.clip(self.config.clip, length)

    def _refuse(self, step: int, losses: Mapping[str, Tensor], error: Exception) -> None:
        wrong = self.ranks.most([not bool(loss.isfinite().all()) for loss in losses.values()])
        tasks = [name for name, one in zip(losses, wrong, strict=True) if one]
        if not tasks and not isinstance(error, NonFiniteInputError | _NotFinite):
            raise error
        state = self.state
        state.skipped += 1
        state.skipped_in_a_row += 1
        if self.config.non_finite == "stop" or state.skipped_in_a_row >= _SKIPS:
            raise self._non_finite(step, tasks, "the loss" if tasks else "the gradient") from error
        self.optimizers.zero_grad()
        named = ", ".join(map(repr, tasks))
        self.progress.say(f"step {step} skipped: {f'the loss of {named}' if tasks else 'the gradient'} is not finite")

    def _non_finite(self, step: int, tasks: list[str], what: str) -> NonFiniteError:
        last = None if self._saved_step is None else self.folder.last
        return NonFiniteError(step, tasks, what, last, self._saved_step, self.config.non_finite == "skip")

    # Records

    def _records_conflict(self, step: int) -> bool:
        every = self.config.conflict_every
        return every is None or (every > 0 and step % every == 0)

    def _fold(self) -> None:
        """Works out the losses that were put off, since reading them makes a GPU wait."""
        self.state.losses += [mean_losses().tolist() for mean_losses in self._recent]
        self._recent.clear()

    def _log(self, info: Info | None) -> None:
        self._fold()
        state, names = self.state, [task.name for task in self.model.tasks]
        table = torch.tensor(state.losses or [[nan] * len(names)], dtype=torch.float64)  # [steps, K]
        means = dict(zip(names, table.nanmean(0).tolist(), strict=True))
        state.losses = []
        weights = self.task_weights or {}
        known = {name: value for name, value in means.items() if not isnan(value)}
        loss = sum(weights.get(name, 1.0) * value for name, value in known.items()) if known else nan
        self._note(
            {
                "kind": "train",
                "step": state.step,
                "epoch": state.step / self.epoch_steps,
                "seconds": state.seconds,
                "losses": means,
                "loss": loss,
                "lr": self.lr,
                "conflict": _conflict(info) if self._records_conflict(state.step) else None,
                "skipped": state.skipped,
            }
        )
        self.progress.trained(state.step, loss)

    def _note(self, line: Line) -> None:
        if self.record is not None:
            self.record.add(line)

    # Evaluation

    def _evaluation_due(self) -> bool:
        step, every = self.state.step, self.config.evaluate_every or self.epoch_steps
        return self.state.evaluated != step and (step % every == 0 or step == self.total)

    def _evaluate(self, interruption: Interruption) -> bool:
        """Evaluates, keeps the best, saves. False if it was interrupted."""
        state, dataset = self.state, self.dataset
        parts = {"validation": dataset.validation, **({"test": dataset.test} if self.config.test_curve else {})}
        found: dict[str, Metrics] = {}
        for name, part in parts.items():
            if len(part):
                scored = score(
                    self.model, part, self.config.evaluation_batch, self.device, interruption.__bool__, self.ranks
                )
                if scored is None:
                    return False
                found[name] = self.ranks.first(partial(scored.metrics, weighted=self.config.weighted_metrics))
        self._check_together()
        state.evaluated = state.step
        best = True
        if (metrics := found.get("validation")) is not None:
            best = self._keep_score(metrics)
            self.progress.evaluated(state.step, metrics, best)
        else:
            state.best_step = state.step  # nothing to choose by: the last is the best
        for name, metrics in found.items():
            self._record_evaluation(name, {**metrics, "best": best} if name == "validation" else metrics)
        self.save(best=best)
        return True

    def _record_evaluation(self, part: str, metrics: Metrics) -> None:
        state = self.state
        where = {"step": state.step, "epoch": state.step / self.epoch_steps, "seconds": state.seconds}
        self._note({"kind": "evaluation", "part": part, **where, **metrics})

    def _check_together(self) -> None:
        """The weights are the same on all ranks, since all make the same steps. If not, that is said."""
        if self.ranks.size > 1:
            told = self.ranks.tell(_digest(self.model.state_dict()))
            if apart := [str(rank) for rank, digest in enumerate(told) if digest != told[0]]:
                self.progress.say(
                    f"step {self.state.step}: the weights of rank {', '.join(apart)} differ from those of rank 0, "
                    "which are the ones that are saved; are the machines and their versions of torch the same?"
                )

    def _keep_score(self, metrics: Metrics) -> bool:
        """Notes the metrics if they are the best so far."""
        state, stopping = self.state, self.config.stopping
        value = goodness(metrics, stopping.monitor, self.task_weights or {})
        if value is None and state.step == 0:
            notes = [found["note"] for found in metrics["tasks"].values() if "note" in found]
            raise InputError(
                f"stopping.monitor={stopping.monitor!r} has no value on the validation part "
                f"({'; '.join(notes) or 'no labels'}); choose another"
            )
        better = value is not None and (state.best_value is None or value > state.best_value + stopping.least)
        if better:
            state.best_step, state.best_value, state.best, state.waited = state.step, value, metrics, 0
        else:
            state.waited += 1
        return better

    def _out_of_patience(self) -> bool:
        patience = self.config.stopping.patience
        return patience is not None and self.state.waited >= patience and self.state.evaluated == self.state.step

    # Checkpoints

    def _checkpoint_due(self, logs: bool) -> bool:
        every = self.config.checkpoint_every
        if self.state.skipped_in_a_row:  # the last one may be the last good one
            return False
        if every is not None and self.state.step % every == 0:
            return True
        return self.ranks.rank == 0 and logs and time.monotonic() - self._saved_at > 60 * self.config.checkpoint_minutes

    def save(self, *, best: bool = False) -> None:
        """Writes where the run is; ``best``: its weights as the best ones, too."""
        self._fold()
        weights = self.model.state_dict()
        if not _all_finite(weights):
            raise self._non_finite(self.state.step, [], "a weight")
        random = self.ranks.tell(checkpoint.random_state(self.device))
        self.ranks.first(lambda: self._write(weights, random, best))
        self._saved_at, self._saved_step = time.monotonic(), self.state.step

    def _write(self, weights: Mapping[str, Tensor], random: Sequence[dict[str, Any]], best: bool) -> None:
        assert self.record is not None
        self.state.recorded = self.record.to_disk()
        if best:
            checkpoint.save(self.folder.best, {"step": self.state.step, "model": weights})
        checkpoint.save(
            self.folder.last,
            {
                "model": weights,
                "optimizers": self.optimizers.state(),
                "method": self.method.state_dict(),
                "random": random[0],
                "random_of_others": list(random[1:]),
                "state": asdict(self.state),
            },
        )

    def _interrupt(self, interruption: Interruption) -> None:
        (number,) = self.ranks.most([interruption.number or 0])
        self.save()
        raise Interrupted(self.folder.path, self.state.step, number)


class _NotFinite(Exception):
    """The gradient is not finite."""


def _task_weights(given: Mapping[str, float] | None, model: Model) -> dict[str, float] | None:
    if given is None:
        return None
    names = [task.name for task in model.tasks]
    if unknown := [name for name in given if name not in names]:
        raise InputError(
            f"task_weights names {', '.join(map(repr, unknown))}; the tasks are {', '.join(map(repr, names))}"
        )
    return {name: given.get(name, 1.0) for name in names}


def _conflict(info: Info | None) -> dict[str, Any] | None:
    if info is None or info.gram is None:
        return None
    return {
        "cosines": info.cosines.tolist(),
        "energy_kept": info.energy_kept,
        "directions_kept": info.directions_kept,
        "norms": info.norms.tolist(),
    }


def _digest(weights: Mapping[str, Tensor]) -> list[int]:
    """Whole numbers that almost surely differ where the bits of weights do; as fast as memory is read."""
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return [int(one.reshape(-1).view(bits[one.element_size()]).sum(dtype=torch.int64)) for one in weights.values()]


def _all_finite(weights: Mapping[str, Tensor]) -> bool:
    return all(bool(one.isfinite().all()) for one in weights.values() if one.is_floating_point())
