"""Every form of input gets the update of Algorithm 1, and `.grad` is written as autograd does."""

import contextlib
import copy
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tests._backward.grads import grad_of, tensor
from tests._backward.without_rule import times
from tests.reference import FLOAT32, algorithm1, assert_update, check, dense, expected, flat, method
from torch import Tensor, nn

import gdod


class MLP(nn.Module):
    """A trunk of 74 parameters, one linear head a task; squared errors, one tensor [B] a task."""

    def __init__(self, tasks: int) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 4), nn.Tanh())
        self.heads = nn.ModuleList(nn.Linear(4, 1) for _ in range(tasks))

    def forward(self, x: Tensor, targets: Tensor) -> list[Tensor]:
        shared = self.trunk(x)
        return [(head(shared)[:, 0] - targets[:, i]) ** 2 for i, head in enumerate(self.heads)]


def problem(
    tasks: int = 3, batch: int = 10, dtype: torch.dtype = torch.float64, seed: int = 0
) -> tuple[MLP, list[Tensor]]:
    torch.manual_seed(seed)
    inputs = [torch.randn(batch, 5, dtype=dtype), torch.randn(batch, tasks, dtype=dtype)]
    return MLP(tasks).to(dtype), inputs


def named(losses: list[Tensor]) -> dict[str, Tensor]:
    return {f"task {i}": loss for i, loss in enumerate(losses)}


def grads(model: nn.Module) -> dict[str, Tensor]:
    return {name: dense(p.grad, p).clone() for name, p in model.named_parameters()}


@contextlib.contextmanager
def may_warn() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", gdod.SlowPathWarning)
        yield


RULES = pytest.mark.parametrize("rule", ["sign", "product", "weighted"])


@pytest.mark.parametrize("masked", [False, True])
def test_rows_of_the_reference_average_to_the_task_gradients(masked: bool) -> None:
    """Line 1 of Algorithm 1, by one backward pass a task: the reference is right about its rows."""
    model, inputs = problem()
    losses = model(*inputs)
    mask = [torch.tensor(task, dtype=torch.bool) for task in MASKS["whole groups"]] if masked else None
    target = expected(model, losses, groups=4, mask=mask, task_weights=[1.0, 2.0, 0.5])
    for i, weight in enumerate([1.0, 2.0, 0.5]):
        mean = losses[i].mean() if mask is None else losses[i][mask[i]].mean()
        grads = torch.autograd.grad(weight * mean, list(model.trunk.parameters()), retain_graph=True)
        want = torch.cat([grad.reshape(-1) for grad in grads])
        torch.testing.assert_close(target.algorithm.gradients[i], want)


# --- tasks, groups, batches ----------------------------------------------------------------------


@RULES
@pytest.mark.parametrize("tasks", range(1, 13))
def test_tasks(tasks: int, rule: str, dtype: torch.dtype) -> None:
    check(*problem(tasks, dtype=dtype), groups=3, rule=rule)


@RULES
@pytest.mark.parametrize("groups", [1, 3, 16, 40])
@pytest.mark.parametrize("tasks", [2, 6])
def test_groups(groups: int, tasks: int, rule: str, dtype: torch.dtype) -> None:
    """40 groups are one an example: 240 rows, more than the 74 shared parameters."""
    check(*problem(tasks, batch=40, dtype=dtype), groups=groups, rule=rule)


@pytest.mark.parametrize("batch", [1, 2, 3, 15, 16, 17, 31])
def test_batches(batch: int, dtype: torch.dtype) -> None:
    """Fewer examples than groups, as many, and sizes that 16 does not divide."""
    info = check(*problem(2, batch=batch, dtype=dtype), groups=16)
    assert info.row_weights.shape == (min(batch, 16), 2)


def test_groups_are_runs_of_consecutive_examples() -> None:
    """7 examples in 3 groups are 3 + 2 + 2: only an exchange across a border changes the update."""
    model, (x, targets) = problem(2, batch=7)

    def update(order: list[int]) -> Tensor:
        model.zero_grad()
        gdod.backward(model(x[order], targets[order]), gdod.GDOD(groups=3))
        return grad_of(model.trunk[0].weight).clone()

    base = update([0, 1, 2, 3, 4, 5, 6])
    torch.testing.assert_close(update([0, 1, 2, 4, 3, 5, 6]), base)
    assert (update([0, 1, 3, 2, 4, 5, 6]) - base).norm() > 1e-3 * base.norm()


