"""A score of a model with several tasks, as scikit-learn's searches and cross-validations take it."""

from dataclasses import dataclass
from typing import Any

from gdod.errors import InputError
from gdod.training.evaluation import monitored_score


@dataclass(frozen=True)
class Scorer:
    """One number for all tasks, or for one of them; higher is better.

        cross_val_score(MultiTaskModel(), X, Y, scoring=Scorer("buy"))
        GridSearchCV(MultiTaskModel(), grid, scoring={"all": Scorer(), "buy": Scorer("buy")}, refit="all")

    Labels that are missing are left out, of each task its own. The model may be the last step of a pipeline, too, or
    one that a search has chosen.
    """

    of: str = "auto"
    """The score: "mean_auc"; "loss", the sum of the log losses and squared errors with its sign changed; the name of a
    task, for its AUC or its loss with the sign changed; or "auto": mean AUC if there is one, else loss."""

    def __call__(self, model: Any, X: Any, y: Any = None) -> float:
        """Return the score of a fitted model on a table with labels."""
        metrics = _evaluate(model, X, y)
        if self.of not in ("auto", "mean_auc", "loss", *metrics["tasks"]):
            names = ", ".join(map(repr, ("auto", "mean_auc", "loss", *metrics["tasks"])))
            raise InputError(f"Scorer({self.of!r}): there is no such score; expected one of {names}")
        score = monitored_score(metrics, self.of, {})
        if score is None:
            notes = [f"{name}: {one['note']}" for name, one in metrics["tasks"].items() if "note" in one]
            raise InputError(f"Scorer({self.of!r}) has no value on these rows: {'; '.join(notes) or 'no labels'}")
        return score


def _evaluate(model: Any, X: Any, y: Any) -> dict[str, Any]:
    """Return the metrics of a model, which may be within pipelines and searches of scikit-learn."""
    while not hasattr(model, "evaluate"):
        if hasattr(model, "best_estimator_"):
            model = model.best_estimator_
        elif hasattr(model, "steps"):
            X, model = (model[:-1].transform(X) if len(model.steps) > 1 else X), model[-1]
        else:
            raise InputError(
                f"a {type(model).__name__} cannot be scored; expected a fitted MultiTaskModel, a pipeline that ends "
                "with one, or a search over them"
            )
    metrics: dict[str, Any] = model.evaluate(X, y)
    return metrics
