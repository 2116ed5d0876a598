"""A small schema, tasks of every kind, examples of them, and models in several forms."""

from collections.abc import Iterable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from gdod.models import Batch, Categorical, Losses, Model, Numeric, Schema, Sequence, Task, per_example_losses
from gdod.models import build as build_model
from gdod.models.layers import Stack

Part = TypeVar("Part", bound=nn.Module)

SCHEMA = Schema(
    categorical=[Categorical("city", 5), Categorical("device", 3), Categorical("user", 40)],
    numeric=[Numeric("age"), Numeric("one")],
    sequences=[Sequence("seen", 12)],
)
BINNED = Schema(
    SCHEMA.categorical, [Numeric("age", bins=(-1.0, -0.5, 0.0, 0.8, 2.0)), Numeric("one")], SCHEMA.sequences
)  # takes the batches of SCHEMA
TASKS = (Task("click"), Task("stay", "regression"), Task("kind", "multiclass", classes=3))
# Models of a chain have two steps or three, and may have other tasks beside them.
CHAIN_TASKS = (Task("click"), Task("buy"), *TASKS[1:])
STEPS = (Task("click"), Task("buy"), Task("pay"))
CHAIN = ("click", "buy")

# Name of a form -> model and options. The first of each model has the paper's shape, but smaller.
SMALL: dict[str, tuple[str, dict[str, Any]]] = {
    "single-task": ("single-task", {"bottom": (8, 6), "tower": (4,)}),
    "shared-bottom": ("shared-bottom", {"bottom": (8, 6), "tower": (4,)}),
    "cross-stitch": ("cross-stitch", {"bottom": (8, 6), "tower": (4,)}),
    "mmoe": ("mmoe", {"experts": 4, "expert": (6,), "tower": (4,)}),
    "snr": ("snr", {"subnetworks": 3, "width": 6, "tower": (4,)}),
    "ple": ("ple", {"experts": 5, "expert": (6,), "tower": (4,)}),
    "stem": ("stem", {"expert": (6,), "tower": (4,)}),
    "esmm": ("esmm", {"tower": (8, 4), "chain": CHAIN}),
    "aitm": ("aitm", {"tower": (8, 6), "chain": CHAIN}),
}
FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    **SMALL,
    "bare shared-bottom": ("shared-bottom", {"bottom": (), "tower": ()}),
    "cross-stitch without bottom": ("cross-stitch", {"bottom": (), "tower": (8, 6, 4)}),
    "mmoe, deep experts": ("mmoe", {"experts": 3, "expert": (7, 6), "activation": "silu"}),
    "snr, one level": ("snr", {"levels": 1, "subnetworks": 3, "width": 6}),
    "snr, three levels": (
        "snr",
        {"levels": 3, "subnetworks": 3, "width": 6, "sampling": "example", "activation": "gelu"},
    ),
    "ple, one level": ("ple", {"levels": 1, "experts": 5, "expert": (6,)}),
    "ple, three levels": (
        "ple",
        {"levels": 3, "experts": 8, "task_experts": 2, "expert": (7, 6), "dropout": 0.1},
    ),
    "stem, deep experts": ("stem", {"task_experts": 1, "shared_experts": 3, "expert": (7, 6)}),
    "esmm, three steps": ("esmm", {"bottom": (8,), "tower": (), "activation": "silu"}),
    "aitm, three steps": ("aitm", {"bottom": (8,), "tower": (6,), "activation": "silu", "dropout": 0.1}),
    "aitm without a calibrator": ("aitm", {"tower": (6,), "chain": CHAIN, "calibrator": 0}),
}
CHAINS = [form for form, (name, _) in FORMS.items() if name in ("esmm", "aitm")]


def tasks_of(form: str) -> tuple[Task, ...]:
    """Return the tasks that a form is tried with."""
    _, options = FORMS[form]
    if form not in CHAINS:
        return TASKS
    return CHAIN_TASKS if "chain" in options else STEPS


def build(
    form: str, tasks: tuple[Task, ...] | None = None, seed: int = 0, schema: Schema = SCHEMA, **options: Any
) -> Model:
    name, own = FORMS[form]
    return build_model(name, schema, tasks or tasks_of(form), seed=seed, **(own | options))


def columns(size: int, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def ids(largest: int, *shape: int) -> Tensor:
        return torch.randint(0, largest + 1, (size, *shape), generator=generator)

    return {
        "user": ids(40),
        "seen": ids(12, 4),
        "age": torch.randn(size, generator=generator),
        "one": torch.ones(size),
        "city": ids(5),
        "device": ids(3),
    }


def batch_of(size: int, seed: int = 0) -> Batch:
    return SCHEMA.batch(columns(size, seed))


def labels_of(size: int, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(100 + seed)
    labels = {
        "click": torch.randint(0, 2, (size,), generator=generator).float(),
        "stay": torch.randn(size, generator=generator),
        "kind": torch.randint(0, 3, (size,), generator=generator),
    }
    for before, after in (("click", "buy"), ("buy", "pay")):
        labels[after] = labels[before] * torch.randint(0, 2, (size,), generator=generator)
    return labels


def losses_on(model: Model, batch: Batch, labels: dict[str, Tensor]) -> Losses:
    """Return the losses as training takes them, with what the model adds to those of examples."""
    logits = model(batch)
    return per_example_losses(logits, labels, model.tasks, penalties=model.example_penalties(logits))


def losses_of(model: Model, size: int = 24, seed: int = 0) -> Losses:
    return losses_on(model, batch_of(size, seed), labels_of(size, seed))


def total(losses: Losses) -> Tensor:
    return torch.stack([loss.mean() for loss in losses.losses.values()]).sum()


def of_type(kind: type[Part], parts: Iterable[nn.Module]) -> list[Part]:
    """Return the modules of an `nn.ModuleList` with the type that all of them have."""
    typed = []
    for part in parts:
        assert isinstance(part, kind)
        typed.append(part)
    return typed


def weights_and_biases(stacks: Iterable[nn.Module], number: int) -> list[tuple[Tensor, Tensor]]:
    """Return the weight [in, out] and the bias [1, out] of one of the layers of each stack."""
    layers = []
    for stack in of_type(Stack, stacks):
        assert stack.bias is not None
        layers.append((stack.weight[number], stack.bias[number]))
    return layers


def shuffled(model: Model) -> Model:
    """Return the model with all parameters random, so that a forgotten bias shows, which starts at zero."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.4)
    return model
