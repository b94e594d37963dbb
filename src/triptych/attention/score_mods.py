"""Changes to the scores before softmax, for ``Attend(score_mod=...)``: what FlexAttention was made for."""

import math
from typing import no_type_check

import torch
from torch import Tensor

from triptych.attention.naive import ScoreMod


def alibi(*, heads: int) -> ScoreMod:
    """Attention with linear biases (Press et al., arXiv 2108.12409): each head pays per key of distance.

    Head h of H subtracts ``2^(-8 (h + 1) / H)`` times the distance between query and key.
    """

    exponent = -8.0 / heads

    @no_type_check  # FlexAttention compiles it: a run-time check inside would break the trace
    def with_distance(score: Tensor, b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
        slope = torch.exp2(exponent * (h + 1))
        return score - slope * (query - key).abs()

    return with_distance


def soft_cap(*, cap: float) -> ScoreMod:
    """Keep scores within ``-cap .. cap`` smoothly: ``cap * tanh(score / cap)`` (Gemma 2, arXiv 2408.00118)."""
    if not (cap > 0 and math.isfinite(cap)):
        raise ValueError(f"cap is {cap}; it must be a positive number")

    @no_type_check
    def capped(score: Tensor, b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return cap * torch.tanh(score / cap)

    return capped