@pytest.mark.parametrize("name", ["svd", "qr", "randomized"])
@RULES
def test_decompositions_are_those_of_the_rows(name: str, rule: str) -> None:
    """`backward` on a model is `from_rows` on its dense rows, for the same seed."""
    model, inputs = problem()
    target = expected(model, model(*inputs), groups=4)
    gdod.backward(model(*inputs), method(rule, 4, decomposition=name, seed=3))
    same = method(rule, 4, decomposition=name, seed=3)
    want = same.from_rows(target.rows, averages=target.averages)
    assert want.norm() > 0
    torch.testing.assert_close(flat(dict(model.named_parameters()), target.shared), want)


@pytest.mark.parametrize("agreement", ["sign", "product"])
def test_random_basis_projects_the_total_gradient(agreement: str) -> None:
    """Its vectors are orthonormal, so u is a projection of the gradients' sum g: u . g = u . u."""
    updates = []
    for seed in [3, 3, 4]:
        model, inputs = problem()
        target = expected(model, model(*inputs), groups=4)
        way = gdod.GDOD(groups=4, decomposition="random", agreement=agreement, seed=seed)
        gdod.backward(model(*inputs), way)
        updates.append(flat(dict(model.named_parameters()), target.shared))
        total = target.algorithm.gradients.sum(0)
        assert 0 < updates[-1].norm() < total.norm()
        torch.testing.assert_close(updates[-1] @ total, updates[-1] @ updates[-1])
    assert torch.equal(updates[0], updates[1])
    assert not torch.allclose(updates[0], updates[2])


# --- degenerate gradients ------------------------------------------------------------------------


def reweighted(*factors: float) -> Callable[..., list[Tensor]]:
    """Task i is the first task times a factor, or the i-th one where the factor is None."""

    def losses(model: nn.Module, *inputs: Tensor) -> list[Tensor]:
        own = model(*inputs)
        return [own[i] if f is None else f * own[0] for i, f in enumerate(factors)]

    return losses


@RULES
@pytest.mark.parametrize(
    "factors",
    [
        pytest.param((1, 1), id="identical"),
        pytest.param((1, 1, None), id="two identical and one other"),
        pytest.param((1, -1, None), id="opposite and one other"),
        pytest.param((0, 1, None), id="one zero"),
        pytest.param((0, 0, None), id="two zero"),
        pytest.param((1, 2, 0.5), id="parallel"),
        pytest.param((1, 2, -0.5), id="parallel, one opposite"),
    ],
)
def test_degenerate_gradients(factors: tuple[float, ...], rule: str, dtype: torch.dtype) -> None:
    model, inputs = problem(len(factors), dtype=dtype)
    shared = [name for name, _ in model.trunk.named_parameters(prefix="trunk")]
    check(model, inputs, losses=reweighted(*factors), rule=rule, shared=shared)


@RULES
@pytest.mark.parametrize("factors", [(0, 0), (0, 0, 0), (1, -1)])
def test_nothing_to_learn(factors: tuple[float, ...], rule: str, dtype: torch.dtype) -> None:
    """All gradients zero, or two that cancel on every basis vector: an update of zero, not NaN."""
    model, inputs = problem(2, dtype=dtype)
    info = gdod.backward(reweighted(*factors)(model, *inputs), method(rule, 4))
    alone = torch.autograd.grad(model(*inputs)[0].mean(), tensor(model.trunk[0].weight))[0]
    for parameter in info.shared or ():
        assert grad_of(parameter).norm() <= 10 * torch.finfo(dtype).eps * alone.norm()
    assert 0 <= info.energy_kept <= 1
    assert info.cosines.isfinite().all()


def test_identical_tasks_give_their_sum(dtype: torch.dtype) -> None:
    model, inputs = problem(1, dtype=dtype)
    (loss,) = model(*inputs)
    (3 * loss.mean()).backward(retain_graph=True)
    plain = grads(model)
    model.zero_grad()
    gdod.backward([loss, loss, loss])
    for name, grad in grads(model).items():
        torch.testing.assert_close(grad, plain[name], msg=name)


