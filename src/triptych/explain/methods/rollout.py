"""Attention followed through all layers: rollout, flow, and rollout weighted by gradients. Layers go first to last.

Rollout and flow are of Abnar & Zuidema 2020, arXiv 2005.00928: a layer passes on its residual stream and what it
attends to, half and half. Both say where paths of attention lead, not what the answer depends on. In a causal model
they lean to early tokens, since every later position reads those at every layer.
"""

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import torch
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import maximum_flow

from triptych.attention.shapes import Float, Tensor
from triptych.errors import UserError

Fusion = Literal["mean", "min", "max"]

_FUSE: dict[str, Callable[..., Tensor]] = {"mean": torch.mean, "min": torch.amin, "max": torch.amax}
_UNIT = 2**30  # a capacity of 1: SciPy counts flow in whole 32-bit numbers, and no flow here is above 1


def fuse(weights: Float[Tensor, "B H T S"], *, heads: Fusion, discard: float = 0.0) -> Float[Tensor, "B T S"]:
    """One map of all heads, without the lowest share of its entries.

    heads: how heads become one. discard: share of an example's entries that are set to 0, lowest first, out of those
    above 0 (so masked ones do not count); the entry of the first position with itself, which is the class token where
    there is one, stays.

    Raises:
        UserError: weights below 0, a fusion that is none, or a share outside 0 to 1.
    """
    if heads not in _FUSE:
        raise UserError(f"heads={heads!r}: heads are fused by {', '.join(_FUSE)}")
    if not 0 <= discard < 1:
        raise UserError(f"discard={discard}: the share of weights to discard must be at least 0 and below 1")
    if not bool((weights >= 0).all()):
        raise UserError(
            "rollout and flow are not defined for weights below 0, as the delta rule may have them, nor for NaN; "
            "ask for a method that takes signed weights, such as attention x gradient"
        )
    fused = _FUSE[heads](weights, dim=1)
    return _without_lowest(fused, discard) if discard else fused


def _without_lowest(fused: Float[Tensor, "B T S"], share: float) -> Float[Tensor, "B T S"]:
    flat = fused.flatten(1)
    rank = flat.argsort(dim=1, stable=True).argsort(dim=1)
    zeros = (flat == 0).sum(1, keepdim=True)
    # .29 * 100 is 28.999999999999996
    dropped = ((flat.shape[1] - zeros) * share + 1e-6).long()
    keep = rank >= zeros + dropped
    keep[:, 0] = True
    return (flat * keep).view_as(fused)


def with_residual(fused: Float[Tensor, "B T T"]) -> Float[Tensor, "B T T"]:
    """The layer as a mixture of its inputs, residual stream included: A + I, each row divided by its own sum."""
    mixed = fused + torch.eye(fused.shape[-1], dtype=fused.dtype, device=fused.device)
    return mixed / mixed.sum(-1, keepdim=True)


def rollout(
    weights: Sequence[Float[Tensor, "B _ T T"]], *, heads: Fusion = "mean", discard: float = 0.0
) -> Float[Tensor, "B T T"]:
    """How much of each input position is in each position of the last layer; every row sums to 1.

    weights: of self-attention, first layer first; what ``joined`` makes for an encoder with a decoder. heads, discard:
    as for ``fuse``.

    Raises:
        UserError: no layer, or what ``fuse`` refuses.
    """
    return _product([fuse(layer, heads=heads, discard=discard) for layer in weights])


def gradient_rollout(
    weights: Sequence[Float[Tensor, "B _ T T"]], gradients: Sequence[Float[Tensor, "B _ T T"]]
) -> Float[Tensor, "B T T"]:
    """Rollout of weights times gradients: the mean over heads, and of that what is above 0; every row sums to 1.

    gradients: of one logit, with respect to ``weights``, in the same order of layers.

    Raises:
        UserError: no layer.
        ValueError: another number of gradients than of weights.
    """
    return _product([(A * G).mean(1).relu() for A, G in zip(weights, gradients, strict=True)])


