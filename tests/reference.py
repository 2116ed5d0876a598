"""A slow, dense reference for `gdod.backward`, to be read beside Algorithm 1 of the paper.

It materialises M with one `torch.autograd.grad` a row, decomposes it with `torch.linalg.svd` in
float64, and shares no code with `src/gdod`.
"""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

import gdod

Losses = Mapping[str, Tensor] | Sequence[Tensor] | Tensor

ZERO = 1e-10  # a projection below this share of its task gradient counts as zero
FLOAT32 = (1e-4, 1e-6)  # |delta| <= max(share of |update|, share of |sum of task gradients|)
FLOAT64 = (1e-9, 1e-11)
BFLOAT16 = (3e-2, 3e-2)


@dataclass(frozen=True)
class Algorithm1:
    """What Algorithm 1 computes on the way: rows and basis, projections and their factors."""

    gradients: Tensor  # [K, D]
    basis: Tensor  # [r, D]
    projections: Tensor  # [r, K]
    factors: Tensor  # [r, K]

    @property
    def update(self) -> Tensor:
        return (self.factors * self.projections).sum(1) @ self.basis  # [r] x [r, D] -> [D]


def algorithm1(rows: Tensor, averages: Tensor | None = None, rule: str = "sign") -> Algorithm1:
    """Algorithm 1 on rows [n, K, D]; `averages` [K, nK] says how the rows make a task gradient."""
    n, tasks, _ = rows.shape
    matrix = rows.reshape(n * tasks, -1).double()  # M, [nK, D]
    if averages is None:
        averages = torch.eye(tasks, dtype=matrix.dtype).repeat(1, n) / n
    gradients = averages.double() @ matrix  # line 1: g_i
    _, sigma, basis = torch.linalg.svd(matrix, full_matrices=False)  # line 2: B
    basis = basis[sigma > sigma[0] * max(matrix.shape) * torch.finfo(matrix.dtype).eps]
    projections = basis @ gradients.T  # line 3: p_i, [r, K]
    signs = projections.sign() * (projections.abs() > ZERO * gradients.norm(dim=1))
    return Algorithm1(gradients, basis, projections, RULES[rule](projections, signs))


def sign_agreement(projections: Tensor, signs: Tensor) -> Tensor:
    """The paper's definition: no two tasks have opposite signs; zero agrees with everything."""
    conflict = (signs > 0).any(1) & (signs < 0).any(1)
    return (~conflict).double()[:, None].expand_as(signs)


def product_agreement(projections: Tensor, signs: Tensor) -> Tensor:
    """Line 4 as printed, on basis vectors oriented so that the projections' sum is not negative."""
    flip = torch.where(projections.sum(1) < 0, -1.0, 1.0)[:, None]
    return ((flip * signs).prod(1) >= 0).double()[:, None].expand_as(signs)


def weighted(projections: Tensor, signs: Tensor) -> Tensor:
    """Weighted-GDOD: the majority of the a positive and b negative projections, by (a - b) / K."""
    a, b = (signs > 0).sum(1), (signs < 0).sum(1)
    majority = torch.where((a >= b)[:, None], signs > 0, signs < 0)
    return majority * (a - b).abs()[:, None].double() / signs.shape[1]


RULES = {"sign": sign_agreement, "product": product_agreement, "weighted": weighted}


@dataclass(frozen=True)
class Expected:
    """What a model's `.grad` should be, and the rows it comes from."""

    rows: Tensor  # [n, K, D]
    averages: Tensor  # [K, nK]
    rule: str
    algorithm: Algorithm1
    shared: dict[str, Tensor]
    private: dict[str, Tensor]


