"""Methods that torchjd keeps (https://torchjd.org), on our engine.

`method_of` takes a torchjd weighting, aggregator or scalarizer object; `RECIPES` has the ones that fit
by name. What fits is a function of the inner products of the task gradients, or of the losses.
GradDrop, ConFIG, TrimmedMean and ExcessMTL look at single coordinates of the gradients, which this
engine never forms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torchjd.aggregation as aggregation
import torchjd.scalarization as scalarization
from torch import Tensor, nn
from torchjd._linalg import compute_gramian
from torchjd.aggregation import Aggregator, GramianWeightedAggregator, WeightedAggregator, Weighting
from torchjd.aggregation._nash_mtl import _NashMTLWeighting
from torchjd.aggregation._weighting_bases import _Composition, _MatrixWeighting
from torchjd.linalg import PSDMatrix
from torchjd.scalarization import Scalarizer

from gdod._checks import check_positive
from gdod.errors import InputError
from gdod.methods.base import LossMethod, Method, TaskMethod, Weights
from gdod.methods.descent import Descent, check_state, check_tasks
from gdod.methods.generator import generator_of
from gdod.methods.gram import Gram
from gdod.methods.mgda import MGDA
from gdod.methods.torchjd.state import load_module_state, module_state
from gdod.methods.torchjd.to_torchjd import ExactProjector

# Losses from zero to this are lifted to it for scalarizers that divide by a loss or take its logarithm.
_LEAST_LOSS = 1e-12
_KNOWN_AS = "_gdod_method"  # where an object of torchjd keeps the method made of it
# These take the matrix of gradients, but look no further than its inner products or its height.
_TURNABLE = (
    aggregation.ConstantWeighting,
    aggregation.MeanWeighting,
    aggregation.SumWeighting,
    aggregation.RandomWeighting,
    _NashMTLWeighting,
)


def method_of(kept: object, seed: int | torch.Generator | None, lr: float | None) -> Method:
    """The method that an object of torchjd stands for: see `gdod.as_method`."""
    if isinstance(kept, nn.Module) and seed is None and lr is None:
        known = vars(kept).get(_KNOWN_AS)
        if isinstance(known, Method):
            return known
    method = _method_of(kept, 0 if seed is None else seed, 0.025 if lr is None else lr)
    if isinstance(kept, nn.Module):
        vars(kept)[_KNOWN_AS] = method
    return method


def _method_of(kept: object, seed: int | torch.Generator, lr: float) -> Method:
    if isinstance(kept, Scalarizer):
        return BorrowedScalarizer(_Same(kept), seed=seed, lr=lr)
    weighting = _weighting_of(kept)
    if isinstance(weighting, aggregation.MoDoWeighting | aggregation.SDMGradWeighting):
        return BorrowedAcrossBatches(weighting, seed=seed)
    return BorrowedWeighting(_Same(weighting), seed=seed)


@dataclass(frozen=True)
class _Same:
    """Makes nothing: the object is there. (Unlike a lambda it can be pickled, and so can the object.)"""

    kept: nn.Module

    def __call__(self, tasks: int) -> nn.Module:
        return self.kept


def _weighting_of(kept: object) -> Weighting[Any]:
    """The weighting in an object, if inner products are all it needs."""
    if isinstance(kept, GramianWeightedAggregator):
        return _weighting_of(kept.gramian_weighting)
    if isinstance(kept, WeightedAggregator):
        return _weighting_of(kept.weighting)
    if isinstance(kept, aggregation.CRMOGMWeighting):
        _weighting_of(kept.weighting)
        return kept
    if isinstance(kept, _Composition) and kept.fn is compute_gramian:
        return _weighting_of(kept.weighting)
    blind = isinstance(kept, (*_TURNABLE, aggregation.MoDoWeighting, aggregation.SDMGradWeighting))
    if isinstance(kept, Aggregator | _Composition | _MatrixWeighting) and not blind:
        raise InputError(
            f"{kept!r} needs the coordinates of the task gradients; this engine works with their inner products. "
            "Use torchjd's own autojac for it"
        )
    if isinstance(kept, Weighting):
        return kept
    raise InputError(
        f"method is {kept!r}; expected a method such as gdod.GDOD(), gdod.method('pcgrad'), or a weighting, "
        "aggregator or scalarizer of torchjd"
    )


class _Borrowed(Method):
    """An object of torchjd that is made when the number of tasks is known, with randomness of its own."""

    def __init__(self, make: Callable[[int], nn.Module], seed: int | torch.Generator, title: str | None) -> None:
        self.make = make
        self.title = title
        self.object: nn.Module | None = None
        self.tasks: int | None = None
        self.random_state = generator_of(seed).get_state()

    def made(self, tasks: int) -> nn.Module:
        if self.object is None or self.tasks is None:
            self.object, self.tasks = self.make(tasks), tasks
        check_tasks(self, self.tasks, tasks)
        return self.object

    @contextmanager
    def drawing(self) -> Iterator[None]:
        """torchjd draws from torch's global generator; lend it ours."""
        outside = torch.get_rng_state()
        torch.set_rng_state(self.random_state)
        try:
            yield
        finally:
            self.random_state = torch.get_rng_state()
            torch.set_rng_state(outside)

    def state_dict(self) -> dict[str, Any]:
        if self.object is None:
            return {}
        return {"tasks": self.tasks, "random": self.random_state.clone(), "object": module_state(self.object)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        check_state(self, state, {"tasks", "random", "object"})
        if state:
            self.random_state = state["random"].clone()
            load_module_state(self.made(state["tasks"]), state["object"])

    def __repr__(self) -> str:
        return f"torchjd:{self.title or self.object or self.make(2)}"


class BorrowedWeighting(_Borrowed, TaskMethod):
    """A torchjd weighting of the task gradients.

    When all task gradients are zero the weighting is not asked, and remembers nothing of that step.

    Args:
        make: the weighting, or its aggregator, for a number of tasks.
        only_present: leave out tasks whose gradient is zero; the scale of the others is made theirs.
        unit_scale: divide all gradients by their mean length first, for weightings that promise not to
            depend on the scale, but hold constants such as 1e-8 against it.
        times_tasks: multiply weights by the number of tasks, for weightings made for the mean.
    """

    def __init__(
        self,
        make: Callable[[int], nn.Module],
        *,
        seed: int | torch.Generator = 0,
        title: str | None = None,
        only_present: bool = False,
        unit_scale: bool = False,
        times_tasks: bool = False,
    ) -> None:
        super().__init__(make, seed, title)
        self.only_present = only_present
        self.unit_scale = unit_scale
        self.times_tasks = times_tasks

    def weigh_tasks(self, gram: Tensor) -> Tensor:
        weighting = self.made(len(gram))
        weights = torch.zeros_like(gram[0])
        present = gram.diagonal() > 0
        if not bool(present.any()):
            return weights
        everything = not self.only_present or bool(present.all())
        part = gram if everything else gram[present][:, present]
        if self.unit_scale:
            part = part / part.diagonal().mean()
        with self.drawing(), torch.no_grad():
            found = _ask(weighting, part)
        if not bool(found.isfinite().all()):
            raise InputError(f"{self!r} gave the task weights {found.tolist()}; nothing was written to .grad")
        weights[present if not everything else slice(None)] = found * (len(part) if self.times_tasks else 1)
        return weights


def _ask(weighting: nn.Module, gram: Tensor) -> Tensor:
    inner = weighting
    while isinstance(inner, aggregation.CRMOGMWeighting):
        inner = inner.weighting
    if isinstance(inner, _TURNABLE):
        values, vectors = torch.linalg.eigh(gram)
        gram = vectors * values.clamp(min=0).sqrt()  # a matrix with these inner products of its rows
    try:
        found: Tensor = weighting(gram)
    except ValueError as error:  # such as too few tasks
        raise InputError(f"{weighting!r} refuses {len(gram)} tasks: {error}") from error
    return found.detach().to(torch.float64)


class BorrowedAcrossBatches(_Borrowed):
    """MoDo and SDMGrad, whose inner products are taken between gradients of independent mini-batches.

    Those batches are the halves (MoDo) or thirds (SDMGrad) of the batch. MoDo's update is the
    mean over both, as in its equation 2.9b; SDMGrad's is that of the last third alone, as in its
    Algorithm 1. A batch of fewer examples is used whole, with its own inner products.
    """

    def __init__(self, weighting: Weighting[Any], *, seed: int | torch.Generator = 0, title: str | None = None) -> None:
        super().__init__(_Same(weighting), seed, title)
        self.groups = 2 if isinstance(weighting, aggregation.MoDoWeighting) else 3

    def weigh(self, gram: Gram) -> Weights:
        tasks = gram.tasks
        weighting = self.made(tasks)
        whole = len(gram.matrix) < (self.groups or 1) * tasks
        products = gram.of_tasks if whole else gram.matrix[:tasks, tasks : 2 * tasks]
        with self.drawing(), torch.no_grad():
            weights = weighting(products).to(torch.float64)
        if whole or self.groups == 2:
            return Weights(weights @ gram.averages)
        rows = torch.zeros_like(gram.averages[0])
        rows[-tasks:] = weights
        return Weights(rows)


class BorrowedScalarizer(_Borrowed, LossMethod):
    """A torchjd scalarizer: the factors are the derivatives of the scalarised loss by the losses.

    Parameters of its own are learned here. FAMO learns from how losses change by a step: call `after_step`
    with the batch's losses after `optimizer.step()`; without that it takes the next batch's, which
    costs no forward pass but adds their noise. DWA compares epochs, which are ``window`` calls here.

    A task without labels gets the factor 0, and its parameter stays; the scalarizer sees its last loss
    in the meantime, or the mean of the others if it had none yet.
    """

    def __init__(
        self,
        make: Callable[[int], nn.Module],
        *,
        seed: int | torch.Generator = 0,
        title: str | None = None,
        lr: float = 0.025,
        window: int | None = None,
        positive: bool = False,
    ) -> None:
        super().__init__(make, seed, title)
        if window is not None:
            check_positive("window", window)
        self.lr = lr
        self.window = window
        self.positive = positive
        self.steps: dict[str, Descent] = {}
        self.last: Tensor | None = None
        self.calls = 0
        self.pending = False

    def weigh_losses(self, losses: Tensor) -> Tensor:
        scalarizer = self.made(len(losses))
        present = ~losses.isnan()
        if not bool(present.any()):
            return torch.zeros_like(losses)
        filled = self._filled(losses, present)
        if self.pending:
            self.after_step(losses)
        self.last = filled
        values = self._cast(scalarizer, filled).requires_grad_()
        names, parameters = zip(*scalarizer.named_parameters(), strict=True) if self._learns(scalarizer) else ((), ())
        with self.drawing(), torch.enable_grad():
            total = scalarizer(values)
            found, *gradients = torch.autograd.grad(total, [values, *parameters], allow_unused=True)
        if found is None or not bool(found.isfinite().all()):
            raise InputError(
                f"{self!r} has no finite derivative at the losses {losses.tolist()}; nothing was written to .grad"
            )
        for name, parameter, gradient in zip(names, parameters, gradients, strict=True):
            if gradient is not None:
                self._learn(name, parameter, gradient, present)
        self.calls += 1
        if self.window is not None and self.calls % self.window == 0:
            scalarizer.step()  # type: ignore[operator]
        self.pending = hasattr(scalarizer, "update")
        return torch.where(present, found.to(torch.float64), 0.0)

    def after_step(self, losses: Tensor) -> None:
        """FAMO: the losses [tasks] of the same batch after the model's step."""
        self.pending = False
        losses = losses.detach().to("cpu", torch.float64)
        scalarizer = self.made(len(losses))
        filled = self._filled(losses, ~losses.isnan())
        scalarizer.update(self._cast(scalarizer, filled))  # type: ignore[operator]

    def _filled(self, losses: Tensor, present: Tensor) -> Tensor:
        others = losses[present].mean() if self.last is None else self.last
        return torch.where(present, losses, others)

    def _cast(self, scalarizer: nn.Module, losses: Tensor) -> Tensor:
        if self.positive:
            losses = torch.where((losses >= 0) & (losses < _LEAST_LOSS), _LEAST_LOSS, losses)
        kept = next(scalarizer.parameters(), None)
        return losses.detach().clone() if kept is None else losses.detach().to(kept.dtype, copy=True)

    def _learns(self, scalarizer: nn.Module) -> bool:
        return next(scalarizer.parameters(), None) is not None

    def _learn(self, name: str, parameter: nn.Parameter, gradient: Tensor, present: Tensor) -> None:
        descent = self.steps.setdefault(name, Descent("adam", self.lr))
        flat = parameter.detach().flatten().to(torch.float64)
        moving = present if flat.numel() == len(present) else torch.ones_like(flat, dtype=torch.bool)
        stepped = descent.step(flat, gradient.flatten().to(torch.float64), moving)
        with torch.no_grad():
            parameter.copy_(stepped.view_as(parameter))

    def state_dict(self) -> dict[str, Any]:
        state = super().state_dict()
        if state:
            state["steps"] = {name: descent.state_dict() for name, descent in self.steps.items()}
            state["last"] = None if self.last is None else self.last.clone()
            state["calls"] = self.calls
            state["pending"] = self.pending
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        check_state(self, state, {"tasks", "random", "object", "steps", "last", "calls", "pending"})
        if not state:
            return
        super().load_state_dict({name: state[name] for name in ("tasks", "random", "object")})
        self.steps = {name: Descent("adam", self.lr) for name in state["steps"]}
        for name, descent in self.steps.items():
            descent.load_state_dict(state["steps"][name])
        self.last = None if state["last"] is None else state["last"].clone()
        self.calls, self.pending = state["calls"], state["pending"]


class _Smoothed(Weighting[PSDMatrix]):
    """A task method of this library as a torchjd weighting, for CR-MOGM to smooth."""

    def __init__(self, method: TaskMethod) -> None:
        super().__init__()
        self.method = method

    def forward(self, stat: PSDMatrix, /) -> Tensor:
        return self.method.weigh_tasks(stat)


@dataclass(frozen=True)
class _Weightings:
    """How a torchjd weighting is offered by name."""

    make: Callable[..., Callable[[int], nn.Module]]
    only_present: bool = False
    unit_scale: bool = False
    times_tasks: bool = False

    def build(self, name: str, *, seed: int | torch.Generator = 0, **options: Any) -> Method:
        make = _checked(name, self.make(**options))
        return BorrowedWeighting(
            make,
            seed=seed,
            title=_title(name, options),
            only_present=self.only_present,
            unit_scale=self.unit_scale,
            times_tasks=self.times_tasks,
        )


@dataclass(frozen=True)
class _Scalarizers:
    make: Callable[..., Callable[[int], nn.Module]]
    positive: bool = False
    window: int | None = None

    def build(
        self,
        name: str,
        *,
        seed: int | torch.Generator = 0,
        lr: float = 0.025,
        window: int | None = None,
        **options: Any,
    ) -> Method:
        if window is not None and self.window is None:
            raise TypeError(f"{name} has no option 'window'")
        return BorrowedScalarizer(
            _checked(name, self.make(**options)),
            seed=seed,
            title=_title(name, options),
            lr=lr,
            window=window or self.window,
            positive=self.positive,
        )


@dataclass(frozen=True)
class _AcrossBatches:
    make: Callable[..., Weighting[Any]]

    def build(self, name: str, *, seed: int | torch.Generator = 0, **options: Any) -> Method:
        weighting = _checked(name, lambda tasks: self.make(**options))(2)
        assert isinstance(weighting, Weighting)
        return BorrowedAcrossBatches(weighting, seed=seed, title=_title(name, options))


def _title(name: str, options: Mapping[str, Any]) -> str:
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in options.items())})"


