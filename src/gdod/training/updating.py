"""Updates: a run that goes on from another one with the rows of a new table, such as those of a new day.

Weights, the state of the optimizer, the moving average and the method go on. Ids that are new get vectors of their own,
and what was counted is brought forward, see `gdod.data.preparing.bring_forward`. Settings that are not given are those
of the earlier run, but for how long it trains, and at which rate: `_CHOSEN`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from gdod._files import read_json
from gdod.errors import InputError
from gdod.models import MODELS
from gdod.models.growth import Growth, table_growth
from gdod.training import checkpoint
from gdod.training.config import Settings, TrainConfig, UpdateConfig, check_config, merged
from gdod.training.run import Folder, Run, load_run, resume_command

if TYPE_CHECKING:
    from gdod.data.dataset import Dataset
    from gdod.data.preparing.bring_forward import Previous
    from gdod.training.loop import Trainer

# How an update of a first run trains; an update of an update trains as that one did. docs/updates.md has the measures.
_PASSES = 1
_RATE = 0.3  # of the first run's learning rate
_CHOSEN: Settings = {"epochs": _PASSES, "steps": None, "schedule": {"name": "linear"}}

# Settings that an update cannot change: what is learned would no longer be what was, or the optimizer's state not fit.
_FIXED = (
    *("recipe", "model", "method", "average", "data.features", "data.labels"),
    *(f"optimizer.{name}" for name in ("name", "weight_decay", "id_decay", "momentum")),
)


def update_config(given: Mapping[str, Any]) -> TrainConfig:
    """Return the configuration of an update: the settings given, and all others by the run that `update.from` names."""
    update = check_config({"data": "-", "update": given["update"]}).update
    assert update is not None
    stored = read_previous(update.previous)
    _check_fixed(given, stored)
    settings = stored.model_dump(mode="json")
    data = {name: settings["data"][name] for name in ("features", "cache", "stream")}
    if stored.update is None:
        rate = {"optimizer": {"lr": _RATE * stored.optimizer.lr}}
        stopping = {"stopping": {**settings["stopping"], "patience": None}}
        settings = {**settings, **_CHOSEN, **merged({"optimizer": settings["optimizer"]}, rate), **stopping}
    half_life = UpdateConfig.model_fields["half_life"].default if stored.update is None else stored.update.half_life
    where = {"half_life": half_life, **update.model_dump(exclude_unset=True), "from": str(update.previous.absolute())}
    settings = {**settings, "data": data, "evaluate_every": None}
    if given.get("steps") is not None:
        settings["epochs"] = None
    elif given.get("epochs") is not None:
        settings["steps"] = None
    return check_config({**merged(settings, {**given, "update": {}}), "update": where, "filled": True})


def _check_fixed(given: Mapping[str, Any], stored: TrainConfig) -> None:
    """Raise if settings are given that an update cannot change."""
    full = stored.model_dump(mode="json")
    wanted = merged(full, {name: value for name, value in given.items() if name not in ("update", "data")})
    wanted["data"] = {**full["data"], **(given["data"] if isinstance(given.get("data"), Mapping) else {})}
    for path in _FIXED:
        before, now = _at(full, path), _at(wanted, path)
        if path == "data.labels" and (not now or before == list(now)):
            continue
        if path == "average" and before is not None and now is not None:
            continue  # it can be a longer or shorter one, but not begin or end
        if before != now:
            raise InputError(
                f"{path} is {now!r}, and {before!r} in the run to go on from; an update cannot change that. Leave it "
                "out, or train anew without --from"
            )


def _at(settings: Mapping[str, Any], path: str) -> Any:
    value: Any = settings
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else value
    return value


def read_previous(path: Path) -> TrainConfig:
    """Return the configuration of a run to go on from; raise unless it is one that has finished."""
    folder = Folder(path)
    if not folder.is_run:
        raise InputError(f"{path} is no run to go on from: it has no config.json; expected a folder of gdod train")
    settings = read_json(folder.config, "the configuration of a run")
    model = settings.get("model")
    if isinstance(model, dict) and model.get("name") not in MODELS:
        raise InputError(
            f"{path} holds a model {model.get('name')!r} of a comparison, which cannot go on; expected a run of gdod "
            f"train with one of the models {', '.join(MODELS)}"
        )
    stored = folder.read_config()
    if not folder.is_finished:
        raise InputError(
            f"the run in {path} has not finished, so an update cannot go on from it; first end it: "
            f"{resume_command(path)}"
        )
    return stored


@dataclass(frozen=True)
class Parent:
    """The run that an update goes on from."""

    run: Run
    last: Mapping[str, Any]
    """Its last checkpoint."""

    @classmethod
    def open(cls, update: UpdateConfig) -> "Parent":
        """Read a run to go on from; raise if it cannot be, in words."""
        read_previous(update.previous)
        run = load_run(update.previous)
        if run.encoder.counts is None:
            raise InputError(
                f"the run in {update.previous} was written by a version that did not keep what an update brings "
                "forward (counts.parquet); train anew, without --from"
            )
        run.encoder.counts.check()  # type: ignore[union-attr]
        if not run.folder.last.exists():
            raise InputError(
                f"{run.folder.last} is missing, and with it the state of the optimizer that an update goes on from. An "
                "estimator that was pickled or copied has the weights alone: to go on with it later, save(folder) and "
                "load(folder) it, or train anew"
            )
        last = checkpoint.load(run.folder.last)
        if "optimizers" not in last:
            raise InputError(
                f"{run.folder.last} has the weights alone, not the state of the optimizer, as finished runs of a "
                "comparison have; an update needs a run of gdod train"
            )
        return cls(run, last)

    def previous(self, update: UpdateConfig) -> "Previous":
        """Return what preparing the new table goes on from."""
        from gdod.data.preparing.bring_forward import Previous

        return Previous(self.run.encoder, update.half_life, update.validation, update.test)

    @property
    def steps(self) -> int:
        """The number of steps that it and the runs before it made."""
        return int(self.last["state"]["step"] + self.last["state"].get("before", 0))

    def begin(self, trainer: "Trainer") -> None:
        """Let a new run begin with the weights of this one, and what the optimizer, the average and the method know.

        The weights are the last ones if those were the best on validation, otherwise the best.
        """
        weights = {name: self.last[name] for name in ("model", "average") if name in self.last}
        if self.run.step != self.last["state"]["step"]:
            best = checkpoint.load(self.run.folder.best)["model"]
            weights = dict.fromkeys(weights, best)
        grown = table_growth(trainer.model, self.run.encoder.model_schema)
        content: dict[str, Any] = {name: _grown_weights(one, grown) for name, one in weights.items()}
        content["method"] = self.last["method"]
        names = trainer.optimizers.names(trainer.model)
        states = zip(self.last["optimizers"], names, strict=True)
        content["optimizers"] = [_grown_state(state, of, grown) for state, of in states]
        trainer.begin_from(content, self.steps)

    def about(self, config: TrainConfig, dataset: "Dataset") -> dict[str, Any]:
        """Return what `about.json` says of an update: where it comes from, and what is new in it."""
        from gdod.data.preparing.bring_forward import growth

        counts = dataset.encoder.counts
        assert config.update is not None
        assert counts is not None
        return {
            "from": str(config.update.previous),
            "updates": counts.updates,
            "half_life": config.update.half_life,
            "rows_seen": counts.rows,
            "steps_before": self.steps,
            "grown": growth(self.run.encoder, dataset.encoder),
        }


def _grown_weights(weights: Mapping[str, Tensor], grown: Mapping[str, Growth]) -> dict[str, Tensor]:
    return {name: grown[name].weights(one) if name in grown else one for name, one in weights.items()}


def _grown_state(state: Mapping[str, Any], names: Sequence[str], grown: Mapping[str, Growth]) -> dict[str, Any]:
    """Return the state of an optimizer with a line of zeros for each new id."""
    numbers = {
        number: {key: grown[names[number]].moments(value) if _is_table(value) else value for key, value in one.items()}
        if names[number] in grown
        else one
        for number, one in state["state"].items()
    }
    return {**state, "state": numbers}


def _is_table(value: object) -> bool:
    return isinstance(value, Tensor) and value.ndim == 2


def update_in_words(config: TrainConfig) -> tuple[str, ...]:
    """Return what an update does, a sentence each."""
    update = config.update
    assert update is not None
    passes = config.epochs or 1
    length = f"{config.steps:,} steps" if config.steps else f"{passes:g} {'pass' if passes == 1 else 'passes'}"
    test = f", {update.test:.0%} for a test" if update.test else ", none for a test"
    return (
        f"update of the run in {update.previous}: its weights, optimizer and statistics go on; new ids get vectors",
        f"{length} over the new rows, learning rate {config.optimizer.lr:g}, schedule {config.schedule.name}",
        f"half-life of counts: {update.half_life:g} updates",
        f"validation rows are taken from the new table as before{test}",
        "as they were: the scales and bins of numbers, the columns with statistics, classes, the scales of labels",
    )
