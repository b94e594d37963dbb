"""Small translators of both kinds that attend to something, and sentence pairs of many lengths for them."""

import functools
from typing import Any

import torch
from torch import Tensor

from triptych.attention import Attend
from triptych.models.rnn_translator import RNNTranslator
from triptych.models.translator import END, START, Translator

TRANSFORMER: dict[str, Any] = {
    "vocab_size": 17,
    "positions": 24,
    "encoder_depth": 2,
    "decoder_depth": 2,
    "width": 16,
    "heads": 4,
    "kv_heads": 2,
    "feed_forward": 24,
    "activation": "gelu",
    "positional": "rotary",
    "qk_norm": False,
    "tied": True,
    "dropout": 0.0,
}
RECURRENT: dict[str, Any] = {
    "vocab_size": 17,
    "positions": 24,
    "depth": 2,
    "width": 16,
    "score": "additive",
    "tied": True,
    "dropout": 0.0,
}
KINDS = ("transformer", "none", "additive", "dot", "general")


def untouched(kind: str = "transformer", *, backend: str | None = None, **changes: Any) -> Translator | RNNTranslator:
    """As built from seed 0: the transformer, or the recurrent translator of a score."""
    torch.manual_seed(0)
    if kind == "transformer":
        attention = functools.partial(Attend, backend=backend or "flash")
        return Translator(**{**TRANSFORMER, "attention": attention} | changes)
    attention = functools.partial(Attend, backend=backend or ("naive" if kind == "additive" else "flash"))
    return RNNTranslator(**{**RECURRENT, "score": kind, "attention": attention} | changes)


def stirred(kind: str = "transformer", **changes: Any) -> Translator | RNNTranslator:
    """With weights large enough that every part of it matters, in eval mode and float64."""
    model = untouched(kind, **changes)
    for parameter in model.parameters():
        if parameter.dim() == 2:
            torch.nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5)
    model.scale = 1.0
    return model.double().eval()


def sources(lengths: list[int], *, seed: int = 3, vocab_size: int = 17) -> Tensor:
    """Sentences of so many tokens, end token included, padded behind."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.zeros(len(lengths), max(lengths), dtype=torch.long)
    for row, length in zip(rows, lengths, strict=True):
        row[:length] = torch.randint(4, vocab_size, (length,), generator=generator)
        row[length - 1] = END
    return rows


def targets(lengths: list[int], *, seed: int = 4, vocab_size: int = 17) -> tuple[Tensor, Tensor]:
    """What the decoder reads and what it should answer, for sentences of so many tokens, end token included."""
    expected = sources(lengths, seed=seed, vocab_size=vocab_size)
    read = torch.cat([torch.full((len(lengths), 1), START), expected[:, :-1]], dim=1)
    return read.masked_fill(expected == 0, 0), expected
