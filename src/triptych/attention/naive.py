"""Attention written as its equation: scores, weights, context. The oracle for every other backend.

    scores  = query key^T / sqrt(D)          how well each query meets each key
    weights = softmax(scores)                over the keys that the mask leaves visible; each row sums to 1
    context = weights value                  the weighted sum of the values

(Vaswani et al. 2017, arXiv 1706.03762, equation 1.) Half-precision inputs are computed in float32, as fused
kernels do, also under autocast, and the context is returned in the input's dtype.
"""

import math
from collections.abc import Callable

import torch

from triptych.attention.masks import AttentionMask
from triptych.attention.scores import Score
from triptych.attention.shapes import Float, Tensor

ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
"""A change to the scores before softmax, in FlexAttention's sense: ``(score, batch, head, query, key) -> score``.

``query`` and ``key`` are positions among the keys (the query's includes the mask's offset), so a cached decoding
step and a full pass ask the same question. All arguments broadcast against the scores.
"""


def scores(
    query: Float[Tensor, "B H T D"],
    key: Float[Tensor, "B G S D"],
    mask: AttentionMask,
    score_mod: ScoreMod | None = None,
    score: Score | None = None,
) -> Float[Tensor, "B H T S"]:
    """Scaled dot products (or ``score``) before softmax; ``-inf`` where the mask forbids. At least float32."""
    B, H, T, D = query.shape
    S = key.shape[2]
    query, key = upcast(query), repeat_kv(upcast(key), H)
    with torch.autocast(query.device.type, enabled=False):
        met = query @ key.transpose(-2, -1) / math.sqrt(D) if score is None else score(query, key)
    if score_mod is not None:
        device = query.device
        met = score_mod(
            met,
            torch.arange(B, device=device)[:, None, None, None],
            torch.arange(H, device=device)[None, :, None, None],
            torch.arange(mask.query_offset, mask.query_offset + T, device=device)[None, None, :, None],
            torch.arange(S, device=device)[None, None, None, :],
        )
    return met.masked_fill(~mask.visible(T, S, query.device), -math.inf)


def softmax(score: Float[Tensor, "B H T S"]) -> Float[Tensor, "B H T S"]:
    """Weights from scores. A row with no visible key gets weights 0, with gradient 0, instead of 0/0."""
    empty = (score == -math.inf).all(dim=-1, keepdim=True)
    return score.masked_fill(empty, 0.0).softmax(dim=-1).masked_fill(empty, 0.0)


def weighted_sum(weights: Float[Tensor, "B H T S"], value: Float[Tensor, "B G S D"]) -> Float[Tensor, "B H T D"]:
    """Context: the values, summed with the weights."""
    value = repeat_kv(upcast(value), weights.shape[1])
    with torch.autocast(value.device.type, enabled=False):
        return weights @ value


def attend(
    query: Float[Tensor, "B H T D"],
    key: Float[Tensor, "B G S D"],
    value: Float[Tensor, "B G S D"],
    mask: AttentionMask,
    score_mod: ScoreMod | None = None,
    score: Score | None = None,
) -> Float[Tensor, "B H T D"]:
    """The three steps in a row."""
    return weighted_sum(softmax(scores(query, key, mask, score_mod, score)), value).to(query.dtype)


def upcast(tensor: Tensor) -> Tensor:
    """At least float32."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def repeat_kv(tensor: Tensor, heads: int) -> Tensor:
    """Repeat each key/value head for the H/G query heads that share it (grouped queries, arXiv 2305.13245)."""
    groups = tensor.shape[1]
    return tensor if groups == heads else tensor.repeat_interleave(heads // groups, dim=1)