# --- scales --------------------------------------------------------------------------------------


@RULES
@pytest.mark.parametrize("scale", [1e-15, 1e-8, 1e8, 1e15])
def test_scales(scale: float, rule: str, dtype: torch.dtype) -> None:
    def losses(model: nn.Module, *inputs: Tensor) -> list[Tensor]:
        return [scale * loss for loss in model(*inputs)]

    check(*problem(dtype=dtype), losses=losses, rule=rule)


@RULES
@pytest.mark.parametrize(
    "scales",
    [(1, 1e-3, 1e3), (1e-15, 1, 1), (1e15, 1, 1), (1e-15, 1, 1e15), (1e15, 1e-15, 1e15)],
)
def test_a_scale_for_each_task(scales: tuple[float, ...], rule: str, dtype: torch.dtype) -> None:
    """A task's direction counts, however small its gradient is beside another's.

    A Gram matrix squares the condition of M, so that here what float64 can hold is 1e-9 of the
    sum of the gradients, and not of an update that may be much smaller.
    """

    def losses(model: nn.Module, *inputs: Tensor) -> list[Tensor]:
        return [s * loss for s, loss in zip(scales, model(*inputs), strict=True)]

    tolerance = FLOAT32 if dtype == torch.float32 else (1e-9, 1e-9)
    check(*problem(dtype=dtype), losses=losses, rule=rule, tolerance=tolerance)


# --- masks and task weights ----------------------------------------------------------------------

MASKS = {
    "scattered": [[1, 0, 1, 1, 0, 1, 1, 0, 1, 1], [1, 1, 1, 0, 1, 1, 0, 1, 0, 1], [1] * 10],
    "whole groups": [[0, 0, 0, 1, 1, 1, 0, 0, 1, 0], [1] * 10, [1, 1, 1, 0, 0, 0, 1, 1, 1, 1]],
    "a group without any": [[0, 0, 0, 1, 1, 1, 1, 0, 1, 1]] * 3,
    "a whole task": [[0] * 10, [1] * 10, [1, 0] * 5],
    "all but one task": [[0] * 10, [1] * 10, [0] * 10],
    "one example a task": [[1] + [0] * 9, [0] * 9 + [1], [0] * 4 + [1] + [0] * 5],
    "everything": [[0] * 10] * 3,
}


@RULES
@pytest.mark.parametrize("name", MASKS)
def test_masks(name: str, rule: str, dtype: torch.dtype) -> None:
    mask = [torch.tensor(task, dtype=torch.bool) for task in MASKS[name]]
    check(*problem(dtype=dtype), rule=rule, mask=mask)


@pytest.mark.parametrize("labels", [0, 1])
def test_masks_on_the_slow_path(labels: int) -> None:
    """No label at all, or one, where each row needs a backward pass of its own."""
    scale = nn.Parameter(torch.tensor(0.3, dtype=torch.float64))
    x = torch.randn(10, 2, dtype=torch.float64)
    mask = torch.arange(10)[:, None].expand(10, 2) < labels
    with may_warn():
        info = gdod.backward((times(x, scale.exp()) - 1) ** 2, mask=mask)
    assert [slow.parameter is scale for slow in info.slow] == [True]
    if labels == 0:
        assert scale.grad is None or scale.grad == 0
    else:
        value = scale.detach().clone().requires_grad_()
        first, second = ((x[0] * value.exp() - 1) ** 2).unbind()
        rows = [torch.autograd.grad(loss, value, retain_graph=True)[0] for loss in (first, second)]
        agree = rows[0] * rows[1] >= 0
        torch.testing.assert_close(scale.grad, sum(rows) if agree else torch.zeros_like(rows[0]))


def test_a_full_mask_is_no_mask() -> None:
    results = []
    for mask in [None, [torch.ones(10, dtype=torch.bool)] * 3]:
        model, inputs = problem()
        gdod.backward(model(*inputs), mask=mask)
        results.append(grads(model))
    for name, grad in results[0].items():
        torch.testing.assert_close(grad, results[1][name])


@RULES
@pytest.mark.parametrize("weights", [[1.0, 2.0, 0.5], [3.0, 0.0, 1.0], [1.0, -1.0, 1.0]])
def test_task_weights(weights: list[float], rule: str, dtype: torch.dtype) -> None:
    check(*problem(dtype=dtype), rule=rule, task_weights=weights)


