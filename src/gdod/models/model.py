"""The base class of all models."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import ClassVar

from torch import Tensor, nn

from gdod._checks import check_choice
from gdod.errors import InputError
from gdod.models.config import Config
from gdod.schema import Batch, Schema, Task, check_tasks


class Model(nn.Module, ABC):
    """A network with an output for each task.

    Args:
        schema: the fields of an example.
        tasks: what the model predicts.
        config: sizes and options; those of the paper by default.
    """

    config_type: ClassVar[type[Config]]
    """The class of the model's config."""

    def __init__(self, schema: Schema, tasks: Iterable[Task], config: Config) -> None:
        super().__init__()
        if not isinstance(schema, Schema):
            raise InputError(f"schema is a {type(schema).__name__}; expected gdod.models.Schema")
        if type(config) is not self.config_type:
            raise InputError(f"config is {config!r}; expected a {self.config_type.__name__}")
        self.schema = schema
        self.tasks = check_tasks(tasks)
        self.config = config

    @abstractmethod
    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Return the logits by task name: [B], or [B, classes] for a task with several classes.

        An ensemble of k members returns [B, k] or [B, k, classes] in training, and one prediction in evaluation.
        """

    @abstractmethod
    def _private(self, number: int) -> Iterable[nn.Module | nn.Parameter]:
        """Return the parts of the model that the loss of this task reaches, and no other loss."""

    def task_parameters(self, task: str) -> list[nn.Parameter]:
        """Return the parameters that only this task's loss reaches."""
        names = [own.name for own in self.tasks]
        check_choice("task", task, names)
        private: list[nn.Parameter] = []
        for part in self._private(names.index(task)):
            private += [part] if isinstance(part, nn.Parameter) else part.parameters()
        return private

    def shared_parameters(self) -> list[nn.Parameter]:
        """Return the parameters that the losses of several tasks reach: all that are not one task's own."""
        private = {id(parameter) for task in self.tasks for parameter in self.task_parameters(task.name)}
        return [parameter for parameter in self.parameters() if id(parameter) not in private]

    def penalty(self) -> Tensor | None:
        """Return what training should add to the tasks' losses, or None.

        It belongs to no task and has no examples, so it takes an ordinary backward pass of its own.
        """
        return None
