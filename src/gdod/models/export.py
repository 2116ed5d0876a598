"""Export a trained model as a program that runs without this library."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from gdod.models.model import Model
from gdod.schema import Batch


class _Plain(nn.Module):
    """A model that takes plain tensors, so that the exported program needs no class of this library."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, categorical: Tensor, numeric: Tensor, sequences: tuple[Tensor, ...]) -> dict[str, Tensor]:
        logits = self.model(Batch(categorical, numeric, sequences))
        by_name = {task.name: task for task in self.model.tasks if task.is_standardised}
        return {name: by_name[name].in_units(one) if name in by_name else one for name, one in logits.items()}


def export(model: Model, batch: Batch) -> ExportedProgram:
    """Return the model in evaluation mode as a `torch.export` program, for batches and sequences of any length.

        program = export(model, batch)
        logits = program.module()(batch.categorical, batch.numeric, batch.sequences)

    The result of the program has the tasks' names; numbers of a regression are in the units of its labels. ONNX knows
    no such results, so give its outputs the names yourself:

        torch.onnx.export(program, output_names=[task.name for task in model.tasks])

    Args:
        model: a trained model. It is in the same mode after the call as before.
        batch: any examples, at least 2.
    """
    size = Dim("batch")
    shapes: dict[str, Any] = {
        "categorical": {0: size},
        "numeric": {0: size},
        "sequences": tuple({0: size, 1: Dim(f"length_{n}")} for n in range(len(batch.sequences))),
    }
    training = model.training
    try:
        return torch.export.export(_Plain(model).eval(), tuple(batch), dynamic_shapes=shapes)
    finally:
        model.train(training)
