"""Is a ranking of the inputs faithful? Remove what it ranks high, or bring it back, and see the output change.

Pure: a model enters only as ``probability``, which gives the probability of one fixed output with units removed.
"""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import torch

from triptych.attention.shapes import Bool, Float, Int, Tensor

Start = Literal["deletion", "insertion"]
"""What stands in for a removed unit: "deletion" the data's mean, "insertion" what the insertion curve begins with."""

Probability = Callable[[Bool[Tensor, "B N U"], Start], Float[Tensor, "B N"]]
"""The softmax probability of the output fixed on the clean input, for each of N sets of removed (True) units.

The sets may come on another device than the model's; all N of an example are asked for in one call."""

PERCENTS = (1, 5, 10, 20, 50)  # of the units, for comprehensiveness and sufficiency (DeYoung et al. 2020)
SMALL = 0.05  # of the largest score: what compactness counts as next to nothing
ROUNDING = 1e-6  # relative spread below which a map is constant


class Faithfulness(NamedTuple):
    """The four figures of orders of removal, each B K. Better: low deletion and sufficiency, high others."""

    deletion: Tensor  # area under the curve
    insertion: Tensor  # area under the curve
    comprehensiveness: Tensor  # probability lost without the top units
    sufficiency: Tensor  # probability lost with only the top units


def measure(probability: Probability, orders: Int[Tensor, "B K U"], points: int | None = None) -> Faithfulness:
    """All four figures of K orders per example. points: steps of the curves, None for one unit at a time."""
    shares = counts(orders.shape[-1], points) / orders.shape[-1]
    return Faithfulness(
        deletion=area(deletion(probability, orders, points), shares),
        insertion=area(insertion(probability, orders, points), shares),
        comprehensiveness=comprehensiveness(probability, orders),
        sufficiency=sufficiency(probability, orders),
    )


def order(scores: Float[Tensor, "B U"], *, least_first: bool = False, seed: int | None = None) -> Int[Tensor, "B U"]:
    """Units from the highest score to the lowest, or the other way round.

    Ties go by index, or with ``seed`` at random: a map with many zeros must gain nothing from where the zeros lie.
    Raises ValueError for scores that are not finite.
    """
    if not scores.isfinite().all():
        raise ValueError("units can only be ordered by finite scores")
    if seed is None:
        return scores.sort(dim=-1, descending=not least_first, stable=True).indices
    shuffled = random_orders(scores.shape[0], scores.shape[1], count=1, seed=seed)[:, 0].to(scores.device)
    return shuffled.gather(-1, order(scores.gather(-1, shuffled), least_first=least_first))


