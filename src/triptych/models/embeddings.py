"""From ids to vectors, and where positions come from when attention itself does not turn them in."""

import torch
from torch import nn

from triptych.attention.shapes import Float, Int, Tensor
from triptych.errors import UserError
from triptych.models.cbam import ChannelThenSpace


class TokenEmbedding(nn.Module):
    """Token vectors, plus learned position vectors when ``positions`` (how many there are) is given."""

    def __init__(self, *, vocab_size: int, width: int, positions: int | None) -> None:
        super().__init__()
        self.token = nn.Embedding(vocab_size, width)
        self.position = nn.Embedding(positions, width) if positions is not None else None

    def forward(self, tokens: Int[Tensor, "B T"], offset: int = 0) -> Float[Tensor, "B T C"]:
        """Vectors of ``tokens``, the first of which stands at position ``offset``."""
        x = self.token(tokens)
        if self.position is None:
            return x
        return x + self.position(torch.arange(offset, offset + tokens.shape[1], device=tokens.device))


class PatchEmbedding(nn.Module):
    """Each patch of p x p pixels, flattened (channel, row, column), through one linear map."""

    def __init__(self, *, channels: int, patch_size: int, width: int) -> None:
        super().__init__()
        self.patch_size = patch_size
        self.linear = nn.Linear(channels * patch_size**2, width)

    def forward(self, images: Float[Tensor, "B c h w"]) -> Float[Tensor, "B P C"]:
        """Vectors of the patches, row by row from the upper left."""
        p = self.patch_size
        patches = images.unflatten(2, (-1, p)).unflatten(4, (-1, p))  # B c rows p columns p
        return self.linear(patches.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2))


class PatchStem(nn.Module):
    """Convolutions of 3 x 3 pixels and stride 2 that halve the image until one cell is a patch; then a linear map.

    Channels double from step to step and end at half the width (Xiao et al., arXiv 2106.14881, with a normalisation
    that needs no batch). patch_size: a power of 2 from 2 on.
    """

    def __init__(self, *, channels: int, patch_size: int, width: int) -> None:
        super().__init__()
        halvings = patch_size.bit_length() - 1
        sizes = [max(8, width >> step) for step in range(halvings, 0, -1)]
        layers: list[nn.Module] = []
        for inside, outside in zip([channels, *sizes], sizes, strict=False):
            convolution = nn.Conv2d(inside, outside, kernel_size=3, stride=2, padding=1, bias=False)
            layers += [convolution, nn.GroupNorm(1, outside), nn.GELU()]
        self.layers = nn.Sequential(*layers)
        self.linear = nn.Linear(sizes[-1], width)

    def forward(self, images: Float[Tensor, "B c h w"]) -> Float[Tensor, "B P C"]:
        """Vectors of the patches, row by row from the upper left."""
        return self.linear(self.layers(images).flatten(2).transpose(1, 2))


class PooledStem(nn.Module):
    """Convolutions of 3 x 3 pixels, each with ReLU and a 3 x 3 maximum of stride 2, until a cell is a patch.

    Channels double from step to step and end at the width: the convolutional tokenizer of Hassani et al. (arXiv
    2104.05704, section 3.3). patch_size: a power of 2 from 2 on.
    """

    def __init__(self, *, channels: int, patch_size: int, width: int) -> None:
        super().__init__()
        halvings = patch_size.bit_length() - 1
        sizes = [max(8, width >> step) for step in range(halvings - 1, 0, -1)] + [width]
        layers: list[nn.Module] = []
        for inside, outside in zip([channels, *sizes], sizes, strict=False):
            convolution = nn.Conv2d(inside, outside, kernel_size=3, padding=1, bias=False)
            nn.init.kaiming_normal_(convolution.weight)
            layers += [convolution, nn.ReLU(), nn.MaxPool2d(kernel_size=3, stride=2, padding=1)]
        self.layers = nn.Sequential(*layers)

    def forward(self, images: Float[Tensor, "B c h w"]) -> Float[Tensor, "B P C"]:
        """Vectors of the patches, row by row from the upper left."""
        return self.layers(images).flatten(2).transpose(1, 2)


class AttendedStem(PooledStem):
    """The pooled stem, whose last features attend over their channels and places before they become patches."""

    def __init__(self, *, channels: int, patch_size: int, width: int) -> None:
        super().__init__(channels=channels, patch_size=patch_size, width=width)
        self.layers.append(ChannelThenSpace(channels=width))


def sinusoidal_2d(grid: tuple[int, int], width: int, base: float = 10_000.0) -> Float[Tensor, "P C"]:
    """Fixed positions of ``grid`` (rows, columns): half of the channels waves along the rows, half along the columns.

    Each half is sin and cos of ``place * base^(-k / (width / 4))`` (as Vaswani et al. 2017, section 3.5, per axis).
    Raises UserError when the width is no multiple of 4.
    """
    if width % 4:
        raise UserError(f"model.width={width}: positions=sinusoidal splits it in four; use a multiple of 4")
    frequency = base ** (-torch.arange(width // 4, dtype=torch.float64) / (width // 4))
    rows, columns = (torch.arange(places, dtype=torch.float64)[:, None] * frequency for places in grid)
    rows = rows[:, None].expand(-1, grid[1], -1)
    columns = columns[None].expand(grid[0], -1, -1)
    return torch.cat([rows.sin(), rows.cos(), columns.sin(), columns.cos()], dim=-1).flatten(0, 1).float()
