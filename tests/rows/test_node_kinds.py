"""One table of node kinds: each has one entry, and no other file knows the name of one."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import gdod
from gdod import rows
from gdod.rows import node_kinds
from gdod.rows.node_kinds import ENTRIES, KINDS, is_view, kind_of, refusal_of, stacked_rule, use_of

FOLDER = Path(rows.__file__).parent
OF_NO_OPERATION = {"CheckpointFunctionBackward"}  # made by a function in Python


def test_every_kind_has_one_entry() -> None:
    names = [name for names in ENTRIES for name in names.split()]
    assert len(names) == len(set(names)) == len(KINDS)


def test_every_kind_is_one_of_torch() -> None:
    """A name that is misspelt would only be slow, and nobody would notice."""
    assert set(KINDS) - set(dir(torch._C._functions)) == OF_NO_OPERATION


@pytest.mark.parametrize("path", sorted(FOLDER.rglob("*.py")), ids=lambda path: str(path.relative_to(FOLDER)))
def test_no_other_file_spells_a_kind(path: Path) -> None:
    spelt = re.findall(r"\w+Backward\d\w*", path.read_text(encoding="utf-8"))
    assert bool(spelt) == (path == Path(node_kinds.__file__)), spelt


class Tanh(torch.autograd.Function):
    """A user's function with the name of an operation of torch, which mixes examples."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.cumsum(0)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0].flip(0).cumsum(0).flip(0)


def test_nothing_is_known_of_functions_of_a_user() -> None:
    node = Tanh.apply(torch.ones(3, 2, requires_grad=True)).grad_fn  # type: ignore[no-untyped-call]
    assert kind_of(node).separates is None
    assert stacked_rule(node, 0) is None
    assert not is_view(node)
    assert use_of(node, 0) == "no rule for input 0 of TanhBackward"


def test_an_expand_is_a_view_where_it_repeats_nothing() -> None:
    x = torch.ones(3, 1, requires_grad=True)
    assert is_view(node_of(x.expand(1, 3, 1)))
    assert not is_view(node_of(x.expand(3, 2)))


@pytest.mark.parametrize(
    ("view", "transposes"),
    [
        (lambda x: x.t(), True),
        (lambda x: x.mT, True),
        (lambda x: x.transpose(1, 0), True),
        (lambda x: x.transpose(-1, 1), False),
        (lambda x: x.permute(-1, 0), True),
        (lambda x: x.permute(0, 1), False),
        (lambda x: x.view(2, 3), False),
    ],
)
def test_what_swaps_the_dimensions_of_a_matrix(view: Any, transposes: bool) -> None:
    node = node_of(view(torch.ones(3, 2, requires_grad=True)))
    assert kind_of(node).transposes(node) is transposes


def node_of(x: Tensor) -> torch.autograd.graph.Node:
    assert x.grad_fn is not None
    return x.grad_fn


def named(name: str) -> Any:
    """Return what a node of a function in C++ looks like: all are of one class."""
    return type("CppFunction", (), {"name": lambda self: f"torch::autograd::CppNode<{name}>"})()


@pytest.mark.parametrize(
    ("name", "fused"),
    [
        ("SplitLookupFunction_sgd_Op_pt2", True),
        ("SplitNoBagLookupFunction_rowwise_adagrad_Op", True),
        ("(anonymous namespace)::SplitLookupFunction_Dense_Op", False),
        ("SomethingElse", False),
    ],
)
def test_tables_that_train_in_the_backward_pass_are_refused(name: str, fused: bool) -> None:
    """A method makes one pass for each task, and each would change the weights."""
    refusal = refusal_of(named(name))
    assert (refusal is not None) == fused
    assert refusal is None or "fused optimizer" in refusal


def test_tables_of_fbgemm() -> None:
    """With the real library, where it is installed."""
    pytest.importorskip("fbgemm_gpu", reason="fbgemm-gpu-cpu is not installed; docs/distributed.md says which fits")
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
        ComputeDevice,
        EmbeddingLocation,
        SplitTableBatchedEmbeddingBagsCodegen,
    )

    place = (20, 4, EmbeddingLocation.HOST, ComputeDevice.CPU)
    tables = SplitTableBatchedEmbeddingBagsCodegen([place], optimizer=EmbOptimType.EXACT_SGD)
    before = tables.weights_host.detach().clone()
    losses = torch.nn.Linear(4, 2)(tables(torch.arange(12), torch.arange(13))) ** 2
    with pytest.raises(gdod.InputError, match="fused optimizer"):
        gdod.backward(losses, gdod.GDOD(groups=4))
    assert torch.equal(tables.weights_host, before)
