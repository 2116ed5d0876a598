"""Cross-Stitch against separate towers, and against its formula."""

import pytest
import torch
from tests.models.cases import TASKS, batch_of, build, of_type, shuffled, weights_and_biases
from torch import Tensor
from torch.nn.functional import relu

from gdod.models import CrossStitch, Model
from gdod.models.cross_stitch import Stitch


def stitches(model: Model) -> list[Stitch]:
    assert isinstance(model, CrossStitch)
    return of_type(Stitch, model.stitches)


def set_mixing(model: CrossStitch, mixing: Tensor) -> None:
    with torch.no_grad():
        for stitch in stitches(model):
            for row, values in zip(stitch.rows, mixing, strict=True):
                row.copy_(values)


def layers(model: CrossStitch, k: int) -> list[tuple[Tensor, Tensor]]:
    """Weights [in, out] and biases of the hidden layers of tower k."""
    width = model.first.outputs
    own = slice(k * width, (k + 1) * width)
    first = (model.first.first.weight[own].T, model.first.first.bias[own])
    return [first, *weights_and_biases(model.stacks, k)]


def by_hand(model: CrossStitch, mixing: Tensor) -> dict[str, Tensor]:
    """Towers side by side; after every hidden layer tower i continues with Σ_j a_ij h_j."""
    x = model.bottom(model.features(batch_of(10)))
    hs = [x] * len(TASKS)
    towers = [layers(model, k) for k in range(len(TASKS))]
    for depth in range(len(towers[0])):
        hs = [relu(h @ tower[depth][0] + tower[depth][1]) for h, tower in zip(hs, towers, strict=True)]
        hs = [sum((a * h for a, h in zip(row, hs, strict=True)), torch.zeros(())) for row in mixing]
    outputs = [output(h) for output, h in zip(model.outputs, hs, strict=True)]
    return {t.name: o if t.classes else o.squeeze(1) for t, o in zip(TASKS, outputs, strict=True)}


@pytest.mark.parametrize("form", ["cross-stitch", "cross-stitch without bottom"])
def test_at_identity_it_is_separate_towers(form: str) -> None:
    model = shuffled(build(form))
    assert isinstance(model, CrossStitch)
    set_mixing(model, torch.eye(3))
    x = model.bottom(model.features(batch_of(10)))
    logits = model(batch_of(10))
    for k, task in enumerate(TASKS):
        h = x
        for weight, bias in layers(model, k):
            h = relu(h @ weight + bias)
        out = model.outputs[k](h)
        torch.testing.assert_close(logits[task.name], out if task.classes else out.squeeze(1))


@pytest.mark.parametrize("form", ["cross-stitch", "cross-stitch without bottom"])
def test_towers_are_mixed_after_every_hidden_layer(form: str) -> None:
    model = shuffled(build(form))
    assert isinstance(model, CrossStitch)
    mixing = torch.randn(3, 3)
    set_mixing(model, mixing)
    logits = model(batch_of(10))
    for name, expected in by_hand(model, mixing).items():
        torch.testing.assert_close(logits[name], expected)


def test_mixing_starts_near_the_identity() -> None:
    model = build("cross-stitch", own=0.8)
    rows = torch.stack([row.detach() for row in stitches(model)[0].rows])
    torch.testing.assert_close(rows, 0.7 * torch.eye(3) + 0.1)
    alone = build("cross-stitch", TASKS[:1])
    assert [row.tolist() for row in stitches(alone)[0].rows] == [[1.0]]
