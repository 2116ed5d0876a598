"""Methods around torchjd objects: weightings of task gradients, weightings across mini-batches, and scalarizers."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from gdod._checks import check_positive
from gdod.errors import InputError
from gdod.methods.base import LossMethod, Method, TaskMethod, Weights
from gdod.methods.descent import Descent, check_state, check_tasks
from gdod.methods.generator import generator_of
from gdod.methods.gram import Gram
from gdod.methods.torchjd.object_state import load_module_state, module_state
from gdod.methods.torchjd.parts import NashWeighting, aggregation

# Losses from zero to this are lifted to it for scalarizers that divide by a loss or take its logarithm.
_LEAST_LOSS = 1e-12
# Weightings that take the matrix of gradients, but use no more of it than its inner products or its height: any
# matrix with the same inner products gives the same weights.
TAKE_ANY_FACTOR = (
    aggregation.ConstantWeighting,
    aggregation.MeanWeighting,
    aggregation.SumWeighting,
    aggregation.RandomWeighting,
    NashWeighting,
)


def already_made(source: nn.Module, tasks: int) -> nn.Module:
    """Return the object itself. A `partial` of this is a ``make`` that can be pickled, unlike a lambda."""
    return source


class Borrowed(Method):
    """A method around a torchjd object, which is made when the number of tasks is known.

    Args:
        make: make the torchjd object, from the number of tasks.
        seed: where the object's random numbers start.
    """

    title: str | None = None
    """How the method is shown, if not as the torchjd object is."""

    def __init__(self, make: Callable[[int], nn.Module], seed: int | torch.Generator) -> None:
        self.make = make
        self.object: nn.Module | None = None
        self.tasks: int | None = None
        self.random_state = generator_of(seed).get_state()

    def object_for(self, tasks: int) -> nn.Module:
        """Return the torchjd object, and raise if it was made for another number of tasks."""
        if self.object is None or self.tasks is None:
            self.object, self.tasks = self.make(tasks), tasks
        check_tasks(self, self.tasks, tasks)
        return self.object

    @contextmanager
    def own_random_numbers(self) -> Iterator[None]:
        """Let torchjd, which draws from torch's global generator, continue this method's own random numbers."""
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
            load_module_state(self.object_for(state["tasks"]), state["object"])

    def __repr__(self) -> str:
        return f"torchjd:{self.title or self.object or self.make(2)}"


class BorrowedWeighting(Borrowed, TaskMethod):
    """A method that weighs the task gradients by a torchjd weighting.

    When all task gradients are zero the weighting is not asked, and remembers nothing of that step.

    Args besides those of `Borrowed`:
        only_present: leave out tasks whose gradient is zero, as if there were only the others.
        unit_scale: divide all gradients by their mean length first, for weightings that promise not to
            depend on the scale, but hold constants such as 1e-8 against it.
        times_tasks: multiply weights by the number of tasks, for weightings made for the mean.
    """

    def __init__(
        self,
        make: Callable[[int], nn.Module],
        *,
        seed: int | torch.Generator = 0,
        only_present: bool = False,
        unit_scale: bool = False,
        times_tasks: bool = False,
    ) -> None:
        super().__init__(make, seed)
        self.only_present = only_present
        self.unit_scale = unit_scale
        self.times_tasks = times_tasks

    def weigh_tasks(self, gram: Tensor) -> Tensor:
        weighting = self.object_for(len(gram))
        weights = torch.zeros_like(gram[0])  # [K]
        present = gram.diagonal() > 0  # [K]
        if not bool(present.any()):
            return weights
        everything = not self.only_present or bool(present.all())
        part = gram if everything else gram[present][:, present]  # [P, P], P tasks present
        if self.unit_scale:
            part = part / part.diagonal().mean()
        with self.own_random_numbers(), torch.no_grad():
            part_weights = _weigh(weighting, part)  # [P]
        if not bool(part_weights.isfinite().all()):
            raise InputError(f"{self!r} gave the task weights {part_weights.tolist()}; nothing was written to .grad")
        weights[present if not everything else slice(None)] = part_weights * (len(part) if self.times_tasks else 1)
        return weights


def _weigh(weighting: nn.Module, gram: Tensor) -> Tensor:
    """Return what a weighting gives for gradients of these inner products. [K, K] -> [K]"""
    inner = weighting
    while isinstance(inner, aggregation.CRMOGMWeighting):
        inner = inner.weighting
    if isinstance(inner, TAKE_ANY_FACTOR):
        values, vectors = torch.linalg.eigh(gram)
        gram = vectors * values.clamp(min=0).sqrt()  # a matrix with these inner products of its rows
    try:
        weights: Tensor = weighting(gram)
    except ValueError as error:  # such as too few tasks
        raise InputError(f"{weighting!r} refuses {len(gram)} tasks: {error}") from error
    return weights.detach().to(torch.float64)


class BorrowedAcrossBatches(Borrowed):
    """MoDo or SDMGrad, which take inner products between the gradients of independent mini-batches.

    Those mini-batches are the halves (MoDo) or thirds (SDMGrad) of the batch. MoDo's update is the mean over
    both, as in its equation 2.9b; SDMGrad's is that of the last third alone, as in its Algorithm 1. A batch of
    fewer examples is used whole, with its own inner products.

    Args besides those of `Borrowed`:
        batches: 2 for MoDo, 3 for SDMGrad.
    """

    groups: int

    def __init__(self, make: Callable[[int], nn.Module], *, batches: int, seed: int | torch.Generator = 0) -> None:
        super().__init__(make, seed)
        self.groups = batches

    def weigh(self, gram: Gram) -> Weights:
        tasks = gram.tasks
        weighting = self.object_for(tasks)
        whole = len(gram.matrix) < self.groups * tasks
        products = gram.of_tasks if whole else gram.matrix[:tasks, tasks : 2 * tasks]  # [K, K]
        with self.own_random_numbers(), torch.no_grad():
            weights = weighting(products).to(torch.float64)  # [K]
        if whole or self.groups == 2:
            return Weights(weights @ gram.averages)
        rows = torch.zeros_like(gram.averages[0])  # [N]
        rows[-tasks:] = weights
        return Weights(rows)


class BorrowedScalarizer(Borrowed, LossMethod):
    """A method that weighs each loss by the derivative of a torchjd scalarizer with respect to it.

    The scalarizer's own parameters are learned here, with Adam. FAMO learns from how losses change by a step:
    call `after_step` with the batch's losses after `optimizer.step()`; without that it takes the next batch's,
    which costs no forward pass but adds their noise.

    A task without labels gets the factor 0, and its parameter stays; the scalarizer sees its last loss
    in the meantime, or the mean of the others if it had none yet.

    Args besides those of `Borrowed`:
        lr: the learning rate of the scalarizer's parameters.
        window: how many calls stand for an epoch, for DWA, which compares epochs.
        positive: lift losses of zero a little above it.
    """

    def __init__(
        self,
        make: Callable[[int], nn.Module],
        *,
        seed: int | torch.Generator = 0,
        lr: float = 0.025,
        window: int | None = None,
        positive: bool = False,
    ) -> None:
        super().__init__(make, seed)
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
        scalarizer = self.object_for(len(losses))
        present = ~losses.isnan()  # [K]
        if not bool(present.any()):
            return torch.zeros_like(losses)
        filled = self._filled(losses, present)
        if self.pending:
            self.after_step(losses)
        self.last = filled
        values = self._cast(scalarizer, filled).requires_grad_()
        parameters = dict(scalarizer.named_parameters())
        with self.own_random_numbers(), torch.enable_grad():
            total = scalarizer(values)
            factors, *gradients = torch.autograd.grad(total, [values, *parameters.values()], allow_unused=True)
        if factors is None or not bool(factors.isfinite().all()):
            raise InputError(
                f"{self!r} has no finite derivative at the losses {losses.tolist()}; nothing was written to .grad"
            )
        for name, gradient in zip(parameters, gradients, strict=True):
            if gradient is not None:
                self._learn(name, parameters[name], gradient, present)
        self.calls += 1
        if self.window is not None and self.calls % self.window == 0:
            scalarizer.step()  # type: ignore[operator]
        self.pending = hasattr(scalarizer, "update")
        return torch.where(present, factors.to(torch.float64), 0.0)

    def after_step(self, losses: Tensor) -> None:
        """Tell FAMO the losses [K] of the same batch after the optimizer's step."""
        self.pending = False
        losses = losses.detach().to("cpu", torch.float64)
        scalarizer = self.object_for(len(losses))
        filled = self._filled(losses, ~losses.isnan())
        scalarizer.update(self._cast(scalarizer, filled))  # type: ignore[operator]

    def _filled(self, losses: Tensor, present: Tensor) -> Tensor:
        others = losses[present].mean() if self.last is None else self.last
        return torch.where(present, losses, others)

    def _cast(self, scalarizer: nn.Module, losses: Tensor) -> Tensor:
        if self.positive:
            losses = torch.where((losses >= 0) & (losses < _LEAST_LOSS), _LEAST_LOSS, losses)
        parameter = next(scalarizer.parameters(), None)
        return losses.detach().clone() if parameter is None else losses.detach().to(parameter.dtype, copy=True)

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