@pytest.mark.parametrize("form", [list, tuple, torch.tensor])
def test_forms_of_task_weights(form: Callable[[Any], Any]) -> None:
    check(*problem(), task_weights=form([1.0, 2.0, 0.5]))


def test_task_weights_by_name() -> None:
    model, inputs = problem()

    def losses(model: nn.Module, *inputs: Tensor) -> dict[str, Tensor]:
        return named(model(*inputs))

    check(model, inputs, losses=losses, task_weights={"task 0": 1.0, "task 1": 2.0, "task 2": 0.5})


def test_task_weights_are_found_by_name_not_by_place() -> None:
    results = []
    for weights in [{"task 0": 5.0, "task 1": 0.1}, {"task 1": 0.1, "task 0": 5.0}]:
        model, inputs = problem(2)
        gdod.backward(named(model(*inputs)), task_weights=weights)
        results.append(grads(model))
    for name, grad in results[0].items():
        torch.testing.assert_close(grad, results[1][name])


def test_mask_and_task_weights_together(dtype: torch.dtype) -> None:
    mask = [torch.tensor(task, dtype=torch.bool) for task in MASKS["scattered"]]
    check(*problem(dtype=dtype), mask=mask, task_weights=[1.0, 2.0, 0.5])


# --- forms of the losses -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "structure",
    [
        list,
        tuple,
        named,
        pytest.param(lambda losses: torch.stack(losses, dim=1), id="stack"),
        pytest.param(lambda losses: torch.stack(losses, dim=-1), id="stack, last dimension"),
        pytest.param(lambda losses: torch.cat([x[:, None] for x in losses], dim=1), id="cat"),
        pytest.param(lambda losses: torch.stack(losses).T, id="stack, transposed"),
    ],
)
@pytest.mark.parametrize("masked", [False, True])
def test_forms_of_losses(structure: Callable[[list[Tensor]], Any], masked: bool) -> None:
    """In a tensor made by stacking, too, the heads are found to be private."""
    mask = [torch.tensor(task, dtype=torch.bool) for task in MASKS["scattered"]] if masked else None
    check(*problem(), structure=structure, mask=mask)


