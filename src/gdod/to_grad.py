"""`gdod.backward`: losses in, `.grad` out."""

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from typing import Literal

import torch
from torch import Tensor

from gdod.errors import InputError, NonFiniteInputError
from gdod.info import Info
from gdod.losses import Losses, Masks, Scaler, Tasks, TaskWeights, read
from gdod.methods import GDOD, Gram, LossMethod, Method, PenaltyMethod, Weights, as_method
from gdod.rows import (
    Across,
    Groups,
    ProcessGroup,
    Rows,
    RowsAcross,
    check_reached,
    collect,
    differentiate,
    exchange_over,
    gradients,
    is_distributed,
)
from gdod.together import meet

# Squared lengths in float32 keep their digits in this range.
_SMALL, _LARGE = 1e-24, 1e24


def backward(
    losses: Losses,
    method: Method | None = None,
    *,
    shared: Iterable[Tensor] | None = None,
    mask: Masks | None = None,
    task_weights: TaskWeights | None = None,
    retain_graph: bool = False,
    diagnose: bool = False,
    process_group: ProcessGroup | Literal["default"] | None = "default",
    scaler: Scaler | None = None,
) -> Info:
    """Adds to `.grad` the method's update for shared parameters and the plain gradient for all others.

    Takes the place of ``sum(loss.mean() for loss in losses.values()).backward()``:

        losses = {"click": click_loss, "buy": buy_loss}  # per example, each of shape [batch]
        info = gdod.backward(losses, gdod.GDOD(groups=16))
        optimizer.step()

    Args:
        losses: a mapping from task name to per-example losses [batch], a sequence of such tensors,
            or one tensor [batch, tasks].
        method: how task gradients become one update; `GDOD()` by default.
        shared: the parameters to which the method applies. By default those that the losses of at
            least two tasks reach.
        mask: boolean, in the structure of ``losses``: False where an example has no label for the
            task. The task's loss is then the mean over its labelled examples.
        task_weights: one factor for each task's mean loss.
        retain_graph: keep the graph for another backward pass.
        diagnose: work out task gradients also for methods that do not need them (the plain sum and
            others that weigh losses), so that the result tells their lengths and cosines.
        process_group: whose ranks have parts of the batch: every one of them gets the gradient of the
            whole batch, their examples one after the other. The default group, once
            `torch.distributed` is initialised; None: this process alone (see docs/distributed.md).
        scaler: a `torch.amp.GradScaler`, for losses that are *not* scaled: gradients come out scaled,
            ready for its `step`, which leaves out a step whose gradients overflowed (see
            docs/other-loops.md).

    Raises:
        InputError: before anything is written to any `.grad`.
    """
    method = GDOD() if method is None else as_method(method)
    exchange = exchange_over(process_group)
    across: Across | None = None
    if exchange is None:
        tasks = read(losses, mask, task_weights, scaler=scaler)
        parameters = None if shared is None else checked_parameters(shared)
    else:
        named = None if shared is None else shared if isinstance(shared, Tensor) else [*shared]
        tasks, parameters, across = meet(
            exchange,
            method,
            lambda: (
                for_all_together(method, read(losses, mask, task_weights, may_be_empty=True, scaler=scaler)),
                None if named is None else checked_parameters(named),
            ),
            diagnose,
        )
    with torch.no_grad(), full_precision(tasks.values.device.type):
        if isinstance(method, PenaltyMethod):
            return _with_penalty(method, tasks, parameters, retain_graph, across)
        if isinstance(method, LossMethod) and not diagnose:
            return _in_one_pass(method, tasks, parameters, retain_graph, across)
        return _through_rows(method, tasks, parameters, retain_graph, across)


def _through_rows(
    method: Method, tasks: Tasks, parameters: list[Tensor] | None, retain_graph: bool, across: Across | None
) -> Info:
    """The method weighs rows; the update is their weighted sum."""
    groups = _groups(method, tasks)
    if across is not None:
        return _through_rows_of_all(method, tasks, parameters, retain_graph, across, groups)
    rows = collect(tasks.targets, tasks.seeds(), tasks.active(), groups, parameters, retain_graph)
    return step_along(method, rows, tasks, _shares(tasks, groups))


def step_along(method: Method, rows: Rows, tasks: Tasks, shares: "Shares") -> Info:
    """Asks the method for weights, and adds the weighted sum of the rows to `.grad`."""
    if method.scope == "all":
        gram, weights = _weigh(method, rows, tasks, shares)
        update = _update(rows, shares, weights)
    else:
        gram, weights, update = _weigh_parts(method, rows, tasks, shares)
    rows.release()
    accumulate = _accumulate_quietly if is_distributed() else _accumulate
    for parameter, grad in (*update, *_unaliased(rows.private(weights.heads))):
        accumulate(parameter, grad)
    return _info(tasks, weights, rows, gram)


