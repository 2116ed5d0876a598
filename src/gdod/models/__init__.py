"""Multi-task models over one description of their input: plain modules, built by name or by class.

schema = Schema(categorical=[Categorical("city", 50)], numeric=[Numeric("age")])
model = build("mmoe", schema, [Task("click"), Task("buy")], experts=4)
logits = model(schema.batch({"city": ..., "age": ...}))  # {"click": [B], "buy": [B]}
"""

from collections.abc import Iterable
from typing import Any

import torch

from gdod._checks import check_choice
from gdod.errors import InputError
from gdod.models.aitm import AITM, AITMConfig
from gdod.models.config import ACTIVATIONS, Config, configure
from gdod.models.cross_stitch import CrossStitch, CrossStitchConfig
from gdod.models.esmm import ESMM, ESMMConfig
from gdod.models.export import export
from gdod.models.gates import GateWeights, gate_weights
from gdod.models.label_losses import Losses, per_example_losses
from gdod.models.mmoe import MMoE, MMoEConfig
from gdod.models.model import GatePlace, Model
from gdod.models.ple import PLE, PLEConfig
from gdod.models.shared_bottom import SharedBottom, SharedBottomConfig
from gdod.models.single_task import SingleTask, SingleTaskConfig
from gdod.models.snr import SNR, SNRConfig
from gdod.models.stem import STEM, STEMConfig
from gdod.schema import Batch, Categorical, Numeric, Schema, Sequence, Task

MODELS: dict[str, type[Model]] = {
    "single-task": SingleTask,
    "shared-bottom": SharedBottom,
    "cross-stitch": CrossStitch,
    "mmoe": MMoE,
    "snr": SNR,
    "ple": PLE,
    "stem": STEM,
    "esmm": ESMM,
    "aitm": AITM,
}


def build(name: str, schema: Schema, tasks: Iterable[Task], *, seed: int = 0, **options: Any) -> Model:
    """Return a new model by its name in `MODELS`, with weights from the seed.

    `build("mmoe", schema, tasks, experts=4)`: options are the fields of the model's config. torch's own random
    numbers go on as if nothing had been drawn.
    """
    check_choice("model", name, MODELS)
    kind = MODELS[name]
    config = configure(kind.config_type, options)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        try:
            return kind(schema, tasks, config)
        except (RuntimeError, MemoryError, OverflowError, TypeError) as error:  # torch has no kind of its own for it
            reason = str(error).splitlines()[0] if str(error) else "no memory"
            if (
                isinstance(error, RuntimeError | TypeError)
                and "alloc" not in reason
                and "overflow" not in reason.lower()
            ):
                raise
            raise InputError(f"a model {name!r} with {options} is too large to be made: {reason}") from error


__all__ = [
    "ACTIVATIONS",
    "AITM",
    "ESMM",
    "MODELS",
    "PLE",
    "SNR",
    "STEM",
    "AITMConfig",
    "Batch",
    "Categorical",
    "Config",
    "CrossStitch",
    "CrossStitchConfig",
    "ESMMConfig",
    "GatePlace",
    "GateWeights",
    "Losses",
    "MMoE",
    "MMoEConfig",
    "Model",
    "Numeric",
    "PLEConfig",
    "SNRConfig",
    "STEMConfig",
    "Schema",
    "Sequence",
    "SharedBottom",
    "SharedBottomConfig",
    "SingleTask",
    "SingleTaskConfig",
    "Task",
    "build",
    "export",
    "gate_weights",
    "per_example_losses",
]
