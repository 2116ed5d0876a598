"""The shared part of the graph, taken down for all tasks at once: the same as autograd, or left to it."""

from collections.abc import Callable

import pytest
import torch
from tests import reference
from torch import Tensor, nn
from torch.nn import functional as F

import gdod
from gdod.rows import stacked
from gdod.rows.node_kinds import KINDS, stacked_rule
from gdod.rows.views import output_shape

TASKS = 3
X = (4, 3)
Make = Callable[[Tensor, Tensor, Tensor], Tensor]

# From x [4, 3], square s [4, 4] and stack e [2, 4, 3]: one node of each kind that has a rule, in each form.
NODES: dict[str, Make] = {
    "add": lambda x, s, e: x + 2 * x[:1],
    "add with factor": lambda x, s, e: torch.add(x, x[:, :1], alpha=3),
    "add a vector": lambda x, s, e: e + x[0],
    "addmm": lambda x, s, e: torch.addmm(x[0], s, x),
    "addmm with factors": lambda x, s, e: torch.addmm(x, s, x, beta=2, alpha=3),
    "baddbmm": lambda x, s, e: torch.baddbmm(s[0], e, e.mT, beta=0.5, alpha=2),
    "bmm": lambda x, s, e: torch.bmm(e, e.mT),
    "cat": lambda x, s, e: torch.cat([x, s, x], 1),
    "cat after a constant": lambda x, s, e: torch.cat([torch.ones(4, 2).to(x), x, s], -1),
    "cat before a constant": lambda x, s, e: torch.cat([x, s, torch.ones(4, 2).to(x)], 1),
    "clamp": lambda x, s, e: x.clamp(-0.5, 0.5),
    "clamp from below": lambda x, s, e: x.clamp(min=0.1),
    "clamp from above": lambda x, s, e: x.clamp(max=0.1),
    "clone": lambda x, s, e: x.clone(),
    "div": lambda x, s, e: x / (s[:, :3] + 5),
    "div, broadcast": lambda x, s, e: e / (x[0] + 5),
    "div by a number": lambda x, s, e: x / 3,
    "expand": lambda x, s, e: x.unsqueeze(1).expand(4, 5, 3),
    "expand with a new dimension": lambda x, s, e: x.expand(6, 4, 3),
    "mean": lambda x, s, e: e.mean((0, -1)),
    "mean, kept": lambda x, s, e: e.mean(1, keepdim=True),
    "mm": lambda x, s, e: s @ x,
    "mul": lambda x, s, e: x * s[:, :3],
    "mul, broadcast": lambda x, s, e: e * x,
    "mul by a number": lambda x, s, e: x * 3.0,
    "permute": lambda x, s, e: e.permute(2, 0, 1),
    "prelu": lambda x, s, e: F.prelu(x, s[0, :3]),
    "prelu, one slope": lambda x, s, e: F.prelu(e, s[0, :1]),
    "relu": lambda x, s, e: torch.relu(x),
    "sigmoid": lambda x, s, e: torch.sigmoid(x),
    "silu": lambda x, s, e: F.silu(x),
    "softmax": lambda x, s, e: e.softmax(1),
    "squeeze": lambda x, s, e: x.unsqueeze(1).squeeze(),
    "squeeze a dimension": lambda x, s, e: x.unsqueeze(1).squeeze(1),
    "squeeze dimensions": lambda x, s, e: x[None, :, None].squeeze((0, 2)),
    "squeeze in place": lambda x, s, e: x.unsqueeze(1).clone().squeeze_(),
    "squeeze a dimension in place": lambda x, s, e: x.unsqueeze(1).clone().squeeze_(1),
    "squeeze dimensions in place": lambda x, s, e: x[None, :, None].clone().squeeze_((0, 2)),
    "sub": lambda x, s, e: torch.sub(x, s[:, :3], alpha=2),
    "sub, broadcast": lambda x, s, e: e - x,
    "sum": lambda x, s, e: e.sum(-1),
    "sum, kept": lambda x, s, e: e.sum((0, 2), keepdim=True),
    "t": lambda x, s, e: x.t(),
    "t in place": lambda x, s, e: x.clone().t_(),
    "tanh": lambda x, s, e: torch.tanh(x),
    "transpose": lambda x, s, e: e.transpose(0, -1),
    "transpose in place": lambda x, s, e: e.clone().transpose_(0, -1),
    "unsqueeze": lambda x, s, e: x.unsqueeze(-1),
    "unsqueeze in place": lambda x, s, e: x.clone().unsqueeze_(-1),
    "view": lambda x, s, e: e.view(8, 3),
    "reshape alias": lambda x, s, e: torch.ops.aten._reshape_alias(e, [8, 3], [3, 1]),
    "unsafe view": lambda x, s, e: torch.ops.aten._unsafe_view(e, [2, 12]),
}