def _through_rows_of_all(
    method: Method,
    tasks: Tasks,
    parameters: list[Tensor] | None,
    retain_graph: bool,
    across: Across,
    groups: Groups,
) -> Info:
    """The same with rows of all processes."""
    rows = across.collect(
        tasks.targets, tasks.seeds(), tasks.active(), groups, tasks.labelled, parameters, retain_graph
    )
    return step_along_all(method, rows, tasks, groups, across)


def step_along_all(method: Method, rows: RowsAcross, tasks: Tasks, groups: Groups, across: Across) -> Info:
    shares = shares_of_groups(len(tasks.names), groups, rows.in_groups)
    gram, weights = _weigh(method, rows, tasks, shares, across)
    drawn = weights.random_rows
    update = [] if drawn is None else drawn[0].combine(drawn[1])
    grads = rows.gradients(weights.rows * shares.inverse if drawn is None else None, weights.heads)
    rows.release()
    for parameter, grad in (*update, *grads):
        _accumulate_quietly(parameter, grad)
    return _info(tasks, weights, rows, gram)


def _in_one_pass(
    method: LossMethod, tasks: Tasks, parameters: list[Tensor] | None, retain_graph: bool, across: Across | None
) -> Info:
    """The method weighs losses: an ordinary backward pass of their weighted sum."""
    if parameters is not None and across is None:
        check_reached(tasks.targets, parameters)
    mean_losses = tasks.mean_losses()
    factors = torch.where(mean_losses.isnan(), 0.0, method.weigh_losses(mean_losses))
    if across is not None:
        factors = across.settle(factors)
    seeds = tasks.seeds() * factors.to(tasks.values).unsqueeze(1)
    if across is not None:
        grads = across.differentiate(tasks.targets, seeds, retain_graph, parameters)
        _accumulate_all(grads)
    elif is_distributed():
        _accumulate_all(_unaliased(gradients(tasks.targets, seeds, retain_graph)))
    else:
        differentiate(tasks.targets, seeds, retain_graph)
    info = _info(tasks, Weights(factors, heads=factors, all_kept=method.keeps_all))
    return replace(info, mean_losses=lambda: mean_losses)  # they are at hand


def _with_penalty(
    method: PenaltyMethod, tasks: Tasks, parameters: list[Tensor] | None, retain_graph: bool, across: Across | None
) -> Info:
    """The method adds a function of the task gradients to the losses."""
    if across is not None:
        return _with_penalty_on_all(method, tasks, parameters, retain_graph, across)
    groups, seeds = _groups(method, tasks), tasks.seeds()
    with torch.enable_grad():
        rows = collect(tasks.targets, seeds, tasks.active(), groups, parameters, retain_graph=True)
        matrix = _unscaled(rows.gram(precise=False), tasks)
        penalty, seeds = _penalty(method, matrix, tasks, seeds)
    if is_distributed():
        further = (penalty, torch.ones_like(penalty)) if penalty.requires_grad else None
        _accumulate_all(_unaliased(gradients(tasks.targets, seeds, retain_graph, further)))
    else:
        differentiate(tasks.targets, seeds, retain_graph, penalty if penalty.requires_grad else None)
    shares = _shares(tasks, groups)
    gram = Gram(matrix.detach(), shares.averages, row_error=rows.precision, error=rows.precision)
    return _info(tasks, Weights(shares.averages.sum(0)), rows, gram)


def _with_penalty_on_all(
    method: PenaltyMethod, tasks: Tasks, parameters: list[Tensor] | None, retain_graph: bool, across: Across
) -> Info:
    """The same with rows of all processes.

    The penalty is a function of the Gram matrix, which all ranks know, and this is a sum over ranks: each
    differentiates its own part, as far back as the rows that others sent it, and those do the rest.
    """
    groups, seeds = _groups(method, tasks), tasks.seeds()
    with torch.enable_grad():
        rows = across.collect(tasks.targets, seeds, tasks.active(), groups, tasks.labelled, parameters, True)
        partial_gram = rows.partial_gram(precise=False)
        total = rows.total_gram(partial_gram).requires_grad_()
        matrix = _unscaled(total, tasks)
        penalty, seeds = _penalty(method, matrix, tasks, seeds)
    further = None
    if penalty.requires_grad:
        (slopes,) = torch.autograd.grad(penalty, total)
        further = rows.differentiated(partial_gram, slopes)
    _accumulate_all(across.differentiate(tasks.targets, seeds, retain_graph, None, further))
    shares = shares_of_groups(len(tasks.names), groups, rows.in_groups)
    gram = Gram(matrix.detach(), shares.averages, row_error=rows.precision, error=rows.precision)
    return _info(tasks, Weights(shares.averages.sum(0)), rows, gram)


