"""Training in several processes, each with its part of every batch: the same steps as in one process.

    torchrun --nproc-per-node 2 examples/distributed.py

Without torchrun it runs alone, and comes to the same losses.
"""

import os

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import mse_loss

import gdod


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.user = nn.Embedding(1000, 8)
        self.bottom = nn.Sequential(nn.Linear(12, 32), nn.ReLU())
        self.time, self.price = nn.Linear(32, 1), nn.Linear(32, 1)

    def forward(self, user: Tensor, numbers: Tensor) -> dict[str, Tensor]:
        features = self.bottom(torch.cat([self.user(user), numbers], 1))
        return {"time": self.time(features).squeeze(1), "price": self.price(features).squeeze(1)}


def main(steps: int = 60, batch: int = 64) -> dict[str, float]:
    """Train, and return the mean losses of the last batch, which are those of all ranks together."""
    rank, ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    torch.manual_seed(0)  # the same model on every rank, and here the same data, of which each takes its part
    model = Model()  # or DistributedDataParallel(Model()): gdod.backward sums gradients itself
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    method = gdod.GDOD(groups=16)  # groups of the whole batch
    user, numbers = torch.randint(1000, (1024,)), torch.randn(1024, 4)
    labels = {"time": numbers.sum(1), "price": numbers[:, 0] - numbers[:, 1]}

    for step in range(steps):
        whole = torch.arange(step * batch, (step + 1) * batch) % len(user)
        mine = whole.tensor_split(ranks)[rank]
        optimizer.zero_grad()
        predicted = model(user[mine], numbers[mine])
        losses = {task: mse_loss(predicted[task], labels[task][mine], reduction="none") for task in predicted}
        info = gdod.backward(losses, method)  # every rank gets the gradient of the whole batch
        optimizer.step()
    return dict(zip(info.tasks, info.losses.tolist(), strict=True))


if __name__ == "__main__":
    if "RANK" in os.environ:  # set by torchrun
        dist.init_process_group("gloo")
    losses = main()
    if not dist.is_initialized() or dist.get_rank() == 0:
        print({task: round(loss, 6) for task, loss in losses.items()})
    if dist.is_initialized():
        dist.destroy_process_group()