def inputs() -> tuple[Tensor, Tensor, Tensor]:
    shapes = (X, (4, 4), (2, 4, 3))
    return tuple(torch.randn(shape, dtype=torch.float64, requires_grad=True) * 1 for shape in shapes)  # type: ignore[return-value]


@pytest.mark.parametrize("name", NODES)
def test_a_rule_gives_what_autograd_gives(name: str) -> None:
    y = NODES[name](*inputs())
    node = y.grad_fn
    assert node is not None
    cotangents = torch.randn(TASKS, *y.shape, dtype=y.dtype)
    results = [node(cotangent) for cotangent in cotangents]  # type: ignore[operator]
    expected = [result if isinstance(result, tuple) else (result,) for result in results]
    checked = 0
    for slot, (child, output) in enumerate(node.next_functions):
        if child is None:
            continue
        rule = stacked_rule(node, slot)
        assert rule is not None
        shape = output_shape(child, output)
        stacked_grads = rule(node, slot, shape)(cotangents)
        # It is autograd that undoes broadcasting, not the node.
        torch.testing.assert_close(stacked_grads, torch.stack([grads[slot].sum_to_size(shape) for grads in expected]))
        checked += 1
    assert checked


def test_every_rule_is_checked() -> None:
    kinds = {type(make(*inputs()).grad_fn).__name__ for make in NODES.values()}
    assert {name for name, kind in KINDS.items() if kind.stacked is not None} <= kinds


@pytest.mark.parametrize("make", [lambda x, e: F.gelu(x), lambda x, e: torch.maximum(x, e)], ids=["gelu", "maximum"])
def test_a_node_without_a_rule_is_called(make: Callable[[Tensor, Tensor], Tensor]) -> None:
    x, _, e = inputs()
    y = make(x, e)
    assert y.grad_fn is not None
    assert stacked_rule(y.grad_fn, 0) is None
    cotangents = torch.randn(TASKS, *y.shape, dtype=y.dtype)
    expected = torch.stack([torch.autograd.grad(y, x, d, retain_graph=True)[0] for d in cotangents])
    torch.testing.assert_close(stacked.call(y.grad_fn, [cotangents])[0], expected)


class Net(nn.Module):
    def __init__(self, activation: nn.Module, tasks: int = TASKS) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, 6), nn.Linear(6, 4)
        self.activation = activation
        self.heads = nn.ModuleList(nn.Linear(4, 1) for _ in range(tasks))
        self.hook: Callable[[Tensor], Tensor] | None = None

    def forward(self, x: Tensor) -> list[Tensor]:
        hidden = self.activation(self.first(x))
        if self.hook is not None:
            hidden.register_hook(self.hook)
        features = self.activation(self.second(hidden))
        return [head(features).squeeze(1).square() for head in self.heads]


def summed(net: Net, x: Tensor) -> dict[str, Tensor]:
    net.zero_grad()
    torch.stack(net(x)).mean(1).sum().backward()
    return {name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None}


def through_rows(net: Net, x: Tensor) -> tuple[dict[str, Tensor], gdod.Info]:
    """The plain sum, made of rows: what autograd gives in one pass."""
    net.zero_grad()
    info = gdod.backward(net(x), gdod.Sum(), diagnose=True)
    return {name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None}, info


@pytest.mark.parametrize("activation", [nn.ReLU(), nn.GELU(), nn.Softmax(1)], ids=lambda a: type(a).__name__)
def test_one_pass_serves_all_tasks(activation: nn.Module) -> None:
    net, x = Net(activation).double(), torch.randn(8, 5, dtype=torch.float64)
    for _ in range(4):  # the first, second and fourth step are compared with autograd's own passes
        grads, info = through_rows(net, x)
        assert info.passes == 1
        torch.testing.assert_close(grads, summed(net, x))