def _penalty(method: PenaltyMethod, matrix: Tensor, tasks: Tasks, seeds: Tensor) -> tuple[Tensor, Tensor]:
    """The penalty, scaled as the losses are, and the losses' seeds."""
    if _overflowed(matrix, tasks):
        return torch.zeros(()), seeds * torch.nan
    return method.penalty(matrix) * (1.0 if tasks.scale is None else tasks.scale), seeds


def _unscaled(matrix: Tensor, tasks: Tasks) -> Tensor:
    """Inner products as they are without a gradient scaler, which methods are to know nothing of."""
    return matrix if tasks.scale is None else matrix / tasks.scale**2


def _overflowed(matrix: Tensor, tasks: Tasks) -> bool:
    """Whether gradients are not finite, which a gradient scaler provides for; without one they are refused."""
    if bool(matrix.isfinite().all()):
        return False
    if tasks.scale is None:
        _refuse_gradients(matrix, tasks)
    return True


def _groups(method: Method, tasks: Tasks) -> Groups:
    return groups_of(method, tasks.examples)


def groups_of(method: Method, batch: int) -> Groups:
    return Groups(batch, batch if method.groups is None else min(method.groups, batch))


def _info(tasks: Tasks, weights: Weights, rows: Rows | RowsAcross | None = None, gram: Gram | None = None) -> Info:
    return Info(
        tasks=tasks.names,
        mean_losses=tasks.mean_losses,
        shared=None if rows is None else rows.shared,
        slow=() if rows is None else rows.slow,
        passes=1 if rows is None else rows.passes,
        gram=gram,
        weights=weights,
    )


def full_precision(device: str) -> AbstractContextManager[object]:
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext()


def checked_parameters(shared: Iterable[Tensor]) -> list[Tensor]:
    if isinstance(shared, Tensor) or not isinstance(shared, Iterable):
        raise InputError(f"shared is a {type(shared).__name__}; expected an iterable of parameters")
    parameters = list(shared)
    for number, parameter in enumerate(parameters):
        if not isinstance(parameter, Tensor):
            raise InputError(
                f"shared holds a {type(parameter).__name__} at place {number}; expected parameters, "
                "e.g. module.parameters()"
            )
        if not parameter.is_leaf or not parameter.requires_grad:
            what = "is computed from others" if not parameter.is_leaf else "has requires_grad=False"
            raise InputError(f"the tensor at place {number} of shared {what}; expected parameters that take a gradient")
    if not parameters:
        raise InputError("shared is empty; pass at least one parameter, or None to find them")
    return parameters


@dataclass(frozen=True)
class Shares:
    """How a task's mean loss is spread over groups, and what follows for rows."""

    averages: Tensor  # C [K, N]: the share of a task's labelled examples that lies in each group

    @cached_property
    def inverse(self) -> Tensor:
        """From the part of a task's gradient that a group contributes to the group's own mean. [N]"""
        share = self.averages.sum(0)
        return torch.where(share > 0, 1 / share, 0.0)

    @cached_property
    def inverses(self) -> Tensor:
        """[N, N]"""
        return self.inverse * self.inverse.unsqueeze(1)

    @cached_property
    def largest(self) -> float:
        """Of the inverses."""
        return float(self.inverses.max())

    @cached_property
    def empty(self) -> Tensor | None:
        """Which rows have no examples. [N]"""
        empty = self.inverse == 0
        return empty if bool(empty.any()) else None


def _shares(tasks: Tasks, groups: Groups) -> Shares:
    if tasks.labelled is None:
        return shares_of_groups(len(tasks.names), groups)
    labels = tasks.labelled.cpu().double()
    in_group = torch.zeros(len(labels), groups.count, dtype=torch.float64).index_add_(1, groups.of_example, labels)
    return shares_of_groups(len(tasks.names), groups, in_group)


def shares_of_groups(tasks: int, groups: Groups, in_group: Tensor | None = None) -> Shares:
    """``in_group``: the labelled examples of each task in each group [K, n]; None: all are."""
    if in_group is None:
        return _shares_of_all(tasks, groups)
    share = in_group / in_group.sum(1, keepdim=True).clamp(min=1)  # [K, n]
    return Shares(torch.diag_embed(share.T).flatten(0, 1).T)  # [n, K, K] -> [K, N]


