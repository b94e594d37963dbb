"""The ancestor: a recurrent encoder-decoder, without attention or with the kinds that came before transformers."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from triptych.attention import EVERYTHING, Attend, AttentionMask
from triptych.attention.attend import check_device
from triptych.attention.scores import Additive, Dot, General, Score
from triptych.attention.shapes import Float, Int, Tensor
from triptych.errors import UserError
from triptych.models.blocks import initialise
from triptych.models.dropout import Dropout
from triptych.models.embeddings import TokenEmbedding
from triptych.models.translator import PAD, check_dropout, check_sizes

SCORES = ("none", "additive", "dot", "general")


class RNNTranslator(nn.Module):
    """Bidirectional GRU encoder, GRU decoder (Cho et al. 2014, arXiv 1406.1078), attention between them.

    vocab_size: tokens, the same for source and target. positions: the longest source, and the longest target, in
        tokens; a recurrence sets no limit of its own, so this only tells decoding where to stop.
    depth: GRU layers of the encoder, and of the decoder. width: of everything; each encoder direction has half.
    score: how the decoder's state meets the encoder's. "additive" (Bahdanau et al. 2015, arXiv 1409.0473), "dot" or
        "general" (Luong et al. 2015, arXiv 1508.04025); with "none" the decoder has only the encoder's last states to
        begin from (Sutskever et al. 2014, arXiv 1409.3215).
    tied: one matrix embeds source and target and predicts. dropout: of embeddings, between layers, before predicting.
    attention: makes the Attend.

    The order is Luong's for every score, so that a comparison of scores compares nothing else: the decoder's new state
    queries the encoder's states, context and state become ``tanh(W [context; state])``, and that predicts. Two things
    differ from the papers. Bahdanau's decoder asks with its previous state and reads the context into the next one.
    Luong's also feeds the combined vector back into the next step; without that, all target positions are computed at
    once, in training. Several heads are an invention of the transformer: there is one.

    Token id 0 is padding, behind the sentences. Raises UserError for options that do not fit together.
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        positions: int,
        depth: int,
        width: int,
        score: Literal["none", "additive", "dot", "general"],
        tied: bool,
        dropout: float,
        attention: Callable[..., Attend],
    ) -> None:
        super().__init__()
        check_sizes(depth=depth, width=width)
        check_dropout(dropout)
        if width % 2:
            raise UserError(f"model.width={width}; it must be even, for the encoder's two directions")
        if score not in SCORES:
            raise UserError(f"model.score={score} is not known; use {', '.join(SCORES[:-1])} or {SCORES[-1]}")
        self.vocab_size, self.positions, self.depth = vocab_size, positions, depth
        self.scale = width**0.5
        self.source_embedding = TokenEmbedding(vocab_size=vocab_size, width=width, positions=None)
        self.target_embedding = (
            self.source_embedding if tied else TokenEmbedding(vocab_size=vocab_size, width=width, positions=None)
        )
        self.dropout = Dropout(dropout)
        self.encoder = nn.GRU(
            width, width // 2, depth, batch_first=True, bidirectional=True, dropout=dropout if depth > 1 else 0.0
        )
        self.bridge = nn.Linear(width, width)
        self.decoder = RecurrentDecoder(width=width, depth=depth, score=score, dropout=dropout, attention=attention)
        self.predict = nn.Linear(width, vocab_size, bias=False)
        initialise(self)
        for linear in (self.bridge, self.decoder.combine):
            nn.init.xavier_uniform_(linear.weight)  # 0.02 suits a residual stream, and there is none
        if tied:
            self.predict.weight = self.source_embedding.token.weight

    def forward(self, source: Int[Tensor, "B S"], target: Int[Tensor, "B T"]) -> Float[Tensor, "B T V"]:
        """Scores (logits) of the token that follows each target token."""
        return self.predict(self.hidden(source, target))

    def hidden(self, source: Int[Tensor, "B S"], target: Int[Tensor, "B T"]) -> Float[Tensor, "B T C"]:
        """What ``predict`` makes the logits from: whoever needs only some positions selects them between the two."""
        memory, state = self._encode(source)
        combined, _ = self.decoder(
            self._embed(self.target_embedding, target), state, memory, AttentionMask(key_padding=source != PAD)
        )
        return self.dropout(combined)

    def start(self, source: Int[Tensor, "B S"]) -> "RNNState":
        """Encode; what ``step`` needs to write translations of these sources."""
        memory, state = self._encode(source)
        real = source != PAD
        mask = EVERYTHING if real.all() else AttentionMask(key_padding=real)
        return RNNState(state, memory, mask, torch.arange(len(source), device=source.device))

    def step(self, tokens: Int[Tensor, " B"], state: "RNNState") -> Float[Tensor, "B V"]:
        """Read one more target token per row; logits of the next. ``state`` then holds that token too."""
        x = self._embed(self.target_embedding, tokens[:, None])
        combined, state.hidden = self.decoder(x, state.hidden, state.memory, state.memory_mask)
        return self.predict(self.dropout(combined[:, 0]))

    def check_device(self, device: torch.device, dtype: torch.dtype, *, training: bool) -> None:
        """Raise UserError if the attention's backend cannot run, or train, there."""
        if self.decoder.cross is not None:
            size = self.bridge.out_features
            check_device(self.decoder.cross.attend, 1, 1, size, device, dtype, training=training)

    def _encode(self, source: Int[Tensor, "B S"]) -> tuple[Float[Tensor, "B S C"], Float[Tensor, "L B C"]]:
        """States of the top layer at every source position, and the decoder's first state in each of its layers."""
        lengths = (source != PAD).sum(1).cpu()
        # Packed, so that the backward direction begins at each sentence's own end, and no state sees padding.
        packed = nn.utils.rnn.pack_padded_sequence(
            self._embed(self.source_embedding, source), lengths, batch_first=True, enforce_sorted=False
        )
        states, last = self.encoder(packed)
        memory, _ = nn.utils.rnn.pad_packed_sequence(states, batch_first=True, total_length=source.shape[1])
        last = last.unflatten(0, (self.depth, 2)).transpose(1, 2).flatten(2)  # L B C: both directions side by side
        return memory, torch.tanh(self.bridge(last))

    def _embed(self, embedding: nn.Module, tokens: Int[Tensor, "B T"]) -> Float[Tensor, "B T C"]:
        x = embedding(tokens) * self.scale
        return self.dropout(x.masked_fill((tokens == PAD)[..., None], 0.0))


