"""GDOD in Lightning: manual optimization, with one line in `training_step`.

python examples/loops/in_lightning.py
DEVICES=2 python examples/loops/in_lightning.py   # the Trainer starts the second process itself
"""

import os

import lightning as L
import torch
from lightning.pytorch.core.optimizer import LightningOptimizer
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce
from torch.utils.data import DataLoader, TensorDataset

import gdod


def make_data(examples: int = 2048) -> TensorDataset:
    """Return users, features, and whether each user clicked and bought."""
    user, x = torch.randint(200, (examples,)), torch.randn(examples, 4)
    liking = x.sum(1) + user / 100 - 1
    return TensorDataset(user, x, (liking > 0).float(), (liking - x[:, 0] > 1).float())


class ClickAndBuy(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False  # gradients do not come from one loss
        self.user = nn.Embedding(200, 8)
        self.bottom = nn.Sequential(nn.Linear(12, 32), nn.ReLU())
        self.click, self.buy = nn.Linear(32, 1), nn.Linear(32, 1)
        self.method = gdod.GDOD(groups=16)  # of the batch of all processes

    def training_step(self, batch: tuple[Tensor, Tensor, Tensor, Tensor]) -> None:
        user, x, clicked, bought = batch
        features = self.bottom(torch.cat([self.user(user), x], 1))
        losses = {
            "click": bce(self.click(features).squeeze(1), clicked, reduction="none"),  # one loss per example: [batch]
            "buy": bce(self.buy(features).squeeze(1), bought, reduction="none"),
        }
        optimizer = self.optimizers()
        assert isinstance(optimizer, LightningOptimizer)
        optimizer.zero_grad()
        info = gdod.backward(losses, self.method)  # in place of self.manual_backward(loss)
        optimizer.step()
        self.log_dict({"click": info.losses[0], "buy": info.losses[1], "kept": info.energy_kept})

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.3)


def main(devices: int = 1, batch: int = 128) -> None:
    torch.manual_seed(0)  # the same model and data in every process
    model = ClickAndBuy()
    trainer = L.Trainer(
        max_epochs=2,
        accelerator="cpu",
        devices=devices,
        strategy="ddp" if devices > 1 else "auto",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(model, DataLoader(make_data(), batch_size=batch // devices))
    losses = trainer.callback_metrics
    print(f"process {trainer.global_rank}: click {losses['click']:.6f}, buy {losses['buy']:.6f}", flush=True)


if __name__ == "__main__":
    main(int(os.environ.get("DEVICES", "1")))
