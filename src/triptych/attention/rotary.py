"""Rotary positions: queries and keys are turned by an angle that grows with position (Su et al., arXiv 2104.09864)."""

import torch
from torch import nn

from triptych.attention.shapes import Float, Tensor


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
        T, D = x.shape[-2:]
        cos = self.cos[offset : offset + T].to(x.dtype)
        sin = self.sin[offset : offset + T].to(x.dtype)
        return x * cos + x.roll(D // 2, dims=-1) * sin
