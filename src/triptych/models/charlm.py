"""The causal character language model: a decoder-only transformer that predicts each next character."""

from collections.abc import Callable
from typing import Literal

from torch import nn

from triptych.attention import Attend, AttentionMask, KeyValueCache, MultiHeadAttention, Rotary
from triptych.attention.multihead import check_heads
from triptych.attention.shapes import Float, Int, Tensor
from triptych.errors import UserError
from triptych.models.blocks import Activation, Block, FeedForward, initialise
from triptych.models.embeddings import TokenEmbedding


class CharLM(nn.Module):
    """Pre-norm decoder-only transformer (as GPT-2, Radford et al. 2019).

    vocab_size: number of characters. context: the most positions it attends over.
    positions: "rotary" (turned into queries and keys) or "learned" (added to the embeddings).
    kv_heads: heads of keys and values, shared by groups of query heads; None for as many as ``heads``.
    tied: predict with the embedding's own matrix.
    feed_forward: width of the hidden layer of each block's feed-forward part.
    attention: makes each layer's Attend.

    Raises UserError for sizes that do not fit together.
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        context: int,
        depth: int,
        width: int,
        heads: int,
        kv_heads: int | None,
        feed_forward: int,
        activation: Activation,
        positions: Literal["rotary", "learned"],
        qk_norm: bool,
        tied: bool,
        dropout: float,
        attention: Callable[..., Attend],
    ) -> None:
        super().__init__()
        _check(context=context, depth=depth, width=width, feed_forward=feed_forward, dropout=dropout)
        if positions not in ("rotary", "learned"):
            raise UserError(f"model.positions={positions} is not known; use rotary or learned")
        learned = positions == "learned"
        check_heads(width, heads, heads if kv_heads is None else kv_heads, even=not learned)
        self.context = context
        self.embedding = TokenEmbedding(vocab_size=vocab_size, width=width, positions=context if learned else None)
        rotary = None if learned else Rotary(head_size=width // heads, positions=context)
        self.blocks = nn.ModuleList(
            Block(
                width=width,
                attention=MultiHeadAttention(
                    width=width,
                    heads=heads,
                    kv_heads=kv_heads,
                    attend=attention,
                    rotary=rotary,
                    qk_norm=qk_norm,
                ),
                feed_forward=FeedForward(width=width, hidden=feed_forward, activation=activation),
                dropout=dropout,
            )
            for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width, bias=False)
        self.predict = nn.Linear(width, vocab_size, bias=False)
        initialise(self)
        if tied:
            self.predict.weight = self.embedding.token.weight
        else:
            nn.init.zeros_(self.predict.weight)
            # Measured: 0.02, which suits a matrix that also predicts, learns more slowly here.
            nn.init.normal_(self.embedding.token.weight, std=0.3)

    def forward(self, tokens: Int[Tensor, "B T"], cache: KeyValueCache | None = None) -> Float[Tensor, "B T V"]:
        """Scores (logits) of every next character. With ``cache``, ``tokens`` are only the new ones.

        Raises ValueError when more positions are asked for than the context holds.
        """
        offset = 0 if cache is None else cache.length
        if offset + tokens.shape[1] > self.context:
            raise ValueError(f"{offset + tokens.shape[1]} positions do not fit the context of {self.context}")
        mask = AttentionMask(causal=True, query_offset=offset)
        x = self.embedding(tokens, offset)
        for index, block in enumerate(self.blocks):
            x = block(x, mask, None if cache is None else cache[index])
        return self.predict(self.norm(x))

    def new_cache(self) -> KeyValueCache:
        """An empty cache of this model's size."""
        return KeyValueCache(layers=len(self.blocks), capacity=self.context)


def _check(*, context: int, depth: int, width: int, feed_forward: int, dropout: float) -> None:
    for name, size in (
        ("context", context),
        ("depth", depth),
        ("width", width),
        ("feed_forward", feed_forward),
    ):
        if size < 1:
            raise UserError(f"model.{name}={size}; it must be at least 1")
    if not 0 <= dropout < 1:
        raise UserError(f"model.dropout={dropout}; it must be in 0 <= dropout < 1")
