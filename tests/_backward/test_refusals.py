"""Wrong input is refused before anything is written, and the message helps to put it right."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests._backward.grads import grad_of, tensor
from torch import Tensor, nn

import gdod

BATCH = 6


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(3, 4)
        self.heads = nn.ModuleList(nn.Linear(4, 1) for _ in range(2))
        self.unused = nn.Linear(2, 2)

    def forward(self, batch: int = BATCH) -> dict[str, Tensor]:
        shared = self.trunk(torch.ones(batch, 3)).tanh()
        return {name: (head(shared)[:, 0] - 1) ** 2 for name, head in zip(["click", "buy"], self.heads, strict=True)}


@pytest.fixture
def model() -> Model:
    """A model that holds a gradient already, in one parameter of each kind."""
    model = Model()
    for parameter in [model.trunk.weight, model.heads[0].bias]:
        tensor(parameter).grad = torch.full_like(tensor(parameter), 7.0)
    return model


def refused(model: Model, call: Callable[[], Any], *words: str) -> None:
    """The call raises InputError, the message has all the words, and `.grad` is as it was."""
    with pytest.raises(gdod.InputError) as caught:
        call()
    message = str(caught.value)
    for word in words:
        assert re.search(word, message, re.IGNORECASE), f"no {word!r} in: {message}"
    assert len(message.split()) >= 5, f"too short to help: {message}"
    for name, parameter in model.named_parameters():
        if name in ("trunk.weight", "heads.0.bias"):
            assert torch.equal(grad_of(parameter), torch.full_like(parameter, 7.0))
        else:
            assert parameter.grad is None


def test_input_error_is_a_value_error() -> None:
    assert issubclass(gdod.InputError, ValueError)
    assert issubclass(gdod.MixingWarning, UserWarning)


# --- losses --------------------------------------------------------------------------------------


def test_averaged_losses(model: Model) -> None:
    losses = {name: loss.mean() for name, loss in model().items()}
    refused(model, lambda: gdod.backward(losses), "click", "batch", "reduction|mean|averag")


def test_an_averaged_tensor(model: Model) -> None:
    total = torch.stack(list(model().values()), 1).mean()
    refused(model, lambda: gdod.backward(total), "batch", "reduction|mean|averag|scalar")


def test_losses_that_are_matrices(model: Model) -> None:
    losses = {name: loss[:, None].expand(-1, 2) for name, loss in model().items()}
    refused(model, lambda: gdod.backward(losses), "click", r"6, 2", "batch")


def test_a_tensor_of_one_dimension(model: Model) -> None:
    refused(model, lambda: gdod.backward(model()["click"]), r"\b6\b", "tasks")


def test_losses_of_unequal_length(model: Model) -> None:
    losses = model()
    losses["buy"] = losses["buy"][:-1]
    refused(model, lambda: gdod.backward(losses), "buy", r"\b6\b", r"\b5\b", "mask")


@pytest.mark.parametrize("which", ["buy", "click"])
def test_losses_without_a_graph(model: Model, which: str) -> None:
    losses = model()
    losses[which] = losses[which].detach()
    refused(model, lambda: gdod.backward(losses), which, "graph|grad")


def test_tensor_without_a_graph(model: Model) -> None:
    refused(model, lambda: gdod.backward(torch.rand(BATCH, 2)), "graph|grad")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_losses_that_are_not_finite(model: Model, value: float) -> None:
    losses = model()
    losses["buy"] = losses["buy"] * torch.tensor([1, 1, 1, value, 1, 1])
    refused(model, lambda: gdod.backward(losses), "buy", "finite|nan|inf")


def test_not_finite_names_the_column(model: Model) -> None:
    losses = torch.stack(list(model().values()), 1)
    factor = torch.ones(BATCH, 2)
    factor[2, 1] = float("nan")
    refused(model, lambda: gdod.backward(losses * factor), "['\"]?1['\"]?", "finite|nan|inf")


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64])
def test_losses_of_another_dtype(model: Model, dtype: torch.dtype) -> None:
    losses = model()
    losses["buy"] = losses["buy"].to(dtype)
    refused(model, lambda: gdod.backward(losses), "buy", str(dtype).removeprefix("torch."), "float")


@pytest.mark.parametrize("losses", [{}, [], ()])
def test_no_tasks(model: Model, losses: Any) -> None:
    refused(model, lambda: gdod.backward(losses), "task")


def test_no_tasks_in_a_tensor(model: Model) -> None:
    losses = torch.stack(list(model().values()), 1)[:, :0]
    refused(model, lambda: gdod.backward(losses), "task", "6, 0|no task|one task|0 tasks")


def test_an_empty_batch(model: Model) -> None:
    refused(model, lambda: gdod.backward(model(batch=0)), "empty|example")


@pytest.mark.parametrize("losses", [None, 3.0, "click", {"click": 3.0}, [3.0], {"click": None}])
def test_losses_that_are_no_tensors(model: Model, losses: Any) -> None:
    refused(model, lambda: gdod.backward(losses), "tensor", "NoneType|float|str|None|3.0|click")


# --- masks ---------------------------------------------------------------------------------------


def masks(click: Tensor | None = None, **others: Tensor) -> dict[str, Tensor]:
    full = torch.ones(BATCH, dtype=torch.bool)
    return {"click": full if click is None else click, "buy": full} | others


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (masks(torch.ones(5, dtype=torch.bool)), ["click", r"\b5\b", r"\b6\b"]),
        (masks(torch.ones(BATCH, 1, dtype=torch.bool)), ["click", "6, 1"]),
        (masks(torch.tensor(True)), ["click", "mask"]),
        (masks(torch.ones(BATCH)), ["click", "float32", "bool"]),
        (masks(torch.ones(BATCH, dtype=torch.int64)), ["click", "int64", "bool"]),
        ({"click": masks()["click"]}, ["buy"]),
        (masks(return_=masks()["click"]), ["return_"]),
        (list(masks().values()), ["mask", "structure|list"]),
        (torch.ones(BATCH, 2, dtype=torch.bool), ["mask", "structure|tensor"]),
        (3, ["mask", "int"]),
        (masks(click=[True] * BATCH), ["click", "list", "tensor"]),  # type: ignore[arg-type]
    ],
)
def test_masks(model: Model, mask: Any, words: list[str]) -> None:
    refused(model, lambda: gdod.backward(model(), mask=mask), *words)


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        ([torch.ones(BATCH, dtype=torch.bool)], ["mask", r"\b1\b", r"\b2\b"]),
        ([torch.ones(BATCH, dtype=torch.bool)] * 3, ["mask", r"\b3\b", r"\b2\b"]),
        (masks(), ["mask", "structure"]),
    ],
)
def test_masks_for_sequences(model: Model, mask: Any, words: list[str]) -> None:
    refused(model, lambda: gdod.backward(list(model().values()), mask=mask), *words)


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (torch.ones(2, BATCH, dtype=torch.bool), ["mask", "2, 6", "6, 2"]),
        (torch.ones(BATCH, dtype=torch.bool), ["mask", r"\(6,?\)|\[6\]", "6, 2"]),
        (torch.ones(BATCH, 2), ["mask", "float32", "bool"]),
    ],
)
def test_masks_for_tensors(model: Model, mask: Tensor, words: list[str]) -> None:
    losses = torch.stack(list(model().values()), 1)
    refused(model, lambda: gdod.backward(losses, mask=mask), *words)


# --- shared --------------------------------------------------------------------------------------


def test_shared_that_no_loss_reaches(model: Model) -> None:
    shared = [model.trunk.weight, model.unused.weight]
    refused(model, lambda: gdod.backward(model(), shared=shared), r"2, 2", "reach")


def test_shared_that_is_frozen(model: Model) -> None:
    model.trunk.bias.requires_grad_(False)
    refused(model, lambda: gdod.backward(model(), shared=[model.trunk.bias]), "grad|reach")


def test_shared_that_is_no_leaf(model: Model) -> None:
    weight = model.trunk.weight * 1
    refused(model, lambda: gdod.backward(model(), shared=[weight]), "leaf|parameter")


@pytest.mark.parametrize("shared", [["trunk.weight"], [3], 3, "trunk"])
def test_shared_that_are_no_parameters(model: Model, shared: Any) -> None:
    refused(model, lambda: gdod.backward(model(), shared=shared), "shared", "parameter", "str|int")


def test_shared_that_is_a_module(model: Model) -> None:
    refused(model, lambda: gdod.backward(model(), shared=model.trunk), "parameters", "Linear")  # type: ignore[arg-type]


def test_shared_that_is_empty(model: Model) -> None:
    refused(model, lambda: gdod.backward(model(), shared=[]), "shared", "parameter")


# --- task weights --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ([1.0], [r"\b1\b", "click", "buy"]),
        ([1.0, 2.0, 3.0], [r"\b3\b", "click", "buy"]),
        (torch.ones(3), [r"\b3\b", "click", "buy"]),
        (torch.ones(2, 2), ["2, 2"]),
        ({"click": 1.0}, ["buy"]),
        ({"click": 1.0, "buy": 1.0, "return": 1.0}, ["return", "click", "buy"]),
        ({"click": 1.0, "bye": 1.0}, ["bye", "buy"]),
        ([1.0, float("nan")], ["nan", "finite"]),
        ({"click": float("inf"), "buy": 1.0}, ["inf", "finite"]),
        (torch.tensor([1.0, float("nan")]), ["nan", "finite"]),
        (["one", "two"], ["one|str", "number"]),
        (2.0, ["task_weights", "2.0|float"]),
    ],
)
def test_task_weights(model: Model, weights: Any, words: list[str]) -> None:
    refused(model, lambda: gdod.backward(model(), task_weights=weights), *words)


# --- methods -------------------------------------------------------------------------------------

METHODS = pytest.mark.parametrize("method", [gdod.GDOD, gdod.WeightedGDOD])


@METHODS
@pytest.mark.parametrize("groups", [0, -1, 2.5, "16", True])
def test_groups(model: Model, method: type, groups: Any) -> None:
    refused(model, lambda: method(groups=groups), "groups", re.escape(str(groups)))


@METHODS
@pytest.mark.parametrize("rank", [0, -3, 1.5, "full"])
def test_rank(model: Model, method: type, rank: Any) -> None:
    refused(model, lambda: method(rank=rank), "rank", re.escape(str(rank)))


@METHODS
@pytest.mark.parametrize("name", ["SVD ", "eig", 3, None])
def test_decomposition(model: Model, method: type, name: Any) -> None:
    known = ["svd", "qr", "randomized", "random"]
    refused(model, lambda: method(decomposition=name), re.escape(str(name)), *known)


@pytest.mark.parametrize("name", ["signs", 3, None])
def test_agreement(model: Model, name: Any) -> None:
    call = lambda: gdod.GDOD(agreement=name)  # noqa: E731
    refused(model, call, re.escape(str(name)), "sign", "product")


@METHODS
@pytest.mark.parametrize("seed", ["zero", 1.5])
def test_seed(model: Model, method: type, seed: Any) -> None:
    call = lambda: method(decomposition="randomized", seed=seed)  # noqa: E731
    refused(model, call, "seed", re.escape(str(seed)), "Generator")


def test_unknown_method(model: Model) -> None:
    refused(model, lambda: gdod.method("gdood"), "gdood", "gdod", "weighted-gdod", "sum")


def test_unknown_option_of_a_method(model: Model) -> None:
    with pytest.raises((TypeError, gdod.InputError), match="grups"):
        gdod.method("gdod", grups=3)


@pytest.mark.parametrize("method", ["gdod", gdod.GDOD, 16])
def test_method_that_is_none(model: Model, method: Any) -> None:
    refused(model, lambda: gdod.backward(model(), method), "method", "gdod.GDOD|gdod.method")


# --- matrices ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (torch.ones(4, 3), ["rows", "4, 3"]),
        (torch.ones(0, 3, 2), ["rows"]),
        (torch.ones(2, 0, 2), ["rows"]),
        (torch.full((2, 2, 2), float("nan")), ["rows", "finite|nan"]),
        (torch.ones(2, 2, 2, dtype=torch.int64), ["rows", "int64"]),
        ([[1.0]], ["rows", "list"]),
    ],
)
@METHODS
def test_rows(model: Model, method: type, rows: Any, words: list[str]) -> None:
    refused(model, lambda: method().from_rows(rows), *words)


@pytest.mark.parametrize(
    ("gram", "tasks", "words"),
    [
        (torch.ones(4, 3), 2, ["gram", "4, 3"]),
        (torch.eye(4), 3, [r"\b4\b", r"\b3\b"]),
        (torch.eye(4), 0, ["tasks", r"\b0\b"]),
        (torch.full((4, 4), float("nan")), 2, ["gram", "finite|nan"]),
    ],
)
@METHODS
def test_gram(model: Model, method: type, gram: Tensor, tasks: int, words: list[str]) -> None:
    refused(model, lambda: method().from_gram(gram, tasks=tasks), *words)


@METHODS
def test_averages(model: Model, method: type) -> None:
    averages = torch.ones(2, 3)
    refused(model, lambda: method().from_gram(torch.eye(4), tasks=2, averages=averages), "2, 3", "2, 4")
    refused(model, lambda: method().from_rows(torch.ones(2, 2, 5), averages=averages), "2, 3", "2, 4")
