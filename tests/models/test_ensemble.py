"""An ensemble against its members, each as a model of its own."""

from typing import Any

import pytest
import torch
from tests import reference
from tests.models.cases import (
    BINNED,
    CHAINS,
    FORMS,
    SMALL,
    TASKS,
    batch_of,
    build,
    labels_of,
    losses_of,
    losses_on,
    shuffled,
    tasks_of,
    total,
)
from torch import Tensor, nn

import gdod
from gdod.models import MODELS, Batch, Losses, Model, per_example_losses
from gdod.models.features import Features
from gdod.models.layers import Members

COUNT = 3
SHARING = [form for form in FORMS if form != "single-task"]


def features(model: Model) -> list[Features]:
    return [module for module in model.modules() if isinstance(module, Features)]


def member(model: Model, form: str, number: int) -> Model:
    """A model without an ensemble that has one member's weights, and multiplies its input by that member's vector."""
    alone = build(form, model.tasks).train(model.training)
    state, weights = model.state_dict(), {}
    for name, value in alone.state_dict().items():
        own = state[name]
        # An output layer has [k, in, out] and [k, 1, out] for [out, in] and [out].
        weights[name] = own if own.dim() == value.dim() else own[number].T.reshape(value.shape)
    alone.load_state_dict(weights)
    for theirs, ours in zip(features(alone), features(model), strict=True):
        assert ours.members is not None
        vector = ours.members.scales[number].detach()
        theirs.register_forward_hook(lambda module, inputs, x, vector=vector: x * vector)
    return alone


def seeded(model: Model, size: int = 10) -> dict[str, Tensor]:
    torch.manual_seed(0)  # SNR draws its switches in training: the same for all
    return model(batch_of(size))  # type: ignore[no-any-return]


@pytest.mark.parametrize("form", SMALL)
def test_in_training_it_has_the_logits_and_the_mean_loss_of_its_members(form: str) -> None:
    model = shuffled(build(form, ensemble=COUNT))
    members = [seeded(member(model, form, j)) for j in range(COUNT)]
    logits = seeded(model)
    shapes = [(10, COUNT, 3) if task.classes else (10, COUNT) for task in tasks_of(form)]
    assert [tuple(logit.shape) for logit in logits.values()] == shapes
    losses, *each = (
        per_example_losses(one, labels_of(10), model.tasks, penalties=model.example_penalties(one)).losses
        for one in (logits, *members)
    )
    for task in model.tasks:
        own = torch.stack([logit[task.name] for logit in members], 1)  # [B, k, ...]
        torch.testing.assert_close(logits[task.name], own, rtol=1e-4, atol=1e-5)
        mean = torch.stack([loss[task.name] for loss in each]).mean(0)
        torch.testing.assert_close(losses[task.name], mean, rtol=1e-4, atol=1e-5)
        assert float(own.detach().std(1).min()) > 0  # members differ


@pytest.mark.parametrize("form", FORMS)
def test_in_evaluation_it_predicts_the_mean_of_its_members(form: str) -> None:
    model = shuffled(build(form, ensemble=COUNT)).eval()
    members = [seeded(member(model, form, j)) for j in range(COUNT)]
    logits = seeded(model)
    for task in model.tasks:
        logit, each = logits[task.name], torch.stack([one[task.name] for one in members])  # [B, ...], [k, B, ...]
        if task.kind == "binary":
            torch.testing.assert_close(logit.sigmoid(), each.sigmoid().mean(0), rtol=1e-4, atol=1e-6)
        elif task.kind == "regression":
            torch.testing.assert_close(logit, each.mean(0), rtol=1e-4, atol=1e-5)
        else:
            torch.testing.assert_close(logit.exp(), each.softmax(2).mean(0), rtol=1e-4, atol=1e-6)


def test_members_that_are_sure_keep_their_order() -> None:
    """Probabilities of float32 would all be 1, and their logits infinite."""
    model = build("shared-bottom", TASKS[:1], ensemble=COUNT).eval()
    with torch.no_grad():
        model.towers[0].output.bias += 40  # type: ignore[union-attr, index]
    logits = model(batch_of(50))["click"]
    assert bool(logits.isfinite().all())
    assert len(logits.unique()) > 40


