"""Attention over the channels and the places of an image's features, as convolutional networks use it."""

import torch
from torch import nn

from triptych.attention.shapes import Float, Tensor


class ChannelAttention(nn.Module):
    """One weight between 0 and 1 per channel: ``sigmoid(mlp(mean over places) + mlp(maximum over places))``."""

    def __init__(self, *, channels: int, reduction: int = 8) -> None:
        super().__init__()
        hidden = max(1, channels // reduction)
        self.mlp = nn.Sequential(
            nn.Linear(channels, hidden, bias=False), nn.ReLU(), nn.Linear(hidden, channels, bias=False)
        )

    def weights(self, x: Float[Tensor, "B C h w"]) -> Float[Tensor, "B C"]:
        """The weight of each channel; they do not sum to 1."""
        return torch.sigmoid(self.mlp(x.mean((2, 3))) + self.mlp(x.amax((2, 3))))

    def forward(self, x: Float[Tensor, "B C h w"]) -> Float[Tensor, "B C h w"]:
        return x * self.weights(x)[:, :, None, None]


class SpatialAttention(nn.Module):
    """One weight between 0 and 1 per place: ``sigmoid(convolution 7 x 7 of [mean, maximum over channels])``."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(2, 1, kernel_size=7, padding=3, bias=False)

    def weights(self, x: Float[Tensor, "B C h w"]) -> Float[Tensor, "B h w"]:
        """The weight of each place; they do not sum to 1."""
        return torch.sigmoid(self.convolution(torch.stack([x.mean(1), x.amax(1)], dim=1)))[:, 0]

    def forward(self, x: Float[Tensor, "B C h w"]) -> Float[Tensor, "B C h w"]:
        return x * self.weights(x)[:, None]


class ChannelThenSpace(nn.Sequential):
    """The two in a row: the convolutional block attention module (Woo et al. 2018, arXiv 1807.06521)."""

    def __init__(self, *, channels: int) -> None:
        super().__init__(ChannelAttention(channels=channels), SpatialAttention())
