"""The training loop: steps, evaluations and checkpoints, from any step to the end.

Everything that decides what comes next is in the weights, the optimizer, the method, torch's random numbers and
`State`, all of which a checkpoint holds. So a run that was killed and resumes from its last checkpoint repeats what
was lost, bit for bit. Only times differ.

Several ranks make every decision together: to stop, to save, which weights are the best. Only rank 0 writes.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from math import isnan, nan
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gdod._backward import Info, backward
from gdod.data.parts.part import Minibatch
from gdod.errors import InputError, NonFiniteInputError
from gdod.methods import Method
from gdod.models import Model
from gdod.ranks import Ranks
from gdod.training import checkpoint
from gdod.training.averaging import Average
from gdod.training.config import TrainConfig, checksum
from gdod.training.evaluation import Metrics, monitored_score, predict_part, unequal_losses
from gdod.training.interruption import Interrupted, NonFiniteError, StopRequest
from gdod.training.minibatch_losses import minibatch_losses
from gdod.training.optimizers import Optimizers, lr_factor
from gdod.training.positive_weights import with_positive_weights
from gdod.training.progress import Progress
from gdod.training.record import Line, Record
from gdod.training.resharding import resharded_batches
from gdod.training.seeds import seed_for
from gdod.training.step_threads import choose_threads, on_threads

if TYPE_CHECKING:
    from gdod.data.dataset import Dataset
    from gdod.training.run import Folder

_MOST_SKIPPED = 100  # steps in a row; after so many the weights themselves are the problem
_TIMED_STEPS = 20_000  # the last steps, of whose times the median is taken
_SHORT = 1.0  # seconds; so much work is sooner done again than saved after each evaluation of a small table


@dataclass
class State:
    """The position of a run and what it remembers besides weights; checkpoints hold it under these names."""

    step: int = 0  # steps made
    seconds: float = 0.0  # time spent in steps
    skipped: int = 0  # steps skipped since a loss or a gradient was not finite
    skipped_in_a_row: int = 0  # those of them right before now
    evaluated: int = -1  # the step after which the last evaluation was
    waited: int = 0  # evaluations since the best one
    best_step: int = -1
    best_value: float | None = None  # the monitored score at best_step
    best: Metrics | None = None  # the validation metrics at best_step
    recorded: int = 0  # bytes of metrics.jsonl
    before: int = 0  # steps of the runs that this one goes on from
    threads: int = 0  # of torch in steps, as chosen when the run began; 0: not chosen, torch's own number
    lanes: int = 1  # the number of ranks when the epoch began, see resharding.py
    losses: list[list[float]] = field(default_factory=list)  # [steps since the last log time][task]


class Trainer:
    """A model in training on the data, with checkpoints in a run's folder.

    Args:
        ranks: this process among those that train together; each trains on its share of every batch.
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
        self.average = None if config.average is None else Average(self.model, config.average)
        self.order_seed = seed_for("order", config.seed)
        self.epoch_steps = dataset.train.steps(config.batch, ranks=self.ranks.size)
        self.total = config.steps or max(1, round((config.epochs or 1) * self.epoch_steps))
        self.task_weights = _task_weights(config.task_weights, model)
        self.positive_weights = config.positive_weights or {}
        self.state = State()
        self.record: Record | None = None
        self.lr = config.optimizer.lr
        self.times: deque[float] = deque(maxlen=_TIMED_STEPS)
        self._unread_losses: list[Callable[[], Tensor]] = []
        self._saved_at = time.monotonic()
        self._saved_step: int | None = None

    def resume(self, content: Mapping[str, Any]) -> None:
        """Continue from the content of a checkpoint."""
        if "optimizers" not in content:
            raise InputError(
                f"{self.folder.last} has the weights alone, not the state of the optimizer, as finished runs of a "
                "comparison have; train anew in another folder, with --out"
            )
        checkpoint.check_settings(content, checksum(self.config), self.folder.last)
        self.load_weights(content.get("model"), self.folder.last)
        if self.average is not None:
            self.average.load_state_dict(
                checkpoint.check_weights(content.get("average"), self.model.state_dict(), self.folder.last)
            )
        try:
            self.optimizers.load_state(content["optimizers"])
            self.method.load_state_dict(content["method"])
            self.state = State(**content["state"])
            random = [content["random"], *content.get("random_of_others", ())]
            if self.ranks.rank == 0 or len(random) == self.ranks.size:
                checkpoint.set_random_state(random[self.ranks.rank], self.device)
            else:
                torch.manual_seed(self._torch_seed(f" from step {self.state.step} on"))
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            reason = f"what goes with its weights is not that of this run ({str(error).splitlines()[0]})"
            raise InputError(checkpoint.damaged(self.folder.last, reason)) from error
        self._saved_step = self.state.step

    def load_weights(self, weights: object, path: Path) -> None:
        """Give the model the weights of a checkpoint at ``path``, if they are finite and fit it."""
        self.model.load_state_dict(checkpoint.check_weights(weights, self.model.state_dict(), path))

    def begin_from(self, content: Mapping[str, Any], before: int) -> None:
        """Begin a new run with the weights and states of another, which made ``before`` steps.

        ``content`` has those that a checkpoint has: "model", "average", "optimizers", "method".
        """
        self.model.load_state_dict(content["model"])
        if self.average is not None:
            self.average.load_state_dict(content["average"])
        self.optimizers.load_state(content["optimizers"])
        self.method.load_state_dict(content["method"])
        self.state.before = before

    def _torch_seed(self, when: str = "") -> int:
        """Return the seed of torch's random numbers, another one on each rank, so that dropout differs."""
        rank = self.ranks.rank
        return seed_for(f"torch of rank {rank}{when}" if rank else "torch", self.config.seed)

    def run(self, record: Record | None) -> str:
        """Train to the end, and return "finished", or "early" if early stopping ended it.

        Args:
            record: where lines of `metrics.jsonl` go; only rank 0 has one.
        """
        if self._saved_step is None:
            torch.manual_seed(self._torch_seed())
        self.record = record
        # Another number of threads rounds in another way: a run that is resumed keeps its own.
        if self.config.threads is not None or self.device.type != "cpu" or self.ranks.size > 1:
            self.state.threads = 0
        elif not self.state.threads:
            self.state.threads = choose_threads(self.model, self.config.batch)
        self.model.train()
        batches = self._batches()
        with StopRequest() as stop_request:
            while True:
                if self._evaluation_due() and not self._evaluate(stop_request):
                    self._interrupt(stop_request)
                if self.out_of_patience():
                    return "early"
                if self.state.step >= self.total:
                    return "finished"
                with on_threads(self.state.threads or torch.get_num_threads()):
                    stopped = self._train(batches, stop_request)
                if stopped:
                    self._interrupt(stop_request)

    @property
    def milliseconds(self) -> float | None:
        """The median time of a step; None before the first."""
        return 1e3 * median(self.times) if self.times else None

    # Training

    def _train(self, batches: Iterator[Minibatch], stop_request: StopRequest) -> bool:
        """Make steps until an evaluation is due or training ends. Return True if a rank was asked to stop."""
        state, config = self.state, self.config
        while state.step < self.total:
            start = time.perf_counter()
            minibatch = next(batches)
            step = state.step + 1
            logs = step % config.log_every == 0 or step == self.total
            info = self._step(minibatch, step, conflict=logs and self._records_conflict(step))
            state.step = step
            if self.average is not None:
                self.average.update(step, last=step == self.total, before=state.before)
            took = time.perf_counter() - start
            state.seconds += took
            self.times.append(took)
            if logs:
                self._log(info)
            stop, save = self.ranks.most([bool(stop_request), self._checkpoint_due(logs)])
            if stop or self._evaluation_due():
                return bool(stop)
            if save:
                self.save()
        return False

    def _batches(self) -> Iterator[Minibatch]:
        """Yield this rank's batches from the current step on, epoch after epoch."""
        state, rank, ranks = self.state, self.ranks.rank, self.ranks.size
        part, size, seed = self.dataset.train, self.config.batch, self.order_seed
        epoch, start = divmod(state.step, self.epoch_steps)
        while True:
            if start == 0:
                state.lanes = ranks
            yield from resharded_batches(part, size, state.lanes, rank, ranks, seed=seed, epoch=epoch, start=start)
            epoch, start = epoch + 1, 0

    def _step(self, minibatch: Minibatch, step: int, conflict: bool) -> Info | None:
        """Make one update; return None if it was skipped since something is not finite."""
        config, optimizers = self.config, self.optimizers
        self.lr = optimizers.set_lr(lr_factor(config.schedule, step - 1, self.total))
        optimizers.zero_grad()
        losses, mask = minibatch_losses(
            self.model, minibatch, self.device, precision=config.precision, weighted=config.sample_weights
        )
        if self.positive_weights:
            losses = with_positive_weights(losses, minibatch.labels, self.positive_weights)
        try:
            info = backward(
                losses, self.method, mask=mask, task_weights=self.task_weights, diagnose=conflict and len(losses) > 1
            )
            penalty = self.model.penalty()
            if penalty is not None:
                penalty.backward()
            self._check_and_clip()
        except (InputError, _NonFiniteGradient) as error:
            self._skip_or_raise(step, losses, error)
            return None
        optimizers.step()
        self.state.skipped_in_a_row = 0
        self._unread_losses.append(info.mean_losses)
        return info

    def _check_and_clip(self) -> None:
        """Clip the gradient, and raise if it is not finite and such steps are to be skipped.

        Otherwise the next step's loss shows it, and until then no checkpoint is written: `save` checks the weights.
        """
        if self.config.clip is None and self.config.non_finite == "stop":
            return
        length = self.optimizers.gradient_length()
        if not bool(length.isfinite()):
            raise _NonFiniteGradient
        if self.config.clip is not None:
            self.optimizers.clip(self.config.clip, length)

    def _skip_or_raise(self, step: int, losses: Mapping[str, Tensor], error: Exception) -> None:
        """Count a step as skipped if something in it is not finite and that is allowed; raise otherwise."""
        wrong = self.ranks.most([not bool(loss.isfinite().all()) for loss in losses.values()])
        tasks = [name for name, one in zip(losses, wrong, strict=True) if one]
        if not tasks and not isinstance(error, NonFiniteInputError | _NonFiniteGradient):
            raise error
        state, what = self.state, "the loss" if tasks else "the gradient"
        state.skipped += 1
        state.skipped_in_a_row += 1
        if self.config.non_finite == "stop" or state.skipped_in_a_row >= _MOST_SKIPPED:
            raise self._non_finite(step, tasks, what) from error
        self.optimizers.zero_grad()
        of = f" of {', '.join(map(repr, tasks))}" if tasks else ""
        self.progress.say(f"step {step} skipped: {what}{of} is not finite")

    def _non_finite(self, step: int, tasks: list[str], what: str) -> NonFiniteError:
        last = None if self._saved_step is None else self.folder.last
        return NonFiniteError(step, tasks, what, last, self._saved_step, self.config.non_finite == "skip")

    # Records

    def _records_conflict(self, step: int) -> bool:
        every = self.config.conflict_every
        return every is None or (every > 0 and step % every == 0)

    def _read_losses(self) -> None:
        """Read the mean losses of the last steps. This was put off, since it makes a GPU wait."""
        self.state.losses += [mean_losses().tolist() for mean_losses in self._unread_losses]
        self._unread_losses.clear()

    def _log(self, info: Info | None) -> None:
        self._read_losses()
        state, names = self.state, [task.name for task in self.model.tasks]
        table = torch.tensor(state.losses or [[nan] * len(names)], dtype=torch.float64)  # [steps, K]
        means = dict(zip(names, table.nanmean(0).tolist(), strict=True))
        state.losses = []
        weights = self.task_weights or {}
        known = {name: value for name, value in means.items() if not isnan(value)}
        loss = sum(weights.get(name, 1.0) * value for name, value in known.items()) if known else nan
        self._add_line(
            {"kind": "train"},
            {
                "losses": means,
                "loss": loss,
                "lr": self.lr,
                "conflict": _conflict(info) if self._records_conflict(state.step) else None,
                "skipped": state.skipped,
            },
        )
        self.progress.trained(state.step, loss)

    def _add_line(self, what: Line, numbers: Line) -> None:
        if self.record is not None:
            step, seconds = self.state.step, self.state.seconds
            self.record.add({**what, "step": step, "epoch": step / self.epoch_steps, "seconds": seconds, **numbers})

    # Evaluation

    def _evaluation_due(self) -> bool:
        step, every = self.state.step, self.config.evaluate_every or self.epoch_steps
        return self.state.evaluated != step and (step % every == 0 or step == self.total)

    def _evaluate(self, stop_request: StopRequest) -> bool:
        """Evaluate, record it, and save, as the best weights if they are. Return False if a rank was asked to stop."""
        state = self.state
        metrics = self._measure(stop_request)
        if metrics is None:
            return False
        self._check_same_weights()
        state.evaluated = state.step
        best = True
        if "validation" in metrics:
            if state.step == 0 and (said := unequal_losses(metrics["validation"], self.task_weights or {})) is not None:
                self.progress.say(said)
            best = self._update_best(metrics["validation"])
            self.progress.evaluated(state.step, metrics["validation"], best)
            metrics["validation"] = {**metrics["validation"], "best": best}
        else:
            state.best_step = state.step  # nothing to choose by: the last is the best
        for part, values in metrics.items():
            self._add_line({"kind": "evaluation", "part": part}, values)
        self.save(best=best, short=not self._is_last_or_asked_for())
        return True

    def _is_last_or_asked_for(self) -> bool:
        """Return whether a checkpoint has to be written after this step, however short ago the one before was."""
        step, every = self.state.step, self.config.checkpoint_every
        return step >= self.total or self.out_of_patience() or (every is not None and step % every == 0)

    @property
    def evaluated_model(self) -> Model:
        """The model that is evaluated and kept if it is the best: that of the averaged weights if there are any."""
        return self.model if self.average is None else self.average.model

    def _measure(self, stop_request: StopRequest) -> dict[str, Metrics] | None:
        """Return the metrics of each part that is to be evaluated; None if a rank was asked to stop."""
        config, dataset = self.config, self.dataset
        parts = {"validation": dataset.validation, **({"test": dataset.test} if config.test_curve else {})}
        metrics: dict[str, Metrics] = {}
        for name, part in parts.items():
            if len(part):
                predictions = predict_part(
                    self.evaluated_model, part, config.evaluation_batch, self.device, stop_request.__bool__, self.ranks
                )
                if predictions is None:
                    return None
                metrics[name] = self.ranks.first(partial(predictions.metrics, weighted=config.weighted_metrics))
        return metrics

    def _check_same_weights(self) -> None:
        """Warn if the weights differ between ranks, which make the same steps and so should have the same weights."""
        if self.ranks.size > 1:
            digests = self.ranks.tell(_digest(self.model.state_dict()))
            if apart := [str(rank) for rank, digest in enumerate(digests) if digest != digests[0]]:
                self.progress.say(
                    f"step {self.state.step}: the weights of rank {', '.join(apart)} differ from those of rank 0, "
                    "which are the ones that are saved; are the machines and their versions of torch the same?"
                )

    def _update_best(self, metrics: Metrics) -> bool:
        """Keep the metrics if they are the best so far, and return whether they are."""
        state, stopping = self.state, self.config.stopping
        value = monitored_score(metrics, stopping.monitor, self.task_weights or {})
        if value is None and state.step == 0:
            notes = [values["note"] for values in metrics["tasks"].values() if "note" in values]
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

    def out_of_patience(self) -> bool:
        """Return whether the last evaluation was one too many without a better one."""
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

    def save(self, *, best: bool = False, short: bool = False) -> None:
        """Write a checkpoint to resume from; with ``best``, also write the weights, or their average, as the best.

        With ``short`` the one to resume from is left as it is if that was written less than a second ago.
        """
        self._read_losses()
        weights = self.model.state_dict()
        if not _all_finite(weights):
            raise self._non_finite(self.state.step, [], "a weight")
        random = self.ranks.tell(checkpoint.random_state(self.device))
        short = short and self._saved_step is not None and time.monotonic() - self._saved_at < _SHORT
        if self.ranks.first(lambda: self._write(weights, random, best, last=not short)):
            self._saved_at, self._saved_step = time.monotonic(), self.state.step

    def _write(self, weights: Mapping[str, Tensor], random: Sequence[dict[str, Any]], best: bool, last: bool) -> bool:
        """Write the files of a checkpoint, and return whether one to resume from is among them."""
        assert self.record is not None
        settings = checksum(self.config)
        if best:
            best_weights = self.evaluated_model.state_dict()
            checkpoint.save(self.folder.best, {"settings": settings, "step": self.state.step, "model": best_weights})
        if not last:
            return False
        self.state.recorded = self.record.to_disk()
        checkpoint.save(
            self.folder.last,
            {
                "settings": settings,
                "model": weights,
                **({} if self.average is None else {"average": self.average.model.state_dict()}),
                "optimizers": self.optimizers.state(),
                "method": self.method.state_dict(),
                "random": random[0],
                "random_of_others": list(random[1:]),
                "state": asdict(self.state),
            },
        )
        return True

    def _interrupt(self, stop_request: StopRequest) -> None:
        (number,) = self.ranks.most([stop_request.number or 0])
        self.save()
        raise Interrupted(self.folder.path, self.state.step, number)


class _NonFiniteGradient(Exception):
    """The gradient of a step is not finite."""


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
    """Return whole numbers that almost surely differ if the bits of weights do, as fast as memory is read."""
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return [int(one.reshape(-1).view(bits[one.element_size()]).sum(dtype=torch.int64)) for one in weights.values()]


def _all_finite(weights: Mapping[str, Tensor]) -> bool:
    return all(bool(one.isfinite().all()) for one in weights.values() if one.is_floating_point())
