"""Maps of what speaks for one class: CDAM in four forms, Grad-CAM of tokens and of attention, attention x gradient.

Tokens are the output of the last block's first layer norm, gradients those of one logit before softmax with respect to
them: behind that block's attention, the gradients of patches are exactly 0 where a class token is read. Scores come
for every position; the caller leaves out those that are no patches. A constant map says nothing and becomes zeros.
"""

from collections.abc import Callable

import torch

from triptych.attention.shapes import Float, Tensor
from triptych.errors import UserError
from triptych.explain.methods.relevance import positive

Logit = Callable[[Tensor], Tensor]
"""From tokens (B N d) to what is explained (B), differentiable, and each example's by its own tokens alone."""

_CONSTANT = 1e-6  # differences below this share of the largest value are rounding


def cdam(tokens: Float[Tensor, "B N d"], gradients: Float[Tensor, "B N d"]) -> Float[Tensor, "B N"]:
    """Class-discriminative attention map (Brocki et al., arXiv 2312.02364): tokens times gradients, with their sign."""
    return (tokens * gradients).sum(-1)


def smooth_cdam(
    function: Logit, tokens: Float[Tensor, "B N d"], *, draws: int = 50, spread: float = 0.05, seed: int = 0
) -> Float[Tensor, "B N"]:
    """CDAM averaged over noisy copies of the tokens, of which each is multiplied with its own gradient.

    spread: standard deviation of the noise, as a share of the range of an example's tokens. draws: copies. The noise is
    the same for all examples but for that range, so an example's map does not depend on those beside it.

    Raises:
        UserError: fewer than 1 draw, or a spread below 0.
    """
    _at_least_one("draws", draws)
    if not spread >= 0:
        raise UserError(f"spread={spread}: noise has a standard deviation of at least 0")
    generator = torch.Generator().manual_seed(seed)
    size = spread * (tokens.amax((1, 2), keepdim=True) - tokens.amin((1, 2), keepdim=True))
    total = torch.zeros_like(tokens[..., 0])
    for _ in range(draws):
        noisy = tokens + size * torch.randn(tokens.shape[1:], generator=generator, dtype=tokens.dtype).to(tokens.device)
        total += cdam(noisy, _gradient(function, noisy))
    return total / draws


def integrated_cdam(function: Logit, tokens: Float[Tensor, "B N d"], *, steps: int = 50) -> Float[Tensor, "B N"]:
    """Integrated gradients (arXiv 1703.01365) from tokens of 0: an example's scores sum to y(tokens) - y(0).

    steps: equal parts of the way, with the gradient taken in the middle of each, which brings the integral to four
    digits within 50 steps. What the authors of CDAM call integrated differs between their two programs.

    Raises:
        UserError: fewer than 1 step.
    """
    _at_least_one("steps", steps)
    total = torch.zeros_like(tokens)
    for k in range(steps):
        total += _gradient(function, tokens * ((k + 0.5) / steps))
    return cdam(tokens, total / steps)


def concept_similarity(embeddings: Float[Tensor, "B d"], examples: Float[Tensor, "examples d"]) -> Float[Tensor, " B"]:
    """What CDAM's concept form explains in a logit's place: class token times the mean one of a concept's examples."""
    return embeddings @ examples.mean(0)


def grad_cam(
    tokens: Float[Tensor, "B N d"], gradients: Float[Tensor, "B N d"], *, scaled: bool = True
) -> Float[Tensor, "B N"]:
    """Grad-CAM (arXiv 1610.02391) of tokens: features weighted by their mean gradient, and of that what is above 0.

    tokens, gradients: of the patches alone. scaled: from 0 to 1 for each example.
    """
    cam = torch.einsum("bnd,bd->bn", tokens, gradients.mean(1)).relu()
    return min_max(cam) if scaled else cam


def attention_gradient(
    weights: Float[Tensor, "B H T S"], gradients: Float[Tensor, "B H T S"], *, signed: bool = False
) -> Float[Tensor, "B T S"]:
    """Attention x gradient of one layer, mean over heads: of each head what is above 0, or with its sign."""
    return (weights * gradients).mean(1) if signed else positive(weights, gradients)


def attention_grad_cam(
    weights: Float[Tensor, "B H S"], gradients: Float[Tensor, "B H S"], *, scaled: bool = True
) -> Float[Tensor, "B S"]:
    """Grad-CAM of one query row: heads weighted by their mean gradient over patches, and of their mean what is above 0.

    weights, gradients: of the patches alone. scaled: from 0 to 1 for each example.
    """
    cam = (gradients.mean(-1, keepdim=True) * weights).mean(1).relu()
    return min_max(cam) if scaled else cam


def min_max(scores: Float[Tensor, "B N"]) -> Float[Tensor, "B N"]:
    """Scores of each example from 0 to 1; zeros where they are all the same."""
    low, high = scores.amin(1, keepdim=True), scores.amax(1, keepdim=True)
    differs = high - low > _CONSTANT * torch.maximum(low.abs(), high.abs())
    return torch.where(differs, (scores - low) / (high - low).where(differs, 1), 0)


def _gradient(function: Logit, tokens: Tensor) -> Tensor:
    """Of each example's own output with respect to its tokens."""
    with torch.enable_grad():
        tokens = tokens.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(function(tokens).sum(), tokens)
    return gradient


def _at_least_one(name: str, number: int) -> None:
    if number < 1:
        raise UserError(f"{name}={number}: a map needs at least 1")