@lru_cache(maxsize=64)
def _shares_of_all(tasks: int, groups: Groups) -> Shares:
    share = torch.bincount(groups.of_example).double() / groups.examples
    return Shares(torch.eye(tasks, dtype=torch.float64).repeat(1, groups.count) * share.repeat_interleave(tasks))


def _weigh(
    method: Method, rows: Rows | RowsAcross, tasks: Tasks, shares: Shares, across: Across | None = None
) -> tuple[Gram, Weights]:
    """Asks the method, with inner products in the rows' own precision first if that can be enough."""
    for precise in (False, True) if method.may_ask_again and rows.precision > 1e-12 else (True,):
        gram = _gram(method, rows, tasks, shares, precise)
        if not precise and not _in_range(gram, shares):
            continue
        weights = _weights(method, gram, tasks)
        if across is not None:
            weights = _settled(weights, across)
        if weights.reliable:
            break
    return gram, weights


def _gram(method: Method, rows: Rows | RowsAcross, tasks: Tasks, shares: Shares, precise: bool, part: int = 0) -> Gram:
    eps = rows.precision
    matrix = _unscaled(rows.gram(precise), tasks)
    matrix *= shares.inverses
    return Gram(
        matrix,
        shares.averages,
        row_error=eps,
        error=torch.finfo(torch.float64).eps if precise else eps / 2,
        mean_losses=tasks.mean_losses,
        norm_gram=_norm_gram(method, rows, tasks, shares),
        random_rows=partial(rows.random_rows, shares.averages),
        part=part,
    )


def _weights(method: Method, gram: Gram, tasks: Tasks) -> Weights:
    """The method's, or nothing but nan where gradients overflowed: the scaler's step then leaves the step out."""
    # No inner product is larger than the longest row's with itself.
    return method.weigh(gram) if math.isfinite(gram.longest) or not _overflowed(gram.matrix, tasks) else _nan(gram)


def _nan(gram: Gram) -> Weights:
    return Weights(torch.full_like(gram.averages[0], torch.nan))


def _weigh_parts(
    method: Method, rows: Rows, tasks: Tasks, shares: Shares
) -> tuple[Gram, Weights, list[tuple[Tensor, Tensor]]]:
    """The same for each layer on its own, or with the plain sum for embedding tables."""
    parts, plainly = {0: rows}, list[Rows]()
    if method.scope == "dense":
        parts[0], tables = rows.tables_apart()
        plainly = [tables] if tables.blocks else []
    elif rows.blocks:
        parts = {rows.place_of(layer): layer for layer in rows.layers()}
    grams = [_gram(method, part, tasks, shares, True, number) for number, part in parts.items()]
    grams += [_gram(method, part, tasks, shares, True) for part in plainly]
    if any(_overflowed(gram.matrix, tasks) for gram in grams):
        found = [_nan(gram) for gram in grams]
    else:
        found = [method.weigh(gram) for gram in grams[: len(parts)]]
        found += [Weights(gram.averages.sum(0), all_kept=True) for gram in grams[len(parts) :]]
    update: list[tuple[Tensor, Tensor]] = []
    for part, weights in zip((*parts.values(), *plainly), found, strict=True):
        update += _update(part, shares, weights)
    matrix = torch.stack([gram.matrix for gram in grams]).sum(0)
    whole = replace(grams[0], matrix=matrix, averages=shares.averages, row_error=rows.precision)
    return whole, _together(found, grams), update


def _together(found: Sequence[Weights], grams: Sequence[Gram]) -> Weights:
    """Weights of all parts, one after the other. One that was not decomposed counts as one basis vector."""
    rows = torch.cat([weights.rows for weights in found])
    if all(weights.projections is None for weights in found):
        return Weights(rows, found[0].heads, all_kept=all(weights.all_kept for weights in found))
    projections, factors = [], []
    for weights, gram in zip(found, grams, strict=True):
        basis = gram.norms.unsqueeze(0) if weights.projections is None else weights.projections
        projections.append(basis)
        factors.append(torch.ones_like(basis) if weights.factors is None else weights.factors)
    return Weights(rows, found[0].heads, projections=torch.cat(projections), factors=torch.cat(factors))


def for_all_together(method: Method, tasks: Tasks) -> Tasks:
    if method.scope != "all":
        raise InputError(
            f"scope={method.scope!r} works in a single process only, and there are others in the process group; use "
            "scope='all', or pass process_group=None to step without them"
        )
    return tasks


