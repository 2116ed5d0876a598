"""The three ways through `gdod.backward`: weights of rows, weights of losses, a penalty on gradients."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests._backward.grads import grad_of
from torch import Tensor, nn

import gdod
from gdod.methods import Gram, LossMethod, Method, Weights
from gdod.rows.workspace import _GRADIENTS


class Model(nn.Module):
    """Two tables (one of them sparse), a layer norm, a shared layer used twice, three heads."""

    def __init__(self, sparse: bool = False) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(40, 3, sparse=sparse), nn.Embedding(30, 3)
        self.norm, self.first, self.twice = nn.LayerNorm(6), nn.Linear(6, 5), nn.Linear(5, 5)
        self.scale = nn.Parameter(torch.rand(5) + 0.5)
        self.heads = nn.ModuleList(nn.Linear(5, 1) for _ in range(3))

    def forward(self, ids: Tensor, targets: Tensor) -> list[Tensor]:
        x = self.norm(torch.cat([self.users(ids[:, 0]), self.items(ids[:, 1])], 1))
        x = self.twice(self.twice(self.first(x).tanh()).tanh()) * self.scale
        return [(head(x.tanh())[:, 0] - targets[:, i]) ** 2 for i, head in enumerate(self.heads)]

    def shared(self) -> list[nn.Parameter]:
        return [p for name, p in self.named_parameters() if not name.startswith("heads")]


def problem(sparse: bool = False) -> tuple[Model, Tensor, Tensor]:
    return Model(sparse).double(), torch.randint(30, (12, 2)), torch.randn(12, 3).double()


def dense(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad


def assert_same(model: nn.Module, other: nn.Module) -> None:
    for (name, parameter), twin in zip(model.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(dense(parameter), dense(twin), rtol=1e-9, atol=1e-12, msg=name)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("diagnose", [False, True])
def test_sum_is_the_plain_backward_pass(sparse: bool, diagnose: bool) -> None:
    model, ids, targets = problem(sparse)
    twin = copy.deepcopy(model)
    sum(loss.mean() for loss in twin(ids, targets)).backward()
    info = gdod.backward(model(ids, targets), gdod.Sum(), diagnose=diagnose)
    assert_same(model, twin)
    assert info.energy_kept == 1
    assert grad_of(model.users.weight).is_sparse == sparse


def test_what_was_not_worked_out_says_how_to_have_it() -> None:
    model, ids, targets = problem()
    info = gdod.backward(model(ids, targets), gdod.Sum())
    assert info.passes == 1
    assert "Info(" in repr(info)
    with pytest.raises(gdod.InputError, match="diagnose=True"):
        _ = info.norms


class Fixed(LossMethod):
    def weigh_losses(self, losses: Tensor) -> Tensor:
        return torch.arange(1.0, len(losses) + 1, dtype=torch.float64)


@pytest.mark.parametrize("diagnose", [False, True])
def test_weights_of_losses_reach_heads_too(diagnose: bool) -> None:
    model, ids, targets = problem()
    twin = copy.deepcopy(model)
    sum((i + 1) * loss.mean() for i, loss in enumerate(twin(ids, targets))).backward()
    gdod.backward(model(ids, targets), Fixed(), diagnose=diagnose)
    assert_same(model, twin)


@pytest.mark.parametrize("diagnose", [False, True])
def test_a_task_without_labels_does_no_harm(diagnose: bool) -> None:
    model, ids, targets = problem()
    twin = copy.deepcopy(model)
    mask = torch.ones(12, 3, dtype=torch.bool)
    mask[:, 1] = False
    losses = twin(ids, targets)
    (losses[0].mean() + 3 * losses[2].mean()).backward()
    gdod.backward(model(ids, targets), Fixed(), mask=list(mask.unbind(1)), diagnose=diagnose)
    for name, parameter in model.named_parameters():
        expected = dict(twin.named_parameters())[name].grad
        found = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        torch.testing.assert_close(found, torch.zeros_like(parameter) if expected is None else expected, msg=name)


class ByLoss(LossMethod):
    """Knows no better than to pass on that a task has no loss."""

    def weigh_losses(self, losses: Tensor) -> Tensor:
        return losses / losses


@pytest.mark.parametrize("method", [gdod.Sum(), ByLoss()], ids=["sum", "by loss"])
def test_a_task_without_labels_has_no_weight(method: Method) -> None:
    model, ids, targets = problem()
    mask = torch.ones(12, 3, dtype=torch.bool)
    mask[:, 1] = False
    info = gdod.backward(model(ids, targets), method, mask=list(mask.unbind(1)))
    assert info.row_weights.tolist() == [[1.0, 0.0, 1.0]]
    assert all(bool(parameter.grad.isfinite().all()) for parameter in model.parameters() if parameter.grad is not None)


def test_shared_parameters_are_checked_on_every_route() -> None:
    model, ids, targets = problem()
    stranger = nn.Parameter(torch.zeros(2))
    for method in (gdod.Sum(), gdod.GDOD(), gdod.method("gradreg")):
        with pytest.raises(gdod.InputError, match="no loss reaches"):
            gdod.backward(model(ids, targets), method, shared=[*model.shared(), stranger])
    assert all(parameter.grad is None for parameter in model.parameters())


def penalised(model: Model, losses: list[Tensor], weight: float) -> Tensor:
    """Suteu & Guo's objective, with task gradients materialised."""
    total = torch.stack([loss.mean() for loss in losses]).sum()
    gradients = []
    for loss in losses:
        grads = torch.autograd.grad(loss.mean(), model.shared(), create_graph=True)
        gradients.append(torch.cat([grad.flatten() for grad in grads]))
    for i, first in enumerate(gradients):
        for second in gradients[:i]:
            total = total + weight * (first @ second) ** 2 / ((first @ first) * (second @ second))
    return total


