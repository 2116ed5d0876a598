"""The estimator in the hands of scikit-learn: clones, searches, cross-validation and its own checks."""

from typing import Any

import numpy as np
import polars as pl
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import ClassifierTags
from sklearn.utils.estimator_checks import check_estimator
from tests.estimator.test_multi_task_model import LABELS, QUICK
from tests.training import tiny

from gdod import InputError, MultiTaskModel
from gdod.estimator import Scorer

TWO_VALUES = "a label of two values that are not 0 and 1 is refused until a schema says which of them counts as 1"
CLASSES = "there is no `classes_`: each task has classes of its own, and some have none"
CANNOT_APPLY = {
    "check_estimators_dtypes": TWO_VALUES,
}
CANNOT_APPLY_AS_A_CLASSIFIER = {
    **CANNOT_APPLY,
    "check_classifier_data_not_an_array": TWO_VALUES,
    "check_classifiers_classes": TWO_VALUES,
    "check_classifiers_train": CLASSES,
    "check_classifiers_regression_target": "a label of fractions is a regression, which is a task like any other",
}


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GDOD_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


class _Classifier(MultiTaskModel):
    """The estimator as one that says it is a classifier, so that scikit-learn checks it as such."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.estimator_type = "classifier"
        tags.classifier_tags = ClassifierTags(poor_score=True, multi_label=True)
        return tags


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # scikit-learn's own, and remarks on its tables
@pytest.mark.parametrize(
    ("kind", "cannot"), [(MultiTaskModel, CANNOT_APPLY), (_Classifier, CANNOT_APPLY_AS_A_CLASSIFIER)]
)
def test_checks_of_scikit_learn_pass_where_they_apply(kind: type[MultiTaskModel], cannot: dict[str, str]) -> None:
    # Its tables have a dozen rows, of which none can be spared.
    model = kind(**{**QUICK, "steps": 3, "batch": 16}, test_fraction=0.0, validation_fraction=0.0)
    results = check_estimator(model, expected_failed_checks=cannot, on_skip=None)
    by_status: dict[str, set[str]] = {}
    for one in results:
        by_status.setdefault(one["status"], set()).add(one["check_name"])
    assert by_status["xfail"] == set(cannot)  # the list names no check that would pass
    assert len(by_status["passed"]) > 30


def test_clones_have_the_parameters_and_no_model() -> None:
    frame = tiny.frame(200).drop("id")
    model = MultiTaskModel(**QUICK).fit(frame, labels=LABELS)
    copy = clone(model)
    assert copy.get_params() == model.get_params()
    with pytest.raises(NotFittedError, match="not fitted yet"):
        copy.predict(frame)
    assert copy.fit(frame, labels=LABELS).predict_proba(frame).equals(model.predict_proba(frame))


@pytest.mark.parametrize("library", ["polars", "pandas", "numpy"])
def test_cross_validation_scores_labels_that_may_be_missing(library: str) -> None:
    frame = tiny.frame(300).drop("id")
    features: Any = frame.select("age", "w")
    labels: Any = frame.select("click", pl.when(pl.col("click") == 1).then("buy").cast(pl.Float64))
    if library != "polars":
        features, labels = getattr(features, f"to_{library}")(), getattr(labels, f"to_{library}")()
    model = MultiTaskModel(**QUICK, test_fraction=0.0)
    scores = cross_val_score(model, features, labels, cv=2, error_score="raise")
    assert scores.shape == (2,)
    fold = model.fit(*(_rows(table, slice(150, 300)) for table in (features, labels)))
    assert scores[0] == fold.evaluate(*(_rows(table, slice(0, 150)) for table in (features, labels)))["mean_auc"]


def test_predictions_of_rows_that_were_left_out() -> None:
    """With labels of several tasks; columns are those of pandas in Arrow's memory."""
    frame = tiny.frame(300).drop("id")
    features = frame.drop(LABELS).to_pandas(use_pyarrow_extension_array=True)
    labels = frame.select(LABELS).to_pandas()
    model = MultiTaskModel(**QUICK, test_fraction=0.0)
    predictions = cross_val_predict(model, features, labels, cv=2)
    assert predictions.shape == (300, 2)
    second = model.fit(features[:150], labels[:150]).predict(features[150:])
    np.testing.assert_array_equal(predictions[150:], second)
    # scikit-learn puts columns of probabilities in the order of classes; there is one column a task here.
    for some in (labels["click"], labels):
        with pytest.raises(AttributeError, match=r"has no classes_.* in a loop over the folds"):
            cross_val_predict(model, features, some, cv=2, method="predict_proba")
    assert not hasattr(model, "classes_")


