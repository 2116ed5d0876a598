"""Changes to GDOD, each an option, to study what of it helps (docs/methods.md, "Variants for study")."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from gdod.errors import InputError
from gdod.methods import agreement as agreements
from gdod.methods.base import Method, Weights
from gdod.methods.checks import check_choice, check_number, check_positive
from gdod.methods.descent import check_state
from gdod.methods.gdod import on_spectrum
from gdod.methods.gram import Gram

# What is shorter than this share of the rows it comes from is rounding, as far as a Gram matrix can tell.
_ROUNDING = 16 * torch.finfo(torch.float64).eps ** 0.5


@dataclass
class _Part:
    """What is remembered about one part of the shared parameters."""

    steps: int = 0
    average: Tensor | None = None  # running sum of (1 - memory) memory^age G [N, N]
    averaged: int = 0  # over how many Gram matrices


class GDODVariant(Method):
    """GDOD with one thing or another changed. With the defaults it is `GDOD`.

    Args:
        groups: as in `GDOD`.
        rank: as in `GDOD`.
        agreement: "sign" and "product" as in `GDOD`; "majority": the factors of `WeightedGDOD`; "soft": all
            projections on a basis vector times |Σ p| / Σ |p|; "lead": the side with the larger Σ |p|, whole.
        normalise: the basis and the agreement see task gradients of length 1; what is kept is of the real ones.
        balance: the whole method sees task gradients that all have the mean of their lengths (those that have one), and
            so does the plain sum wherever it takes part.
        memory: the basis is that of a running average of Gram matrices, in which the past has this share.
        length: of the update: "kept": what is left of the gradients; "sum": that of the plain sum.
        mix: this share of the update is the plain sum.
        begin: the plain sum before this step.
        end: the plain sum from this step on; None: never.
        scope: what is decomposed together: "all" shared parameters; each "layer" on its own; "dense": all but
            embedding tables, which get the plain sum.
    """

    def __init__(
        self,
        groups: int | None = 16,
        rank: int | None = None,
        agreement: str = "sign",
        normalise: bool = False,
        balance: bool = False,
        memory: float = 0.0,
        length: str = "kept",
        mix: float = 0.0,
        begin: int = 0,
        end: int | None = None,
        scope: Literal["all", "layer", "dense"] = "all",
    ) -> None:
        for name, number in (("groups", groups), ("rank", rank)):
            if number is not None:
                check_positive(name, number)
        check_choice("agreement", agreement, agreements.VARIANTS)
        check_choice("length", length, ("kept", "sum"))
        check_choice("scope", scope, ("all", "layer", "dense"))
        for name, flag in (("normalise", normalise), ("balance", balance)):
            if not isinstance(flag, bool):
                raise InputError(f"{name}={flag!r}; expected True or False")
        check_number("memory", memory, at_least=0)
        check_number("mix", mix, at_least=0)
        if memory >= 1:
            raise InputError(f"memory={memory!r}; expected a number below 1: the share of the past in the average")
        if mix > 1:
            raise InputError(f"mix={mix!r}; expected a number of at most 1: the share of the plain sum")
        for name, step in (("begin", begin), ("end", end)):
            if step is not None and (isinstance(step, bool) or not isinstance(step, int) or step < 0):
                raise InputError(f"{name}={step!r}; expected a whole number of at least 0: a step")
        if end is not None and end < begin:
            raise InputError(f"end={end} is before begin={begin}; expected end to be at least begin")
        self.groups, self.rank = groups, rank
        self.agreement, self.normalise, self.balance, self.memory = agreement, normalise, balance, memory
        self.length, self.mix, self.begin, self.end = length, mix, begin, end
        self.scope = scope
        self._parts: dict[int, _Part] = {}

    def weigh(self, gram: Gram) -> Weights:
        if not self.balance:
            return self._weigh(gram)
        scales, unit = _normalised(gram)
        there = gram.norms[scales[: gram.tasks] > 0]
        length = float(there.mean()) if len(there) else 0.0
        found = self._weigh(replace(unit, matrix=unit.matrix * length**2))
        return replace(found, rows=found.rows * scales * length)

    def _weigh(self, gram: Gram) -> Weights:
        part = self._parts.setdefault(gram.part, _Part())
        step = part.steps
        part.steps += 1
        scales, seen = _normalised(gram) if self.normalise else (None, gram)
        if self.memory:
            seen = self._averaged(part, seen)
        plain = gram.averages.sum(0)
        outside = step < self.begin or (self.end is not None and step >= self.end)
        if outside or (gram.tasks == 1 and self.rank is None):
            return Weights(plain, all_kept=True)
        on = on_spectrum(seen, self.rank)
        factors = agreements.VARIANTS[self.agreement](on.rounded)
        # Where tasks are normalised, `along` and `projections` are those of gradients of length 1.
        along, projections = on.along, on.projections
        if scales is not None:
            along, projections = along * gram.norms, projections * gram.norms
        rows = on.found.vectors @ (factors * along).sum(1)
        if scales is not None:
            rows = rows * scales
        if self.mix:
            rows = torch.lerp(rows, plain, self.mix)
            factors = torch.lerp(factors, torch.ones_like(factors), self.mix)
        if self.length == "sum":
            rows = _as_long_as(rows, plain, gram)
        return Weights(rows, projections=projections, factors=factors)

    def _averaged(self, part: _Part, gram: Gram) -> Gram:
        if part.average is None or part.average.shape != gram.matrix.shape:
            part.average, part.averaged = torch.zeros_like(gram.matrix), 0
        part.average = torch.lerp(gram.matrix, part.average, self.memory)
        part.averaged += 1
        return replace(gram, matrix=part.average / (1 - self.memory**part.averaged))

    def state_dict(self) -> dict[str, Any]:
        """Of each part the number of steps and, with `memory`, the running average."""
        parts = {
            number: {key: value for key, value in vars(part).items() if value is not None}
            for number, part in self._parts.items()
        }
        return {"parts": parts} if parts else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        check_state(self, state, {"parts"})
        self._parts = {number: _Part(**part) for number, part in state.get("parts", {}).items()}

    def __repr__(self) -> str:
        return (
            f"GDODVariant(groups={self.groups}, rank={self.rank}, agreement={self.agreement!r}, "
            f"normalise={self.normalise}, balance={self.balance}, memory={self.memory}, length={self.length!r}, "
            f"mix={self.mix}, begin={self.begin}, end={self.end}, scope={self.scope!r})"
        )


def _normalised(gram: Gram) -> tuple[Tensor, Gram]:
    """A factor for each row [N], and the Gram matrix of the rows times it: of task gradients of length 1.

    A task whose rows cancel but for rounding has no length: its rows become zero.
    """
    lengths = (gram.squares @ gram.matrix.diagonal()).sqrt()
    inverse = torch.where(gram.norms > max(_ROUNDING, 16 * gram.row_error) * lengths, 1 / gram.norms, 0.0)  # [K]
    scales = inverse.repeat(len(gram.matrix) // gram.tasks)  # rows are ordered group by group
    return scales, replace(gram, matrix=gram.matrix * scales * scales.unsqueeze(1))


def _as_long_as(rows: Tensor, plain: Tensor, gram: Gram) -> Tensor:
    """The update at the length of the plain sum; what is zero but for rounding stays zero."""
    square, wanted = float(rows @ gram.matrix @ rows), float(plain @ gram.matrix @ plain)
    if square <= (_ROUNDING * float(plain @ gram.matrix.diagonal().sqrt())) ** 2:
        return torch.zeros_like(rows)
    scaled: Tensor = rows * (max(wanted, 0.0) / square) ** 0.5
    return scaled
