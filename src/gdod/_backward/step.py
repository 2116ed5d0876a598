"""`gdod.backward`: losses in, `.grad` out."""

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import torch
from torch import Tensor

from gdod._backward.grads import accumulate, accumulate_all, accumulate_quietly, unaliased
from gdod._backward.info import Info
from gdod._backward.losses import Losses, Masks, Scaler, Tasks, TaskWeights, read
from gdod._backward.method_weights import overflowed, unscaled, update_of, weigh
from gdod._backward.rank_checks import meet
from gdod._backward.shares import Shares, shares_of, shares_of_groups
from gdod.errors import InputError
from gdod.methods import GDOD, Gram, LossMethod, Method, PenaltyMethod, Weights, as_method
from gdod.rows import Groups, Rows, check_reached, collect, differentiate, gradients
from gdod.rows.distributed import Across, DistributedRows, ProcessGroup, exchange_over, is_distributed


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
                read(losses, mask, task_weights, may_be_empty=True, scaler=scaler),
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
    return step_along(method, rows, tasks, shares_of(tasks, groups))


def step_along(method: Method, rows: Rows, tasks: Tasks, shares: Shares) -> Info:
    """Asks the method for weights, and adds the weighted sum of the rows to `.grad`."""
    gram, weights = weigh(method, rows, tasks, shares)
    update = update_of(rows, shares, weights)
    rows.release()
    add = accumulate_quietly if is_distributed() else accumulate
    for parameter, grad in (*update, *unaliased(rows.private(weights.heads))):
        add(parameter, grad)
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


def step_along_all(method: Method, rows: DistributedRows, tasks: Tasks, groups: Groups, across: Across) -> Info:
    shares = shares_of_groups(len(tasks.names), groups, rows.in_groups)
    gram, weights = weigh(method, rows, tasks, shares, across)
    drawn = weights.random_rows
    update = [] if drawn is None else drawn[0].combine(drawn[1])
    grads = rows.gradients(weights.rows * shares.inverse if drawn is None else None, weights.heads)
    rows.release()
    for parameter, grad in (*update, *grads):
        accumulate_quietly(parameter, grad)
    return _info(tasks, weights, rows, gram)


def _in_one_pass(
    method: LossMethod, tasks: Tasks, parameters: list[Tensor] | None, retain_graph: bool, across: Across | None
) -> Info:
    """The method weighs losses: an ordinary backward pass of their weighted sum."""
    if parameters is not None and across is None:
        check_reached(tasks.targets, parameters)
    mean_losses = tasks.mean_losses()
    factors = method.weigh_losses(mean_losses)
    if tasks.labelled is not None or across is not None:
        factors = torch.where(mean_losses.isnan(), 0.0, factors)  # a task without labels
    if across is not None:
        factors = across.settle(factors)
    seeds = tasks.seeds()
    if not method.keeps_all:
        seeds = seeds * factors.to(seeds).unsqueeze(1)
    if across is not None:
        grads = across.differentiate(tasks.targets, seeds, retain_graph, parameters)
        accumulate_all(grads)
    elif is_distributed():
        accumulate_all(unaliased(gradients(tasks.targets, seeds, retain_graph)))
    else:
        differentiate(tasks.targets, seeds, retain_graph)
    weights = Weights(factors, heads=factors, all_kept=method.keeps_all)
    return Info(tasks.names, lambda: mean_losses, None, (), passes=1, gram=None, weights=weights)


def _with_penalty(
    method: PenaltyMethod, tasks: Tasks, parameters: list[Tensor] | None, retain_graph: bool, across: Across | None
) -> Info:
    """The method adds a function of the task gradients to the losses."""
    if across is not None:
        return _with_penalty_on_all(method, tasks, parameters, retain_graph, across)
    groups, seeds = _groups(method, tasks), tasks.seeds()
    with torch.enable_grad():
        rows = collect(tasks.targets, seeds, tasks.active(), groups, parameters, retain_graph=True)
        matrix = unscaled(rows.gram(precise=False), tasks)
        penalty, seeds = _penalty(method, matrix, tasks, seeds)
    if is_distributed():
        further = (penalty, torch.ones_like(penalty)) if penalty.requires_grad else None
        accumulate_all(unaliased(gradients(tasks.targets, seeds, retain_graph, further)))
    else:
        differentiate(tasks.targets, seeds, retain_graph, penalty if penalty.requires_grad else None)
    shares = shares_of(tasks, groups)
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
        matrix = unscaled(total, tasks)
        penalty, seeds = _penalty(method, matrix, tasks, seeds)
    further = None
    if penalty.requires_grad:
        (slopes,) = torch.autograd.grad(penalty, total)
        further = rows.differentiated(partial_gram, slopes)
    accumulate_all(across.differentiate(tasks.targets, seeds, retain_graph, None, further))
    shares = shares_of_groups(len(tasks.names), groups, rows.in_groups)
    gram = Gram(matrix.detach(), shares.averages, row_error=rows.precision, error=rows.precision)
    return _info(tasks, Weights(shares.averages.sum(0)), rows, gram)


def _penalty(method: PenaltyMethod, matrix: Tensor, tasks: Tasks, seeds: Tensor) -> tuple[Tensor, Tensor]:
    """The penalty, scaled as the losses are, and the losses' seeds."""
    if overflowed(matrix, tasks):
        return torch.zeros(()), seeds * torch.nan
    return method.penalty(matrix) * (1.0 if tasks.scale is None else tasks.scale), seeds


def _groups(method: Method, tasks: Tasks) -> Groups:
    return groups_of(method, tasks.examples)


def groups_of(method: Method, batch: int) -> Groups:
    return Groups(batch, batch if method.groups is None else min(method.groups, batch))


def _info(tasks: Tasks, weights: Weights, rows: Rows | DistributedRows | None = None, gram: Gram | None = None) -> Info:
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
