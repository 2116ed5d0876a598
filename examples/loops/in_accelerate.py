"""GDOD in a loop on Hugging Face Accelerate: `gdod.backward` in place of `accelerator.backward`.

python examples/loops/in_accelerate.py
accelerate launch --multi_gpu --num_processes 2 examples/loops/in_accelerate.py  # --cpu would start only one
"""

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce
from torch.utils.data import DataLoader, TensorDataset

import gdod


def make_data(examples: int = 2048) -> TensorDataset:
    """Return users, features, and whether each user clicked and bought."""
    user, x = torch.randint(200, (examples,)), torch.randn(examples, 4)
    liking = x.sum(1) + user / 100 - 1
    return TensorDataset(user, x, (liking > 0).float(), (liking - x[:, 0] > 1).float())


class ClickAndBuy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.user = nn.Embedding(200, 8)
        self.bottom = nn.Sequential(nn.Linear(12, 32), nn.ReLU())
        self.click, self.buy = nn.Linear(32, 1), nn.Linear(32, 1)

    def forward(self, user: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.bottom(torch.cat([self.user(user), x], 1))
        return self.click(features).squeeze(1), self.buy(features).squeeze(1)


def main(epochs: int = 2, batch: int = 128) -> None:
    accelerator = Accelerator(cpu=True)  # processes come from `accelerate launch`
    torch.manual_seed(0)  # the same model and data in every process
    model = ClickAndBuy()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    loader = DataLoader(make_data(), batch_size=batch // accelerator.num_processes)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    method = gdod.GDOD(groups=16)  # of the batch of all processes

    for _ in range(epochs):
        for user, x, clicked, bought in loader:
            click, buy = model(user, x)
            losses = {
                "click": bce(click, clicked, reduction="none"),  # one loss per example: [batch]
                "buy": bce(buy, bought, reduction="none"),
            }
            optimizer.zero_grad()
            info = gdod.backward(losses, method)  # in place of accelerator.backward(loss)
            optimizer.step()

    click, buy = info.losses.tolist()  # of the last batch of all processes
    print(f"process {accelerator.process_index}: click {click:.6f}, buy {buy:.6f}", flush=True)


if __name__ == "__main__":
    main()