class Cross(nn.Module):
    """One-headed cross-attention without projections: decoder states ask, encoder states are keys and values."""

    def __init__(self, *, score: Score, attention: Callable[..., Attend]) -> None:
        super().__init__()
        self.attend = attention(kind="cross", score=score)

    def forward(
        self, states: Float[Tensor, "B T C"], memory: Float[Tensor, "B S C"], mask: AttentionMask
    ) -> Float[Tensor, "B T C"]:
        """The context of every state."""
        key = memory[:, None].to(states.dtype)
        return self.attend(states[:, None], key, key, mask)[:, 0]


class RecurrentDecoder(nn.Module):
    """GRU over the target, then attention over the source from each of its states, then both combined."""

    def __init__(self, *, width: int, depth: int, score: str, dropout: float, attention: Callable[..., Attend]) -> None:
        super().__init__()
        self.rnn = nn.GRU(width, width, depth, batch_first=True, dropout=dropout if depth > 1 else 0.0)
        how = _score(score, width)
        self.cross = None if how is None else Cross(score=how, attention=attention)
        self.combine = nn.Linear(width if how is None else 2 * width, width)

    def forward(
        self,
        x: Float[Tensor, "B T C"],
        state: Float[Tensor, "L B C"],
        memory: Float[Tensor, "B S C"],
        mask: AttentionMask,
    ) -> tuple[Float[Tensor, "B T C"], Float[Tensor, "L B C"]]:
        """What predicts, at every position, and the state after the last one."""
        states, state = self.rnn(x, state)
        if self.cross is not None:
            states = torch.cat([self.cross(states, memory, mask).to(states.dtype), states], dim=-1)
        return torch.tanh(self.combine(states)), state


@dataclass
class RNNState:
    """How far a batch of translations is. Rows of the same ``sentence`` have the same memory."""

    hidden: Float[Tensor, "L B C"]
    memory: Float[Tensor, "B S C"]
    memory_mask: AttentionMask
    sentence: Int[Tensor, " B"]

    def select(self, rows: Int[Tensor, " N"]) -> None:
        """Keep these rows, in this order; a row may be repeated."""
        self.hidden = self.hidden.index_select(1, rows)
        sentence = self.sentence[rows]
        if torch.equal(sentence, self.sentence):
            return
        self.sentence = sentence
        self.memory = self.memory.index_select(0, rows)
        padding = self.memory_mask.key_padding
        self.memory_mask = EVERYTHING if padding is None else AttentionMask(key_padding=padding[rows])


def _score(name: str, width: int) -> Score | None:
    if name == "none":
        return None
    if name == "additive":
        return Additive(size=width, hidden=width)
    return Dot() if name == "dot" else General(size=width)
