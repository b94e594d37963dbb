"""How sharp and how orderly a soft alignment is: entropy, diagonality, monotonicity, coverage."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from triptych.attention.shapes import Float

_LEAST = 1e-9  # what a source word counts as in the coverage when it got nothing: log 0 would swallow every other word
_ROUNDING = 1e-6  # positions; rows that are equal but for rounding do not step back


class Measures(NamedTuple):
    """How sharp and how orderly a soft alignment is. NaN where a figure says nothing (see ``measures``)."""

    entropy: Tensor  # nats
    relative_entropy: Tensor  # the entropy divided by ln n, n source positions: 0 sharp, 1 even
    diagonality: Tensor  # 1 on the diagonal from the first to the last word
    monotonicity: Tensor  # share of steps that do not go back in the source
    coverage: Tensor  # 0 where every source word got a weight of 1 or more in all; else negative


def measures(
    weights: Float[Tensor, "*N T S"], sources: Tensor | None = None, targets: Tensor | None = None
) -> Measures:
    """Figures of soft alignments, each of shape N.

    sources, targets: how many columns and rows are real, of a shape that broadcasts with N; the rest must be 0.
    None is all of them.

    Each row is first brought to sum to 1 (what lay on special tokens is left out); a row of zeros takes no part.
    With mu_t the mean source position of row t:

    - entropy: mean over rows of -sum_j A_tj ln A_tj
    - diagonality: 1 - mean_t |mu_t / (S - 1) - t / (T - 1)|; NaN for one source or one target word
    - monotonicity: share of neighbouring rows with mu_{t+1} >= mu_t; NaN for one target word
    - coverage: sum_j log min(sum_t A_tj, 1) (Wu et al. 2016, arXiv 1609.08144); a word that got nothing counts as 1e-9

    The relative entropy is NaN for one source word, and every figure where no row has weight.

    Raises:
        ValueError: weights that are negative or no finite numbers.
    """
    weights = checked(weights)
    T, S = weights.shape[-2:]
    sources = torch.tensor(S) if sources is None else sources
    targets = torch.tensor(T) if targets is None else targets
    total = weights.sum(-1)
    used = total > 0
    share = weights / total.where(used, 1)[..., None]
    nothing = weights.new_full((), math.nan)

    entropy = -torch.xlogy(share, share).sum((-1, -2)) / used.sum(-1)
    mean = (share * torch.arange(S)).sum(-1)
    path = torch.arange(T).double() / (targets - 1).clamp(min=1)[..., None]
    off = (mean / (sources - 1).clamp(min=1)[..., None] - path).abs()
    steps = used[..., 1:] & used[..., :-1]
    onward = steps & (mean[..., 1:] >= mean[..., :-1] - _ROUNDING)
    real = torch.arange(S) < sources[..., None]
    covered = share.sum(-2).clamp(_LEAST, 1).log().where(real, 0).sum(-1)
    return Measures(
        entropy=entropy,
        relative_entropy=(entropy / sources.clamp(min=2).double().log()).where(sources > 1, nothing),
        diagonality=(1 - (off * used).sum(-1) / used.sum(-1)).where((sources > 1) & (targets > 1), nothing),
        monotonicity=onward.sum(-1).double() / steps.sum(-1),
        coverage=covered.where(used.any(-1), nothing),
    )


def checked(weights: Tensor) -> Tensor:
    """As float64 on the CPU. Raises ValueError for what no softmax gives."""
    weights = weights.detach().cpu().double()
    if not (weights.isfinite() & (weights >= 0)).all():
        raise ValueError("an alignment needs weights that are finite and not negative, as a softmax gives them")
    return weights
