"""Changes to the scores before softmax, for ``Attend(score_mod=...)``: what FlexAttention was made for."""

import math

import torch
from torch import Tensor

from triptych.attention.naive import ScoreMod


def alibi(*, heads: int) -> ScoreMod:
    """Attention with linear biases (Press et al., arXiv 2108.12409): each head pays per key of distance.

    Head h of H subtracts ``2^(-8 (h + 1) / H)`` times the distance between query and key.
    """

    def with_distance(score: Tensor, b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
        slope = torch.exp2(-8.0 * (h + 1) / heads)
        return score - slope * (query - key).abs()

    return with_distance


def soft_cap(*, cap: float) -> ScoreMod:
    """Keep scores within ``-cap .. cap`` smoothly: ``cap * tanh(score / cap)`` (Gemma 2, arXiv 2408.00118)."""
    if not (cap > 0 and math.isfinite(cap)):
        raise ValueError(f"cap is {cap}; it must be a positive number")

    def capped(score: Tensor, b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return cap * torch.tanh(score / cap)

    return capped
