"""The optimizer of a run: one of torch's, or two if the tables have sparse gradients."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer, SparseAdam

from gdod.errors import InputError
from gdod.training.config import OptimizerConfig


class Optimizers:
    """Takes steps for all parameters of a model."""

    def __init__(self, model: nn.Module, config: OptimizerConfig) -> None:
        sparse = _sparse_tables(model)
        if sparse and config.name in ("adam", "adamw"):
            raise InputError(
                f"the model has tables with sparse gradients, which {config.name} does not take; "
                "use the optimizer 'sparse-adam' or 'sgd', or leave out the model's option sparse"
            )
        if sparse and config.name == "sgd" and (config.momentum or config.weight_decay):
            raise InputError("sgd takes sparse gradients of tables only without momentum and weight_decay")
        self.lr = config.lr
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        tables = {id(table) for table in sparse}
        dense = [parameter for parameter in self.parameters if id(parameter) not in tables]
        self.all: list[Optimizer] = []
        if config.name == "sgd":
            self.all.append(_sgd(self.parameters, config, fused=not sparse))
        else:
            if dense:
                self.all.append(_adam(dense, config))
            if sparse:
                self.all.append(SparseAdam(sparse, lr=config.lr))

    def set_share(self, share: float) -> float:
        """Sets the learning rate to a share of its full value, and returns it."""
        lr = self.lr * share
        for optimizer in self.all:
            for group in optimizer.param_groups:
                group["lr"] = lr
        return lr

    def zero_grad(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    def step(self) -> None:
        for optimizer in self.all:
            optimizer.step()

    def gradient_length(self) -> Tensor:
        """Of all parameters together. A scalar."""
        return torch.nn.utils.get_total_norm(list(self._gradients()))

    def clip(self, longest: float, length: Tensor) -> None:
        factor = (longest / (length + 1e-6)).clamp(max=1.0)
        for gradient in self._gradients():
            gradient.mul_(factor.to(gradient.device))

    def _gradients(self) -> Iterable[Tensor]:
        for parameter in self.parameters:
            if parameter.grad is None:
                continue
            if parameter.grad.is_sparse:
                # Rows that occur more than once add up before their length means anything.
                parameter.grad = parameter.grad.coalesce()
                yield parameter.grad.values()
            else:
                yield parameter.grad

    def state(self) -> list[dict[str, Any]]:
        return [optimizer.state_dict() for optimizer in self.all]

    def load_state(self, states: list[dict[str, Any]]) -> None:
        for optimizer, state in zip(self.all, states, strict=True):
            optimizer.load_state_dict(state)


def _adam(parameters: list[nn.Parameter], config: OptimizerConfig) -> Optimizer:
    kind = AdamW if config.name == "adamw" else Adam
    # One kernel for all parameters: on large tables it takes a third of the time.
    return kind(parameters, lr=config.lr, weight_decay=config.weight_decay, fused=_can_fuse(parameters))


def _sgd(parameters: list[nn.Parameter], config: OptimizerConfig, fused: bool) -> Optimizer:
    return SGD(
        parameters,
        lr=config.lr,
        momentum=config.momentum,
        weight_decay=config.weight_decay,
        fused=fused and _can_fuse(parameters),
    )


def _can_fuse(parameters: list[nn.Parameter]) -> bool:
    return all(one.device.type in ("cpu", "cuda") and one.is_floating_point() for one in parameters)


def _sparse_tables(model: nn.Module) -> list[nn.Parameter]:
    tables = [module for module in model.modules() if isinstance(module, nn.Embedding | nn.EmbeddingBag)]
    return [table.get_parameter("weight") for table in tables if table.sparse]
