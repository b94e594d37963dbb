"""Pre-norm transformer blocks around the attention core, shared by every model."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import nn

from triptych.attention import AttentionMask, LayerCache, MultiHeadAttention
from triptych.attention.shapes import Float, Tensor
from triptych.models.dropout import Dropout

Activation = Literal["gelu", "relu_squared"]


class FeedForward(nn.Module):
    """Two linear maps with an activation between: GELU, or the squared ReLU of Primer (arXiv 2109.08668)."""

    def __init__(self, *, width: int, hidden: int, activation: Activation, bias: bool = False) -> None:
        super().__init__()
        self.expand = nn.Linear(width, hidden, bias=bias)
        self.contract = nn.Linear(hidden, width, bias=bias)
        self.activation = activation

    def forward(self, x: Float[Tensor, "B T C"]) -> Float[Tensor, "B T C"]:
        hidden = self.expand(x)
        hidden = F.gelu(hidden) if self.activation == "gelu" else F.relu(hidden).square()
        return self.contract(hidden)


class Block(nn.Module):
    """Attention, then feed-forward, each added to its own input: ``x + attention(norm(x))``, ``x + mlp(norm(x))``.

    Normalising before each part instead of after keeps training stable without tuning (Xiong et al. 2020,
    arXiv 2002.04745). Dropout and stochastic depth act on what each part adds.
    """

    def __init__(
        self,
        *,
        width: int,
        attention: MultiHeadAttention,
        feed_forward: FeedForward,
        dropout: float,
        stochastic_depth: float = 0.0,
    ) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width, bias=False)
        self.attention = attention
        self.feed_forward_norm = nn.LayerNorm(width, bias=False)
        self.feed_forward = feed_forward
        self.dropout = Dropout(dropout)
        self.skip = StochasticDepth(stochastic_depth)

    def forward(
        self,
        x: Float[Tensor, "B T C"],
        mask: AttentionMask,
        cache: LayerCache | None = None,
        first: int | None = None,
    ) -> Float[Tensor, "B t C"]:
        """The next block's input. first: only so many positions from the first on; None for all."""
        attended = self.attention(self.attention_norm(x), mask, None, cache, first)
        x = x[:, :first] + self.skip(self.dropout(attended))
        return x + self.skip(self.dropout(self.feed_forward(self.feed_forward_norm(x))))


class DecoderBlock(nn.Module):
    """A block that also consults a memory: self-attention, then cross-attention, then feed-forward, each pre-norm.

    Dropout acts on what each part adds. The memory comes normalised.
    """

    def __init__(
        self,
        *,
        width: int,
        attention: MultiHeadAttention,
        cross: MultiHeadAttention,
        feed_forward: FeedForward,
        dropout: float,
    ) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width, bias=False)
        self.attention = attention
        self.cross_norm = nn.LayerNorm(width, bias=False)
        self.cross = cross
        self.feed_forward_norm = nn.LayerNorm(width, bias=False)
        self.feed_forward = feed_forward
        self.dropout = Dropout(dropout)

    def forward(
        self,
        x: Float[Tensor, "B T C"],
        mask: AttentionMask,
        memory: Float[Tensor, "B S C"] | None,
        memory_mask: AttentionMask,
        cache: LayerCache | None = None,
        memory_cache: LayerCache | None = None,
    ) -> Float[Tensor, "B T C"]:
        """The next block's input. ``memory_cache`` (``MultiHeadAttention.remember``) stands in for ``memory``."""
        x = x + self.dropout(self.attention(self.attention_norm(x), mask, None, cache))
        x = x + self.dropout(self.cross(self.cross_norm(x), memory_mask, memory, memory_cache))
        return x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))


class StochasticDepth(nn.Module):
    """In training, 0 for a ``rate`` of the examples and scaled up for the others (Huang et al., arXiv 1603.09382)."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Float[Tensor, "B T C"]) -> Float[Tensor, "B T C"]:
        if not self.training or self.rate == 0:
            return x
        kept = torch.rand(len(x), 1, 1, device=x.device) >= self.rate
        return x * kept / (1 - self.rate)


def initialise(model: nn.Module) -> None:
    """Normal weights of standard deviation 0.02; what a block adds starts at 0, so depth starts as the identity."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.02)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
    for module in model.modules():
        if isinstance(module, MultiHeadAttention):
            nn.init.zeros_(module.output.weight)
        elif isinstance(module, FeedForward):
            nn.init.zeros_(module.contract.weight)


def parameter_count(model: nn.Module) -> int:
    """Trainable parameters; shared ones count once."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
