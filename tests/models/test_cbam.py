"""Channel and spatial attention: numbers worked by hand, and that the stem which has them trains them."""

import pytest
import torch
from torch import nn

from triptych.models.cbam import ChannelAttention, SpatialAttention
from triptych.models.embeddings import AttendedStem


def test_channel_weights_by_hand() -> None:
    """The network answers 1 to the mean and 2 to the maximum: sigmoid 3."""
    module = ChannelAttention(channels=1)
    for layer in module.mlp:
        if isinstance(layer, nn.Linear):
            nn.init.ones_(layer.weight)
    x = torch.tensor([[[[2.0, 0.0]]]])  # mean 1, maximum 2
    assert module.weights(x).item() == pytest.approx(0.9526, abs=5e-5)
    assert module(x).flatten().tolist() == pytest.approx([2 * 0.9526, 0], abs=1e-4)


def test_spatial_weights_by_hand() -> None:
    """A kernel that looks at its own place only, once at the mean and twice at the maximum over channels."""
    module = SpatialAttention()
    nn.init.zeros_(module.convolution.weight)
    with torch.no_grad():
        module.convolution.weight[0, :, 3, 3] = torch.tensor([1.0, 2.0])
    x = torch.tensor([[[[1.0, 0.0]], [[-1.0, 0.5]]]])  # B 2 1 2: means 0, 0.25; maxima 1, 0.5
    assert module.weights(x).flatten().tolist() == pytest.approx(torch.tensor([2.0, 1.25]).sigmoid().tolist())


def test_the_stem_trains_what_attends() -> None:
    torch.manual_seed(0)
    stem = AttendedStem(channels=3, patch_size=4, width=16)
    found = stem(torch.randn(2, 3, 8, 12))
    assert found.shape == (2, 6, 16)
    found.square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in stem.parameters())
