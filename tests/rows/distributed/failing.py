"""Runs under torchrun: one rank goes wrong in a step in which the others are fine.

``torchrun --nproc-per-node 2 tests/rows/distributed/failing.py WAY``
"""

import os
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn

import gdod


class Breaks(torch.autograd.Function):
    """Fine forwards; fails in the backward pass."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, grad: Tensor) -> Tensor:
        raise RuntimeError("the backward pass broke")


def main(way: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=8))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
    wrong = dist.get_rank() == dist.get_world_size() - 1
    for step in range(6):
        losses = model(torch.randn(8, 4)) ** 2
        if step == 3 and wrong:
            if way == "raises":
                raise ValueError("this rank had enough")
            if way == "dies":
                os._exit(17)
            if way == "hangs":
                time.sleep(600)
            if way == "breaks":
                losses = Breaks.apply(losses)  # type: ignore[no-untyped-call]
            if way == "leaves":
                break
        gdod.backward(losses, gdod.GDOD(groups=4))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