def _checked(name: str, make: Callable[[int], nn.Module]) -> Callable[[int], nn.Module]:
    """Makes one for two tasks, so that wrong options and missing packages are known at once."""
    try:
        make(2)
    except ImportError as error:
        raise ImportError(f"method {name!r} needs packages that are not installed: {error}") from error
    except ValueError as error:
        raise InputError(f"method {name!r}: {error}") from error
    return make


def _any_number(kind: Callable[..., nn.Module], **defaults: Any) -> Callable[..., Callable[[int], nn.Module]]:
    """For torchjd classes that need not know the number of tasks."""
    return lambda **options: lambda tasks: kind(**{**defaults, **options})


def _given(kind: Callable[..., nn.Module], argument: str) -> Callable[..., Callable[[int], nn.Module]]:
    """For those that must."""
    return lambda **options: lambda tasks: kind(**{argument: tasks}, **options)


def _nash(**options: Any) -> Callable[[int], nn.Module]:
    """Nash-MTL; its problem has no form for one task, which bargains with nobody."""
    return lambda tasks: aggregation.NashMTL(tasks, **options).weighting if tasks > 1 else aggregation.SumWeighting()


RECIPES: dict[str, _Weightings | _Scalarizers | _AcrossBatches] = {
    "upgrad": _Weightings(
        _any_number(aggregation.UPGradWeighting, projector=ExactProjector()), only_present=True, times_tasks=True
    ),
    "dualproj": _Weightings(
        _any_number(aggregation.DualProjWeighting, projector=ExactProjector()), only_present=True, times_tasks=True
    ),
    "aligned-mtl": _Weightings(_any_number(aggregation.AlignedMTLWeighting), only_present=True, times_tasks=True),
    "imtl-g": _Weightings(_any_number(aggregation.IMTLGWeighting), only_present=True, unit_scale=True),
    "fairgrad": _Weightings(_any_number(aggregation.FairGradWeighting, alpha=2.0), only_present=True),
    "krum": _Weightings(_any_number(aggregation.KrumWeighting, n_byzantine=0)),
    "gradvac": _Weightings(_any_number(aggregation.GradVacWeighting), unit_scale=True),
    "pcd": _Weightings(_any_number(aggregation.PCDWeighting)),
    "nash-mtl": _Weightings(_nash),
    "cr-mogm": _Weightings(_any_number(lambda **options: aggregation.CRMOGMWeighting(_Smoothed(MGDA()), **options))),
    "modo": _AcrossBatches(aggregation.MoDoWeighting),
    "sdmgrad": _AcrossBatches(aggregation.SDMGradWeighting),
    "random": _Scalarizers(_any_number(scalarization.Random)),
    "dwa": _Scalarizers(_any_number(scalarization.DWA), positive=True, window=100),
    "famo": _Scalarizers(_given(scalarization.FAMO, "shape"), positive=True),
    "imtl-l": _Scalarizers(_given(scalarization.IMTLL, "shape")),
    "geometric-mean": _Scalarizers(_any_number(scalarization.GeometricMean), positive=True),
    "stch": _Scalarizers(_any_number(scalarization.STCH, mu=0.1)),
}
