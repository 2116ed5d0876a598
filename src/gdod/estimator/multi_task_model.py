"""`MultiTaskModel`: training, prediction and evaluation on tables in memory, in the form of a scikit-learn estimator.

It is an estimator by what it does, and needs no base class of scikit-learn: that package is none of this library's, and
a class whose base depends on what is installed could not be pickled from one place to another.
"""

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from gdod._checks import check_choice, listed
from gdod.data import Dataset, load
from gdod.data.inspection import inspect
from gdod.data.tables.frames import AnyFrame
from gdod.data.tables.table_schema import Split, TableSchema
from gdod.errors import InputError
from gdod.estimator.given_tables import GivenTable, given_labels, given_table
from gdod.estimator.scorer import Scorer
from gdod.estimator.stored_run import TemporaryFolder, copy_run, packed, unpack
from gdod.training import (
    Interrupted,
    Run,
    Shown,
    Silent,
    TrainConfig,
    check,
    check_config,
    load_run,
    read_config,
    train,
)
from gdod.training.config import IN_MEMORY, merged, nested
from gdod.training.explain import Settings, tell, tellable
from gdod.training.predict import EvaluationOptions, evaluate_chunks, predict_chunks
from gdod.training.updating import Parent

# Of each parameter that is a setting of `gdod train`, the path of the setting.
PATHS = {
    "model": "model.name",
    "model_options": "model.options",
    "method": "method.name",
    "method_options": "method.options",
    "optimizer": "optimizer.name",
    "lr": "optimizer.lr",
    "weight_decay": "optimizer.weight_decay",
    "schedule": "schedule.name",
    "warmup": "schedule.warmup",
    "patience": "stopping.patience",
    "monitor": "stopping.monitor",
    "vectors": "data.vectors",
    **{name: name for name in ("recipe", "clip", "batch", "epochs", "steps", "task_weights", "evaluate_every")},
    **{name: name for name in ("log_every", "checkpoint_every", "seed", "device", "precision", "threads")},
    **{name: name for name in ("non_finite", "tensorboard", "positive_weights", "negatives_kept", "calibrate")},
}
_OF_THE_SOURCE = ("source", "schema", "labels", "folder", "options", "fold")  # settings of data that a frame takes over


