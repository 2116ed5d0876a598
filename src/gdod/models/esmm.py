"""ESMM (Ma, Zhao, Huang, Wang, Hu, Zhu, Gai, "Entire Space Multi-Task Model: An Effective Approach for Estimating
Post-Click Conversion Rate", SIGIR 2018)."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gdod.models.chains import ChainConfig, ChainModel, logit_of_product
from gdod.models.features import Features
from gdod.models.layers import Tower, mean_of_members, mlp
from gdod.schema import Batch, Schema, Task


@dataclass(frozen=True, kw_only=True)
class ESMMConfig(ChainConfig):
    """The sizes and options of `ESMM`."""


class ESMM(ChainModel):
    """A tower for each step, given the steps before; a step's probability is the product of all up to it.

                             ┌─► tower 1 ─► p(click) ──────┬───────────────► logit of p(click)
        batch ► features ────┤                             ▼
                             └─► tower 2 ─► p(buy | click) × ──────────────► logit of p(click and buy)

    Equation 1: p(click and buy) = p(click) p(buy | click), and equation 3: the losses are those of p(click) and of
    p(click and buy), both over all rows. So p(buy | click) is learned from all rows without a loss of its own; it is
    the quotient of the two predictions. A chain may have more than two steps, and further tasks may stand beside it,
    each with a tower as in Shared-Bottom. The losses of all later steps reach the tower of a step, so it is shared.

    Deviations: products of probabilities are made as logits (`logit_of_product`), sequences of ids are averaged and not
    summed up, and layers that all towers share may lie below them (`bottom`).
    """

    config_type = ESMMConfig

    def __init__(self, schema: Schema, tasks: Iterable[Task], config: ESMMConfig | None = None) -> None:
        config = config or ESMMConfig()
        super().__init__(schema, tasks, config)
        self.features = Features(schema, config)
        self.bottom = mlp(self.features.width, config.bottom, config)
        outputs = (self.features.width, *config.bottom)[-1]
        # Members of an ensemble each have a chain of their own, so their towers' outputs must not be averaged.
        self.towers = nn.ModuleList(
            Tower(outputs, task, config, together=task.name not in self.chain) for task in self.tasks
        )

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        h = self.bottom(self.features(batch))  # [B, width] -> [B, H]
        logits = {task.name: tower(h) for task, tower in zip(self.tasks, self.towers, strict=True)}  # [B] each
        first, *later = self.chain
        chained = _at_least_float32(logits[first])
        steps = {first: chained}
        for name in later:
            chained = logit_of_product(chained, _at_least_float32(logits[name]))  # [B], or [B, k] of an ensemble
            steps[name] = chained
        if self.config.ensemble > 1 and not self.training:
            by_name = {task.name: task for task in self.tasks}
            steps = {name: mean_of_members(logit, by_name[name]) for name, logit in steps.items()}  # [B, k] -> [B]
        return logits | steps

    def _private(self, number: int) -> Iterable[nn.Module]:
        return [] if self._is_followed(number) else [self.towers[number]]


def _at_least_float32(logit: Tensor) -> Tensor:
    """Return logits that autocast has made short as float32: sums of them would lose what is left."""
    return logit.float() if logit.dtype in (torch.float16, torch.bfloat16) else logit
