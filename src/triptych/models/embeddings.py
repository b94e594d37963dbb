"""From ids to vectors, and where positions come from when attention itself does not turn them in."""

import torch
from torch import nn

from triptych.attention.shapes import Float, Int, Tensor


class TokenEmbedding(nn.Module):
    """Token vectors, plus learned position vectors when ``positions`` (how many there are) is given."""

    def __init__(self, *, vocabulary: int, width: int, positions: int | None) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(positions, width) if positions is not None else None

    def forward(self, tokens: Int[Tensor, "B T"], offset: int = 0) -> Float[Tensor, "B T C"]:
        """Vectors of ``tokens``, the first of which stands at position ``offset``."""
        x = self.token(tokens)
        if self.position is None:
            return x
        return x + self.position(torch.arange(offset, offset + tokens.shape[1], device=tokens.device))