def test_members_start_with_random_signs() -> None:
    scales = Members(4, 500).scales.detach()
    assert scales.unique().tolist() == [-1, 1]
    assert 0.4 < float((scales > 0).double().mean()) < 0.6
    assert float((scales[0] * scales[1]).mean().abs()) < 0.2


def test_members_of_an_example_lie_next_to_each_other() -> None:
    members, x = Members(2, 3), torch.randn(4, 3)
    rows = members(x)
    for example in range(4):
        for number in range(2):
            assert torch.equal(rows[2 * example + number], x[example] * members.scales[number])


def test_one_member_is_the_model_without_an_ensemble() -> None:
    one, plain = build("mmoe", ensemble=1), build("mmoe")
    assert [*one.state_dict()] == [*plain.state_dict()]
    assert not any(isinstance(module, Members) for module in one.modules())
    assert isinstance(one.towers[0].output, nn.Linear)  # type: ignore[union-attr, index]


@pytest.mark.parametrize("count", [4, 1], ids=["all tasks", "1 task"])
@pytest.mark.parametrize("form", FORMS)
def test_all_shared_parameters_are_fast(form: str, count: int) -> None:
    tasks = tasks_of(form)[: max(count, 2 if form in CHAINS else 1)]
    model = build(form, tasks, schema=BINNED, ensemble=COUNT, id_dropout=0.1)
    labels = labels_of(24)
    labels["click"][::3] = float("nan")
    losses, mask = losses_on(model, batch_of(24), labels)
    info = gdod.backward(losses, mask=mask)
    assert info.slow == ()
    assert info.passes <= len(tasks)
    if len(tasks) > 1:
        assert info.shared is not None
        assert {id(p) for p in info.shared} == {id(p) for p in model.shared_parameters()}


# With as many examples as members, experts or units: where examples lie must not be mixed up with where members lie.
@pytest.mark.parametrize("size", [1, 2, 3, 6, 9, 24])
@pytest.mark.parametrize("name", MODELS)
def test_the_fast_path_does_not_depend_on_the_batch_size(name: str, size: int) -> None:
    model = build(name, ensemble=COUNT)
    losses, mask = losses_of(model, size)
    assert gdod.backward(losses, gdod.GDOD(groups=4), mask=mask).slow == ()


def check_exact(form: str, dtype: torch.dtype, rule: str, **options: Any) -> None:
    """`.grad` after `gdod.backward` is what Algorithm 1 gives on dense float64 rows of the members' mean losses."""
    model, batch, labels = build(form, ensemble=COUNT, **options).to(dtype), batch_of(22), labels_of(22)

    def losses(model: Model, ids: Tensor, numbers: Tensor, *lists: Tensor) -> dict[str, Tensor]:
        return losses_on(model, Batch(ids, numbers, lists), labels).losses

    inputs = [batch.categorical, batch.numeric, *batch.sequences]
    assert reference.check(model, inputs, losses=losses, groups=5, rule=rule).slow == ()


@pytest.mark.parametrize("rule", ["sign", "weighted"])
@pytest.mark.parametrize("form", SHARING)
def test_gdod_is_exact(form: str, rule: str) -> None:
    check_exact(form, torch.float64, rule, schema=BINNED, id_dropout=0.2)


@pytest.mark.parametrize("form", [form for form in SMALL if form not in ("single-task", "snr")])  # snr: random numbers
def test_gdod_is_exact_in_float32(form: str) -> None:
    check_exact(form, torch.float32, "sign")


def test_without_anything_shared_the_gradient_is_the_plain_one() -> None:
    model, twin = build("single-task", ensemble=COUNT), build("single-task", ensemble=COUNT)
    gdod.backward(losses_of(model).losses)
    total(losses_of(twin)).backward()
    for own, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(own.grad, other.grad)


@pytest.mark.parametrize("name", MODELS)
def test_it_trains(name: str) -> None:
    model = build(name, ensemble=COUNT)

    def losses(training: bool) -> Losses:
        return losses_of(model.train(training))

    before = float(total(losses(False)).detach())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(15):
        optimizer.zero_grad()
        gdod.backward(losses(True).losses)
        optimizer.step()
    assert float(total(losses(False)).detach()) < before - 0.01
