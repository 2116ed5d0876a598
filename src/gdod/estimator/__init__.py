"""An estimator as in scikit-learn, over the same settings, recipes and run folders as `gdod train`.

model = gdod.MultiTaskModel(model="mmoe").fit(frame, labels=["click", "buy"])
probabilities = model.predict_proba(new)
"""

from gdod.estimator.multi_task_model import MultiTaskModel
from gdod.estimator.scorer import Scorer

__all__ = ["MultiTaskModel", "Scorer"]
