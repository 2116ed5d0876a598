"""Per-example losses: kinds of tasks, missing labels, weights."""

from math import log
from typing import Any

import pytest
import torch
from tests.models.cases import TASKS, batch_of, build, labels_of, losses_of
from torch import Tensor

import gdod
from gdod.models import Task, per_example_losses

CLICK, STAY, KIND = TASKS
NAN = float("nan")


def test_kinds_of_losses() -> None:
    logits = {
        "click": torch.tensor([0.0, log(3)]),
        "stay": torch.tensor([1.0, -1.0]),
        "kind": torch.tensor([[0.0, 0.0, 0.0], [log(2), 0.0, 0.0]]),
    }
    labels = {
        "click": torch.tensor([1, 0]),
        "stay": torch.tensor([1.5, 2.0]),
        "kind": torch.tensor([2, 0]),
    }
    losses, mask = per_example_losses(logits, labels, TASKS)
    torch.testing.assert_close(losses["click"], torch.tensor([log(2), log(4)]))
    torch.testing.assert_close(losses["stay"], torch.tensor([0.25, 9.0]))
    torch.testing.assert_close(losses["kind"], torch.tensor([log(3), log(2)]))
    assert all(bool(known.all()) for known in mask.values())


def test_the_loss_of_an_ensemble_is_the_mean_of_its_members_losses() -> None:
    logits = {"click": torch.randn(5, 4), "stay": torch.randn(5, 4), "kind": torch.randn(5, 4, 3)}
    labels = labels_of(5)
    labels["stay"][2] = NAN
    labels["kind"][3] = -1
    weights = torch.arange(1.0, 6.0)
    losses, mask = per_example_losses(logits, labels, TASKS, weights=weights)
    members = [
        per_example_losses({name: logit[:, j] for name, logit in logits.items()}, labels, TASKS, weights=weights)
        for j in range(4)
    ]
    for task in TASKS:
        torch.testing.assert_close(
            losses[task.name], torch.stack([member.losses[task.name] for member in members]).mean(0)
        )
        assert torch.equal(mask[task.name], members[0].mask[task.name])


def test_missing_labels() -> None:
    logits = {"click": torch.zeros(3), "stay": torch.ones(3), "kind": torch.zeros(3, 3)}
    labels = {
        "click": torch.tensor([NAN, 1.0, 0.0]),
        "stay": torch.tensor([-1.0, NAN, 0.0]),
        "kind": torch.tensor([0, 1, -1]),
    }
    losses, mask = per_example_losses(logits, labels, TASKS, mask={"click": torch.tensor([True, True, False])})
    assert mask["click"].tolist() == [False, True, False]
    assert mask["stay"].tolist() == [True, False, True]  # a negative number is a label here
    assert mask["kind"].tolist() == [True, True, False]
    assert all(bool(loss.isfinite().all()) for loss in losses.values())


def test_classes_may_come_as_floats_with_nan() -> None:
    labels = {"kind": torch.tensor([2.0, NAN])}
    losses, mask = per_example_losses({"kind": torch.zeros(2, 3)}, labels, [KIND])
    assert mask["kind"].tolist() == [True, False]
    assert float(losses["kind"][0]) == pytest.approx(log(3))


def test_losses_and_mask_go_straight_into_backward() -> None:
    """The gradient is that of the mean over labelled examples, whatever the others are."""
    model, twin = build("shared-bottom"), build("shared-bottom")
    labels = labels_of(24)
    labels["click"][::3] = NAN
    labels["kind"][1::2] = -1

    def losses(model: torch.nn.Module) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        return per_example_losses(model(batch_of(24)), labels, TASKS)

    values, mask = losses(model)
    gdod.backward(values, gdod.Sum(), mask=mask)
    values, mask = losses(twin)
    torch.stack([values[t.name][mask[t.name]].mean() for t in TASKS]).sum().backward()
    for own, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(own.grad, other.grad, rtol=1e-4, atol=1e-7)


def test_weights_scale_each_example() -> None:
    model = build("shared-bottom")
    plain = losses_of(model, 6).losses
    logits, factor = model(batch_of(6)), torch.arange(6.0)
    common = per_example_losses(logits, labels_of(6), TASKS, weights=factor).losses
    by_task = {"click": factor, "stay": torch.ones(6), "kind": 2 * torch.ones(6)}
    own = per_example_losses(logits, labels_of(6), TASKS, weights=by_task).losses
    torch.testing.assert_close(common["stay"], factor * plain["stay"])
    torch.testing.assert_close(own["click"], factor * plain["click"])
    torch.testing.assert_close(own["stay"], plain["stay"])
    torch.testing.assert_close(own["kind"], 2 * plain["kind"])


def test_half_precision_logits_give_float32_losses() -> None:
    losses = per_example_losses(
        {"click": torch.zeros(2, dtype=torch.bfloat16)}, {"click": torch.ones(2)}, [CLICK]
    ).losses
    assert losses["click"].dtype == torch.float32


@pytest.mark.parametrize(
    ("task", "labels", "options", "text"),
    [
        (CLICK, {"buy": torch.zeros(2)}, {}, "labels has nothing for task 'click'; it has 'buy'"),
        (CLICK, {"click": torch.zeros(2, 1)}, {}, "expected [2]"),
        (CLICK, {"click": torch.tensor([-1.0, 1.0])}, {}, "from -1 to 1; expected 0 and 1"),
        (KIND, {"kind": torch.tensor([0, 3])}, {}, "up to 3; expected classes from 0 to 2"),
        (CLICK, {"click": torch.zeros(2)}, {"weights": torch.ones(3)}, "weights of task 'click'"),
        (CLICK, {"click": torch.zeros(2)}, {"weights": {}}, "weights has nothing"),
        (
            CLICK,
            {"click": torch.zeros(2)},
            {"mask": {"click": torch.ones(3).bool()}},
            "mask of task",
        ),
    ],
)
def test_refusals(task: Task, labels: dict[str, Tensor], options: dict[str, Any], text: str) -> None:
    logits = {"click": torch.zeros(2), "kind": torch.zeros(2, 3)}
    with pytest.raises(gdod.InputError) as refused:
        per_example_losses(logits, labels, [task], **options)
    assert text in str(refused.value)