def test_losses_from_one_layer_for_all_tasks() -> None:
    """A [batch, tasks] tensor that no stack made: the layer that makes it is shared."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).double()
    inputs = [torch.randn(10, 5, dtype=torch.float64), torch.randn(10, 3, dtype=torch.float64)]
    info = check(model, inputs, losses=lambda model, x, y: (model(x) - y) ** 2)
    assert info.shared is not None
    assert len(info.shared) == 4


def test_names_of_tasks() -> None:
    model, inputs = problem(2)
    assert gdod.backward(named(model(*inputs))).tasks == ("task 0", "task 1")
    assert gdod.backward(model(*inputs)).tasks == ("0", "1")
    assert gdod.backward(torch.stack(model(*inputs), 1)).tasks == ("0", "1")


@pytest.mark.parametrize("names", [["trunk.0.weight"], ["trunk.2.weight", "trunk.0.bias"]])
def test_explicit_shared(names: list[str]) -> None:
    """What is not named gets its ordinary gradient, reached by one task or by all."""
    check(*problem(), shared=names)


def test_explicit_shared_may_hold_a_head() -> None:
    check(*problem(), shared=["trunk.0.weight", "heads.1.weight"])


def test_explicit_shared_as_a_generator() -> None:
    model, inputs = problem()
    info = gdod.backward(model(*inputs), shared=(p for p in model.trunk.parameters()))
    assert {id(p) for p in info.shared or ()} == {id(p) for p in model.trunk.parameters()}


def test_tasks_that_share_nothing_get_their_gradients() -> None:
    heads = nn.ModuleList(nn.Linear(4, 1).double() for _ in range(2))
    x = torch.randn(10, 4, dtype=torch.float64)
    losses = [head(x)[:, 0] ** 2 for head in heads]
    plain = torch.autograd.grad(sum(loss.mean() for loss in losses), list(heads.parameters()), retain_graph=True)
    info = gdod.backward(losses)
    assert info.shared == ()
    for parameter, grad in zip(heads.parameters(), plain, strict=True):
        torch.testing.assert_close(parameter.grad, grad)


def test_default_method_is_gdod_with_sixteen_groups() -> None:
    model, inputs = problem(2, batch=40)
    target = expected(model, model(*inputs), groups=16)
    gdod.backward(model(*inputs))
    assert_update(dict(model.named_parameters()), target)


def test_sum_is_the_plain_gradient(dtype: torch.dtype) -> None:
    model, inputs = problem(dtype=dtype)
    losses = model(*inputs)
    sum(loss.mean() for loss in losses).backward(retain_graph=True)
    plain = grads(model)
    model.zero_grad()
    gdod.backward(losses, gdod.Sum())
    for name, grad in grads(model).items():
        torch.testing.assert_close(grad, plain[name], msg=name)


def test_methods_by_name() -> None:
    by_name = gdod.method("gdod", groups=3, agreement="product")
    for way, same in [
        (by_name, gdod.GDOD(groups=3, agreement="product")),
        (gdod.method("weighted-gdod", groups=3), gdod.WeightedGDOD(groups=3)),
        (gdod.method("sum"), gdod.Sum()),
    ]:
        assert type(way) is type(same)
        results = []
        for one in [way, same]:
            model, inputs = problem()
            gdod.backward(model(*inputs), one)
            results.append(grads(model))
        for name, grad in results[0].items():
            assert torch.equal(grad, results[1][name])


# --- how .grad is written ------------------------------------------------------------------------


def test_two_calls_accumulate() -> None:
    model, inputs = problem()
    single = []
    for part in [slice(0, 5), slice(5, 10)]:
        model.zero_grad()
        gdod.backward(model(*(x[part] for x in inputs)))
        single.append(grads(model))
    model.zero_grad()
    for part in [slice(0, 5), slice(5, 10)]:
        gdod.backward(model(*(x[part] for x in inputs)))
    for name, grad in grads(model).items():
        torch.testing.assert_close(grad, single[0][name] + single[1][name], msg=name)


def test_existing_grad_is_added_to_in_place() -> None:
    model, inputs = problem()
    gdod.backward(model(*inputs))
    alone = grads(model)
    before = {}
    for name, parameter in model.named_parameters():
        parameter.grad = torch.ones_like(parameter)
        before[name] = parameter.grad
    gdod.backward(model(*inputs))
    for name, parameter in model.named_parameters():
        assert parameter.grad is before[name]
        torch.testing.assert_close(parameter.grad, alone[name] + 1, msg=name)


def test_gradients_of_different_parameters_share_no_memory() -> None:
    model, inputs = problem()
    gdod.backward(model(*inputs))
    others = grads(model)
    grad_of(model.trunk[0].weight).zero_()
    for name, parameter in model.named_parameters():
        if name != "trunk.0.weight":
            assert torch.equal(grad_of(parameter), others[name])


@pytest.mark.parametrize("private", [True, False])
def test_gradients_of_parameters_that_are_added_share_no_memory(private: bool) -> None:
    """Autograd hands the terms of a sum one and the same tensor; accumulating needs two."""
    trunk = nn.Linear(3, 2).double()
    first, second = (nn.Parameter(torch.zeros(1, dtype=torch.float64)) for _ in range(2))
    x = torch.randn(6, 3, dtype=torch.float64)

    def losses() -> list[Tensor]:
        scores, shift = trunk(x).tanh(), first + second
        return [(scores[:, 0] + shift) ** 2, (scores[:, 1] + (0 if private else shift)) ** 2]

    gdod.backward(losses())
    once = grad_of(first).clone()
    assert grad_of(first).data_ptr() != grad_of(second).data_ptr()
    gdod.backward(losses())
    torch.testing.assert_close(first.grad, 2 * once)
    torch.testing.assert_close(second.grad, 2 * once)


def test_gradients_survive_the_next_call() -> None:
    """A reused workspace must not show through a `.grad` that the caller kept."""
    model, inputs = problem()
    gdod.backward(model(*inputs))
    kept = {name: grad_of(p) for name, p in model.named_parameters()}
    values = grads(model)
    model.zero_grad(set_to_none=True)
    gdod.backward([10 * loss for loss in model(*inputs)])
    for name, grad in kept.items():
        assert torch.equal(grad, values[name])


def test_gradients_need_no_graph() -> None:
    model, inputs = problem()
    info = gdod.backward(model(*inputs))
    assert not any(grad_of(p).requires_grad for p in model.parameters())
    assert not info.row_weights.requires_grad


def test_graph_is_freed() -> None:
    model, inputs = problem()
    losses = model(*inputs)
    gdod.backward(losses)
    before = grads(model)
    with pytest.raises((RuntimeError, gdod.InputError)):
        gdod.backward(losses)
    assert all(torch.equal(grad, before[name]) for name, grad in grads(model).items())


@pytest.mark.parametrize("task", range(3))
def test_graph_of_every_task_is_freed(task: int) -> None:
    """Down to its head: nothing that the graph saved is still there."""
    model, inputs = problem()
    losses = model(*inputs)
    gdod.backward(losses)
    with pytest.raises(RuntimeError):
        torch.autograd.grad(losses[task].sum(), tensor(model.heads[task].weight))


def test_retain_graph() -> None:
    model, inputs = problem()
    losses = model(*inputs)
    gdod.backward(losses, retain_graph=True)
    once = grads(model)
    gdod.backward(losses, retain_graph=True)
    for name, grad in grads(model).items():
        torch.testing.assert_close(grad, 2 * once[name], msg=name)
    losses[0].sum().backward()


@pytest.mark.parametrize("name", ["trunk.0.weight", "trunk.2.bias", "heads.1.weight"])
def test_tensor_hooks(name: str) -> None:
    """A hook on a parameter sees the gradient once, and what it returns is what is accumulated."""
    model, inputs = problem()
    gdod.backward(model(*inputs))
    plain = grads(model)
    model.zero_grad()
    seen = []

    def hook(grad: Tensor) -> Tensor:
        seen.append(grad.clone())
        return 2 * grad

    model.get_parameter(name).register_hook(hook)
    gdod.backward(model(*inputs))
    assert len(seen) == 1
    torch.testing.assert_close(seen[0], plain[name])
    for other, grad in grads(model).items():
        torch.testing.assert_close(grad, (2 if other == name else 1) * plain[other])


@pytest.mark.parametrize("name", ["trunk.0.weight", "trunk.2.bias", "heads.1.weight"])
def test_post_accumulate_hooks(name: str) -> None:
    model, inputs = problem()
    gdod.backward(model(*inputs))
    plain = grads(model)
    model.zero_grad()
    seen = []
    model.get_parameter(name).register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
    for calls in [1, 2]:
        gdod.backward(model(*inputs))
        assert len(seen) == calls
        torch.testing.assert_close(seen[-1], calls * plain[name])


def test_optimizer_in_backward() -> None:
    """The use of post-accumulate hooks: step and free each gradient as soon as it is there."""
    model, inputs = problem()
    twin = copy.deepcopy(model)
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
    gdod.backward(twin(*inputs))
    optimizer.step()
    optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}

    def step(parameter: nn.Parameter) -> None:
        optimizers[parameter].step()
        parameter.grad = None

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    gdod.backward(model(*inputs))
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        assert ours.grad is None
        torch.testing.assert_close(ours, theirs)


# --- optimizers ----------------------------------------------------------------------------------


def train(model: nn.Module, inputs: list[Tensor], make: Callable[[Any], torch.optim.Optimizer]) -> None:
    """Three steps on a model and on a twin that is given the reference's gradients."""
    twin = copy.deepcopy(model)
    optimizer, follower = make(model.parameters()), make(twin.parameters())
    sparse = {n for n, m in model.named_modules() if getattr(m, "sparse", False)}
    for _ in range(3):
        target = expected(twin, twin(*inputs), groups=4)
        for name, grad in (target.shared | target.private).items():
            is_sparse = name.rpartition(".")[0] in sparse
            twin.get_parameter(name).grad = grad.to_sparse(1) if is_sparse else grad
        follower.step()
        optimizer.zero_grad()
        gdod.backward(model(*inputs), gdod.GDOD(groups=4))
        optimizer.step()
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda p: torch.optim.SGD(p, lr=0.1), id="SGD"),
        pytest.param(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), id="momentum"),
        pytest.param(lambda p: torch.optim.Adam(p, lr=0.01), id="Adam"),
        pytest.param(lambda p: torch.optim.AdamW(p, lr=0.01), id="AdamW"),
    ],
)
def test_optimizers(make: Callable[[Any], torch.optim.Optimizer]) -> None:
    model, inputs = problem()
    train(model, inputs, make)


