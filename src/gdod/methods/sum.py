"""The plain sum of the task gradients (what the paper calls Adam, after its optimizer)."""

from gdod.methods.gram import Gram
from gdod.methods.method import Method, Weights


class Sum(Method):
    def weigh(self, gram: Gram) -> Weights:
        return Weights(gram.averages.sum(0), all_kept=True)

    def __repr__(self) -> str:
        return "Sum()"
