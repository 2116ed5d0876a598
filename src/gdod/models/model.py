"""The base class of all models."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import ClassVar, NamedTuple

from torch import Tensor, nn

from gdod._checks import check_choice, listed
from gdod.errors import InputError
from gdod.models.config import Config
from gdod.models.features import Features
from gdod.schema import Batch, Schema, Task, check_tasks


class GatePlace(NamedTuple):
    """A place of a model where branches, such as tasks, take more of some experts and less of others."""

    level: int
    """The number of the level, from 1 on."""
    branches: tuple[str, ...]
    """What takes: tasks, or parts of the next level."""
    experts: tuple[str, ...]
    """What is taken from."""
    source: nn.Module | nn.Parameter
    """The module that gives the weights [B, branches, experts], or the weights of one branch themselves, [experts]."""


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

    def gate_places(self) -> list[GatePlace]:
        """Return where branches of the model weigh experts, level by level; none for a model without gates."""
        return []

    def set_vectors(self, vectors: Mapping[str, Tensor]) -> None:
        """Begin with given vectors of ids, wherever the model has tables.

        Args:
            vectors: [cardinality + 1, p] by the name of a categorical field with ``vectors=p``; nan in the rows of ids
                that have none.
        """
        wanted = [field.name for field in self.schema.categorical if field.vectors]
        if set(vectors) != set(wanted):
            raise InputError(f"vectors are given for {listed(vectors)}; the schema has some for {listed(wanted)}")
        for part in self.modules():
            if isinstance(part, Features):
                part.set_vectors(vectors)

    def penalty(self) -> Tensor | None:
        """Return what training should add to the tasks' losses, or None.

        It belongs to no task and has no examples, so it takes an ordinary backward pass of its own.
        """
        return None

    def example_penalties(self, logits: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return what training should add to the losses of examples, [B] by task name; most models have nothing.

        It is part of these losses for every method, and for the examples' weights: `per_example_losses` takes it.

        Args:
            logits: what the model returned in training.
        """
        return {}

    def check_labels(self, labels: Mapping[str, Tensor]) -> None:
        """Raise an InputError if the model cannot learn from such labels, [n] by task name, nan where missing."""
        return None