class SparseTables(nn.Module):
    """Nothing but sparse tables, one of them private: what SparseAdam takes."""

    def __init__(self) -> None:
        super().__init__()
        self.users = nn.Embedding(12, 4, sparse=True)
        self.items = nn.EmbeddingBag(9, 4, sparse=True, mode="sum")
        self.extra = nn.Embedding(5, 1, sparse=True)

    def forward(self, users: Tensor, items: Tensor, extra: Tensor) -> list[Tensor]:
        score = self.users(users) * self.items(items)
        first = (score.sum(1) - 1) ** 2
        return [first, (score[:, 0] + self.extra(extra)[:, 0] + 1) ** 2]


@pytest.mark.parametrize("optimizer", [torch.optim.SparseAdam, torch.optim.SGD])
def test_optimizers_on_sparse_tables(optimizer: type[torch.optim.SparseAdam] | type[torch.optim.SGD]) -> None:
    torch.manual_seed(0)
    model = SparseTables().double()
    inputs = [torch.randint(12, (10,)), torch.randint(9, (10, 3)), torch.randint(5, (10,))]
    train(model, inputs, lambda parameters: optimizer(parameters, lr=0.01))
    assert all(grad_of(p).is_sparse for p in model.parameters())


def test_sparse_gradients_accumulate() -> None:
    torch.manual_seed(0)
    model = SparseTables().double()
    inputs = [torch.randint(12, (10,)), torch.randint(9, (10, 3)), torch.randint(5, (10,))]
    gdod.backward(model(*inputs))
    once = grads(model)
    gdod.backward(model(*inputs))
    for name, grad in grads(model).items():
        torch.testing.assert_close(grad, 2 * once[name])


