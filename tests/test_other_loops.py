"""The examples for other people's loops, as users start them: as scripts, in one process and in two."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce
from torch.utils.data import DistributedSampler, TensorDataset

import gdod

LOOPS = Path(__file__).parent.parent / "examples" / "loops"
BIN = Path(sys.executable).parent
START = {
    "in_lightning.py": [sys.executable],
    "in_accelerate.py": [str(BIN / "accelerate"), "launch", "--multi_gpu", "--num_machines=1", "--mixed_precision=no"],
    "in_fabric.py": [str(BIN / "fabric"), "run", "--accelerator=cpu", "--strategy=ddp"],
}
PROCESSES = {"in_accelerate.py": "--num_processes={}", "in_fabric.py": "--devices={}"}
DEALT = {"in_lightning.py": "shuffled examples", "in_accelerate.py": "batches", "in_fabric.py": "examples"}
SAID = re.compile(r"process (\d): click ([\d.]+), buy ([\d.]+)")


def run(*command: str, **environment: str) -> str:
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=900, env={**os.environ, "OMP_NUM_THREADS": "1", **environment}
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    return ended.stdout


def batches(examples: int, processes: int, dealt: str, epoch: int) -> Iterator[Tensor]:
    """Yield the indices of 128 examples at a time, those of one process after those of the other.

    Args:
        dealt: what the processes get in turn, "batches", "examples" or "shuffled examples".
    """
    if dealt == "batches":
        yield from torch.arange(examples).split(128)
        return
    own = []
    for rank in range(processes):
        sampler = DistributedSampler(range(examples), processes, rank, shuffle=dealt == "shuffled examples")  # type: ignore[var-annotated, arg-type]
        sampler.set_epoch(epoch)
        own.append(torch.tensor(list(sampler)).split(128 // processes))
    yield from (torch.cat(parts) for parts in zip(*own, strict=True))


@cache
def trained(processes: int, dealt: str) -> list[float]:
    """Return the last losses of the same training in a plain loop, with examples in the order processes get them."""
    source = (LOOPS / "in_accelerate.py").read_text()
    names: dict[str, object] = {"torch": torch, "nn": nn, "Tensor": Tensor, "TensorDataset": TensorDataset}
    exec(source[source.index("def make_data") : source.index("def main")], names)
    torch.manual_seed(0)
    model = names["ClickAndBuy"]()  # type: ignore[operator]
    tensors: tuple[Tensor, ...] = names["make_data"]().tensors  # type: ignore[operator]
    optimizer, method = torch.optim.SGD(model.parameters(), lr=0.3), gdod.GDOD(groups=16)
    for epoch in range(2):
        for order in batches(len(tensors[0]), processes, dealt, epoch):
            user, x, clicked, bought = (tensor[order] for tensor in tensors)
            click, buy = model(user, x)
            optimizer.zero_grad()
            losses = {"click": bce(click, clicked, reduction="none"), "buy": bce(buy, bought, reduction="none")}
            info = gdod.backward(losses, method)
            optimizer.step()
    return info.losses.tolist()


def test_the_order_of_examples_matters() -> None:
    """Otherwise the comparisons below would say little about groups."""
    assert trained(1, "batches") != pytest.approx(trained(2, "examples"), rel=1e-3)


@pytest.mark.parametrize("script", START)
def test_in_one_process(script: str) -> None:
    ((process, *losses),) = SAID.findall(run(sys.executable, str(LOOPS / script)))
    assert process == "0"
    assert float(losses[0]) < 0.5  # a model that has learned nothing is at log 2
    assert [float(loss) for loss in losses] == pytest.approx(trained(1, "batches"), rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("script", START)
def test_in_two_processes(script: str) -> None:
    """Hooks of `DistributedDataParallel`, in which all three wrap the model, average nothing a second time."""
    more = [PROCESSES[script].format(2)] if script in PROCESSES else []
    said = SAID.findall(run(*START[script], *more, str(LOOPS / script), DEVICES="2"))
    assert sorted(process for process, *_ in said) == ["0", "1"]
    wanted = trained(2, DEALT[script])
    for _, *losses in said:
        assert [float(loss) for loss in losses] == pytest.approx(wanted, rel=1e-4)


@pytest.mark.slow
def test_compiled_models() -> None:
    said = re.findall(
        r"^(.*) compiled: (\d+) backward passes, (\d+) slow parameters, error (\S+)$",
        run(sys.executable, str(LOOPS / "compiled.py")),
        re.MULTILINE,
    )
    assert [what for what, *_ in said] == ["nothing", "the whole model", "towers"]
    assert all(float(error) < 1e-4 for *_, error in said)
    passes, slow = {what: int(count) for what, count, _, _ in said}, {what: int(count) for what, _, count, _ in said}
    assert slow["nothing"] == slow["towers"] == 0
    assert passes["towers"] == passes["nothing"]
    assert slow["the whole model"] == 3
    assert passes["the whole model"] >= 8  # one for each of 4 groups and 2 tasks
