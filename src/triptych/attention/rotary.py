"""Rotary positions: queries and keys are turned by an angle that grows with position (Su et al., arXiv 2104.09864)."""

import torch
from torch import nn

from triptych.attention.shapes import Float, Tensor
from triptych.errors import UserError


class Rotary(nn.Module):
    """Turns channel pairs (d, d + D/2) by ``position * base^(-2 d / D)``; a score then depends on distance alone.

    positions: how many positions the tables hold. Raises ValueError for an odd head size.
    """

    def __init__(self, *, head_size: int, positions: int, base: float = 10_000.0) -> None:
        super().__init__()
        if head_size % 2:
            raise ValueError(f"rotary positions turn pairs of channels, and the head size {head_size} is odd")
        frequency = base ** (-torch.arange(0, head_size, 2, dtype=torch.float64) / head_size)
        angle = torch.arange(positions, dtype=torch.float64)[:, None] * frequency
        # Not in the checkpoint: they follow from the configuration.
        self.register_buffer("cos", angle.cos().repeat(1, 2).float(), persistent=False)
        self.register_buffer("sin", torch.cat([-angle.sin(), angle.sin()], dim=1).float(), persistent=False)
        self.cos: Tensor
        self.sin: Tensor

    def forward(self, x: Float[Tensor, "B N T D"], offset: int = 0) -> Float[Tensor, "B N T D"]:
        """``x`` with its T positions, the first of which is ``offset``, turned."""
        T = x.shape[-2]
        return _turn(x, self.cos[offset : offset + T], self.sin[offset : offset + T])


class Rotary2d(nn.Module):
    """Positions on a grid: of the channel pairs (d, d + D/2) the first half is turned by row, the second by column.

    A score then depends on how far apart two patches are down and across (as in Heo et al., arXiv 2403.13298, "axial").
    ``prefix`` tokens stand before the patches and have no place: they are not turned.

    grid: rows and columns of patches. base: lower than for text, since a grid has few places.
    Raises UserError when the head size is no multiple of 4.
    """

    def __init__(self, *, head_size: int, grid: tuple[int, int], prefix: int, base: float = 100.0) -> None:
        super().__init__()
        if head_size % 4:
            raise UserError(
                f"model.positions=rotary turns pairs of channels along two axes, and the head size is {head_size}: "
                "choose model.width and model.heads so that width / heads is a multiple of 4"
            )
        quarter = head_size // 4
        frequency = base ** (-torch.arange(quarter, dtype=torch.float64) / quarter)
        place = torch.cartesian_prod(*(torch.arange(places, dtype=torch.float64) for places in grid))  # P 2
        angle = torch.cat([place[:, :1] * frequency, place[:, 1:] * frequency], dim=1)  # P D/2
        angle = torch.cat([angle.new_zeros(prefix, 2 * quarter), angle])
        self.register_buffer("cos", angle.cos().repeat(1, 2).float(), persistent=False)
        self.register_buffer("sin", torch.cat([-angle.sin(), angle.sin()], dim=1).float(), persistent=False)
        self.cos: Tensor
        self.sin: Tensor

    def forward(self, x: Float[Tensor, "B N T D"], offset: int = 0) -> Float[Tensor, "B N T D"]:
        """``x``, which begins with the prefix, turned. An image is never continued: ``offset`` is always 0."""
        T = x.shape[-2]
        return _turn(x, self.cos[:T], self.sin[:T])


def _turn(
    x: Float[Tensor, "B N T D"], cos: Float[Tensor, "T D"], sin: Float[Tensor, "T D"]
) -> Float[Tensor, "B N T D"]:
    return torch.addcmul(x * cos.to(x.dtype), x.roll(x.shape[-1] // 2, dims=-1), sin.to(x.dtype))