# --- a model that changes between steps ----------------------------------------------------------


class Normed(MLP):
    def __init__(self, tasks: int) -> None:
        super().__init__(tasks)
        self.trunk.insert(1, nn.BatchNorm1d(7))


def test_mixing_is_found_when_batch_norm_starts_training() -> None:
    torch.manual_seed(0)
    model = Normed(2).double()
    x, targets = torch.randn(10, 5).double(), torch.randn(10, 2).double()
    model.eval()
    check(model, [x, targets])  # a warning would be an error
    for batch in [10, 8]:
        model.train().zero_grad()
        with pytest.warns(gdod.MixingWarning) if batch == 10 else may_warn():
            check(model, [x[:batch], targets[:batch]])
    model.eval().zero_grad()
    check(model, [x, targets])


def test_mixing_is_found_when_the_batch_grows() -> None:
    """The last, smaller batch of an epoch may take another way through the model."""
    model, (x, targets) = problem(2, batch=12)

    def losses(model: MLP, x: Tensor, targets: Tensor) -> list[Tensor]:
        shared = model.trunk(x)
        if len(x) > 8:
            shared = shared - shared.mean(0)
        return [(h(shared)[:, 0] - targets[:, i]) ** 2 for i, h in enumerate(model.heads)]

    check(model, [x[:8], targets[:8]], losses=losses)
    model.zero_grad()
    with pytest.warns(gdod.MixingWarning):
        check(model, [x, targets], losses=losses)


def neighbours(shared: Tensor, on: bool) -> Tensor:
    weights = torch.full((10, 10), 0.1) if on else torch.eye(10)
    return weights.to(shared) @ shared


def shuffled(shared: Tensor, on: bool) -> Tensor:
    return shared[torch.arange(10).roll(int(on))]


def gated(shared: Tensor, on: bool) -> Tensor:
    """As with a loss on in-batch negatives whose weight is zero while the model warms up."""
    return shared - float(on) * shared.mean(0)


@pytest.mark.parametrize("mix", [neighbours, shuffled, gated])
def test_mixing_is_found_when_only_values_change(mix: Callable[[Tensor, bool], Tensor]) -> None:
    """The same graph may keep examples apart for many steps, and mix them at the next."""
    model, inputs = problem(2)

    def losses(model: MLP, x: Tensor, targets: Tensor, on: Tensor) -> list[Tensor]:
        shared = mix(model.trunk(x), bool(on))
        return [(h(shared)[:, 0] - targets[:, i]) ** 2 for i, h in enumerate(model.heads)]

    with may_warn():
        for on in [False] * 5 + [True] * 2:
            model.zero_grad()
            check(model, [*inputs, torch.tensor(on)], losses=losses)


