"""Relevance of every input position, propagated through self- and cross-attention with the gradients of one logit.

The rules are of Chefer, Gur & Wolf 2021, arXiv 2103.15679. Relevance starts as the identity: a position is relevant to
itself. Gradients are of one logit before softmax, with respect to the weights after softmax.
"""

from collections.abc import Sequence

import torch

from triptych.attention.shapes import Float, Tensor
from triptych.errors import UserError


def positive(weights: Float[Tensor, "B H T S"], gradients: Float[Tensor, "B H T S"]) -> Float[Tensor, "B T S"]:
    """A layer's map: what of weights times gradients is above 0 in a head, averaged over heads in this order."""
    return (weights * gradients).relu().mean(1)


def self_relevance(cams: Sequence[Float[Tensor, "B T T"]]) -> Float[Tensor, "B T T"]:
    """R of a stack of self-attention: row i is what each input position means to position i of the last layer.

    cams: from ``positive``, first layer first.

    Raises:
        UserError: no layer.
    """
    if not cams:
        raise UserError("relevance needs the weights of at least one layer")
    return _identity(cams[0]) + _beyond_identity(cams)


def cross_relevance(
    encoder: Sequence[Float[Tensor, "B S S"]],
    decoder: Sequence[tuple[Float[Tensor, "B T T"], Float[Tensor, "B T S"]]],
) -> tuple[Float[Tensor, "B T T"], Float[Tensor, "B T S"]]:
    """R of target to target and of target to source. Row t is for the token that row t emits, which it does not read.

    encoder: maps of self-attention, from ``positive``. decoder: of self- and cross-attention of each layer.

    Raises:
        UserError: no decoder layer.
    """
    if not decoder:
        raise UserError("relevance from target to source needs the weights of at least one decoder layer")
    own, cross = decoder[0]
    source = _beyond_identity(encoder) if encoder else own.new_zeros(cross.shape[0], cross.shape[2], cross.shape[2])
    target, across = torch.zeros_like(own), torch.zeros_like(cross)
    for own, cross in decoder:
        target, across = target + own + own @ target, across + own @ across
        across = across + _normalised(target).mT @ cross @ _normalised(source)
    return _identity(target) + target, across


# Below, relevance is kept as R - I. Subtracting I at the end instead would lose small relevance to rounding, and with
# it a row's proportions, which normalisation brings up to 1 however small the gradients are.


def _beyond_identity(cams: Sequence[Tensor]) -> Tensor:
    """R - I after all layers, where each makes R of R + A R."""
    beyond = torch.zeros_like(cams[0])
    for cam in cams:
        beyond = beyond + cam + cam @ beyond
    return beyond


def _normalised(beyond: Tensor) -> Tensor:
    """I plus R - I with rows that sum to 1. A row of zeros, which causal decoders always have, stays that of I."""
    total = beyond.sum(-1, keepdim=True)
    return _identity(beyond) + torch.where(total > 0, beyond / total.where(total > 0, 1), 0)


def _identity(like: Tensor) -> Tensor:
    return torch.eye(like.shape[-1], dtype=like.dtype, device=like.device)