def test_a_hook_on_a_shared_activation_counts() -> None:
    """Only autograd knows of it: the trunk is given up where the two disagree."""
    net, x = Net(nn.ReLU()).double(), torch.randn(8, 5, dtype=torch.float64)
    net.hook = lambda grad: -grad  # gradient reversal
    expected = summed(net, x)
    for _ in range(5):
        grads, info = through_rows(net, x)
        assert info.passes == TASKS
        torch.testing.assert_close(grads, expected)


def test_the_tasks_graph_is_freed() -> None:
    net, x = Net(nn.ReLU()), torch.randn(8, 5)
    for _ in range(3):
        losses = net(x)
        gdod.backward(losses)
    with pytest.raises(RuntimeError, match="second time"):
        losses[0].sum().backward()


def test_a_task_that_enters_the_trunk_at_two_depths() -> None:
    """The cotangent further down has parts from the task's own layers and from the trunk above."""

    class Skip(Net):
        def forward(self, x: Tensor) -> list[Tensor]:
            hidden = torch.relu(self.first(x))
            features = self.second(hidden)
            losses = [head(features).squeeze(1).square() for head in self.heads]
            losses[1] = losses[1] + hidden[:, 0] * 0.5
            return losses

    net, x = Skip(nn.ReLU()).double(), torch.randn(8, 5, dtype=torch.float64)
    for _ in range(3):
        grads, _ = through_rows(net, x)
        torch.testing.assert_close(grads, summed(net, x))


def test_a_split_in_the_trunk() -> None:
    """A node with several outputs, of which tasks use different ones."""

    class Halves(Net):
        def forward(self, x: Tensor) -> list[Tensor]:
            left, right = torch.relu(self.first(x)).split([2, 4], 1)
            features = self.second(torch.cat([right, left], 1))
            return [(head(features).squeeze(1) * right[:, 0]).square() for head in self.heads]

    net, x = Halves(nn.ReLU()).double(), torch.randn(8, 5, dtype=torch.float64)
    for _ in range(3):
        grads, _ = through_rows(net, x)
        torch.testing.assert_close(grads, summed(net, x))


def test_large_layers_in_memory_that_is_kept(dtype: torch.dtype) -> None:
    """Cotangents of more numbers than `stacked` leaves to the framework, step after step: none is in another's way."""
    body = nn.Sequential(nn.Linear(6, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 5))
    model = nn.ModuleDict({"body": body, "one": nn.Linear(5, 1), "two": nn.Linear(5, 1)}).to(dtype)
    assert stacked._LARGE < 2 * 480 * 70

    def losses(model: nn.ModuleDict, x: Tensor) -> list[Tensor]:
        features = model["body"](x)
        return [model[name](features).squeeze(1).square() for name in ("one", "two")]

    before: list[tuple[Tensor, Tensor]] = []
    for step in range(4):
        model.zero_grad()
        info = reference.check(model, [torch.randn(480, 6, dtype=dtype)], losses=losses)
        assert info.passes == 1 or step == 0
        assert all(torch.equal(grad, copy) for grad, copy in before)
        before += [(p.grad, p.grad.clone()) for p in model.parameters() if p.grad is not None]


def test_steps_that_are_examined_round_as_the_others_do() -> None:
    """Or a run that is resumed, and examined anew, would not go on bit for bit."""
    torch.manual_seed(0)
    table, bottom = nn.Embedding(40, 32), nn.Sequential(nn.Linear(32, 256), nn.SiLU(), nn.Linear(256, 128), nn.SiLU())
    heads = nn.ModuleList([nn.Linear(128, 1), nn.Linear(128, 1)])
    ids, labels = torch.randint(40, (128,)), torch.rand(2, 128)
    found = []
    for _ in range(5):
        h = bottom(table(ids))
        losses = [(head(h).squeeze(1) - label) ** 2 for head, label in zip(heads, labels, strict=True)]
        table.zero_grad()
        gdod.backward(losses, gdod.GDOD(groups=4))
        found.append(table.weight.grad.clone())  # type: ignore[union-attr]
    assert all(torch.equal(one, found[0]) for one in found)
