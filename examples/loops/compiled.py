"""`torch.compile` and GDOD: compile what belongs to one task, and leave the shared layers as they are.

A model that is compiled as a whole gets the same gradient, in more backward passes, if shared parameters are named.

python examples/loops/compiled.py
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

import gdod


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.user = nn.Embedding(200, 8)
        self.bottom = nn.Sequential(nn.Linear(12, 32), nn.ReLU())
        self.time, self.price = (nn.Sequential(nn.Linear(32, 16), nn.GELU(), nn.Linear(16, 1)) for _ in range(2))

    def forward(self, user: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.bottom(torch.cat([self.user(user), x], 1))
        return self.time(features).squeeze(1), self.price(features).squeeze(1)


def gradient(
    model: Model, forward: Callable[..., tuple[Tensor, Tensor]], batch: tuple[Tensor, ...]
) -> tuple[Tensor, gdod.Info]:
    user, x, time, price = batch
    model.zero_grad()
    first, second = forward(user, x)
    losses = {"time": mse_loss(first, time, reduction="none"), "price": mse_loss(second, price, reduction="none")}
    shared = [*model.user.parameters(), *model.bottom.parameters()]
    info = gdod.backward(losses, gdod.GDOD(groups=4), shared=shared)
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]), info


def main() -> None:
    torch.manual_seed(0)
    model = Model()
    x = torch.randn(64, 4)
    batch = torch.randint(200, (64,)), x, x.sum(1), x[:, 0] - x[:, 1]
    wanted, plain = gradient(model, model, batch)
    results = {"nothing": (wanted, plain), "the whole model": gradient(model, torch.compile(model), batch)}
    model.time.compile()
    model.price.compile()
    results["towers"] = gradient(model, model, batch)
    for what, (got, info) in results.items():
        error = float((got - wanted).norm() / wanted.norm())
        print(f"{what} compiled: {info.passes} backward passes, {len(info.slow)} slow parameters, error {error:.0e}")


if __name__ == "__main__":
    main()
