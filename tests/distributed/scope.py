"""Runs under torchrun: a method that takes layers apart, which works in one process only.

``torchrun --nproc-per-node 2 tests/distributed/scope.py``
"""

import pytest
import torch
import torch.distributed as dist
from torch import nn

import gdod


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = nn.Linear(4, 2)
    for scope in ("layer", "dense"):
        method = gdod.GDODVariant(scope=scope)  # type: ignore[arg-type]
        with pytest.raises(gdod.InputError, match=f"scope='{scope}' works in a single process only"):
            gdod.backward(model(torch.randn(8, 4)) ** 2, method)
        assert model.weight.grad is None
        gdod.backward(model(torch.randn(8, 4)) ** 2, method, process_group=None)
        assert model.weight.grad is not None
        model.zero_grad()
    gdod.backward(model(torch.randn(8, 4)) ** 2, gdod.GDODVariant(memory=0.5))
    assert model.weight.grad is not None
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
