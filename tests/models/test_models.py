"""What every model promises, in every form."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.models.cases import CHAINS, FORMS, SCHEMA, SMALL, TASKS, batch_of, build, losses_of, tasks_of, total
from torch import nn
from torch.autograd.graph import Node

import gdod
from gdod.models import (
    MODELS,
    Categorical,
    MMoE,
    MMoEConfig,
    Model,
    Numeric,
    Schema,
    SNRConfig,
    Task,
)
from gdod.models import build as build_model

PAPER = Schema([Categorical(f"c{n}", 20) for n in range(28)], [Numeric(f"n{n}") for n in range(8)])


def ids(parameters: object) -> set[int]:
    return {id(parameter) for parameter in parameters}  # type: ignore[attr-defined]


def reached(roots: list[Node | None]) -> set[int]:
    """Return the ids of the leaves of the graph, whether the model has registered them or not."""
    leaves, seen = set(), set(roots)
    stack = [node for node in roots if node is not None]
    while stack:
        node = stack.pop()
        if hasattr(node, "variable"):
            leaves.add(id(node.variable))
        for child, _ in node.next_functions:
            if child is not None and child not in seen:
                seen.add(child)
                stack.append(child)
    return leaves


def test_every_model_is_tested() -> None:
    assert set(SMALL) == set(MODELS)
    assert {name for name, _ in SMALL.values()} == set(MODELS)


@pytest.mark.parametrize("form", FORMS)
def test_one_logit_a_task(form: str) -> None:
    logits = build(form)(batch_of(7))
    shapes = {task.name: (7, 3) if task.classes else (7,) for task in tasks_of(form)}
    assert list(logits) == list(shapes)
    assert {name: tuple(logit.shape) for name, logit in logits.items()} == shapes


@pytest.mark.parametrize("form", FORMS)
def test_every_parameter_gets_a_gradient(form: str) -> None:
    model = build(form)
    losses = losses_of(model, 64)
    assert reached([loss.grad_fn for loss in losses.losses.values()]) == ids(model.parameters())
    total(losses).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert bool(parameter.grad.any()), name


@pytest.mark.parametrize("count", [4, 2], ids=["all tasks", "2 tasks"])
@pytest.mark.parametrize("form", FORMS)
def test_shared_parameters_are_those_that_backward_finds_and_all_are_fast(form: str, count: int) -> None:
    tasks = tasks_of(form)[:count]
    model = build(form, tasks)
    losses, mask = losses_of(model)
    info = gdod.backward(losses, mask=mask)
    assert ids(info.shared) == ids(model.shared_parameters())
    assert info.slow == ()
    assert info.passes <= len(tasks)


@pytest.mark.parametrize("form", FORMS)
def test_task_parameters_are_those_that_only_its_loss_reaches(form: str) -> None:
    model = build(form)
    losses = losses_of(model).losses
    by_task = {name: reached([loss.grad_fn]) for name, loss in losses.items()}
    for task in model.tasks:
        others = set().union(*(by_task[name] for name in by_task if name != task.name))
        assert ids(model.task_parameters(task.name)) == by_task[task.name] - others


# With as many examples as experts, units or fields, and with few: where examples lie must not be
# mixed up with where experts lie.
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 6, 8, 24, 32])
@pytest.mark.parametrize("name", MODELS)
def test_the_fast_path_does_not_depend_on_the_batch_size(name: str, size: int) -> None:
    model = build(name)
    losses, mask = losses_of(model, size)
    assert gdod.backward(losses, gdod.GDOD(groups=4), mask=mask).slow == ()


@pytest.mark.parametrize("tasks", [2, 6])
@pytest.mark.parametrize("name", MODELS)
def test_the_fast_path_at_the_papers_sizes(name: str, tasks: int) -> None:
    model = build_model(name, PAPER, [Task(f"t{n}") for n in range(tasks)])
    columns = {f"c{n}": torch.randint(0, 21, (256,)) for n in range(28)}
    columns |= {f"n{n}": torch.randn(256) for n in range(8)}
    logits = model(PAPER.batch(columns))
    # A sensible start: outputs near zero, not the same for all.
    assert all(0.01 < float(logit.detach().std()) < 2 for logit in logits.values())
    added = model.example_penalties(logits)
    info = gdod.backward({name: logit**2 + added.get(name, 0) for name, logit in logits.items()})
    assert info.slow == ()
    assert ids(info.shared) == ids(model.shared_parameters())


@pytest.mark.parametrize("form", [form for form in FORMS if form not in CHAINS])
def test_one_task_alone(form: str) -> None:
    model = build(form, TASKS[:1])
    assert list(model(batch_of(3))) == ["click"]
    info = gdod.backward(losses_of(model).losses)
    assert info.slow == ()


@pytest.mark.parametrize("form", FORMS)
def test_saving_and_loading_gives_the_same_outputs(form: str, tmp_path: Path) -> None:
    model, other = build(form, seed=1).eval(), build(form, seed=2).eval()
    batch = batch_of(9)
    before = {name: logit.detach() for name, logit in model(batch).items()}
    assert not torch.equal(before["click"], other(batch)["click"])
    torch.save(model.state_dict(), tmp_path / "model.pt")
    other.load_state_dict(torch.load(tmp_path / "model.pt", weights_only=True))
    for name, logit in other(batch).items():
        assert torch.equal(logit, before[name])


@pytest.mark.parametrize("form", FORMS)
def test_the_seed_decides_the_weights(form: str) -> None:
    torch.manual_seed(5)
    state = torch.get_rng_state()
    first, again, other = build(form, seed=3), build(form, seed=3), build(form, seed=4)
    assert torch.equal(torch.get_rng_state(), state)
    for one, same in zip(first.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, same)
    assert not torch.equal(first(batch_of(5))["click"], other(batch_of(5))["click"])


@pytest.mark.parametrize("name", MODELS)
def test_dropout_acts_in_training_alone(name: str) -> None:
    model, batch = build(name, dropout=0.5), batch_of(16)
    if name == "snr":  # is random in training anyway: see that the layers are there
        assert any(isinstance(module, nn.Dropout) for module in model.modules())
    else:
        assert not torch.equal(model(batch)["click"], model(batch)["click"])
    model.eval()
    assert torch.equal(model(batch)["click"], model(batch)["click"])


@pytest.mark.parametrize("name", MODELS)
def test_tables_with_sparse_gradients(name: str) -> None:
    """The same gradients, in another layout."""
    dense, sparse = build(name).eval(), build(name, sparse=True).eval()
    for model in (dense, sparse):
        losses, mask = losses_of(model)
        assert gdod.backward(losses, mask=mask).slow == ()
    layouts = set()
    for one, other in zip(dense.parameters(), sparse.parameters(), strict=True):
        assert one.grad is not None
        assert other.grad is not None
        layouts.add(other.grad.layout)
        torch.testing.assert_close(other.grad.to_dense(), one.grad, rtol=1e-4, atol=1e-6)
    assert torch.sparse_coo in layouts


def test_models_can_be_made_from_a_config() -> None:
    assert MMoE(SCHEMA, TASKS, MMoEConfig(experts=3)).experts.count == 3
    assert MMoE(SCHEMA, TASKS).config == MMoEConfig()
    with pytest.raises(gdod.InputError, match="expected a MMoEConfig"):
        MMoE(SCHEMA, TASKS, SNRConfig())  # type: ignore[arg-type]


def test_layer_sizes_may_come_as_lists() -> None:
    assert build("shared-bottom", bottom=[5, 4]).config == build("shared-bottom", bottom=(5, 4)).config


@pytest.mark.parametrize(
    ("name", "options", "text"),
    [
        ("mmeo", {}, "'single-task', 'shared-bottom', 'cross-stitch', 'mmoe', 'snr', 'ple', 'stem', 'esmm', 'aitm'"),
        ("mmeo", {}, "did you mean 'mmoe'?"),
        ("mmoe", {"expert_count": 3}, "option='expert_count' is unknown"),
        ("mmoe", {"expert_count": 3}, "'experts'"),
        ("mmoe", {"experts": 0}, "experts=0"),
        ("mmoe", {"expert": ()}, "at least 1 layer"),
        ("mmoe", {"expert": 32}, "expert=32; expected sizes of layers"),
        ("mmoe", {"expert": (32, -1)}, "a layer of expert=-1"),
        ("mmoe", {"embedding": 2.5}, "embedding=2.5"),
        ("mmoe", {"activation": "rleu"}, "did you mean 'relu'?"),
        ("mmoe", {"dropout": 1.0}, "dropout=1.0"),
        ("mmoe", {"id_dropout": 1.0}, "id_dropout=1.0"),
        ("mmoe", {"ensemble": 0}, "ensemble=0"),
        ("mmoe", {"cross": -1}, "cross=-1"),
        ("mmoe", {"cross_rank": 0}, "cross_rank=0"),
        ("mmoe", {"fm": 1}, "fm=1; expected true or false"),
        ("stem", {"shared_experts": 0}, "shared_experts=0"),
        ("stem", {"expert": ()}, "at least 1 layer"),
        ("aitm", {"tower": ()}, "at least 1 layer"),
        ("aitm", {"calibrator": -1}, "calibrator=-1"),
        ("esmm", {"chain": "click"}, "chain='click'; expected the names of tasks"),
        ("esmm", {"chain": ["click", "byu"]}, "a task of chain='byu' is unknown"),
        ("esmm", {"chain": ["click", "click"]}, "names 'click' more than once"),
        ("esmm", {"chain": ["click"]}, "the chain has one task, 'click'; expected at least two"),
        ("esmm", {}, "task 'stay' of the chain click, stay, kind is of kind regression"),
        ("aitm", {"chain": ["click", "kind"]}, "is of kind multiclass, and steps of a chain are binary"),
        ("cross-stitch", {"tower": ()}, "tower=()"),
        ("cross-stitch", {"own": 0.0}, "own=0.0"),
        ("ple", {"experts": 3}, "use at least 4 experts"),
        ("ple", {"levels": 0}, "levels=0"),
        ("snr", {"open": 1.0}, "open=1.0"),
        ("snr", {"low": 0.1}, "low=0.1"),
        ("snr", {"temperature": 0.0}, "temperature=0.0"),
        ("snr", {"l0": -1.0}, "l0=-1.0"),
        ("snr", {"sampling": "step"}, "'batch', 'example'"),
    ],
)
def test_refusals(name: str, options: dict[str, Any], text: str) -> None:
    with pytest.raises(gdod.InputError) as refused:
        build_model(name, SCHEMA, TASKS, **options)
    assert text in str(refused.value)


def test_parameters_of_an_unknown_task_are_refused() -> None:
    model: Model = build("mmoe")
    with pytest.raises(gdod.InputError, match="'click', 'stay', 'kind'"):
        model.task_parameters("buy")