@pytest.mark.parametrize("weight", [0.1, 3.0])
def test_gradreg_is_the_gradient_of_its_objective(weight: float) -> None:
    model, ids, targets = problem()
    twin = copy.deepcopy(model)
    penalised(twin, twin(ids, targets), weight).backward()
    info = gdod.backward(model(ids, targets), gdod.method("gradreg", weight=weight))
    assert_same(model, twin)
    plain = copy.deepcopy(model)
    plain.zero_grad()
    sum(loss.mean() for loss in plain(ids, targets)).backward()
    assert not torch.allclose(grad_of(plain.first.weight), grad_of(model.first.weight))
    assert info.slow == ()
    assert info.cosines.shape == (3, 3)


def test_gradreg_in_a_network_of_convolutions() -> None:
    torch.manual_seed(1)
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Tanh(), nn.Flatten(), nn.Linear(8, 2)).double()
    x = torch.randn(5, 1, 4, 4).double()

    def losses() -> list[Tensor]:
        return list((net(x) ** 2).unbind(1))

    total = sum(loss.mean() for loss in losses())
    gradients = [
        torch.cat([g.flatten() for g in torch.autograd.grad(loss.mean(), list(net.parameters()), create_graph=True)])
        for loss in losses()
    ]
    (total + torch.cosine_similarity(gradients[0], gradients[1], dim=0) ** 2).backward()
    expected = [grad_of(parameter).clone() for parameter in net.parameters()]
    net.zero_grad()
    gdod.backward(losses(), gdod.method("gradreg", weight=1.0))
    for parameter, grad in zip(net.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, grad)


def test_gradreg_with_one_task_or_a_vanishing_one_is_the_plain_gradient() -> None:
    model, ids, targets = problem()
    twin = copy.deepcopy(model)
    losses = twin(ids, targets)
    losses[0].mean().backward()
    ours = model(ids, targets)
    gdod.backward({"one": ours[0], "none": 0 * ours[1]}, gdod.method("gradreg", weight=5.0))
    torch.testing.assert_close(model.first.weight.grad, twin.first.weight.grad)