def expected(
    model: nn.Module,
    losses: Losses,
    *,
    groups: int,
    rule: str = "sign",
    mask: Losses | None = None,
    task_weights: Iterable[float] | Mapping[str, float] | None = None,
    shared: Iterable[str] | None = None,
) -> Expected:
    tasks = columns(losses)
    size = len(tasks[0])
    labelled = columns(mask) if mask is not None else [torch.ones(size, dtype=torch.bool)] * len(tasks)
    weights = [1.0] * len(tasks) if task_weights is None else list(values(task_weights))
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}

    def gradient(loss: Tensor) -> dict[str, Tensor | None]:
        if not loss.requires_grad:
            return dict.fromkeys(named)
        grads = torch.autograd.grad(loss, list(named.values()), retain_graph=True, allow_unused=True)
        return dict(zip(named, grads, strict=True))

    reached = [{name for name, g in gradient(loss.sum()).items() if g is not None} for loss in tasks]
    if shared is None:
        fewest = min(2, len(tasks))
        shared = [name for name in named if sum(name in names for names in reached) >= fewest]
    shared = list(shared)

    def row(loss: Tensor) -> Tensor:
        grads = gradient(loss)
        return torch.cat([numbers(dense(grads[name], named[name])) for name in shared])

    def mean(i: int, examples: Tensor) -> Tensor:  # zero, with a graph, when nothing is labelled
        return weights[i] * tasks[i][examples].sum() / max(len(examples), 1)

    cuts = torch.tensor_split(torch.arange(size), min(groups, size))
    parts = [[cut[labelled[i][cut]] for i in range(len(tasks))] for cut in cuts]
    rows = torch.stack([torch.stack([row(mean(i, p)) for i, p in enumerate(part)]) for part in parts])
    counts = torch.tensor([[len(p) for p in part] for part in parts], dtype=torch.float64)  # [n, K]
    shares = counts / counts.sum(0).clamp(min=1)
    averages = torch.cat([torch.diag(share) for share in shares], dim=1)  # [K, nK]
    algorithm = algorithm1(rows, averages, rule)

    total = gradient(torch.stack([mean(i, m.nonzero()[:, 0]) for i, m in enumerate(labelled)]).sum())
    private = {n: dense(g, named[n]) for n, g in total.items() if n not in shared and g is not None}
    pieces = algorithm.update.split([len(numbers(named[name])) for name in shared])
    update = {
        name: piece if named[name].is_complex() else piece.view_as(named[name])
        for name, piece in zip(shared, pieces, strict=True)
    }
    return Expected(rows, averages, rule, algorithm, update, private)


def check(
    model: nn.Module,
    inputs: Sequence[Tensor],
    *,
    losses: Callable[..., Losses] = lambda model, *inputs: model(*inputs),
    groups: int = 4,
    rule: str = "sign",
    mask: Any = None,
    task_weights: Any = None,
    shared: Iterable[str] | None = None,
    structure: Callable[[Any], Any] = lambda losses: losses,
    reference_in: torch.dtype | None = torch.float64,
    tolerance: tuple[float, float] | None = None,
) -> gdod.Info:
    """Call `gdod.backward` on the model and assert that its `.grad` is what the reference expects.

    The reference runs on a float64 copy, or on a copy as it is with `reference_in=None`.
    `structure` changes the form in which `gdod.backward` gets losses and mask. `.grad` must be
    empty before.
    """
    twin = copy.deepcopy(model)
    theirs = list(inputs)
    if reference_in is not None:
        twin = in_precision(twin, reference_in)
        theirs = [x.to(reference_in) if x.is_floating_point() else x for x in inputs]
    options = {"mask": mask, "task_weights": task_weights}
    torch.manual_seed(0)  # the same dropout in both
    target = expected(twin, losses(twin, *theirs), groups=groups, rule=rule, shared=shared, **options)

    torch.manual_seed(0)
    named = dict(model.named_parameters())
    info = gdod.backward(
        structure(losses(model, *inputs)),
        method(rule, groups),
        shared=None if shared is None else [named[name] for name in shared],
        mask=None if mask is None else structure(mask),
        task_weights=task_weights,
    )
    assert info.shared is not None
    assert {id(p) for p in info.shared} == {id(named[name]) for name in target.shared}
    assert_update(named, target, tolerance)
    assert_private(named, target, tolerance)
    return info