@dataclass(kw_only=True, eq=False, repr=False)
class MultiTaskModel:
    """One model of several labels of a table, in the form of a scikit-learn estimator.

        model = MultiTaskModel(model="mmoe").fit(frame, labels=["click", "buy"])
        probabilities = model.predict_proba(new)  # a frame, one column a task
        model.save("runs/clicks")

    It trains as `gdod train` does on the same rows, with the same recipe and the same numbers, and what it saves is
    the same run folder. A parameter that is left at None is chosen by the recipe, or has the default of the command
    line.
    """

    schema: str | Path | TableSchema | Mapping[str, Any] | None = None
    """What the columns are: a YAML or TOML file, a `gdod.data.TableSchema` or its values; None: it is inferred, as
    `gdod data inspect` does."""
    validation_fraction: float | None = None
    """The share of the rows by which the best weights are chosen; None: as the schema says, 0.1 of what the test part
    leaves if it says nothing."""
    test_fraction: float | None = None
    """The share of the rows that are left out of training and tested at the end; None: as the schema says, 0.2 if it
    says nothing. With 0, what is not for validation is all trained on."""
    recipe: str | None = None
    """What fills the settings that are not given: "strong" (the default) or "paper"."""
    model: str | None = None
    """The model: "shared-bottom", "cross-stitch", "mmoe", "snr", "ple", "stem", "single-task", or for a chain of tasks
    such as click and buy "esmm" or "aitm"."""
    model_options: Mapping[str, Any] | None = None
    """Options of the model, such as {"experts": 4}."""
    method: str | None = None
    """The method that combines the tasks' gradients: "sum", "gdod", "weighted-gdod", "pcgrad", "cagrad", ..."""
    method_options: Mapping[str, Any] | None = None
    """Options of the method, such as {"groups": 16}."""
    optimizer: str | None = None
    """The optimizer: "adam", "adamw", "sgd" or "sparse-adam"."""
    lr: float | None = None
    """The learning rate."""
    weight_decay: float | None = None
    """The weight decay."""
    schedule: str | None = None
    """The schedule of the learning rate: "constant", "cosine", "linear" or "step"."""
    warmup: int | None = None
    """The number of steps in which the learning rate rises."""
    clip: float | None = None
    """The longest gradient of a step."""
    batch: int | None = None
    """The number of examples of a step."""
    epochs: float | None = None
    """The number of passes over the training rows."""
    steps: int | None = None
    """The number of steps, in place of epochs."""
    vectors: Mapping[str, str | Path] | None = None
    """Files with vectors of the values of categorical columns, by column: {"item": "items.parquet"}."""
    task_weights: Mapping[str, float] | None = None
    """Factors of the tasks' losses by task name."""
    positive_weights: Mapping[str, float] | None = None
    """How often a positive example counts, by the name of a binary task."""
    negatives_kept: Mapping[str, float] | None = None
    """The share of the negatives that the table still has, by the name of a binary task, if some were left out;
    predictions are corrected for it."""
    calibrate: str | None = None
    """How probabilities are fitted to the validation part after training: "none", "platt" or "isotonic"."""
    patience: int | None = None
    """The number of evaluations without a better one before training ends."""
    monitor: str | None = None
    """The score by which the best weights are chosen: "mean_auc", "loss" or a task."""
    evaluate_every: int | None = None
    """The number of steps between evaluations."""
    log_every: int | None = None
    """The number of steps between two recorded training losses."""
    checkpoint_every: int | None = None
    """The number of steps between checkpoints, besides those after evaluations (one a second at most)."""
    seed: int | None = None
    """The seed of weights, order and dropout."""
    device: str | None = None
    """The device: "cpu", "cuda", ... or "auto"."""
    precision: str | None = None
    """The precision: "float32" or "bf16"."""
    threads: int | None = None
    """The number of threads of torch while it trains."""
    non_finite: str | None = None
    """What to do with a step whose loss is not finite: "stop" or "skip" it."""
    tensorboard: bool | None = None
    """Whether to write curves for TensorBoard; None: if `fit` is given a folder for the run."""
    settings: Mapping[str, Any] | None = None
    """Any other settings of `gdod train`, by their paths, such as {"stopping.least": 0.001, "data.cache": "cache"};
    they win over parameters."""
    verbose: bool = True
    """Whether to show progress, as the command line does."""

    # Parameters, as scikit-learn asks for them

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters by name; ``deep`` changes nothing, since none of them is an estimator itself."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def set_params(self, **params: Any) -> Self:
        """Set parameters by name, and return the estimator."""
        known = self.get_params()
        for name in params:
            check_choice("parameter", name, known)
        for name, value in params.items():
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        given = {field.name: value for field in fields(self) if (value := getattr(self, field.name)) != field.default}
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in given.items())})"

    def __sklearn_tags__(self) -> Any:
        """Return what scikit-learn asks about an estimator; only scikit-learn calls it, so that it is there."""
        from sklearn.utils import InputTags, Tags, TargetTags

        return Tags(
            estimator_type=None,  # tasks of several kinds: neither a classifier nor a regressor
            target_tags=TargetTags(required=True, multi_output=True, two_d_labels=False, single_output=True),
            input_tags=InputTags(two_d_array=True, categorical=True, string=True, allow_nan=True),
        )

    @property
    def classes_(self) -> Any:
        """There are none; raise in words, since some functions of scikit-learn ask for them."""
        raise AttributeError(
            "MultiTaskModel has no classes_: each task has classes of its own, and a regression none. "
            'cross_val_predict(method="predict_proba") asks for them, and would take missing labels for a class; in '
            "place of it, fit and predict in a loop over the folds (docs/estimator.md has it)"
        )

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "run_")

    # Training

    def fit(
        self,
        X: AnyFrame,
        y: AnyFrame | None = None,
        *,
        labels: Sequence[str] | str | None = None,
        validation: AnyFrame | None = None,
        test: AnyFrame | None = None,
        out: str | Path | None = None,
        resume: bool = False,
    ) -> Self:
        """Train on a table, and return the estimator.

            model.fit(frame, labels=["click", "buy"])
            model.fit(X, Y)

        Afterwards `run_` is the trained `gdod.training.Run`, and `result_` the content of its result.json: metrics on
        the validation and the test part, times, the best step.

        Args:
            X: a polars or pandas DataFrame, a pyarrow Table, or a matrix of numpy; with the labels among its columns
                if ``y`` is not given.
            y: the labels, a column a task, in the same order of rows; a missing one is NaN or null.
            labels: the columns of ``X`` to predict; None: those that the schema marks, or whose names say so, such as
                "click".
            validation: a table of rows to choose the best weights by, as ``X``, or a pair (X, y); None: some rows of
                ``X`` (`validation_fraction`).
            test: a table of rows to test on at the end, in the same form; None: some rows of ``X`` (`test_fraction`).
            out: the folder of the run; None: a temporary one, which goes with the estimator. `save` keeps it.
            resume: whether to go on with the run in ``out``, if there is one.
        """
        config = self._config(out)
        table, frame, names = self._training_table(X, y, labels)
        parts = {"validation": validation, "test": test}
        if len(frame) < 2:
            raise InputError(f"the table has n_samples = {len(frame)}, that is {len(frame)} row(s); expected 2 or more")
        others = {part: _whole(given) for part, given in parts.items() if given is not None}
        schema = self._schema(frame, names, others)
        config = _with_labels(config, schema)
        check(config)
        if resume and out is None:
            raise InputError("resume=True needs out=..., the folder of the run to go on with")
        folder = TemporaryFolder() if out is None else None
        place = Path(out) if folder is None else folder.path / "run"  # type: ignore[arg-type]
        if y is None and labels is None and self.schema is None and self.verbose:
            Shown(_console()).say(f"data: these columns are predicted, by their names: {', '.join(schema.labels)}")
        data = config.data
        dataset = load(
            frame,
            schema=schema,
            validation=others.get("validation"),
            test=others.get("test"),
            cache=data.cache,
            stream=data.stream,
            features=data.features,
            vectors=data.vectors,
        )
        self._train(config, place, folder, dataset, resume, "fit")
        features = [name for name in table.columns if name not in schema.labels]
        self.n_features_in_ = len(features)
        self.__dict__.pop("feature_names_in_", None)
        if not isinstance(X, np.ndarray):
            self.feature_names_in_: NDArray[np.object_] = np.array(features, dtype=object)
        return self

    def update(
        self,
        X: AnyFrame,
        y: AnyFrame | None = None,
        *,
        validation: AnyFrame | None = None,
        test: AnyFrame | None = None,
        half_life: float | None = None,
        settings: Mapping[str, Any] | None = None,
        out: str | Path | None = None,
        resume: bool = False,
    ) -> Self:
        """Go on with the fitted model on the rows of a new table, as `gdod train --from` does; return the estimator.

            model.fit(monday, labels=["click", "buy"]).update(tuesday).update(wednesday)

        Ids that are new get vectors, and target statistics are brought forward: see docs/updates.md. Afterwards `run_`
        and `result_` are those of the update.

        Args:
            X: a table with the columns of the one that was fitted, of rows that are new.
            y: the labels, as for `fit`.
            validation: a table of rows to choose the best weights by; None: some rows of ``X``, in the way that the
                table of `fit` was split.
            test: a table of rows to test on at the end; None: none, unless ``settings`` have "update.test".
            half_life: after how many updates what was counted of a row counts half.
            settings: settings of `gdod train` for this update, by their paths, such as {"optimizer.lr": 1e-3}; the
                others are those of the fitted run, or chosen for updates.
            out: the folder of the new run; None: a temporary one.
            resume: whether to go on with the update in ``out``, if there is one.
        """
        if resume and out is None:
            raise InputError("resume=True needs out=..., the folder of the run to go on with")
        before = self._fitted().folder.path
        table, frame, _ = self._training_table(X, y, None)
        self._check_width(X, table)
        given = {"update.from": str(before), **({} if half_life is None else {"update.half_life": half_life})}
        if out is None:
            given["tensorboard"] = False
        config = read_config(None, {**given, **(settings or {}), "data.source": IN_MEMORY})
        config = _with_labels(config, self._fitted().encoder.table_schema)
        check(config)
        assert config.update is not None
        folder = TemporaryFolder() if out is None else None
        place = Path(out) if folder is None else folder.path / "run"  # type: ignore[arg-type]
        dataset = load(
            frame,
            validation=None if validation is None else _whole(validation),
            test=None if test is None else _whole(test),
            cache=config.data.cache,
            stream=config.data.stream,
            features=config.data.features,
            previous=Parent.open(config.update).previous(config.update),
        )
        self._train(config, place, folder, dataset, resume, "update")
        return self

    def _train(
        self,
        config: TrainConfig,
        place: Path,
        folder: TemporaryFolder | None,
        dataset: Dataset,
        resume: bool,
        what: str,
    ) -> None:
        """Train in a place, which is in ``folder`` if that is temporary, and hold the run as the fitted one."""
        progress = Shown(_console()) if self.verbose else Silent()
        command = [f"{self!r}.{what}"]
        try:
            with _as_before():
                train(config, place, dataset=dataset, resume=resume, progress=progress, command=command)
        except Interrupted as error:
            if folder is None:
                raise
            raise KeyboardInterrupt(f"stopped at step {error.step}; nothing is kept without out=...") from error
        self._take(place, folder)

    def _config(self, out: object) -> TrainConfig:
        """Return the settings of training, without what the table says; raise if one of them is wrong."""
        given = {path: getattr(self, name) for name, path in PATHS.items() if getattr(self, name) is not None}
        if out is None:
            given.setdefault("tensorboard", False)
        other = nested(self.settings or {})
        settings = merged(nested({path: _plain(value) for path, value in given.items()}), other)
        data = settings.get("data", {})
        if taken := [name for name in _OF_THE_SOURCE if not isinstance(data, Mapping) or name in data]:
            raise InputError(
                f"settings name the data ({listed(f'data.{name}' for name in taken)}), which is the table that fit "
                "gets; leave that out, and give a schema as schema=..."
            )
        return check_config(merged(settings, {"data": {"source": IN_MEMORY}}))

    def _training_table(
        self, X: AnyFrame, y: AnyFrame | None, labels: Sequence[str] | str | None
    ) -> tuple[GivenTable, pl.DataFrame, tuple[str, ...]]:
        """Return the features as they were given, the whole table, and the columns to predict that are named."""
        table = given_table(X)
        if y is not None and labels is not None:
            raise InputError("both y and labels=... are given; the labels are either a table of their own, or columns")
        if y is None and labels is None and isinstance(X, np.ndarray):
            raise InputError(
                "MultiTaskModel requires y to be passed, but the target y is None; a matrix has no columns with names"
            )
        names = () if labels is None else _names(labels)
        if y is None:
            return table, table.whole(), names
        targets = given_labels(y)
        return table, _beside(table, targets), tuple(targets.columns)

    def _schema(self, frame: pl.DataFrame, labels: tuple[str, ...], others: Mapping[str, pl.DataFrame]) -> TableSchema:
        """Return the schema of the training table, with the split that the parameters ask for."""
        schema = self.schema
        if schema is None:
            schema = inspect(frame, labels=labels).schema()
        elif isinstance(schema, Mapping):
            schema = TableSchema(**schema)
        elif not isinstance(schema, TableSchema):
            schema = TableSchema.read(schema)
        if unknown := [name for name in labels if name not in schema.labels]:
            raise InputError(
                f"the schema does not mark {listed(unknown)} as labels, only {listed(schema.labels)}; mark them there"
            )
        fractions = {"validation": self.validation_fraction, "test": self.test_fraction}
        changed = {part: share for part, share in fractions.items() if share is not None and part not in others}
        if not changed:
            return schema
        for part, share in changed.items():
            if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share < 1:
                raise InputError(f"{part}_fraction={share!r}; expected a share from 0 to below 1")
        # A copy, so that the columns still know which of their settings were given.
        return schema.model_copy(update={"split": Split(**{**schema.split.model_dump(), **changed})})

    def _take(self, place: Path, folder: TemporaryFolder | None) -> None:
        """Hold the run in a folder as the fitted one; ``folder`` is kept as long as this object is."""
        self.run_: Run = load_run(place, device=self.device or "cpu")
        self.result_: dict[str, Any] | None = self.run_.result
        self._folder = folder

    # Use

    def predict_proba(self, X: AnyFrame) -> Any:
        """Return a frame with a column a task, of the library that ``X`` is of; of a numpy matrix, a matrix.

        A column holds the probabilities of a binary task or the numbers of a regression; a task with several classes
        has a column for each, `task:class`. Rows are read chunk by chunk, also those of a polars LazyFrame, so that
        memory holds little more than the result.
        """
        table, predictions = self._predictions(X)
        return table.like(predictions)

    def predict(self, X: AnyFrame) -> Any:
        """Return a frame with a column a task: 1 where a binary label is at least as likely as not, else 0; the most
        likely class; or the number of a regression. Of a numpy matrix, a matrix, or a vector if there is one task.

        Classes that are whole numbers come as numbers, others as text.
        """
        table, predictions = self._predictions(X)
        run, columns = self._fitted(), []
        for task in run.tasks:
            if task.kind == "binary":
                columns.append((predictions[task.name] >= 0.5).cast(pl.Int64))
            elif task.kind == "regression":
                columns.append(predictions[task.name])
            else:
                classes = run.encoder.classes[task.name]
                most = predictions.select(f"{task.name}:{one}" for one in classes).to_numpy().argmax(1)
                columns.append(_class_values(classes).gather(most).alias(task.name))
        result = table.like(pl.DataFrame(columns))
        return result[:, 0] if isinstance(result, np.ndarray) and result.shape[1] == 1 else result

    def evaluate(
        self, X: AnyFrame, y: AnyFrame | None = None, *, threshold: float = 0.5, group: str | None = None
    ) -> dict[str, Any]:
        """Return the metrics on a table with labels: {"rows", "tasks", "mean_auc"}, as `gdod evaluate` gives them.

        Args:
            X: a table, as for `fit`, with the labels among its columns if ``y`` is not given.
            y: the labels, a column a task; a missing one is NaN or null.
            threshold: the probability from which on F1 takes a prediction for a 1.
            group: a column of ``X``, such as a user's id, within whose values the group AUC compares rows.
        """
        run = self._fitted()
        table = given_table(X)
        self._check_width(X, table)
        if y is not None:
            table = given_table(_beside(table, given_labels(y)))
        options = EvaluationOptions(threshold, group)
        metrics, notes = evaluate_chunks(run, table.chunks(), table.columns, options=options)
        _warn(notes)
        return metrics

    def score(self, X: AnyFrame, y: AnyFrame | None = None) -> float:
        """Return one number for all tasks, higher is better: the mean AUC if there is a binary task, otherwise the sum
        of the losses with its sign changed. `gdod.estimator.Scorer` has others.
        """
        return Scorer()(self, X, y)

    def explain(
        self,
        X: AnyFrame,
        y: AnyFrame | None = None,
        *,
        only: Sequence[str] = (),
        repeats: int = 5,
        batches: int = 20,
        seed: int = 0,
    ) -> dict[str, Any]:
        """Return what `gdod explain` finds, as frames of the library that ``X`` is of; of a numpy matrix, of polars.

        "importance": how much worse the predictions of each task are when a column is shuffled; "experts": the weights
        that tasks give to experts; "conflict": cosines between the tasks' gradients in each shared layer. A model
        without gates has no "experts", and one whose tasks share nothing no "conflict".

        Args:
            X: a table, as for `fit`, with the labels among its columns if ``y`` is not given.
            y: the labels, a column a task; a missing one is NaN or null.
            only: the parts to tell, such as ["experts"], which needs no labels; empty: all that there are.
            repeats: how often each column is shuffled.
            batches: of how many batches gradients are compared.
            seed: the seed of shuffles and batches.
        """
        run, table = self._fitted(), given_table(X)
        self._check_width(X, table)
        frame = table.whole() if y is None else _beside(table, given_labels(y))
        settings = Settings(repeats, batches, seed)
        parts, _ = tellable(run, frame, (only,) if isinstance(only, str) else only)
        return {part: table.as_given(pl.DataFrame(tell(part, run, frame, settings))) for part in parts}

    def _predictions(self, X: AnyFrame) -> tuple[GivenTable, pl.DataFrame]:
        run = self._fitted()
        table = given_table(X)
        self._check_width(X, table)
        predictions, notes = predict_chunks(run, table.chunks(), table.columns)
        _warn(notes)
        return table, predictions

    def _check_width(self, X: AnyFrame, table: GivenTable) -> None:
        """Raise if a matrix has another number of columns than that of training; frames have names to go by."""
        known = getattr(self, "n_features_in_", None)
        if isinstance(X, np.ndarray) and not hasattr(self, "feature_names_in_") and len(table.columns) != known:
            raise InputError(
                f"X has {len(table.columns)} features, but MultiTaskModel is expecting {known} features as input"
            )

    def _fitted(self) -> Run:
        if not hasattr(self, "run_"):
            raise _not_fitted("this MultiTaskModel is not fitted yet; call fit(frame, labels=[...]) or load first")
        return self.run_

    # Runs on disk

    def save(self, path: str | Path) -> None:
        """Copy the run to a new folder, as `gdod train` writes one: for `load`, `gdod predict`, `gdod report`, ..."""
        copy_run(self._fitted().folder.path, Path(path))

    @classmethod
    def load(cls, path: str | Path, *, device: str | None = None, verbose: bool = True) -> Self:
        """Return the estimator of a run on disk, be it of `save` or of `gdod train`.

        Its parameters are the run's settings, all that the recipe chose among them, so that `fit` trains another one
        as that was trained.

        Args:
            path: the folder of the run.
            device: the device to predict on; None: "cpu".
            verbose: whether `fit` shows progress.
        """
        run = load_run(path, device=device or "cpu")
        settings = run.config.model_dump(mode="json")
        data = {name: value for name, value in settings["data"].items() if name not in _OF_THE_SOURCE}
        loaded = cls(
            schema=_without_defaults(run.encoder.table_schema),
            settings={**settings, "data": data},
            device=device,
            verbose=verbose,
        )
        loaded._take(Path(path), None)
        features = list(run.encoder.inputs)
        loaded.n_features_in_, loaded.feature_names_in_ = len(features), np.array(features, dtype=object)
        return loaded

    def __getstate__(self) -> dict[str, Any]:
        state = {name: value for name, value in self.__dict__.items() if name not in ("run_", "result_", "_folder")}
        return {**state, "_files": packed(self.run_.folder.path)} if hasattr(self, "run_") else state

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = dict(state)
        files = state.pop("_files", None)
        self.__dict__.update(state)
        if files is not None:
            folder = TemporaryFolder()
            unpack(files, folder.path / "run")
            self._take(folder.path / "run", folder)


