"""Cross layers (Wang and others, "DCN V2: Improved Deep & Cross Network and Practical Lessons for Web-scale Learning to
Rank Systems", WWW 2021, section 3.2)."""

from torch import Tensor, nn

from gdod.models.layers import linear


class CrossLayers(nn.Module):
    """Multiply features with each other, which hidden layers learn slowly: [B, width] -> [B, width].

    Each layer makes of x_l, beginning with the input x_0,

        x_{l+1} = x_0 * (W x_l + b) + x_l,    W = U V of a low rank,

    so that n layers hold products of up to n + 1 features. With its small rank a layer costs little beside a hidden
    layer. It begins close to the identity, since the features begin small.

    Args:
        count: the number of layers.
        rank: the rank of their matrices.
        width: the number of features.
    """

    def __init__(self, count: int, rank: int, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(linear(width, rank, bias=False), linear(rank, width)) for _ in range(count)
        )

    def forward(self, first: Tensor) -> Tensor:
        x = first
        for layer in self.layers:
            x = first * layer(x) + x
        return x
