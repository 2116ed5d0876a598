"""`gdod.backward`: losses in, `.grad` out."""

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import torch
from torch import Tensor

from gdod._backward.info import Info
from gdod._backward.inputs import Inputs, checked_parameters, read_inputs
from gdod._backward.losses import Losses, Masks, Scaler, TaskWeights, read
from gdod._backward.method_weights import overflowed, unscaled, weigh
from gdod.methods import GDOD, Gram, LossMethod, Method, PenaltyMethod, Weights, as_method
from gdod.ranks import ProcessGroup
from gdod.rows import Groups, Rows


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
    """Add to `.grad` the method's update for shared parameters and the plain gradient for all others.

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
    inputs = read_inputs(
        process_group,
        method,
        lambda may_be_empty: (
            read(losses, mask, task_weights, may_be_empty, scaler),
            None if shared is None else checked_parameters(shared),
        ),
        diagnose,
    )
    with torch.no_grad(), full_precision(inputs.tasks.values.device.type):
        if isinstance(method, PenaltyMethod):
            return _with_penalty(method, inputs, retain_graph)
        if isinstance(method, LossMethod) and not diagnose:
            return _in_one_pass(method, inputs, retain_graph)
        rows = inputs.processes.collect(inputs.local(), groups_of(method, inputs.tasks.examples), retain_graph)
        return step_along(method, rows, inputs)


def step_along(method: Method, rows: Rows, inputs: Inputs) -> Info:
    """Ask the method for weights, and add the weighted sum of the rows to `.grad`, or the method's own update."""
    gram, weights = weigh(method, rows, inputs)
    own = weights.update
    update = [] if own is None else own.gradients(own.coefficients)
    grads = [*update, *rows.gradients(weights.rows if own is None else None, weights.heads)]
    rows.release()
    inputs.processes.write(grads)
    return _info(inputs, weights, rows, gram)


def _in_one_pass(method: LossMethod, inputs: Inputs, retain_graph: bool) -> Info:
    """Let the method weigh losses: an ordinary backward pass of their weighted sum."""
    tasks = inputs.tasks
    mean_losses = tasks.mean_losses()
    factors = method.weigh_losses(mean_losses)
    if not tasks.all_labelled:
        factors = torch.where(mean_losses.isnan(), 0.0, factors)  # a task without labels
    weights = inputs.processes.settle(Weights(factors, heads=factors, all_kept=method.keeps_all))
    local = inputs.local()
    if not method.keeps_all:
        local.seeds = local.seeds * weights.rows.to(local.seeds).unsqueeze(1)
    inputs.processes.differentiate(local, retain_graph)
    return Info(tasks.names, lambda: mean_losses, None, (), passes=1, gram=None, weights=weights)


def _with_penalty(method: PenaltyMethod, inputs: Inputs, retain_graph: bool) -> Info:
    """Add a function of the task gradients to the losses, and differentiate both."""
    tasks, local = inputs.tasks, inputs.local()
    with torch.enable_grad():
        rows = inputs.processes.collect(local, groups_of(method, tasks.examples), retain_graph=True)
        matrix = unscaled(rows.gram(precise=False), tasks)
        if overflowed(matrix, tasks):
            penalty, local.seeds = torch.zeros(()), local.seeds * torch.nan
        else:
            penalty = method.penalty(matrix) * (1.0 if tasks.scale is None else tasks.scale)
    inputs.processes.differentiate(local, retain_graph, rows.along(penalty))
    averages = rows.shares.averages
    gram = Gram(matrix.detach(), averages, row_error=rows.precision, error=rows.precision)
    return _info(inputs, Weights(averages.sum(0)), rows, gram)


def groups_of(method: Method, batch: int) -> Groups:
    """Return the groups into which a method cuts a batch of so many examples."""
    return Groups(batch, batch if method.groups is None else min(method.groups, batch))


def _info(inputs: Inputs, weights: Weights, rows: Rows, gram: Gram) -> Info:
    tasks = inputs.tasks
    return Info(tasks.names, tasks.mean_losses, rows.shared, rows.slow, rows.passes, gram, weights)


def full_precision(device: str) -> AbstractContextManager[object]:
    """Return a context without autocast."""
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext()