def _names(labels: object) -> tuple[str, ...]:
    """Return the columns to predict; raise unless they are names, each once."""
    given = (labels,) if isinstance(labels, str) else labels
    names = tuple(given) if isinstance(given, Iterable) else (None,)
    if not all(isinstance(name, str) for name in names):
        raise InputError(f'labels={labels!r}; expected the names of columns, such as ["click", "buy"]')
    if not names:
        raise InputError("labels=[] names no column; leave it out to go by the schema or by the columns' names")
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise InputError(f"labels={list(names)!r} name {listed(twice)} more than once; expected each column once")
    return names


def _whole(given: AnyFrame | tuple[AnyFrame, AnyFrame]) -> pl.DataFrame:
    """Return a table with its labels as one frame; it may be given as a pair (X, y)."""
    if isinstance(given, tuple):
        if len(given) != 2:
            raise InputError(f"a part of the data is a tuple of {len(given)}; expected a table, or a pair (X, y)")
        return _beside(given_table(given[0]), given_labels(given[1]))
    return given_table(given).whole()


def _beside(table: GivenTable, targets: pl.DataFrame) -> pl.DataFrame:
    """Return features and labels as one table."""
    if both := [name for name in targets.columns if name in table.columns]:
        raise InputError(f"X has columns of the names of y's, {listed(both)}; leave them out of X, or rename them")
    features = table.whole()
    if len(features) != len(targets):
        raise InputError(f"X has {len(features):,} rows and y {len(targets):,}; expected a row of labels for each row")
    return features.with_columns(targets.get_columns())