def random_orders(B: int, U: int, count: int = 10, seed: int = 0) -> Int[Tensor, "B K U"]:
    """``count`` random orders for each example. Batches to be pooled need different seeds, or they share their luck."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(B, count, U, generator=generator, dtype=torch.float64).argsort(dim=-1)


def counts(U: int, points: int | None = None) -> Int[Tensor, " P"]:
    """How many units are gone at each step of a curve: 0 to U in at most ``points`` steps of about the same size.

    Raises ValueError for fewer than 1 unit or point.
    """
    if U < 1 or (points is not None and points < 1):
        raise ValueError(f"a curve needs at least 1 unit and 1 point, not {U} and {points}")
    steps = min(points or U, U)
    return torch.tensor([round(step * U / steps) for step in range(steps + 1)])


def deletion(
    probability: Probability, orders: Int[Tensor, "B K U"], points: int | None = None
) -> Float[Tensor, "B K P"]:
    """The probability as units go, first of the order first (RISE, Petsiuk et al. 2018, arXiv 1806.07421)."""
    gone = _first(orders, counts(orders.shape[-1], points).tolist())
    return _asked(probability, gone, "deletion")


def insertion(
    probability: Probability, orders: Int[Tensor, "B K U"], points: int | None = None
) -> Float[Tensor, "B K P"]:
    """The probability as units come back, first of the order first, from an input that has none of them."""
    back = _first(orders, counts(orders.shape[-1], points).tolist())
    return _asked(probability, ~back, "insertion")


def area(curve: Float[Tensor, "*N P"], shares: Float[Tensor, " P"] | None = None) -> Float[Tensor, "*N"]:
    """Area under a curve over the share of units: (sum s - s_0 / 2 - s_n / 2) / n.

    shares: where the points lie from 0 to 1, when they are not evenly spaced.
    """
    if shares is None:
        return torch.trapezoid(curve, dx=1 / (curve.shape[-1] - 1))
    return torch.trapezoid(curve, shares.to(curve))


def comprehensiveness(
    probability: Probability, orders: Int[Tensor, "B K U"], percents: Sequence[int] = PERCENTS
) -> Float[Tensor, "B K"]:
    """p(x) - p(x without the top units), mean over the top percents (ERASER, DeYoung et al. 2020, arXiv 1911.03429).

    High where the ranked units were needed. Each percent takes at least one unit.
    """
    top = _first(orders, [0, *_tops(orders.shape[-1], percents)])
    curve = _asked(probability, top, "deletion")
    return (curve[..., :1] - curve[..., 1:]).mean(dim=-1)


def sufficiency(
    probability: Probability, orders: Int[Tensor, "B K U"], percents: Sequence[int] = PERCENTS
) -> Float[Tensor, "B K"]:
    """p(x) - p(only the top units), mean over the top percents (ERASER). Low where the ranked units were enough."""
    U = orders.shape[-1]
    kept = _first(orders, [U, *_tops(U, percents)])
    curve = _asked(probability, ~kept, "deletion")
    return (curve[..., :1] - curve[..., 1:]).mean(dim=-1)


def jensen_shannon(p: Float[Tensor, "*N V"], q: Float[Tensor, "*N V"]) -> Float[Tensor, "*N"]:
    """Jensen-Shannon divergence of two distributions, in nats: 0 for the same, ln 2 at most."""
    middle = (p + q) / 2
    to_middle = [(torch.xlogy(each, each) - torch.xlogy(each, middle)).sum(dim=-1) for each in (p, q)]
    return ((to_middle[0] + to_middle[1]) / 2).clamp(min=0)


def total_variation(p: Float[Tensor, "*N V"], q: Float[Tensor, "*N V"]) -> Float[Tensor, "*N"]:
    """Total variation distance of two distributions: half the sum of their absolute differences, 0 to 1."""
    return (p - q).abs().sum(dim=-1) / 2


def median_change(clean: Float[Tensor, "B V"], changed: Float[Tensor, "B N V"]) -> Float[Tensor, " B"]:
    """How far N permutations of the attention move the output: the median total variation (Jain & Wallace 2019,
    arXiv 1902.10186). Near 0 where the output does not depend on which key got which weight."""
    return total_variation(changed, clean[:, None].expand_as(changed)).quantile(0.5, dim=-1)


def class_sensitivity(scores: Float[Tensor, "*N U"], other: Float[Tensor, "*N U"]) -> Float[Tensor, "*N"]:
    """1 - Pearson correlation of the maps for two outputs (ours): 0 for the same map, 2 for a reversed one.

    Identical maps give 0 even when they are constant; otherwise a constant map has no correlation: NaN.
    """
    from scipy import stats

    first, second = scores.double(), other.double()
    sensitivity = torch.full(first.shape[:-1], torch.nan, dtype=torch.float64)
    known = ~(constant(first) | constant(second)).cpu()
    if known.any():
        correlation = stats.pearsonr(first.cpu()[known].numpy(), second.cpu()[known].numpy(), axis=-1).statistic
        sensitivity[known] = 1 - torch.from_numpy(correlation)
    return sensitivity.to(scores.device).masked_fill((first == second).all(dim=-1), 0.0)


def compactness(scores: Float[Tensor, "*N U"]) -> Float[Tensor, "*N"]:
    """Share of units whose |score| is at most 5 % of the largest one: high for a small spot. NaN for a map of zeros."""
    size = scores.abs()
    largest = size.amax(dim=-1, keepdim=True)
    return (size <= SMALL * largest).double().mean(dim=-1).masked_fill(largest[..., 0] == 0, torch.nan)


def constant(scores: Float[Tensor, "*N U"]) -> Bool[Tensor, "*N"]:
    """Where all units have the same score but for rounding: such a map ranks nothing."""
    return scores.amax(dim=-1) - scores.amin(dim=-1) <= ROUNDING * scores.abs().amax(dim=-1)


def permuted(weights: Float[Tensor, "*N S"], generator: torch.Generator) -> Float[Tensor, "*N S"]:
    """Each row's weights shuffled among the keys it can see (Jain & Wallace 2019). A weight of 0 counts as masked.

    In ``intervene``: ``lambda weights, site: permuted(weights, generator)``. The generator stays on the CPU.
    """
    hidden = weights == 0
    luck = torch.rand(weights.shape, generator=generator, dtype=torch.float64).to(weights.device)
    source = luck.masked_fill(hidden, torch.inf).argsort(dim=-1)  # visible keys in random order, then hidden ones
    target = hidden.to(torch.uint8).sort(dim=-1, stable=True).indices  # visible keys in their own order
    return torch.zeros_like(weights).scatter(-1, target, weights.gather(-1, source))


def uniform(weights: Float[Tensor, "*N S"]) -> Float[Tensor, "*N S"]:
    """The same weight on every key that a row can see: the baseline of Wiegreffe & Pinter (2019, arXiv 1908.04626).

    A weight of 0 counts as masked. A row that sees nothing stays 0.
    """
    visible = (weights != 0).to(weights.dtype)
    return visible / visible.sum(dim=-1, keepdim=True).clamp(min=1)


def without_keys(weights: Float[Tensor, "B H T S"], keys: Bool[Tensor, "B S"]) -> Float[Tensor, "B H T S"]:
    """Knock-out: nothing attends to ``keys`` (True = knocked out), and what is left of each row sums to 1 again.

    A row that saw only those keys becomes 0.
    """
    left = weights.masked_fill(keys[:, None, None, :], 0.0)
    total = left.sum(dim=-1, keepdim=True)
    return left / total.where(total > 0, 1)


def _first(orders: Tensor, sizes: Sequence[int]) -> Tensor:
    """B K P U: True for the first ``sizes[p]`` units of each order."""
    place = orders.argsort(dim=-1)
    return place[..., None, :] < torch.tensor(sizes, device=orders.device)[:, None]


def _asked(probability: Probability, removed: Tensor, start: Start) -> Tensor:
    """The probability (B K P) for sets of removed units (B K P U), asking for each set of an example only once."""
    B, K, P, U = removed.shape
    # Sets that are the same for every example and order (nothing, everything, a repeated size) cost one pass.
    sets = removed.reshape(B, K * P, U).transpose(0, 1)
    distinct, index = sets.unique(dim=0, return_inverse=True)
    return probability(distinct.transpose(0, 1), start)[:, index].reshape(B, K, P)


def _tops(U: int, percents: Sequence[int]) -> list[int]:
    return [-(-percent * U // 100) for percent in percents]
