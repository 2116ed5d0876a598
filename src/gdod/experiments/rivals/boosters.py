"""The rivals by name: how each is installed, set, trained on one task, used and stored."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from gdod.experiments.rivals.inputs import Rows
from gdod.experiments.search import Range
from gdod.schema import Task

Predicted = NDArray[np.float64]
"""Probabilities or numbers [n], or probabilities of several classes [n, C]."""


class BoosterOptions(BaseModel):
    """Settings of a booster. Those that are None are the library's own defaults."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    rounds: int
    """Most trees (of several classes: rounds with a tree for each) of a model."""
    patience: int = Field(default=50, ge=1)
    """The number of rounds without a better figure on the validation part after which training ends."""

    @property
    def given(self) -> dict[str, Any]:
        """The settings of the library that are not its defaults, by the names that it gives them."""
        return self.model_dump(exclude={"rounds", "patience"}, exclude_none=True)


class Fitted(ABC):
    """A trained model of one task."""

    rounds: int
    """How many rounds of training it is made of."""

    @abstractmethod
    def predict(self, rows: Rows) -> Predicted:
        """Return the predictions for rows."""

    @abstractmethod
    def save(self, path: Path) -> None:
        """Write the model to a file."""


@dataclass(frozen=True)
class Job:
    """One model to be trained."""

    task: Task
    train: Rows
    """All have the label."""
    validation: Rows | None
    """All have the label; None: there are none to stop by."""
    by_auc: bool
    """Whether training goes by the AUC on the validation part; else by the loss."""
    rounds: int
    """Most rounds."""
    options: BoosterOptions
    seed: int
    threads: int

    @property
    def labels(self) -> NDArray[np.float32]:
        return self.train.labels[self.task.name]


class Booster(ABC):
    """A library of boosted trees."""

    package: ClassVar[str]
    """The name it is installed and imported by."""
    title: ClassVar[str]
    options: ClassVar[type[BoosterOptions]]
    file_ending: ClassVar[str]
    unstopped: ClassVar[int]
    """The rounds of a task without validation labels to stop by: the library's default."""
    space: ClassVar[Mapping[str, Range]]
    """Where `gdod tune` looks for its options."""

    @abstractmethod
    def fit(self, job: Job) -> Fitted:
        """Train a model of one task."""


class LightGBMOptions(BoosterOptions):
    """Settings of LightGBM, by its own names."""

    rounds: int = Field(default=2000, ge=1)
    learning_rate: float | None = Field(default=None, gt=0)
    num_leaves: int | None = Field(default=None, ge=2)
    max_depth: int | None = None
    min_data_in_leaf: int | None = Field(default=None, ge=0)
    feature_fraction: float | None = Field(default=None, gt=0, le=1)
    bagging_fraction: float | None = Field(default=None, gt=0, le=1)
    """The share of rows that each tree is made from; drawn anew for each."""
    lambda_l1: float | None = Field(default=None, ge=0)
    lambda_l2: float | None = Field(default=None, ge=0)
    max_bin: int | None = Field(default=None, ge=2)
    cat_smooth: float | None = Field(default=None, ge=0)
    cat_l2: float | None = Field(default=None, ge=0)
    max_cat_threshold: int | None = Field(default=None, ge=1)
    min_data_per_group: int | None = Field(default=None, ge=1)


class LightGBM(Booster):
    """LightGBM, with categorical columns as its categorical features."""

    package = "lightgbm"
    title = "LightGBM"
    options = LightGBMOptions
    file_ending = "txt"
    unstopped = 100
    space: ClassVar[Mapping[str, Range]] = {
        "learning_rate": Range(0.01, 0.3, log=True),
        "num_leaves": Range(8, 256, log=True),
        "min_data_in_leaf": Range(5, 200, log=True),
        "feature_fraction": Range(0.4, 1.0),
        "bagging_fraction": Range(0.5, 1.0),
        "lambda_l2": Range(1e-3, 10.0, log=True),
        "cat_smooth": Range(1.0, 100.0, log=True),
    }
    _objectives: ClassVar = {"binary": "binary", "regression": "regression", "multiclass": "multiclass"}
    _losses: ClassVar = {"binary": "binary_logloss", "regression": "rmse", "multiclass": "multi_logloss"}

    def fit(self, job: Job) -> Fitted:
        import lightgbm

        kind = job.task.kind
        settings = {
            "objective": self._objectives[kind],
            "metric": "auc" if job.by_auc else self._losses[kind],
            **({"num_class": job.task.classes} if kind == "multiclass" else {}),
            **({"bagging_freq": 1} if "bagging_fraction" in job.options.given else {}),
            **job.options.given,
            "seed": job.seed % 2**31,
            "num_threads": job.threads,
            "verbosity": -1,
        }
        columns = list(range(job.train.categories.shape[1]))
        train = lightgbm.Dataset(
            _matrix(job.train), job.labels, weight=job.train.weights, categorical_feature=columns, params=settings
        )
        watched: list[lightgbm.Dataset] = []
        callbacks: list[Callable[..., Any]] = []
        if job.validation is not None:
            labels = job.validation.labels[job.task.name]
            weights = job.validation.weights
            watched = [
                lightgbm.Dataset(
                    _matrix(job.validation), labels, weight=weights, reference=train, categorical_feature=columns
                )
            ]
            callbacks = [lightgbm.early_stopping(job.options.patience, verbose=False)]
        model = lightgbm.train(settings, train, job.rounds, valid_sets=watched, callbacks=callbacks)
        return _FittedLightGBM(model, model.best_iteration if watched else job.rounds)