def _product(fused: Sequence[Tensor]) -> Tensor:
    _require(fused)
    rolled = with_residual(fused[0])
    for layer in fused[1:]:
        rolled = with_residual(layer) @ rolled
    return rolled


def flow(
    weights: Sequence[Float[Tensor, "B _ T T"]], *, heads: Fusion = "mean", rows: Sequence[int] | None = None
) -> Float[Tensor, "B R T"]:
    """The largest flow from a position of the last layer to each input position, as shares that sum to 1.

    weights, heads: as for ``rollout``. rows: positions of the last layer; None for all of them. Each pair of a row and
    an input position is a maximum-flow problem of its own: with 6 layers of 65 positions a row takes about 0.1 s.

    Raises:
        UserError: no layer, a row that there is not, or what ``fuse`` refuses.
    """
    flows = maximum_flows([with_residual(fuse(layer, heads=heads)) for layer in weights], rows=rows)
    return flows / flows.sum(-1, keepdim=True)  # never 0: the residual stream always leads down


def maximum_flows(
    capacities: Sequence[Float[Tensor, "B T T"]], *, rows: Sequence[int] | None = None
) -> Float[Tensor, "B R T"]:
    """What can flow from a position of the last layer to each input position, before rows are made to sum to 1.

    capacities: of the edges from a layer's positions to those below it, as ``with_residual`` gives them.

    Raises:
        UserError: no layer, or a row that there is not.
    """
    _require(capacities)
    T = capacities[0].shape[-1]
    chosen = range(T) if rows is None else rows
    for row in chosen:
        if not -T <= row < T:
            raise UserError(f"row {row} of attention flow: there are {T} positions, 0 to {T - 1}")
    layers = torch.stack([layer.detach().double().cpu() for layer in capacities], dim=1).numpy()
    top = len(capacities) * T
    flows = [
        [[maximum_flow(graph, top + row % T, column).flow_value for column in range(T)] for row in chosen]
        for graph in map(_graph, layers)
    ]
    return torch.tensor(flows).to(capacities[0]).view(len(layers), len(chosen), T) / _UNIT


def _graph(layers: np.ndarray) -> csr_matrix:
    """Position p above layer l is node l T + p; inputs are level 0, the last layer's positions the highest level."""
    L, T, _ = layers.shape
    units = np.rint(layers * _UNIT).astype(np.int32)
    layer, query, key = np.nonzero(units)
    edges = ((layer + 1) * T + query, layer * T + key)
    return csr_matrix((units[layer, query, key], edges), shape=((L + 1) * T, (L + 1) * T))


def joined(
    encoder: Sequence[Float[Tensor, "B _ S S"]],
    decoder: Sequence[tuple[Float[Tensor, "B _ T T"], Float[Tensor, "B _ T S"]]],
) -> list[Float[Tensor, "B _ N N"]]:
    """An encoder with a decoder as one stack over N = S + T positions, source first, for ``rollout`` and ``flow``.

    encoder: self-attention. decoder: self- and cross-attention of each layer. Where a layer leaves a side alone, that
    side's rows are 0, so that rollout passes it on as it is. This extension to two sequences is ours.

    Raises:
        UserError: no decoder layer.
    """

    def placed(weights: Tensor, row: int, column: int) -> Tensor:
        B, H, high, wide = weights.shape
        whole = weights.new_zeros(B, H, S + T, S + T)
        whole[:, :, row : row + high, column : column + wide] = weights
        return whole

    _require(decoder)
    T, S = decoder[0][1].shape[-2:]
    stack = [placed(weights, 0, 0) for weights in encoder]
    for own, cross in decoder:
        stack += [placed(own, S, S), placed(cross, S, 0)]
    return stack


def _require(layers: Sequence[object]) -> None:
    if not layers:
        raise UserError("rollout and flow need the weights of at least one layer")