def test_examples_may_change_places_between_steps() -> None:
    model, inputs = problem(2)

    def losses(model: MLP, x: Tensor, targets: Tensor, order: Tensor) -> list[Tensor]:
        shared = model.trunk(x)[order]
        return [(h(shared)[:, 0] - targets[:, i]) ** 2 for i, h in enumerate(model.heads)]

    with may_warn():
        for order in [
            torch.arange(10),
            torch.arange(10).flip(0),
            torch.zeros(10, dtype=torch.long),
        ]:
            model.zero_grad()
            check(model, [*inputs, order], losses=losses)


# --- what info says ------------------------------------------------------------------------------


def test_info(dtype: torch.dtype) -> None:
    model, inputs = problem(dtype=dtype)
    target = expected(model, model(*inputs), groups=4)
    info = gdod.backward(named(model(*inputs)), gdod.GDOD(groups=4))
    g = target.algorithm.gradients
    kept = target.algorithm.factors * target.algorithm.projections  # [r, K]
    near: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-6} if dtype == torch.float32 else {"rtol": 1e-9, "atol": 1e-12}

    losses = torch.stack([loss.detach().mean() for loss in model(*inputs)]).double()
    torch.testing.assert_close(info.losses, losses, **near)
    torch.testing.assert_close(info.norms, g.norm(dim=1), **near)
    torch.testing.assert_close(info.cosines, g @ g.T / torch.outer(g.norm(dim=1), g.norm(dim=1)), **near)
    assert info.rank == len(target.algorithm.basis)
    assert info.directions_kept == pytest.approx(float(target.algorithm.factors[:, 0].mean()))
    assert info.energy_kept == pytest.approx(float(kept.square().sum() / g.square().sum()), rel=1e-3)
    update = torch.einsum("nk,nkd->d", info.row_weights, target.rows)
    bound = FLOAT32[0] * target.algorithm.update.norm()
    assert (update - target.algorithm.update).norm() <= bound


# --- frozen values -------------------------------------------------------------------------------

# M = U diag(21, 14, 7) with U = [[2, 3, 6], [3, -6, 2], [6, 2, -3]] / 7, which is orthogonal: the
# basis is the axes, and the projections of the three tasks on them are the columns of M.
# axis 0: (+, +, +) kept by all; axis 1: (+, -, +), sum < 0, so the product of the oriented signs
# (-, +, -) is positive; axis 2: (+, +, -), sum > 0, product negative.
M = [[6.0, 6.0, 6.0], [9.0, -12.0, 2.0], [18.0, 4.0, -3.0]]
FROZEN = {
    "sign": [33.0, 0.0, 0.0],
    "product": [33.0, -2.0, 0.0],
    "weighted": [33.0, 10 / 3, 8 / 3],  # (6 + 4) / 3 and (6 + 2) / 3
}


@RULES
def test_frozen_values(rule: str) -> None:
    want = torch.tensor(FROZEN[rule], dtype=torch.float64)
    rows = torch.tensor([M], dtype=torch.float64)  # one group
    torch.testing.assert_close(algorithm1(rows, rule=rule).update, want)
    torch.testing.assert_close(method(rule, 1).from_rows(rows), want)
    weights = method(rule, 1).from_gram(rows[0] @ rows[0].T, tasks=3)
    torch.testing.assert_close(rows[0].T @ weights.rows, want)


@RULES
@pytest.mark.parametrize("copies", [1, 5])
def test_frozen_values_through_backward(rule: str, copies: int) -> None:
    """Linear losses, whose gradients are the rows of M whatever the parameter is."""
    theta = nn.Parameter(torch.randn(3, dtype=torch.float64))
    x = torch.tensor([M], dtype=torch.float64).expand(copies, 3, 3)  # [B, K, D]
    gdod.backward((x * theta).sum(2), method(rule, 2))
    torch.testing.assert_close(theta.grad, torch.tensor(FROZEN[rule], dtype=torch.float64))
