"""A complete training loop with GDOD: two tasks, one of which lacks many labels, and a test set.

Run it with ``python examples/train.py``. The data are made up: a user clicks on what they like, and
buys what they like and can pay; whether they bought is known only for those who clicked.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

import gdod

USERS, ITEMS = 300, 200


class ClickAndBuy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.user = nn.Embedding(USERS, 8)
        self.item = nn.Embedding(ITEMS, 8)
        self.bottom = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())
        self.click = nn.Linear(32, 1)
        self.buy = nn.Linear(32, 1)

    def forward(self, user: Tensor, item: Tensor) -> dict[str, Tensor]:
        features = self.bottom(torch.cat([self.user(user), self.item(item)], dim=1))  # [batch, 32]
        return {"click": self.click(features).squeeze(1), "buy": self.buy(features).squeeze(1)}


def make_data(examples: int) -> tuple[Tensor, Tensor, dict[str, Tensor], dict[str, Tensor]]:
    """Return users and items [examples], labels of both tasks, and the mask that says which are known."""
    user, item = torch.randint(USERS, (examples,)), torch.randint(ITEMS, (examples,))
    eagerness, money = torch.randn(USERS), torch.randn(USERS)
    appeal, price = torch.randn(ITEMS), torch.randn(ITEMS)
    liking = eagerness[user] + appeal[item] + 0.5 * torch.randn(examples)
    clicked = (liking > 0).float()
    bought = clicked * (liking + 2 * money[user] > 1 + 2 * price[item])
    labels = {"click": clicked, "buy": bought}
    known = {"click": torch.ones(examples, dtype=torch.bool), "buy": clicked.bool()}
    return user, item, labels, known


def losses(logits: dict[str, Tensor], labels: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return one loss per example, not averaged: the rows of GDOD are averages over groups of them."""
    return {
        task: binary_cross_entropy_with_logits(logit, labels[task], reduction="none") for task, logit in logits.items()
    }


def main(passes: int = 8, batch: int = 256) -> dict[str, float]:
    """Train, and return each task's mean loss on the test examples with a known label."""
    torch.manual_seed(0)
    user, item, labels, known = make_data(12_000)
    train, test = torch.arange(10_000), torch.arange(10_000, 12_000)
    model = ClickAndBuy()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    method = gdod.GDOD(groups=16)

    for number in range(passes):
        for chosen in train[torch.randperm(len(train))].split(batch):
            wanted = {task: label[chosen] for task, label in labels.items()}
            mask = {task: label[chosen] for task, label in known.items()}
            optimizer.zero_grad()
            info = gdod.backward(losses(model(user[chosen], item[chosen]), wanted), method, mask=mask)
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
        print(f"pass {number + 1}: the last step kept {info.energy_kept:.0%} of the gradients' energy")

    with torch.no_grad():
        tested = losses(model(user[test], item[test]), {task: label[test] for task, label in labels.items()})
    means = {task: float(loss[known[task][test]].mean()) for task, loss in tested.items()}
    print("test loss:", ", ".join(f"{task} {mean:.3f}" for task, mean in means.items()))
    return means


if __name__ == "__main__":
    main()
