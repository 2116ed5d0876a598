"""Shared-Bottom (Caruana, "Multitask Learning", Machine Learning 28, 1997)."""

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor, nn

from gdod.models.config import Config
from gdod.models.features import Features
from gdod.models.layers import Tower, mlp
from gdod.models.model import Model
from gdod.schema import Batch, Schema, Task


@dataclass(frozen=True, kw_only=True)
class SharedBottomConfig(Config):
    """The sizes and options of `SharedBottom`."""

    bottom: tuple[int, ...] = (256, 32)
    """The sizes of the layers that all tasks share."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._sizes("bottom")


class SharedBottom(Model):
    """All tasks share the tables and the layers above them; each has a small tower of its own.

    batch ──► features ──► bottom ──┬──► tower 1 ──► logit 1
                                    └──► tower 2 ──► logit 2
    """

    config_type = SharedBottomConfig

    def __init__(self, schema: Schema, tasks: Iterable[Task], config: SharedBottomConfig | None = None) -> None:
        config = config or SharedBottomConfig()
        super().__init__(schema, tasks, config)
        self.features = Features(schema, config)
        self.bottom = mlp(self.features.width, config.bottom, config)
        outputs = (self.features.width, *config.bottom)[-1]
        self.towers = nn.ModuleList(Tower(outputs, task, config) for task in self.tasks)

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        x = self.features(batch)  # [B, width]
        h = self.bottom(x)  # [B, H]
        towers = zip(self.tasks, self.towers, strict=True)
        return {task.name: tower(h) for task, tower in towers}  # [B] each

    def _private(self, number: int) -> Iterable[nn.Module]:
        return [self.towers[number]]
