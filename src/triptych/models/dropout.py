"""Dropout whose masks are random bytes: on a CPU torch draws a number per element, a tenth of a training step here."""

import torch
import torch.nn.functional as F
from torch import nn

from triptych.attention.shapes import Float, Tensor


class Dropout(nn.Module):
    """In training, 0 for a ``rate`` of the elements and scaled up for the others (Srivastava et al. 2014, JMLR 15).

    Eager on a CPU the rate is rounded to a multiple of 1/256, and the scale with it, so that the mean stays; where that
    would change the rate by more than 2 %, and elsewhere, this is torch's own dropout. Draws from torch's global state.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Float[Tensor, "*N"]) -> Float[Tensor, "*N"]:
        if not self.training or self.rate == 0:
            return x
        dropped = round(256 * self.rate)
        rounds = abs(dropped - 256 * self.rate) <= 0.02 * 256 * self.rate and dropped < 256
        if not rounds or x.device.type != "cpu" or torch.compiler.is_compiling():
            return F.dropout(x, self.rate)
        eights = torch.empty(-(-x.numel() // 8), dtype=torch.int64).random_(-(2**63), None)
        kept = eights.view(torch.uint8)[: x.numel()].view(x.shape) >= dropped
        return x * kept.to(x.dtype).mul_(256 / (256 - dropped))

    def extra_repr(self) -> str:
        return f"rate={self.rate}"