def _with_labels(config: TrainConfig, schema: TableSchema) -> TrainConfig:
    data = config.data.model_copy(update={"labels": tuple(schema.labels)})
    return config.model_copy(update={"data": data})


def _class_values(classes: Sequence[str]) -> pl.Series:
    """Return the classes of a task as numbers if all are whole ones, otherwise as text."""
    numbers = pl.Series(classes).cast(pl.Int64, strict=False)
    plain = not numbers.null_count() and numbers.cast(pl.String).to_list() == list(classes)
    return numbers if plain else pl.Series(classes)


def _plain(value: Any) -> Any:
    """Return a number of numpy, as scikit-learn's searches hand them on, as one of Python; other values as they are."""
    return value.item() if isinstance(value, np.generic) else dict(value) if isinstance(value, Mapping) else value


def _without_defaults(schema: TableSchema) -> TableSchema:
    """Return a schema that was read from a run in which only what differs from the defaults counts as given.

    A recipe chooses what was not given.
    """
    columns = {
        name: {"type": column.type, **column.model_dump(mode="json", exclude_defaults=True)}
        for name, column in schema.columns.items()
    }
    return TableSchema(columns=columns, split=schema.split.model_dump(), file=schema.file.model_dump())


@contextmanager
def _as_before() -> Iterator[None]:
    """Leave torch's random numbers and its number of threads as they are, whatever training does with them."""
    threads = torch.get_num_threads()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        torch.set_num_threads(threads)


def _warn(notes: Sequence[str]) -> None:
    for note in notes:
        warnings.warn(note, stacklevel=4)


def _console() -> Any:
    from rich.console import Console

    return Console(markup=False, highlight=False)  # names of tasks may have brackets


def _not_fitted(text: str) -> ValueError:
    """Return the error that scikit-learn expects of an estimator without a model, if that package is there."""
    try:
        from sklearn.exceptions import NotFittedError
    except ImportError:
        return InputError(text)
    error: ValueError = NotFittedError(text)
    return error