def method(rule: str, groups: int, **options: Any) -> gdod.GDOD | gdod.WeightedGDOD:
    if rule == "weighted":
        return gdod.WeightedGDOD(groups=groups, **options)
    return gdod.GDOD(groups=groups, agreement=rule, **options)


def assert_update(
    named: Mapping[str, nn.Parameter],
    target: Expected,
    tolerance: tuple[float, float] | None = None,
) -> None:
    """The shared parameters' `.grad`, all together as one vector, is the expected update."""
    got, want = flat(named, target.shared), target.algorithm.update
    assert got.isfinite().all()
    of_update, of_total = tolerance or tolerance_for(next(iter(named.values())).dtype)
    total = target.algorithm.gradients.sum(0).norm()
    bound = max(of_update * want.norm(), of_total * total)
    error = (got - want).norm()
    if error > bound:
        noise = torch.finfo(next(iter(named.values())).dtype).eps
        raise AssertionError(
            f"|delta| = {error:.3g}, allowed {bound:.3g}; |update| = {want.norm():.3g}, "
            f"|sum of gradients| = {total:.3g}; rounding the rows by {noise:.1g} moves the "
            f"reference itself by {sensitivity(target, noise):.3g}"
        )


def assert_private(
    named: Mapping[str, nn.Parameter],
    target: Expected,
    tolerance: tuple[float, float] | None = None,
) -> None:
    """The other parameters have autograd's gradient, and those that no loss reaches have none."""
    for name, parameter in named.items():
        if name in target.private:
            want = target.private[name].double()
            share, _ = tolerance or tolerance_for(parameter.dtype)
            error = (dense(parameter.grad, parameter).double() - want).norm()
            assert error <= share * want.norm(), f"{name}: |delta| = {error:.3g} of {want.norm():.3g}"
        elif name not in target.shared:
            assert parameter.grad is None, f"{name} is reached by no loss"


def sensitivity(target: Expected, noise: float) -> float:
    """How far the reference's update moves when the rows are rounded: large beside a tie."""
    generator = torch.Generator().manual_seed(0)

    def update(size: float) -> Tensor:
        rounding = torch.randn(target.rows.shape, generator=generator, dtype=torch.float64)
        rows = target.rows * (1 + size * rounding)
        return algorithm1(rows, target.averages, target.rule).update

    return max(float((update(noise) - update(0.0)).norm()) for _ in range(5))


def tolerance_for(dtype: torch.dtype) -> tuple[float, float]:
    return FLOAT64 if dtype in (torch.float64, torch.complex128) else FLOAT32


M = TypeVar("M", bound=nn.Module)


def in_precision(model: M, dtype: torch.dtype) -> M:
    """The model with all numbers in this precision, complex ones as pairs of it (`Module.to` would make them real)."""

    def change(tensor: Tensor) -> Tensor:
        if tensor.is_complex():
            return tensor.to(dtype.to_complex())
        return tensor.to(dtype) if tensor.is_floating_point() else tensor

    model._apply(change)  # type: ignore[no-untyped-call]
    return model


def columns(losses: Losses) -> list[Tensor]:
    return list(losses.unbind(1) if isinstance(losses, Tensor) else values(losses))


def values(items: Any) -> Iterable[Any]:
    return items.values() if isinstance(items, Mapping) else items


def dense(grad: Tensor | None, like: Tensor) -> Tensor:
    if grad is None:
        return torch.zeros_like(like)
    return grad.to_dense() if grad.layout != torch.strided else grad


def flat(named: Mapping[str, nn.Parameter], names: Iterable[str]) -> Tensor:
    return torch.cat([numbers(dense(named[n].grad, named[n])) for n in names])


def numbers(tensor: Tensor) -> Tensor:
    """All numbers in one vector of float64; of complex ones the real and imaginary parts."""
    return (torch.view_as_real(tensor) if tensor.is_complex() else tensor).reshape(-1).double()
