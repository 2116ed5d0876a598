"""The moving average of a model's weights, which is evaluated and used in place of the weights themselves."""

import copy
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.optim.swa_utils import get_ema_multi_avg_fn

from gdod.models import Model

# Steps between updates. All weights are read and written in one, also those of id tables that a step does not touch:
# in each step it would take as long as a good part of the step.
EVERY = 5


class Average:
    """An exponential moving average of the weights of a model in training, in ``model``, a copy of that one.

    In step t the average a of the weights w becomes d a + (1 - d) w, d being the smaller of ``decay`` and
    (1 + t) / (10 + t), so that the first weights are soon forgotten. Several steps are caught up with in one: d is
    then raised to their number.
    """

    def __init__(self, model: Model, decay: float) -> None:
        self.decay = decay
        self.model = copy.deepcopy(model).requires_grad_(False)
        # Kept in lists, since torch's AveragedModel looks for them anew in each update: as long as two small steps.
        self._averages, self._weights = list(self.model.parameters()), list(model.parameters())
        # Buffers are copied and not averaged: those of our models are whole numbers and edges of bins.
        self._buffers = list(zip(self.model.buffers(), model.buffers(), strict=True))

    @torch.no_grad()
    def update(self, step: int, *, last: bool = False, before: int = 0) -> None:
        """Bring the average up to step number ``step``, from 1 on, if it is one to update after, or the ``last``.

        ``before``: the steps of earlier runs whose average goes on.
        """
        since = step % EVERY or EVERY
        if since == EVERY or last:
            decay = min(self.decay, (1 + before + step) / (10 + before + step))
            get_ema_multi_avg_fn(decay**since)(self._averages, self._weights, 0)
            for copied, buffer in self._buffers:
                copied.copy_(buffer)

    def load_state_dict(self, weights: Mapping[str, Tensor]) -> None:
        self.model.load_state_dict(weights)
