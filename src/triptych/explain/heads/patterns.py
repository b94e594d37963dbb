"""What a head does with its weights on given inputs: how far it looks, how sharply, and at which fixed places.

Every figure is of shape B H, one number per example and head, so that it can be compared between examples. It describes
a head on these inputs and does not say what the head is for: that takes an intervention (``head_importance``).
"""

import torch

from triptych.attention.shapes import Bool, Float, Tensor
from triptych.errors import UserError


def distance(weights: Float[Tensor, "B H T T"], rows: Bool[Tensor, "B T"] | None = None) -> Float[Tensor, "B H"]:
    """``mean_i sum_j A_ij |i - j|``, in positions: how far back a causal head looks (there it is ``i - j``).

    rows: which queries count (no padding); None for all. So in every function here.
    """
    place = torch.arange(weights.shape[-1], device=weights.device)
    return _mean((_checked(weights) * (place[:, None] - place).abs()).sum(-1), rows)


def patch_distance(weights: Float[Tensor, "B H T T"], grid: tuple[int, int]) -> Float[Tensor, "B H"]:
    """``mean_i sum_j A_ij |p_i - p_j|`` over patches, centre to centre, Euclidean, in patches.

    grid: rows and columns of patches, the last positions. Tokens before them have no place: they are left out, and
    what remains is brought to sum to 1 (Dosovitskiy et al., arXiv 2010.11929, appendix D.7).
    """
    rows, columns = grid
    place = torch.cartesian_prod(torch.arange(rows), torch.arange(columns)).to(weights)
    among = _checked(weights)[..., -rows * columns :, -rows * columns :]
    among = among / among.sum(-1, keepdim=True).clamp(min=1e-12)
    return (among * torch.cdist(place, place)).sum(-1).mean(-1)


def entropy(weights: Float[Tensor, "B H T S"], rows: Bool[Tensor, "B T"] | None = None) -> Float[Tensor, "B H"]:
    """``mean_i -sum_j A_ij ln A_ij`` in nats; what the mask hides has weight 0 and adds nothing."""
    return _mean(_row_entropy(_checked(weights)), rows)


def relative_entropy(
    weights: Float[Tensor, "B H T S"],
    visible: Bool[Tensor, "#B 1 T S"],
    rows: Bool[Tensor, "B T"] | None = None,
) -> Float[Tensor, "B H"]:
    """Each row's entropy divided by ln n, n the keys that it may see: 0 for one key only, 1 for even weights.

    A row that may see one key or none cannot be sharp or even: it takes no part. NaN where no row is left.
    """
    seen = visible.sum(-1)  # #B 1 T
    choice = (seen > 1)[:, 0].expand(len(weights), -1)
    share = _row_entropy(_checked(weights)) / seen.clamp(min=2).to(weights.dtype).log()
    return _mean(share, choice if rows is None else choice & rows)


def previous_token(weights: Float[Tensor, "B H T T"], rows: Bool[Tensor, "B T"] | None = None) -> Float[Tensor, "B H"]:
    """``mean_{i >= 1} A[i, i - 1]``: the weight on the position just before. NaN for a single position."""
    before = _checked(weights).diagonal(-1, -2, -1)
    return _mean(before, None if rows is None else rows[:, 1:])


def sink(weights: Float[Tensor, "B H T S"], rows: Bool[Tensor, "B T"] | None = None) -> Float[Tensor, "B H"]:
    """``mean_{i >= 1} A[i, 0]``: the weight on the first position (Gu et al., arXiv 2410.10781).

    Without row 0: in a causal head that one can look nowhere else, which says nothing.
    """
    return _mean(_checked(weights)[..., 1:, 0], None if rows is None else rows[:, 1:])


def induction(weights: Float[Tensor, "B H T T"], block: int) -> Float[Tensor, "B H"]:
    """Mean over the second copy of ``A[i, i - L + 1]``: the weight on what followed this token the first time.

    weights: over a random block of L = ``block`` tokens said twice (Olsson et al., arXiv 2209.11895). Raises ValueError
    unless there are 2 L positions.
    """
    if block < 1 or weights.shape[-1] != 2 * block:
        raise ValueError(f"induction needs a block of {block} tokens said twice, not {weights.shape[-1]} positions")
    return _checked(weights).diagonal(1 - block, -2, -1)[..., 1:].mean(-1)


def even(visible: Bool[Tensor, "#B 1 T S"]) -> Float[Tensor, "#B 1 T S"]:
    """Weights that are the same over all visible keys: what each figure is by chance."""
    return visible.float() / visible.sum(-1, keepdim=True).clamp(min=1)


def _mean(numbers: Float[Tensor, "B H T"], rows: Bool[Tensor, "B T"] | None) -> Float[Tensor, "B H"]:
    if rows is None:
        return numbers.mean(-1)
    counted = rows[:, None].to(numbers.dtype)
    return (numbers * counted).sum(-1) / counted.sum(-1)


def _row_entropy(weights: Tensor) -> Tensor:
    return torch.special.entr(weights).sum(-1)


def _checked(weights: Tensor) -> Tensor:
    """As they are. Raises UserError for negative weights: sums of them are no shares, and have no logarithm."""
    if (weights < 0).any():
        raise UserError(
            "head statistics need weights that are not negative, as a softmax gives them; those of a delta rule can be"
        )
    return weights