def _settled(weights: Weights, across: Across) -> Weights:
    """The first rank's weights: even where machines round differently, all ranks make the same step."""
    drawn = weights.random_rows
    parts = [torch.tensor([float(weights.reliable)], dtype=torch.float64), weights.rows.double()]
    parts += [part.double() for part in (weights.heads, None if drawn is None else drawn[1]) if part is not None]
    reliable, rows, *others = across.settle(torch.cat(parts)).split([len(part) for part in parts])
    heads = None if weights.heads is None else others[0]
    drawn = None if drawn is None else (drawn[0], others[-1])
    return replace(weights, rows=rows, heads=heads, random_rows=drawn, reliable=bool(reliable))


def _norm_gram(method: Method, rows: Rows | RowsAcross, tasks: Tasks, shares: Shares) -> Tensor | None:
    """Task gradients' inner products over the parameters at which the method wants lengths. [K, K]"""
    if method.lengths_at == "everywhere":
        return None
    if method.lengths_at == "last-shared-layer":
        only = rows.last_layer
    else:
        only = frozenset(map(id, method.lengths_at))
        if not only <= set(map(id, rows.shared)):
            raise InputError(f"{method!r} names parameters that are not shared by the tasks; name shared ones")
    sums = (shares.averages > 0).double()  # a task's rows, as they are here, add up to its gradient
    return sums @ _unscaled(rows.gram(True, only), tasks) @ sums.T


def _in_range(gram: Gram, shares: Shares) -> bool:
    """Whether squared lengths in float32 have all their digits; not so for zero, inf and nan."""
    shortest, longest = gram.shortest, gram.longest
    if shares.empty is not None:
        lengths = gram.matrix.diagonal()[~shares.empty]
        if lengths.numel() == 0:
            return False
        shortest = float(lengths.min())
    return shortest > _SMALL * shares.largest and longest < _LARGE


def _refuse_gradients(matrix: Tensor, tasks: Tasks) -> None:
    finite = matrix.diagonal().isfinite().view(-1, len(tasks.names)).all(0)
    bad = ", ".join(repr(name) for name, ok in zip(tasks.names, finite, strict=True) if not ok)
    raise NonFiniteInputError(
        f"the gradient of task {bad or 'unknown'} is not finite although its losses are; nothing was written to .grad; "
        "look for a square root or logarithm at zero, or for overflow in half precision"
    )


def _update(rows: Rows, shares: Shares, weights: Weights) -> Sequence[tuple[Tensor, Tensor]]:
    if weights.random_rows is not None:
        source, of_random = weights.random_rows
        return source.combine(of_random)
    return rows.combine(weights.rows * shares.inverse)


def _unaliased(grads: Sequence[tuple[Tensor, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
    """Autograd may hand one tensor to several parameters, such as the terms of a sum."""
    seen: set[int] = set()
    for parameter, grad in grads:
        if not grad.is_sparse:
            storage = grad.untyped_storage().data_ptr()
            grad = grad.clone() if storage in seen else grad
            seen.add(storage)
        yield parameter, grad


def _own(grad: Tensor) -> Tensor:
    """The gradient with a place in memory for each of its numbers, so that clipping and scalers can change it."""
    if grad.is_sparse:
        return grad if grad._values().is_contiguous() else grad.clone()
    return grad if grad.is_contiguous() else grad.contiguous()


def _accumulate(parameter: Tensor, grad: Tensor) -> None:
    """Adds to `.grad` as `Tensor.backward` does, hooks included."""
    if grad.dtype != parameter.dtype:
        grad = grad.to(parameter.dtype)
    if parameter.grad is None and not parameter._backward_hooks and not parameter._post_accumulate_grad_hooks:
        # Without a copy, which is what autograd does with a gradient nobody else holds.
        parameter.grad = _own(grad)
    else:
        torch.autograd.backward(parameter, grad)


def _accumulate_all(grads: Iterable[tuple[Tensor, Tensor]]) -> None:
    for parameter, grad in grads:
        _accumulate_quietly(parameter, grad)


def _accumulate_quietly(parameter: Tensor, grad: Tensor) -> None:
    """Adds to `.grad`, with the parameter's own hooks, but without those that `DistributedDataParallel` has put
    on autograd's own node: these would wait for other ranks, to average what is a sum over all already."""
    if grad.dtype != parameter.dtype:
        grad = grad.to(parameter.dtype)
    for hook in tuple((parameter._backward_hooks or {}).values()):
        changed = hook(grad)
        grad = grad if changed is None else changed
    if parameter.grad is None:
        parameter.grad = _own(grad)
    elif parameter.grad.is_sparse and not grad.is_sparse:
        parameter.grad = grad + parameter.grad
    else:
        parameter.grad += grad
    for hook in tuple((parameter._post_accumulate_grad_hooks or {}).values()):
        hook(parameter)