def _matrix(rows: Rows) -> NDArray[np.float32]:
    """Return all columns side by side, the categories first, counted from 0 on and nan where missing."""
    categories = np.where(rows.categories > 0, rows.categories - 1, np.nan).astype(np.float32)
    return np.concatenate([categories, rows.numbers], 1)


class _FittedLightGBM(Fitted):
    def __init__(self, model: Any, rounds: int) -> None:
        self.model, self.rounds = model, rounds

    def predict(self, rows: Rows) -> Predicted:
        return np.asarray(self.model.predict(_matrix(rows), num_iteration=self.rounds), np.float64)

    def save(self, path: Path) -> None:
        self.model.save_model(str(path), num_iteration=self.rounds)


class CatBoostOptions(BoosterOptions):
    """Settings of CatBoost, by its own names."""

    rounds: int = Field(default=1000, ge=1)
    learning_rate: float | None = Field(default=None, gt=0)
    """None: CatBoost chooses it by the number of rows and rounds."""
    depth: int | None = Field(default=None, ge=1, le=16)
    l2_leaf_reg: float | None = Field(default=None, ge=0)
    random_strength: float | None = Field(default=None, ge=0)
    bagging_temperature: float | None = Field(default=None, ge=0)
    border_count: int | None = Field(default=None, ge=1)
    one_hot_max_size: int | None = Field(default=None, ge=0)
    max_ctr_complexity: int | None = Field(default=None, ge=1)
    min_data_in_leaf: int | None = Field(default=None, ge=1)


class CatBoost(Booster):
    """CatBoost, with categorical columns as its `cat_features`."""

    package = "catboost"
    title = "CatBoost"
    options = CatBoostOptions
    file_ending = "cbm"
    unstopped = 1000
    space: ClassVar[Mapping[str, Range]] = {
        "learning_rate": Range(0.02, 0.3, log=True),
        "depth": Range(4, 10),
        "l2_leaf_reg": Range(1.0, 30.0, log=True),
        "random_strength": Range(0.1, 10.0, log=True),
        "bagging_temperature": Range(0.0, 1.0),
    }
    _losses: ClassVar = {"binary": "Logloss", "regression": "RMSE", "multiclass": "MultiClass"}

    def fit(self, job: Job) -> Fitted:
        import catboost

        kind = job.task.kind
        settings = {
            "loss_function": self._losses[kind],
            **({"eval_metric": "AUC"} if job.by_auc else {}),
            **({"classes_count": job.task.classes} if kind == "multiclass" else {}),
            **job.options.given,
            "iterations": job.rounds,
            "random_seed": job.seed % 2**31,
            "thread_count": job.threads,
            "logging_level": "Silent",
            "allow_writing_files": False,
        }
        if job.validation is not None:
            settings |= {"od_type": "Iter", "od_wait": job.options.patience, "use_best_model": True}
        model = catboost.CatBoost(settings)
        watched = None if job.validation is None else _pool(job.validation, job.task.name)
        model.fit(_pool(job.train, job.task.name), eval_set=watched)
        return _FittedCatBoost(model, kind, int(model.tree_count_))


def _pool(rows: Rows, task: str | None = None) -> Any:
    """Return rows as CatBoost takes them, with the labels of a task."""
    import catboost

    names = np.array([b"%d" % one for one in range(int(rows.categories.max(initial=0)) + 1)], dtype=object)
    columns = catboost.FeaturesData(
        num_feature_data=rows.numbers if rows.numbers.shape[1] else None,
        cat_feature_data=names[rows.categories] if rows.categories.shape[1] else None,
    )
    return catboost.Pool(
        columns, label=None if task is None else rows.labels[task], weight=None if task is None else rows.weights
    )


class _FittedCatBoost(Fitted):
    _forms: ClassVar = {"binary": "Probability", "regression": "RawFormulaVal", "multiclass": "Probability"}

    def __init__(self, model: Any, kind: str, rounds: int) -> None:
        self.model, self.kind, self.rounds = model, kind, rounds

    def predict(self, rows: Rows) -> Predicted:
        predicted = np.asarray(self.model.predict(_pool(rows), prediction_type=self._forms[self.kind]), np.float64)
        return predicted[:, 1] if self.kind == "binary" else predicted

    def save(self, path: Path) -> None:
        self.model.save_model(str(path))


RIVALS: Mapping[str, Booster] = {"lightgbm": LightGBM(), "catboost": CatBoost()}
"""The rivals by name."""
