"""How much of each expert the branches of a model take, read off while it predicts.

Nothing of this is part of a model's forward pass: what gates give is caught by hooks that are gone afterwards, so that
training, export and compilation know nothing of it.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from gdod.models.model import GatePlace, Model
from gdod.schema import Batch


class GateWeights(NamedTuple):
    """The weights that one branch of a model gives to experts."""

    level: int
    branch: str
    experts: tuple[str, ...]
    weights: Tensor  # [B, E]


def gate_weights(model: Model, batch: Batch) -> list[GateWeights]:
    """Return the weights of experts for each example, of each level and branch; none for a model without gates.

    They are those of evaluation. In an ensemble each member has weights of its own, and an example's are their mean.
    The model is in the same mode after the call as before.
    """
    places = model.gate_places()
    caught: dict[nn.Module, Tensor] = {}

    def catch(module: nn.Module, given: object, weights: Tensor) -> None:
        caught[module] = weights

    modules = [place.source for place in places if isinstance(place.source, nn.Module)]
    hooks = [module.register_forward_hook(catch) for module in modules]
    training = model.training
    try:
        if modules:
            with torch.inference_mode():
                model.eval()(batch)
        return [one for place in places for one in _by_branch(place, caught, batch.size)]
    finally:
        model.train(training)
        for hook in hooks:
            hook.remove()


def _by_branch(place: GatePlace, caught: dict[nn.Module, Tensor], size: int) -> list[GateWeights]:
    branches, experts, source = place.branches, place.experts, place.source
    if isinstance(source, nn.Module):
        weights = caught[source].reshape(size, -1, len(branches), len(experts)).mean(1)  # [B * k, I, E] -> [B, I, E]
    else:
        weights = source.detach().expand(size, 1, -1)  # [E] -> [B, 1, E]
    return [GateWeights(place.level, name, experts, weights[:, at]) for at, name in enumerate(branches)]
