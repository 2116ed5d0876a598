"""Single-Task: the baseline in which nothing is shared."""

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor, nn

from gdod.models.model import Model
from gdod.models.shared_bottom import SharedBottom, SharedBottomConfig
from gdod.schema import Batch, Schema, Task


@dataclass(frozen=True, kw_only=True)
class SingleTaskConfig(SharedBottomConfig):
    """The sizes and options of each task's network in `SingleTask`."""


class SingleTask(Model):
    """Every task has a whole network of its own, tables included.

    batch ──┬──► features 1 ──► bottom 1 ──► tower 1 ──► logit 1
            └──► features 2 ──► bottom 2 ──► tower 2 ──► logit 2
    """

    config_type = SingleTaskConfig

    def __init__(self, schema: Schema, tasks: Iterable[Task], config: SingleTaskConfig | None = None) -> None:
        config = config or SingleTaskConfig()
        super().__init__(schema, tasks, config)
        sizes = SharedBottomConfig(**vars(config))
        self.networks = nn.ModuleList(SharedBottom(schema, [task], sizes) for task in self.tasks)

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        logits: dict[str, Tensor] = {}
        for network in self.networks:
            logits |= network(batch)  # [B] each
        return logits

    def _private(self, number: int) -> Iterable[nn.Module]:
        return [self.networks[number]]