@pytest.mark.slow
def test_folds_in_processes_of_their_own_score_the_same() -> None:
    frame = tiny.frame(300).drop("id")
    features, labels = frame.drop(LABELS), frame.select(LABELS)
    model = MultiTaskModel(**QUICK, test_fraction=0.0)
    alone, together = (cross_val_score(model, features, labels, cv=2, n_jobs=jobs) for jobs in (1, 2))
    np.testing.assert_array_equal(alone, together)


def _rows(table: Any, rows: slice) -> Any:
    return table.iloc[rows] if hasattr(table, "iloc") else table[rows]


def test_a_search_goes_by_scores_of_its_choice() -> None:
    frame = tiny.frame(300).drop("id")
    features, labels = frame.drop(LABELS), frame.select(LABELS)
    scores = {"all": Scorer(), "loss": Scorer("loss"), "buy": Scorer("buy")}
    grid = {"lr": np.array([1e-6, 0.03]), "seed": [1]}
    search = GridSearchCV(MultiTaskModel(**{**QUICK, "steps": 30}), grid, scoring=scores, refit="loss", cv=2)
    search.fit(features, labels)
    assert search.best_params_ == {"lr": 0.03, "seed": 1}
    found = search.cv_results_
    assert found["mean_test_loss"][1] > found["mean_test_loss"][0]
    assert (found["mean_test_loss"] < 0).all()
    assert ((found["mean_test_buy"] > 0) & (found["mean_test_buy"] < 1)).all()
    assert search.predict_proba(features).columns == LABELS
    with pytest.raises(InputError, match="no such score"):
        Scorer("bye")(search.best_estimator_, features, labels)
    with pytest.raises(InputError, match="has no value on these rows"):
        Scorer("buy")(search.best_estimator_, features, labels.with_columns(buy=pl.lit(0)))


def test_pipelines_and_searches_are_scored_as_the_model_in_them() -> None:
    frame = tiny.frame(300).drop("id")
    features, labels = frame.select("age", "w"), frame.select(LABELS)
    scaler = StandardScaler().set_output(transform="polars")
    pipeline = make_pipeline(scaler, MultiTaskModel(**QUICK, test_fraction=0.0))
    scores = cross_val_score(pipeline, features, labels, scoring=Scorer("buy"), cv=2, error_score="raise")
    pipeline.fit(features[150:], labels[150:])
    alone = pipeline[-1].evaluate(pipeline[0].transform(features[:150]), labels[:150])
    assert scores[0] == alone["tasks"]["buy"]["auc"]
    grid = {"multitaskmodel__lr": [1e-6, 0.03]}
    search = GridSearchCV(pipeline, grid, scoring=Scorer("loss"), cv=2, error_score="raise").fit(features, labels)
    best = search.best_estimator_
    assert Scorer("loss")(search, features, labels) == Scorer("loss")(best, features, labels)
    single = make_pipeline(MultiTaskModel(**QUICK)).fit(features, labels)
    assert Scorer()(single, features, labels) == single.score(features, labels)
    with pytest.raises(InputError, match="a StandardScaler cannot be scored; expected a fitted MultiTaskModel"):
        Scorer()(scaler, features, labels)