class Recording(Method):
    """Keeps the Gram matrix it was given."""

    groups = 1

    def __init__(self, where: object) -> None:
        self.lengths_at = where  # type: ignore[assignment]

    def weigh(self, gram: Gram) -> Weights:
        self.gram = gram
        return Weights(gram.averages.sum(0))


@pytest.mark.parametrize(
    "named",
    [
        lambda m: [m.first.weight],
        lambda m: [m.first.bias],
        lambda m: [m.users.weight],
        lambda m: [m.items.weight, m.scale],
        lambda m: [m.twice.weight, m.norm.bias],
    ],
)
def test_lengths_over_some_parameters(named: Callable[[Model], list[Tensor]]) -> None:
    model, ids, targets = problem()
    parameters = named(model)
    method = Recording(tuple(parameters))
    rows = []
    for loss in model(ids, targets):
        rows.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss.mean(), parameters, retain_graph=True)]))
    expected = torch.stack(rows) @ torch.stack(rows).T
    gdod.backward(model(ids, targets), method)
    torch.testing.assert_close(method.gram.norm_gram, expected)


def test_lengths_at_the_last_shared_layer() -> None:
    trunk = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    heads = [nn.Linear(2, 1).double() for _ in range(2)]
    x = torch.randn(7, 3).double()

    def losses() -> list[Tensor]:
        return [head(trunk(x).tanh())[:, 0] ** 2 for head in heads]

    last = list(trunk[2].parameters())
    rows = [torch.cat([g.flatten() for g in torch.autograd.grad(loss.mean(), last)]) for loss in losses()]
    method = Recording("last-shared-layer")
    gdod.backward(losses(), method)
    torch.testing.assert_close(method.gram.norm_gram, torch.stack(rows) @ torch.stack(rows).T)


def test_memory_of_a_table_is_used_again_only_if_nobody_holds_it() -> None:
    model, ids, targets = problem()
    gdod.backward(model(ids, targets))
    first = grad_of(model.items.weight)
    address, values = first.data_ptr(), first.clone()
    model.zero_grad()
    gdod.backward(model(ids + 1 - 1, targets))
    assert grad_of(model.items.weight).data_ptr() != address  # `first` still holds it
    assert torch.equal(first, values)
    address = grad_of(model.items.weight).data_ptr()
    view = grad_of(model.items.weight)[:2]
    model.zero_grad()
    gdod.backward(model(ids, targets))
    assert grad_of(model.items.weight).data_ptr() != address  # a view holds it
    del view
    address = grad_of(model.items.weight).data_ptr()
    grad_of(model.items.weight).data.add_(7)  # not zero where the next batch does not reach
    model.zero_grad()
    gdod.backward(model(ids, targets))
    assert grad_of(model.items.weight).data_ptr() == address
    torch.testing.assert_close(model.items.weight.grad, values)


def test_memory_of_a_table_goes_with_the_table() -> None:
    model, ids, targets = problem()
    gdod.backward(model(ids, targets))
    before = len(_GRADIENTS)
    del model
    assert len(_GRADIENTS) == before - 2


@pytest.mark.parametrize("decomposition", ["randomized", "random"])
def test_random_decompositions_go_on_from_a_saved_state(decomposition: str) -> None:
    rows = torch.randn(12, 2, 40).double()
    options: dict[str, Any] = {"decomposition": decomposition, "rank": 3}
    first = gdod.GDOD(**options, seed=5)
    first.from_rows(rows)
    second = gdod.GDOD(**options, seed=0)
    second.load_state_dict(first.state_dict())
    assert torch.equal(first.from_rows(rows), second.from_rows(rows))
    assert gdod.GDOD().state_dict() == {}
    with pytest.raises(gdod.InputError, match="the method it was taken from"):
        gdod.GDOD().load_state_dict(first.state_dict())
