"""The optimizer of a run, one of torch's or two if tables have sparse gradients; and its learning rate in each step."""

from collections.abc import Iterable
from math import cos, pi
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer, SparseAdam

from gdod.errors import InputError
from gdod.training.config import OptimizerConfig, ScheduleConfig


class Optimizers:
    """One or two of torch's optimizers that act as one on all parameters of a model."""

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
            fused = not sparse and _can_fuse(self.parameters)
            momentum, decay = config.momentum, config.weight_decay
            self.all.append(SGD(self.parameters, config.lr, momentum, weight_decay=decay, fused=fused))
        else:
            if config.id_decay is not None:
                self.all.append(_adamw_by_kind(model, config))
            elif dense:
                self.all.append(_adam(dense, config))
            if sparse:
                self.all.append(SparseAdam(sparse, lr=config.lr))

    def set_lr(self, factor: float) -> float:
        """Set the learning rate to a factor of its full value, and return it."""
        lr = self.lr * factor
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
        """Return the norm of the gradients of all parameters together, a scalar."""
        return torch.nn.utils.get_total_norm(list(self._gradients()))

    def clip(self, longest: float, length: Tensor) -> None:
        """Shorten gradients of norm ``length`` to at most ``longest``, as `torch.nn.utils.clip_grad_norm_` does."""
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

    def names(self, model: nn.Module) -> list[list[str]]:
        """Return the names of the parameters of each optimizer, in the order in which its state numbers them."""
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        return [[names[id(one)] for group in each.param_groups for one in group["params"]] for each in self.all]

    def load_state(self, states: list[dict[str, Any]]) -> None:
        """Go on where `state` was taken; raise a ValueError unless each moment is of its parameter's size."""
        for optimizer, state in zip(self.all, states, strict=True):
            optimizer.load_state_dict(state)
            for parameter, moments in optimizer.state.items():
                for name, value in moments.items():
                    if isinstance(value, torch.Tensor) and value.dim() and value.shape != parameter.shape:
                        sizes = f"{tuple(value.shape)}, and its parameter {tuple(parameter.shape)}"
                        raise ValueError(f"{name} of the optimizer is of size {sizes}")


def lr_factor(schedule: ScheduleConfig, step: int, total: int) -> float:
    """Return the factor of the learning rate in step number ``step``, from 0 on, of ``total``."""
    if step < schedule.warmup:
        return (step + 1) / schedule.warmup
    after = step - schedule.warmup
    if schedule.name == "constant":
        return 1.0
    if schedule.name == "step":
        assert schedule.every is not None
        return max(schedule.floor, schedule.factor ** (after // schedule.every))
    progress = min(1.0, after / max(1, total - schedule.warmup))
    falling = (1 + cos(pi * progress)) / 2 if schedule.name == "cosine" else 1 - progress
    return schedule.floor + (1 - schedule.floor) * falling


def _adam(parameters: list[nn.Parameter], config: OptimizerConfig) -> Optimizer:
    kind = AdamW if config.name == "adamw" else Adam
    # One kernel for all parameters: on large tables it takes a third of the time.
    return kind(parameters, lr=config.lr, weight_decay=config.weight_decay, fused=_can_fuse(parameters))


def _adamw_by_kind(model: nn.Module, config: OptimizerConfig) -> Optimizer:
    """Return AdamW with a weight decay for the weights of layers, one for id tables, and none for all others."""
    assert config.id_decay is not None
    tables = {id(table.weight) for table in _tables(model)}
    groups: dict[float, list[nn.Parameter]] = {}  # one for each decay: the fewer, the faster
    parameters = [(name, one) for name, one in model.named_parameters() if one.requires_grad]
    for name, parameter in parameters:
        if id(parameter) in tables:
            decay = config.id_decay
        else:
            # Biases of experts, scales of an ensemble's members and gates have several dimensions, and other names.
            decay = config.weight_decay if parameter.ndim > 1 and name.endswith("weight") else 0.0
        groups.setdefault(decay, []).append(parameter)
    fused = _can_fuse([parameter for _, parameter in parameters])
    return AdamW([{"params": some, "weight_decay": decay} for decay, some in groups.items()], lr=config.lr, fused=fused)


def _can_fuse(parameters: list[nn.Parameter]) -> bool:
    return all(one.device.type in ("cpu", "cuda") and one.is_floating_point() for one in parameters)


def _sparse_tables(model: nn.Module) -> list[nn.Parameter]:
    return [table.get_parameter("weight") for table in _tables(model) if table.sparse]


def _tables(model: nn.Module) -> list[nn.Embedding | nn.EmbeddingBag]:
    return [module for module in model.modules() if isinstance(module, nn.Embedding | nn.EmbeddingBag)]
