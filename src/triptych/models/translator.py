"""The transformer encoder-decoder: reads a whole sentence, then writes its translation one token after another."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, cast

import torch
from torch import nn

from triptych.attention import Attend, AttentionMask, KeyValueCache, LayerCache, MultiHeadAttention, Rotary
from triptych.attention.multihead import check_heads
from triptych.attention.shapes import Bool, Float, Int, Tensor
from triptych.errors import UserError
from triptych.models.blocks import Activation, Block, DecoderBlock, FeedForward, initialise
from triptych.models.dropout import Dropout
from triptych.models.embeddings import TokenEmbedding

# The ids that `data.tokenizers.SubwordTokenizer` gives its special tokens; a test holds both to the same numbers.
PAD, START, END, UNKNOWN = range(4)


class Translator(nn.Module):
    """Encoder-decoder with cross-attention (Vaswani et al. 2017, arXiv 1706.03762), pre-norm (arXiv 2002.04745).

    vocab_size: tokens, the same for source and target. positions: the longest source, and the longest target, that it
        takes, in tokens.
    positional: "rotary" (queries and keys of self-attention are turned; cross-attention has no positions, since two
        sequences share none), "learned" or "sinusoidal" (added to the embeddings).
    encoder_depth, decoder_depth: layers. feed_forward: width of the hidden layer of each block's feed-forward part.
    kv_heads: heads of keys and values, shared by groups of query heads; None for as many as ``heads``.
    tied: one matrix embeds source and target and predicts (Press and Wolf, arXiv 1608.05859, "three-way").
    dropout: of the embeddings and of what each part of a block adds.
    attention: makes each layer's Attend.

    Token id 0 is padding, behind the sentences; what its embedding holds changes nothing. Embeddings are multiplied
    by sqrt(width): small enough to predict with, they would be drowned by the first block otherwise.

    Raises UserError for sizes that do not fit together.
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        positions: int,
        encoder_depth: int,
        decoder_depth: int,
        width: int,
        heads: int,
        kv_heads: int | None,
        feed_forward: int,
        activation: Activation,
        positional: Literal["rotary", "learned", "sinusoidal"],
        qk_norm: bool,
        tied: bool,
        dropout: float,
        attention: Callable[..., Attend],
    ) -> None:
        super().__init__()
        check_sizes(encoder_depth=encoder_depth, decoder_depth=decoder_depth, width=width, feed_forward=feed_forward)
        check_dropout(dropout)
        if positional not in ("rotary", "learned", "sinusoidal"):
            raise UserError(f"model.positional={positional} is not known; use rotary, learned or sinusoidal")
        turned = positional == "rotary"
        kv_heads = heads if kv_heads is None else kv_heads
        check_heads(width, heads, kv_heads, even=turned, rotary="model.positional=rotary")
        self.vocab_size, self.positions = vocab_size, positions
        self.scale = width**0.5
        self.source_embedding = TokenEmbedding(vocab_size=vocab_size, width=width, positions=None)
        self.target_embedding = (
            self.source_embedding if tied else TokenEmbedding(vocab_size=vocab_size, width=width, positions=None)
        )
        self.source_position = self._positions(positional, width)
        self.target_position = self._positions(positional, width)
        self.dropout = Dropout(dropout)
        layer = partial(
            MultiHeadAttention, width=width, heads=heads, kv_heads=kv_heads, attend=attention, qk_norm=qk_norm
        )
        rotary = Rotary(head_size=width // heads, positions=positions) if turned else None
        hidden = partial(FeedForward, width=width, hidden=feed_forward, activation=activation)
        self.encoder = nn.ModuleList(
            Block(width=width, attention=layer(rotary=rotary), feed_forward=hidden(), dropout=dropout)
            for _ in range(encoder_depth)
        )
        self.decoder = nn.ModuleList(
            DecoderBlock(
                width=width,
                attention=layer(rotary=rotary),
                cross=layer(kind="cross"),
                feed_forward=hidden(),
                dropout=dropout,
            )
            for _ in range(decoder_depth)
        )
        self.encoder_norm = nn.LayerNorm(width, bias=False)
        self.decoder_norm = nn.LayerNorm(width, bias=False)
        self.predict = nn.Linear(width, vocab_size, bias=False)
        initialise(self)
        for table in (self.source_position, self.target_position):
            if isinstance(table, nn.Embedding):  # as large as the tokens that it is added to
                nn.init.normal_(table.weight, std=0.02 * self.scale)
        if tied:
            self.predict.weight = self.source_embedding.token.weight
        else:
            nn.init.zeros_(self.predict.weight)

    def forward(self, source: Int[Tensor, "B S"], target: Int[Tensor, "B T"]) -> Float[Tensor, "B T V"]:
        """Scores (logits) of the token that follows each target token. Raises ValueError for what is too long."""
        return self.predict(self.hidden(source, target))

    def hidden(self, source: Int[Tensor, "B S"], target: Int[Tensor, "B T"]) -> Float[Tensor, "B T C"]:
        """What ``predict`` makes the logits from: whoever needs only some positions selects them between the two."""
        memory, memory_mask = self._encode(source, source != PAD)
        x = self._embed(self.target_embedding, self.target_position, target, 0)
        # Padding stands behind, so no real query sees it.
        mask = AttentionMask(causal=True)
        for block in self.decoder:
            x = block(x, mask, memory, memory_mask)
        return self.decoder_norm(x)

    def start(self, source: Int[Tensor, "B S"]) -> "TranslatorState":
        """Encode; what ``step`` needs to write translations of these sources."""
        real = source != PAD
        memory, _ = self._encode(source, real)
        padding = None if real.all() else real  # one question here saves every step a mask
        return TranslatorState(
            written=KeyValueCache(layers=len(self.decoder), capacity=self.positions),
            memories=[cast(DecoderBlock, block).cross.remember(memory) for block in self.decoder],
            memory_mask=AttentionMask(key_padding=padding),
            sentence=torch.arange(len(source), device=source.device),
        )

    def step(self, tokens: Int[Tensor, " B"], state: "TranslatorState") -> Float[Tensor, "B V"]:
        """Read one more target token per row; logits of the next. ``state`` then holds that token too."""
        offset = state.written.length
        x = self._embed(self.target_embedding, self.target_position, tokens[:, None], offset)
        mask = AttentionMask(causal=True, query_offset=offset)
        for index, block in enumerate(self.decoder):
            x = block(x, mask, None, state.memory_mask, state.written[index], state.memories[index])
        return self.predict(self.decoder_norm(x[:, 0]))

    def _positions(self, positional: str, width: int) -> nn.Module | None:
        if positional == "learned":
            return nn.Embedding(self.positions, width)
        if positional == "sinusoidal":
            return Sinusoids(positions=self.positions, width=width, size=0.02 * self.scale)
        return None

    def _encode(
        self, source: Int[Tensor, "B S"], real: Bool[Tensor, "B S"]
    ) -> tuple[Float[Tensor, "B S C"], AttentionMask]:
        mask = AttentionMask(key_padding=real)
        x = self._embed(self.source_embedding, self.source_position, source, 0)
        for block in self.encoder:
            x = block(x, mask)
        return self.encoder_norm(x), mask

    def _embed(
        self, embedding: nn.Module, position: nn.Module | None, tokens: Int[Tensor, "B T"], offset: int
    ) -> Float[Tensor, "B T C"]:
        end = offset + tokens.shape[1]
        if end > self.positions:
            raise ValueError(f"{end} tokens do not fit the {self.positions} positions of the model")
        x = embedding(tokens) * self.scale
        if position is not None:
            x = x + position(torch.arange(offset, end, device=tokens.device))
        return self.dropout(x.masked_fill((tokens == PAD)[..., None], 0.0))


@dataclass
class TranslatorState:
    """How far a batch of translations is. Rows of the same ``sentence`` have the same memory."""

    written: KeyValueCache  # of the decoder's self-attention
    memories: list[LayerCache]  # of its cross-attention
    memory_mask: AttentionMask
    sentence: Int[Tensor, " B"]

    def select(self, rows: Int[Tensor, " N"]) -> None:
        """Keep these rows, in this order; a row may be repeated."""
        self.written.select(rows)
        sentence = self.sentence[rows]
        if torch.equal(sentence, self.sentence):
            return
        self.sentence = sentence
        for memory in self.memories:
            memory.select(rows)
        padding = self.memory_mask.key_padding
        self.memory_mask = AttentionMask(key_padding=None if padding is None else padding[rows])


class Sinusoids(nn.Module):
    """Sines and cosines of the position, of wavelengths from 2 pi to 10,000 times that (Vaswani et al., section 3.5).

    size: root mean square of a vector. Raises UserError for an odd width.
    """

    def __init__(self, *, positions: int, width: int, size: float) -> None:
        super().__init__()
        if width % 2:
            raise UserError(f"model.positional=sinusoidal fills pairs of channels, and model.width={width} is odd")
        frequency = 10_000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
        angle = torch.arange(positions, dtype=torch.float64)[:, None] * frequency
        table = torch.cat([angle.sin(), angle.cos()], dim=1) * 2**0.5 * size
        self.register_buffer("table", table.float(), persistent=False)
        self.table: Tensor

    def forward(self, positions: Int[Tensor, " T"]) -> Float[Tensor, "T C"]:
        return self.table[positions]


def check_sizes(**sizes: int) -> None:
    """Raise UserError for a size below 1."""
    for name, size in sizes.items():
        if size < 1:
            raise UserError(f"model.{name}={size}; it must be at least 1")


def check_dropout(dropout: float) -> None:
    """Raise UserError unless it is a share below 1."""
    if not 0 <= dropout < 1:
        raise UserError(f"model.dropout={dropout}; it must be in 0 <= dropout < 1")
