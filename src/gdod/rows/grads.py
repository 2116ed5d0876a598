"""Adding gradients to `.grad`, as `Tensor.backward` does."""

import torch
from torch import Tensor


def _own(grad: Tensor) -> Tensor:
    """Return the gradient with a place in memory for each number, so that clipping and scalers can change it."""
    if grad.is_sparse:
        return grad if grad._values().is_contiguous() else grad.clone()
    return grad if grad.is_contiguous() else grad.contiguous()


def accumulate(parameter: Tensor, grad: Tensor) -> None:
    """Add to `.grad` as `Tensor.backward` does, hooks included."""
    if grad.dtype != parameter.dtype:
        grad = grad.to(parameter.dtype)
    if parameter.grad is None and not parameter._backward_hooks and not parameter._post_accumulate_grad_hooks:
        # Without a copy, which is what autograd does with a gradient nobody else holds.
        parameter.grad = _own(grad)
    else:
        torch.autograd.backward(parameter, grad)


def accumulate_quietly(parameter: Tensor, grad: Tensor) -> None:
    """Add to `.grad` with the parameter's own hooks, but without those that `DistributedDataParallel` has put on
    autograd's own node: these would wait for other ranks, to average what is a sum over all already."""
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
